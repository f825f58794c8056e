//! From what a machine file says to the machine: what it starts from, then the file's entries in
//! their order, then its faults.

use std::collections::BTreeSet;

use toml::Spanned;

use super::{
    CallFault, Driver, Efa, FailingCall, FailingNic, FailingRank, Faults, Flip, GPUS_MAX, Gpu,
    Health, Host, Jitter, Link, Machine, Nccl, NvLinks, Pair, RankFault, Rate, Rates, SlowWay,
    apply_host,
    file::{
        CallKeys, CallWhat, FaultKeys, File, GpuKeys, NetworkKeys, PairKeys, RankKeys, RankWhat,
        RateKeys, SlowKeys,
    },
    health, instance, nearest_instance, nvlinks, pairs_of,
    problem::Problem,
    values::{Count, Fraction, Latency, Limit, Share, Whole},
};

/// GPUs of a machine that starts from nothing, if the file does not say.
const GPUS: u64 = 2;

/// A GPU as a PCI device that nobody makes.
const PCI_DEVICE_ID: u32 = 1;

/// The machine that a file describes.
pub(super) fn machine(file: File, name: &str) -> Result<Machine, Problem> {
    let mut machine = beginning(&file)?;
    if let Some(hosts) = &file.hosts {
        machine = machine.times(hosts.get_ref().get_u32()).map_err(|most| {
            let text = format!("so many hosts cannot be simulated: at most {most}");
            Problem::new(hosts, "hosts", text)
        })?;
    }
    machine.name = file.name.clone().unwrap_or_else(|| name.to_owned());
    machine.report = file.report.clone();
    if let Some(resolution) = file.event_resolution_ns {
        machine.event_resolution_ns = resolution.get();
    }
    if let Some(version) = file.driver_version {
        machine.driver_version = version.get_u32();
    }
    set(&mut machine.confidential_computing, file.confidential_computing);
    set(&mut machine.symbolic_memory, file.symbolic_memory);
    for gpu in &mut machine.gpus {
        set(&mut gpu.nvlinks.switch, file.nvswitch.as_ref().map(|given| *given.get_ref()));
    }
    let mut links_down = Vec::new();
    for keys in &file.gpu {
        for ordinal in chosen(&machine, keys)? {
            change_gpu(&mut machine.gpus[ordinal as usize], keys)?;
            let down = keys.nvlinks_down.iter().flatten();
            links_down.extend(down.map(|link| (ordinal, link)));
        }
    }
    machine.connect_hosts();
    no_address_twice(&machine, &file.gpu)?;
    change_pairs(&mut machine, &file.pair)?;
    nvlinks::count(&mut machine, &file)?;
    nvlinks::take_down(&mut machine, &links_down)?;
    for keys in &file.fault.slow {
        slow_down(&mut machine, keys)?;
    }
    for keys in &file.fault.detour {
        let ends = ends_apart(&machine, [&keys.source, &keys.target], "fault.detour")?;
        pairs_between(&mut machine, ends, keys.both_ways).for_each(|pair| pair.detour = true);
    }
    if let Some(keys) = &file.driver {
        let driver = &mut machine.driver;
        set(&mut driver.queue_entries, keys.queue_entries.map(|entries| entries.get()));
        set(&mut driver.call_ms, keys.call_ms.map(|ms| ms.get()));
        set(&mut driver.context_ms, keys.context_ms.map(|ms| ms.get()));
        set(&mut driver.pin_ms_per_gib, keys.pin_ms_per_gib.map(|ms| ms.get()));
        set(&mut driver.event_ns, keys.event_ns.map(|ns| ns.get()));
        set(&mut driver.event_error_ns, keys.event_error_ns.map(|ns| ns.get()));
        set(&mut driver.idle_clock_percent, keys.idle_clock_percent.map(|share| share.get()));
        set(&mut driver.clock_rise_ms, keys.clock_rise_ms.map(|ms| ms.get()));
        set(&mut driver.clock_fall_ms, keys.clock_fall_ms.map(|ms| ms.get()));
    }
    if let Some(keys) = &file.efa {
        let efa = &mut machine.efa;
        set(&mut efa.reads, keys.reads);
        set(&mut efa.writes, keys.writes);
        set(&mut efa.queue_entries, keys.queue_entries.map(Whole::get_u32));
        set(&mut efa.rate_share, keys.rate_share.map(Fraction::get));
        set(&mut efa.protocol_share, keys.protocol_share.map(Fraction::get));
        for (own, given) in [
            (&mut efa.latency_ns, keys.latency_ns),
            (&mut efa.protocol_ns, keys.protocol_ns),
            (&mut efa.far_ns, keys.far_ns),
            (&mut efa.post_ns, keys.post_ns),
            (&mut efa.operation_ns, keys.operation_ns),
            (&mut efa.shuffle_ns, keys.shuffle_ns),
        ] {
            set(own, given.map(|ns| f64::from(ns.get_u32())));
        }
    }
    if let Some(keys) = &file.nccl {
        set(&mut machine.nccl.nvls, keys.nvls.map(Some));
        set(&mut machine.nccl.nvls_efficiency, keys.nvls_efficiency.map(|share| Some(share.get())));
        set(&mut machine.nccl.net_gb_s, keys.net_gb_s.map(|speed| Some(speed.get())));
        set(&mut machine.nccl.init_ms, keys.init_ms.map(|ms| ms.get()));
        set(&mut machine.nccl.work_fifo_bytes, keys.work_fifo_bytes.map(|bytes| bytes.get()));
        set(&mut machine.nccl.net_name, keys.net_name.clone());
    }
    apply_host::change_host(&mut machine, &file)?;
    apply_host::change_nics(&mut machine, &file.nic)?;
    apply_host::has_places(&machine, &file)?;
    machine.faults = faults(&machine, file.fault)?;
    Ok(machine)
}

