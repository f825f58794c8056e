//! Times by events: a GPU notes when a stream has come to them.

use std::{mem, time::Duration};

use super::PATIENCE;
use crate::{
    ffi::{
        CallError,
        cuda::{self, Context, Event, Memory, Stream},
    },
    transport::{Empty, Error, TryingTo},
    units::Bytes,
};

/// By how much the time between two events may be wrong ("CUDA Driver API", `cuEventElapsedTime`:
/// a resolution of around 0.5 microseconds).
pub(super) const ACCURACY: Duration = Duration::from_nanos(500);

/// What a span of each flow consists of.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) enum Content {
    /// So many operations of each.
    Operations(u64),
    /// None.
    Empty(Empty),
}

/// The time between two events that the GPU has come to.
pub(in crate::transport) fn elapsed(began: &Event, ended: &Event) -> Result<Duration, Error> {
    ended.elapsed_since(began).trying_to("read the time")
}

/// Records the event of the first of `count` streams when all of them have come here. Each waits
/// for two others: one that waited for all would take a microsecond for each.
pub(in crate::transport) fn join<'a>(
    count: usize,
    stream: impl Fn(usize) -> (&'a Stream, &'a Event),
) -> Result<(), CallError> {
    for place in (0..count).rev() {
        let (waiting, ended) = stream(place);
        for other in (2 * place + 1..=2 * place + 2).filter(|other| *other < count) {
            waiting.wait(stream(other).1)?;
        }
        waiting.record(ended)?;
    }
    Ok(())
}

/// The resolution of events: the smallest difference between the times of writes that grow by a
/// little. The times are multiples of the resolution, and vary enough to show it.
pub(super) fn resolution(context: &Context, stream: &Stream) -> Result<Duration, CallError> {
    const WRITES: u64 = 64;
    let buffer = cuda::Buffer::new(context, Bytes::kib(4 * WRITES))?;
    let mut times = Vec::new();
    let (mut before, mut after) = (Event::new(context)?, Event::new(context)?);
    stream.record(&before)?;
    for write in 1..=WRITES {
        stream.set(buffer.slice(Bytes::default(), Bytes::kib(4 * write)), 0)?;
        stream.record(&after)?;
        stream.synchronize(PATIENCE)?;
        times.push(after.elapsed_since(&before)?);
        mem::swap(&mut before, &mut after);
    }
    times.push(Duration::ZERO);
    times.sort_unstable();
    let steps = times.windows(2).map(|pair| pair[1] - pair[0]);
    // A clock that never advances is coarser than all of them.
    Ok(steps.filter(|step| !step.is_zero()).min().unwrap_or(Duration::from_millis(1)))
}
