//! The driver through its own functions, each test on a machine of its own.

mod execution;
mod fabric_handles;
mod faults;
mod holds;
mod misuse;
mod multicast;
mod nccl;
mod processes;
mod time;

use std::{
    collections::HashSet,
    ffi::{CStr, c_void},
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::AtomicU32,
};

use crate::{
    attach::simgpu_state,
    cuda::{
        abi::{self, In, Out},
        rest::First,
    },
    machine::{Driver, Efa, Faults, Gpu, Health, Link, Machine, Nccl, NvLinks, Pair, Rate, Rates},
    timing::event::{Latest, latest},
};

/// Set in the process that runs a test: its name.
const TEST: &str = "SIMGPU_TEST";
/// Set in the process that runs a test: whether memory is symbolic.
const SYMBOLIC: &str = "SIMGPU_TEST_SYMBOLIC";
/// Set in the second process of a test: where the machine's state is.
const STATE: &str = "SIMGPU_TEST_STATE";
/// After this a test's process is killed, in seconds.
const PATIENCE_S: u32 = 60;

/// Runs the calling test in a process of its own, since a process attaches only once; with symbolic
/// memory and with memory that is stored.
pub(super) fn alone(body: fn()) {
    let test = name();
    if std::env::var(TEST).is_ok_and(|name| name == test) {
        // SAFETY: the call takes a number and touches no memory.
        unsafe { libc::alarm(PATIENCE_S) };
        return body();
    }
    for symbolic in ["true", "false"] {
        let output = process(&test).env(SYMBOLIC, symbolic).output().unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let is_passed = output.status.success() && out.contains("1 passed");
        assert!(is_passed, "{test}, symbolic memory: {symbolic}:\n{out}\n{err}");
    }
}

/// Runs the calling test in two processes that are attached to one machine, with what goes
/// between them.
pub(super) fn two(machine: fn() -> Machine, first: fn(&mut Other), second: fn(&mut Line)) {
    if let Ok(state) = std::env::var(STATE) {
        // SAFETY: the call takes a number and touches no memory.
        unsafe { libc::alarm(PATIENCE_S) };
        crate::state::join(&state, 1).unwrap();
        let gpus = crate::state::machine().unwrap().gpus.len();
        contexts(gpus);
        return second(&mut Line);
    }
    let test = name();
    if !std::env::var(TEST).is_ok_and(|name| name == test) {
        // Once more, in a process of its own; that one comes past here.
        return alone(|| ());
    }
    // SAFETY: the call takes a number and touches no memory.
    unsafe { libc::alarm(PATIENCE_S) };
    begin(machine());
    let mut path = [0; 64];
    // SAFETY: the array is as long as it is said to be.
    ok(unsafe { simgpu_state(path.as_mut_ptr(), path.len()) }.try_into().unwrap());
    // SAFETY: the call has just written a C string.
    let path = unsafe { CStr::from_ptr(path.as_ptr()) };
    let mut child = process(&test)
        .env(STATE, path.to_str().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let from = BufReader::new(child.stdout.take().unwrap());
    let to = child.stdin.take().unwrap();
    let mut other = Other { child, from, to };
    first(&mut other);
    drop(other.to);
    let status = other.child.wait().unwrap();
    assert!(status.success() || status.signal() == Some(libc::SIGKILL), "the other: {status}");
}

fn name() -> String {
    std::thread::current().name().unwrap().to_owned()
}

fn process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(TEST, test);
    command
}

/// What marks lines between the processes of a test, beside those of the test program.
const MARK: &str = "> ";

/// The second process, as the first has it.
pub(super) struct Other {
    pub child: Child,
    from: BufReader<ChildStdout>,
    to: ChildStdin,
}

impl Other {
    pub(super) fn send(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next line that it sends.
    #[track_caller]
    pub(super) fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the other process has ended");
            if let Some((_, text)) = line.split_once(MARK) {
                return text.trim_end().to_owned();
            }
        }
    }
}

/// The first process, as the second has it.
pub(super) struct Line;

impl Line {
    pub(super) fn send(&mut self, line: &str) {
        println!("{MARK}{line}");
    }

