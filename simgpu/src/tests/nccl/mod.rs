//! Collectives through the interface's own functions.

#[allow(clippy::cast_possible_truncation, reason = "what is cast is small")]
#[allow(clippy::cast_sign_loss, reason = "what is cast is not negative")]
mod data;
mod faults;
mod graphs;
mod logs;
mod processes;
mod time;

use super::*;
use crate::{
    cuda::abi::*,
    nccl::{self, DataType, Function, UniqueId},
};

/// As [`super::machine`], with so many GPUs.
fn machine_of(gpus: u32) -> Machine {
    let pairs = (0..gpus).flat_map(|source| {
        (0..gpus).filter(move |target| *target != source).map(move |target| pair(source, target))
    });
    Machine { gpus: (0..gpus).map(gpu).collect(), pairs: pairs.collect(), ..machine() }
}

/// The ranks of one communicator in this process, each with a GPU and a stream.
struct Ranks {
    communicators: Vec<u64>,
    streams: Vec<u64>,
    contexts: Vec<u64>,
}

impl Ranks {
    /// On all GPUs of a machine that this process begins.
    fn begin(machine: Machine) -> Self {
        let contexts = begin(machine);
        Self::on(contexts)
    }

    fn on(contexts: Vec<u64>) -> Self {
        let mut communicators = vec![0; contexts.len()];
        let count = i32::try_from(contexts.len()).unwrap();
        let target = Out::to(communicators.as_mut_ptr());
        good(nccl::ncclCommInitAll(target, count, In::of(std::ptr::null())));
        let streams = contexts.iter().map(|&context| {
            on(context);
            stream()
        });
        let streams = streams.collect();
        on(contexts[0]);
        Self { communicators, streams, contexts }
    }

    fn count(&self) -> usize {
        self.communicators.len()
    }

    /// Device memory of every rank.
    fn allocate(&self, bytes: usize) -> Vec<u64> {
        let places = self.contexts.iter().map(|&context| {
            on(context);
            allocate(bytes)
        });
        let places = places.collect();
        on(self.contexts[0]);
        places
    }

    /// Calls something for each rank, as one group.
    fn group(&self, call: impl Fn(usize) -> i32) -> i32 {
        good(nccl::ncclGroupStart());
        let codes: Vec<i32> = (0..self.count()).map(call).collect();
        let ended = nccl::ncclGroupEnd();
        codes.into_iter().find(|code| *code != 0).unwrap_or(ended)
    }

    fn synchronize(&self) {
        for &stream in &self.streams {
            ok(cuStreamSynchronize(stream));
        }
    }
}

#[track_caller]
fn good(code: i32) {
    assert_eq!(code, 0, "{}", last_error());
}

fn last_error() -> String {
    let text = nccl::ncclGetLastError(0);
    // SAFETY: the function gives a C string.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

fn asynchronous(communicator: u64) -> i32 {
    let mut error = -1;
    good(nccl::ncclCommGetAsyncError(communicator, Out::to(&mut error)));
    error
}

/// A collective by its function, as each rank calls it.
#[derive(Clone, Copy)]
struct Called {
    function: Function,
    count: usize,
    data_type: DataType,
    operation: u32,
    root: i32,
}

impl Called {
    fn call(&self, send: u64, receive: u64, communicator: u64, stream: u64) -> i32 {
        let Self { function, count, data_type, operation, root } = *self;
        let data_type = data_type as u32;
        match function {
            Function::AllReduce => nccl::ncclAllReduce(
                send,
                receive,
                count,
                data_type,
                operation,
                communicator,
                stream,
            ),
            Function::AllGather => {
                nccl::ncclAllGather(send, receive, count, data_type, communicator, stream)
            }
            Function::ReduceScatter => nccl::ncclReduceScatter(
                send,
                receive,
                count,
                data_type,
                operation,
                communicator,
                stream,
            ),
            Function::Broadcast => {
                nccl::ncclBroadcast(send, receive, count, data_type, root, communicator, stream)
            }
            Function::Reduce => nccl::ncclReduce(
                send,
                receive,
                count,
                data_type,
                operation,
                root,
                communicator,
                stream,
            ),
            Function::AlltoAll => {
                nccl::ncclAlltoAll(send, receive, count, data_type, communicator, stream)
            }
            Function::Gather => {
                nccl::ncclGather(send, receive, count, data_type, root, communicator, stream)
            }
            Function::Scatter => {
                nccl::ncclScatter(send, receive, count, data_type, root, communicator, stream)
            }
            Function::SendRecv => unreachable!("messages are called otherwise"),
        }
    }
}
