//! Whether the traffic between GPUs and CPUs is encrypted.

use nvml_wrapper_sys::bindings as sys;

use super::Nvml;

impl Nvml {
    /// Whether confidential computing is on; `None`: the library does not report it. The wrapper
    /// has no call for it.
    pub fn confidential_computing(&self) -> Option<bool> {
        let ask = self.library.lib().nvmlSystemGetConfComputeState.as_ref().ok()?;
        let mut state =
            sys::nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 };
        // SAFETY: `state` is a live local that the call only writes.
        let code = unsafe { ask(&raw mut state) };
        let is_on = state.ccFeature == sys::NVML_CC_SYSTEM_FEATURE_ENABLED;
        (code == sys::nvmlReturn_enum_NVML_SUCCESS).then_some(is_on)
    }
}
