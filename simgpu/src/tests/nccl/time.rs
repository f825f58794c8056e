//! How long collectives last, against the formulas of `docs/simulation.md`, with numbers written
//! out.

use std::sync::atomic::Ordering;

use super::*;

/// Four GPUs of which each pair stores 90 GB/s: see [`super::super::machine`].
const RING_GB_S: f64 = 90.0;

/// Sets a variable before the library reads it.
fn set(name: &str, value: &str) {
    // SAFETY: the process of the test has no other thread that reads the environment yet.
    unsafe { std::env::set_var(name, value) };
}

/// How long a collective of so many floats lasts, from mark to mark.
#[track_caller]
fn lasts_ns(all: &Ranks, function: Function, count: usize) -> f64 {
    let places = all.allocate(4 * count * all.count());
    let mark_all = || -> Vec<u64> {
        let marks = all.contexts.iter().zip(&all.streams).map(|(&context, &stream)| {
            on(context);
            mark(stream)
        });
        marks.collect()
    };
    let starts = mark_all();
    let data_type = DataType::Float32;
    let called = Called { function, count, data_type, operation: 0, root: 0 };
    good(all.group(|rank| {
        called.call(places[rank], places[rank], all.communicators[rank], all.streams[rank])
    }));
    let ends = mark_all();
    all.synchronize();
    let times: Vec<u64> =
        starts.iter().zip(&ends).map(|(&start, &end)| time_ps(end) - time_ps(start)).collect();
    assert!(times.iter().all(|time| *time == times[0]), "{times:?}");
    for (&context, &place) in all.contexts.iter().zip(&places) {
        on(context);
        ok(cuMemFree_v2(place));
    }
    on(all.contexts[0]);
    times[0] as f64 / 1000.0
}

#[track_caller]
fn equal(found: f64, expected: f64) {
    assert!((found - expected).abs() < 0.002, "{found} is not {expected}");
}

#[test]
fn a_ring_lasts_its_steps_and_its_bytes() {
    alone(|| {
        set("NCCL_ALGO", "Ring");
        set("NCCL_PROTO", "simple");
        let all = Ranks::begin(machine());
        let bytes = 4.0 * 300_000.0;
        // 2 (n - 1) steps of 3.4 us behind 8.4 us; 2 (n - 1) / n of the bytes over each hop.
        equal(
            lasts_ns(&all, Function::AllReduce, 300_000),
            8400.0 + 6.0 * 3400.0 + 1.5 * bytes / RING_GB_S,
        );
        // The whole is as many times the count as there are ranks; n - 1 steps.
        for function in [Function::AllGather, Function::ReduceScatter] {
            equal(
                lasts_ns(&all, function, 300_000),
                8400.0 + 3.0 * 3400.0 + 3.0 * bytes / RING_GB_S,
            );
        }
        for function in [Function::Broadcast, Function::Reduce] {
            equal(lasts_ns(&all, function, 300_000), 8400.0 + 3.0 * 3400.0 + bytes / RING_GB_S);
        }
    });
}

#[test]
fn what_only_moves_lasts_as_long_as_the_busiest_rank() {
    alone(|| {
        let all = Ranks::begin(machine());
        let bytes = 4.0 * 100_000.0;
        // To three others, and to itself within its own memory.
        let busy = 3.0 * bytes / 90.0 + bytes / 1000.0;
        for function in [Function::AlltoAll, Function::Gather, Function::Scatter] {
            equal(lasts_ns(&all, function, 100_000), 8400.0 + 3400.0 + busy);
        }
    });
}

#[test]
fn the_fastest_algorithm_and_protocol_is_chosen() {
    alone(|| {
        let all = Ranks::begin(machine());
        // Small: LL, in a ring. 4 bytes over half of the rate.
        let ll = 6600.0 + 6.0 * 600.0 + 1.5 * 4.0 / 45.0;
        equal(lasts_ns(&all, Function::AllReduce, 1), ll);
        // Large: the switch reduces, 2 (n - 1) / (n + 1) of the rate, of which 0.85 is reached.
        let bytes = 4.0 * 4_000_000.0;
        let nvls = 25_000.0 + 1.5 * bytes / (0.85 * 1.2 * RING_GB_S);
        equal(lasts_ns(&all, Function::AllReduce, 4_000_000), nvls);
    });
}

#[test]
fn without_the_switch_the_ring_is_chosen() {
    alone(|| {
        set("NCCL_NVLS_ENABLE", "0");
        set("NCCL_PROTO", "^LL128");
        let all = Ranks::begin(machine());
        let bytes = 4.0 * 4_000_000.0;
        equal(lasts_ns(&all, Function::AllReduce, 4_000_000), 28_800.0 + 1.5 * bytes / RING_GB_S);
    });
}

