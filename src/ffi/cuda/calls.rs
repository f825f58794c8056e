//! The driver's functions, looked up by name once.
//!
//! cudarc's own bindings are not called: they return a Rust enum, for which a code of a newer
//! driver would be undefined behaviour, and they panic where a function is missing. Here a code is
//! an integer. A driver that lacks a function of [`Feature::Basics`] is refused; without any other
//! function only the calls that need it fail.

use std::{
    ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void},
    path::PathBuf,
};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent,
    CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemRangeHandleType, CUmodule, CUmulticastGranularity_flags,
    CUmulticastObjectProp, CUresult, CUstream, CUuuid,
};

use libloading::os::unix::Library;

use super::Feature;
use crate::ffi::{
    library::{Missing, find, path_of},
    watchdog::Call,
};

/// What a function has answered.
#[must_use = "the code may be an error's"]
pub(super) struct Answer {
    name: &'static str,
    code: Option<u32>,
}

impl Answer {
    /// Its name without the version of its signature.
    pub(super) fn call(&self) -> &'static str {
        self.name.strip_suffix("_v2").unwrap_or(self.name)
    }

    /// The code; else what is missing.
    pub(super) fn code(&self) -> Result<u32, Missing> {
        self.code.ok_or_else(|| missing(self.name))
    }

    /// Whether it is this code.
    pub(super) fn is(&self, code: CUresult) -> bool {
        self.code == Some(code as u32)
    }
}

/// What is said of a driver that does not have the function `name`.
fn missing(name: &'static str) -> Missing {
    Missing::new("the driver", CALLS, name)
}

macro_rules! calls {
    ($($feature:ident since $driver:literal { $($name:ident($($argument:ty),*);)* })*) => {
        /// The functions that g2g calls, by the names under which a driver exports them, each group
        /// with the oldest driver that has all of it (450 where older ones may too). The first
        /// group is what g2g cannot do without.
        pub const CALLS: &[(&str, &[&str])] = &[$(($driver, &[$(stringify!($name)),*])),*];

        /// The driver's functions; `None` is one that it does not have.
        #[allow(non_snake_case, reason = "the driver's own names")]
        #[derive(Debug)]
        pub(super) struct Calls {
            $($($name: Option<unsafe extern "C" fn($($argument),*) -> u32>,)*)*
        }

        #[allow(non_snake_case, reason = "as above")]
        impl Calls {
            /// Looks all of them up in the driver, which stays loaded.
            pub(super) fn load(driver: &Library) -> Self {
                // SAFETY: each name has the signature that NVIDIA's `cuda.h` declares for it.
                Self { $($($name: unsafe { find(driver, stringify!($name)) }.ok(),)*)* }
            }

            /// The first function that is missing for `feature`.
            pub(super) fn missing(&self, feature: Feature) -> Option<Missing> {
                let found = match feature {
                    $(Feature::$feature => vec![$((stringify!($name), self.$name.is_some())),*],)*
                };
                let (name, _) = found.into_iter().find(|(_, is_there)| !is_there)?;
                Some(missing(name))
            }

            $($(watched! { $name [a b c d e f g h i j k] [] $($argument,)* })*)*
        }
    };
}

/// A method that calls the function of the same name, and is watched meanwhile.
macro_rules! watched {
    ($name:ident [$($left:ident)*] [$($letter:ident: $given:ty,)*]) => {
        /// # Safety
        ///
        /// That of the driver's function.
        #[allow(clippy::too_many_arguments, reason = "the driver's own")]
        #[inline]
        pub(super) unsafe fn $name(&self, $($letter: $given),*) -> Answer {
            static NAME: &str = stringify!($name);
            let _call = Call::of(&NAME);
            // SAFETY: the caller promises what the function asks for.
            let code = self.$name.map(|call| unsafe { call($($letter),*) });
            Answer { name: NAME, code }
        }
    };
    ($name:ident [$letter:ident $($left:ident)*] [$($done:tt)*] $next:ty, $($rest:ty,)*) => {
        watched! { $name [$($left)*] [$($done)* $letter: $next,] $($rest,)* }
    };
}

calls! {
    Basics since "470" {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuGetErrorName(u32, *mut *const c_char);
        cuGetErrorString(u32, *mut *const c_char);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxSetCurrent(CUcontext);
        cuCtxEnablePeerAccess(CUcontext, c_uint);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamQuery(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);
        cuModuleLoadData(*mut CUmodule, *const c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
    }
    NativeAtomics since "450" {
        cuDeviceGetP2PAttribute(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice);
    }
    StreamValues since "515" {
        cuStreamWaitValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
        cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    }
    Graphs since "470" {
        cuStreamBeginCapture_v2(CUstream, c_uint);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphDestroy(CUgraph);
    }
    Ipc since "450" {
        cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
        cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
        cuIpcCloseMemHandle(CUdeviceptr);
    }
    Descriptors since "450" {
        cuMemGetAllocationGranularity(
            *mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags
        );
        cuMemCreate(
            *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
        );
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuMemExportToShareableHandle(
            *mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong
        );
        cuMemImportFromShareableHandle(
            *mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType
        );
    }
    Multicast since "530" {
        cuMulticastCreate(*mut CUmemGenericAllocationHandle, *const CUmulticastObjectProp);
        cuMulticastGetGranularity(
            *mut usize, *const CUmulticastObjectProp, CUmulticastGranularity_flags
        );
        cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice);
        cuMulticastBindMem(
            CUmemGenericAllocationHandle, usize, CUmemGenericAllocationHandle, usize, usize,
            c_ulonglong
        );
        cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, usize, usize);
    }
    RdmaFlush since "470" {
        cuFlushGPUDirectRDMAWrites(
            CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope
        );
    }
    DmaBufs since "515" {
        cuMemGetHandleForAddressRange(
            *mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong
        );
    }
}

impl Calls {
    /// The driver's file.
    pub(super) fn library(&self) -> PathBuf {
        path_of(self.cuInit.map_or(std::ptr::null(), |init| init as *const ()))
    }
}
