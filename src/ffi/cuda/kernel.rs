//! g2g's own kernels (`kernels/*.cu`), loaded from the PTX that is part of the program.

use std::{
    ffi::{CStr, c_int, c_void},
    time::Duration,
};

use cudarc::driver::sys::{CUfunc_st, CUfunction_attribute_enum, CUmod_st};

use super::{Context, Slice, Stream, context::Handle};
use crate::{
    ffi::CallError,
    units::{self, Bytes},
};

/// Threads of a block: a multiple of a warp, and two such blocks fit a multiprocessor together.
const THREADS: u32 = 512;

/// Blocks for each multiprocessor. With eight 16-byte accesses of each thread in flight that is
/// 128 KiB; by Little's law the fastest link needs about a tenth of it.
const BLOCKS: u32 = 2;

/// What one access of a thread moves.
const ACCESS: Bytes = Bytes::new(16);

/// Most parameters of a kernel.
const PARAMETERS_MAX: usize = 6;

/// The texts, each with the NUL that the driver looks for.
const COPY: &CStr = ptx(concat!(include_str!("../../../kernels/copy.ptx"), "\0"));
const PATTERN: &CStr = ptx(concat!(include_str!("../../../kernels/pattern.ptx"), "\0"));
const HOLD: &CStr = ptx(concat!(include_str!("../../../kernels/hold.ptx"), "\0"));
const VALUES: &CStr = ptx(concat!(include_str!("../../../kernels/values.ptx"), "\0"));
const CHASE: &CStr = ptx(concat!(include_str!("../../../kernels/chase.ptx"), "\0"));
const SPIN: &CStr = ptx(concat!(include_str!("../../../kernels/spin.ptx"), "\0"));
const MULTICAST: &CStr = ptx(concat!(include_str!("../../../kernels/multicast.ptx"), "\0"));

const fn ptx(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("PTX holds no NUL"),
    }
}

/// The kernels, ready to be launched in streams of one context. Its methods panic if the stream is
/// of another.
#[derive(Debug)]
pub struct Kernels {
    context: Context,
    /// Blocks that fill the GPU.
    blocks_max: u32,
    copy_by_read: Function,
    copy_by_write: Function,
    read_only: Function,
    write_only: Function,
    fill: Function,
    compare: Function,
    hold: Function,
    chase: Function,
    spin: Function,
    give: Function,
    compare_reduced: Function,
    /// Where switches do what they ask for.
    multimem: Option<Multimem>,
    /// What the functions are in.
    _modules: [Module; 6],
}

/// Kernels of multimem instructions.
#[derive(Debug)]
struct Multimem {
    store: Function,
    reduce: Function,
    all_reduce: Function,
    _module: Module,
}

/// What [`Kernels::hold`] waits for, and how it reports a timeout.
#[derive(Clone, Copy, Debug)]
pub struct Hold<'a> {
    /// A 32-bit word of host memory.
    pub flag: Slice<'a>,
    /// What the flag has to reach, in the cyclic order in which 0 follows the largest value.
    pub ticket: u32,
    /// How long it waits for that.
    pub timeout: Duration,
    /// A 32-bit word of host memory that becomes 1 when the time is over.
    pub timed_out: Slice<'a>,
}

/// What [`Kernels::chase`] follows, and where it writes what it found.
#[derive(Clone, Copy, Debug)]
pub struct Chase<'a> {
    /// Words of 64 bits, each with the offset of the next within the list.
    pub list: Slice<'a>,
    /// The offset of the first.
    pub offset: Bytes,
    /// A 32-bit word for each load: the GPU's cycles from the load until its value was there. Its
    /// size says how many loads are done.
    pub cycles: Slice<'a>,
    /// Three 64-bit words: the offset that was reached, all cycles, all nanoseconds.
    pub result: Slice<'a>,
}

/// A reduction, in the numbers of `kernels/values.cu`.
#[derive(Clone, Copy, Debug)]
pub struct Reduced {
    /// What all numbers come from.
    pub seed: u64,
    /// The type's place among all.
    pub data_type: u32,
    /// The size of an element, in bytes.
    pub element: u64,
    /// The reduction's place among all.
    pub reduction: u32,
    /// How many ranks give.
    pub ranks: u32,
    /// How far the bits of a right element may be from those expected.
    pub tolerance: u32,
}

