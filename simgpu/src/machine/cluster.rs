//! Several hosts that are alike, with a network between them, as one machine.
//!
//! The devices of all hosts are numbered one host after the other. A process is on one host, and sees
//! what [`Machine::of_host`] gives.

use super::{GPUS_MAX, Host, Link, Machine, Nic, Pair, SlowWay, nics::Place, pairs_of};
use crate::timing::wire::NICS;

impl Machine {
    /// So many hosts, each of which has what this machine has; or how many there can be.
    pub(crate) fn times(self, hosts: u32) -> Result<Self, u32> {
        let own = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX);
        let nics = u32::try_from(NICS / self.nics.len().max(1)).unwrap_or(u32::MAX);
        let most = (GPUS_MAX / own).min(nics).max(1);
        if !(1..=most).contains(&hosts) {
            return Err(most);
        }
        if hosts == 1 {
            return Ok(self);
        }
        let pairs = pairs_of(hosts * own, |pair| {
            let Pair { source, target, .. } = *pair;
            if pair.is_within_host(own)
                && let Some(within) = self.pair(source % own, target % own)
            {
                *pair = Pair { source, target, ..within.clone() };
            }
        });
        let nics = (0..hosts).flat_map(|host| {
            self.nics.iter().map(move |nic| {
                let place = match nic.place {
                    Place::Gpu(gpu) => Place::Gpu(host * own + gpu),
                    place => place,
                };
                Nic { host, place, ..nic.clone() }
            })
        });
        let mut machine = Self {
            hosts,
            nics: nics.collect(),
            pairs,
            gpus: (0..hosts).flat_map(|_| self.gpus.iter().cloned()).collect(),
            ..self
        };
        machine.connect_hosts();
        Ok(machine)
    }

    /// Connects GPUs of different hosts: those of one clique of an NVLink domain as two of one host
    /// are, the others by the network alone.
    pub(super) fn connect_hosts(&mut self) {
        let own = self.gpus_of_host();
        let is_domain: Vec<bool> =
            self.pairs.iter().map(|pair| self.shares_nvlinks(pair.source, pair.target)).collect();
        let within = self.pair(0, 1).filter(|_| own > 1).cloned();
        for (pair, is_domain) in self.pairs.iter_mut().zip(is_domain) {
            if pair.is_within_host(own) {
                continue;
            }
            let Pair { source, target, .. } = *pair;
            match &within {
                Some(within) if is_domain => *pair = Pair { source, target, ..within.clone() },
                _ => {
                    pair.link = Link::Pcie;
                    (pair.read_allowed, pair.write_allowed, pair.atomics) = (false, false, false);
                }
            }
        }
    }

    /// Whether two GPUs are in one host, or in one clique of an NVLink domain.
    pub(crate) fn shares_nvlinks(&self, one: u32, other: u32) -> bool {
        let [health, others] = [one, other].map(|gpu| &self.gpus[gpu as usize].health);
        let is_one_clique = health.cluster_uuid != [0; 16]
            && (health.cluster_uuid, health.clique) == (others.cluster_uuid, others.clique);
        self.host_of(one) == self.host_of(other) || is_one_clique
    }

    /// How many GPUs each host has.
    pub(crate) fn gpus_of_host(&self) -> u32 {
        u32::try_from(self.gpus.len()).unwrap_or(u32::MAX) / self.hosts
    }

    /// How many network interfaces each host has.
    pub(crate) fn nics_of_host(&self) -> usize {
        self.nics.len() / self.hosts as usize
    }

    /// The host that a GPU is in.
    pub(crate) fn host_of(&self, gpu: u32) -> u32 {
        gpu / self.gpus_of_host()
    }

    /// The place of a GPU among those of its host.
    pub(crate) fn place_of(&self, gpu: u32) -> u32 {
        gpu % self.gpus_of_host()
    }

    /// One of the hosts by itself: what a process on it finds.
    pub(crate) fn of_host(&self, host: u32) -> Self {
        if self.hosts == 1 {
            return self.clone();
        }
        let first = host * self.gpus_of_host();
        let own = first..first + self.gpus_of_host();
        let pairs = self.pairs.iter().filter(|pair| own.contains(&pair.source));
        let pairs = pairs.filter(|pair| own.contains(&pair.target)).cloned().map(|mut pair| {
            pair.source -= first;
            pair.target -= first;
            pair
        });
        let nics = self.nics.iter().filter(|nic| nic.host == host).cloned().map(|mut nic| {
            if let Place::Gpu(gpu) = &mut nic.place {
                *gpu -= first;
            }
            nic
        });
        let mut faults = self.faults.clone();
        faults.health.retain(|fault| fault.gpu.is_none_or(|gpu| own.contains(&gpu)));
        for gpu in faults.health.iter_mut().filter_map(|fault| fault.gpu.as_mut()) {
            *gpu -= first;
        }
        let name = format!("{} {host}", self.name);
        Self {
            hosts: 1,
            first_gpu: first,
            first_nic: self.nics.iter().filter(|nic| nic.host < host).count(),
            gpus: self.gpus[first as usize..own.end as usize].to_vec(),
            pairs: pairs.collect(),
            nics: nics.collect(),
            host: Host {
                hostname: numbered(&self.host.hostname, host),
                boot_id: Host::boot_of(&name),
                ..self.host.clone()
            },
            faults,
            ..self.clone()
        }
    }

    /// The share that is left of the speed of the network from a host to another, over the interface
    /// of this place in its host at one of the ends; `None`: over the slowest.
    pub(crate) fn network_share(&self, [from, to]: [u32; 2], rails: Option<[usize; 2]>) -> f64 {
        let is_any = |of: Option<u32>, host: u32| of.is_none_or(|of| of == host);
        let is_of = |way: &&SlowWay| is_any(way.source, from) && is_any(way.target, to);
        let ways = || self.faults.network.iter().filter(is_of);
        let share = |rails: [usize; 2]| -> f64 {
            let is_over = |of: u32| rails.contains(&(of as usize));
            ways().filter(|way| way.rail.is_none_or(is_over)).map(|way| way.fraction).product()
        };
        let all = 0..self.nics_of_host();
        match rails {
            _ if from == to => 1.0,
            Some(rails) => share(rails),
            None => all.map(|rail| share([rail; 2])).fold(1.0, f64::min),
        }
    }

    /// What the network moves for a GPU, one way, in GB/s: its share of the interfaces that are next
    /// to it, or else of its host's.
    pub(crate) fn net_gb_s(&self, gpu: u32) -> f64 {
        if let Some(given) = self.nccl.net_gb_s {
            return given;
        }
        let host = self.host_of(gpu);
        let switch = self.gpus[gpu as usize].pcie_switch;
        let place = switch.map_or(Place::Gpu(gpu), Place::Switch);
        let first = host * self.gpus_of_host();
        let all = first..first + self.gpus_of_host();
        let is_beside = |other: &u32| {
            *other == gpu || switch.is_some() && self.gpus[*other as usize].pcie_switch == switch
        };
        let beside = all.clone().filter(is_beside).count();
        let gbps = |is_it: &dyn Fn(Place) -> bool| -> u32 {
            let own = self.nics.iter().filter(|nic| nic.host == host && nic.is_up());
            own.filter(|nic| is_it(nic.place)).map(|nic| nic.rate_gbps).sum()
        };
        let share = |gbps: u32, of: usize| f64::from(gbps) / 8.0 / of as f64;
        match (gbps(&|of| of == place), gbps(&|_| true)) {
            (0, 0) => NET_GB_S,
            (0, all_gbps) => share(all_gbps, all.len()),
            (gbps, _) => share(gbps, beside),
        }
    }
}

