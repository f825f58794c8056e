//! Two processes on one machine.

use std::{
    fs::File,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::{fs::FileExt, process::ExitStatusExt},
    },
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    attach::{simgpu_reach_ns, simgpu_time_ns},
    cuda::abi::*,
    memory::{Mapping, PAGE},
    state::world,
    timing::{Step, Stream, What},
};

/// Longer than any test takes, in nanoseconds.
const LONG: u64 = 60_000_000_000;

/// A handle as text, to be sent.
pub(super) fn handle_text(handle: &Handle) -> String {
    // SAFETY: a handle is 64 bytes without padding.
    let bytes: [u8; 64] = unsafe { std::mem::transmute(*handle) };
    bytes.map(|byte| format!("{byte:02x}")).concat()
}

pub(super) fn handle_of(text: &str) -> Handle {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    let bytes: [u8; 64] = std::array::from_fn(byte);
    // SAFETY: a handle is 64 bytes, and any are one.
    unsafe { std::mem::transmute(bytes) }
}

fn export(address: u64) -> Handle {
    let mut handle = handle_of(&"00".repeat(64));
    ok(cuIpcGetMemHandle(Out::to(&mut handle), address));
    handle
}

fn open(handle: Handle) -> u64 {
    get(|out| cuIpcOpenMemHandle_v2(out, handle, 1))
}

/// Makes the context of a GPU current.
fn gpu(ordinal: i32) {
    on(get(|out| cuDevicePrimaryCtxRetain(out, ordinal)));
}

#[test]
fn memory_of_one_process_is_read_and_written_by_another() {
    two(
        machine,
        |other| {
            let _ = allocate(1000);
            let there = allocate(100_000);
            put(there, &bytes(100_000, 1));
            other.send(&handle_text(&export(there + 17)));
            // The other's stream of GPU 1 reads: 2500 + 100000 / 80.
            assert_eq!(other.receive(), "3750000");
            assert!(fetch(there, 100_000) == bytes(100_000, 2), "what the other has written");
            // What it holds is the other's to change, so the same copy is really made again.
            let copy = allocate(100_000);
            ok(cuMemcpyDtoD_v2(copy, there, 100_000));
            ok(cuCtxSynchronize());
            other.send("again");
            assert_eq!(other.receive(), "done");
            ok(cuMemcpyDtoD_v2(copy, there, 100_000));
            assert!(fetch(copy, 100_000) == bytes(100_000, 3), "what it has written since");
        },
        |line| {
            let handle = handle_of(&line.receive());
            gpu(1);
            let there = open(handle);
            assert_eq!(open(handle), there, "the second time it is the same");
            ok(cuIpcCloseMemHandle(there));
            let own = allocate(100_000);
            let stream = stream();
            let start = mark(stream);
            ok(cuMemcpyAsync(own, there, 100_000, stream));
            let end = mark(stream);
            ok(cuStreamSynchronize(stream));
            assert!(fetch(own, 100_000) == bytes(100_000, 1), "what the first has written");
            put(there, &bytes(100_000, 2));
            line.send(&(time_ps(end) - time_ps(start)).to_string());
            line.receive();
            put(there, &bytes(100_000, 3));
            line.send("done");
            ok(cuIpcCloseMemHandle(there));
            assert_eq!(cuIpcCloseMemHandle(there), 1);
        },
    );
}

#[test]
fn what_was_being_written_when_memory_was_exported_is_copied_by_the_other_process() {
    const SIZE: usize = 200 << 20;
    two(
        machine,
        |other| {
            assert_eq!(other.receive(), "ready");
            let there = allocate(SIZE);
            // Takes much longer than all that comes until the other process has copied its end.
            ok(cuMemsetD8Async(there, 7, SIZE, 0));
            thread::sleep(Duration::from_millis(5));
            other.send(&handle_text(&export(there)));
            assert_eq!(other.receive(), "copied");
            ok(cuCtxSynchronize());
            other.send("written");
            assert_eq!(other.receive(), "07".repeat(64));
        },
        |line| {
            let own = allocate(64);
            line.send("ready");
            let end = open(handle_of(&line.receive())) + SIZE as u64 - 64;
            let copy = || {
                ok(cuMemcpyDtoD_v2(own, end, 64));
                ok(cuCtxSynchronize());
            };
            copy();
            line.send("copied");
            line.receive();
            copy();
            let found = fetch(own, 64).into_iter().map(|byte| format!("{byte:02x}"));
            line.send(&found.collect::<String>());
        },
    );
}