#[derive(Debug)]
struct Module {
    context: Context,
    handle: Handle<CUmod_st>,
}

#[derive(Debug)]
struct Function {
    handle: Handle<CUfunc_st>,
    name: &'static CStr,
}

impl Kernels {
    /// Loads all kernels now: loading one later may wait for the GPU to be idle, which it never is
    /// behind a hold ("CUDA Programming Guide", Lazy Loading, Concurrent Execution).
    ///
    /// # Errors
    ///
    /// The driver's refusal, for instance because it is too old for the PTX.
    pub fn load(context: &Context) -> Result<Self, CallError> {
        let copy = Module::load(context, COPY)?;
        let pattern = Module::load(context, PATTERN)?;
        let hold = Module::load(context, HOLD)?;
        let chase = Module::load(context, CHASE)?;
        let spin = Module::load(context, SPIN)?;
        let values = Module::load(context, VALUES)?;
        let multimem = match context.device().has_multicast()? {
            true => Some(Multimem::load(context)?),
            false => None,
        };
        Ok(Self {
            multimem,
            blocks_max: context.device().multiprocessors()? * BLOCKS,
            copy_by_read: copy.function(c"copy_by_read")?,
            copy_by_write: copy.function(c"copy_by_write")?,
            read_only: copy.function(c"read_only")?,
            write_only: copy.function(c"write_only")?,
            fill: pattern.function(c"fill")?,
            compare: pattern.function(c"compare")?,
            hold: hold.function(c"hold")?,
            chase: chase.function(c"chase")?,
            spin: spin.function(c"spin")?,
            give: values.function(c"give")?,
            compare_reduced: values.function(c"compare_reduced")?,
            _modules: [copy, pattern, hold, chase, spin, values],
            context: context.clone(),
        })
    }

    /// Queues a copy whose accesses to the source are the wide ones: it is on another GPU.
    /// `at_once` is how many kernels, this one among them, the GPU is to run at the same time.
    ///
    /// # Errors
    ///
    /// The driver's refusal, and what went wrong in operations queued earlier.
    ///
    /// # Panics
    ///
    /// The two are not equally long.
    pub fn copy_by_read(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        source: Slice<'_>,
        at_once: u32,
    ) -> Result<(), CallError> {
        assert_eq!(target.size(), source.size(), "a copy is as long as its source");
        let parameters = [target.address(), source.address(), source.size().get()];
        self.launch(&self.copy_by_read, stream, self.grid(source, at_once), &parameters)
    }

    /// Queues a copy whose accesses to the target are the wide ones: it is on another GPU.
    /// `at_once` as in [`Kernels::copy_by_read`].
    ///
    /// # Panics
    ///
    /// As [`Kernels::copy_by_read`].
    pub fn copy_by_write(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        source: Slice<'_>,
        at_once: u32,
    ) -> Result<(), CallError> {
        assert_eq!(target.size(), source.size(), "a copy is as long as its source");
        let parameters = [target.address(), source.address(), source.size().get()];
        self.launch(&self.copy_by_write, stream, self.grid(source, at_once), &parameters)
    }

    /// Queues loading all of `source`. Adds to the 64-bit word at the beginning of `checksum`
    /// each word of `source` xor its key, wrapping, as `pattern::checksum` does. `at_once` as in
    /// [`Kernels::copy_by_read`].
    ///
    /// # Panics
    ///
    /// `checksum` has no room for an aligned word.
    pub fn read_only(
        &self,
        stream: &Stream,
        source: Slice<'_>,
        checksum: Slice<'_>,
        at_once: u32,
    ) -> Result<(), CallError> {
        let parameters = [source.address(), source.size().get(), checksum.value(8)];
        self.launch(&self.read_only, stream, self.grid(source, at_once), &parameters)
    }

