//! From one GPU's memory to another's, directly.

use super::{
    Error, Support, Transfer, Transport,
    gpu::{self, Gpus},
};
use crate::{
    ffi::cuda::Feature,
    plan::{Case, Flow, Gpu, Handle, topology::Topology},
    world::World,
};

/// The transport.
#[derive(Debug)]
pub(super) struct P2p {
    gpus: Gpus,
}

impl P2p {
    pub(super) fn new(topology: &Topology) -> Result<Self, String> {
        Ok(Self { gpus: Gpus::new(topology)? })
    }

    /// Why the GPU that does the work of `flow` cannot reach the other one's memory, if so.
    fn refusal(&self, case: &Case, flow: &Flow) -> Result<Option<String>, Error> {
        let (Some(source), Some(target)) = (flow.source.gpu(), flow.target.gpu()) else {
            return Ok(None);
        };
        let executor = flow.executor(case.issuer).gpu();
        let (here, there) =
            if executor == Some(source) { (source, target) } else { (target, source) };
        if self.reaches(here, there)? {
            return Ok(None);
        }
        let but = if self.reaches(there, here)? {
            format!(", in this direction only: GPU {} reaches GPU {}'s", there.0, here.0)
        } else {
            String::new()
        };
        let there_ready = self.gpus.ready(there)?;
        let why = match self.gpus.ready(here)?.context.enable_peer_access(&there_ready.context) {
            Err(refusal) => refusal.to_string(),
            Ok(()) => "cuDeviceCanAccessPeer says so".to_owned(),
        };
        Ok(Some(format!("GPU {} cannot reach GPU {}'s memory{but}: {why}", here.0, there.0)))
    }

    fn reaches(&self, here: Gpu, there: Gpu) -> Result<bool, Error> {
        let (here, there) = (self.gpus.device(here)?, self.gpus.device(there)?);
        here.can_access_peer(there).map_err(|source| Error::call("ask for peer access", source))
    }
}

impl Transport for P2p {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        let own = |flow: &&Flow| flow.executor(case.issuer).rank == world.rank();
        for flow in case.flows.iter().filter(own) {
            if let Some(refusal) = self.refusal(case, flow)? {
                return Ok(Support::No(refusal));
            }
        }
        let feature = case.handle.map(|handle| match handle {
            Handle::Ipc => Feature::Ipc,
            Handle::Cumem => Feature::Descriptors,
        });
        if let Some(lack) = feature.and_then(Gpus::lack) {
            return Ok(Support::No(lack));
        }
        self.gpus.support(case, world.rank(), case.size)
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        gpu::prepare(case, world, &self.gpus)
    }
}