/// What the file starts from.
fn beginning(file: &File) -> Result<Machine, Problem> {
    let Some(from) = &file.from else {
        let gpus = file.gpu_count.as_ref().map_or(GPUS, |count| count.get_ref().get());
        return Ok(plain(u32::try_from(gpus).unwrap_or(GPUS_MAX)));
    };
    let name = from.get_ref();
    let mut machine = instance::machine(name).ok_or_else(|| {
        let nearest = nearest_instance(name);
        let text = format!("no instance is called `{name}`: the nearest name is `{nearest}`");
        Problem::new(from, "from", text)
    })?;
    if let Some(count) = &file.gpu_count {
        let gpus = count.get_ref().get_u32();
        if gpus as usize > machine.gpus.len() {
            let text = format!("{name} has {} GPUs, no more", machine.gpus.len());
            return Err(Problem::new(count, "gpu_count", text));
        }
        machine.gpus.truncate(gpus as usize);
        machine.pairs.retain(|pair| pair.source < gpus && pair.target < gpus);
    }
    Ok(machine)
}

/// A machine of round numbers, like none that is sold: GPUs on PCIe that reach each other.
fn plain(gpus: u32) -> Machine {
    Machine {
        name: String::new(),
        hosts: 1,
        first_gpu: 0,
        first_nic: 0,
        event_resolution_ns: instance::EVENT_RESOLUTION_NS,
        driver_version: instance::DRIVER_VERSION,
        confidential_computing: false,
        symbolic_memory: true,
        driver: Driver::STRICT,
        gpus: (0..gpus).map(plain_gpu).collect(),
        pairs: pairs_of(gpus, |pair| {
            (pair.read_allowed, pair.write_allowed) = (true, true);
            pair.ce_read = Rate { gb_s: 24.0, latency_ns: 2500.0 };
            pair.ce_write = Rate { gb_s: 25.0, latency_ns: 2400.0 };
            pair.sm_read = Rate { gb_s: 22.0, latency_ns: 1700.0 };
            pair.sm_write = Rate { gb_s: 23.0, latency_ns: 1000.0 };
            pair.load_latency_ns = 1500.0;
        }),
        nics: Vec::new(),
        efa: Efa::PLAIN,
        host: Host::plain(),
        nccl: Nccl::default(),
        faults: Faults::default(),
        report: None,
    }
}

fn plain_gpu(ordinal: u32) -> Gpu {
    let rates = |ce: (f64, f64), sm: (f64, f64)| Rates {
        ce: Rate { gb_s: ce.0, latency_ns: ce.1 },
        sm: Rate { gb_s: sm.0, latency_ns: sm.1 },
    };
    Gpu {
        name: "Simulated GPU".to_owned(),
        memory_bytes: 16 << 30,
        compute_capability: (9, 0),
        multiprocessors: 100,
        sm_clock_mhz: 1500,
        memory_clock_mhz: 2000,
        memory_bus_bits: 4096,
        pci: (0, instance::PCI_BUS_FIRST + ordinal, 0),
        pci_device_id: PCI_DEVICE_ID,
        pcie_generation: (4, 4),
        pcie_lanes: (16, 16),
        pcie_switch: None,
        numa_node: 0,
        nvlinks: NvLinks { generation: 0, count: 0, down: Vec::new(), switch: false },
        local: rates((800.0, 1400.0), (850.0, 500.0)),
        from_host: rates((25.0, 1700.0), (20.0, 1500.0)),
        to_host: rates((26.0, 1700.0), (24.0, 900.0)),
        load_latency_ns: 600.0,
        host_load_latency_ns: 1300.0,
        egress_gb_s: None,
        ingress_gb_s: None,
        pcie_up_gb_s: Some(28.0),
        pcie_down_gb_s: Some(28.0),
        launch_ns: 2000.0,
        throttle: Vec::new(),
        c2c_links: 0,
        health: Health::default(),
    }
}