    /// Queues storing the pattern of `seed` into `target`. `at_once` as in
    /// [`Kernels::copy_by_read`].
    pub fn write_only(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        seed: u64,
        at_once: u32,
    ) -> Result<(), CallError> {
        let parameters = [target.address(), target.size().get(), seed];
        self.launch(&self.write_only, stream, self.grid(target, at_once), &parameters)
    }

    /// Queues writing the pattern of `seed` into `target`.
    pub fn fill(&self, stream: &Stream, target: Slice<'_>, seed: u64) -> Result<(), CallError> {
        self.fill_flipped(stream, target, seed, 0)
    }

    /// Queues writing what differs from the pattern of `seed` in every byte into `target`.
    pub fn poison(&self, stream: &Stream, target: Slice<'_>, seed: u64) -> Result<(), CallError> {
        self.fill_flipped(stream, target, seed, u64::MAX)
    }

    /// Queues comparing `found` with the pattern of `seed`. `result` holds two 64-bit words: the
    /// count of wrong bytes is added to the first, and the second falls to the offset of the first
    /// wrong byte if that is smaller; before the first comparison they are 0 and the largest.
    ///
    /// # Panics
    ///
    /// `result` has no room for two aligned words.
    pub fn compare(
        &self,
        stream: &Stream,
        found: Slice<'_>,
        seed: u64,
        result: Slice<'_>,
    ) -> Result<(), CallError> {
        let parameters = [found.address(), found.size().get(), seed, result.value(16)];
        self.launch(&self.compare, stream, self.grid(found, 1), &parameters)
    }

    /// Queues waiting until the host lets the stream go on. Nothing that is queued behind it may
    /// need the host before that.
    ///
    /// # Panics
    ///
    /// One of the words is not aligned.
    pub fn hold(&self, stream: &Stream, hold: Hold<'_>) -> Result<(), CallError> {
        let parameters = [
            hold.flag.value(4),
            u64::from(hold.ticket),
            units::nanoseconds(hold.timeout),
            hold.timed_out.value(4),
        ];
        self.launch(&self.hold, stream, Grid { blocks: 1, threads: 1 }, &parameters)
    }

    /// Queues following a list of offsets, each loaded only when the one before has arrived.
    ///
    /// # Panics
    ///
    /// The first word is not inside the list or not aligned, the list is no power of two long, or
    /// the result has no room for three aligned words.
    pub fn chase(&self, stream: &Stream, chase: Chase<'_>) -> Result<(), CallError> {
        chase.list.slice(chase.offset, Bytes::new(8)).value(8);
        // Its size less 8 then has all bits that an offset of a word in it can have.
        assert!(chase.list.size().get().is_power_of_two(), "a list is a power of two long");
        let parameters = [
            chase.list.address(),
            chase.offset.get(),
            chase.cycles.size().get() / 4,
            chase.cycles.value(4),
            chase.result.value(24),
            chase.list.size().get() - 8,
        ];
        self.launch(&self.chase, stream, Grid { blocks: 1, threads: 1 }, &parameters)
    }

    /// Queues spinning on all multiprocessors for `duration`. `result` becomes how long that was,
    /// in two 64-bit words: in cycles of a multiprocessor's clock, and in nanoseconds.
    ///
    /// # Panics
    ///
    /// `result` has no room for two aligned words.
    pub fn spin(
        &self,
        stream: &Stream,
        duration: Duration,
        result: Slice<'_>,
    ) -> Result<(), CallError> {
        let parameters = [units::nanoseconds(duration), result.value(16)];
        let grid = Grid { blocks: self.blocks_max, threads: THREADS };
        self.launch(&self.spin, stream, grid, &parameters)
    }

    /// Queues a kernel that does nothing: what launching one costs.
    pub fn nothing(&self, stream: &Stream) -> Result<(), CallError> {
        self.launch(&self.fill, stream, Grid { blocks: 1, threads: THREADS }, &[0; 4])
    }

