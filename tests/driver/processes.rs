//! Memory of one process in another.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
};

use g2g::ffi::cuda::{Descriptor, IpcHandle};
use serde::{Deserialize, Serialize};

use super::*;

on_both_machines! {
    one GPU: [
        another_process_opens_memory_by_handle
        another_process_opens_memory_by_descriptor
        memory_is_opened_by_handle_in_other_processes_only
        a_descriptor_that_is_not_there_is_refused
    ]
    two GPUs: [
        memory_made_for_two_gpus_is_reached_by_both
    ]
}

/// What the other process is to do: to find the pattern of seed 1 and to leave that of seed 2.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    /// The simulated machine's state, if it is on one.
    state: Option<String>,
    memory: Shared,
}

#[derive(Debug, Serialize, Deserialize)]
enum Shared {
    Handle(IpcHandle),
    Descriptor(Descriptor),
}

/// Odd, so that it ends in the middle of a word and of a page.
const SIZE: Bytes = Bytes::new((3 << 20) + 5);

/// Hands `shared` to another process of this program and waits until that has done its part.
fn hand_over(shared: Shared) {
    let state = simulation::library().map(|_| state().to_owned());
    let task = serde_json::to_vec(&Task { state, memory: shared }).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["processes::the_other_process", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&task).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && text[0].contains("1 passed"), "{}", text.concat());
}

/// Without a task there is nothing to do: all ignored tests were asked for.
#[test]
#[ignore = "a part of the others"]
fn the_other_process() {
    let mut task = Vec::new();
    std::io::stdin().read_to_end(&mut task).unwrap();
    if task.is_empty() {
        return;
    }
    let Task { state, memory } = serde_json::from_slice(&task).unwrap();
    if let Some(state) = state {
        simulation::join(&state, 1).unwrap();
    }
    let gpus = gpus();
    // Another GPU than the memory's, where there is one.
    let context = gpus.last().unwrap();
    match memory {
        Shared::Handle(handle) => do_part(context, &Buffer::open(context, &handle).unwrap()),
        Shared::Descriptor(descriptor) => {
            let shared = SharedBuffer::open(context, descriptor, &[]).unwrap();
            do_part(context, &shared);
        }
    }
}

fn do_part(context: &Context, memory: &impl Memory) {
    let mut gpu = Gpu::new(context);
    let size = SIZE.get();
    assert!(gpu.read(part(memory, 0, size)) == patterned(1, size), "not what was written");
    gpu.kernels.fill(&gpu.stream, part(memory, 0, size), 2).unwrap();
    gpu.finish();
}

fn another_process_opens_memory_by_handle(gpus: &[Context]) {
    let memory = Buffer::to_share(&gpus[0], SIZE).unwrap();
    let handle = memory.ipc_handle().unwrap();
    is_shared(&gpus[0], &memory, || hand_over(Shared::Handle(handle)));
}

fn another_process_opens_memory_by_descriptor(gpus: &[Context]) {
    let all: Vec<&Context> = gpus.iter().collect();
    let memory = SharedBuffer::create(&gpus[0], SIZE, &all[1..]).unwrap();
    let descriptor = memory.export().unwrap();
    assert_eq!(memory.export().unwrap(), descriptor);
    is_shared(&gpus[0], &memory, || hand_over(Shared::Descriptor(descriptor)));
    drop(memory);
    // What is exported is so no longer than the memory lives.
    assert!(SharedBuffer::open(&gpus[0], descriptor, &[]).is_err());
}

fn is_shared(context: &Context, memory: &impl Memory, hand_over: impl FnOnce()) {
    let mut gpu = Gpu::new(context);
    gpu.kernels.fill(&gpu.stream, memory.all(), 1).unwrap();
    gpu.finish();
    hand_over();
    assert!(gpu.read(memory.all()) == patterned(2, SIZE.get()), "not what the other wrote");
}

fn memory_is_opened_by_handle_in_other_processes_only(gpus: &[Context]) {
    let memory = Buffer::to_share(&gpus[0], SIZE).unwrap();
    let err = Buffer::open(&gpus[0], &memory.ipc_handle().unwrap()).unwrap_err();
    assert_eq!(code(&err), 201, "{err}");
}

fn a_descriptor_that_is_not_there_is_refused(gpus: &[Context]) {
    let memory = SharedBuffer::create(&gpus[0], SIZE, &[]).unwrap();
    let there = memory.export().unwrap();
    let err = SharedBuffer::open(&gpus[0], Descriptor { descriptor: 9999, ..there }, &[]);
    let err = err.unwrap_err().to_string();
    let text = format!("pidfd_getfd(descriptor 9999 of process {}) failed: ", there.pid);
    assert!(err.starts_with(&text), "{err}");
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let err = SharedBuffer::open(&gpus[0], Descriptor { pid: child.id(), ..there }, &[]);
    let err = err.unwrap_err().to_string();
    assert!(err.starts_with(&format!("pidfd_open(process {}) failed: ", child.id())), "{err}");
}

fn memory_made_for_two_gpus_is_reached_by_both(gpus: &[Context]) {
    let memory = SharedBuffer::create(&gpus[0], SIZE, &[&gpus[1]]).unwrap();
    let [mut first, second] = [&gpus[0], &gpus[1]].map(Gpu::new);
    second.kernels.fill(&second.stream, memory.all(), 6).unwrap();
    second.finish();
    assert!(first.read(memory.all()) == patterned(6, SIZE.get()));
}
