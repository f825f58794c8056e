//! The ends of a case's flows, as one rank has them: its own buffers, and those of other ranks that
//! it works on.

use std::{sync::atomic::Ordering, time::Duration};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Buffer, Gpus, Ready, Side,
    buffer::{Foreign, Offer},
};
use crate::{
    ffi::{
        clock,
        cuda::Slice,
        shm::{Address, Segment},
    },
    plan::{Case, Endpoint, Flow, Operation, Rank, topology::Topology},
    transport::{
        Error, Wait,
        control::{self, Control},
    },
    units::Bytes,
    world::World,
};

/// A sum of 64-bit words.
const CHECKSUM: Bytes = Bytes::new(8);

/// How long memory that was lent is waited for; without it a rank that died would keep the others.
const RETURN_TIME: Duration = Duration::from_secs(1);

/// This rank's buffers, and its connection to the other ranks of the case.
#[derive(Debug)]
pub(in crate::transport) struct Ends {
    /// Goes before the buffers.
    _lender: Lender,
    pub(in crate::transport) buffers: Vec<Buffer>,
    /// The other ranks of the case, if there are any.
    control: Option<Control>,
    /// What each rank of the case offers.
    offers: BTreeMap<Rank, Offers>,
    /// Whether host memory of any rank lies on another NUMA node than the case says.
    pub(in crate::transport) is_misplaced: bool,
}

/// A buffer that a flow works on.
#[derive(Debug)]
pub(super) enum End {
    /// By its place among this rank's buffers.
    Own(usize),
    Foreign(Foreign, #[expect(dead_code, reason = "its drop counts")] Loan),
}

/// Counts, in memory that all ranks see, where other ranks have this rank's buffers open, and
/// waits on drop until there are none: a buffer that is freed while another process has it open
/// is undefined behaviour ("CUDA Driver API", cuIpcCloseMemHandle).
#[derive(Debug)]
struct Lender {
    count: Option<Segment>,
}

/// What another rank's [`Lender`] has counted for a buffer that is open here; dropped behind it.
#[derive(Debug)]
pub(super) struct Loan {
    count: Segment,
}

/// What a rank tells the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offers {
    /// Buffers by the place of their flow.
    buffers: Vec<(usize, Offer)>,
    /// Where it is counted who has them open.
    count: Option<Address>,
}

impl Ends {
    /// Acquires this rank's ends of `case` and hears of the others'; every rank calls it.
    pub(in crate::transport) fn new(
        case: &Case,
        world: &mut World,
        gpus: &Gpus,
        topology: &Topology,
    ) -> Result<Self, Error> {
        let rank = world.rank();
        let mut buffers = own_buffers(case, rank, gpus, topology)?;
        let mut is_misplaced = false;
        for buffer in &mut buffers {
            is_misplaced |= buffer.is_misplaced(end(&case.flows[buffer.flow], buffer.side))?;
        }
        let control = match case.members().len() {
            1 => None,
            _ => Some(Control::new(case, world, Wait::Sleep)?),
        };
        let offered = offered(case, &buffers)?;
        let lender = Lender::of(&offered)?;
        let count = lender.count.as_ref().map(Segment::address);
        let own = Offers { buffers: offered, count };
        let offers = world.exchange_among(own, &case.members())?;
        let is_misplaced = world.agree(is_misplaced, |all| all.contains(&true))?;
        Ok(Self { _lender: lender, buffers, control, offers, is_misplaced })
    }