/// The ordinal that a file names.
fn ordinal(machine: &Machine, named: &Spanned<i64>, key: &str) -> Result<u32, Problem> {
    let ordinal = u32::try_from(*named.get_ref()).ok();
    ordinal.filter(|&ordinal| (ordinal as usize) < machine.gpus.len()).ok_or_else(|| {
        let last = machine.gpus.len() - 1;
        let text = format!("there is no GPU {}: the last is GPU {last}", named.get_ref());
        Problem::new(named, key, text)
    })
}

/// The GPUs of an entry.
fn chosen(machine: &Machine, keys: &GpuKeys) -> Result<Vec<u32>, Problem> {
    match &keys.ordinals {
        Some(list) => {
            let ordinals = list.get_ref().iter();
            ordinals.map(|named| ordinal(machine, named, "gpu.ordinals")).collect()
        }
        None => Ok(machine.gpus.iter().zip(0..).map(|(_, ordinal)| ordinal).collect()),
    }
}

/// Changes what an entry gives.
fn change_gpu(gpu: &mut Gpu, keys: &GpuKeys) -> Result<(), Problem> {
    describe(gpu, keys);
    health::change(gpu, keys)?;
    for (rate, keys) in [
        (&mut gpu.local.ce, keys.local_ce),
        (&mut gpu.local.sm, keys.local_sm),
        (&mut gpu.from_host.ce, keys.from_host_ce),
        (&mut gpu.from_host.sm, keys.from_host_sm),
        (&mut gpu.to_host.ce, keys.to_host_ce),
        (&mut gpu.to_host.sm, keys.to_host_sm),
    ] {
        change_rate(rate, keys);
    }
    for (limit, given) in [
        (&mut gpu.egress_gb_s, keys.egress_gb_s),
        (&mut gpu.ingress_gb_s, keys.ingress_gb_s),
        (&mut gpu.pcie_up_gb_s, keys.pcie_up_gb_s),
        (&mut gpu.pcie_down_gb_s, keys.pcie_down_gb_s),
    ] {
        *limit = given.map_or(*limit, Limit::finite);
    }
    for (latency_ns, given) in [
        (&mut gpu.load_latency_ns, keys.load_latency_ns),
        (&mut gpu.host_load_latency_ns, keys.host_load_latency_ns),
        (&mut gpu.launch_ns, keys.launch_ns),
    ] {
        set(latency_ns, given.map(|latency| latency.get()));
    }
    if let Some(count) = &keys.nvlinks {
        if !gpu.nvlinks.switch {
            let text = "without `nvswitch = true` links are between two GPUs: give `nvlinks` \
                        under `[[pair]]`";
            return Err(Problem::new(count, "gpu.nvlinks", text.to_owned()));
        }
        gpu.nvlinks.count = count.get_ref().get_u32();
    }
    Ok(())
}

