//! A stream that copies.

use std::rc::Rc;

use super::Ready;
use crate::{
    ffi::{
        CallError,
        cuda::{Slice, Stream},
    },
    plan::Engine,
    transport::Error,
};

/// A stream of a GPU, on which one of its engines copies.
#[derive(Debug)]
pub(in crate::transport) struct Copier {
    pub(in crate::transport) ready: Rc<Ready>,
    pub(in crate::transport) stream: Stream,
    engine: Engine,
    /// Whether kernels read from another device; otherwise they write to it.
    reads: bool,
    /// How many copiers of this GPU work at the same time.
    pub(super) at_once: u32,
}

impl Copier {
    pub(in crate::transport) fn new(
        ready: Rc<Ready>,
        engine: Engine,
        reads: bool,
        at_once: usize,
    ) -> Result<Self, Error> {
        let at_once = u32::try_from(at_once).unwrap_or(u32::MAX);
        Ok(Self { stream: ready.new_stream()?, ready, engine, reads, at_once })
    }

    /// Queues a copy.
    #[inline]
    pub(in crate::transport) fn copy(
        &self,
        target: Slice<'_>,
        source: Slice<'_>,
    ) -> Result<(), CallError> {
        let Self { stream, at_once, .. } = self;
        let kernels = &self.ready.kernels;
        match self.engine {
            Engine::Sm if self.reads => kernels.copy_by_read(stream, target, source, *at_once),
            Engine::Sm => kernels.copy_by_write(stream, target, source, *at_once),
            Engine::Ce | Engine::Cpu | Engine::Nic => stream.copy(target, source),
        }
    }
}
