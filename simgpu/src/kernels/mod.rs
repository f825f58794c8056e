//! The kernels of `kernels/*.cu`, run on the CPU, and what of them matters for time and memory.

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
}

/// What a launch does, with addresses as this process has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Copies; `copy_by_read`, `copy_by_write`.
    Copy { target: u64, source: u64, bytes: u64 },
    /// Loads `source` and adds to the word at `result`; `read_only`.
    Read { source: u64, bytes: u64, result: u64 },
    /// Stores; `write_only`, `fill`.
    Write { target: u64, bytes: u64 },
    /// Loads `found` and writes two words at `result`; `compare`.
    Compare { found: u64, bytes: u64, result: u64 },
    /// Waits until the 32-bit word at `flag` has reached a ticket; `hold`.
    Hold { flag: u64, ticket: u32, timed_out: u64 },
    /// Follows `hops` pointers in `list`, of which nothing is known but its beginning; writes
    /// `hops` 32-bit words at `cycles` and three 64-bit words at `result`; `chase`.
    Chase { list: u64, hops: u64, cycles: u64, result: u64 },
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name in the PTX.
    pub name: &'static str,
    /// The size of each parameter, in bytes.
    pub parameters: &'static [usize],
}

/// What is wrong with a module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadModule {
    /// It is no PTX.
    NotPtx,
    /// It has a kernel that is not one of ours, or one of ours with other parameters.
    Unknown,
}

/// The kernels of a module of PTX.
pub fn module(_ptx: &str) -> Result<Vec<&'static Kernel>, BadModule> {
    Err(BadModule::NotPtx)
}

impl Launch {
    /// What it does.
    pub fn effect(&self) -> Effect {
        Effect::Write { target: 0, bytes: 0 }
    }

    /// Runs it on the calling thread and another (large grids), until it is done. `hop_ns` gives
    /// the latency of one dependent load of an address, for `chase`.
    ///
    /// # Safety
    ///
    /// All that [`Launch::effect`] names is memory of this process that may be touched now.
    pub unsafe fn run(&self, _hop_ns: &(dyn Fn(u64) -> f64 + Sync)) {}
}
