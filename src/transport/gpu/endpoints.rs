//! The endpoints of a case's flows, as one rank sees them: its own buffers, and those of other
//! ranks that it works on.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Buffer, Gpus, Side, buffer::Offer};
use crate::{
    ffi::{
        clock,
        cuda::{Memory, Slice},
        shm::{Address, Segment},
    },
    plan::{Case, Endpoint, Flow, Operation, Rank},
    transport::{
        Error, TryingTo, Wait,
        control::{self, Control},
    },
    units::Bytes,
    world::World,
};

/// The longest wait for memory that other ranks have open. Without it a rank that died would block
/// the others.
const RETURN_TIME: Duration = Duration::from_secs(1);

/// This rank's buffers, and its connection to the other ranks of the case.
#[derive(Debug)]
pub(in crate::transport) struct Endpoints {
    /// Dropped before the buffers.
    _lender: Lender,
    pub(in crate::transport) buffers: Vec<Buffer>,
    /// The other ranks of the case, if there are any.
    control: Option<Control>,
    /// The offers of each rank of the case.
    offers: BTreeMap<Rank, Offers>,
    /// Whether this rank has a part in the case.
    pub(in crate::transport) is_member: bool,
    /// Whether host memory of any rank lies on another NUMA node than the case says.
    pub(in crate::transport) is_misplaced: bool,
    /// Whether the ranks of the case share no memory to meet in: they may be on several hosts.
    pub(super) is_apart: bool,
}

/// A buffer that a flow works on.
#[derive(Debug)]
pub(super) enum FlowBuffer {
    /// This rank's, by its index.
    Own(usize),
    /// Another rank's. The memory is closed before the loan ends. `size` is that of the buffer: the
    /// memory can be larger.
    Peer { memory: Box<dyn Memory>, size: Bytes, _loan: Option<Loan> },
}

/// Counts in shared memory how many of this rank's buffers other ranks have open, and waits on drop
/// until there are none. Freeing a buffer that another process has open is undefined behaviour
/// ("CUDA Driver API", cuIpcCloseMemHandle).
#[derive(Debug)]
struct Lender {
    count: Option<Segment>,
}

/// A buffer of another rank that is open here, counted by that rank's [`Lender`]. Dropped after the
/// buffer.
#[derive(Debug)]
pub(super) struct Loan {
    count: Segment,
}

/// What a rank offers the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offers {
    /// Buffers by the place of their flow.
    buffers: BTreeMap<usize, Offer>,
    /// The [`Lender`]'s count.
    count: Option<Address>,
}

impl Endpoints {
    /// Allocates this rank's buffers of `case` and exchanges offers. Every rank calls it.
    pub(in crate::transport) fn new(
        case: &Case,
        world: &mut World,
        gpus: &Gpus,
    ) -> Result<Self, Error> {
        let (rank, members) = (world.rank(), case.members());
        let mut buffers = own_buffers(case, rank, gpus)?;
        let mut is_misplaced = false;
        for buffer in &mut buffers {
            is_misplaced |= buffer.is_misplaced(end(&case.flows[buffer.flow], buffer.side))?;
        }
        let is_apart = world.spans_hosts();
        let control = match is_apart || members.len() == 1 {
            true => None,
            false => Some(Control::new(case, world, Wait::Sleep)?),
        };
        let offered = |buffer: &mut Buffer| Some((buffer.flow, buffer.offer.take()?));
        let offered: BTreeMap<usize, Offer> = buffers.iter_mut().filter_map(offered).collect();
        // The driver keeps memory that another host has open.
        let is_counted = !offered.is_empty() && !is_apart;
        let count = is_counted.then(|| Segment::create(Bytes::kib(4))).transpose();
        let lender = Lender { count: count.trying_to("share memory")? };
        let count = lender.count.as_ref().map(Segment::address);
        let offers = world.exchange_among(Offers { buffers: offered, count }, &members)?;
        let is_misplaced = world.agree(is_misplaced, |all| all.contains(&true))?;
        let is_member = members.contains(&rank);
        Ok(Self { _lender: lender, buffers, control, offers, is_member, is_misplaced, is_apart })
    }

    /// The buffer at one end of a flow that a GPU of this rank executes.
    pub(super) fn reach(
        &self,
        case: &Case,
        flow: usize,
        side: Side,
        gpus: &Gpus,
    ) -> Result<FlowBuffer, Error> {
        let end = end(&case.flows[flow], side);
        let executor = case.flows[flow].executor(case.issuer);
        let gpu = executor.gpu().ok_or(Error::Disagreement("a flow has no GPU"))?;
        let ready = gpus.ready(gpu)?;
        if end.rank == executor.rank {
            if let Some(gpu) = end.gpu().filter(|gpu| gpu.0 != ready.context.device().ordinal()) {
                let there = gpus.ready(gpu)?;
                let enabled = ready.context.enable_peer_access(&there.context);
                enabled.trying_to("reach another GPU's memory")?;
            }
            return self.own(flow, side).map(FlowBuffer::Own);
        }
        let theirs = self.offers.get(&end.rank);
        let theirs = theirs.ok_or(Error::Disagreement("a rank offers nothing"))?;
        let offer = theirs.buffers.get(&flow);
        let offer = offer.ok_or(Error::Disagreement("a rank does not offer a buffer"))?;
        let _loan = match self.is_apart {
            true => None,
            false => Some(Loan::of(control::open(theirs.count)?)),
        };
        let memory = offer.open(&ready.context)?;
        Ok(FlowBuffer::Peer { memory, size: case.size, _loan })
    }

