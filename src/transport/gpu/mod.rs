//! What all transports between and within GPUs have in common: contexts and kernels that are
//! ready, buffers that are filled and verified, and transfers that are timed by events.

mod buffer;
mod chase;
mod copier;
mod copy;
mod direct;
mod endpoints;
mod kept;
mod start;
mod team;
mod timing;
mod warmth;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

pub(super) use buffer::{Buffer, Side};
pub(super) use copier::Copier;
pub(super) use endpoints::{Endpoints, end};
pub(super) use start::Start;
pub(super) use timing::{Content, elapsed, join};
pub use warmth::{clock_rose, warm};

use self::kept::Shelf;
use super::{Clock, Error, Mismatch, RESOLUTIONS_MIN, Support, TryingTo, pattern, values::Values};
use crate::{
    ffi::{
        CallError,
        cuda::{self, Context, Device, Event, Feature, HostMemory, Kernels, Memory, Stream},
    },
    plan::{Case, Gpu, Rank, topology::Topology},
    units::Bytes,
    world::World,
};

/// The longest that queued work may take. After that the GPU counts as hung.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The most entries that are queued on a stream behind a hold: copies, kernels, and records of
/// and waits for events. A stream holds about 1024 (forum of NVIDIA's developers, topic 220629).
/// When it is full, the next call waits for room, and would wait for a GPU that waits for the host.
pub(super) const ENTRIES_MAX: u64 = 256;

/// The most operations of one sample on each stream.
const OPERATIONS_MAX: u64 = 128;

/// The GPUs of this process. Each is made ready at its first use, and kept.
#[derive(Debug)]
pub struct Gpus {
    devices: Vec<Device>,
    pub(super) topology: Topology,
    ready: RefCell<BTreeMap<Gpu, Rc<Ready>>>,
    /// Those that the run uses.
    used: RefCell<BTreeSet<Gpu>>,
}

/// A GPU that is ready to work.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) context: Context,
    pub(super) kernels: Kernels,
    /// For work that is not timed.
    pub(super) stream: Stream,
    /// Kernels write their answers here, because atomics on host memory are slow or unsupported on
    /// some links. The host reads them in `copied`.
    answers: cuda::Buffer,
    copied: RefCell<HostMemory>,
    /// For buffers of cases.
    buffers: Shelf<cuda::Buffer>,
    /// For the flags that start their work.
    flags: Shelf<HostMemory>,
    /// The resolution of its events.
    pub(super) resolution: Duration,
    warmth: warmth::Warmth,
}

impl Gpus {
    /// The GPUs of this process, if there is a driver that works; otherwise what to do about it.
    pub(super) fn new(topology: &Topology) -> Result<Self, String> {
        let driver = cuda::driver().map_err(|err| err.to_string())?;
        let devices = driver.devices().map_err(|err| err.to_string())?;
        Ok(Self {
            devices,
            topology: topology.clone(),
            ready: RefCell::default(),
            used: RefCell::default(),
        })
    }

    /// The device of a GPU.
    pub(super) fn device(&self, gpu: Gpu) -> Result<Device, Error> {
        let found = self.devices.iter().find(|device| device.ordinal() == gpu.0).copied();
        found.ok_or(Error::Disagreement("a rank does not see a GPU of the case"))
    }

    /// A GPU, ready to work.
    pub(super) fn ready(&self, gpu: Gpu) -> Result<Rc<Ready>, Error> {
        if let Some(ready) = self.ready.borrow().get(&gpu) {
            return Ok(Rc::clone(ready));
        }
        let ready = Ready::new(self.device(gpu)?);
        let ready = Rc::new(ready.trying_to(&format!("make GPU {} ready", gpu.0))?);
        self.ready.borrow_mut().insert(gpu, Rc::clone(&ready));
        Ok(ready)
    }

    /// A GPU that is ready already, or else the first.
    pub(super) fn any(&self) -> Result<Rc<Ready>, Error> {
        let ready = self.ready.borrow().keys().next().copied();
        let gpu = ready.or_else(|| Some(Gpu(self.devices.first()?.ordinal())));
        self.ready(gpu.ok_or(Error::Disagreement("a rank sees no GPU"))?)
    }

