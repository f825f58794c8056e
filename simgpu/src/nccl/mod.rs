//! NCCL's interface: communicators of simulated GPUs, between threads and processes of one machine.
//!
//! The functions have the names and arguments of `nccl.h`; `docs/simulation.md`, "Collectives",
//! says how long they last and where they differ from the real ones.

pub(crate) mod arithmetic;
mod collective;
mod communicator;
mod diagnostics;
mod environment;
mod group;
mod interface;
mod log;
mod model;
pub(crate) mod movement;
mod names;
mod report;
pub(crate) mod types;

use std::{
    ffi::c_char,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

pub(crate) use communicator::open;
pub(crate) use interface::function_names;
#[cfg(test)]
pub(crate) use {
    interface::*,
    types::{CONFIG_MAGIC, Config, DataType, Function, UNDEFINED, UniqueId, VERSION},
};

use crate::{
    execute::lock,
    faults::CallSite,
    state::{World, world},
};
use types::{Code, Refused};

/// What `ncclGetLastError` gives: as long as the process lives, at one place.
static LAST_ERROR: Mutex<[u8; 1024]> = Mutex::new([0; 1024]);

/// Defines functions of the interface: each is counted, can be made to fail, and lets no panic
/// through to its caller, who is C.
macro_rules! nccl {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$world:pat_param| $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the ABI's names")]
            #[allow(clippy::too_many_arguments, reason = "the ABI's arguments")]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> i32 {
                static SITE: $crate::faults::CallSite =
                    $crate::faults::CallSite::new(stringify!($name));
                $crate::nccl::call(&SITE, |$world| $body)
            }
        )*

        /// The names of the functions above.
        pub(crate) fn function_names() -> impl Iterator<Item = &'static str> {
            [$(stringify!($name)),*].into_iter()
        }
    };
}
use nccl;

fn call(site: &CallSite, body: impl FnOnce(&'static World) -> Result<(), Refused>) -> i32 {
    let Some(world) = world() else {
        let text = "Cuda failure 'no CUDA-capable device is detected'";
        return refused(&Refused::new(Code::UNHANDLED_CUDA_ERROR, text));
    };
    if let Some(code) = site.check() {
        return code.cast_signed();
    }
    if world.is_forked() {
        let text = "the process was forked from the one that has the GPUs";
        return refused(&Refused::new(Code::SYSTEM_ERROR, text));
    }
    match catch_unwind(AssertUnwindSafe(|| body(world))) {
        Ok(Ok(())) => 0,
        Ok(Err(Refused { code: Code::IN_PROGRESS, .. })) => Code::IN_PROGRESS.0,
        Ok(Err(why)) => refused(&why),
        Err(_) => refused(&Refused::new(Code::INTERNAL_ERROR, "the simulation failed")),
    }
}

/// Notes a refusal and tells of it; its code.
fn refused(why: &Refused) -> i32 {
    log::warn(&why.sentence);
    let mut last = lock(&LAST_ERROR);
    let fits = why.sentence.len().min(last.len() - 1);
    last[..fits].copy_from_slice(&why.sentence.as_bytes()[..fits]);
    last[fits] = 0;
    drop(last);
    group::refuse(why);
    why.code.0
}

/// The functions in which faults of ranks are looked for.
pub(crate) fn rank_calls() -> impl Iterator<Item = &'static str> {
    let calls = [
        "ncclCommInitRank",
        "ncclCommSplit",
        "ncclCommWindowRegister",
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclBroadcast",
        "ncclReduce",
        "ncclAlltoAll",
        "ncclGather",
        "ncclScatter",
        "ncclSend",
        "ncclRecv",
    ];
    calls.into_iter()
}

/// The last error's text.
fn last_error() -> *const c_char {
    lock(&LAST_ERROR).as_ptr().cast()
}
