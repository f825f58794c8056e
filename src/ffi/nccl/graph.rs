//! Collectives that are captured once and launched again and again.

use super::{Communicator, Group, Library};
use crate::ffi::{
    CallError,
    cuda::{self, Capture, Stream},
};

/// Groups of operations of this process's ranks, as a graph for each of their streams.
///
/// It borrows the memory that they name, so that it is there at each launch; what is launched is
/// then the streams' work. NCCL does not let go of a communicator before its graphs are gone: drop
/// this first.
#[derive(Debug)]
pub struct Graph<'a> {
    parts: Vec<(&'a Stream, cuda::Graph)>,
    communicators: Vec<&'a Communicator>,
}

impl<'a> Graph<'a> {
    /// Captures `groups` groups, each with what `queue` puts into it by its number, in these
    /// streams.
    ///
    /// # Errors
    ///
    /// The driver cannot ([`cuda::Feature::Graphs`]), its refusal or NCCL's; the communicators can
    /// then only be aborted.
    ///
    /// # Panics
    ///
    /// `queue` uses one of the streams for something else.
    pub fn capture(
        library: &'static Library,
        streams: &[&'a Stream],
        groups: u64,
        mut queue: impl FnMut(&mut Group<'a>, u64) -> Result<(), CallError>,
    ) -> Result<Self, CallError> {
        let captures =
            streams.iter().map(|stream| Capture::begin(stream)).collect::<Result<Vec<_>, _>>()?;
        let mut communicators: Vec<&'a Communicator> = Vec::new();
        let queued = (0..groups).try_for_each(|number| {
            let mut group = Group::captured(library)?;
            let queued = queue(&mut group, number);
            communicators.extend(group.communicators());
            queued.and(group.end())
        });
        // Every capture ends, also after a failure.
        let graphs: Vec<Result<cuda::Graph, CallError>> =
            captures.into_iter().map(Capture::end).collect();
        let graphs = queued.and_then(|()| graphs.into_iter().collect::<Result<Vec<_>, _>>());
        communicators.sort_unstable_by_key(|one| std::ptr::from_ref(*one).addr());
        communicators.dedup_by(|one, other| std::ptr::eq(*one, *other));
        match graphs {
            Ok(graphs) => {
                Ok(Self { parts: streams.iter().copied().zip(graphs).collect(), communicators })
            }
            Err(err) => {
                communicators.iter().for_each(|communicator| communicator.abort());
                Err(err)
            }
        }
    }

    /// Queues all of it in the streams.
    pub fn launch(&self) -> Result<(), CallError> {
        for communicator in &self.communicators {
            communicator.live("cuGraphLaunch")?;
        }
        self.parts.iter().try_for_each(|(stream, graph)| graph.launch(stream))
    }
}