    /// The buffer at one end of a flow that the GPU `ready` of this rank works on.
    pub(super) fn reach(
        &self,
        case: &Case,
        (flow, side): (usize, Side),
        gpus: &Gpus,
        ready: &Ready,
    ) -> Result<End, Error> {
        let end = end(&case.flows[flow], side);
        if end.rank == case.flows[flow].executor(case.issuer).rank {
            if let Some(gpu) = end.gpu().filter(|gpu| gpu.0 != ready.context.device().ordinal()) {
                let enabled = ready.context.enable_peer_access(&gpus.ready(gpu)?.context);
                enabled.map_err(|source| Error::call("reach another GPU's memory", source))?;
            }
            let is_it = |own: &Buffer| own.flow == flow && own.side == side;
            let place = self.buffers.iter().position(is_it);
            return place.map(End::Own).ok_or(Error::Disagreement("a buffer is missing"));
        }
        let theirs = self.offers.get(&end.rank);
        let theirs = theirs.ok_or(Error::Disagreement("a rank offers nothing"))?;
        let offer = theirs.buffers.iter().find(|(place, _)| *place == flow);
        let (_, offer) = offer.ok_or(Error::Disagreement("a rank does not offer a buffer"))?;
        let loan = Loan::of(control::open(theirs.count)?);
        Ok(End::Foreign(Foreign::open(&ready.context, offer, case.size)?, loan))
    }

    /// Whether this rank has a part in the case, which it has with a GPU at work in any case.
    pub(in crate::transport) fn is_member(&self, has_work: bool) -> bool {
        self.control.as_ref().map_or(has_work, Control::is_member)
    }

    /// Waits until all ranks of the case have come as far as this one.
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
        if let Some(control) = &self.control {
            control.give_up();
        }
    }
}

impl End {
    #[inline]
    pub(super) fn all<'a>(&'a self, ends: &'a Ends) -> Slice<'a> {
        match self {
            Self::Own(place) => ends.buffers[*place].all(),
            Self::Foreign(memory, _) => memory.all(),
        }
    }
}

impl Lender {
    fn of(offered: &[(usize, Offer)]) -> Result<Self, Error> {
        let count = (!offered.is_empty()).then(|| Segment::create(Bytes::kib(4))).transpose();
        Ok(Self { count: count.map_err(|source| Error::call("share memory", source))? })
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
const fn end(flow: &Flow, side: Side) -> Endpoint {
    match side {
        Side::Source => flow.source,
        Side::Target | Side::Checksum => flow.target,
    }
}

/// This rank's ends of all flows. What a kernel makes up has no source; what it only reads has
/// room for its answer in the place of a target.
fn own_buffers(
    case: &Case,
    rank: Rank,
    gpus: &Gpus,
    topology: &Topology,
) -> Result<Vec<Buffer>, Error> {
    // A GPU of the case first, so that host memory is pinned by way of it and not of another.
    for gpu in case.ends().filter(|end| end.rank == rank).filter_map(|end| end.gpu()) {
        gpus.ready(gpu)?;
    }
    let mut buffers = Vec::new();
    for (flow, ends) in case.flows.iter().enumerate() {
        let sides: &[Side] = match case.operation {
            Operation::ReadOnly => &[Side::Source, Side::Checksum],
            Operation::WriteOnly => &[Side::Target],
            Operation::Chase => &[Side::Source],
            _ => &[Side::Source, Side::Target],
        };
        for &side in sides {
            let size = if side == Side::Checksum { CHECKSUM } else { case.size };
            let end = end(ends, side);
            if end.rank == rank {
                let place = (flow, side, end);
                let handle = case.handle.filter(|_| is_lent(case, flow, side));
                buffers.push(Buffer::new(gpus, topology, place, size, handle)?);
            }
        }
    }
    Ok(buffers)
}

/// Whether another rank works on a buffer of this flow.
fn is_lent(case: &Case, flow: usize, side: Side) -> bool {
    let flow = &case.flows[flow];
    flow.executor(case.issuer).rank != end(flow, side).rank
}

/// What of this rank's buffers other ranks work on.
fn offered(case: &Case, own: &[Buffer]) -> Result<Vec<(usize, Offer)>, Error> {
    let mut offers = Vec::new();
    // Without a way to share, each rank works on its own buffers only.
    for buffer in own.iter().filter(|_| case.handle.is_some()) {
        if is_lent(case, buffer.flow, buffer.side)
            && let Some(offer) = buffer.offer()?
        {
            offers.push((buffer.flow, offer));
        }
    }
    Ok(offers)
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
