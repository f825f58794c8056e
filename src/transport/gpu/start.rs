//! Beginning together: work is queued behind a hold, and begins when the host says so.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use super::{PATIENCE, Ready};
use crate::{
    ffi::{
        CallError,
        cuda::{Context, Hold, HostMemory, Kernels, Memory, Registered, Stream},
        shm::Segment,
    },
    plan::Rank,
    transport::{Error, control},
    units::Bytes,
    world::World,
};

/// Where the flag is in its memory.
const FLAG: Bytes = Bytes::new(0);

/// Where a hold says that it waited in vain; far enough from the flag that writing one does not
/// disturb those who watch the other.
const TIMED_OUT: Bytes = Bytes::new(2048);

/// A flag that holds the streams of this rank, and, where several ranks begin together, those of
/// all of them.
#[derive(Debug)]
pub(in crate::transport) struct Start {
    own: HostMemory,
    /// The flag that all ranks watch; without one it is in `own`.
    shared: Option<Registered>,
    /// What the flag must reach for the work that was queued last.
    ticket: u32,
    timeout: Duration,
    /// Whether this rank is the one that lets all of them begin.
    pub(in crate::transport) leads: bool,
}

impl Start {
    /// For the ranks `starters`, whose work begins together; every rank calls it. `ready` is a GPU
    /// of this rank that begins, if this rank is among them.
    pub(in crate::transport) fn together(
        starters: &BTreeSet<Rank>,
        ready: Option<&Ready>,
        world: &mut World,
    ) -> Result<Option<Self>, Error> {
        let shared = if starters.len() > 1 { Some(share(world)?) } else { None };
        let leads = starters.first() == Some(&world.rank());
        ready.map(|ready| Self::new(&ready.context, shared, leads)).transpose()
    }

    /// For this rank's work alone.
    pub(in crate::transport) fn alone(ready: &Ready) -> Result<Self, Error> {
        Self::new(&ready.context, None, true)
    }

    fn new(context: &Context, shared: Option<Segment>, leads: bool) -> Result<Self, Error> {
        let failed = |source| Error::call("pin the flag that starts the work", source);
        let shared = shared.map(|segment| Registered::new(context, segment));
        Ok(Self {
            own: HostMemory::new(context, Bytes::kib(4)).map_err(failed)?,
            shared: shared.transpose().map_err(failed)?,
            ticket: 0,
            timeout: PATIENCE / 2,
            leads,
        })
    }

    /// Queues a hold: what is queued behind it begins with the next [`Start::release`].
    pub(in crate::transport) fn hold(
        &mut self,
        kernels: &Kernels,
        stream: &Stream,
    ) -> Result<(), CallError> {
        self.ticket = self.ticket.wrapping_add(1);
        let word = Bytes::new(4);
        let flag = match &self.shared {
            Some(shared) => shared.slice(FLAG, word),
            None => self.own.slice(FLAG, word),
        };
        let timed_out = self.own.slice(TIMED_OUT, word);
        let hold = Hold { flag, ticket: self.ticket, timeout: self.timeout, timed_out };
        kernels.hold(stream, hold)
    }

    /// Lets everything begin that is held, here and on the other ranks.
    pub(in crate::transport) fn release(&self) {
        match &self.shared {
            Some(shared) => {
                // GPUs watch the low half of the word, which comes first.
                let flag = shared.word(0);
                flag.store(u64::from(self.ticket).to_le(), Ordering::Release);
            }
            None => self.own.word(FLAG).store(self.ticket.to_le(), Ordering::Release),
        }
    }

    /// Whether every hold so far has ended because it was released.
    pub(in crate::transport) fn check(&self) -> Result<(), Error> {
        if self.own.word(TIMED_OUT).load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        Err(Error::HeldTooLong(self.timeout))
    }
}

/// Memory for a flag that several ranks watch: rank 0 makes it, every rank calls.
fn share(world: &mut World) -> Result<Segment, Error> {
    let own = match world.is_root() {
        true => Some(
            Segment::create(Bytes::kib(4)).map_err(|source| Error::call("share memory", source))?,
        ),
        false => None,
    };
    let address = world.broadcast(own.as_ref().map(|segment| Some(segment.address())))?;
    let segment = match own {
        Some(segment) => segment,
        None => control::open(address)?,
    };
    // It has no name: rank 0, which may not need it, keeps it until every rank has opened it.
    world.barrier()?;
    Ok(segment)
}
