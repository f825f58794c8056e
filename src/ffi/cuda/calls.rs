//! The driver's functions, looked up by name once.
//!
//! cudarc's own bindings are not called: they return a Rust enum, for which a code of a newer
//! driver would be undefined behaviour, and they panic where a function is missing. Here a code is
//! an integer, and a missing function is an answer: of the driver where nothing goes without it,
//! of what needs it where that is little.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent,
    CUfunction, CUfunction_attribute, CUgraph, CUgraphExec, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemRangeHandleType, CUmodule, CUstream, CUuuid,
};

use crate::ffi::watchdog::Call;

macro_rules! calls {
    ($(#[$text:meta])* $table:ident: $($name:ident($($argument:ty),*);)*) => {
        $(#[$text])*
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        #[allow(non_snake_case, reason = "as above")]
        impl $table {
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Looks all of them up in the driver, which is loaded; else the missing one's name.
            pub(super) fn load() -> Result<Self, &'static str> {
                // SAFETY: each name has the signature that NVIDIA's `cuda.h` declares for it.
                Ok(Self { $($name: unsafe { find(stringify!($name)) }?,)* })
            }

            $(watched! { $name [a b c d e f g h i j k] [] $($argument,)* })*
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
        #[allow(dead_code, reason = "some are handed on and not called here")]
        #[inline]
        pub(super) unsafe fn $name(&self, $($letter: $given),*) -> u32 {
            static NAME: &str = stringify!($name);
            let _call = Call::of(&NAME);
            // SAFETY: the caller promises what the function asks for.
            unsafe { (self.$name)($($letter),*) }
        }
    };
    ($name:ident [$letter:ident $($left:ident)*] [$($done:tt)*] $next:ty, $($rest:ty,)*) => {
        watched! { $name [$($left)*] [$($done)* $letter: $next,] $($rest,)* }
    };
}

/// The functions that g2g calls, by the names under which a driver exports them; the first are
/// those that it cannot do without.
pub const CALLS: [&[&str]; 7] = [
    Calls::NAMES,
    PairCalls::NAMES,
    ValueCalls::NAMES,
    GraphCalls::NAMES,
    IpcCalls::NAMES,
    DescriptorCalls::NAMES,
    RangeCalls::NAMES,
];

calls! {
    /// Without which nothing can be measured.
    Calls:
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
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
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

calls! {
    /// What pairs of GPUs can do beside reaching each other.
    PairCalls:
    cuDeviceGetP2PAttribute(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice);
}

calls! {
    /// Words that streams wait for and write.
    ValueCalls:
    cuStreamWaitValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
}

calls! {
    /// Work that is captured and launched as a whole.
    GraphCalls:
    cuStreamBeginCapture_v2(CUstream, c_uint);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphExecDestroy(CUgraphExec);
    cuGraphDestroy(CUgraph);
}

calls! {
    /// Memory of one process in another, by 64 bytes.
    IpcCalls:
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(CUdeviceptr);
}

calls! {
    /// Memory of one process in another, by a descriptor.
    DescriptorCalls:
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

calls! {
    /// Memory for the kernel's other drivers.
    RangeCalls:
    cuMemGetHandleForAddressRange(
        *mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong
    );
}

/// The function `name`; else the name again.
///
/// # Safety
///
/// `F` is a pointer to a function with the signature that the driver's `name` has.
unsafe fn find<F: Copy>(name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the driver has been found, so this loads it for good, or answers with it.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller vouches for the signature.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| name)
}