/// The part of [`change_gpu`] that nothing lasts longer or shorter for.
fn describe(gpu: &mut Gpu, keys: &GpuKeys) {
    set(&mut gpu.name, keys.name.clone());
    set(&mut gpu.memory_bytes, keys.memory_mib.map(|mib| mib.get() << 20));
    set(
        &mut gpu.compute_capability,
        keys.compute_capability.map(|of| of.map(Whole::get_u32).into()),
    );
    set(&mut gpu.multiprocessors, keys.multiprocessors.map(Whole::get_u32));
    set(&mut gpu.sm_clock_mhz, keys.sm_clock_mhz.map(Whole::get_u32));
    set(&mut gpu.memory_clock_mhz, keys.memory_clock_mhz.map(Whole::get_u32));
    set(&mut gpu.memory_bus_bits, keys.memory_bus_bits.map(Whole::get_u32));
    set(&mut gpu.pci, keys.pci.as_ref().map(|address| address.get_ref().0));
    // What a link can do is at least what it does.
    set(&mut gpu.pcie_generation.0, keys.pcie_generation.map(Whole::get_u32));
    set(&mut gpu.pcie_generation.1, keys.pcie_generation_max.map(Whole::get_u32));
    gpu.pcie_generation.1 = gpu.pcie_generation.1.max(gpu.pcie_generation.0);
    set(&mut gpu.pcie_lanes.0, keys.pcie_lanes.map(Whole::get_u32));
    set(&mut gpu.pcie_lanes.1, keys.pcie_lanes_max.map(Whole::get_u32));
    gpu.pcie_lanes.1 = gpu.pcie_lanes.1.max(gpu.pcie_lanes.0);
    set(
        &mut gpu.pcie_switch,
        keys.pcie_switch.as_ref().map(|number| Some(number.get_ref().get_u32())),
    );
    set(&mut gpu.numa_node, keys.numa_node.map(Whole::get_u32));
    set(&mut gpu.nvlinks.generation, keys.nvlink_generation.map(Whole::get_u32));
    set(&mut gpu.throttle, keys.throttle.clone());
}

/// Changes a value if a new one is given.
pub(super) fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

fn change_rate(rate: &mut Rate, keys: Option<RateKeys>) {
    if let Some(keys) = keys {
        keys.change(rate);
    }
}

/// PCI addresses tell GPUs apart.
fn no_address_twice(machine: &Machine, entries: &[GpuKeys]) -> Result<(), Problem> {
    for address in entries.iter().filter_map(|keys| keys.pci.as_ref()) {
        let all = (0..).zip(&machine.gpus);
        let same = all.filter(|(_, gpu)| gpu.pci == address.get_ref().0);
        let mut hosts: Vec<u32> = same.map(|(ordinal, _)| machine.host_of(ordinal)).collect();
        let count = hosts.len();
        hosts.dedup();
        if hosts.len() < count {
            let text = "two GPUs have this address: give each its own".to_owned();
            return Err(Problem::new(address, "gpu.pci", text));
        }
    }
    Ok(())
}

/// Who a pair's entry speaks of; `None`: any GPU.
type Ends = (Option<u32>, Option<u32>);

/// The ends that an entry names.
fn ends(
    machine: &Machine,
    [source, target]: [&Option<Spanned<i64>>; 2],
    table: &str,
) -> Result<Ends, Problem> {
    let end = |named: &Option<Spanned<i64>>, key: &str| {
        let named = named.as_ref();
        named.map(|named| ordinal(machine, named, &format!("{table}.{key}"))).transpose()
    };
    Ok((end(source, "source")?, end(target, "target")?))
}

/// The same, of two different GPUs.
fn ends_apart(
    machine: &Machine,
    named: [&Option<Spanned<i64>>; 2],
    table: &str,
) -> Result<Ends, Problem> {
    let ends = ends(machine, named, table)?;
    match (ends, named[1]) {
        ((Some(source), Some(target)), Some(at)) if source == target => {
            let text = format!("GPU {source} is source and target: a pair is of two GPUs");
            Err(Problem::new(at, &format!("{table}.target"), text))
        }
        ((Some(source), Some(target)), Some(at)) if !machine.shares_nvlinks(source, target) => {
            let text = format!("GPU {source} and GPU {target} are in two hosts: no pair");
            Err(Problem::new(at, &format!("{table}.target"), text))
        }
        _ => Ok(ends),
    }
}

fn is_between(pair: &Pair, (source, target): Ends) -> bool {
    source.is_none_or(|source| source == pair.source)
        && target.is_none_or(|target| target == pair.target)
}

/// The pairs of an entry that may hold for both directions.
fn pairs_between(
    machine: &mut Machine,
    (source, target): Ends,
    both_ways: bool,
) -> impl Iterator<Item = &mut Pair> {
    let is_connected = |pair: &Pair| machine.shares_nvlinks(pair.source, pair.target);
    let connected: Vec<bool> = machine.pairs.iter().map(is_connected).collect();
    let pairs = machine.pairs.iter_mut().zip(connected).filter(move |(pair, is_connected)| {
        let is_meant =
            is_between(pair, (source, target)) || both_ways && is_between(pair, (target, source));
        is_meant && *is_connected
    });
    pairs.map(|(pair, _)| pair)
}

