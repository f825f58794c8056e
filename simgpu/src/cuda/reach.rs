//! Who may reach which memory.

use super::{Code, local::Local};
use crate::{
    machine::Machine,
    memory::{Kind, Region},
    timing::cost::{Place, Way, pair},
};

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load,
    Store,
}

/// Whether the hardware lets a GPU do that to another's memory.
pub(crate) fn is_allowed(machine: &Machine, gpu: u32, other: u32, access: Access) -> bool {
    match access {
        Access::Load => pair(machine, other, gpu).read_allowed,
        Access::Store => pair(machine, gpu, other).write_allowed,
    }
}

/// Whether a GPU may reach another's memory in both ways, which is what the driver calls access.
pub(crate) fn has_access(machine: &Machine, gpu: u32, other: u32) -> bool {
    is_allowed(machine, gpu, other, Access::Load) && is_allowed(machine, gpu, other, Access::Store)
}

/// Whether a GPU's context may have access to another's memory, be it only in one way.
pub(crate) fn can_enable(machine: &Machine, gpu: u32, other: u32) -> bool {
    is_allowed(machine, gpu, other, Access::Load) || is_allowed(machine, gpu, other, Access::Store)
}

/// Whether the program has let a GPU's context reach a region.
pub(crate) fn is_enabled(local: &Local, gpu: u32, region: &Region) -> bool {
    match (&region.kind, region.place) {
        (Kind::Mapped { access, .. }, _) => access >> gpu & 1 == 1,
        (_, Place::Gpu(owner)) => {
            owner == gpu || local.contexts[gpu as usize].peers >> owner & 1 == 1
        }
        (_, Place::Host) => true,
    }
}

/// Whether a kernel on a GPU may do that to a region.
pub(crate) fn may(
    machine: &Machine,
    local: &Local,
    gpu: u32,
    region: &Region,
    access: Access,
) -> bool {
    let allowed = match region.place {
        Place::Gpu(owner) if owner != gpu => is_allowed(machine, gpu, owner, access),
        _ => true,
    };
    allowed && is_enabled(local, gpu, region)
}

/// How a copy engine of `gpu` copies between two regions of different GPUs; `None`: it touches
/// memory that it may not touch.
pub(crate) fn way(
    machine: &Machine,
    local: &Local,
    gpu: u32,
    (source, target): (&Region, &Region),
) -> Result<Option<Way>, Code> {
    let (Place::Gpu(from), Place::Gpu(to)) = (source.place, target.place) else {
        return Ok(Some(Way::Write));
    };
    let (way, engine, other, access) = if gpu == to {
        (Way::Read, to, source, Access::Load)
    } else {
        (Way::Write, from, target, Access::Store)
    };
    if from == to || is_enabled(local, engine, other) {
        return Ok((from == to || may(machine, local, engine, other, access)).then_some(way));
    }
    match other.kind {
        // Such memory is not there at all for a GPU that has no access.
        Kind::Mapped { .. } => Err(Code::INVALID_VALUE),
        _ => Ok(Some(Way::Staged)),
    }
}