    /// Queues storing what `rank` gives to a reduction, element by element into `target`.
    ///
    /// # Panics
    ///
    /// The target is not aligned to whole elements.
    pub fn give(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        reduced: Reduced,
        rank: u32,
    ) -> Result<(), CallError> {
        let parameters = [
            target.value(reduced.element),
            target.size().get() / reduced.element,
            reduced.seed,
            u64::from(reduced.data_type),
            u64::from(reduced.reduction),
            u64::from(rank) << 32 | u64::from(reduced.ranks),
        ];
        self.launch(&self.give, stream, self.grid(target, 1), &parameters)
    }

    /// Queues comparing `found` with what a reduction must have made. `result` holds two 64-bit
    /// words: the count of wrong elements is added to the first, and the second falls to the number
    /// of the first wrong one if that is smaller; before the first comparison they are 0 and the
    /// largest.
    ///
    /// # Panics
    ///
    /// As [`Kernels::give`]; `result` has no room for two aligned words.
    pub fn compare_reduced(
        &self,
        stream: &Stream,
        found: Slice<'_>,
        reduced: Reduced,
        result: Slice<'_>,
    ) -> Result<(), CallError> {
        let parameters = [
            found.value(reduced.element),
            found.size().get() / reduced.element,
            reduced.seed,
            u64::from(reduced.data_type) << 32 | u64::from(reduced.reduction),
            u64::from(reduced.tolerance) << 32 | u64::from(reduced.ranks),
            result.value(16),
        ];
        self.launch(&self.compare_reduced, stream, self.grid(found, 1), &parameters)
    }

    /// Queues storing the pattern of `seed` into `target`, which is behind a multicast address: in
    /// the memory of every GPU. `at_once` as in [`Kernels::copy_by_read`].
    ///
    /// # Panics
    ///
    /// The GPU has no multicast.
    pub fn multicast_store(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        seed: u64,
        at_once: u32,
    ) -> Result<(), CallError> {
        let parameters = [target.address(), target.size().get(), seed];
        self.launch(&self.multimem().store, stream, self.grid(target, at_once), &parameters)
    }

    /// Queues adding up the 32-bit floats of every GPU at `source`, which is behind a multicast
    /// address, into `target`. `at_once` as in [`Kernels::copy_by_read`].
    ///
    /// # Panics
    ///
    /// The two are not equally long, or the GPU has no multicast.
    pub fn multimem_reduce(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        source: Slice<'_>,
        at_once: u32,
    ) -> Result<(), CallError> {
        assert_eq!(target.size(), source.size(), "there is a sum for each element");
        let parameters = [target.address(), source.address(), source.size().get()];
        self.launch(&self.multimem().reduce, stream, self.grid(source, at_once), &parameters)
    }

    /// The same with a `target` behind a multicast address: the sums go to every GPU.
    ///
    /// # Panics
    ///
    /// As [`Kernels::multimem_reduce`].
    pub fn multimem_all_reduce(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        source: Slice<'_>,
        at_once: u32,
    ) -> Result<(), CallError> {
        assert_eq!(target.size(), source.size(), "there is a sum for each element");
        let parameters = [target.address(), source.address(), source.size().get()];
        self.launch(&self.multimem().all_reduce, stream, self.grid(source, at_once), &parameters)
    }

    fn multimem(&self) -> &Multimem {
        self.multimem.as_ref().expect("memory behind a multicast address needs a GPU that has it")
    }

    fn fill_flipped(
        &self,
        stream: &Stream,
        target: Slice<'_>,
        seed: u64,
        flip: u64,
    ) -> Result<(), CallError> {
        let parameters = [target.address(), target.size().get(), seed, flip];
        self.launch(&self.fill, stream, self.grid(target, 1), &parameters)
    }

    /// The grid for going through `memory`, while `at_once` such kernels run.
    fn grid(&self, memory: Slice<'_>, at_once: u32) -> Grid {
        Grid { blocks: blocks(memory.size(), self.blocks_max, at_once), threads: THREADS }
    }

