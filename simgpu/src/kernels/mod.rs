//! The kernels of `kernels/*.cu`, run on the CPU, and what of them matters for time and memory.
//!
//! They are the same sources that a GPU runs, compiled as C++ by build.rs with `cpu.h` in the place
//! of CUDA. This module knows their names and parameters, and nothing of streams or of time.

mod part;

use std::ffi::{CString, c_char, c_int, c_void};

pub(crate) use part::{Wrong, compare as compare_part, write};

/// A launch: the kernel's grid, its block, and its parameters as the driver takes them.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// The bytes of each parameter, in order.
    pub parameters: Vec<Vec<u8>>,
    /// What is behind the multicast address among the parameters, if one is.
    pub multicast: Multicast,
}

/// What is behind the addresses of a multicast mapping, as this process has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Multicast {
    /// The first address.
    pub start: u64,
    /// The GPUs with memory behind it.
    pub gpus: Vec<u32>,
    /// Where the memory of each begins.
    pub members: Vec<u64>,
}

/// What a launch does, with addresses as this process has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are parameters, described in kernels/*.cu")]
pub enum Effect {
    /// Copies; `copy_by_read`, `copy_by_write`.
    Copy { target: u64, source: u64, bytes: u64 },
    /// Loads `source` and adds to the word at `result`; `read_only`.
    Read { source: u64, bytes: u64, result: u64 },
    /// Stores; `write_only`, `fill`, `give`.
    Write { target: u64, bytes: u64, what: Written },
    /// Loads `found` and writes two words at `result`; `compare`, `compare_reduced`.
    Compare { found: u64, bytes: u64, expected: Expected, result: u64 },
    /// Waits until the 32-bit word at `flag` has reached a ticket; `hold`.
    Hold { flag: u64, ticket: u32, timed_out: u64 },
    /// Follows `hops` pointers in `list`, of which nothing is known but its beginning; writes
    /// `hops` 32-bit words at `cycles` and three 64-bit words at `result`; `chase`.
    Chase { list: u64, hops: u64, cycles: u64, result: u64 },
    /// Lasts for `duration_ns`, and writes two 64-bit words at `result`; `spin`.
    Spin { duration_ns: u64, result: u64 },
    /// Stores the pattern of a seed behind a multicast address; `multicast_store`.
    StoreInAll { target: u64, bytes: u64 },
    /// Adds up what is behind a multicast address, and stores the sums at `target`, or, with
    /// `to_all`, behind that, which is a multicast address too; `multimem_reduce`,
    /// `multimem_all_reduce`.
    ReduceAll { target: u64, source: u64, bytes: u64, to_all: bool },
}

/// What a kernel stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are parameters, described in kernels/*.cu")]
pub enum Written {
    /// The pattern of a seed, each word xor `flip`.
    Pattern { seed: u64, flip: u64 },
    /// What a rank gives to a reduction.
    Given { values: Values, rank: u32 },
}

/// What a kernel compares memory with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are parameters, described in kernels/*.cu")]
pub enum Expected {
    /// The pattern of a seed.
    Pattern { seed: u64 },
    /// What a reduction of given values leaves, give or take `tolerance` in an element's bits.
    Reduced { values: Values, tolerance: u32 },
}

/// The values that ranks give to a reduction, as `kernels/values.cu` numbers types and operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are parameters, described in kernels/*.cu")]
pub struct Values {
    pub data_type: u32,
    pub reduction: u32,
    pub ranks: u32,
    pub seed: u64,
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name in the PTX.
    pub name: &'static str,
    /// The size of each parameter, in bytes.
    pub parameters: &'static [usize],
    effect: fn(&Launch) -> Effect,
}

/// What is wrong with a module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadModule {
    /// It is no PTX.
    NotPtx,
    /// It has a kernel that is not one of ours, or one of ours with other parameters.
    Unknown,
}

static KERNELS: [Kernel; 14] = [
    Kernel { name: "copy_by_read", parameters: &[8, 8, 8], effect: copy },
    Kernel { name: "copy_by_write", parameters: &[8, 8, 8], effect: copy },
    Kernel { name: "read_only", parameters: &[8, 8, 8], effect: read },
    Kernel { name: "write_only", parameters: &[8, 8, 8], effect: write_only },
    Kernel { name: "fill", parameters: &[8, 8, 8, 8], effect: fill },
    Kernel { name: "compare", parameters: &[8, 8, 8, 8], effect: compare },
    Kernel { name: "give", parameters: &[8, 8, 8, 4, 4, 8], effect: give },
    Kernel { name: "compare_reduced", parameters: &[8, 8, 8, 8, 8, 8], effect: compare_reduced },
    Kernel { name: "hold", parameters: &[8, 4, 8, 8], effect: hold },
    Kernel { name: "chase", parameters: &[8, 8, 8, 8, 8, 8], effect: chase },
    Kernel { name: "spin", parameters: &[8, 8], effect: spin },
    Kernel { name: "multicast_store", parameters: &[8, 8, 8], effect: store_in_all },
    Kernel { name: "multimem_reduce", parameters: &[8, 8, 8], effect: reduce_all },
    Kernel { name: "multimem_all_reduce", parameters: &[8, 8, 8], effect: all_reduce },
];

