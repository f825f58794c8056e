//! What an operation costs: its duration, and how long it keeps each resource busy. Pure.

use super::{GPUS, ps_of_bytes, ps_of_ns};
use crate::machine::{Link, Machine, Pair, Rate};

/// Resources that transfers queue for: each ordered pair's link, and five of each GPU.
pub(crate) const RESOURCES: usize = GPUS * GPUS + 5 * GPUS;

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a GPU's memory.
    Gpu(u32),
    /// In host memory.
    Host,
}

/// A resource that a transfer occupies.
#[derive(Clone, Copy)]
enum Resource {
    /// The way between two GPUs, one direction.
    Link(u32, u32),
    /// All that leaves a GPU over NVLink.
    Egress(u32),
    /// All that arrives at a GPU over NVLink.
    Ingress(u32),
    /// All that leaves a GPU over PCIe.
    Up(u32),
    /// All that arrives at a GPU over PCIe.
    Down(u32),
    /// A GPU's own memory.
    Local(u32),
}

impl Resource {
    fn number(self) -> u16 {
        let gpus = GPUS as u32;
        let own = |gpu: u32, kind: u32| gpus * gpus + 5 * gpu + kind;
        let number = match self {
            Self::Link(source, target) => source * gpus + target,
            Self::Egress(gpu) => own(gpu, 0),
            Self::Ingress(gpu) => own(gpu, 1),
            Self::Up(gpu) => own(gpu, 2),
            Self::Down(gpu) => own(gpu, 3),
            Self::Local(gpu) => own(gpu, 4),
        };
        u16::try_from(number).unwrap_or(u16::MAX)
    }
}

/// The PCIe link of a GPU among the resources: up and down.
pub(crate) fn pcie_of(gpu: u32) -> [usize; 2] {
    [Resource::Up(gpu), Resource::Down(gpu)].map(|resource| usize::from(resource.number()))
}

/// What bytes are counted on, for the traffic counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Medium {
    /// None that has counters.
    #[default]
    None,
    /// NVLink.
    NvLink,
    /// PCIe.
    Pcie,
}

/// A stretch of a transfer's way; numbers of GPUs, or [`HOST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Leg {
    pub source: u16,
    pub target: u16,
    pub medium: Medium,
}

/// The host's number where GPUs have theirs.
pub(crate) const HOST: u16 = u16::MAX;

/// What an operation costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Cost {
    /// From its start to its end.
    pub duration_ps: u64,
    /// How long from its start each of `resources` is busy.
    pub busy_ps: [u64; 6],
    /// Numbers of the resources that it waits for and keeps busy.
    pub resources: [u16; 6],
    /// How many of `resources` count.
    pub count: u32,
    /// Bytes that go over each of `legs`.
    pub bytes: u64,
    /// Its way.
    pub legs: [Leg; 2],
    /// Where the data is, as [`Leg`] has it.
    pub source: u16,
    /// Where the data goes.
    pub target: u16,
    /// Whether it lasts as long as it was told to, however fast the clocks are.
    pub spins: bool,
    /// What goes through NVLink switches to and from several GPUs at once.
    pub team: TeamTraffic,
}

/// The GPUs that a kernel reaches by multimem instructions, and what their NVLinks carry of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct TeamTraffic {
    /// A bit for each GPU.
    members: [u64; 2],
    /// Bytes out of each GPU and into it.
    each: [u64; 2],
    /// Further bytes out of the GPU that runs the kernel, and into it.
    own: [u64; 2],
}

impl TeamTraffic {
    /// Each GPU with the bytes out of it and into it; `gpu` runs the kernel.
    pub(crate) fn by_gpu(&self, gpu: u16) -> impl Iterator<Item = (u16, [u64; 2])> {
        let has = |other: &u16| self.members[usize::from(*other / 64)] >> (other % 64) & 1 == 1;
        (0..GPUS as u16).filter(has).map(move |other| {
            let own = if other == gpu { self.own } else { [0; 2] };
            (other, [self.each[0] + own[0], self.each[1] + own[1]])
        })
    }
}

/// How often what a kernel does with multimem instructions goes out of each GPU and into it, and
/// once more out of its own GPU and into it. Switches load from every GPU and store to every GPU,
/// the kernel's own among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multimem {
    each: [u64; 2],
    own: [u64; 2],
}

/// A store to all.
pub(crate) const STORE_IN_ALL: Multimem = Multimem { each: [0, 1], own: [1, 0] };
/// A load of the sum of all.
pub(crate) const REDUCE_ALL: Multimem = Multimem { each: [1, 0], own: [0, 1] };
/// Both.
pub(crate) const ALL_REDUCE: Multimem = Multimem { each: [1, 1], own: [1, 1] };

