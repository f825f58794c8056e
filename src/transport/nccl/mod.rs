//! NCCL's collectives between GPUs, of one process or of many, on one host or on several.

mod buffers;
mod data;
pub(in crate::transport) mod log;
mod rank_stream;
mod transfer;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use buffers::{Buffers, RankDevice, footprint, registered};
use data::Part;
use rank_stream::RankStream;
use transfer::Collectives;

use super::{Error, Support, Transfer, Transport, TryingTo, gpu::Gpus};
use crate::{
    ffi::{
        self, cuda,
        nccl::{Communicator, Feature, Library, UniqueId},
    },
    plan::{
        self, Allocator, Case, Gpu, Peers, Rank, Reduction, Registration, Split, topology::Topology,
    },
    transport::values::Values,
    units::Bytes,
    world::World,
};

/// The transport.
pub(super) struct Nccl {
    library: &'static Library,
    gpus: Gpus,
    /// Created for the first case, and kept for cases with the same GPUs.
    communicators: RefCell<Option<Joined>>,
    /// Whether the last case has reached its end on this rank.
    is_sound: Rc<Cell<bool>>,
}

/// Communicators of this rank's GPUs.
#[derive(Clone)]
struct Joined {
    members: Members,
    /// Those that the work uses.
    parts: Vec<Rc<Communicator>>,
    /// Those of all members: the same unless they are split.
    all: Vec<Rc<Communicator>>,
}

/// Who has joined a communicator.
#[derive(Clone, PartialEq, Eq)]
struct Members {
    /// This rank's GPUs.
    gpus: Vec<Gpu>,
    /// The number of the first of them.
    first: u32,
    /// How many there are on all ranks together.
    count: u32,
    split: Option<Split>,
}

impl Nccl {
    /// NCCL, if it works here; otherwise the reason, which is the library's own if it was found.
    pub(super) fn new(topology: &Topology) -> Result<Self, String> {
        let library = Library::load(None).map_err(|absent| absent.to_string())?;
        let gpus = Gpus::new(topology).map_err(|absent| match library.refusal() {
            Some(refusal) => {
                let (version, path) = (library.version(), library.path.display());
                format!("NCCL {version} ({path}) does not work here: {refusal}; {absent}")
            }
            None => absent,
        })?;
        Ok(Self { library, gpus, communicators: RefCell::default(), is_sound: Rc::default() })
    }

    /// Communicators for this rank's `gpus`, the first of which has the number `first`. Every rank
    /// calls it, also without a GPU.
    fn join(
        &self,
        gpus: &[Gpu],
        first: u32,
        nccl: plan::Nccl,
        world: &mut World,
    ) -> Result<Joined, Error> {
        let members =
            Members { gpus: gpus.to_vec(), first, count: nccl.members, split: nccl.split };
        let kept = self.communicators.borrow().clone();
        let kept = kept.filter(|Joined { members: kept, parts, all }| {
            *kept == members && all.iter().chain(parts).all(|one| one.is_alive())
        });
        // If one rank needs new ones, all do. They end in order only together.
        let all_of = |all: Vec<(bool, bool)>| {
            (all.iter().all(|&(is_kept, _)| is_kept), all.iter().all(|&(_, is_sound)| is_sound))
        };
        let (are_kept, are_sound) =
            world.agree((kept.is_some(), self.is_sound.replace(false)), all_of)?;
        if are_kept && let Some(joined) = kept {
            return Ok(joined);
        }
        drop(kept);
        // The old ones end first, because a GPU has room for few communicators.
        self.end(are_sound);
        log::mark();
        let id = world.is_root().then(|| self.library.unique_id()).transpose();
        let id: UniqueId = world.broadcast(id.trying_to(MAKE)?)?;
        let mut joined = Joined { members, all: Vec::new(), parts: Vec::new() };
        if !gpus.is_empty() {
            let own = gpus.iter().zip(first..);
            let own = own.map(|(&gpu, number)| Ok((self.gpus.ready(gpu)?.context.clone(), number)));
            let own = own.collect::<Result<Vec<_>, Error>>()?;
            let patience = world.deadline();
            log::diagnosed(|| {
                let made = Communicator::all(self.library, &own, &id, nccl.members, patience)
                    .map_err(|source| Error::together(MAKE, source))?;
                joined.all = made.into_iter().map(Rc::new).collect();
                joined.parts = match nccl.split {
                    Some(_) => divided(&joined.all, first, nccl)?,
                    None => joined.all.clone(),
                };
                Ok::<(), Error>(())
            })?;
        }
        *self.communicators.borrow_mut() = Some(joined.clone());
        Ok(joined)
    }

    /// Ends the communicators that are kept: in order after cases that have reached their end,
    /// otherwise at once.
    fn end(&self, in_order: bool) {
        let Some(Joined { members, parts, all }) = self.communicators.take() else { return };
        let parts = members.split.map(|_| parts);
        for communicators in parts.into_iter().chain([all]) {
            let own: Vec<Communicator> =
                communicators.into_iter().filter_map(Rc::into_inner).collect();
            // Communicators that do not close in time are aborted. All is measured by then.
            if in_order && let Err(err) = Communicator::close(own) {
                ffi::warn(&err);
            }
        }
    }

