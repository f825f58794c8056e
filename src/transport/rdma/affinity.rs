//! Assigns each rank a CPU of its own, if there are enough.

use std::collections::BTreeSet;

use crate::{
    ffi::host,
    plan::topology::{NumaNode, Topology},
    transport::{Error, TryingTo, Wait},
    world::{self, World},
};

/// The CPUs on which a rank runs.
#[derive(Debug)]
pub(super) struct Affinity {
    /// The CPUs that the user or a launcher allows.
    allowed: Vec<u32>,
    /// One of them, for this rank alone.
    own: Option<u32>,
}

/// A rank's host and the CPUs that it accepts, the best first; none if it has no part in the case.
type Claim = (String, Vec<u32>);

impl Affinity {
    /// Assigns a CPU of `allowed` to each rank that `needs` one, preferably on the node `near`.
    /// Every rank calls it.
    pub(super) fn agree(
        allowed: &[u32],
        topology: &Topology,
        needs: bool,
        near: Option<NumaNode>,
        world: &mut World,
    ) -> Result<Self, Error> {
        let mut nodes: Vec<_> = topology.nodes.iter().collect();
        nodes.sort_by_key(|node| Some(node.id) != near);
        let known = nodes.iter().flat_map(|node| &node.cpus).copied();
        let own = known.filter(|cpu| needs && allowed.contains(cpu)).collect();
        let claims = world.gather::<Claim>((world::host().boot, own))?;
        let own = world.scatter(claims.map(|claims| assign(&claims)))?;
        Ok(Self { allowed: allowed.to_vec(), own })
    }

    /// Lets the calling thread run on all allowed CPUs, and so the threads that it starts from now
    /// on.
    pub(super) fn release(&self) -> Result<(), Error> {
        host::bind_thread(&self.allowed).trying_to("run on all CPUs that are allowed")
    }

    /// Binds the calling thread to its own CPU, if it has one.
    pub(super) fn bind(&self) -> Result<(), Error> {
        match self.own {
            Some(cpu) => host::bind_thread(&[cpu]).trying_to("take a CPU"),
            None => Ok(()),
        }
    }

    /// How it waits: a rank with a CPU of its own spins.
    pub(super) fn wait(&self) -> Wait {
        if self.own.is_some() { Wait::Spin } else { Wait::Yield }
    }
}

/// Assigns a CPU to each claim, none twice. If a machine has too few, none of its ranks gets one.
/// Ranks with few choices choose first.
fn assign(claims: &[Claim]) -> Vec<Option<u32>> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|&rank| claims[rank].1.len());
    let mut taken = BTreeSet::new();
    let mut full = BTreeSet::new();
    let mut assigned_cpus = vec![None; claims.len()];
    for rank in order {
        let (machine, cpus) = &claims[rank];
        assigned_cpus[rank] = cpus.iter().copied().find(|&cpu| taken.insert((machine, cpu)));
        if assigned_cpus[rank].is_none() && !cpus.is_empty() {
            full.insert(machine);
        }
    }
    for (cpu, (machine, _)) in assigned_cpus.iter_mut().zip(claims) {
        cpu.take_if(|_| full.contains(machine));
    }
    assigned_cpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::tests::machine;

    fn assigned<const N: usize>(claims: [(&str, &[u32]); N]) -> Vec<Option<u32>> {
        assign(&claims.map(|(machine, cpus)| (machine.to_owned(), cpus.to_vec())))
    }

    #[test]
    fn each_rank_has_a_cpu_for_itself_or_none_of_the_machine_has() {
        let both: &[u32] = &[1, 0];
        assert_eq!(assigned([("a", both), ("a", both)]), [Some(1), Some(0)]);
        assert_eq!(assigned([("a", both), ("b", both)]), [Some(1), Some(1)]);
        let too_many = [("a", both), ("b", both), ("a", both), ("a", both)];
        assert_eq!(assigned(too_many), [None, Some(1), None, None]);
        // Who has no part in the case takes no place.
        assert_eq!(assigned([("a", both), ("a", &[]), ("a", both)]), [Some(1), None, Some(0)]);
    }

    #[test]
    fn nobody_leaves_the_cpus_that_a_launcher_gave_it() {
        assert_eq!(assigned([("a", &[0, 1]), ("a", &[0])]), [Some(1), Some(0)]);
        assert_eq!(assigned([("a", &[3]), ("a", &[2])]), [Some(3), Some(2)]);
        assert_eq!(assigned([("a", &[3]), ("a", &[3])]), [None, None]);
    }

    #[test]
    fn a_rank_takes_one_of_its_cpus_and_leaves_it_again() {
        let run = || {
            let allowed = host::allowed_cpus().unwrap();
            let topology = machine(&[&[], &allowed]);
            let agree = |needs| {
                let (near, mut world) = (Some(NumaNode(1)), World::single());
                Affinity::agree(&allowed, &topology, needs, near, &mut world).unwrap()
            };
            let affinity = agree(true);
            affinity.bind().unwrap();
            assert_eq!(
                (host::allowed_cpus().unwrap(), affinity.wait()),
                (vec![allowed[0]], Wait::Spin)
            );
            affinity.release().unwrap();
            assert_eq!(host::allowed_cpus().unwrap(), allowed);
            let none = agree(false);
            none.bind().unwrap();
            assert_eq!((host::allowed_cpus().unwrap(), none.wait()), (allowed, Wait::Yield));
        };
        std::thread::spawn(run).join().unwrap();
    }
}