    /// Why the driver lacks `feature`, if so.
    pub(super) fn lack(feature: Feature) -> Option<String> {
        cuda::driver().ok()?.lacks(feature).map(|missing| missing.to_string())
    }

    /// Whether the buffers of `rank` fit into its GPUs; `each` is what one end takes.
    pub(super) fn room(&self, case: &Case, rank: Rank, each: Bytes) -> Result<Support, Error> {
        let mut wanted: BTreeMap<Gpu, Bytes> = BTreeMap::new();
        for gpu in case.ends().filter(|end| end.rank == rank).filter_map(|end| end.gpu()) {
            let sum = wanted.entry(gpu).or_default();
            *sum = sum.plus(each);
        }
        if wanted.is_empty() {
            // A rank with a part may need memory of a GPU that this one has too.
            self.ready.borrow().values().for_each(|ready| ready.buffers.clear());
        }
        for (gpu, wanted) in wanted {
            if let Some(lack) = self.lack_of_memory(gpu, wanted, "")? {
                return Ok(Support::No(lack));
            }
        }
        Ok(Support::Yes)
    }

    /// Why the buffers (`whose` says of whom) do not fit into `gpu` with the `wanted` bytes that
    /// they need, if so.
    pub(super) fn lack_of_memory(
        &self,
        gpu: Gpu,
        wanted: Bytes,
        whose: &str,
    ) -> Result<Option<String>, Error> {
        let ready = self.ready(gpu)?;
        let free = || ready.context.free_memory().trying_to("ask for free memory");
        if wanted > free()? {
            ready.buffers.clear();
        }
        let free = free()?;
        let sentence = || {
            format!(
                "the buffers{whose} need {} of GPU {} but {} are free: give smaller --sizes",
                wanted.rounded(),
                gpu.0,
                free.rounded()
            )
        };
        Ok((wanted > free).then(sentence))
    }
}

/// The clock of a case: the coarsest of the ranks' clocks, for as many operations as all allow.
/// Every rank calls it, so every rank also learns here if another one could not prepare its part.
pub(super) fn agree_on_clock(own: Option<Clock>, world: &mut World) -> Result<Clock, Error> {
    let coarser = |one: Clock, other: Clock| Clock {
        resolution: one.resolution.max(other.resolution),
        sample_time_min: one.sample_time_min.max(other.sample_time_min),
        operations_max: one.operations_max.min(other.operations_max),
        ..one
    };
    let clock = world.agree(own, |all| all.into_iter().flatten().reduce(coarser))?;
    clock.ok_or(Error::Disagreement("no rank does the work of the case"))
}

impl Ready {
    fn new(device: Device) -> Result<Self, CallError> {
        let context = Context::retain(device)?;
        let stream = Stream::new(&context)?;
        let resolution = timing::resolution(&context, &stream)?;
        let ready = Self {
            kernels: Kernels::load(&context)?,
            answers: cuda::Buffer::new(&context, Bytes::kib(4))?,
            copied: RefCell::new(HostMemory::new(&context, Bytes::kib(4))?),
            buffers: Shelf::default(),
            flags: Shelf::default(),
            stream,
            resolution,
            context,
            warmth: warmth::Warmth::default(),
        };
        // While nothing else is under way: a first use waits until the GPU is at rest.
        ready.spin(Duration::ZERO)?;
        ready.kernels.nothing(&ready.stream)?;
        ready.stream.synchronize(PATIENCE)?;
        Ok(ready)
    }

    /// The clock of its events, for samples of at least `sample_time_min`.
    pub(super) fn clock(&self, sample_time_min: Duration) -> Clock {
        let (resolution, accuracy) = (self.resolution, timing::ACCURACY);
        let finest = resolution.max(accuracy).saturating_mul(RESOLUTIONS_MIN);
        Clock {
            resolution,
            accuracy,
            sample_time_min: sample_time_min.max(finest),
            stream_time_min: Duration::ZERO,
            operations_max: OPERATIONS_MAX,
            operations_step: 1,
            is_streaming: false,
        }
    }

    /// A stream of this GPU, for what is timed.
    pub(super) fn new_stream(&self) -> Result<Stream, Error> {
        Stream::new(&self.context).trying_to("make a stream")
    }

