//! The interface of NVML (`libnvidia-ml`), as far as it can be answered from the machine's data and
//! its traffic. `docs/simulation.md`, "NVML", says what each call answers.
//!
//! Handles are ordinals, so a stale or invented one is found out and never followed.

#![allow(non_snake_case, reason = "NVML's names")]

mod codes;
mod device;
mod events;
mod fields;
mod given;
mod health;
#[cfg(test)]
mod health_tests;
#[cfg(test)]
mod interface;
mod links;
#[cfg(test)]
mod tests;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicU32, Ordering},
};

use libc::{c_char, c_int, c_uint};
use nvml_wrapper_sys::bindings::{nvmlConfComputeSystemState_t, nvmlReturn_t};

use crate::{
    faults::base_name,
    machine::{GPUS_MAX, Machine},
};
#[cfg(not(test))]
use crate::{
    faults::check,
    state::{clock_share, machine, memory_used, traffic},
};
use codes::{DRIVER_NOT_LOADED, SUCCESS, UNINITIALIZED, UNKNOWN};
pub(crate) use device::uuid;
use given::Argument;
#[cfg(test)]
pub(crate) use links::common_ancestor;
#[cfg(test)]
use tests::simulated::{check, clock_share, machine, memory_used, traffic};

/// What a call answers: nothing, or the code of its refusal.
type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// Initialisations that were not undone.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

/// Defines exported calls: their bodies see checked arguments and answer with [`Answer`].
macro_rules! exported {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(in crate::nvml) unsafe extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
            $(
                // SAFETY: NVML's interface asks of callers what `Argument::checked` asks for.
                let $argument = unsafe { Argument::checked($argument) };
            )*
            answer(stringify!($name), || $body)
        }
    )*
        /// The names of the calls above.
        pub(in crate::nvml) const CALLS: &[&str] = &[$(stringify!($name)),*];
    };
}
use exported;

/// Answers a call: with the fault that the machine has for it, else with what its work answers.
fn answer(name: &'static str, work: impl FnOnce() -> Answer) -> nvmlReturn_t {
    if let Some(code) = check(base_name(name)) {
        return code;
    }
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// The names of all calls that can be made to fail.
pub(crate) fn call_names() -> impl Iterator<Item = &'static str> {
    let all = [CALLS, device::CALLS, events::CALLS, fields::CALLS, health::CALLS, links::CALLS];
    all.into_iter().flatten().copied()
}

/// The machine, once NVML is initialised.
fn initialised() -> Answer<&'static Machine> {
    match INITIALISED.load(Ordering::Relaxed) {
        0 => Err(UNINITIALIZED),
        _ => machine().ok_or(UNINITIALIZED),
    }
}

fn initialise() -> Answer {
    machine().ok_or(DRIVER_NOT_LOADED)?;
    INITIALISED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The driver's version as a sentence shows it: of the branch that came with its CUDA version.
pub(crate) fn driver_version(machine: &Machine) -> String {
    let branch = match machine.driver_version {
        ..12_000 => 450,
        12_000..12_020 => 525,
        12_020..12_040 => 535,
        12_040..12_060 => 550,
        12_060..12_080 => 560,
        12_080..12_090 => 570,
        12_090..13_000 => 575,
        13_000..13_010 => 580,
        _ => 590,
    };
    format!("{branch}.00.00")
}

exported! {
    /// Must come before all else; counts.
    fn nvmlInit_v2() { initialise() }

    /// The same; what the flags ask for is no matter here.
    fn nvmlInitWithFlags(flags: c_uint) {
        let _: c_uint = flags;
        initialise()
    }

    /// Undoes one initialisation.
    fn nvmlShutdown() {
        let one_less = |count: u32| count.checked_sub(1);
        let undone = INITIALISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        undone.map(|_| ()).map_err(|_| UNINITIALIZED)
    }

    /// Such as `570.00.00`.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        version.put_text(&driver_version(initialised()?), length)
    }

    /// Such as `12.570.00.00`.
    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        let machine = initialised()?;
        let text = format!("{}.{}", machine.driver_version / 1000, driver_version(machine));
        version.put_text(&text, length)
    }

    /// Such as 12080 for 12.8.
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) {
        version.put(initialised()?.driver_version.cast_signed())
    }

    /// Whether confidential computing is on.
    fn nvmlSystemGetConfComputeState(state: *mut nvmlConfComputeSystemState_t) {
        let on = u32::from(initialised()?.confidential_computing);
        // NVML_CC_SYSTEM_ENVIRONMENT_PROD and NVML_CC_SYSTEM_FEATURE_ENABLED of nvml.h.
        let environment = if on == 1 { 2 } else { 0 };
        state.put(nvmlConfComputeSystemState_t { environment, ccFeature: on, devToolsMode: 0 })
    }

    /// How many GPUs there are.
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        count.put(c_uint::try_from(initialised()?.gpus.len()).unwrap_or(GPUS_MAX))
    }
}

/// A sentence for a code.
#[unsafe(no_mangle)]
pub(in crate::nvml) extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    codes::sentence(code).as_ptr()
}
