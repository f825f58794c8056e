//! Within one GPU, and between it and pinned host memory.

use super::{
    Error, Support, Transfer, Transport,
    gpu::{self, Gpus},
};
use crate::{
    plan::{Case, topology::Topology},
    world::World,
};

/// The transport.
#[derive(Debug)]
pub(super) struct Local {
    gpus: Gpus,
}

impl Local {
    pub(super) fn new(topology: &Topology) -> Result<Self, String> {
        Ok(Self { gpus: Gpus::new(topology)? })
    }
}

impl Transport for Local {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        self.gpus.support(case, world.rank(), case.size)
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        gpu::prepare(case, world, &self.gpus)
    }
}