/// How two GPUs' memories can be reached from each other in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The engine of the target reads.
    Read,
    /// The engine of the source writes.
    Write,
    /// Neither may: through host memory.
    Staged,
}

/// A copy of `bytes` by a copy engine of `gpu`; `way` is looked at only between two GPUs.
pub(crate) fn copy(
    machine: &Machine,
    gpu: u32,
    (source, target): (Place, Place),
    way: Way,
    bytes: u64,
) -> Cost {
    let mut sum = Sum::new(machine, bytes);
    match (source, target) {
        (Place::Gpu(from), Place::Gpu(to)) if from == to => {
            sum.local(from, machine.gpus[from as usize].local.ce);
        }
        (Place::Gpu(from), Place::Gpu(to)) => match way {
            Way::Read => sum.pair(from, to, |pair| pair.ce_read),
            Way::Write => sum.pair(from, to, |pair| pair.ce_write),
            Way::Staged => sum.staged(from, to),
        },
        (Place::Host, Place::Gpu(to)) => {
            sum.host_to_gpu(to, machine.gpus[to as usize].from_host.ce);
        }
        (Place::Gpu(from), Place::Host) => {
            sum.gpu_to_host(from, machine.gpus[from as usize].to_host.ce);
        }
        (Place::Host, Place::Host) => {
            // Through the GPU whose engine does it, as the driver does.
            sum.gpu_to_host(gpu, machine.gpus[gpu as usize].to_host.ce);
        }
    }
    sum.finish(0.0, (source, target))
}

/// A copy by a kernel on `gpu`.
pub(crate) fn kernel_copy(
    machine: &Machine,
    gpu: u32,
    (source, target): (Place, Place),
    bytes: u64,
) -> Cost {
    let mut sum = Sum::new(machine, bytes);
    if bytes > 0 {
        sum.load(gpu, source);
        sum.store(gpu, target);
        if sum.count == 0 {
            sum.local(gpu, machine.gpus[gpu as usize].local.sm);
        }
    }
    sum.finish(machine.gpus[gpu as usize].launch_ns, (source, target))
}

/// A kernel on `gpu` that loads `bytes` and keeps nothing.
pub(crate) fn kernel_read(machine: &Machine, gpu: u32, source: Place, bytes: u64) -> Cost {
    kernel_copy(machine, gpu, (source, Place::Gpu(gpu)), bytes)
}

/// A kernel on `gpu` that stores `bytes`.
pub(crate) fn kernel_write(machine: &Machine, gpu: u32, target: Place, bytes: u64) -> Cost {
    kernel_copy(machine, gpu, (Place::Gpu(gpu), target), bytes)
}

/// A kernel on `gpu` that follows `hops` pointers in memory at `list`.
pub(crate) fn chase(machine: &Machine, gpu: u32, list: Place, hops: u64) -> Cost {
    let fixed_ns = machine.gpus[gpu as usize].launch_ns;
    let mut cost = Sum::new(machine, 0).finish(fixed_ns, (list, Place::Gpu(gpu)));
    cost.duration_ps += ps_of_ns(hops as f64 * load_latency_ns(machine, gpu, list));
    cost
}

/// A kernel on `gpu` that spins for `duration_ns`.
pub(crate) fn spin(machine: &Machine, gpu: u32, duration_ns: u64) -> Cost {
    let own = (Place::Gpu(gpu), Place::Gpu(gpu));
    let mut cost = Sum::new(machine, 0).finish(machine.gpus[gpu as usize].launch_ns, own);
    cost.duration_ps += duration_ns.saturating_mul(1000);
    cost.spins = true;
    cost
}

