//! The memory of several GPUs behind one address, for what NVLink switches do with all of it.
//!
//! Of a multicast store each GPU that issues has a part of everybody's memory for its data. Of a
//! reduction everybody's memory holds what its GPU gives; the sums go to a buffer of the GPU that
//! issues, or, of an all-reduce, to the second half of everybody's memory.

use std::rc::Rc;

use super::{Copier, Gpus, PATIENCE, Ready};
use crate::{
    ffi::{
        CallError,
        cuda::{self, Feature, Memory, Multicast, Sharing, Slice},
    },
    machine,
    plan::{Case, DataType, Gpu, Handle, Operation, Rank, Reduction},
    transport::{Error, Mismatch, Support, TryingTo, first_mismatch, pattern, values::Values},
    units::Bytes,
    world::World,
};

/// What one access moves, and each part of an all-reduce is a multiple of.
const VECTOR: u64 = 16;

/// A case's GPUs, as one rank sees them.
#[derive(Debug)]
pub(super) struct Team {
    rank: Rank,
    operation: Operation,
    size: Bytes,
    /// GPUs that issue.
    issuers: u64,
    /// What the GPUs give to a reduction.
    values: Values,
    /// Where this rank's GPUs store sums that are for them alone.
    sums: Vec<Sum>,
    /// None where this rank has no GPU among them.
    memory: Option<Multicast>,
    /// This rank's GPUs, in the order in which their memory was bound.
    members: Vec<Member>,
}

/// A GPU of this rank.
#[derive(Debug)]
struct Member {
    /// Its place among all of them.
    place: u32,
    ready: Rc<Ready>,
}

/// The sums of one GPU that issues.
#[derive(Debug)]
struct Sum {
    issuer: usize,
    buffer: cuda::Buffer,
    ready: Rc<Ready>,
}

impl Team {
    /// Makes this rank's part of the memory of `case`; every rank calls it.
    pub(super) fn new(case: &Case, world: &mut World, gpus: &Gpus) -> Result<Self, Error> {
        let (rank, team, issuers) = (world.rank(), case.team(), case.issuers());
        let mut members = Vec::new();
        for (place, end) in (0..).zip(&team) {
            if let Some(gpu) = end.gpu().filter(|_| end.rank == rank) {
                members.push(Member { place, ready: gpus.ready(gpu)? });
            }
        }
        let mut sums = Vec::new();
        for (issuer, end) in issuers.iter().enumerate() {
            let own = end.gpu().filter(|_| end.rank == rank);
            if let Some(gpu) = own.filter(|_| case.operation == Operation::MultimemReduce) {
                let ready = gpus.ready(gpu)?;
                let buffer = cuda::Buffer::new(&ready.context, case.size);
                sums.push(Sum { issuer, buffer: buffer.trying_to("allocate a buffer")?, ready });
            }
        }
        let count = u32::try_from(team.len()).unwrap_or(u32::MAX);
        Ok(Self {
            rank,
            operation: case.operation,
            size: case.size,
            issuers: issuers.len() as u64,
            values: Values::new(DataType::Float, Reduction::Sum, count),
            sums,
            memory: memory(case, &members, world)?,
            members,
        })
    }

    /// Queues one operation of issuer number `issuer`, a GPU of this rank.
    pub(super) fn queue(&self, issuer: usize, copier: &Copier, seed: u64) -> Result<(), CallError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let Copier { ready, stream, at_once, .. } = copier;
        let kernels = &ready.kernels;
        let all = memory.all();
        if self.operation == Operation::MulticastStore {
            let target = all.slice(self.size.times(issuer as u64), self.size);
            return kernels.multicast_store(stream, target, seed, *at_once);
        }
        if let Some(sum) = self.sums.iter().find(|sum| sum.issuer == issuer) {
            let source = all.slice(Bytes::default(), self.size);
            return kernels.multimem_reduce(stream, sum.buffer.all(), source, *at_once);
        }
        let (begin, size) = self.part(issuer as u64);
        let target = all.slice(self.size.plus(begin), size);
        kernels.multimem_all_reduce(stream, target, all.slice(begin, size), *at_once)
    }

    /// The part of an all-reduce that issuer number `issuer` does.
    fn part(&self, issuer: u64) -> (Bytes, Bytes) {
        let vectors = self.size.get() / VECTOR;
        let begin = |issuer: u64| {
            let vectors = u128::from(vectors) * u128::from(issuer) / u128::from(self.issuers);
            VECTOR * u64::try_from(vectors).unwrap_or(u64::MAX)
        };
        let (from, to) = (begin(issuer), begin(issuer + 1));
        (Bytes::new(from), Bytes::new(to - from))
    }

    /// Writes what the GPUs give, and what differs from all that must come, into this rank's
    /// memory.
    pub(super) fn fill(&mut self, seed: u64) -> Result<(), Error> {
        self.try_to_fill(seed).trying_to("fill a buffer")
    }

    fn try_to_fill(&self, seed: u64) -> Result<(), CallError> {
        for (at, Member { place, ready }) in self.members.iter().enumerate() {
            let Ready { kernels, stream, .. } = &**ready;
            for (issuer, part) in self.stored(at) {
                kernels.poison(stream, part, pattern::part_seed(seed, issuer))?;
            }
            if self.operation != Operation::MulticastStore {
                let given = self.half(at, 0);
                kernels.give(stream, given, self.values.reduced(seed), *place)?;
                if self.operation == Operation::MultimemAllReduce {
                    kernels.poison(stream, self.half(at, 1), seed)?;
                }
            }
            stream.synchronize(PATIENCE)?;
        }
        for Sum { buffer, ready, .. } in &self.sums {
            ready.kernels.poison(&ready.stream, buffer.all(), seed)?;
            ready.stream.synchronize(PATIENCE)?;
        }
        Ok(())
    }

    /// Compares all that has come to this rank's memory.
    pub(super) fn verify(&self, seed: u64) -> Result<Option<Mismatch>, Error> {
        let of_member = |(at, Member { ready, .. }): (usize, &Member)| {
            if self.operation == Operation::MultimemAllReduce {
                return ready.compare_reduced(self.half(at, 1), &self.values, seed, self.rank);
            }
            first_mismatch(self.stored(at).map(|(issuer, part)| {
                ready.compare(part, pattern::part_seed(seed, issuer), self.rank)
            }))
        };
        let of_sum = |Sum { buffer, ready, .. }: &Sum| {
            ready.compare_reduced(buffer.all(), &self.values, seed, self.rank)
        };
        let members = self.members.iter().enumerate().map(of_member);
        first_mismatch(members.chain(self.sums.iter().map(of_sum)))
    }

    /// What each issuer stores in the memory of this rank's GPU number `at`; nothing of a reduction.
    fn stored(&self, at: usize) -> impl Iterator<Item = (u64, Slice<'_>)> {
        let memory = self.memory.iter().filter(|_| self.operation == Operation::MulticastStore);
        let all = memory.map(move |memory| memory.member(at));
        all.flat_map(move |all| {
            (0..self.issuers)
                .map(move |issuer| (issuer, all.slice(self.size.times(issuer), self.size)))
        })
    }

    /// What the GPU number `at` of this rank gives, or, as the second, what must come to it.
    ///
    /// # Panics
    ///
    /// This rank has no such GPU.
    fn half(&self, at: usize, number: u64) -> Slice<'_> {
        let memory = self.memory.as_ref().expect("a rank with a GPU has memory");
        memory.member(at).slice(self.size.times(number), self.size)
    }
}