#[test]
fn the_place_of_a_process_is_given_out_again_only_when_it_is_gone() {
    alone(|| {
        begin(machine());
        let own = world().unwrap();
        let mut plane = own.plane();
        plane.leave(own.place);
        assert_ne!(plane.join(), Some(own.place));
    });
}

#[test]
fn a_handle_of_memory_that_is_gone_is_refused() {
    two(
        machine,
        |other| {
            let there = allocate(1000);
            let handle = export(there);
            assert_eq!(
                cuIpcOpenMemHandle_v2(Out::to(&mut 0), handle, 1),
                201,
                "in its own process"
            );
            ok(cuMemFree_v2(there));
            other.send(&handle_text(&handle));
            let handle = handle_of(&other.receive());
            let opened = open(handle);
            ok(cuIpcCloseMemHandle(opened));
            other.child.kill().unwrap();
            other.child.wait().unwrap();
            assert_eq!(cuIpcOpenMemHandle_v2(Out::to(&mut 0), handle, 1), 1, "its process is dead");
        },
        |line| {
            let handle = handle_of(&line.receive());
            assert_eq!(cuIpcOpenMemHandle_v2(Out::to(&mut 0), handle, 1), 1, "it was freed");
            let there = allocate(1000);
            line.send(&handle_text(&export(there)));
            line.receive();
        },
    );
}

#[test]
fn memory_of_cu_mem_create_goes_to_another_process_as_a_descriptor() {
    two(
        machine,
        |other| {
            let words: [u32; 8] = [1, 1, 1, 2, 0, 0, 0, 0];
            let properties = In::of((&raw const words).cast());
            let granularity = get(|out| cuMemGetAllocationGranularity(out, properties, 0));
            assert_eq!(granularity, 2 << 20);
            let memory = get(|out| cuMemCreate(out, granularity, properties, 0));
            let address = map(memory, granularity, &[0, 2]);
            put(address, &bytes(1000, 1));
            let descriptor = get(|out| cuMemExportToShareableHandle(out, memory, 1, 0));
            other.send(&format!("/proc/{}/fd/{descriptor}", std::process::id()));
            assert_eq!(other.receive(), "done");
            assert!(fetch(address, 1000) == bytes(1000, 2), "what the other has written");
            ok(cuMemUnmap(address, granularity));
            ok(cuMemRelease(memory));
            ok(cuMemAddressFree(address, granularity));
        },
        |line| {
            let file = File::options().read(true).write(true).open(line.receive()).unwrap();
            let descriptor = usize::try_from(file.as_raw_fd()).unwrap();
            let memory = get(|out| cuMemImportFromShareableHandle(out, descriptor, 1));
            let address = map(memory, 2 << 20, &[1]);
            assert_eq!(get(|out| cuPointerGetAttribute(out, 9, address)), 2, "it is GPU 2's");
            gpu(1);
            assert!(fetch(address, 1000) == bytes(1000, 1), "what the first has written");
            put(address, &bytes(1000, 2));
            line.send("done");
        },
    );
}

/// Maps memory for GPUs.
pub(super) fn map(memory: u64, bytes: usize, gpus: &[u32]) -> u64 {
    let address = get(|out| cuMemAddressReserve(out, bytes, 0, 0, 0));
    ok(cuMemMap(address, bytes, 0, memory, 0));
    let access: Vec<[u32; 3]> = gpus.iter().map(|gpu| [1, *gpu, 3]).collect();
    ok(cuMemSetAccess(address, bytes, In::of(access.as_ptr().cast()), gpus.len()));
    address
}

/// A word of a file that both processes map and have registered.
fn shared_word(file: &File) -> u64 {
    let mapping = Mapping::of_file(file, 0, PAGE).unwrap();
    let address = mapping.start;
    std::mem::forget(mapping);
    ok(cuMemHostRegister_v2(address, 4096, 3));
    address + 64
}

