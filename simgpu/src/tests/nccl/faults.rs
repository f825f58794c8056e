//! What goes wrong with ranks on purpose, and how a program gets out of it.

use std::cell::Cell;

use super::*;
use crate::{
    machine::{FailingRank, RankFault},
    nccl::{CONFIG_MAGIC, Config, UNDEFINED, VERSION},
};

fn fault(rank: u32, name: Option<&str>, after: u64, what: RankFault) -> FailingRank {
    FailingRank { rank: Some(rank), name: name.map(str::to_owned), after, what, always: false }
}

fn machine_with(fault: FailingRank) -> Machine {
    let mut machine = machine_of(2);
    machine.faults.ranks = vec![fault];
    machine
}

fn all_reduce(all: &Ranks, places: &[u64]) -> i32 {
    all.group(|rank| {
        let place = places[rank];
        nccl::ncclAllReduce(place, place, 4, 2, 0, all.communicators[rank], all.streams[rank])
    })
}

#[test]
fn one_element_of_one_rank_is_wrong_once() {
    alone(|| {
        let wrong = RankFault::Wrong { element: 2 };
        let all = Ranks::begin(machine_with(fault(1, Some("ncclAllReduce"), 1, wrong)));
        let places = all.allocate(64);
        let gathered = all.allocate(64);
        let mut found = Vec::new();
        for _ in 0..3 {
            // Another collective does not count.
            good(all.group(|rank| {
                let (from, to) = (places[rank], gathered[rank]);
                nccl::ncclAllGather(from, to, 4, 2, all.communicators[rank], all.streams[rank])
            }));
            places.iter().for_each(|&place| put(place, &[2, 0, 0, 0].repeat(4)));
            good(all_reduce(&all, &places));
            all.synchronize();
            found.push([fetch(places[0], 16), fetch(places[1], 16)]);
        }
        let right = [4, 0, 0, 0].repeat(4);
        let mut bad = right.clone();
        bad[8] = 5;
        assert_eq!(found[0], [right.clone(), right.clone()]);
        assert_eq!(found[1], [right.clone(), bad]);
        assert_eq!(found[2], [right.clone(), right]);
    });
}