    pub(super) fn receive(&mut self) -> String {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// `gb_s` bytes per nanosecond after `latency_ns`.
pub(super) fn rate(gb_s: f64, latency_ns: f64) -> Rate {
    Rate { gb_s, latency_ns }
}

/// Four GPUs, each pair with NVLink, with rates that are easy to reckon with: see the fields.
pub(super) fn machine() -> Machine {
    let pairs = (0..4).flat_map(|source| {
        (0..4).filter(move |target| *target != source).map(move |target| pair(source, target))
    });
    Machine {
        hosts: 1,
        first_gpu: 0,
        first_nic: 0,
        name: "test".to_owned(),
        event_resolution_ns: 1,
        driver_version: 12080,
        confidential_computing: false,
        symbolic_memory: std::env::var(SYMBOLIC).is_ok_and(|symbolic| symbolic == "true"),
        // So that durations are those of the fields.
        driver: Driver {
            call_ms: 0,
            context_ms: 0,
            pin_ms_per_gib: 0,
            event_ns: 0,
            event_error_ns: 0,
            clock_rise_ms: 0,
            ..Driver::STRICT
        },
        gpus: (0..4).map(gpu).collect(),
        pairs: pairs.collect(),
        nics: vec![],
        efa: Efa::PLAIN,
        host: crate::machine::load("g5.12xlarge").unwrap().host,
        nccl: Nccl { init_ms: 0, ..Nccl::default() },
        faults: Faults::default(),
        report: None,
    }
}

fn gpu(ordinal: u32) -> Gpu {
    Gpu {
        name: "Test GPU".to_owned(),
        memory_bytes: 256 << 20,
        compute_capability: (9, 0),
        multiprocessors: 132,
        sm_clock_mhz: 1980,
        memory_clock_mhz: 2619,
        memory_bus_bits: 5120,
        pci: (0, 0x10 + ordinal, 0),
        pci_device_id: 0x2330,
        pcie_generation: (5, 5),
        pcie_lanes: (16, 16),
        pcie_switch: None,
        numa_node: ordinal / 2,
        nvlinks: NvLinks { generation: 4, count: 18, down: vec![], switch: true },
        local: Rates { ce: rate(1000.0, 1000.0), sm: rate(800.0, 500.0) },
        from_host: Rates { ce: rate(20.0, 3000.0), sm: rate(16.0, 2000.0) },
        to_host: Rates { ce: rate(25.0, 3500.0), sm: rate(10.0, 1500.0) },
        load_latency_ns: 600.0,
        host_load_latency_ns: 1200.0,
        egress_gb_s: None,
        ingress_gb_s: None,
        pcie_up_gb_s: None,
        pcie_down_gb_s: None,
        launch_ns: 4000.0,
        throttle: vec![],
        c2c_links: 0,
        health: Health::default(),
    }
}

fn pair(source: u32, target: u32) -> Pair {
    Pair {
        detour: false,
        source,
        target,
        link: Link::NvLink(18),
        read_allowed: true,
        write_allowed: true,
        atomics: true,
        ce_read: rate(80.0, 2500.0),
        ce_write: rate(100.0, 2000.0),
        sm_read: rate(50.0, 1800.0),
        sm_write: rate(90.0, 1600.0),
        load_latency_ns: 900.0,
    }
}

/// Attaches to a machine, with contexts on all GPUs that all have access to each other.
pub(super) fn begin(machine: Machine) -> Vec<u64> {
    crate::state::begin(machine, 0).unwrap();
    contexts(crate::state::machine().unwrap().gpus.len())
}

pub(super) fn contexts(gpus: usize) -> Vec<u64> {
    ok(abi::cuInit(0));
    let contexts: Vec<u64> = (0..gpus)
        .map(|gpu| {
            let device = get(|out| abi::cuDeviceGet(out, i32::try_from(gpu).unwrap()));
            get(|out| abi::cuDevicePrimaryCtxRetain(out, device))
        })
        .collect();
    for own in &contexts {
        ok(abi::cuCtxSetCurrent(*own));
        for peer in contexts.iter().filter(|peer| *peer != own) {
            let code = abi::cuCtxEnablePeerAccess(*peer, 0);
            assert!([0, 217].contains(&code), "{code}");
        }
    }
    ok(abi::cuCtxSetCurrent(contexts[0]));
    use_all();
    contexts
}

/// As if all that waits at its first use had been used in every context, but for graphs.
fn use_all() {
    let bools = [false, true];
    let copies = bools.map(|is_small| bools.map(|is_odd| First::Copy { is_small, is_odd }));
    let others = [First::WaitValue, First::WriteValue, First::GraphLaunch];
    let all = [1, 2, 4].map(First::Memset).into_iter().chain(copies.concat()).chain(others);
    let all: HashSet<First> = all.collect();
    let mut local = crate::state::world().unwrap().local();
    local.is_eager = true;
    local.contexts.iter_mut().for_each(|context| context.used.clone_from(&all));
}

/// As if nothing had been used in any context.
pub(super) fn use_nothing() {
    let mut local = crate::state::world().unwrap().local();
    local.is_eager = false;
    local.contexts.iter_mut().for_each(|context| context.used.clear());
}

#[track_caller]
pub(super) fn ok(code: u32) {
    assert_eq!(code, 0);
}

/// What a function puts at its first argument.
#[track_caller]
pub(super) fn get<T: Default>(call: impl FnOnce(Out<T>) -> u32) -> T {
    let mut value = T::default();
    ok(call(Out::to(&mut value)));
    value
}

/// A stream of the current context that does not wait for stream 0.
pub(super) fn stream() -> u64 {
    get(|out| abi::cuStreamCreate(out, 1))
}

pub(super) fn event() -> u64 {
    get(|out| abi::cuEventCreate(out, 0))
}

/// Records a new event.
pub(super) fn mark(stream: u64) -> u64 {
    let event = event();
    ok(abi::cuEventRecord(event, stream));
    event
}

pub(super) fn allocate(bytes: usize) -> u64 {
    get(|out| abi::cuMemAlloc_v2(out, bytes))
}

/// Memory of the host that GPUs can reach.
pub(super) fn pinned(bytes: usize) -> u64 {
    let mut address = std::ptr::null_mut::<c_void>();
    ok(abi::cuMemHostAlloc(Out::to(&mut address), bytes, 3));
    address as u64
}

/// Makes a GPU's context current.
pub(super) fn on(context: u64) {
    ok(abi::cuCtxSetCurrent(context));
}

/// Nanoseconds from event to event.
#[track_caller]
pub(super) fn ns(start: u64, end: u64) -> f64 {
    let mut ms = 0.0_f32;
    ok(abi::cuEventElapsedTime(Out::to(&mut ms), start, end));
    f64::from(ms) * 1e6
}

/// The time that an event has recorded, exactly.
#[track_caller]
pub(super) fn time_ps(event: u64) -> u64 {
    let world = crate::state::world().unwrap();
    let slot = world.local().events.get(event).unwrap().slot;
    match latest(&world.plane().events[slot]) {
        Latest::Timed { time_ps, .. } => time_ps,
        other => panic!("{other:?}"),
    }
}

/// A kernel of the project's PTX.
pub(super) fn kernel(name: &CStr) -> u64 {
    let texts = [
        concat!(include_str!("../../../kernels/copy.ptx"), "\0"),
        concat!(include_str!("../../../kernels/pattern.ptx"), "\0"),
        concat!(include_str!("../../../kernels/hold.ptx"), "\0"),
        concat!(include_str!("../../../kernels/chase.ptx"), "\0"),
    ];
    let name = In::of(name.as_ptr());
    let mut functions = texts.into_iter().filter_map(|text| {
        let module: u64 = get(|out| abi::cuModuleLoadData(out, In::of(text.as_ptr().cast())));
        let mut function = 0;
        (abi::cuModuleGetFunction(Out::to(&mut function), module, name) == 0).then_some(function)
    });
    functions.next().unwrap()
}

/// Launches a kernel, all of whose parameters have 64 bits or are small.
pub(super) fn launch(function: u64, stream: u64, parameters: &[u64]) -> u32 {
    let parameters: Vec<In<u8>> =
        parameters.iter().map(|value| In::of((&raw const *value).cast())).collect();
    let none = In::of(std::ptr::null());
    let parameters = In::of(parameters.as_ptr());
    abi::cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, parameters, none)
}

/// Sends bytes to a GPU.
pub(super) fn put(target: u64, bytes: &[u8]) {
    ok(abi::cuMemcpyHtoD_v2(target, bytes.as_ptr() as u64, bytes.len()));
}

/// The bytes at an address of a GPU.
pub(super) fn fetch(source: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    ok(abi::cuMemcpyDtoH_v2(bytes.as_mut_ptr() as u64, source, count));
    bytes
}

/// Bytes that are not all the same.
pub(super) fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..=250_u8).cycle().map(|n| n ^ seed).take(count).collect()
}

/// The word at `address` of this process's memory.
pub(super) fn word(address: u64) -> &'static AtomicU32 {
    // SAFETY: tests ask for words of memory that they have until their process ends.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}