fn shared_file() -> File {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
    // SAFETY: the descriptor is new, and nobody else's.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(PAGE).unwrap();
    file
}

#[test]
fn ranks_that_one_word_holds_begin_at_one_time_and_share_a_link() {
    two(
        machine,
        |other| {
            let file = shared_file();
            let flag = shared_word(&file);
            other.send(&format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
            let near = allocate(100_000);
            gpu(1);
            let far = allocate(100_000);
            other.send(&handle_text(&export(far)));
            gpu(0);
            let (stream, timed_out) = (stream(), pinned(64));
            ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, timed_out]));
            let start = mark(stream);
            ok(cuMemcpyAsync(far, near, 100_000, stream));
            let end = mark(stream);
            assert_eq!(other.receive(), "held");
            thread::sleep(Duration::from_millis(20));
            assert_eq!(cuStreamQuery(stream), 600);
            word(flag).store(1, Ordering::Release);
            ok(cuStreamSynchronize(stream));
            let times = [start, end].map(time_ps);
            // Both begin at the same time; the first process comes first on the link.
            let theirs: Vec<u64> =
                other.receive().split(' ').map(|time| time.parse().unwrap()).collect();
            assert_eq!(theirs[0], times[0]);
            assert_eq!(times[1] - times[0], 3_000_000);
            assert_eq!(theirs[1] - times[0], 4_000_000);
        },
        |line| {
            let file = File::options().read(true).write(true).open(line.receive()).unwrap();
            let flag = shared_word(&file);
            let far = open(handle_of(&line.receive()));
            let near = allocate(100_000);
            let stream = stream();
            let timed_out = pinned(64);
            ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, timed_out]));
            let start = mark(stream);
            ok(cuMemcpyAsync(far, near, 100_000, stream));
            let end = mark(stream);
            line.send("held");
            ok(cuStreamSynchronize(stream));
            line.send(&format!("{} {}", time_ps(start), time_ps(end)));
        },
    );
}

#[test]
fn a_value_written_by_one_process_releases_the_other_at_its_time_with_its_bytes() {
    two(
        machine,
        |other| {
            let there = allocate(8192);
            ok(cuMemsetD8_v2(there, 0, 8192));
            ok(cuCtxSynchronize());
            other.send(&handle_text(&export(there)));
            let (stream, back) = (stream(), pinned(4096));
            for round in 1..=20 {
                ok(cuStreamWaitValue32_v2(stream, there + 4096, round, 0));
                let released = mark(stream);
                ok(cuMemcpyAsync(back, there, 4096, stream));
                ok(cuStreamWriteValue32_v2(stream, there + 8000, round, 0));
                other.send("go");
                ok(cuStreamSynchronize(stream));
                assert_eq!(word(back).load(Ordering::Acquire), 0x0101_0101 * round);
                // The other's write ends when it says.
                assert_eq!(other.receive(), time_ps(released).to_string());
            }
        },
        |line| {
            let there = open(handle_of(&line.receive()));
            let stream = stream();
            for round in 1..=20_u8 {
                line.receive();
                ok(cuMemsetD8Async(there, round, 4096, stream));
                let written = mark(stream);
                ok(cuStreamWriteValue32_v2(stream, there + 4096, round.into(), 0));
                ok(cuStreamWaitValue32_v2(stream, there + 8000, round.into(), 0));
                ok(cuStreamSynchronize(stream));
                line.send(&time_ps(written).to_string());
            }
        },
    );
}

