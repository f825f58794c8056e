//! What ranks do together, queued in groups.

use std::marker::PhantomData;

use super::{
    Communicator, Factor, Library,
    bindings::{cudaStream_t, ncclComm_t, ncclResult_t},
    calls::Function,
    communicator::number,
    element::{element, operator},
    memory::pointer,
};
use crate::{
    ffi::{
        CallError,
        cuda::{Slice, Stream},
    },
    plan::{Collective, DataType, Peers, Ranks, Reduction, Shape, Share},
};

/// Operations that begin together when the group is ended; a group of one is how a single operation
/// is queued. The ranks of a process, and a rank's sends and receives, must be in one group if they
/// wait for each other.
///
/// Counts are taken from the memory: it holds whole elements, and as many as each call says.
/// Source and target may be the same memory where NCCL says so.
#[derive(Debug)]
pub struct Group<'a> {
    library: &'static Library,
    communicators: Vec<&'a Communicator>,
    is_open: bool,
    is_captured: bool,
    memory: PhantomData<Slice<'a>>,
}

/// On which rank's stream something is queued.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The rank.
    pub communicator: &'a Communicator,
    /// The stream, of the communicator's GPU.
    pub stream: &'a Stream,
}

/// A rank's part in a collective.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What the ranks do.
    pub collective: Collective,
    /// What this rank gives.
    pub source: Slice<'a>,
    /// Where it gets its data.
    pub target: Slice<'a>,
    /// The type of the elements.
    pub data_type: DataType,
    /// What a collective that reduces makes of the elements of all ranks.
    pub reduction: Reduction,
    /// Of a sum of products: this rank's factor.
    pub factor: Option<&'a Factor<'a>>,
    /// The rank with another part than the others; the first, where none is named.
    pub root: Option<u32>,
    /// Of messages: this rank's peers.
    pub peers: Peers,
}

impl<'a> Group<'a> {
    /// Opens a group.
    pub fn start(library: &'static Library) -> Result<Self, CallError> {
        library.start_group()?;
        Ok(Self {
            library,
            communicators: Vec::new(),
            is_open: true,
            is_captured: false,
            memory: PhantomData,
        })
    }

    /// Opens a group in captured streams. The caller keeps the memory as long as the graph, and
    /// aborts the communicators of a group that fails once the captures have ended.
    pub(super) fn captured(library: &'static Library) -> Result<Self, CallError> {
        let mut group = Self::start(library)?;
        group.is_captured = true;
        Ok(group)
    }