    pub(super) fn events(&self, count: usize) -> Result<Vec<Event>, Error> {
        let events: Result<_, CallError> = (0..count).map(|_| Event::new(&self.context)).collect();
        events.trying_to("make events")
    }

    /// Compares memory of this GPU with the pattern of `seed`. The mismatch names `rank` as the
    /// owner.
    pub(super) fn compare(
        &self,
        memory: cuda::Slice<'_>,
        seed: u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let wrong = self.wrong(memory, Bytes::new(1), |kernels, stream, answers| {
            kernels.compare(stream, memory, seed, answers)
        })?;
        Ok(wrong.map(|Wrong { count, index: offset, found }| {
            let (expected, [found, ..]) = (pattern::byte(seed, offset), found);
            Mismatch { rank: rank.0, offset, expected, found, count }
        }))
    }

    /// Compares memory of this GPU, element by element, with the result of a reduction of `values`
    /// of `seed`. The mismatch names `rank` as the owner, the first wrong byte, and the number of
    /// bytes of all wrong elements.
    pub(super) fn compare_reduced(
        &self,
        memory: cuda::Slice<'_>,
        values: &Values,
        seed: u64,
        rank: Rank,
    ) -> Result<Option<Mismatch>, Error> {
        let reduced = values.reduced(seed);
        let wrong =
            self.wrong(memory, Bytes::new(reduced.element), |kernels, stream, answers| {
                kernels.compare_reduced(stream, memory, reduced, answers)
            })?;
        Ok(wrong.map(|Wrong { count, index, found }| {
            let expected = values.result(seed, index).to_le_bytes();
            let place = (0..8).find(|&place| found[place] != expected[place]).unwrap_or(0);
            let offset = reduced.element * index + place as u64;
            let (expected, found) = (expected[place], found[place]);
            Mismatch { rank: rank.0, offset, expected, found, count: count * reduced.element }
        }))
    }

    /// Runs the kernel that `queue` queues, which counts the wrong elements of `memory`, each of
    /// `size`, and finds the first.
    fn wrong(
        &self,
        memory: cuda::Slice<'_>,
        size: Bytes,
        queue: impl FnOnce(&Kernels, &Stream, cuda::Slice<'_>) -> Result<(), CallError>,
    ) -> Result<Option<Wrong>, Error> {
        let [count, index] = self.ask([0, u64::MAX], queue).trying_to("verify a buffer")?;
        if count == 0 {
            return Ok(None);
        }
        let first = memory.slice(size.times(index), size);
        let [found] = self
            .ask([0], |_, stream, answers| {
                stream.copy(answers.slice(Bytes::default(), size), first)
            })
            .trying_to("verify a buffer")?;
        Ok(Some(Wrong { count, index, found: found.to_ne_bytes() }))
    }

    /// Sets the answers to `before`, queues the work of `queue`, waits for it and returns the
    /// answers.
    fn ask<const WORDS: usize>(
        &self,
        before: [u64; WORDS],
        queue: impl FnOnce(&Kernels, &Stream, cuda::Slice<'_>) -> Result<(), CallError>,
    ) -> Result<[u64; WORDS], CallError> {
        let mut copied = self.copied.borrow_mut();
        let (places, _) = copied.bytes(PATIENCE)?.as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(before) {
            *place = word.to_ne_bytes();
        }
        let size = Bytes::of_len(8 * WORDS);
        let answers = self.answers.slice(Bytes::default(), size);
        self.stream.copy(answers, copied.slice(Bytes::default(), size))?;
        queue(&self.kernels, &self.stream, answers)?;
        self.stream.copy(copied.slice(Bytes::default(), size), answers)?;
        self.stream.synchronize(PATIENCE)?;
        let (places, _) = copied.bytes(PATIENCE)?.as_chunks::<8>();
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(places) {
            *word = u64::from_ne_bytes(*place);
        }
        Ok(words)
    }
}

/// The wrong elements that a kernel has found.
struct Wrong {
    /// How many elements.
    count: u64,
    /// The first of them.
    index: u64,
    /// What it holds.
    found: [u8; 8],
}
