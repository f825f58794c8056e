//! What ranks do together, queued in groups.

use std::{ffi::c_int, marker::PhantomData};

use super::{
    Communicator, DataType, Library, Missing, Reduction,
    bindings::{cudaStream_t, ncclComm_t, ncclResult_t},
};
use crate::ffi::{
    CallError,
    cuda::{Slice, Stream},
};

/// Operations that begin together when the group is ended; a group of one is how a single operation
/// is queued. The ranks of a process, and a rank's sends and receives, must be in one group if they
/// wait for each other.
///
/// Counts are taken from the memory: it holds whole elements, and as many as each operation says.
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
type At<'a> = (&'a Communicator, &'a Stream);

impl<'a> Group<'a> {
    /// Opens a group.
    ///
    /// # Errors
    ///
    /// NCCL's refusal; none is documented.
    pub fn start(library: &'static Library) -> Result<Self, CallError> {
        library.start_group()?;
        let (communicators, memory) = (Vec::new(), PhantomData);
        Ok(Self { library, communicators, is_open: true, is_captured: false, memory })
    }

    /// Opens a group in streams that are captured, for who keeps the memory as long as the graph.
    /// If it fails, its communicators are to be aborted once the captures have ended.
    pub(super) fn captured(library: &'static Library) -> Result<Self, CallError> {
        let mut group = Self::start(library)?;
        group.is_captured = true;
        Ok(group)
    }

    /// Those whose work is in it.
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

    /// Queues the reduction of every rank's source into every rank's target, of the same size.
    ///
    /// # Errors
    ///
    /// NCCL's refusal; it was aborted.
    ///
    /// # Panics
    ///
    /// The sizes do not fit, or the stream is not of the communicator's GPU.
    pub fn all_reduce(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
        reduction: Reduction<'a>,
    ) -> Result<(), CallError> {
        fits(target, source, 1);
        let call = self.library.calls.ncclAllReduce;
        let (count, code) = (count(source, kind), reduction.code());
        self.queue("ncclAllReduce", at, |communicator, stream| {
            let (from, to) = (from(source), to(target));
            // SAFETY: both ranges are alive until the group has ended, and as long as the count
            // says; from then on their owners wait for the stream.
            unsafe { call(from, to, count, kind.code(), code, communicator, stream) }
        })
    }