/// Changes the pairs as the file's entries say, in their order.
fn change_pairs(machine: &mut Machine, entries: &[Spanned<PairKeys>]) -> Result<(), Problem> {
    let switched = machine.gpus.iter().any(|gpu| gpu.nvlinks.switch);
    let mut seen = BTreeSet::new();
    for entry in entries {
        let keys = entry.get_ref();
        let ends = ends_apart(machine, [&keys.source, &keys.target], "pair")?;
        let reversed = (ends.1, ends.0);
        if !seen.insert(ends) || keys.both_ways && ends != reversed && !seen.insert(reversed) {
            let text = "there is an entry for this source and target already".to_owned();
            return Err(Problem::new(entry, "pair", text));
        }
        if let Some(links) = keys.nvlinks.as_ref().filter(|_| switched) {
            let text = "with `nvswitch = true` the links of GPUs end in the switch: give \
                        `nvlinks` under `[[gpu]]`";
            return Err(Problem::new(links, "pair.nvlinks", text.to_owned()));
        }
        for pair in pairs_between(machine, ends, keys.both_ways) {
            change_pair(pair, keys);
        }
    }
    Ok(())
}

fn change_pair(pair: &mut Pair, keys: &PairKeys) {
    if let Some(links) = &keys.nvlinks {
        pair.link = link(links.get_ref().get_u32());
    }
    set(&mut pair.read_allowed, keys.read_allowed);
    set(&mut pair.write_allowed, keys.write_allowed);
    set(&mut pair.atomics, keys.atomics);
    change_rate(&mut pair.ce_read, keys.ce_read);
    change_rate(&mut pair.ce_write, keys.ce_write);
    change_rate(&mut pair.sm_read, keys.sm_read);
    change_rate(&mut pair.sm_write, keys.sm_write);
    set(&mut pair.load_latency_ns, keys.load_latency_ns.map(|latency| latency.get()));
}

/// What so many NVLinks make of a pair.
pub(super) fn link(nvlinks: u32) -> Link {
    if nvlinks == 0 { Link::Pcie } else { Link::NvLink(nvlinks) }
}

/// Makes every transfer of a pair so much slower.
pub(super) fn scale(pair: &mut Pair, fraction: f64) {
    for rate in [&mut pair.ce_read, &mut pair.ce_write, &mut pair.sm_read, &mut pair.sm_write] {
        rate.gb_s *= fraction;
    }
}

fn slow_down(machine: &mut Machine, keys: &SlowKeys) -> Result<(), Problem> {
    let ends = ends_apart(machine, [&keys.source, &keys.target], "fault.slow")?;
    for pair in pairs_between(machine, ends, keys.both_ways) {
        scale(pair, keys.fraction.get());
    }
    Ok(())
}

/// The faults that happen while the machine runs.
fn faults(machine: &Machine, keys: FaultKeys) -> Result<Faults, Problem> {
    let mut faults = Faults::default();
    for entry in keys.jitter {
        let keys = entry.get_ref();
        let (source, target) = ends(machine, [&keys.source, &keys.target], "fault.jitter")?;
        if keys.extra_ns.is_none() && keys.extra_share.is_none() {
            let text = "one of `extra_ns` and `extra_share` must be given".to_owned();
            return Err(Problem::new(&entry, "fault.jitter", text));
        }
        faults.jitter.push(Jitter {
            source,
            target,
            share: keys.share.get(),
            extra_ns: keys.extra_ns.map_or(0.0, Latency::get),
            extra_share: keys.extra_share.map_or(0.0, Share::get),
            lasts_ns: keys.lasts_ns.map_or(0.0, Latency::get),
            after_ns: keys.after_ns.map_or(0.0, Latency::get),
            seed: 0,
        });
    }
    let count = |count: Option<Count>| count.map_or(0, Count::get);
    for keys in keys.flip {
        let (source, target) = ends(machine, [&keys.source, &keys.target], "fault.flip")?;
        let (offset, after) = (count(keys.offset), count(keys.after));
        faults.flips.push(Flip { source, target, offset, after, always: keys.always });
    }
    faults.calls = keys.call.into_iter().map(failing_call).collect::<Result<_, _>>()?;
    for entry in keys.health {
        let (gpu, _) = ends(machine, [&entry.get_ref().gpu, &None], "fault.health")?;
        faults.health.push(health::fault(&entry, gpu)?);
    }
    for keys in keys.nic {
        let nic = keys
            .nic
            .as_ref()
            .map(|nic| apply_host::nic(machine, nic, "fault.nic.nic"))
            .transpose()?;
        let nic = nic.and_then(|nic| u32::try_from(nic).ok());
        let after = count(keys.after);
        faults.nics.push(FailingNic { nic, what: keys.what, after, always: keys.always });
    }
    for keys in &keys.network {
        let way = slow_way(machine, keys)?;
        faults.network.push(way);
        let SlowWay { source, target, .. } = way;
        if keys.both_ways && source != target {
            faults.network.push(SlowWay { source: target, target: source, ..way });
        }
    }
    faults.ranks = keys.rank.into_iter().map(failing_rank).collect::<Result<_, _>>()?;
    Ok(faults)
}

