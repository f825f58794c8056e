//! The interfaces of one rank in one case, and how each partner is reached through them.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::{
    ffi::{
        CallError,
        fabric::{Address, Domain, Endpoint, Flags, Memory, Peer, Posted, Region, RemoteRegion},
        host::HostBuffer,
    },
    transport::{Error, TryingTo},
    units::Bytes,
};

use super::signal::Signal;

/// The data of a signal's write. Nobody reads it.
const SCRATCH: Bytes = Bytes::new(8);

/// An endpoint on one interface.
pub(super) struct Port {
    pub(super) endpoint: Endpoint,
    /// Signals are written from here and into here.
    scratch: Region,
}

/// What partners must know of a port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PortCard {
    address: Address,
    scratch: RemoteRegion,
}

/// A connection to a partner: from this rank's port `port` to one of the partner's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rail {
    pub(super) port: usize,
    /// The partner's port.
    pub(super) far_port: usize,
    pub(super) peer: Peer,
    scratch: RemoteRegion,
}

impl Port {
    pub(super) fn open(domain: &Rc<Domain>) -> Result<Self, Error> {
        let mut endpoint = Endpoint::open(domain).trying_to("open an endpoint on the interface")?;
        let scratch = HostBuffer::new(SCRATCH)
            .and_then(|memory| endpoint.register(Memory::Host(memory)))
            .trying_to("register memory with the interface")?;
        Ok(Self { endpoint, scratch })
    }

    pub(super) fn card(&self) -> Result<PortCard, Error> {
        let address = self.endpoint.address().trying_to("read the own address")?;
        Ok(PortCard { address, scratch: self.scratch.remote() })
    }

    /// Sends `signal` along `rail`, which begins at this port.
    pub(super) fn signal(
        &mut self,
        rail: &Rail,
        signal: Signal,
        context: u64,
    ) -> Result<Posted, CallError> {
        let there = rail.scratch.at(rail.peer, Bytes::default());
        let flags = Flags::NONE.data(signal.encode());
        self.endpoint.write(self.scratch.all(), there, context, flags)
    }
}

/// The connections to a partner with the ports `theirs`: as many as the larger number of ports of
/// the two ranks. Both number them alike.
pub(super) fn rails(ports: &mut [Port], theirs: &[PortCard]) -> Result<Vec<Rail>, Error> {
    if theirs.is_empty() {
        return Err(Error::Disagreement("a partner has no interface"));
    }
    (0..ports.len().max(theirs.len()))
        .map(|rail| {
            let (port, far_port) = (rail % ports.len(), rail % theirs.len());
            let card = &theirs[far_port];
            let inserted = ports[port].endpoint.insert(&card.address);
            let peer = inserted.trying_to("reach another rank")?;
            Ok(Rail { port, far_port, peer, scratch: card.scratch })
        })
        .collect()
}
