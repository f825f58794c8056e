//! From one end to another through host memory that both reach: by CPUs between two processes,
//! and by two GPUs.

mod host;
mod staged;

use super::{Error, Support, Transfer, Transport, gpu::Gpus};
use crate::{
    plan::{Case, Engine, topology::Topology},
    world::World,
};

/// The transport.
#[derive(Debug)]
pub(super) struct Shm {
    topology: Topology,
    /// The GPUs, or why there are none.
    gpus: Result<Gpus, String>,
}

impl Shm {
    pub(super) fn new(topology: &Topology) -> Self {
        Self { topology: topology.clone(), gpus: Gpus::new() }
    }
}

impl Transport for Shm {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        match (case.engine, &self.gpus) {
            (Engine::Cpu, _) => Ok(host::support(case)),
            (_, Ok(gpus)) => staged::support(case, world, gpus),
            (_, Err(reason)) => Ok(Support::No(reason.clone())),
        }
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        match (case.engine, &self.gpus) {
            (Engine::Cpu, _) => host::prepare(case, world, &self.topology),
            (_, Ok(gpus)) => staged::prepare(case, world, gpus, &self.topology),
            (_, Err(reason)) => Err(Error::Unavailable(reason.clone())),
        }
    }
}
