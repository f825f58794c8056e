//! Starts work together: it is queued behind a hold, and begins when the host releases it.

use std::{collections::BTreeSet, rc::Rc, sync::atomic::Ordering, time::Duration};

use super::{PATIENCE, Ready, kept::Kept};
use crate::{
    ffi::{
        CallError,
        cuda::{Event, Hold, HostMemory, Memory, Registered, Stream},
        shm::Segment,
    },
    plan::Rank,
    transport::{Error, TryingTo, control},
    units::Bytes,
    world::World,
};

/// Where the flag is in its memory.
const FLAG: Bytes = Bytes::new(0);

/// Where a hold reports that it timed out. It is far enough from the flag that writes to one do not
/// disturb readers of the other.
const TIMED_OUT: Bytes = Bytes::new(2048);

/// A flag that holds the streams of this rank, or, if several ranks begin together, of all of them.
#[derive(Debug)]
pub(in crate::transport) struct Start {
    /// `None` if no GPU of this rank works.
    own: Option<Kept<HostMemory>>,
    /// The flag that all ranks watch. Without it the flag is in `own`.
    shared: Option<Registered>,
    /// The value of the flag that releases the work queued last.
    ticket: u32,
    timeout: Duration,
    /// Whether this rank releases all of them.
    pub(in crate::transport) leads: bool,
}

impl Start {
    /// For the ranks `starters`, whose work begins together. Every rank calls it. `ready` is a GPU
    /// of this rank, if this rank is among them.
    pub(in crate::transport) fn together(
        starters: &BTreeSet<Rank>,
        ready: Option<&Rc<Ready>>,
        world: &mut World,
    ) -> Result<Self, Error> {
        let shared =
            if starters.len() > 1 { Some(control::share(world, Bytes::kib(4))?) } else { None };
        Ok(Self { leads: starters.first() == Some(&world.rank()), ..Self::new(ready, shared)? })
    }

    /// For the work of `ready`, a GPU of this rank, if it has any. Without `shared` memory this
    /// rank begins alone.
    pub(in crate::transport) fn new(
        ready: Option<&Rc<Ready>>,
        shared: Option<Segment>,
    ) -> Result<Self, Error> {
        let own = ready.map(flag).transpose().trying_to(PIN)?;
        let context = ready.map(|ready| &ready.context);
        let shared = context.zip(shared).map(|(context, shared)| Registered::new(context, shared));
        Ok(Self {
            own,
            shared: shared.transpose().trying_to(PIN)?,
            ticket: 0,
            timeout: PATIENCE / 2,
            leads: true,
        })
    }

    /// Records `began` on a stream of `ready`, behind a hold if `is_held`: work queued after it
    /// then begins with the next [`Start::release`].
    pub(in crate::transport) fn begin(
        &mut self,
        ready: &Ready,
        stream: &Stream,
        began: &Event,
        is_held: bool,
    ) -> Result<(), CallError> {
        let Some(own) = self.own.as_ref().filter(|_| is_held) else { return stream.record(began) };
        self.ticket = self.ticket.wrapping_add(1);
        let word = Bytes::new(4);
        let flag = match &self.shared {
            Some(shared) => shared.slice(FLAG, word),
            None => own.slice(FLAG, word),
        };
        let timed_out = own.slice(TIMED_OUT, word);
        let hold = Hold { flag, ticket: self.ticket, timeout: self.timeout, timed_out };
        ready.kernels.hold(stream, hold)?;
        stream.record(began)
    }

    /// Releases all held work, here and on the other ranks.
    pub(in crate::transport) fn release(&self) {
        match (&self.shared, &self.own) {
            (Some(shared), _) => {
                // GPUs watch the low half of the word, which comes first.
                shared.word(0).store(u64::from(self.ticket).to_le(), Ordering::Release);
            }
            (None, Some(own)) => own.get().word(FLAG).store(self.ticket.to_le(), Ordering::Release),
            (None, None) => {}
        }
    }

    /// Fails if a hold has timed out.
    pub(in crate::transport) fn check(&self) -> Result<(), Error> {
        match &self.own {
            Some(own) if own.get().word(TIMED_OUT).load(Ordering::Acquire) != 0 => {
                Err(Error::HeldTooLong(self.timeout))
            }
            _ => Ok(()),
        }
    }
}

/// Memory of a flag that has not been raised.
fn flag(ready: &Rc<Ready>) -> Result<Kept<HostMemory>, CallError> {
    const SIZE: Bytes = Bytes::kib(4);
    let make = || HostMemory::new(&ready.context, SIZE);
    let memory = Kept::new(ready, |ready| &ready.flags, SIZE, make)?;
    for word in [FLAG, TIMED_OUT] {
        memory.get().word(word).store(0, Ordering::Release);
    }
    Ok(memory)
}

const PIN: &str = "pin the flag that starts the work";
