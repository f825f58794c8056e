//! Values that NVML gives by a number, and not by a call of their own.

use std::{ffi::c_uint, mem};

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_try},
};
use nvml_wrapper_sys::bindings::{self as sys, nvmlFieldValue_t};

use super::Nvml;

/// A value, or what the library says instead.
pub(super) type Value = Result<Number, NvmlError>;

/// A whole number and how wide it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    pub(super) value: u64,
    pub(super) bits: u32,
}

impl Nvml {
    /// The field `id` of a GPU, or of its part `scope`, such as a link; `None` where it is not
    /// told, or is no whole number.
    pub(super) fn field(&self, device: &Device<'_>, id: u32, scope: u32) -> Option<u64> {
        let told = self.fields(device, &[(id, scope)]).ok()?;
        told.into_iter().next()?.ok().map(|number| number.value)
    }

    /// The values of fields, each with its scope; the wrapper's own call has no scope.
    pub(super) fn fields(
        &self,
        device: &Device<'_>,
        asked: &[(c_uint, c_uint)],
    ) -> Result<Vec<Value>, NvmlError> {
        let ask = self.library.lib().nvmlDeviceGetFieldValues.as_ref();
        let ask = ask.map_err(|_| NvmlError::NotSupported)?;
        // SAFETY: an all-zero value is a valid one of this plain C struct.
        let empty: nvmlFieldValue_t = unsafe { mem::zeroed() };
        let value = |&(id, scope)| nvmlFieldValue_t { fieldId: id, scopeId: scope, ..empty };
        let mut values: Vec<nvmlFieldValue_t> = asked.iter().map(value).collect();
        let count = i32::try_from(values.len()).map_err(|_| NvmlError::InvalidArg)?;
        // SAFETY: the handle is used while the library is loaded, and by the call below only.
        let handle = unsafe { device.handle() };
        // SAFETY: the handle is a device's; `values` has as many as the call is told.
        let code = unsafe { ask(handle, count, values.as_mut_ptr()) };
        nvml_try(code)?;
        Ok(values.iter().map(read).collect())
    }
}

/// The number of a value that is one.
fn read(value: &nvmlFieldValue_t) -> Value {
    nvml_try(value.nvmlReturn)?;
    match value.valueType {
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => {
            // SAFETY: the member that the type names; any bits are a number.
            let number = unsafe { value.value.uiVal };
            Ok(Number { value: u64::from(number), bits: u32::BITS })
        }
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => {
            // SAFETY: as above.
            let number = unsafe { value.value.ulVal };
            Ok(Number { value: number, bits: u64::BITS })
        }
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
            // SAFETY: as above.
            let number = unsafe { value.value.ullVal };
            Ok(Number { value: number, bits: u64::BITS })
        }
        _ => Err(NvmlError::UnexpectedVariant(value.valueType)),
    }
}