#[test]
fn without_peer_access_it_goes_through_host_memory() {
    alone(|| {
        set("NCCL_P2P_DISABLE", "1");
        set("NCCL_PROTO", "Simple");
        let all = Ranks::begin(machine());
        let bytes = 4.0 * 300_000.0;
        // 10 GB/s to the host, 16 from it; steps as over PCIe.
        equal(lasts_ns(&all, Function::Broadcast, 300_000), 8400.0 + 3.0 * 5700.0 + bytes / 10.0);
    });
}

/// What each GPU has carried since, if `work` is all that is done.
fn carried(gpus: u32, work: impl FnOnce()) -> Vec<crate::state::Traffic> {
    work();
    (0..gpus).map(crate::state::traffic).collect()
}

#[test]
fn a_detour_takes_the_time_of_pcie_and_is_counted_there() {
    alone(|| {
        set("NCCL_ALGO", "Ring");
        set("NCCL_PROTO", "Simple");
        let mut machine = machine_of(2);
        for pair in machine.pairs.iter_mut().filter(|pair| pair.source == 0) {
            pair.detour = true;
        }
        machine.gpus[0].pcie_up_gb_s = Some(20.0);
        let all = Ranks::begin(machine);
        let bytes = 4 * 300_000;
        let seen = carried(2, || {
            // Steps as over NVLink: nothing says so to the library.
            equal(
                lasts_ns(&all, Function::Broadcast, 300_000),
                8400.0 + 3400.0 + bytes as f64 / 20.0,
            );
        });
        assert_eq!((seen[0].pcie_tx_bytes, seen[0].nvlink_tx_bytes), (bytes, 0));
        assert_eq!((seen[1].pcie_rx_bytes, seen[1].nvlink_rx_bytes), (bytes, 0));
        assert_eq!((seen[1].pcie_tx_bytes, seen[1].nvlink_tx_bytes), (0, bytes));
    });
}

#[test]
fn what_ranks_of_one_gpu_send_each_other_leaves_no_gpu() {
    alone(|| {
        set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
        let contexts = begin(machine_of(1));
        let id = processes::new_id();
        let mut communicators = vec![0_u64; 2];
        good(nccl::ncclGroupStart());
        for (rank, communicator) in (0..).zip(&mut communicators) {
            good(nccl::ncclCommInitRank(Out::to(communicator), 2, id, rank));
        }
        good(nccl::ncclGroupEnd());
        let streams = vec![stream(), stream()];
        let all = Ranks { communicators, streams, contexts: vec![contexts[0]; 2] };
        let seen = carried(1, || {
            lasts_ns(&all, Function::AllReduce, 1000);
            lasts_ns(&all, Function::AlltoAll, 1000);
        });
        assert_eq!(seen, [crate::state::Traffic::default()]);
    });
}

#[test]
fn between_hosts_it_goes_over_the_network() {
    alone(|| {
        set("NCCL_P2P_DISABLE", "1");
        set("NCCL_SHM_DISABLE", "1");
        set("NCCL_PROTO", "Simple");
        let mut machine = machine_of(2);
        machine.nccl.net_gb_s = Some(5.0);
        let all = Ranks::begin(machine);
        let bytes = 4.0 * 300_000.0;
        equal(lasts_ns(&all, Function::Broadcast, 300_000), 8400.0 + 14_000.0 + bytes / 5.0);
    });
}

#[test]
fn a_tree_and_fewer_channels_move_their_share() {
    alone(|| {
        set("NCCL_ALGO", "allreduce:tree");
        set("NCCL_PROTO", "Simple");
        set("NCCL_MAX_NCHANNELS", "6");
        let all = Ranks::begin(machine());
        let (bytes, ring) = (4.0 * 300_000.0, RING_GB_S * 6.0 / 24.0);
        equal(
            lasts_ns(&all, Function::AllReduce, 300_000),
            8400.0 + 6.0 * 4000.0 + 2.0 * bytes / (0.92 * ring),
        );
        equal(lasts_ns(&all, Function::Broadcast, 300_000), 8400.0 + 3.0 * 3400.0 + bytes / ring);
    });
}

#[test]
fn an_algorithm_that_there_is_not_is_refused() {
    alone(|| {
        set("NCCL_ALGO", "CollNetDirect");
        let all = Ranks::begin(machine_of(2));
        let place = all.allocate(64);
        let (communicator, stream) = (all.communicators[0], all.streams[0]);
        assert_eq!(nccl::ncclAllReduce(place[0], place[0], 4, 7, 0, communicator, stream), 5);
        assert!(last_error().contains("NCCL_ALGO was set to CollNetDirect"), "{}", last_error());
    });
}

