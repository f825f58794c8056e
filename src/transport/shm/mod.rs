//! From one end to another through host memory that both reach: by CPUs between two processes,
//! and by two GPUs.

mod host;

use super::{Error, Support, Transfer, Transport};
use crate::{
    plan::{Case, Engine, topology::Topology},
    world::World,
};

/// The transport.
#[derive(Debug)]
pub(super) struct Shm {
    topology: Topology,
}

impl Shm {
    pub(super) fn new(topology: Topology) -> Self {
        Self { topology }
    }
}

impl Transport for Shm {
    fn support(&self, case: &Case) -> Support {
        match case.engine {
            Engine::Cpu => host::support(case),
            Engine::Ce | Engine::Sm => Support::No("not yet".to_owned()),
        }
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        match case.engine {
            Engine::Cpu => host::prepare(case, world, &self.topology),
            Engine::Ce | Engine::Sm => Err(Error::Unavailable("not yet".to_owned())),
        }
    }
}
