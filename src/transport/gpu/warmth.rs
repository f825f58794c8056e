//! The clocks of GPUs, told by a kernel that spins: reading them by NVML would need rights that not
//! every user has, and takes longer.

use std::{cell::Cell, collections::BTreeSet, rc::Rc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Gpus, PATIENCE, Ready};
use crate::{
    ffi::{CallError, cuda::Memory},
    plan::{Case, Gpu, Rank},
    transport::{Error, TryingTo},
    units::Bytes,
    world::World,
};

/// A clock that is lower by more than this share has fallen; one that is higher has risen. Clocks
/// change in steps of 15 MHz, which is more.
const NOISE: f64 = 0.005;

/// The clock of a GPU's multiprocessors, in cycles per nanosecond; 0 before the first look.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    /// What counts as risen.
    full: Cell<f64>,
    /// At the last look.
    now: Cell<f64>,
    /// Whether a look has failed that was for later cases only.
    is_lost: Cell<bool>,
}

/// What the clocks of a rank's GPUs are like. Where it has none, there is nothing to rise.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Clocks {
    /// Whether all are as high as they were when they did not rise any more.
    are_full: bool,
    /// Whether one is higher than at the last look.
    have_risen: bool,
}

/// How long a look at clocks takes. The coarsest global timer, of a microsecond, tells them to a
/// thousandth then.
const LOOK: Duration = Duration::from_millis(1);

/// How long GPUs spin between two looks at clocks that rise.
const STEP: Duration = Duration::from_millis(20);

/// The load before clocks that do not rise any more are believed, unless they are as high as they
/// were.
const LOAD_MIN: Duration = Duration::from_millis(500);

/// The load after which clocks that still rise are left alone.
const LOAD_MAX: Duration = Duration::from_secs(2);

/// Loads the GPUs of `case`, and those that later cases use, until the clocks of all have risen.
/// Where they are high already, that takes a look. Every rank calls it: one whose GPUs have risen
/// loads them until the others have.
///
/// An idle GPU runs at a fraction of its clocks, and takes tens to hundreds of milliseconds to rise.
/// Until then everything it does is slow, and evenly so.
pub fn warm(gpus: Option<&Gpus>, case: &Case, world: &mut World) -> Result<(), Error> {
    let own = of(gpus, case, world.rank())?;
    let later = gpus.map(|gpus| gpus.later(&own)).unwrap_or_default();
    let (mut spun, mut load) = (LOOK, Duration::ZERO);
    loop {
        let all = world.agree(look(&own, &later, spun)?, |all| Clocks {
            are_full: all.iter().all(|clocks| clocks.are_full),
            have_risen: all.iter().any(|clocks| clocks.have_risen),
        })?;
        let is_steady = load >= LOAD_MIN && !all.have_risen;
        if all.are_full || is_steady || load >= LOAD_MAX {
            break;
        }
        spun = STEP;
        load += spun;
    }
    if !load.is_zero() {
        own.iter().chain(&later).for_each(|gpu| gpu.warmth.full.set(gpu.warmth.now.get()));
    }
    Ok(())
}

/// Whether the clock of a GPU that `rank` has in `case` has risen since the last look: what was
/// timed meanwhile is too slow.
pub fn clock_rose(gpus: Option<&Gpus>, case: &Case, rank: Rank) -> Result<bool, Error> {
    Ok(look(&of(gpus, case, rank)?, &[], LOOK)?.have_risen)
}

/// The GPUs that `rank` has in `case`.
fn of(gpus: Option<&Gpus>, case: &Case, rank: Rank) -> Result<Vec<Rc<Ready>>, Error> {
    let own = case.ends().filter(|end| end.rank == rank).filter_map(|end| end.gpu());
    let own: BTreeSet<Gpu> = own.collect();
    gpus.iter().flat_map(|gpus| own.iter().map(|&gpu| gpus.ready(gpu))).collect()
}

/// Lets the GPUs of a case spin for `duration`, and those of later cases, all at once; their clocks
/// then.
fn look(own: &[Rc<Ready>], later: &[Rc<Ready>], duration: Duration) -> Result<Clocks, Error> {
    const DOING: &str = "look at a GPU's clock";
    let mut clocks = Clocks { are_full: true, have_risen: false };
    own.iter().try_for_each(|gpu| gpu.spin(duration)).trying_to(DOING)?;
    // What is wrong with another GPU is not this case's.
    let is_here = |gpu: &&Rc<Ready>| !gpu.warmth.is_lost.get() && gpu.spin(duration).is_ok();
    let later: Vec<&Rc<Ready>> = later.iter().filter(is_here).collect();
    for gpu in own {
        clocks.note(&gpu.warmth, gpu.spun_clock().trying_to(DOING)?);
    }
    for gpu in later {
        match gpu.spun_clock() {
            Ok(now) => clocks.note(&gpu.warmth, now),
            Err(_) => gpu.warmth.is_lost.set(true),
        }
    }
    Ok(clocks)
}

impl Clocks {
    /// Adds a GPU whose clock is `now`.
    fn note(&mut self, warmth: &Warmth, now: f64) {
        let (full, before) = (warmth.full.get(), warmth.now.replace(now));
        self.are_full &= full > 0.0 && now >= full * (1.0 - NOISE);
        self.have_risen |= now > before * (1.0 + NOISE);
    }
}

impl Gpus {
    /// Names the GPUs that this process uses in the run. One that has nothing to do for long takes
    /// long to rise again, so all are kept up.
    pub fn keep_up(&self, used: BTreeSet<Gpu>) {
        *self.used.borrow_mut() = used;
    }

    /// Those that are used in the run, without `own`.
    fn later(&self, own: &[Rc<Ready>]) -> Vec<Rc<Ready>> {
        let mut used = self.used.borrow_mut();
        let mut all = Vec::new();
        used.retain(|&gpu| self.ready(gpu).map(|ready| all.push(ready)).is_ok());
        all.retain(|gpu| !own.iter().any(|own| Rc::ptr_eq(own, gpu)));
        all
    }
}

impl Ready {
    /// Queues spinning for `duration`, and the copy of what it tells.
    pub(super) fn spin(&self, duration: Duration) -> Result<(), CallError> {
        let size = Bytes::new(16);
        let answers = self.answers.slice(Bytes::default(), size);
        self.kernels.spin(&self.stream, duration, answers)?;
        self.stream.copy(self.copied.borrow().slice(Bytes::default(), size), answers)
    }

    /// Waits for it; the clock that it had.
    fn spun_clock(&self) -> Result<f64, CallError> {
        self.stream.synchronize(PATIENCE)?;
        let mut copied = self.copied.borrow_mut();
        let (words, _) = copied.bytes(PATIENCE)?.as_chunks::<8>();
        let [cycles, ns] = [0, 1].map(|word| u64::from_ne_bytes(words[word]));
        Ok(cycles as f64 / ns.max(1) as f64)
    }
}
