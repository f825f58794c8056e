//! Ranks of several threads and of several processes.

use super::*;

/// The id that another process has made, by what tells ids apart.
fn id_of(nonce: u64) -> UniqueId {
    UniqueId { nonce, ..new_id() }
}

pub(super) fn new_id() -> UniqueId {
    let mut id = UniqueId { magic: 0, nonce: 0, rest: [0; 14] };
    good(nccl::ncclGetUniqueId(Out::to(&mut id)));
    id
}

/// Makes the context of a GPU current.
fn gpu_context(ordinal: i32) {
    on(get(|out| cuDevicePrimaryCtxRetain(out, ordinal)));
}

/// Joins as a rank on the current GPU.
fn join(ranks: i32, id: UniqueId, rank: i32) -> u64 {
    let mut communicator = 0;
    good(nccl::ncclCommInitRank(Out::to(&mut communicator), ranks, id, rank));
    communicator
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

fn put_floats(place: u64, count: usize, value: impl Fn(usize) -> f32) {
    let bytes: Vec<u8> = (0..count).flat_map(|at| value(at).to_ne_bytes()).collect();
    put(place, &bytes);
}

#[test]
fn ranks_of_four_threads_reduce_and_split() {
    alone(|| {
        begin(machine());
        let id = new_id();
        let threads = (0..4_i32).map(|rank| {
            std::thread::spawn(move || {
                gpu_context(rank);
                let communicator = join(4, id, rank);
                let (place, stream) = (allocate(4000), stream());
                for round in 1..=20_u16 {
                    put_floats(place, 1000, |at| f32::from(round) + at as f32 + rank as f32);
                    good(nccl::ncclAllReduce(place, place, 1000, 7, 0, communicator, stream));
                    ok(cuStreamSynchronize(stream));
                    let found = floats(&fetch(place, 4000));
                    let expected = |at: usize| 4.0 * (f32::from(round) + at as f32) + 6.0;
                    assert!(found.iter().enumerate().all(|(at, value)| *value == expected(at)));
                }
                let mut half = 0;
                let none = In::of(std::ptr::null());
                good(nccl::ncclCommSplit(communicator, rank % 2, 0, Out::to(&mut half), none));
                put_floats(place, 10, |_| rank as f32);
                good(nccl::ncclAllReduce(place, place, 10, 7, 0, half, stream));
                ok(cuStreamSynchronize(stream));
                assert_eq!(floats(&fetch(place, 40)), [(2 * (rank % 2) + 2) as f32; 10]);
                good(nccl::ncclCommDestroy(half));
                good(nccl::ncclCommDestroy(communicator));
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(nccl::open(), 0);
        let plane = crate::state::world().unwrap().plane();
        assert!(plane.meetings.communicators.iter().all(|found| found.nonce == 0));
    });
}

/// A rank of two processes: its communicator, its stream, and when its first collective ended.
fn first(id: UniqueId, rank: i32) -> (u64, u64, u64) {
    gpu_context(rank);
    let communicator = join(2, id, rank);
    let (place, stream) = (allocate(4096), stream());
    ok(cuMemsetD8Async(place, 7, 4096, stream));
    good(nccl::ncclAllReduce(place, place, 1024, 7, 0, communicator, stream));
    let end = mark(stream);
    ok(cuStreamSynchronize(stream));
    (communicator, stream, time_ps(end))
}

/// What both ranks do then.
fn both(rank: i32, communicator: u64, stream: u64) {
    let (place, to) = (allocate(400_000), allocate(400_000));
    for round in 1..=10_u16 {
        put_floats(place, 100_000, |at| f32::from(round) + (at % 100) as f32 + rank as f32);
        good(nccl::ncclAllReduce(place, to, 100_000, 7, 0, communicator, stream));
        ok(cuStreamSynchronize(stream));
        let found = floats(&fetch(to, 400_000));
        let expected = |at: usize| 2.0 * (f32::from(round) + (at % 100) as f32) + 1.0;
        assert!(found.iter().enumerate().all(|(at, value)| *value == expected(at)), "{round}");
        // And messages both ways.
        good(nccl::ncclGroupStart());
        good(nccl::ncclSend(place, 1000, 7, 1 - rank, communicator, stream));
        good(nccl::ncclRecv(to, 1000, 7, 1 - rank, communicator, stream));
        good(nccl::ncclGroupEnd());
        ok(cuStreamSynchronize(stream));
        let found = floats(&fetch(to, 4000));
        let expected = |at: usize| f32::from(round) + (at % 100) as f32 + (1 - rank) as f32;
        assert!(found.iter().enumerate().all(|(at, value)| *value == expected(at)), "{round}");
    }
    good(nccl::ncclCommDestroy(communicator));
}

#[test]
fn ranks_of_two_processes_reduce_and_end_at_one_time() {
    two(
        machine,
        |other| {
            let id = new_id();
            other.send(&id.nonce.to_string());
            let (communicator, stream, end_ps) = first(id, 0);
            assert_eq!(other.receive(), end_ps.to_string());
            other.send("go on");
            both(0, communicator, stream);
        },
        |line| {
            let id = id_of(line.receive().parse().unwrap());
            let (communicator, stream, end_ps) = first(id, 1);
            line.send(&end_ps.to_string());
            line.receive();
            both(1, communicator, stream);
        },
    );
}

/// Sets a variable before the library reads it.
fn set(name: &str, value: &str) {
    // SAFETY: nothing else in the process of the test reads the environment at this moment.
    unsafe { std::env::set_var(name, value) };
}

#[test]
fn processes_that_say_they_are_on_different_hosts_use_the_network() {
    two(
        machine,
        |other| {
            set("NCCL_HOSTID", "a");
            set("NCCL_PROTO", "Simple");
            let id = new_id();
            other.send(&id.nonce.to_string());
            gpu_context(0);
            let communicator = join(2, id, 0);
            let (place, stream) = (allocate(1000), stream());
            put(place, &bytes(1000, 1));
            assert_eq!(other.receive(), "posted");
            let start = mark(stream);
            good(nccl::ncclBcast(place, 1000, 1, 0, communicator, stream));
            let end = mark(stream);
            // What the other does then would move the host's time before the mark.
            other.send("marked");
            ok(cuStreamSynchronize(stream));
            // 8.4 us, one step of 14 us over the network, and 1000 bytes at 12.5 GB/s.
            assert_eq!(time_ps(end) - time_ps(start), 22_480_000);
            assert_eq!(other.receive(), "right");
        },
        |line| {
            set("NCCL_HOSTID", "b");
            set("NCCL_PROTO", "Simple");
            let id = id_of(line.receive().parse().unwrap());
            gpu_context(1);
            let communicator = join(2, id, 1);
            let (place, stream) = (allocate(1000), stream());
            good(nccl::ncclBcast(place, 1000, 1, 0, communicator, stream));
            line.send("posted");
            line.receive();
            ok(cuStreamSynchronize(stream));
            assert!(fetch(place, 1000) == bytes(1000, 1));
            line.send("right");
        },
    );
}

#[test]
fn a_rank_whose_process_dies_is_an_error_and_the_other_can_abort() {
    two(
        machine,
        |other| {
            let id = new_id();
            other.send(&id.nonce.to_string());
            gpu_context(0);
            let communicator = join(2, id, 0);
            let (place, stream) = (allocate(64), stream());
            good(nccl::ncclAllReduce(place, place, 4, 7, 0, communicator, stream));
            assert_eq!(other.receive(), "joined");
            assert_eq!(asynchronous(communicator), 0);
            other.child.kill().unwrap();
            other.child.wait().unwrap();
            assert_eq!(asynchronous(communicator), 6);
            assert_eq!(cuStreamQuery(stream), 600);
            good(nccl::ncclCommAbort(communicator));
            ok(cuStreamSynchronize(stream));
            // Nothing is left of it.
            let plane = crate::state::world().unwrap().plane();
            assert!(plane.meetings.communicators.iter().all(|found| found.nonce == 0));
            assert!(plane.meetings.posts.iter().all(|post| !post.used));
        },
        |line| {
            let id = id_of(line.receive().parse().unwrap());
            gpu_context(1);
            join(2, id, 1);
            line.send("joined");
            line.receive();
        },
    );
}

#[test]
fn ranks_that_do_not_agree_are_refused() {
    alone(|| {
        begin(machine());
        let id = new_id();
        // Two ranks on one GPU.
        good(nccl::ncclGroupStart());
        let mut both = [0_u64; 2];
        for rank in 0..2 {
            let target = Out::to(&raw mut both[usize::try_from(rank).unwrap()]);
            good(nccl::ncclCommInitRank(target, 2, id, rank));
        }
        assert_eq!(nccl::ncclGroupEnd(), 5);
        assert!(last_error().starts_with("Duplicate GPU detected"), "{}", last_error());
        for communicator in both {
            good(nccl::ncclCommAbort(communicator));
        }
        assert_eq!(nccl::open(), 0);
    });
}
