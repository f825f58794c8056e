//! The driver's interface: handles, checks, and what each function does.
//!
//! The functions have the names and arguments of the ABI, so each has the description that the
//! CUDA driver API's manual gives; the comments here say where the simulation is special.

mod context;
mod copy;
pub(crate) mod device;
mod errors;
mod event;
pub(crate) mod graph;
mod ipc;
mod launch;
pub(crate) mod local;
mod memory;
mod module;
mod multicast;
pub(crate) mod queue;
mod reach;
pub(crate) mod rest;
mod stream;
pub(crate) mod table;
mod virtual_memory;
mod visible;

use std::{
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
};

pub(crate) use errors::Code;
pub(crate) use local::{Live, Local};
pub(crate) use memory::{cuMemAlloc_v2, cuMemFree_v2};

use crate::{
    faults::CallSite,
    state::{World, world},
};

/// A place that a caller gives for a result; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Puts the result there; null is an invalid argument.
    pub(crate) fn set(&self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of every function of the interface a pointer for a result is
        // null or valid for a write.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Puts the result there, if it is wanted.
    pub(crate) fn set_if_wanted(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as above.
            unsafe { self.0.write(value) };
        }
    }

    /// The address, for what has a length of its own.
    pub(crate) fn pointer(&self) -> *mut T {
        self.0
    }

    /// For a caller in this library.
    #[cfg(test)]
    pub(crate) fn to(place: *mut T) -> Self {
        Self(place)
    }
}

/// Something that a caller gives to be read; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// What is there, or of an array the element `at`; null is an invalid argument.
    pub(crate) fn get(&self, at: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the contract of every function of the interface a pointer to an argument is
        // null or valid for a read, and an array is as long as its count says.
        let element = unsafe { self.0.add(at) };
        // SAFETY: as above.
        Ok(unsafe { element.read() })
    }

    /// Whether nothing is given.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The address, for what has a length of its own.
    pub(crate) fn pointer(&self) -> *const T {
        self.0
    }

    /// For a caller in this library.
    #[cfg(test)]
    pub(crate) fn of(place: *const T) -> Self {
        Self(place)
    }
}

/// Defines functions of the interface: each is counted, can be made to fail, and lets no panic
/// through to its caller, who is C.
macro_rules! driver {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$world:pat_param| $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the ABI's names")]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> u32 {
                static SITE: $crate::faults::CallSite =
                    $crate::faults::CallSite::new(stringify!($name));
                $crate::cuda::call(&SITE, |$world| $body)
            }
        )*

        /// The functions above, for those who ask for them by name.
        pub(super) fn functions() -> Vec<(&'static str, *mut std::ffi::c_void)> {
            vec![$((stringify!($name), $name as *mut std::ffi::c_void)),*]
        }
    };
}
use driver;

fn call(site: &CallSite, body: impl FnOnce(&'static World) -> Result<(), Code>) -> u32 {
    let Some(world) = world() else { return Code::NO_DEVICE.0 };
    if let Some(code) = site.check() {
        return code;
    }
    if world.is_forked() {
        return Code::NOT_INITIALIZED.0;
    }
    if rest::waits(site.name()) {
        rest::current_context(world);
        world.take_ms(world.machine.driver.call_ms as f64);
    }
    match catch_unwind(AssertUnwindSafe(|| body(world))) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// All functions, with their names.
fn functions() -> impl Iterator<Item = (&'static str, *mut c_void)> {
    let modules = [
        context::functions,
        copy::functions,
        device::functions,
        errors::functions,
        event::functions,
        graph::functions,
        ipc::functions,
        launch::functions,
        memory::functions,
        module::functions,
        multicast::functions,
        stream::functions,
        virtual_memory::functions,
    ];
    modules.into_iter().flat_map(|functions| functions())
}

/// The names of all functions.
pub(crate) fn function_names() -> impl Iterator<Item = &'static str> {
    functions().map(|(name, _)| name)
}

/// The functions, for tests.
#[cfg(test)]
pub(crate) mod abi {
    pub(crate) use super::{
        In, Out, context::*, copy::*, device::*, errors::*, event::*, graph::*, ipc::*, launch::*,
        memory::*, module::*, multicast::*, stream::*, virtual_memory::*,
    };
}