    /// The index of this rank's buffer at one end of flow number `flow`.
    pub(in crate::transport) fn own(&self, flow: usize, side: Side) -> Result<usize, Error> {
        let is_it = |own: &Buffer| own.flow == flow && own.side == side;
        let index = self.buffers.iter().position(is_it);
        index.ok_or(Error::Disagreement("a buffer is missing"))
    }

    /// Waits until all ranks of the case have come as far as this one, if they share memory.
    pub(in crate::transport) fn meet(&mut self, waiting_for: &'static str) -> Result<(), Error> {
        match &mut self.control {
            Some(control) => {
                control.step();
                control.wait_for_all(waiting_for)
            }
            None => Ok(()),
        }
    }

    /// Tells the other ranks of the case that this one gave up.
    pub(in crate::transport) fn give_up(&self) {
        self.control.iter().for_each(Control::give_up);
    }
}

impl FlowBuffer {
    #[inline]
    pub(super) fn all<'a>(&'a self, endpoints: &'a Endpoints) -> Slice<'a> {
        match self {
            Self::Own(place) => endpoints.buffers[*place].all(),
            Self::Peer { memory, size, .. } => memory.slice(Bytes::default(), *size),
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let Some(count) = &self.count else { return };
        let due = clock::now().after(RETURN_TIME);
        while count.word(0).load(Ordering::Acquire) > 0 && clock::now() < due {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Loan {
    fn of(count: Segment) -> Self {
        count.word(0).fetch_add(1, Ordering::AcqRel);
        Self { count }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.count.word(0).fetch_sub(1, Ordering::AcqRel);
    }
}

/// One end of a flow.
pub(in crate::transport) const fn end(flow: &Flow, side: Side) -> Endpoint {
    match side {
        Side::Source => flow.source,
        Side::Target | Side::Checksum => flow.target,
    }
}

/// The buffers of a flow. Data that a kernel generates has no source. Data that is only read is
/// summed into a checksum instead of a target.
pub(super) fn sides(operation: Operation) -> Result<&'static [Side], Error> {
    match operation {
        Operation::Copy => Ok(&[Side::Source, Side::Target]),
        Operation::ReadOnly => Ok(&[Side::Source, Side::Checksum]),
        Operation::WriteOnly => Ok(&[Side::Target]),
        Operation::Chase => Ok(&[Side::Source]),
        // These have memory of a team instead.
        Operation::MulticastStore | Operation::MultimemReduce | Operation::MultimemAllReduce => {
            Ok(&[])
        }
        Operation::Write
        | Operation::Read
        | Operation::Send
        | Operation::PingPong
        | Operation::Collective(_) => {
            Err(Error::Disagreement("no GPU does this operation by itself"))
        }
    }
}

/// This rank's buffers of all flows.
fn own_buffers(case: &Case, rank: Rank, gpus: &Gpus) -> Result<Vec<Buffer>, Error> {
    // GPUs of the case first, so that host memory is pinned through them and not another GPU.
    for gpu in case.ends().filter(|end| end.rank == rank).filter_map(|end| end.gpu()) {
        gpus.ready(gpu)?;
    }
    let mut buffers = Vec::new();
    for (flow, ends) in case.flows.iter().enumerate() {
        for &side in sides(case.operation)? {
            if end(ends, side).rank == rank {
                buffers.push(Buffer::new(gpus, case, flow, side)?);
            }
        }
    }
    Ok(buffers)
}

/// Whether another rank works on a buffer of this flow.
pub(super) fn is_lent(case: &Case, flow: usize, side: Side) -> bool {
    let flow = &case.flows[flow];
    flow.executor(case.issuer).rank != end(flow, side).rank
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn lender() -> Lender {
        Lender { count: Some(Segment::create(Bytes::kib(4)).unwrap()) }
    }

    fn loan(lender: &Lender) -> Loan {
        Loan::of(Segment::open(lender.count.as_ref().unwrap().address()).unwrap())
    }

    #[test]
    fn what_is_lent_is_waited_for_until_all_of_it_is_back() {
        let lender = lender();
        let loans = [loan(&lender), loan(&lender)];
        let begin = Instant::now();
        let borrower = std::thread::spawn(move || {
            for loan in loans {
                std::thread::sleep(Duration::from_millis(50));
                drop(loan);
            }
        });
        drop(lender);
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_millis(100) && waited < RETURN_TIME, "{waited:?}");
        borrower.join().unwrap();
    }

    #[test]
    fn what_never_comes_back_is_waited_for_with_a_bound_and_what_was_not_lent_is_not() {
        let begin = Instant::now();
        drop(lender());
        assert!(begin.elapsed() < RETURN_TIME);
        let lender = lender();
        std::mem::forget(loan(&lender));
        drop(lender);
        assert!(begin.elapsed() >= RETURN_TIME);
    }
}
