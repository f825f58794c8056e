//! What g2g relies on of a driver, asked of the simulated one and, with
//! `cargo test --test driver -- --ignored real::`, of the real one.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    sync::{OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use g2g::{
    ffi::{
        CallError, Cause,
        cuda::{
            self, Buffer, Chase, Context, Event, Hold, HostMemory, Kernels, Memory, Multicast,
            Registered, SharedBuffer, Sharing, Slice, Stream,
        },
        shm::{Segment, Store},
        simulation,
    },
    plan::{DataType, Reduction},
    transport::{pattern, values::Values},
    units::Bytes,
};

/// Longer than anything here lasts.
const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough for anything that is free to go on.
const MOMENT: Duration = Duration::from_millis(50);

/// Two GPUs with little memory, so that it runs out; the second is not at its best.
const MACHINE: &str = r#"
    schema = 1
    from = "p5.48xlarge"
    gpu_count = 2

    [[gpu]]
    memory_mib = 1024
    nvlinks = 4

    [[gpu]]
    ordinals = [1]
    numa_node = 1
    nvlinks_down = [2]
    pcie_generation = 3
    pcie_generation_max = 5
    pcie_lanes = 8
    throttle = ["hw-slowdown"]

    # Their time passes as their bytes are moved, and these are moved for real.
    [[nic]]
    rate_gbps = 5
"#;

/// Declares a test of each name for the simulated machine and for the real one.
macro_rules! on_both_machines {
    (one GPU: [$($one:ident)*] two GPUs: [$($two:ident)*]) => {
        mod simulated {
            $(#[test] fn $one() { super::$one(crate::simulated_gpus()); })*
            $(#[test] fn $two() { super::$two(crate::simulated_gpus()); })*
        }

        mod real {
            $(#[test] #[ignore = "needs an NVIDIA GPU"] fn $one() {
                super::$one(crate::real_gpus(1));
            })*

            mod two_gpus {
                $(#[test] #[ignore = "needs two NVIDIA GPUs"] fn $two() {
                    super::super::$two(crate::real_gpus(2));
                })*
            }
        }
    };
}

mod cpus;
mod faults;
mod kernels;
mod memory;
mod nccl;
mod nvml;
mod probes;
mod processes;
mod rdma;
mod streams;

/// The state of the simulated machine that this process is the first of: [`MACHINE`], or what the
/// variable `G2G_TEST_MACHINE` names.
fn state() -> &'static str {
    static STATE: OnceLock<String> = OnceLock::new();
    STATE.get_or_init(|| {
        if let Ok(machine) = std::env::var("G2G_TEST_MACHINE") {
            return simulation::attach(&machine, 0, 0).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.toml");
        std::fs::write(&path, MACHINE).unwrap();
        simulation::attach(path.to_str().unwrap(), 0, 0).unwrap()
    })
}

fn simulated_gpus() -> &'static [Context] {
    state();
    assert!(cuda::driver().unwrap().is_simulated);
    gpus()
}

fn real_gpus(count: usize) -> &'static [Context] {
    assert!(simulation::library().is_none(), "a process is on one machine: `-- --ignored` only");
    let found = gpus();
    assert!(found.len() >= count, "{} GPUs", found.len());
    found
}

/// The contexts of all GPUs, made once: on a real GPU that takes longer than a test.
fn gpus() -> &'static [Context] {
    static GPUS: OnceLock<Vec<Context>> = OnceLock::new();
    GPUS.get_or_init(|| {
        let devices = cuda::driver().unwrap().devices().unwrap();
        let contexts = devices.into_iter().map(|device| Context::retain(device).unwrap());
        contexts.inspect(use_all).collect()
    })
}