/// What the network moves for a GPU of a machine whose network nobody has described.
const NET_GB_S: f64 = 12.5;

/// A host's name: `name`, or its successors where it ends in a number.
fn numbered(name: &str, host: u32) -> String {
    let counted = name.rsplit_once('-').and_then(|(stem, last)| {
        Some(format!("{stem}-{}", last.parse::<u32>().ok()?.checked_add(host)?))
    });
    counted.unwrap_or_else(|| format!("{name}-{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{load, of_file};

    #[test]
    fn a_host_of_several_is_the_machine_that_each_of_them_is() {
        let one = load("p5.48xlarge").unwrap();
        let three = load("3xp5.48xlarge").unwrap();
        assert_eq!((three.gpus.len(), three.nics.len(), three.pairs.len()), (24, 96, 24 * 23));
        assert!((0..24).all(|gpu| three.host_of(gpu) == gpu / 8));
        let own = three.of_host(2);
        assert_eq!((&own.gpus, &own.pairs), (&one.gpus, &one.pairs));
        let place = |nic: &crate::machine::Nic| (nic.pci, nic.place, nic.rate_gbps);
        let places = |machine: &Machine| machine.nics.iter().map(place).collect::<Vec<_>>();
        assert_eq!(places(&own), places(&one));
        assert_eq!(own.host.product, "p5.48xlarge");
        let names = (0..3).map(|host| three.of_host(host).host.hostname);
        assert_eq!(names.collect::<Vec<_>>(), ["ip-10-0-0-1", "ip-10-0-0-2", "ip-10-0-0-3"]);
        assert_ne!(own.host.boot_id, three.of_host(1).host.boot_id);
        // The driver counts GPUs of all hosts, NVML those of its own.
        assert_eq!(own.uuid(3), three.uuid(19));
        assert_ne!(own.uuid(3), three.of_host(1).uuid(3));
    }

    #[test]
    fn gpus_of_one_clique_reach_each_other_over_nvlink_also_between_hosts() {
        let mut three = load("3xp6e-gb200.36xlarge").unwrap();
        let within = three.pair(0, 1).unwrap().clone();
        for pair in &three.pairs {
            let Pair { source, target, .. } = *pair;
            assert_eq!(*pair, Pair { source, target, ..within.clone() });
        }
        three.gpus[5].health.clique = 7;
        three.connect_hosts();
        for pair in three.pairs.iter().filter(|pair| !pair.is_within_host(4)) {
            let is_one_clique = pair.source != 5 && pair.target != 5;
            assert_eq!([pair.read_allowed, pair.write_allowed], [is_one_clique; 2], "{pair:?}");
        }
    }

    #[test]
    fn a_way_between_hosts_is_as_slow_as_it_is_said() {
        let three = of_file(
            "schema = 1\nfrom = 'p4d.24xlarge'\nhosts = 3\n\
             [[fault.network]]\nsource = 0\ntarget = 2\nfraction = 0.5\n\
             [[fault.network]]\nrail = 1\nboth_ways = true\nfraction = 0.8\n",
        );
        for (hosts, rails, share) in [
            ([0, 2], Some([0, 0]), 0.5),
            ([2, 0], Some([0, 0]), 1.0),
            ([0, 1], Some([2, 3]), 1.0),
            ([0, 1], Some([2, 1]), 0.8),
            ([1, 1], Some([1, 1]), 1.0),
            ([2, 0], None, 0.8),
            ([0, 2], None, 0.4),
        ] {
            let found = three.network_share(hosts, rails);
            assert!((found - share).abs() < 1e-9, "{hosts:?} {rails:?}: {found}");
        }
    }

    #[test]
    fn memory_of_another_host_is_out_of_reach() {
        let two = load("2xp5.48xlarge").unwrap();
        for pair in &two.pairs {
            let within = two.host_of(pair.source) == two.host_of(pair.target);
            assert_eq!([pair.read_allowed, pair.write_allowed], [within; 2], "{pair:?}");
        }
    }

    #[test]
    fn the_network_moves_for_a_gpu_what_the_interfaces_beside_it_do() {
        for (name, gb_s) in
            [("p4d.24xlarge", 6.25), ("p5.48xlarge", 50.0), ("2xp5en.48xlarge", 50.0)]
        {
            let machine = load(name).unwrap();
            for (gpu, _) in (0..).zip(&machine.gpus) {
                assert!((machine.net_gb_s(gpu) - gb_s).abs() < 1e-9, "{name} {gpu}");
            }
        }
        let text = "schema = 1\nfrom = \"p4d.24xlarge\"\nhosts = 2\n\
                    [[nic]]\nindices = [5]\nrate_gbps = 40\n[[nic]]\nindices = [7]\nstate = \"down\"";
        let machine = of_file(text);
        let rates: Vec<f64> = (6..16).map(|gpu| machine.net_gb_s(gpu)).collect();
        // Without an interface of its own a GPU has its part of all that its host has.
        let rest = 240.0 / 8.0 / 8.0;
        assert_eq!(rates, [6.25, 6.25, 6.25, 6.25, 2.5, 2.5, 6.25, 6.25, rest, rest]);
    }
}