/// A kernel on `gpu` that does something by multimem instructions with `bytes` of all `members`.
///
/// All links of the switches move their data at the rate of the slowest member. What goes out of
/// every member, or into it, is reckoned at the first: the other members' links are as busy.
pub(crate) fn through_switches(
    machine: &Machine,
    gpu: u32,
    members: &[u32],
    (multimem, bytes): (Multimem, u64),
) -> Cost {
    let others = members.iter().filter(|&&other| other != gpu);
    let rates = others.map(|&other| match multimem.own {
        [0, _] => pair(machine, other, gpu).sm_read,
        _ => pair(machine, gpu, other).sm_write,
    });
    let slowest = rates.min_by(|one, other| one.gb_s.total_cmp(&other.gb_s));
    let mut sum = Sum::new(machine, 0);
    let Some(rate) = slowest else { return sum.finish(0.0, (Place::Gpu(gpu), Place::Gpu(gpu))) };
    let gb_s = rate.gb_s * machine.nvls_efficiency(gpu);
    sum.rate(Rate { gb_s, ..rate });
    let first = members.iter().copied().min().unwrap_or(gpu);
    let [each, own] = [multimem.each, multimem.own].map(|times| times.map(|times| times * bytes));
    let carried = |of: u32, way: usize| {
        let each = if of == first { each[way] } else { 0 };
        each + if of == gpu { own[way] } else { 0 }
    };
    let mut uses = vec![
        (Resource::Egress(first), carried(first, 0)),
        (Resource::Ingress(first), carried(first, 1)),
    ];
    if gpu != first {
        uses.push((Resource::Egress(gpu), carried(gpu, 0)));
        uses.push((Resource::Ingress(gpu), carried(gpu, 1)));
    }
    uses.retain(|(_, carried)| *carried > 0);
    let fixed_ns = machine.gpus[gpu as usize].launch_ns;
    let mut cost = sum.finish(fixed_ns, (Place::Gpu(gpu), Place::Gpu(gpu)));
    // Its own GPU's links carry the most.
    let most = [0, 1].map(|way| each[way] + own[way]).into_iter().max().unwrap_or(0);
    cost.duration_ps += ps_of_bytes(most, gb_s);
    cost.count = u32::try_from(uses.len()).unwrap_or(0);
    for (at, (resource, carried)) in uses.into_iter().enumerate() {
        cost.resources[at] = resource.number();
        cost.busy_ps[at] = ps_of_bytes(carried, gb_s);
    }
    let mut bits = [0; 2];
    members.iter().for_each(|&other| bits[other as usize / 64] |= 1 << (other % 64));
    cost.team = TeamTraffic { members: bits, each, own };
    cost
}

/// What one dependent load by a kernel on `gpu` takes.
pub(crate) fn load_latency_ns(machine: &Machine, gpu: u32, place: Place) -> f64 {
    let own = &machine.gpus[gpu as usize];
    match place {
        Place::Host => own.host_load_latency_ns,
        Place::Gpu(other) if other == gpu => own.load_latency_ns,
        Place::Gpu(other) => pair(machine, other, gpu).load_latency_ns,
    }
}

/// Setting `bytes` of a GPU's memory to a value, or of host memory by `gpu`.
pub(crate) fn set(machine: &Machine, gpu: u32, target: Place, bytes: u64) -> Cost {
    match target {
        Place::Gpu(owner) => {
            copy(machine, owner, (Place::Gpu(owner), Place::Gpu(owner)), Way::Write, bytes)
        }
        Place::Host => copy(machine, gpu, (Place::Gpu(gpu), Place::Host), Way::Write, bytes),
    }
}

/// The ordered pair of two different GPUs.
pub(crate) fn pair(machine: &Machine, source: u32, target: u32) -> &Pair {
    let row = machine.gpus.len() - 1;
    let column = if target > source { target - 1 } else { target };
    &machine.pairs[source as usize * row + column as usize]
}

/// A transfer while its parts are put together.
struct Sum<'m> {
    machine: &'m Machine,
    bytes: u64,
    latency_ns: f64,
    /// The smallest rate so far.
    gb_s: f64,
    /// Resources, with the rate of those that have one of their own.
    uses: [(u16, Option<f64>); 6],
    count: usize,
    legs: [Leg; 2],
    leg_count: usize,
}

impl<'m> Sum<'m> {
    fn new(machine: &'m Machine, bytes: u64) -> Self {
        Self {
            machine,
            bytes,
            latency_ns: 0.0,
            gb_s: f64::INFINITY,
            uses: [(0, None); 6],
            count: 0,
            legs: [Leg::default(); 2],
            leg_count: 0,
        }
    }

    fn rate(&mut self, rate: Rate) {
        self.latency_ns += rate.latency_ns;
        self.gb_s = self.gb_s.min(rate.gb_s);
    }

    fn occupy(&mut self, resource: Resource, own_gb_s: Option<f64>) {
        self.uses[self.count] = (resource.number(), own_gb_s);
        self.count += 1;
        self.gb_s = self.gb_s.min(own_gb_s.unwrap_or(f64::INFINITY));
    }

    fn leg(&mut self, source: Place, target: Place, medium: Medium) {
        let leg = Leg { source: number(source), target: number(target), medium };
        self.legs[self.leg_count] = leg;
        self.leg_count += 1;
    }

