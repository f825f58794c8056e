//! What goes wrong on purpose: calls that fail, bytes that arrive wrong. Counts every call.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    cuda,
    execute::lock,
    machine::{CallFault, FailingCall, FailingRank, Flip},
    nccl, nvml, state,
    timing::cost::Place,
};

/// How much longer a call lasts in which its process was stopped: threads that handle the signals
/// that came meanwhile have their turn before it returns.
const AFTER_A_STOP: Duration = Duration::from_millis(300);

/// The calls of one name.
#[derive(Debug)]
pub(crate) struct Calls {
    count: AtomicU64,
    /// What is to fail; looked up when the first call is made with a machine.
    failing: Vec<FailingCall>,
}

static CALLS: Mutex<BTreeMap<String, &Calls>> = Mutex::new(BTreeMap::new());

/// Counts a call of `name`, without a version suffix; the code with which it is to fail, if it is.
pub fn check(name: &str) -> Option<u32> {
    calls(name)?.check()
}

/// The calls of `name`; `None` as long as there is no machine.
fn calls(name: &str) -> Option<&'static Calls> {
    let world = crate::state::world()?;
    let mut all = lock(&CALLS);
    if let Some(calls) = all.get(name) {
        return Some(calls);
    }
    let is_here = |call: &&FailingCall| {
        call.name == name && call.process.is_none_or(|process| process == world.place)
    };
    let failing = world.machine.faults.calls.iter().filter(is_here).cloned().collect();
    let calls = &*Box::leak(Box::new(Calls { count: AtomicU64::new(0), failing }));
    all.insert(name.to_owned(), calls);
    Some(calls)
}

/// How often each function was called that was called.
pub(crate) fn counts() -> BTreeMap<String, u64> {
    let all = lock(&CALLS);
    all.iter().map(|(name, calls)| (name.clone(), calls.count.load(Ordering::Relaxed))).collect()
}

impl Calls {
    fn check(&self) -> Option<u32> {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let hit = |call: &&FailingCall| {
            if call.always { before >= call.after } else { before == call.after }
        };
        match self.failing.iter().find(hit)?.what {
            CallFault::Refused { code } => return Some(code),
            CallFault::Killed => state::raise(libc::SIGKILL),
            CallFault::Stopped => {
                state::raise(libc::SIGSTOP);
                thread::sleep(AFTER_A_STOP);
            }
            CallFault::Hung => loop {
                thread::park();
            },
        }
        None
    }
}

/// What is wrong with faults of calls that there are not: they would never happen.
pub(crate) fn unknown_call(failing: &[FailingCall]) -> Option<String> {
    let all = || cuda::function_names().chain(nvml::call_names()).chain(nccl::function_names());
    let names = || all().map(base_name);
    let call = failing.iter().find(|call| names().all(|name| name != call.name))?;
    let nearest = names().min_by_key(|name| strsim::osa_distance(&call.name, name))?;
    Some(format!("fault.call: no call is named `{}`: the nearest name is `{nearest}`", call.name))
}

/// What is wrong with faults of ranks in functions that no rank calls.
pub(crate) fn unknown_rank_call(failing: &[FailingRank]) -> Option<String> {
    let mut named = failing.iter().filter_map(|fault| fault.name.as_ref());
    let name = named.find(|name| nccl::rank_calls().all(|known| known != name.as_str()))?;
    let nearest = nccl::rank_calls().min_by_key(|known| strsim::osa_distance(name, known))?;
    Some(format!("fault.rank: no rank calls `{name}`: the nearest name is `{nearest}`"))
}

/// A place in the code that is a function of the interface.
#[derive(Debug)]
pub(crate) struct CallSite {
    name: &'static str,
    calls: OnceLock<&'static Calls>,
}

impl CallSite {
    /// Of the function `name`, which may have a version suffix.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, calls: OnceLock::new() }
    }

    /// Its name.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// As [`check`], without looking the name up each time.
    pub(crate) fn check(&self) -> Option<u32> {
        if let Some(calls) = self.calls.get() {
            return calls.check();
        }
        let calls = calls(base_name(self.name))?;
        self.calls.get_or_init(|| calls).check()
    }
}

/// A function's name without its version suffix.
pub(crate) fn base_name(name: &'static str) -> &'static str {
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// The transfers that leave a byte wrong.
#[derive(Debug)]
pub(crate) struct Flips(Vec<(Flip, AtomicU64)>);

impl Flips {
    /// With no transfer counted.
    pub(crate) fn new(flips: &[Flip]) -> Self {
        Self(flips.iter().map(|flip| (*flip, AtomicU64::new(0))).collect())
    }

    /// Counts a transfer from place to place of `bytes`, and flips what is to be flipped.
    pub(crate) fn after_transfer(
        &self,
        (source, target): (Place, Place),
        bytes: u64,
        mut flip_at: impl FnMut(u64),
    ) {
        for (flip, count) in &self.0 {
            let is = |wanted: Option<u32>, found| wanted.is_none_or(|gpu| found == Place::Gpu(gpu));
            if !is(flip.source, source) || !is(flip.target, target) || bytes <= flip.offset {
                continue;
            }
            let before = count.fetch_add(1, Ordering::Relaxed);
            if if flip.always { before >= flip.after } else { before == flip.after } {
                flip_at(flip.offset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_suffix_is_no_part_of_the_name() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuStreamWaitValue32_v2"), "cuStreamWaitValue32");
        assert_eq!(base_name("cuInit"), "cuInit");
        assert_eq!(base_name("nvml_verbose"), "nvml_verbose");
    }

    #[test]
    fn a_flip_hits_the_transfer_that_it_names() {
        let flip = Flip { source: Some(0), target: None, offset: 10, after: 1, always: false };
        let flips = Flips::new(&[flip]);
        let hits = |source, bytes| {
            let mut hits = vec![];
            flips.after_transfer((Place::Gpu(source), Place::Host), bytes, |at| hits.push(at));
            hits
        };
        assert_eq!(hits(0, 100), [0_u64; 0], "one goes well before");
        assert_eq!(hits(1, 100), [0_u64; 0], "another source");
        assert_eq!(hits(0, 10), [0_u64; 0], "too short");
        assert_eq!(hits(0, 11), [10]);
        assert_eq!(hits(0, 11), [0_u64; 0], "only once");
    }
}