/// What an entry says of the way between two hosts.
fn slow_way(machine: &Machine, keys: &NetworkKeys) -> Result<SlowWay, Problem> {
    let rails = machine.nics_of_host();
    let chosen = |of: &Option<Spanned<i64>>, key: &str, count: usize, text: &str| {
        let Some(named) = of else { return Ok(None) };
        let number = u32::try_from(*named.get_ref()).ok().filter(|&it| (it as usize) < count);
        let text = || format!("there is no {text}, not {}", named.get_ref());
        let problem = || Problem::new(named, &format!("fault.network.{key}"), text());
        number.map(Some).ok_or_else(problem)
    };
    let host = |of, key| {
        let count = machine.hosts as usize;
        let last = count - 1;
        chosen(of, key, count, &format!("host behind {last}"))
    };
    let rail = || match rails {
        0 => "network interface in a host".to_owned(),
        _ => format!("place of an interface behind {}", rails - 1),
    };
    Ok(SlowWay {
        source: host(&keys.source, "source")?,
        target: host(&keys.target, "target")?,
        rail: chosen(&keys.rail, "rail", rails, &rail())?,
        fraction: keys.fraction.get(),
    })
}

/// What an entry says of a call that fails: one thing, and what belongs to it.
fn failing_call(entry: Spanned<CallKeys>) -> Result<FailingCall, Problem> {
    let keys = entry.get_ref();
    let what = match (keys.what, keys.code.map(Whole::get_u32)) {
        (CallWhat::Refused, Some(code)) => CallFault::Refused { code },
        (CallWhat::Hung, None) => CallFault::Hung,
        (CallWhat::Killed, None) => CallFault::Killed,
        (CallWhat::Stopped, None) => CallFault::Stopped,
        (CallWhat::Refused, None) => {
            let text = "`code` must be given, or another `what` than \"refused\"".to_owned();
            return Err(Problem::new(&entry, "fault.call", text));
        }
        (_, Some(_)) => {
            let text = "`code` is for `what = \"refused\"`".to_owned();
            return Err(Problem::new(&entry, "fault.call", text));
        }
    };
    Ok(FailingCall {
        name: keys.name.0.clone(),
        process: keys.process.map(|process| process.get_u32() as usize),
        after: keys.after.map_or(0, Count::get),
        what,
        always: keys.always,
    })
}

/// What an entry says of a rank that fails: one thing, and what belongs to it.
fn failing_rank(entry: Spanned<RankKeys>) -> Result<FailingRank, Problem> {
    let problem = |text: &str| Problem::new(&entry, "fault.rank", text.to_owned());
    let keys = entry.get_ref();
    let code = keys.code.map(Whole::get_u32);
    let what = match (keys.what, keys.element, code, &keys.reason) {
        (RankWhat::Wrong, element, None, None) => {
            RankFault::Wrong { element: element.map_or(0, Count::get) }
        }
        (RankWhat::Absent, None, None, None) => RankFault::Absent,
        (RankWhat::Asynchronous, None, Some(code), None) => RankFault::Asynchronous { code },
        (RankWhat::Refused, None, Some(code), reason) => {
            RankFault::Refused { code, reason: reason.clone().unwrap_or_default() }
        }
        (RankWhat::Asynchronous | RankWhat::Refused, _, None, _) => {
            return Err(problem("`code` must be given with this `what`"));
        }
        _ => {
            return Err(problem(
                "`element` is for `what = \"wrong\"`, `code` for \"asynchronous\" and \
                 \"refused\", `reason` for \"refused\"",
            ));
        }
    };
    if matches!(what, RankFault::Refused { .. }) && keys.name.is_none() {
        return Err(problem("`name` must be given with `what = \"refused\"`"));
    }
    Ok(FailingRank {
        rank: keys.rank.map(Whole::get_u32),
        name: keys.name.clone().map(|name| name.0),
        after: keys.after.map_or(0, Count::get),
        what,
        always: keys.always,
    })
}