#[test]
fn a_process_that_is_stopped_in_a_call_holds_up_no_other_for_ever() {
    two(
        machine,
        |other| {
            let pid = i32::try_from(other.child.id()).unwrap();
            let stat = format!("/proc/{pid}/stat");
            while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
                thread::sleep(Duration::from_millis(1));
            }
            // Most calls have no code for it. SAFETY: the child makes one call, and has one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(world().unwrap().plane());
                // SAFETY: the call ends the process.
                unsafe { libc::_exit(0) };
            }
            assert!(world().unwrap().plane_unless_kept().is_none());
            crate::attach::simgpu_wait(1);
            let mut status = 0;
            // SAFETY: the status is a live local.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 1);
            // SAFETY: the call takes two numbers and touches no memory.
            unsafe { libc::kill(pid, libc::SIGCONT) };
            assert!(world().unwrap().plane_unless_kept().is_some());
        },
        |_| {
            let plane = world().unwrap().plane();
            // SAFETY: the call takes a number. This very thread stops before it returns.
            unsafe { libc::raise(libc::SIGSTOP) };
            drop(plane);
        },
    );
}

#[test]
fn a_query_does_not_wait_for_a_process_that_is_stopped() {
    const BYTES: usize = 32 << 20;
    two(
        machine,
        |other| {
            let there = allocate(4096);
            ok(cuMemsetD8_v2(there, 0, 4096));
            ok(cuCtxSynchronize());
            other.send(&handle_text(&export(there)));
            let (stream, mine) = (stream(), allocate(64));
            other.send("go");
            let pid = i32::try_from(other.child.id()).unwrap();
            let stat = format!("/proc/{pid}/stat");
            let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
            while !is_stopped() {
                thread::sleep(Duration::from_millis(1));
            }
            let go_on = move || {
                // SAFETY: the call takes two numbers and touches no memory.
                unsafe { libc::kill(pid, libc::SIGCONT) };
            };
            // Else the test that fails would last for ever.
            let late = thread::spawn(move || {
                thread::sleep(Duration::from_secs(3));
                go_on();
            });
            ok(cuStreamWaitValue32_v2(stream, there, 1, 0));
            ok(cuMemsetD8Async(mine, 7, 64, stream));
            let began = Instant::now();
            assert_eq!(cuStreamQuery(stream), 600);
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            go_on();
            ok(cuStreamSynchronize(stream));
            assert_eq!(fetch(mine, 64), [7; 64]);
            late.join().unwrap();
        },
        |line| {
            let there = open(handle_of(&line.receive()));
            let (stream, from, to) = (stream(), pinned(BYTES), allocate(BYTES));
            line.receive();
            // Timed at once; to do these takes far longer than to get to the stop.
            for _ in 0..8 {
                ok(cuMemcpyAsync(to, from, BYTES, stream));
            }
            ok(cuStreamWriteValue32_v2(stream, there, 1, 0));
            crate::state::raise(libc::SIGSTOP);
            ok(cuStreamSynchronize(stream));
        },
    );
}

#[test]
fn the_memory_of_a_gpu_is_shared_by_all_processes_and_comes_back_from_the_dead() {
    two(
        machine,
        |other| {
            let _own = allocate(100 << 20);
            other.send("go");
            assert_eq!(other.receive(), "has it");
            let mut address = 0;
            assert_eq!(cuMemAlloc_v2(Out::to(&mut address), 100 << 20), 2);
            let free: usize = get(|out| cuMemGetInfo_v2(out, Out::to(&mut 0)));
            assert_eq!(free, 56 << 20);
            other.child.kill().unwrap();
            other.child.wait().unwrap();
            let _more = allocate(100 << 20);
        },
        |line| {
            line.receive();
            let _own = allocate(100 << 20);
            line.send("has it");
            line.receive();
        },
    );
}

