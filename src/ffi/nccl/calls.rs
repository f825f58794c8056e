//! NCCL's functions, looked up by name once.
//!
//! What every library since 2.14 has is required; of what came later, or may be left out, a missing
//! function is an answer. Each type here is held against the header's own when this is compiled.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;

use super::bindings::{
    self, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t,
    ncclScalarResidence_t, ncclUniqueId, ncclWindow_t,
};
use crate::{ffi::library::find, plan::Collective};

macro_rules! calls {
    ($(#[$text:meta])*
     required { $($name:ident($($argument:ty),*) -> $result:ty;)* }
     optional { $($later:ident($($taken:ty),*) -> $given:ty;)* }) => {
        $(#[$text])*
        #[allow(non_snake_case, reason = "the library's own names")]
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(super) $later: Option<unsafe extern "C" fn($($taken),*) -> $given>,)*
        }

        $(const _: unsafe extern "C" fn($($argument),*) -> $result = bindings::$name;)*
        $(const _: unsafe extern "C" fn($($taken),*) -> $given = bindings::$later;)*

        impl Calls {
            /// Looks all of them up; else the name of the first that is required and missing.
            pub(super) fn load(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signature is that of the header, as checked above.
                    $($name: unsafe { find(library, stringify!($name)) }?,)*
                    // SAFETY: as above.
                    $($later: unsafe { find(library, stringify!($later)) }.ok(),)*
                })
            }

            /// The functions that this library lacks.
            pub(super) fn missing(&self) -> Vec<&'static str> {
                let found = [$((stringify!($later), self.$later.is_some())),*];
                found.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
            }
        }
    };
}

calls! {
    /// The functions that the library exports.
    required {
        ncclGetVersion(*mut c_int) -> ncclResult_t;
        ncclGetUniqueId(*mut ncclUniqueId) -> ncclResult_t;
        ncclGetErrorString(ncclResult_t) -> *const c_char;
        ncclCommInitRank(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> ncclResult_t;
        ncclCommDestroy(ncclComm_t) -> ncclResult_t;
        ncclCommCount(ncclComm_t, *mut c_int) -> ncclResult_t;
        ncclCommInitRankConfig(
            *mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t
        ) -> ncclResult_t;
        ncclCommFinalize(ncclComm_t) -> ncclResult_t;
        ncclCommAbort(ncclComm_t) -> ncclResult_t;
        ncclCommGetAsyncError(ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
        ncclGroupStart() -> ncclResult_t;
        ncclGroupEnd() -> ncclResult_t;
        ncclAllReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclAllGather(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclReduceScatter(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclBroadcast(
            *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t,
            cudaStream_t
        ) -> ncclResult_t;
        ncclSend(
            *const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclRecv(
            *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
    }

    optional {
        ncclGetLastError(ncclComm_t) -> *const c_char;
        ncclCommSplit(
            ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t
        ) -> ncclResult_t;
        ncclCommRegister(ncclComm_t, *mut c_void, usize, *mut *mut c_void) -> ncclResult_t;
        ncclCommDeregister(ncclComm_t, *mut c_void) -> ncclResult_t;
        ncclCommWindowRegister(
            ncclComm_t, *mut c_void, usize, *mut ncclWindow_t, c_int
        ) -> ncclResult_t;
        ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) -> ncclResult_t;
        ncclMemAlloc(*mut *mut c_void, usize) -> ncclResult_t;
        ncclMemFree(*mut c_void) -> ncclResult_t;
        ncclRedOpCreatePreMulSum(
            *mut ncclRedOp_t, *mut c_void, ncclDataType_t, ncclScalarResidence_t, ncclComm_t
        ) -> ncclResult_t;
        ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) -> ncclResult_t;
        ncclAlltoAll(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclGather(
            *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        ncclScatter(
            *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
    }
}

/// NCCL's function of a collective, by what it takes: source, target, count and type of the
/// elements; then the reduction, the root, or both; then the communicator and the stream.
#[derive(Clone, Copy)]
pub(super) enum Function {
    Moving(
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            ncclDataType_t,
            ncclComm_t,
            cudaStream_t,
        ) -> ncclResult_t,
    ),
    Reducing(
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            ncclDataType_t,
            ncclRedOp_t,
            ncclComm_t,
            cudaStream_t,
        ) -> ncclResult_t,
    ),
    Rooted(
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            ncclDataType_t,
            c_int,
            ncclComm_t,
            cudaStream_t,
        ) -> ncclResult_t,
    ),
    ReducingRooted(
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            ncclDataType_t,
            ncclRedOp_t,
            c_int,
            ncclComm_t,
            cudaStream_t,
        ) -> ncclResult_t,
    ),
}

impl Calls {
    /// The name and the function of a collective; `None`: this library has none for it.
    pub(super) fn function(&self, collective: Collective) -> Option<(&'static str, Function)> {
        use Function::{Moving, Reducing, ReducingRooted, Rooted};
        Some(match collective {
            Collective::AllReduce => ("ncclAllReduce", Reducing(self.ncclAllReduce)),
            Collective::AllGather => ("ncclAllGather", Moving(self.ncclAllGather)),
            Collective::ReduceScatter => ("ncclReduceScatter", Reducing(self.ncclReduceScatter)),
            Collective::Broadcast => ("ncclBroadcast", Rooted(self.ncclBroadcast)),
            Collective::Reduce => ("ncclReduce", ReducingRooted(self.ncclReduce)),
            Collective::AllToAll => ("ncclAlltoAll", Moving(self.ncclAlltoAll?)),
            Collective::Gather => ("ncclGather", Rooted(self.ncclGather?)),
            Collective::Scatter => ("ncclScatter", Rooted(self.ncclScatter?)),
            Collective::SendRecv => return None,
        })
    }
}
