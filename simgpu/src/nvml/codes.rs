//! What calls answer.

use std::ffi::CStr;

use nvml_wrapper_sys::bindings::nvmlReturn_t;
pub(super) use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

/// A sentence for a code.
pub(super) fn sentence(code: nvmlReturn_t) -> &'static CStr {
    match code {
        SUCCESS => c"success",
        UNINITIALIZED => c"NVML is not initialised",
        INVALID_ARGUMENT => c"an argument is invalid",
        NOT_SUPPORTED => c"not supported by this GPU",
        NOT_FOUND => c"not found",
        INSUFFICIENT_SIZE => c"the buffer is too small",
        TIMEOUT => c"nothing has happened in time",
        GPU_IS_LOST => c"the GPU is lost",
        DRIVER_NOT_LOADED => c"the driver is not loaded",
        ARGUMENT_VERSION_MISMATCH => c"the version in the argument is not known",
        _ => c"unknown error",
    }
}