#[test]
fn a_collective_begins_when_the_last_rank_comes_and_all_go_on_together() {
    alone(|| {
        let all = Ranks::begin(machine());
        let places = all.allocate(1 << 20);
        let begun = mark(all.streams[0]);
        on(all.contexts[1]);
        // Within GPU 1: 1000 + 1048576 / 1000.
        ok(cuMemsetD8Async(places[1], 7, 1 << 20, all.streams[1]));
        let called = Called {
            function: Function::AllReduce,
            count: 1,
            data_type: DataType::Float32,
            operation: 0,
            root: 0,
        };
        good(all.group(|rank| {
            called.call(places[rank], places[rank], all.communicators[rank], all.streams[rank])
        }));
        on(all.contexts[0]);
        let ended = mark(all.streams[0]);
        all.synchronize();
        let ns = (time_ps(ended) - time_ps(begun)) as f64 / 1000.0;
        equal(ns, 1000.0 + 1048.576 + 10_200.0 + 1.5 * 4.0 / 45.0);
    });
}

#[test]
fn messages_end_with_the_last_partner() {
    alone(|| {
        let all = Ranks::begin(machine_of(3));
        let places = all.allocate(100_000);
        let marks = |all: &Ranks| -> Vec<u64> {
            (0..3)
                .map(|rank| {
                    on(all.contexts[rank]);
                    mark(all.streams[rank])
                })
                .collect()
        };
        let start = marks(&all);
        let (c, s) = (&all.communicators, &all.streams);
        // 0 to 1 alone; 1 from 0 and to 2 in one group; 2 from 1 behind a copy of its own.
        ok(cuMemsetD8Async(places[2], 7, 50_000, s[2]));
        good(nccl::ncclSend(places[0], 90_000, 1, 1, c[0], s[0]));
        good(nccl::ncclGroupStart());
        good(nccl::ncclRecv(places[1], 90_000, 1, 0, c[1], s[1]));
        good(nccl::ncclSend(places[1], 9000, 1, 2, c[1], s[1]));
        good(nccl::ncclGroupEnd());
        good(nccl::ncclRecv(places[2], 9000, 1, 1, c[2], s[2]));
        let end = marks(&all);
        all.synchronize();
        let ns = |rank: usize| (time_ps(end[rank]) - time_ps(start[rank])) as f64 / 1000.0;
        let own = 1000.0 + 50.0;
        equal(ns(0), 11_800.0 + 1000.0);
        equal(ns(1), own + 11_800.0 + 1000.0);
        equal(ns(2), own + 11_800.0 + 100.0);
    });
}

#[test]
fn jitter_and_the_counters_of_links_see_collectives() {
    alone(|| {
        set("NCCL_ALGO", "Ring");
        set("NCCL_PROTO", "Simple");
        let mut machine = machine();
        let jitter = crate::machine::Jitter {
            source: Some(3),
            target: Some(0),
            share: 1.0,
            extra_ns: 700.0,
            extra_share: 0.0,
            lasts_ns: 0.0,
            after_ns: 0.0,
            seed: 0,
        };
        let elsewhere = crate::machine::Jitter { source: Some(2), target: Some(0), ..jitter };
        machine.faults.jitter = vec![jitter, elsewhere];
        let all = Ranks::begin(machine);
        let bytes = 4.0 * 300_000.0;
        equal(
            lasts_ns(&all, Function::AllReduce, 300_000),
            700.0 + 28_800.0 + 1.5 * bytes / RING_GB_S,
        );
        let traffic = crate::state::traffic(2);
        assert_eq!((traffic.nvlink_tx_bytes, traffic.nvlink_rx_bytes), (1_800_000, 1_800_000));
    });
}

#[test]
fn an_algorithm_is_chosen_for_a_whole_group_and_connected_when_the_gpu_is_at_rest() {
    alone(|| {
        let all = Ranks::begin(machine());
        let places = all.allocate(1 << 20);
        let (flag, hold, held) = (pinned(64), kernel(c"hold"), stream());
        let call = |rank: usize| {
            let (place, communicator) = (places[rank], all.communicators[rank]);
            let float = DataType::Float32 as u32;
            nccl::ncclAllReduce(place, place, 1 << 16, float, 0, communicator, all.streams[rank])
        };
        // Whether a group of so many for each rank waits for a hold on the first GPU.
        let waits = |count: usize| {
            word(flag).store(0, Ordering::Release);
            ok(launch(hold, held, &[flag, 1, u64::MAX, flag + 8]));
            let waited = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    word(flag).store(1, Ordering::Release);
                });
                good(all.group(|rank| (0..count).map(|_| call(rank)).max().unwrap()));
                word(flag).load(Ordering::Acquire) == 1
            });
            ok(cuStreamSynchronize(held));
            all.synchronize();
            waited
        };
        // 256 KiB go by a tree or a ring, 64 times as much by the NVSwitch.
        assert!(waits(1));
        assert!(!waits(1));
        assert!(waits(64), "another algorithm");
        assert!(!waits(64));
        assert!(!waits(1));
    });
}
