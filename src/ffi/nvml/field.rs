//! Values that NVML gives by a number, and not by a call of their own.

use std::{ffi::c_uint, mem};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;

use super::Nvml;

impl Nvml {
    /// The field `id` of a GPU, or of its part `scope`, such as a link; `None` where it is not
    /// told, or is no whole number. The wrapper's own call knows no parts.
    pub(super) fn field(&self, device: &Device<'_>, id: u32, scope: u32) -> Option<u64> {
        let ask = self.library.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
        // SAFETY: the handle is used while the library is loaded, and by the call below only.
        let handle = unsafe { device.handle() };
        // SAFETY: an all-zero value is a valid one of this plain C struct.
        let mut field: sys::nvmlFieldValue_t = unsafe { mem::zeroed() };
        (field.fieldId, field.scopeId) = (id as c_uint, scope as c_uint);
        // SAFETY: the handle is a device's; `field` is one live local, as the count says.
        let code = unsafe { ask(handle, 1, &raw mut field) };
        if [code, field.nvmlReturn] != [sys::nvmlReturn_enum_NVML_SUCCESS; 2] {
            return None;
        }
        let (of, value) = (field.valueType, field.value);
        match of {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => {
                // SAFETY: the library says that it is of this type.
                Some(u64::from(unsafe { value.uiVal }))
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => {
                // SAFETY: as above; C's `unsigned long` has 64 bits on Linux.
                Some(unsafe { value.ulVal })
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
                // SAFETY: as above.
                Some(unsafe { value.ullVal })
            }
            _ => None,
        }
    }
}
