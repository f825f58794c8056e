//! NCCL's functions, looked up by name once.
//!
//! Functions that every library since 2.14 has are required; others may be missing, and are here
//! with the first version that has them. Each type is the header's own.

use libloading::os::unix::Library;

use super::bindings;
use crate::{
    ffi::library::{Missing, find},
    plan::Collective,
};

/// The type of a function, of which the header's type also allows null.
pub(super) trait Nullable {
    type Pointer;
}

impl<F> Nullable for Option<F> {
    type Pointer = F;
}

type Pointer<F> = <F as Nullable>::Pointer;

macro_rules! calls {
    (
        $(#[$text:meta])*
        since $oldest:literal { $($name:ident)* }
        $(since $version:literal { $($later:ident)* })*
    ) => {
        /// The functions that g2g calls, by the names under which the library exports them, each
        /// group with the first version that has all of it (2.14 where older ones may too). The
        /// first group is what g2g cannot do without.
        pub const CALLS: &[(&str, &[&str])] = &[
            ($oldest, &[$(stringify!($name)),*]),
            $(($version, &[$(stringify!($later)),*])),*
        ];

        $(#[$text])*
        #[allow(non_snake_case, reason = "the library's own names")]
        #[derive(Debug)]
        pub(super) struct Calls {
            $(pub(super) $name: Pointer<bindings::$name>,)*
            $($(pub(super) $later: bindings::$later,)*)*
        }

        impl Calls {
            /// Looks all of them up; else the name of the first that is required and missing.
            pub(super) fn load(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signature is that of the header.
                    $($name: unsafe { find(library, stringify!($name)) }?,)*
                    // SAFETY: as above.
                    $($($later: unsafe { find(library, stringify!($later)) }.ok(),)*)*
                })
            }

            /// Whether this library lacks the function `name`.
            pub(super) fn lacks(&self, name: &str) -> bool {
                $($((name == stringify!($later) && self.$later.is_none()) ||)*)* false
            }
        }
    };
}

calls! {
    /// The functions that the library exports.
    since "2.14" {
        ncclGetVersion
        ncclGetUniqueId
        ncclGetErrorString
        ncclCommInitRank
        ncclCommDestroy
        ncclCommCount
        ncclCommInitRankConfig
        ncclCommFinalize
        ncclCommAbort
        ncclCommGetAsyncError
        ncclGroupStart
        ncclGroupEnd
        ncclAllReduce
        ncclAllGather
        ncclReduceScatter
        ncclBroadcast
        ncclReduce
        ncclSend
        ncclRecv
    }
    since "2.14" {
        ncclGetLastError
        ncclRedOpCreatePreMulSum
        ncclRedOpDestroy
    }
    since "2.18" {
        ncclCommSplit
    }
    since "2.19" {
        ncclCommRegister
        ncclCommDeregister
        ncclMemAlloc
        ncclMemFree
    }
    since "2.27" {
        ncclCommWindowRegister
        ncclCommWindowDeregister
    }
    since "2.28" {
        ncclAlltoAll
        ncclGather
        ncclScatter
    }
}

/// A function that not every library has.
pub(super) fn required<F>(name: &'static str, function: Option<F>) -> Result<F, Missing> {
    function.ok_or_else(|| Missing::new("this NCCL", CALLS, name))
}

/// NCCL's function of a collective, by what it takes: source, target, count and type of the
/// elements; then the reduction, the root, or both; then the communicator and the stream.
#[derive(Clone, Copy)]
pub(super) enum Function {
    Moving(Pointer<bindings::ncclAllGather>),
    Reducing(Pointer<bindings::ncclAllReduce>),
    Rooted(Pointer<bindings::ncclBroadcast>),
    ReducingRooted(Pointer<bindings::ncclReduce>),
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
