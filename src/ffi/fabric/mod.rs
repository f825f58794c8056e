//! Network interfaces that read and write memory, through libfabric.
//!
//! ```no_run
//! # use g2g::{ffi::{fabric::*, host::HostBuffer}, units::Bytes};
//! # fn exchange<T>(_: (&Address, RemoteRegion)) -> (Address, RemoteRegion) { unimplemented!() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let library = Library::load(None)?;
//! let query = Query { provider: Some("tcp"), domain: Some("lo"), ..Query::default() };
//! let offers = library.offers(&query)?;
//! let domain = Domain::open(offers.first().ok_or("no such interface")?)?;
//! let mut endpoint = Endpoint::open(&domain)?;
//! let region = endpoint.register(Memory::Host(HostBuffer::new(Bytes::mib(1))?))?;
//! // The peer gets this side's address and region in some other way, and this side the peer's.
//! let (address, theirs) = exchange::<()>((&endpoint.address()?, region.remote()));
//! let peer = endpoint.insert(&address)?;
//!
//! let remote = theirs.at(peer, Bytes::new(0));
//! while endpoint.write(region.all(), remote, 7, Flags::NONE.delivery())? == Posted::Again {
//!     endpoint.poll(&mut [])?;
//! }
//! let mut done = [Completion::default(); 16];
//! while endpoint.poll(&mut done)? == 0 {}
//! assert_eq!(done[0].context, Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here waits. A provider may need the thread that uses an endpoint for its progress,
//! also for what peers do: so both sides poll, until all is done.
//!
//! # Why safe code cannot touch memory that is gone
//!
//! * An operation names memory by a [`Slice`], which lies inside a region of the endpoint that it
//!   is given to; every other endpoint refuses it. The endpoint owns its regions' memory and gives
//!   it back only after it is closed itself, which discards what is under way. So memory does not
//!   come and go within an endpoint's life: a case opens its own.
//! * What peers may do here ends with the endpoint too. What this side does at a peer is bounded by
//!   what the peer has said of its region ([`RemoteRegion`]); within one machine some providers
//!   take the initiator's word for it, so it must come from the peer unchanged.
//! * Registered host memory is never a Rust slice: it is copied in and out, as in
//!   [`shm::Segment`](super::shm::Segment), and who may when is the caller's protocol.

mod address;
#[allow(
    dead_code,
    non_camel_case_types,
    unreachable_pub,
    reason = "made from libfabric's headers, by scripts/build-bindings"
)]
mod bindings;
mod domain;
mod endpoint;
mod events;
mod grown;
mod info;
mod library;
mod object;
mod opened;
mod operation;
mod option;
mod region;
#[cfg(test)]
mod tests;

pub use address::Address;
pub use domain::Domain;
pub use endpoint::{Endpoint, Peer};
pub use info::{Facts, Info, LinkState, Nic, Query};
pub use library::Library;
pub use operation::{Completion, Failure, Flags, Posted};
pub use region::{Memory, Region, Remote, RemoteRegion, SharedMemory, Slice};

use library::version;