/// Bytes from which a launch is worth a second thread: starting one takes some 50 µs.
const SHARED_BYTES: u64 = 4 << 20;

/// The kernels of a module of PTX.
///
/// # Errors
///
/// [`BadModule`] if the text is no PTX, or has a kernel that is not one of ours.
pub fn module(ptx: &str) -> Result<Vec<&'static Kernel>, BadModule> {
    let text: String = ptx.lines().flat_map(|line| [before(line, "//"), "\n"]).collect();
    // A module begins with its version (PTX ISA, "PTX Module Directives").
    if !text.trim_start().starts_with(".version") {
        return Err(BadModule::NotPtx);
    }
    text.split(".entry").skip(1).map(kernel).collect()
}

/// The kernel whose declaration begins with `text`: its name and, in parentheses, its parameters.
fn kernel(text: &str) -> Result<&'static Kernel, BadModule> {
    let (name, rest) = text.split_once('(').ok_or(BadModule::NotPtx)?;
    let (parameters, _) = rest.split_once(')').ok_or(BadModule::NotPtx)?;
    let sizes: Vec<usize> =
        parameters.split(',').map(size).collect::<Option<_>>().ok_or(BadModule::Unknown)?;
    KERNELS
        .iter()
        .find(|kernel| kernel.name == name.trim() && kernel.parameters == sizes)
        .ok_or(BadModule::Unknown)
}

/// The size of a parameter such as `.param .u64 name`; none if it is no integer.
fn size(parameter: &str) -> Option<usize> {
    match parameter.split_whitespace().collect::<Vec<_>>()[..] {
        [".param", ".u32", _] => Some(4),
        [".param", ".u64", _] => Some(8),
        _ => None,
    }
}

fn before<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split_once(mark).map_or(text, |(before, _)| before)
}

fn copy(launch: &Launch) -> Effect {
    let [target, source, bytes] = launch.integers();
    Effect::Copy { target, source, bytes }
}

fn read(launch: &Launch) -> Effect {
    let [source, bytes, result] = launch.integers();
    Effect::Read { source, bytes, result }
}

fn write_only(launch: &Launch) -> Effect {
    let [target, bytes, seed] = launch.integers();
    Effect::Write { target, bytes, what: Written::Pattern { seed, flip: 0 } }
}

fn fill(launch: &Launch) -> Effect {
    let [target, bytes, seed, flip] = launch.integers();
    Effect::Write { target, bytes, what: Written::Pattern { seed, flip } }
}

fn compare(launch: &Launch) -> Effect {
    let [found, bytes, seed, result] = launch.integers();
    Effect::Compare { found, bytes, expected: Expected::Pattern { seed }, result }
}

fn give(launch: &Launch) -> Effect {
    let [target, count, seed, data_type, reduction, rank_of_ranks] = launch.integers();
    let [(rank, ranks), (_, data_type), (_, reduction)] =
        [rank_of_ranks, data_type, reduction].map(halves);
    let values = Values { data_type, reduction, ranks, seed };
    let bytes = count * values.element_bytes();
    Effect::Write { target, bytes, what: Written::Given { values, rank } }
}

fn compare_reduced(launch: &Launch) -> Effect {
    let [found, count, seed, type_and_reduction, ranks, result] = launch.integers();
    let ((data_type, reduction), (tolerance, ranks)) = (halves(type_and_reduction), halves(ranks));
    let values = Values { data_type, reduction, ranks, seed };
    let bytes = count * values.element_bytes();
    Effect::Compare { found, bytes, expected: Expected::Reduced { values, tolerance }, result }
}

/// The upper and the lower half of a word.
fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, (word & 0xFFFF_FFFF) as u32)
}

impl Values {
    /// The size of an element.
    pub fn element_bytes(&self) -> u64 {
        match self.data_type {
            0 | 1 | 10 | 11 => 1,
            6 | 9 => 2,
            2 | 3 | 7 => 4,
            _ => 8,
        }
    }
}

fn hold(launch: &Launch) -> Effect {
    let [flag, ticket, _timeout_ns, timed_out] = launch.integers();
    let ticket = u32::try_from(ticket).expect("a parameter of four bytes");
    Effect::Hold { flag, ticket, timed_out }
}

fn chase(launch: &Launch) -> Effect {
    let [list, _offset, hops, cycles, result] = launch.integers();
    Effect::Chase { list, hops, cycles, result }
}

fn spin(launch: &Launch) -> Effect {
    let [duration_ns, result] = launch.integers();
    Effect::Spin { duration_ns, result }
}

fn store_in_all(launch: &Launch) -> Effect {
    let [target, bytes, _seed] = launch.integers();
    Effect::StoreInAll { target, bytes }
}

fn reduce_all(launch: &Launch) -> Effect {
    let [target, source, bytes] = launch.integers();
    Effect::ReduceAll { target, source, bytes, to_all: false }
}