    /// What the library or one of the GPUs lacks for the case.
    fn lack(&self, case: &Case, rank: Rank) -> Result<Option<String>, Error> {
        let Some((collective, nccl, layout)) = case.collective() else { return Ok(None) };
        let version = self.library.version();
        if layout.count == 0 {
            return Ok(Some(format!(
                "{} are less than 16 bytes for each of {} ranks: give larger --sizes",
                case.size, nccl.ranks
            )));
        }
        if !self.library.has(nccl.data_type) {
            return Ok(Some(format!("NCCL {version} has no {}", nccl.data_type)));
        }
        if let Some(missing) = needed(nccl).find_map(|feature| self.library.lacks(feature)) {
            return Ok(Some(format!("NCCL {version}: {missing}")));
        }
        if nccl.iterations.operations_per_group > 1 && nccl.is_in_place && nccl.reduction.is_some()
        {
            let reason = "in place, each reduction of a group takes what the one before has left: \
                          --agg-iters goes with --place out-of-place";
            return Ok(Some(reason.to_owned()));
        }
        if nccl.iterations.graph > 0
            && let Some(missing) = Gpus::lack(cuda::Feature::Graphs)
        {
            return Ok(Some(missing));
        }
        if nccl.reduction.is_some() && nccl.ranks > Values::RANKS_MAX {
            return Ok(Some(format!(
                "exact numbers are known for reductions among {} ranks at most",
                Values::RANKS_MAX
            )));
        }
        let (number, peers) = (0, Peers::default());
        let part = Part { collective, nccl, layout, number, part: 0, member: 0, peers };
        for gpu in own_gpus(case, rank) {
            if let Some(reason) = self.lack_of_gpu(gpu, &part)? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    /// What `gpu` lacks for a `part` like this.
    fn lack_of_gpu(&self, gpu: Gpu, part: &Part) -> Result<Option<String>, Error> {
        let nccl = part.nccl;
        let capability = self.gpus.device(gpu)?.compute_capability();
        let (major, minor) = capability.trying_to("ask for the compute capability")?;
        let needed = nccl.data_type.compute_capability();
        if nccl.reduction.is_some() && 10 * major + minor < needed {
            return Ok(Some(format!(
                "GPU {} (compute capability {major}.{minor}) does not reduce {}",
                gpu.0, nccl.data_type
            )));
        }
        let whose = match nccl.sharers {
            1 => String::new(),
            ranks => format!(" of {ranks} ranks"),
        };
        self.gpus.lack_of_memory(gpu, part.memory().times(u64::from(nccl.sharers)), &whose)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.end(self.is_sound.get());
    }
}

impl Transport for Nccl {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        Ok(self.lack(case, world.rank())?.map_or(Support::Yes, Support::No))
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        let rank = world.rank();
        let missing = Error::Disagreement("a case of NCCL has no collective");
        let (collective, nccl, layout) = case.collective().ok_or(missing)?;
        let gpus = own_gpus(case, rank);
        let before = case.flows.iter().take_while(|flow| flow.source.rank != rank).count();
        let first = nccl.first + u32::try_from(before).unwrap_or(0);
        let Joined { all, parts, .. } = self.join(&gpus, first, nccl, world)?;
        let devices = (first..)
            .zip(&gpus)
            .zip(all.into_iter().zip(parts))
            .map(|((member, &gpu), (all, communicator))| {
                let (part, number) = nccl.place_of(member);
                let peers = case.peers(number);
                let part = Part { collective, nccl, layout, number, part, member, peers };
                Ok(RankDevice { part, ready: self.gpus.ready(gpu)?, communicator, all })
            })
            .collect::<Result<Vec<RankDevice>, Error>>()?;
        let buffers = devices.iter().map(|device| device.allocate(self.library));
        let buffers = buffers.collect::<Result<Vec<Buffers>, Error>>()?;
        // No rank waits in a window for one that could not allocate.
        world.barrier()?;
        let buffers = registered(&devices, buffers)?;
        let ranks = devices.into_iter().zip(buffers);
        let ranks = ranks.map(|(device, buffers)| RankStream::new(device, buffers));
        let ranks = ranks.collect::<Result<Vec<RankStream>, Error>>()?;
        Ok(Box::new(Collectives::new(case, self.library, Rc::clone(&self.is_sound), ranks, world)?))
    }

    fn gpus(&self) -> Option<&Gpus> {
        Some(&self.gpus)
    }
}

/// The first step that ranks take together.
const MAKE: &str = "make a communicator";

/// Splits the communicators `all`, the first of which has the number `first`.
fn divided(
    all: &[Rc<Communicator>],
    first: u32,
    nccl: plan::Nccl,
) -> Result<Vec<Rc<Communicator>>, Error> {
    let places = (first..).map(|number| nccl.place_of(number));
    let members: Vec<_> = all.iter().map(Rc::as_ref).zip(places).collect();
    let made = Communicator::divide(&members)
        .map_err(|source| Error::together("divide a communicator", source))?;
    Ok(made.into_iter().map(Rc::new).collect())
}

/// The features of the library that a case needs.
fn needed(nccl: plan::Nccl) -> impl Iterator<Item = Feature> {
    let registration = match nccl.registration {
        Registration::None => None,
        Registration::Local => Some(Feature::Registration),
        Registration::Symmetric => Some(Feature::Windows),
    };
    let allocator = (nccl.buffer == Allocator::Nccl).then_some(Feature::Allocation);
    let sum = (nccl.reduction == Some(Reduction::MulSum)).then_some(Feature::ScaledSum);
    let split = nccl.split.map(|_| Feature::Split);
    [sum, allocator, registration, split].into_iter().flatten()
}

/// The GPUs of `rank` in the order of their numbers in the communicator.
fn own_gpus(case: &Case, rank: Rank) -> Vec<Gpu> {
    let own = case.flows.iter().filter(|flow| flow.source.rank == rank);
    own.filter_map(|flow| flow.source.gpu()).collect()
}

impl Part {
    /// Memory that it takes on its GPU.
    fn memory(&self) -> Bytes {
        let (given, received) = self.sizes();
        let kept = if self.consumes() { received } else { Bytes::default() };
        let of = |size| footprint(self.nccl.buffer, size);
        of(given).plus(of(received)).plus(kept)
    }
}
