//! Events: errors that the driver tells of as they happen.

use std::{
    collections::BTreeSet,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use libc::{c_uint, c_ulonglong};
use nvml_wrapper_sys::bindings::{
    self as nvml, nvmlDevice_t, nvmlEventData_t, nvmlEventSet_st, nvmlEventSet_t, nvmlReturn_t,
};

use super::{
    Answer, answer,
    codes::{INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT},
    device::Device,
    exported,
    given::{Argument, Given, handle},
    initialised,
};
use crate::machine::Incident;

/// The one kind of event that there is.
pub(super) const XID: c_ulonglong = nvml::nvmlEventTypeXidCriticalError as c_ulonglong;

/// How long a wait sleeps between its looks.
const LOOK: Duration = Duration::from_millis(1);

/// A set of GPUs whose errors are waited for.
#[derive(Debug, Default)]
struct EventSet {
    gpus: BTreeSet<u32>,
    /// Those that were told of, and those that happened before: GPU, and place among the faults.
    told: BTreeSet<(u32, usize)>,
}

/// The sets by their numbers; one that was freed leaves its place empty.
static SETS: Mutex<Vec<Option<EventSet>>> = Mutex::new(Vec::new());

fn sets() -> MutexGuard<'static, Vec<Option<EventSet>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Errors of a GPU so far: the place of each among the machine's faults, and its number.
fn errors(device: &Device) -> Vec<(usize, u32)> {
    let number = |(place, incident): (usize, &Incident)| match incident {
        Incident::Xid { number } => Some((place, *number)),
        _ => None,
    };
    device.incidents().filter_map(number).collect()
}

impl Given<nvmlEventSet_st> {
    /// The set that a handle stands for.
    fn with<T>(self, work: impl FnOnce(&mut EventSet) -> T) -> Answer<T> {
        initialised()?;
        let mut sets = sets();
        let set = self.number().and_then(|number| sets.get_mut(number)?.as_mut());
        set.map(work).ok_or(INVALID_ARGUMENT)
    }
}

exported! {
    /// A new set, with nothing to wait for.
    fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) {
        initialised()?;
        let mut sets = sets();
        sets.push(Some(EventSet::default()));
        set.put(ptr::without_provenance_mut(sets.len()))
    }

    /// What a GPU tells of by events.
    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, types: *mut c_ulonglong) {
        device.device()?;
        types.put(XID)
    }

    /// Adds a GPU to a set: errors that come from now on.
    fn nvmlDeviceRegisterEvents(
        device: nvmlDevice_t,
        types: c_ulonglong,
        set: nvmlEventSet_t
    ) {
        let device = device.device()?;
        if types & !XID != 0 {
            return Err(NOT_SUPPORTED);
        }
        let before = errors(&device);
        set.with(|set| {
            set.gpus.insert(device.ordinal);
            set.told.extend(before.into_iter().map(|(place, _)| (device.ordinal, place)));
        })
    }

    /// Waits for the next error of the GPUs in a set.
    fn nvmlEventSetWait_v2(
        set: nvmlEventSet_t,
        data: *mut nvmlEventData_t,
        timeout_ms: c_uint
    ) {
        let machine = initialised()?;
        data.there()?;
        let begun = Instant::now();
        loop {
            let next = set.with(|set| {
                let of_gpu = |&gpu: &u32| {
                    let all = Device::of(machine, gpu).map(|device| errors(&device));
                    all.into_iter().flatten().map(move |(place, number)| (gpu, place, number))
                };
                let mut all = set.gpus.iter().flat_map(of_gpu);
                let new = all.find(|(gpu, place, _)| !set.told.contains(&(*gpu, *place)));
                new.inspect(|&(gpu, place, _)| {
                    set.told.insert((gpu, place));
                })
            })?;
            if let Some((gpu, _, number)) = next {
                return data.put(nvmlEventData_t {
                    device: handle(gpu),
                    eventType: XID,
                    eventData: c_ulonglong::from(number),
                    gpuInstanceId: c_uint::MAX,
                    computeInstanceId: c_uint::MAX,
                });
            }
            if begun.elapsed() >= Duration::from_millis(u64::from(timeout_ms)) {
                return Err(TIMEOUT);
            }
            thread::sleep(LOOK);
        }
    }

    /// Frees a set.
    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        initialised()?;
        let mut sets = sets();
        let place = set.number().and_then(|number| sets.get_mut(number));
        place.and_then(Option::take).map(|_| ()).ok_or(INVALID_ARGUMENT)
    }
}
