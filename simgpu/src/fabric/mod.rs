//! libfabric's interface to the machine's Elastic Fabric Adapters: provider efa with its fabrics
//! `efa` and `efa-direct`, as hard on its user as any of them. `docs/simulated-network.md`
//! says what it does and how long everything lasts.

/// A table of libfabric's, of its type and with these of its functions.
macro_rules! table {
    ($table:ident { $($name:ident: $function:expr),* }) => {
        fi::$table {
            size: size_of::<fi::$table>(),
            $($name: Some($function),)*
            // SAFETY: such a table is a size and pointers that can be null.
            ..unsafe { std::mem::zeroed() }
        }
    };
}

#[allow(
    dead_code,
    non_camel_case_types,
    unreachable_pub,
    reason = "made from libfabric's headers, by scripts/build-bindings"
)]
#[path = "../../../src/ffi/fabric/bindings.rs"]
mod bindings;
mod bytes;
mod device;
mod endpoint;
#[allow(dead_code, reason = "g2g uses all of it")]
#[path = "../../../src/ffi/fabric/grown.rs"]
mod grown;
mod objects;
mod offers;
mod progress;
mod queues;
mod words;

pub(crate) use progress::{flush, looks_again, wait};

/// A version as libfabric writes it.
const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The version that this is like.
const VERSION: u32 = version(2, 1);
