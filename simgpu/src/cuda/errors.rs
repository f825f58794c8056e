//! The driver's codes, their names, and sentences about them in our words.

use std::ffi::{CStr, c_char};

use super::{Out, driver};

/// A code of the driver other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $code:literal, $sentence:literal;)*) => {
        #[allow(dead_code, reason = "the table has all codes that a caller may ask about")]
        impl Code {
            $(pub(crate) const $name: Self = Self($code);)*
        }

        /// The name of a code and a sentence about it.
        fn known(code: u32) -> Option<(&'static CStr, &'static CStr)> {
            let (name, sentence) = match code {
                $($code => (
                    concat!("CUDA_", codes!(@prefix $name), stringify!($name), "\0"),
                    concat!($sentence, "\0"),
                ),)*
                _ => return None,
            };
            let c_string = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
            Some((c_string(name)?, c_string(sentence)?))
        }
    };
    (@prefix SUCCESS) => { "" };
    (@prefix $name:ident) => { "ERROR_" };
}

codes! {
    SUCCESS = 0, "no error";
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "the driver has not been initialised";
    DEINITIALIZED = 4, "the driver is shutting down";
    NO_DEVICE = 100, "no GPU was found";
    INVALID_DEVICE = 101, "no such GPU";
    INVALID_IMAGE = 200, "invalid kernel image";
    INVALID_CONTEXT = 201, "invalid context";
    MAP_FAILED = 205, "the memory cannot be mapped";
    UNMAP_FAILED = 206, "the memory cannot be unmapped";
    ALREADY_MAPPED = 208, "the memory is mapped already";
    NO_BINARY_FOR_GPU = 209, "there is no kernel image for this GPU";
    NOT_MAPPED = 211, "the memory is not mapped";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error";
    PEER_ACCESS_UNSUPPORTED = 217, "these GPUs have no access to each other's memory";
    INVALID_PTX = 218, "the PTX cannot be compiled";
    NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error";
    UNSUPPORTED_PTX_VERSION = 222, "the PTX is of a version that this driver does not know";
    INVALID_SOURCE = 300, "invalid source";
    FILE_NOT_FOUND = 301, "file not found";
    OPERATING_SYSTEM = 304, "a call of the operating system failed";
    INVALID_HANDLE = 400, "invalid handle";
    ILLEGAL_STATE = 401, "not in this state";
    NOT_FOUND = 500, "no such name";
    NOT_READY = 600, "not done yet";
    ILLEGAL_ADDRESS = 700, "a kernel or a copy touched memory that it may not touch";
    LAUNCH_OUT_OF_RESOURCES = 701, "the launch asks for more than the GPU has";
    LAUNCH_TIMEOUT = 702, "an operation took too long";
    PEER_ACCESS_ALREADY_ENABLED = 704, "access to this peer is enabled already";
    PEER_ACCESS_NOT_ENABLED = 705, "access to this peer is not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "the primary context is in use already";
    CONTEXT_IS_DESTROYED = 709, "the context has been destroyed";
    TOO_MANY_PEERS = 711, "no more peers can be reached";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "the host memory is registered already";
    HOST_MEMORY_NOT_REGISTERED = 713, "the host memory is not registered";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    LAUNCH_FAILED = 719, "a kernel failed";
    NOT_PERMITTED = 800, "not permitted";
    NOT_SUPPORTED = 801, "not supported";
    SYSTEM_NOT_READY = 802, "the system is not ready yet";
    SYSTEM_DRIVER_MISMATCH = 803, "the versions of the driver and of this library differ";
    STREAM_CAPTURE_UNSUPPORTED = 900, "not while the stream is captured";
    STREAM_CAPTURE_INVALIDATED = 901, "the capture has become invalid";
    TIMEOUT = 909, "the wait took too long";
    EXTERNAL_DEVICE = 911, "a device outside failed";
    UNKNOWN = 999, "unknown error";
}

driver! {
    /// The name of a code.
    fn cuGetErrorName(error: u32, name: Out<*const c_char>) |_| {
        tell(error, &name, |known| known.0)
    }

    /// A sentence about a code.
    fn cuGetErrorString(error: u32, sentence: Out<*const c_char>) |_| {
        tell(error, &sentence, |known| known.1)
    }
}

fn tell(
    error: u32,
    text: &Out<*const c_char>,
    which: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Result<(), Code> {
    match known(error) {
        Some(known) => text.set(which(known).as_ptr()),
        None => {
            text.set(std::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}