/// What a driver loads at the first use waits until the GPU is at rest, and tests queue it behind
/// holds.
fn use_all(context: &Context) {
    let gpu = Gpu::new(context);
    let memory = buffer(context, 1 << 20);
    gpu.stream.set(memory.all(), 0).unwrap();
    for size in [64, 65, 1 << 17, (1 << 17) + 1].map(Bytes::new) {
        let source = memory.slice(Bytes::default(), size);
        gpu.stream.copy(gpu.host.slice(PAGE, size), source).unwrap();
    }
    let word = gpu.host.slice(FLAG, Bytes::new(4));
    gpu.stream.write_value(word, 1).unwrap();
    gpu.stream.wait_value(word, 1).unwrap();
    gpu.finish();
}

/// A stream of a GPU with what it takes to look into its memory.
struct Gpu {
    stream: Stream,
    kernels: Kernels,
    /// The first page is for words, the rest for data.
    host: HostMemory,
}

const PAGE: Bytes = Bytes::kib(4);
const FLAG: Bytes = Bytes::new(0);
const TIMED_OUT: Bytes = Bytes::new(64);

impl Gpu {
    fn new(context: &Context) -> Self {
        Self {
            stream: Stream::new(context).unwrap(),
            kernels: Kernels::load(context).unwrap(),
            host: HostMemory::new(context, PAGE.plus(Bytes::mib(8))).unwrap(),
        }
    }

    fn hold(&self, ticket: u32, timeout: Duration) {
        let word = |offset| self.host.slice(offset, Bytes::new(4));
        let hold = Hold { flag: word(FLAG), ticket, timeout, timed_out: word(TIMED_OUT) };
        self.kernels.hold(&self.stream, hold).unwrap();
    }

    fn release(&self, ticket: u32) {
        self.host.word(FLAG).store(ticket, Ordering::Release);
    }

    fn is_busy(&self) -> bool {
        match self.stream.synchronize(MOMENT) {
            Ok(()) => false,
            Err(CallError { source: Cause::Late(_), .. }) => true,
            Err(err) => panic!("{err}"),
        }
    }

    fn finish(&self) {
        self.stream.synchronize(PATIENCE).unwrap();
    }

    fn write(&mut self, target: Slice<'_>, data: &[u8]) {
        let bytes = self.host.bytes(PATIENCE).unwrap();
        bytes[PAGE.to_len().unwrap()..][..data.len()].copy_from_slice(data);
        self.stream.copy(target, self.host.slice(PAGE, target.size())).unwrap();
        self.finish();
    }

    fn read(&mut self, source: Slice<'_>) -> Vec<u8> {
        self.stream.copy(self.host.slice(PAGE, source.size()), source).unwrap();
        let bytes = self.host.bytes(PATIENCE).unwrap();
        bytes[PAGE.to_len().unwrap()..][..source.size().to_len().unwrap()].to_vec()
    }
}

fn buffer(context: &Context, size: u64) -> Buffer {
    Buffer::new(context, Bytes::new(size)).unwrap()
}

fn part(memory: &impl Memory, offset: u64, size: u64) -> Slice<'_> {
    memory.slice(Bytes::new(offset), Bytes::new(size))
}

fn patterned(seed: u64, size: u64) -> Vec<u8> {
    let mut data = vec![0; usize::try_from(size).unwrap()];
    pattern::fill(&mut data, seed);
    data
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The driver's code in an error.
fn code(err: &CallError) -> u32 {
    match &err.source {
        Cause::Library { code, .. } => *code,
        Cause::System(_) | Cause::Late(_) => panic!("{err}"),
    }
}

/// Asserts that `found` is `size` bytes of `data` from `source` on, at `target`, and 0xEE.
fn is_copied(found: &[u8], target: u64, data: &[u8], source: u64, size: u64) {
    let [target, source, size] = [target, source, size].map(|n| usize::try_from(n).unwrap());
    let mut expected = vec![0xEE; found.len()];
    expected[target..][..size].copy_from_slice(&data[source..][..size]);
    if found != expected {
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        panic!("{size} bytes from {source} to {target}: wrong at {wrong:?}");
    }
}