#[test]
fn a_process_that_dies_with_the_lock_stops_nobody() {
    two(
        machine,
        |other| {
            let (flag, there, stream) = (pinned(64), allocate(64), stream());
            ok(cuStreamWaitValue32_v2(stream, flag, 1, 0));
            ok(cuMemsetD8Async(there, 7, 64, stream));
            other.send("die");
            let status = other.child.wait().unwrap();
            assert_eq!(status.signal(), Some(libc::SIGKILL));
            // The step that it began is finished by this process: the wait has ended.
            ok(cuStreamSynchronize(stream));
            assert_eq!(fetch(there, 64), [7; 64]);
            let own = world().unwrap().place;
            let mut plane = world().unwrap().plane();
            plane.bury_the_dead();
            assert!(plane.streams.iter().all(|s| !s.used || s.place as usize == own));
            assert!(plane.gated.iter().all(|gated| *gated == 0));
        },
        |line| {
            ok(cuStreamWaitValue32_v2(stream(), pinned(64), 1, 0));
            line.receive();
            let own = world().unwrap().place;
            let mut plane = world().unwrap().plane();
            let theirs = |stream: &Stream| stream.gate && stream.place as usize != own;
            let stream = plane.streams.iter().position(theirs).unwrap();
            let place = plane.streams[stream].place;
            let connection = plane.connections[plane.streams[stream].connection as usize];
            plane.step = Step {
                armed: true,
                what: What::Opened,
                stream: u32::try_from(stream).unwrap(),
                sequence: plane.streams[stream].timed,
                begun: Some((connection.begun, plane.streams[stream].end_ps)),
                end_ps: plane.streams[stream].end_ps,
                place,
                index: world().unwrap().shared.board(place as usize).timed(),
                after: None,
            };
            // SAFETY: the call takes two numbers and touches no memory.
            unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
            drop(plane);
        },
    );
}

fn own_gpus() -> usize {
    usize::try_from(get(|out| cuDeviceGetCount(out))).unwrap()
}

fn first_uuid() -> [u8; 16] {
    let device = get(|out| cuDeviceGet(out, 0));
    get(|out| cuDeviceGetUuid(out, device))
}

/// Two hosts of one machine.
fn hosts() -> Machine {
    machine().times(2).unwrap()
}

#[test]
fn on_another_host_a_process_has_other_gpus_and_no_way_to_the_memory_of_these() {
    two(
        hosts,
        |other| {
            assert_eq!(own_gpus(), machine().gpus.len());
            other.send(&format!("{:?}", first_uuid()));
            other.send(&handle_text(&export(get(|out| cuMemAlloc_v2(out, 4096)))));
            assert_eq!(other.receive(), "done");
            // What the other has allocated is on its own host.
            assert!(crate::state::memory_used(0) < 1 << 20);
        },
        |line| {
            assert_eq!(own_gpus(), machine().gpus.len());
            assert_ne!(line.receive(), format!("{:?}", first_uuid()));
            let handle = handle_of(&line.receive());
            let code = cuIpcOpenMemHandle_v2(Out::to(&mut 0), handle, 1);
            assert_eq!(code, 1, "CUDA_ERROR_INVALID_VALUE");
            let _: u64 = get(|out| cuMemAlloc_v2(out, 1 << 20));
            assert_eq!(crate::state::memory_used(0), 1 << 20);
            line.send("done");
        },
    );
}

#[test]
fn a_host_has_its_own_time_until_it_hears_from_another() {
    const MS: u64 = 1_000_000;
    two(
        hosts,
        |other| {
            let began = simgpu_time_ns();
            world().unwrap().take_ms(100.0);
            other.send(&simgpu_time_ns().to_string());
            assert_eq!(other.receive(), "done");
            assert_eq!(simgpu_time_ns(), began + 100 * MS, "though the other is at a later time");
        },
        |line| {
            let told: u64 = line.receive().parse().unwrap();
            let began = simgpu_time_ns();
            assert!(began < told, "{began} {told}");
            simgpu_reach_ns(told);
            assert_eq!(simgpu_time_ns(), told);
            simgpu_reach_ns(began);
            assert_eq!(simgpu_time_ns(), told);
            world().unwrap().take_ms(50.0);
            line.send("done");
        },
    );
}

#[test]
fn what_is_no_state_is_refused() {
    alone(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 100], 0).unwrap();
        let path = file.path().to_str().unwrap();
        let err = crate::state::join(path, 1).unwrap_err();
        assert_eq!(err, format!("cannot open the state {path}: it is no such state"));
        let err = crate::state::join("/nowhere", 1).unwrap_err();
        assert!(err.starts_with("cannot open the state /nowhere: "), "{err}");
        assert_eq!(cuInit(0), 100, "and nothing is attached");
        begin(machine());
        assert_eq!(
            crate::state::begin(machine(), 0).unwrap_err(),
            "this process is attached already"
        );
    });
}