    fn up(&mut self, gpu: u32) {
        self.occupy(Resource::Up(gpu), self.machine.gpus[gpu as usize].pcie_up_gb_s);
    }

    fn down(&mut self, gpu: u32) {
        self.occupy(Resource::Down(gpu), self.machine.gpus[gpu as usize].pcie_down_gb_s);
    }

    fn local(&mut self, gpu: u32, rate: Rate) {
        self.rate(rate);
        self.occupy(Resource::Local(gpu), None);
    }

    /// What carries data between a GPU and the host; nothing counts NVLink-C2C.
    fn host_medium(&self, gpu: u32) -> Medium {
        match self.machine.gpus[gpu as usize].c2c_links {
            0 => Medium::Pcie,
            _ => Medium::None,
        }
    }

    fn host_to_gpu(&mut self, gpu: u32, rate: Rate) {
        self.rate(rate);
        self.down(gpu);
        self.leg(Place::Host, Place::Gpu(gpu), self.host_medium(gpu));
    }

    fn gpu_to_host(&mut self, gpu: u32, rate: Rate) {
        self.rate(rate);
        self.up(gpu);
        self.leg(Place::Gpu(gpu), Place::Host, self.host_medium(gpu));
    }

    fn pair(&mut self, source: u32, target: u32, rate: impl Fn(&Pair) -> Rate) {
        let pair = pair(self.machine, source, target);
        self.rate(rate(pair));
        self.occupy(Resource::Link(source, target), None);
        let medium = match pair.link {
            Link::NvLink(_) if !pair.detour => {
                let egress = self.machine.gpus[source as usize].egress_gb_s;
                if egress.is_some() {
                    self.occupy(Resource::Egress(source), egress);
                }
                let ingress = self.machine.gpus[target as usize].ingress_gb_s;
                if ingress.is_some() {
                    self.occupy(Resource::Ingress(target), ingress);
                }
                Medium::NvLink
            }
            Link::NvLink(_) | Link::Pcie => {
                self.up(source);
                self.down(target);
                Medium::Pcie
            }
        };
        self.leg(Place::Gpu(source), Place::Gpu(target), medium);
    }

    /// From GPU to GPU through host memory, piece by piece, never both ways at once.
    fn staged(&mut self, source: u32, target: u32) {
        let to = self.machine.gpus[source as usize].to_host.ce;
        let from = self.machine.gpus[target as usize].from_host.ce;
        self.rate(Rate {
            gb_s: 1.0 / (1.0 / to.gb_s + 1.0 / from.gb_s),
            latency_ns: to.latency_ns + from.latency_ns,
        });
        self.up(source);
        self.down(target);
        self.leg(Place::Gpu(source), Place::Gpu(target), Medium::Pcie);
    }

    /// A kernel's loads from elsewhere; its own memory costs nothing beside them.
    fn load(&mut self, gpu: u32, source: Place) {
        match source {
            Place::Host => self.host_to_gpu(gpu, self.machine.gpus[gpu as usize].from_host.sm),
            Place::Gpu(other) if other != gpu => self.pair(other, gpu, |pair| pair.sm_read),
            Place::Gpu(_) => {}
        }
    }

    /// A kernel's stores to elsewhere.
    fn store(&mut self, gpu: u32, target: Place) {
        match target {
            Place::Host => self.gpu_to_host(gpu, self.machine.gpus[gpu as usize].to_host.sm),
            Place::Gpu(other) if other != gpu => self.pair(gpu, other, |pair| pair.sm_write),
            Place::Gpu(_) => {}
        }
    }

    fn finish(self, fixed_ns: f64, (source, target): (Place, Place)) -> Cost {
        let mut cost = Cost {
            duration_ps: ps_of_ns(fixed_ns)
                + ps_of_ns(self.latency_ns)
                + ps_of_bytes(self.bytes, self.gb_s),
            count: u32::try_from(self.count).unwrap_or(0),
            bytes: self.bytes,
            legs: self.legs,
            source: number(source),
            target: number(target),
            ..Cost::default()
        };
        for (at, (resource, own_gb_s)) in self.uses.into_iter().take(self.count).enumerate() {
            cost.resources[at] = resource;
            cost.busy_ps[at] = ps_of_bytes(self.bytes, own_gb_s.unwrap_or(self.gb_s));
        }
        cost
    }
}

fn number(place: Place) -> u16 {
    match place {
        Place::Gpu(gpu) => u16::try_from(gpu).unwrap_or(HOST),
        Place::Host => HOST,
    }
}