    /// The communicators with work in it.
    pub(super) fn communicators(&self) -> impl Iterator<Item = &'a Communicator> + use<'a, '_> {
        self.communicators.iter().copied()
    }

    /// Begins all that was queued, and returns when it is in the streams.
    ///
    /// # Errors
    ///
    /// What went wrong in one of the operations, or before in one of the communicators, and
    /// [`Cause::Late`](crate::ffi::Cause::Late); the communicators can then only be aborted.
    pub fn end(mut self) -> Result<(), CallError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), CallError> {
        const END: &str = "ncclGroupEnd";
        self.is_open = false;
        let code = self.library.end_group();
        let communicators = std::mem::take(&mut self.communicators);
        // All are waited for, so that none goes on with memory that may be gone.
        let settled = communicators.iter().map(|communicator| communicator.settle(code, END));
        let failed: Vec<CallError> = settled.filter_map(Result::err).collect();
        match failed.into_iter().next() {
            Some(err) if self.is_captured => Err(err),
            Some(err) => {
                communicators.iter().for_each(|communicator| communicator.abort());
                Err(err)
            }
            None if communicators.is_empty() => self.library.check(END, code, None, String::new),
            None => Ok(()),
        }
    }

    /// Queues a rank's part in a collective. What the library has no function for goes by messages,
    /// part by part.
    ///
    /// # Panics
    ///
    /// The sizes do not fit, a sum of products has no factor, or the stream is not of the
    /// communicator's GPU.
    pub fn queue(&mut self, at: At<'a>, call: Call<'a>) -> Result<(), CallError> {
        let Call { collective, source, target, data_type, root, .. } = call;
        let count = call.count(at.communicator.size);
        let Some((name, function)) = self.library.calls.function(collective) else {
            return self.queue_messages(at, call, count);
        };
        let (from, to, root) = (pointer(source), pointer(target), number(root.unwrap_or(0)));
        let (element, operator) = (element(data_type), operator(call.reduction, call.factor));
        self.add(name, at, |communicator, stream| match function {
            // SAFETY: both ranges are alive until the group has ended, and as long as the count
            // says; from then on their owners wait for the stream.
            Function::Moving(call) => unsafe {
                call(from, to, count, element, communicator, stream)
            },
            // SAFETY: as above.
            Function::Reducing(call) => unsafe {
                call(from, to, count, element, operator, communicator, stream)
            },
            // SAFETY: as above.
            Function::Rooted(call) => unsafe {
                call(from, to, count, element, root, communicator, stream)
            },
            // SAFETY: as above.
            Function::ReducingRooted(call) => unsafe {
                call(from, to, count, element, operator, root, communicator, stream)
            },
        })
    }

    /// Queues the messages of a collective: with peers, or between all that give and all that get.
    fn queue_messages(
        &mut self,
        at: At<'a>,
        call: Call<'a>,
        count: usize,
    ) -> Result<(), CallError> {
        let Shape { gives, gets, .. } = call.collective.shape();
        let size = call.data_type.size().times(count as u64);
        let part = |memory: Slice<'a>, rank: u32| match memory.size() == size {
            true => memory,
            false => memory.slice(size.times(u64::from(rank)), size),
        };
        let (own, peers) = (at.communicator.rank, call.peers);
        let is_among = |ranks: Ranks, rank: u32, peer: Option<u32>| match ranks {
            Ranks::All => true,
            Ranks::Root => call.root.is_none_or(|root| root == rank),
            Ranks::Peers => peer.is_some(),
        };
        for peer in 0..at.communicator.size {
            let (to, from) =
                (peers.to.filter(|&to| to == peer), peers.from.filter(|&of| of == peer));
            if is_among(gives, own, to) && is_among(gets, peer, to) {
                self.send(at, part(call.source, peer), call.data_type, peer)?;
            }
            if is_among(gets, own, from) && is_among(gives, peer, from) {
                self.receive(at, part(call.target, peer), call.data_type, peer)?;
            }
        }
        Ok(())
    }

    /// Queues sending `source` to rank `peer`, which receives as much.
    fn send(
        &mut self,
        at: At<'a>,
        source: Slice<'a>,
        data_type: DataType,
        peer: u32,
    ) -> Result<(), CallError> {
        let (call, count) = (self.library.calls.ncclSend, elements(source, data_type));
        self.add("ncclSend", at, |communicator, stream| {
            let (from, peer) = (pointer(source), number(peer));
            // SAFETY: as in `queue`.
            unsafe { call(from, count, element(data_type), peer, communicator, stream) }
        })
    }

    /// Queues receiving `target` from rank `peer`, which sends as much.
    fn receive(
        &mut self,
        at: At<'a>,
        target: Slice<'a>,
        data_type: DataType,
        peer: u32,
    ) -> Result<(), CallError> {
        let (call, count) = (self.library.calls.ncclRecv, elements(target, data_type));
        self.add("ncclRecv", at, |communicator, stream| {
            let (to, peer) = (pointer(target), number(peer));
            // SAFETY: as in `queue`.
            unsafe { call(to, count, element(data_type), peer, communicator, stream) }
        })
    }

    /// Adds a call of a rank, which queues it in its stream.
    fn add(
        &mut self,
        call: &'static str,
        at: At<'a>,
        queue: impl FnOnce(ncclComm_t, cudaStream_t) -> ncclResult_t,
    ) -> Result<(), CallError> {
        let At { communicator, stream } = at;
        assert!(communicator.context().is(stream.context()), "{stream} is not of {communicator}");
        let handle = communicator.live(call)?;
        communicator.context().current()?;
        if !self.communicators.iter().any(|other| std::ptr::eq(*other, communicator)) {
            self.communicators.push(communicator);
        }
        // Within a group nothing is waited for before its end.
        let stream = match self.is_captured {
            true => stream.captured_handle(),
            false => stream.handle(),
        };
        communicator.begun(call, queue(handle, stream))
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if self.is_open
            && let Err(err) = self.finish()
        {
            crate::ffi::warn(&err);
        }
    }
}

/// How many elements `memory` has.
fn elements(memory: Slice<'_>, data_type: DataType) -> usize {
    let size = data_type.size();
    assert!(
        memory.size().get().is_multiple_of(size.get()),
        "{} are no whole elements",
        memory.size()
    );
    memory.length() / size.to_len().unwrap_or(1)
}

impl Call<'_> {
    /// The count that NCCL is called with, among `ranks`: the elements of the whole, or of a part.
    fn count(&self, ranks: u32) -> usize {
        let Shape { sent, received, .. } = self.collective.shape();
        let ranks = usize::try_from(ranks).unwrap_or(usize::MAX).max(1);
        let [given, taken] = [self.source, self.target].map(|all| elements(all, self.data_type));
        let count = if sent == Share::Parts { given / ranks } else { given };
        let of = |share| if share == Share::Parts { count.checked_mul(ranks) } else { Some(count) };
        assert!(
            of(sent) == Some(given) && of(received) == Some(taken),
            "{} of {given} elements into {taken} among {ranks} ranks",
            self.collective
        );
        count
    }
}