fn all_reduce(launch: &Launch) -> Effect {
    let [target, source, bytes] = launch.integers();
    Effect::ReduceAll { target, source, bytes, to_all: true }
}

impl Launch {
    /// What it does.
    ///
    /// # Panics
    ///
    /// If the sizes of the parameters are not those of the kernel.
    pub fn effect(&self) -> Effect {
        self.check_parameters();
        (self.kernel.effect)(self)
    }

    /// Runs it on the calling thread and another (large grids), until it is done. `hop_ns` gives
    /// the latency of one dependent load of an address, for `chase`.
    ///
    /// # Safety
    ///
    /// All that [`Launch::effect`] names is memory of this process that may be touched now, and so
    /// is every element that a chase comes to. No number of blocks or threads is zero.
    ///
    /// # Panics
    ///
    /// If the sizes of the parameters are not those of the kernel.
    pub unsafe fn run(&self, hop_ns: &(dyn Fn(u64) -> f64 + Sync)) {
        let bytes = match self.effect() {
            Effect::Copy { bytes, .. }
            | Effect::Read { bytes, .. }
            | Effect::Write { bytes, .. }
            | Effect::Compare { bytes, .. }
            | Effect::StoreInAll { bytes, .. }
            | Effect::ReduceAll { bytes, .. } => bytes,
            Effect::Hold { .. } | Effect::Chase { .. } | Effect::Spin { .. } => 0,
        };
        let [blocks, y, z] = self.grid;
        let middle = if bytes < SHARED_BYTES { 0 } else { blocks / 2 };
        // The kernels use one dimension: along the others, each does the same once more.
        let times = [y, z, self.block[1], self.block[2]].map(u64::from).iter().product();
        for _ in 0u64..times {
            std::thread::scope(|scope| {
                if middle > 0 {
                    // SAFETY: the caller's promise; the scope ends after the blocks have run.
                    scope.spawn(|| unsafe { self.run_blocks(0, middle, hop_ns) });
                }
                // SAFETY: the caller's promise.
                unsafe { self.run_blocks(middle, blocks, hop_ns) };
            });
        }
    }

    /// # Safety
    ///
    /// As [`Launch::run`], whose check of the parameters it also counts on.
    unsafe fn run_blocks(&self, first: u32, last: u32, hop_ns: &(dyn Fn(u64) -> f64 + Sync)) {
        let name = CString::new(self.kernel.name).expect("a name of the table above");
        let parameters: Vec<*const u8> =
            self.parameters.iter().map(|bytes| bytes.as_ptr()).collect();
        let launch = CpuLaunch {
            kernel: name.as_ptr(),
            parameters: parameters.as_ptr(),
            grid: self.grid[0],
            block: self.block[0],
            latency_ns,
            context: (&raw const hop_ns).cast(),
            multicast: CpuMulticast {
                start: self.multicast.start,
                members: self.multicast.members.as_ptr(),
                count: self.multicast.members.len() as u64,
            },
        };
        // SAFETY: the pointers are of locals and of `self`, which outlive the call; each parameter
        // has the size that the kernel's function reads; what the kernel touches is the caller's
        // promise.
        let code = unsafe { simgpu_run_blocks(&raw const launch, first, last) };
        assert_eq!(code, 0, "{} is not in host.cpp", self.kernel.name);
    }

    fn check_parameters(&self) {
        let sizes = self.parameters.iter().map(Vec::len);
        assert!(sizes.eq(self.kernel.parameters.iter().copied()), "parameters of {self:?}");
    }

    /// The first parameters.
    fn integers<const COUNT: usize>(&self) -> [u64; COUNT] {
        std::array::from_fn(|place| {
            let bytes = &self.parameters[place];
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        })
    }
}

/// `SimgpuLaunch` in host.cpp.
#[repr(C)]
struct CpuLaunch {
    kernel: *const c_char,
    parameters: *const *const u8,
    grid: u32,
    block: u32,
    latency_ns: unsafe extern "C" fn(*const c_void, u64) -> f64,
    context: *const c_void,
    multicast: CpuMulticast,
}

/// `SimgpuMulticast` in host.cpp.
#[repr(C)]
struct CpuMulticast {
    start: u64,
    members: *const u64,
    count: u64,
}

unsafe extern "C" {
    /// host.cpp: runs the blocks from `first` up to, but not, `last`; 1 if the kernel is unknown.
    fn simgpu_run_blocks(launch: *const CpuLaunch, first: u32, last: u32) -> c_int;
}

/// Asks the closure behind `context`, which is the `hop_ns` of [`Launch::run_blocks`].
unsafe extern "C" fn latency_ns(context: *const c_void, address: u64) -> f64 {
    let hop_ns = context.cast::<&(dyn Fn(u64) -> f64 + Sync)>();
    // SAFETY: `run_blocks` passes a pointer to its own parameter, and is waiting for this call.
    let hop_ns = unsafe { *hop_ns };
    hop_ns(address)
}

#[cfg(test)]
mod tests;