#[test]
fn a_rank_that_does_not_come_holds_the_others_until_they_abort() {
    alone(|| {
        let all = Ranks::begin(machine_with(fault(1, None, 1, RankFault::Absent)));
        let places = all.allocate(64);
        good(all_reduce(&all, &places));
        all.synchronize();
        let (communicators, streams, buffers) =
            (all.communicators.clone(), all.streams.clone(), places.clone());
        // The call for rank 1 never comes back.
        std::thread::spawn(move || {
            for ((&communicator, &stream), &place) in
                communicators.iter().zip(&streams).zip(&buffers)
            {
                nccl::ncclAllReduce(place, place, 4, 2, 0, communicator, stream);
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!([cuStreamQuery(all.streams[0]), cuStreamQuery(all.streams[1])], [600, 0]);
        good(nccl::ncclCommAbort(all.communicators[0]));
        all.synchronize();
        assert_eq!(nccl::ncclAllReduce(places[0], places[0], 4, 2, 0, all.communicators[0], 0), 4);
        // The GPUs are as good as before.
        let again = Ranks::on(all.contexts);
        places.iter().for_each(|&place| put(place, &[2, 0, 0, 0].repeat(4)));
        good(all_reduce(&again, &places));
        again.synchronize();
        assert_eq!(fetch(places[0], 16), [4, 0, 0, 0].repeat(4));
    });
}

#[test]
fn an_asynchronous_error_is_told_after_so_many_collectives() {
    alone(|| {
        let what = RankFault::Asynchronous { code: 6 };
        let all = Ranks::begin(machine_with(fault(0, None, 2, what)));
        let places = all.allocate(64);
        let mut told = Vec::new();
        for _ in 0..3 {
            good(all_reduce(&all, &places));
            all.synchronize();
            told.push([asynchronous(all.communicators[0]), asynchronous(all.communicators[1])]);
        }
        assert_eq!(told, [[0, 0], [0, 0], [6, 0]]);
    });
}

/// A configuration as the program's header initialises it.
fn config(blocking: i32) -> Config {
    Config {
        size: 136,
        magic: CONFIG_MAGIC,
        version: VERSION.cast_unsigned(),
        blocking,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
    }
}

fn join(rank: i32, id: UniqueId, config: &Config) -> (i32, u64) {
    on(get(|out| cuDevicePrimaryCtxRetain(out, rank)));
    let mut communicator = 0;
    let target = Out::to(&mut communicator);
    let code = nccl::ncclCommInitRankConfig(target, 2, id, rank, In::of(config));
    (code, communicator)
}

fn new_id() -> UniqueId {
    let mut id = UniqueId { magic: 0, nonce: 0, rest: [0; 14] };
    good(nccl::ncclGetUniqueId(Out::to(&mut id)));
    id
}

#[test]
fn a_rank_that_does_not_block_is_in_progress_until_all_are_there() {
    alone(|| {
        begin(machine_of(2));
        let id = new_id();
        let config = config(0);
        let (code, first) = join(0, id, &config);
        assert_eq!((code, asynchronous(first)), (7, 7));
        let place = allocate(64);
        assert_eq!(nccl::ncclAllReduce(place, place, 4, 2, 0, first, 0), 4);
        let (code, second) = join(1, id, &config);
        assert_eq!(code, 7);
        assert_eq!([asynchronous(first), asynchronous(second)], [0, 0]);
        for communicator in [first, second] {
            good(nccl::ncclCommDestroy(communicator));
        }
        let bad = Config { magic: 0, ..config };
        assert_eq!(join(0, id, &bad).0, 4);
    });
}

#[test]
fn a_rank_that_never_joins_leaves_the_others_in_progress_and_they_can_abort() {
    alone(|| {
        let what = RankFault::Absent;
        begin(machine_with(fault(1, Some("ncclCommInitRank"), 0, what)));
        let id = new_id();
        // The call for rank 1 never comes back.
        std::thread::spawn(move || join(1, id, &config(0)));
        let (code, communicator) = join(0, id, &config(0));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!((code, asynchronous(communicator)), (7, 7));
        good(nccl::ncclCommAbort(communicator));
    });
}

#[test]
fn a_fault_in_a_function_that_no_rank_calls_is_refused() {
    alone(|| {
        let machine = machine_with(fault(1, Some("ncclAllReduced"), 0, RankFault::Absent));
        let sentence = "fault.rank: no rank calls `ncclAllReduced`: the nearest name is \
                        `ncclAllReduce`";
        assert_eq!(crate::state::begin(machine, 0).unwrap_err(), sentence);
    });
}

#[test]
fn a_split_is_no_collective_for_faults() {
    alone(|| {
        let what = RankFault::Absent;
        let all = Ranks::begin(machine_with(fault(1, None, 0, what)));
        let mut new = [0_u64; 2];
        good(nccl::ncclGroupStart());
        for (&parent, new) in all.communicators.iter().zip(&mut new) {
            let none = In::of(std::ptr::null());
            good(nccl::ncclCommSplit(parent, 0, 0, Out::to(new), none));
        }
        good(nccl::ncclGroupEnd());
        assert_eq!(new.map(asynchronous), [0, 0]);
    });
}

#[test]
fn joining_is_refused_with_a_code_and_a_reason() {
    alone(|| {
        let what = RankFault::Refused { code: 2, reason: "the fabric is down".to_owned() };
        begin(machine_with(fault(1, Some("ncclCommInitRank"), 0, what)));
        let mut both = [1_u64; 2];
        let none = In::of(std::ptr::null());
        assert_eq!(nccl::ncclCommInitAll(Out::to(both.as_mut_ptr()), 2, none), 2);
        assert_eq!((last_error().as_str(), both), ("the fabric is down", [0, 0]));
        assert_eq!(nccl::open(), 0);
    });
}

#[test]
fn a_call_fails_with_a_code_and_calls_are_counted() {
    alone(|| {
        let mut machine = machine_of(2);
        machine.faults.calls = vec![crate::machine::FailingCall {
            name: "ncclAllReduce".to_owned(),
            process: None,
            after: 1,
            what: crate::machine::CallFault::Refused { code: 3 },
            always: false,
        }];
        let all = Ranks::begin(machine);
        let places = all.allocate(64);
        assert_eq!(all_reduce(&all, &places), 3);
        assert_eq!(crate::faults::counts()["ncclAllReduce"], 2);
    });
}

/// Memory of NCCL's own for every rank.
fn own_memory(all: &Ranks) -> Vec<u64> {
    let places = all.contexts.iter().map(|&context| {
        on(context);
        let mut place = 0;
        good(nccl::ncclMemAlloc(Out::to(&mut place), 1 << 20));
        place
    });
    places.collect()
}

#[test]
fn memory_is_put_into_a_window_by_all_ranks_together() {
    alone(|| {
        let all = Ranks::begin(machine_of(2));
        let places = own_memory(&all);
        let windows = [Cell::new(0_u64), Cell::new(0)];
        let register = |rank: usize, place: u64| {
            let (communicator, window) = (all.communicators[rank], Out::to(windows[rank].as_ptr()));
            nccl::ncclCommWindowRegister(communicator, place, 1 << 16, window, 1)
        };
        good(all.group(|rank| register(rank, places[rank])));
        assert!(windows.iter().all(|window| window.get() != 0));
        let again = windows[1].get();
        good(all.group(|rank| register(rank, places[rank])));
        assert_ne!(windows[1].get(), again);
        for (window, &communicator) in windows.iter().zip(&all.communicators) {
            good(nccl::ncclCommWindowDeregister(communicator, window.get()));
            assert_eq!(nccl::ncclCommWindowDeregister(communicator, window.get()), 4);
        }
        // Memory of the driver's allocator cannot be mapped anew; a beginning must be aligned.
        let plain = all.allocate(1 << 16);
        assert_eq!(register(0, plain[0]), 1);
        assert!(last_error().contains("no allocation handle"), "{}", last_error());
        assert_eq!(register(0, places[0] + 1024), 4);
        assert_eq!(windows[0].get(), 0);
    });
}

/// Two ranks that do not block, each with memory of NCCL's own.
fn two_that_do_not_block() -> ([u64; 2], [u64; 2]) {
    let id = new_id();
    let config = config(0);
    let all = [join(0, id, &config).1, join(1, id, &config).1];
    assert_eq!(all.map(asynchronous), [0, 0]);
    let places = [0, 1].map(|rank| {
        on(get(|out| cuDevicePrimaryCtxRetain(out, rank)));
        let mut place = 0;
        good(nccl::ncclMemAlloc(Out::to(&mut place), 1 << 20));
        place
    });
    (all, places)
}

#[test]
fn windows_and_parts_are_in_progress_until_all_ranks_have_come() {
    alone(|| {
        begin(machine_of(2));
        let (all, places) = two_that_do_not_block();
        let mut windows = [0_u64; 2];
        let mut register = |rank: usize| {
            let window = Out::to(&mut windows[rank]);
            nccl::ncclCommWindowRegister(all[rank], places[rank], 1 << 16, window, 1)
        };
        assert_eq!((register(0), asynchronous(all[0])), (7, 7));
        // What is under way comes first.
        assert_eq!(nccl::ncclCommFinalize(all[0]), 4);
        assert_eq!((register(1), all.map(asynchronous)), (7, [0, 0]));
        assert!(windows.iter().all(|window| *window != 0));
        let mut parts = [0_u64; 2];
        let mut split = |rank: usize| {
            let (part, none) = (Out::to(&mut parts[rank]), In::of(std::ptr::null()));
            nccl::ncclCommSplit(all[rank], 0, 0, part, none)
        };
        assert_eq!((split(0), asynchronous(all[0])), (7, 7));
        assert_eq!((split(1), all.map(asynchronous)), (7, [0, 0]));
        assert_eq!(parts.map(asynchronous), [0, 0]);
        all.into_iter().chain(parts).for_each(|of| good(nccl::ncclCommDestroy(of)));
    });
}

#[test]
fn a_rank_that_never_comes_to_a_window_leaves_the_others_in_progress_and_they_can_abort() {
    alone(|| {
        begin(machine_of(2));
        let (all, places) = two_that_do_not_block();
        let mut window = 0;
        let target = Out::to(&mut window);
        assert_eq!(nccl::ncclCommWindowRegister(all[0], places[0], 1 << 16, target, 1), 7);
        assert_eq!((all.map(asynchronous), window), ([7, 0], 0));
        all.into_iter().for_each(|of| good(nccl::ncclCommAbort(of)));
        assert_eq!(nccl::open(), 0);
    });
}

#[test]
fn memory_is_allocated_registered_and_given_back() {
    alone(|| {
        let all = Ranks::begin(machine_of(2));
        let mut place = 0;
        good(nccl::ncclMemAlloc(Out::to(&mut place), 1000));
        let mut registered = 0;
        let communicator = all.communicators[0];
        good(nccl::ncclCommRegister(communicator, place, 1000, Out::to(&mut registered)));
        good(nccl::ncclCommDeregister(communicator, registered));
        assert_eq!(nccl::ncclCommDeregister(communicator, registered), 4);
        assert_eq!(nccl::ncclCommRegister(communicator, 64, 1000, Out::to(&mut registered)), 4);
        good(nccl::ncclMemFree(place as *mut c_void));
        assert_eq!(nccl::ncclMemFree(place as *mut c_void), 1);
        let live = crate::state::world().unwrap().local().live();
        assert_eq!((live.device_memory, live.communicators), (0, 2));
    });
}