    /// Queues the collection of every rank's source in every rank's target, rank by rank.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn all_gather(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
    ) -> Result<(), CallError> {
        fits(target, source, at.0.size());
        let (call, count) = (self.library.calls.ncclAllGather, count(source, kind));
        self.queue("ncclAllGather", at, |communicator, stream| {
            // SAFETY: as in `all_reduce`.
            unsafe { call(from(source), to(target), count, kind.code(), communicator, stream) }
        })
    }

    /// Queues the reduction of every rank's source, of which each rank's target gets its own part.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn reduce_scatter(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
        reduction: Reduction<'a>,
    ) -> Result<(), CallError> {
        fits(source, target, at.0.size());
        let (count, code) = (count(target, kind), reduction.code());
        let call = self.library.calls.ncclReduceScatter;
        self.queue("ncclReduceScatter", at, |communicator, stream| {
            let (from, to) = (from(source), to(target));
            // SAFETY: as in `all_reduce`.
            unsafe { call(from, to, count, kind.code(), code, communicator, stream) }
        })
    }

    /// Queues the copy of `root`'s source into every rank's target.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn broadcast(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
        root: u32,
    ) -> Result<(), CallError> {
        fits(target, source, 1);
        let (call, count) = (self.library.calls.ncclBroadcast, count(source, kind));
        self.queue("ncclBroadcast", at, |communicator, stream| {
            let (from, to, root) = (from(source), to(target), number(root));
            // SAFETY: as in `all_reduce`.
            unsafe { call(from, to, count, kind.code(), root, communicator, stream) }
        })
    }

    /// Queues the reduction of every rank's source into `root`'s target; the others' is not
    /// touched.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn reduce(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
        (reduction, root): (Reduction<'a>, u32),
    ) -> Result<(), CallError> {
        fits(target, source, 1);
        let (count, code) = (count(source, kind), reduction.code());
        let call = self.library.calls.ncclReduce;
        self.queue("ncclReduce", at, |communicator, stream| {
            let (from, to, root) = (from(source), to(target), number(root));
            // SAFETY: as in `all_reduce`.
            unsafe { call(from, to, count, kind.code(), code, root, communicator, stream) }
        })
    }

    /// Queues the exchange of parts: of the source one for each rank, into the target one of each.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`], and a library without it
    /// ([`Feature::AllToAll`](super::Feature::AllToAll)).
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn all_to_all(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclAlltoAll";
        fits(target, source, 1);
        let call = self.library.calls.ncclAlltoAll.ok_or(Missing(CALL))?;
        let count = part(count(source, kind), at.0.size());
        self.queue(CALL, at, |communicator, stream| {
            // SAFETY: as in `all_reduce`; the count is that of one of the parts.
            unsafe { call(from(source), to(target), count, kind.code(), communicator, stream) }
        })
    }

    /// Queues the collection of every rank's source in `root`'s target, rank by rank.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`], and a library without it
    /// ([`Feature::Gather`](super::Feature::Gather)).
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn gather(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
        root: u32,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclGather";
        fits(target, source, at.0.size());
        let call = self.library.calls.ncclGather.ok_or(Missing(CALL))?;
        let count = count(source, kind);
        self.queue(CALL, at, |communicator, stream| {
            let (from, to, root) = (from(source), to(target), number(root));
            // SAFETY: as in `all_reduce`.
            unsafe { call(from, to, count, kind.code(), root, communicator, stream) }
        })
    }

    /// Queues the distribution of `root`'s source, of which each rank's target gets its part.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`], and a library without it
    /// ([`Feature::Scatter`](super::Feature::Scatter)).
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn scatter(
        &mut self,
        at: At<'a>,
        (source, target): (Slice<'a>, Slice<'a>),
        kind: DataType,
        root: u32,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclScatter";
        fits(source, target, at.0.size());
        let call = self.library.calls.ncclScatter.ok_or(Missing(CALL))?;
        let count = count(target, kind);
        self.queue(CALL, at, |communicator, stream| {
            let (from, to, root) = (from(source), to(target), number(root));
            // SAFETY: as in `all_reduce`.
            unsafe { call(from, to, count, kind.code(), root, communicator, stream) }
        })
    }

    /// Queues sending `source` to rank `peer`, which receives as much.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn send(
        &mut self,
        at: At<'a>,
        source: Slice<'a>,
        kind: DataType,
        peer: u32,
    ) -> Result<(), CallError> {
        let (call, count) = (self.library.calls.ncclSend, count(source, kind));
        self.queue("ncclSend", at, |communicator, stream| {
            let (from, peer) = (from(source), number(peer));
            // SAFETY: as in `all_reduce`.
            unsafe { call(from, count, kind.code(), peer, communicator, stream) }
        })
    }

    /// Queues receiving `target` from rank `peer`, which sends as much.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    ///
    /// As [`Group::all_reduce`].
    pub fn receive(
        &mut self,
        at: At<'a>,
        target: Slice<'a>,
        kind: DataType,
        peer: u32,
    ) -> Result<(), CallError> {
        let (call, count) = (self.library.calls.ncclRecv, count(target, kind));
        self.queue("ncclRecv", at, |communicator, stream| {
            let (to, peer) = (to(target), number(peer));
            // SAFETY: as in `all_reduce`.
            unsafe { call(to, count, kind.code(), peer, communicator, stream) }
        })
    }

    /// Queues an operation of a rank in its stream.
    fn queue(
        &mut self,
        call: &'static str,
        (communicator, stream): At<'a>,
        queue: impl FnOnce(ncclComm_t, cudaStream_t) -> ncclResult_t,
    ) -> Result<(), CallError> {
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
        let code = queue(handle, stream);
        match code {
            super::bindings::ncclInProgress => Ok(()),
            code => self.library.check(call, code, Some(handle), || communicator.to_string()),
        }
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

fn from(source: Slice<'_>) -> *const std::ffi::c_void {
    to(source).cast_const()
}

fn to(target: Slice<'_>) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(target.address()).unwrap_or(0))
}

/// How many elements `memory` has.
fn count(memory: Slice<'_>, kind: DataType) -> usize {
    let size = kind.size();
    assert!(
        memory.size().get().is_multiple_of(size.get()),
        "{} are no whole elements",
        memory.size()
    );
    memory.length() / size.to_len().unwrap_or(1)
}

/// How many elements each of `ranks` has of `count`.
fn part(count: usize, ranks: u32) -> usize {
    let ranks = usize::try_from(ranks).unwrap_or(usize::MAX).max(1);
    assert!(count.is_multiple_of(ranks), "{count} elements are no equal parts for {ranks} ranks");
    count / ranks
}

/// Holds that `large` is `times` as large as `small`.
fn fits(large: Slice<'_>, small: Slice<'_>, times: u32) {
    let expected = small.size().get().checked_mul(u64::from(times));
    assert_eq!(Some(large.size().get()), expected, "memory for {times} times {}", small.size());
}

/// A rank as C takes it; one that is too large is refused by NCCL's own word.
fn number(rank: u32) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}
