//! Cases of NCCL: which collectives of which elements among which GPUs.

use super::{
    BadRequest, Case, DataType, Endpoint, Engine, Flow, Gpu, Nccl, Operation, Pattern, Place, Rank,
    Reduction, Request, SIZE_OF_GPU, TransportKind, topology::Host,
};

/// What the user asks of NCCL's collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveRequest {
    /// What the elements are, each once.
    pub data_types: Vec<DataType>,
    /// What becomes of the elements of all ranks, each once.
    pub reductions: Vec<Reduction>,
    /// The ranks with another part than the others, by their numbers in the communicator, each
    /// once; empty: every rank in turn.
    pub roots: Vec<u32>,
    /// Whether what is received takes the place of what was given, each once.
    pub in_place: Vec<bool>,
}

impl Default for CollectiveRequest {
    fn default() -> Self {
        Self {
            data_types: vec![DataType::Float],
            reductions: vec![Reduction::Sum],
            roots: vec![0],
            in_place: vec![false, true],
        }
    }
}

/// The cases of NCCL that answer `request` over `hosts`, in the order of the rows.
///
/// A communicator's ranks are counted host by host, on each host rank by rank, and of each rank GPU
/// by GPU, as nccl-tests counts them.
pub(super) fn cases(request: &Request, hosts: &[Host]) -> Result<Vec<Case>, BadRequest> {
    let members = members(request, hosts)?;
    let Ok(ranks) = u32::try_from(members.len()) else { return Ok(Vec::new()) };
    if ranks == 0 {
        return Ok(Vec::new());
    }
    let wanted = &request.collectives;
    if let Some(&root) = wanted.roots.iter().find(|&&root| root >= ranks) {
        return Err(BadRequest::Root(root, ranks));
    }
    let flows = ring(&members);
    let sizes = request.sizes.clone().unwrap_or_else(|| vec![SIZE_OF_GPU]);
    let all_roots: Vec<u32> = (0..ranks).collect();
    let roots = if wanted.roots.is_empty() { &all_roots } else { &wanted.roots };
    let mut cases = Vec::new();
    for &operation in request.operations_or(&Operation::OF_NCCL) {
        let Some(collective) = operation.collective() else { continue };
        let reductions: Vec<Option<Reduction>> = match collective.has_reduction() {
            true => wanted.reductions.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let roots: Vec<Option<u32>> = match collective.has_root() {
            true => roots.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let places =
            wanted.in_place.iter().filter(|&&place| !place || collective.can_be_in_place());
        let of = |data_type, reduction, root, is_in_place| Nccl {
            data_type,
            reduction,
            root,
            is_in_place,
            ranks,
            first: 0,
        };
        for &data_type in &wanted.data_types {
            for &reduction in &reductions {
                for &root in &roots {
                    for &is_in_place in places.clone() {
                        let nccl = of(data_type, reduction, root, is_in_place);
                        cases.extend(sizes.iter().map(|&size| Case {
                            transport: TransportKind::Nccl,
                            pattern: Pattern::Neighbours,
                            flows: flows.clone(),
                            operation,
                            engine: Engine::Sm,
                            issuer: None,
                            handle: None,
                            size,
                            slot: None,
                            fabric: None,
                            nccl: Some(nccl),
                        }));
                    }
                }
            }
        }
    }
    Ok(cases)
}

/// The GPUs that take part, in the order of a communicator's ranks.
fn members(request: &Request, hosts: &[Host]) -> Result<Vec<Endpoint>, BadRequest> {
    let mut members = Vec::new();
    for host in hosts {
        let gpus: Vec<Gpu> =
            super::gpus(request, &host.topology)?.iter().map(|node| node.gpu).collect();
        for (place, &rank) in host.ranks.iter().enumerate() {
            let own = gpus.iter().skip(place).step_by(host.ranks.len());
            members.extend(own.map(|&gpu| Endpoint { rank, place: Place::Gpu(gpu) }));
        }
    }
    Ok(members)
}

/// From each member to the next one, around.
fn ring(members: &[Endpoint]) -> Vec<Flow> {
    let next = members.iter().cycle().skip(1);
    members.iter().zip(next).map(|(&source, &target)| Flow { source, target }).collect()
}

impl Case {
    /// The part of `rank` in a collective: the ways that begin at its own GPUs, and which numbers
    /// they have in the communicator.
    pub(super) fn part_of_collective(&self, nccl: Nccl, rank: Rank) -> Self {
        let is_own = |flow: &&Flow| flow.source.rank == rank;
        let first = self.flows.iter().position(|flow| flow.source.rank == rank).unwrap_or(0);
        let nccl = Nccl { first: u32::try_from(first).unwrap_or(0), ..nccl };
        let flows = self.flows.iter().filter(is_own).copied().collect();
        Self { flows, nccl: Some(nccl), ..self.clone_without_flows() }
    }
}
