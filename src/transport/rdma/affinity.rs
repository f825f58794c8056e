//! Assigns each rank a CPU of its own, if there are enough.

use std::collections::BTreeSet;

use crate::{
    ffi::host,
    plan::topology::{NumaNode, Topology},
    transport::{Error, TryingTo},
    world::{self, World},
};

/// A rank's host and the CPUs that it accepts, the best first; none if it has no part in the case.
type Claim = (String, Vec<u32>);

/// A CPU for this rank alone, if it `needs` one and there are enough: among those that the user or
/// a launcher allows it, preferably on the node `near`. Every rank calls it.
pub(super) fn own_cpu(
    topology: &Topology,
    needs: bool,
    near: Option<NumaNode>,
    world: &mut World,
) -> Result<Option<u32>, Error> {
    let allowed = host::allowed_cpus().trying_to("ask for the CPUs of this rank")?;
    let mut nodes: Vec<_> = topology.nodes.iter().collect();
    nodes.sort_by_key(|node| Some(node.id) != near);
    let known = nodes.iter().flat_map(|node| &node.cpus).copied();
    let own = known.filter(|cpu| needs && allowed.contains(cpu)).collect();
    let claims = world.gather::<Claim>((world::host().boot, own))?;
    Ok(world.scatter(claims.map(|claims| assign(&claims)))?)
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
    fn a_rank_that_needs_a_cpu_takes_one_of_its_own() {
        let allowed = host::allowed_cpus().unwrap();
        let topology = machine(&[&[], &allowed]);
        let cpu = |needs| own_cpu(&topology, needs, Some(NumaNode(1)), &mut World::single());
        assert_eq!(cpu(true).unwrap(), Some(allowed[0]));
        assert_eq!(cpu(false).unwrap(), None);
    }
}