    /// Queues a kernel with its parameters, as wide as the kernel declares them: a narrower one is
    /// the beginning of its word, since all machines that CUDA supports are little-endian.
    fn launch(
        &self,
        function: &Function,
        stream: &Stream,
        grid: Grid,
        parameters: &[u64],
    ) -> Result<(), CallError> {
        assert!(stream.context().is(&self.context), "kernels and stream are of one context");
        let driver = self.context.current()?;
        let mut places = [std::ptr::null_mut::<c_void>(); PARAMETERS_MAX];
        for (place, parameter) in places.iter_mut().zip(parameters) {
            *place = std::ptr::from_ref(parameter).cast_mut().cast();
        }
        // SAFETY: every typed launch above gives the parameters that its kernel declares, with
        // memory that is alive and whole, whose owners wait for this stream before they let go of
        // it. The call copies the parameters before it returns.
        let answer = unsafe {
            driver.calls.cuLaunchKernel(
                function.handle.0,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                0,
                stream.handle(),
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        driver.check(answer, || format!("{} in {stream}", function.name.to_string_lossy()))
    }
}

/// The blocks for going through `size`: every thread has at least one access, up to as many blocks
/// as a GPU has room for. A kernel that fills it lets no other begin before it ends, so kernels
/// that are to run at once divide it among themselves.
fn blocks(size: Bytes, blocks_max: u32, at_once: u32) -> u32 {
    let room = (blocks_max / at_once).max(1);
    let wanted = size.get().div_ceil(ACCESS.get() * u64::from(THREADS)).max(1);
    u32::try_from(wanted).unwrap_or(room).min(room)
}

/// The blocks of a launch, and the threads of each.
struct Grid {
    blocks: u32,
    threads: u32,
}

impl Module {
    fn load(context: &Context, text: &'static CStr) -> Result<Self, CallError> {
        let driver = context.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text is PTX that ends in NUL; `handle` is a live local that the call only
        // writes.
        let answer =
            unsafe { driver.calls.cuModuleLoadData(&raw mut handle, text.as_ptr().cast()) };
        driver.check(answer, || format!("kernels on {}", context.device()))?;
        Ok(Self { context: context.clone(), handle: Handle(handle) })
    }

    fn function(&self, name: &'static CStr) -> Result<Function, CallError> {
        let driver = self.context.current()?;
        let object = || name.to_string_lossy().into_owned();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded, `name` ends in NUL, and `handle` is a live local that the
        // call only writes.
        let answer = unsafe {
            driver.calls.cuModuleGetFunction(&raw mut handle, self.handle.0, name.as_ptr())
        };
        driver.check(answer, object)?;
        // Only the code itself tells this, so it is loaded however lazy the driver is.
        let registers = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NUM_REGS;
        let mut count: c_int = 0;
        // SAFETY: the function's module is loaded; `count` is a live local that the call only
        // writes.
        let answer = unsafe { driver.calls.cuFuncGetAttribute(&raw mut count, registers, handle) };
        driver.check(answer, object)?;
        Ok(Function { handle: Handle(handle), name })
    }
}

impl Multimem {
    fn load(context: &Context) -> Result<Self, CallError> {
        let module = Module::load(context, MULTICAST)?;
        Ok(Self {
            store: module.function(c"multicast_store")?,
            reduce: module.function(c"multimem_reduce")?,
            all_reduce: module.function(c"multimem_all_reduce")?,
            _module: module,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.give_back(|driver| {
            // SAFETY: the handle came from `cuModuleLoadData`, no stream runs its kernels any
            // more, and it is unloaded only here.
            let answer = unsafe { driver.calls.cuModuleUnload(self.handle.0) };
            driver.check(answer, || self.context.device().to_string())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_run_at_once_fit_a_gpu_together_and_fill_it() {
        for at_once in 1..=16 {
            let each = blocks(Bytes::mib(64), 264, at_once);
            assert!(each * at_once <= 264 && (each + 1) * at_once > 264, "{at_once}: {each}");
        }
        assert_eq!(blocks(Bytes::mib(64), 2, 7), 1);
        assert_eq!(blocks(Bytes::new(u64::MAX), 264, 1), 264);
    }

    #[test]
    fn a_small_transfer_has_an_access_for_each_thread() {
        assert_eq!([0, 1, 8192, 8193].map(|size| blocks(Bytes::new(size), 264, 1)), [1, 1, 1, 2]);
    }
}