/// Makes the memory behind one address: the first rank an object, each its part. Every rank calls
/// it.
fn memory(case: &Case, members: &[Member], world: &mut World) -> Result<Option<Multicast>, Error> {
    const MAKE: &str = "make memory behind a multicast address";
    let (ranks, team) = (case.members(), case.team());
    let sharing = match case.handle {
        None => Sharing::Own,
        Some(Handle::Fabric) => Sharing::Domain,
        Some(Handle::Ipc | Handle::Cumem) => Sharing::Host,
    };
    let first = members.first().map(|member| &member.ready.context);
    let mut memory = match first.filter(|_| Some(&world.rank()) == ranks.first()) {
        Some(context) => {
            let count = u32::try_from(team.len()).unwrap_or(u32::MAX);
            let made = Multicast::create(context, bytes_of_member(case), count, sharing);
            Some(made.trying_to(MAKE)?)
        }
        None => None,
    };
    let handle = memory.as_mut().map(Multicast::handle).transpose().trying_to(MAKE)?.flatten();
    let handles = world.exchange_among(handle, &ranks)?;
    if let (Some(context), None) = (first, &memory) {
        let handle = handles.into_values().flatten().next();
        let handle = handle.ok_or(Error::Disagreement("no rank has made a multicast address"))?;
        let opened = Multicast::open(context, &handle);
        memory = Some(opened.trying_to("open another rank's multicast address")?);
    }
    for (memory, member) in
        memory.iter().flat_map(|memory| members.iter().map(move |m| (memory, m)))
    {
        memory.add(&member.ready.context).trying_to("add a GPU to a multicast address")?;
    }
    // From here on no call of the driver waits for another rank.
    world.barrier()?;
    if let Some(memory) = &mut memory {
        for member in members {
            memory.bind(&member.ready.context).trying_to("bind memory to a multicast address")?;
        }
        memory.map().trying_to("map a multicast address")?;
    }
    world.barrier()?;
    Ok(memory)
}

/// The memory of each GPU behind the address.
fn bytes_of_member(case: &Case) -> Bytes {
    let times = match case.operation == Operation::MulticastStore {
        true => case.issuers().len() as u64,
        false if case.operation == Operation::MultimemReduce => 1,
        false => 2,
    };
    case.size.times(times)
}

impl Gpus {
    /// Whether switches can carry out `case`, as far as this rank can tell.
    pub(super) fn support_of_switches(&self, case: &Case, rank: Rank) -> Result<Support, Error> {
        let lack = Self::lack(Feature::Multicast).or_else(|| Self::lack(Feature::Descriptors));
        let in_domain = case.handle == Some(Handle::Fabric);
        let lack = lack.or_else(|| in_domain.then(machine::lack_of_fabric_handles).flatten());
        if let Some(lack) = lack {
            return Ok(Support::No(lack));
        }
        let own: Vec<Gpu> =
            case.team().iter().filter(|end| end.rank == rank).filter_map(|end| end.gpu()).collect();
        for &gpu in &own {
            if !self.device(gpu)?.has_multicast().trying_to("ask for multicast")? {
                return Ok(Support::No(format!(
                    "GPU {} has no multicast: it takes NVLink switches of generation 4 or newer, \
                     as of H100, driver 530 or newer, and a Fabric Manager that runs",
                    gpu.0
                )));
            }
        }
        for &gpu in &own {
            let issues =
                case.issuers().iter().any(|end| end.rank == rank && end.gpu() == Some(gpu));
            let sums = match issues && case.operation == Operation::MultimemReduce {
                true => case.size,
                false => Bytes::default(),
            };
            if let Some(lack) = self.lack_of_memory(gpu, bytes_of_member(case).plus(sums), "")? {
                return Ok(Support::No(lack));
            }
        }
        Ok(Support::Yes)
    }
}
