//! Within one GPU, between it and pinned host memory, and from one GPU's memory to another's.

use super::{Gpus, chase::Pointers, copy::Copies};
use crate::{
    ffi::cuda::Feature,
    machine,
    plan::{Case, Flow, Gpu, Handle, Operation},
    transport::{Error, Support, Transfer, Transport, TryingTo},
    world::World,
};

impl Gpus {
    /// Why the GPU that does the work of `flow` cannot reach the other one's memory, if so.
    fn refusal(&self, case: &Case, flow: &Flow) -> Result<Option<String>, Error> {
        let (Some(source), Some(target)) = (flow.source.gpu(), flow.target.gpu()) else {
            return Ok(None);
        };
        let executor = flow.executor(case.issuer).gpu();
        let (here, there) =
            if executor == Some(source) { (source, target) } else { (target, source) };
        let is_shared = flow.source.rank != flow.target.rank;
        if case.handle == Some(Handle::Fabric) && is_shared {
            return Ok(None);
        }
        if here == there || self.reaches(here, there)? {
            return Ok(None);
        }
        let but = if self.reaches(there, here)? {
            format!(", in this direction only: GPU {} reaches GPU {}'s", there.0, here.0)
        } else {
            String::new()
        };
        let there_ready = self.ready(there)?;
        let why = match self.ready(here)?.context.enable_peer_access(&there_ready.context) {
            Err(refusal) => refusal.to_string(),
            Ok(()) => "cuDeviceCanAccessPeer says so".to_owned(),
        };
        Ok(Some(format!("GPU {} cannot reach GPU {}'s memory{but}: {why}", here.0, there.0)))
    }

    fn reaches(&self, here: Gpu, there: Gpu) -> Result<bool, Error> {
        self.device(here)?.can_access_peer(self.device(there)?).trying_to("ask for peer access")
    }
}

impl Transport for Gpus {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        if case.operation.is_switched() {
            return self.support_of_switches(case, world.rank());
        }
        let own = |flow: &&Flow| flow.executor(case.issuer).rank == world.rank();
        for flow in case.flows.iter().filter(own) {
            if let Some(refusal) = self.refusal(case, flow)? {
                return Ok(Support::No(refusal));
            }
        }
        let feature = case.handle.map(|handle| match handle {
            Handle::Ipc => Feature::Ipc,
            Handle::Cumem | Handle::Fabric => Feature::Descriptors,
        });
        if let Some(lack) = feature.and_then(Gpus::lack) {
            return Ok(Support::No(lack));
        }
        if case.handle == Some(Handle::Fabric)
            && let Some(lack) = machine::lack_of_fabric_handles()
        {
            return Ok(Support::No(lack));
        }
        self.room(case, world.rank(), case.size)
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        if case.operation == Operation::Chase {
            return Ok(Box::new(Pointers::new(case, world, self)?));
        }
        Ok(Box::new(Copies::new(case, world, self)?))
    }

    fn gpus(&self) -> Option<&Gpus> {
        Some(self)
    }
}
