//! Durations and order, worked out by hand. Where a comment has a sum, the terms are latency, then
//! bytes / rate, in nanoseconds.

use super::*;
use crate::{cuda::abi::*, machine::Jitter};

/// Bytes that last 10000 ns at 100 GB/s.
const MB: usize = 1_000_000;

/// Queues a copy with an event behind it; when it ends, in picoseconds, once it is done.
fn copy(target: u64, source: u64, bytes: usize, stream: u64) -> u64 {
    ok(cuMemcpyAsync(target, source, bytes, stream));
    mark(stream)
}

/// `bytes` on each GPU.
fn everywhere(contexts: &[u64], bytes: usize) -> Vec<u64> {
    let all = contexts.iter().map(|context| {
        on(*context);
        allocate(bytes)
    });
    let all = all.collect();
    on(contexts[0]);
    all
}

fn synchronize() {
    ok(cuCtxSynchronize());
}

#[test]
fn a_copy_lasts_its_latency_and_its_bytes() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, 1 << 20);
        let (near, far, host) = (memory[0], memory[1], pinned(1 << 20));
        let stream = stream();
        let mut before_ps = 0;
        for (target, source, bytes, wanted_ps) in [
            // A stream of the source writes: 2000 + 1048576 / 100.
            (far, near, 1 << 20, 12_485_760),
            // A stream of the target reads: 2500 + 1048576 / 80.
            (near, far, 1 << 20, 15_607_200),
            // 3000 + 1048576 / 20
            (near, host, 1 << 20, 55_428_800),
            // 3500 + 1048576 / 25
            (host, near, 1 << 20, 45_443_040),
            // 1000 + 524288 / 1000
            (near, near + (1 << 19), 1 << 19, 1_524_288),
            // Between two others a stream writes.
            (memory[2], far, 1 << 20, 12_485_760),
            // 1000 + 1 / 1000, 2000 + 1 / 100
            (near, near + 1, 1, 1_000_001),
            (far, near, 1, 2_000_010),
        ] {
            let end = copy(target, source, bytes, stream);
            synchronize();
            assert_eq!(time_ps(end) - before_ps, wanted_ps, "{bytes}");
            before_ps = time_ps(end);
        }
    });
}

#[test]
fn transfers_on_one_link_queue_and_their_latencies_overlap() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        let streams = [stream(), stream()];
        let ends = streams.map(|stream| copy(memory[1], memory[0], MB, stream));
        synchronize();
        // The link is busy for 10000 ns; the second begins then.
        assert_eq!(ends.map(time_ps), [12_000_000, 22_000_000]);
    });
}

#[test]
fn what_is_queued_first_comes_first_on_a_link_even_if_it_is_ready_later() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        let (first, second) = (stream(), stream());
        copy(memory[1], memory[0], MB, first);
        let behind = copy(memory[2], memory[0], MB, first);
        let alone = copy(memory[2], memory[0], MB, second);
        synchronize();
        // The one behind is ready at 12000 and has the link until 22000.
        assert_eq!([behind, alone].map(time_ps), [24_000_000, 34_000_000]);
    });
}

#[test]
fn the_two_directions_of_a_pair_do_not_disturb_each_other() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        let streams = [stream(), stream()];
        let there = copy(memory[1], memory[0], MB, streams[0]);
        // This stream's GPU is the target: 2500 + 1000000 / 80.
        let back = copy(memory[0], memory[1], MB, streams[1]);
        synchronize();
        assert_eq!([there, back].map(time_ps), [12_000_000, 15_000_000]);
    });
}

#[test]
fn what_leaves_a_gpu_shares_its_egress_and_what_arrives_its_ingress() {
    alone(|| {
        let mut machine = machine();
        machine.gpus[0].egress_gb_s = Some(150.0);
        machine.gpus[3].ingress_gb_s = Some(60.0);
        let contexts = begin(machine);
        let memory = everywhere(&contexts, 3 * MB);
        let streams = memory.clone().into_iter().map(|_| stream()).collect::<Vec<u64>>();
        let ends = memory[1..].iter().zip(streams);
        let ends = ends.map(|(target, stream)| copy(*target, memory[0], 3 * MB, stream));
        let ends: Vec<u64> = ends.collect();
        synchronize();
        // Each takes 2000 + 3000000 / 100 and occupies the egress for 3000000 / 150; the last
        // one goes at the ingress's rate: 2000 + 3000000 / 60.
        let ends: Vec<u64> = ends.into_iter().map(time_ps).collect();
        assert_eq!(ends, [32_000_000, 20_000_000 + 32_000_000, 40_000_000 + 52_000_000]);
    });
}

#[test]
fn each_direction_of_pcie_takes_one_transfer_after_the_other() {
    alone(|| {
        let mut machine = machine();
        machine.gpus[0].pcie_down_gb_s = Some(40.0);
        let contexts = begin(machine);
        let memory = everywhere(&contexts, MB);
        let host = pinned(4 * MB);
        let streams = [0; 4].map(|_| stream());
        let part = |part: usize| host + (part * MB) as u64;
        let down = [0, 1].map(|at| copy(memory[0], part(at), MB, streams[at]));
        let up = [2, 3].map(|at| copy(part(at), memory[0], MB, streams[at]));
        synchronize();
        // 3000 + 1000000 / 20, busy for 1000000 / 40 only.
        assert_eq!(down.map(time_ps), [53_000_000, 25_000_000 + 53_000_000]);
        // 3500 + 1000000 / 25, busy as long as the transfer's own rate says.
        assert_eq!(up.map(time_ps), [43_500_000, 40_000_000 + 43_500_000]);
    });
}

#[test]
fn without_peer_access_a_copy_goes_through_the_host() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        ok(cuCtxDisablePeerAccess(contexts[1]));
        let end = copy(memory[1], memory[0], MB, stream());
        synchronize();
        // 3500 + 3000 + 1000000 / 25 + 1000000 / 20
        assert_eq!(time_ps(end), 96_500_000);
        let traffic = [0, 1].map(crate::state::traffic);
        assert_eq!((traffic[0].pcie_tx_bytes, traffic[1].pcie_rx_bytes), (1_000_000, 1_000_000));
        assert_eq!(traffic[0].nvlink_tx_bytes, 0);
    });
}

#[test]
fn a_kernel_lasts_its_launch_and_what_lies_elsewhere() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, 2 * MB);
        let (near, far, further, host) = (memory[0], memory[1], memory[2], pinned(MB));
        let stream = stream();
        let [copies, reads, writes, fills, compares] =
            [c"copy_by_read", c"read_only", c"write_only", c"fill", c"compare"].map(kernel);
        let (b, result) = (MB as u64, pinned(64));
        let mut before_ps = 0;
        for (function, parameters, wanted_ps) in [
            // 4000 + 500 + 1000000 / 800
            (copies, vec![near, near + b, b], 5_750_000),
            // 4000 + 1800 + 1000000 / 50
            (copies, vec![near, far, b], 25_800_000),
            // 4000 + 1600 + 1000000 / 90
            (copies, vec![far, near, b], 16_711_111),
            // 4000 + 1800 + 1600 + 1000000 / 50
            (copies, vec![further, far, b], 27_400_000),
            // 4000 + 2000 + 1000000 / 16
            (copies, vec![near, host, b], 68_500_000),
            // 4000 + 1500 + 1000000 / 10
            (copies, vec![host, near, b], 105_500_000),
            (reads, vec![far, b, result], 25_800_000),
            (reads, vec![near, b, result], 5_750_000),
            (writes, vec![far, b, 1], 16_711_111),
            (fills, vec![near, b, 1, 0], 5_750_000),
            (compares, vec![near, b, 1, result], 5_750_000),
        ] {
            ok(launch(function, stream, &parameters));
            let end = mark(stream);
            synchronize();
            assert_eq!(time_ps(end) - before_ps, wanted_ps, "{parameters:?}");
            before_ps = time_ps(end);
        }
    });
}

#[test]
fn a_chase_takes_a_load_for_each_hop() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, 4096);
        let (cycles, result) = (allocate(400), allocate(24));
        let chase = kernel(c"chase");
        let stream = stream();
        let mut before_ps = 0;
        // 4000 + 100 × 900, and × 600: each element is its own successor.
        for (list, wanted_ps) in [(memory[1], 94_000_000), (memory[0], 64_000_000)] {
            ok(cuMemsetD8_v2(list, 0, 4096));
            synchronize();
            let start = mark(stream);
            ok(launch(chase, stream, &[list, 0, 100, cycles, result, 4096 - 8]));
            let end = mark(stream);
            synchronize();
            assert_eq!(time_ps(end) - time_ps(start), wanted_ps);
            let found = fetch(cycles, 400);
            let latency_ns = (wanted_ps - 4_000_000) / 100 / 1000;
            let counted =
                found.chunks(4).map(|c| u64::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]])));
            assert_eq!(counted.sum::<u64>(), 100 * latency_ns);
            assert!(time_ps(end) > before_ps);
            before_ps = time_ps(end);
        }
    });
}

#[test]
fn the_host_goes_on_only_when_it_waits() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        let (first, second) = (stream(), stream());
        let one = copy(memory[1], memory[0], MB, first);
        // Queued while the host is at 0: the link makes it wait, not the host.
        let two = copy(memory[2], memory[0], MB, second);
        ok(cuEventSynchronize(one));
        // The host is at 12000 now, so this begins there.
        let three = mark(stream());
        synchronize();
        assert_eq!([one, two, three].map(time_ps), [12_000_000, 12_000_000, 12_000_000]);
        // A successful query is a wait, too.
        let end = copy(memory[1], memory[0], MB, first);
        while cuStreamQuery(first) == 600 {}
        assert_eq!(time_ps(mark(second)), time_ps(end));
    });
}

#[test]
fn a_stream_that_waits_for_an_event_begins_when_that_is_reached() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        on(contexts[1]);
        let other = stream();
        on(contexts[0]);
        let own = stream();
        let end = copy(memory[1], memory[0], MB, own);
        ok(cuStreamWaitEvent(other, end, 0));
        on(contexts[1]);
        let begin = mark(other);
        // What the event records later is no longer waited for.
        on(contexts[0]);
        copy(memory[1], memory[0], MB, own);
        ok(cuEventRecord(end, own));
        synchronize();
        on(contexts[1]);
        synchronize();
        assert_eq!(time_ps(begin), 12_000_000);
        assert_eq!(time_ps(end), 24_000_000);
    });
}

#[test]
fn stream_0_waits_for_blocking_streams_and_they_for_it() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        let blocking: u64 = get(|out| cuStreamCreate(out, 0));
        let free = stream();
        copy(memory[1], memory[0], MB, blocking);
        let zero = copy(memory[2], memory[0], MB, 0);
        let after = mark(blocking);
        let beside = mark(free);
        synchronize();
        assert_eq!([zero, after, beside].map(time_ps), [24_000_000, 24_000_000, 0]);
    });
}

#[test]
fn times_are_rounded_down_to_the_resolution() {
    alone(|| {
        let mut machine = machine();
        machine.event_resolution_ns = 500;
        let contexts = begin(machine);
        let memory = everywhere(&contexts, 1 << 20);
        let stream = stream();
        let start = copy(memory[1], memory[0], 1 << 20, stream);
        let end = copy(memory[1], memory[0], 1 << 20, stream);
        synchronize();
        // 12485.76 and 24971.52 become 12000 and 24500.
        assert_eq!(ns(start, end).round(), 12_500.0);
    });
}

#[test]
fn recording_an_event_and_waiting_for_one_take_the_streams_time() {
    alone(|| {
        let mut machine = machine();
        machine.driver.event_ns = 1000;
        let contexts = begin(machine);
        let memory = everywhere(&contexts, 1 << 20);
        let streams = [stream(), stream()];
        let start = mark(streams[0]);
        let end = copy(memory[1], memory[0], MB, streams[0]);
        ok(cuStreamWaitEvent(streams[1], end, 0));
        let (after, again) = (mark(streams[1]), mark(streams[1]));
        synchronize();
        assert_eq!([start, end].map(time_ps), [1_000_000, 14_000_000]);
        // The wait, the record; a span without anything.
        assert_eq!([ns(end, after), ns(after, again)].map(f64::round), [2000.0, 1000.0]);
    });
}

/// When copies end of which the second waits for the first, and the third for nothing, in streams
/// of their own through so many connections.
fn through(connections: &str) -> [u64; 3] {
    // SAFETY: this process runs one test, and no other thread of it reads variables yet.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", connections) };
    let contexts = begin(machine());
    let memory = everywhere(&contexts, MB);
    let streams = [stream(), stream(), stream()];
    let first = copy(memory[1], memory[0], MB, streams[0]);
    ok(cuStreamWaitEvent(streams[1], first, 0));
    let ends = [(2, streams[1]), (3, streams[2])];
    let [second, third] = ends.map(|(target, stream)| copy(memory[target], memory[0], MB, stream));
    synchronize();
    [first, second, third].map(time_ps)
}

#[test]
fn streams_of_one_connection_begin_in_the_order_in_which_they_were_given_work() {
    // The third begins behind the event that waits for the second.
    alone(|| assert_eq!(through("1"), [12_000_000, 24_000_000, 36_000_000]));
}

#[test]
fn streams_of_different_connections_do_not_wait_for_each_other() {
    alone(|| assert_eq!(through("3"), [12_000_000, 24_000_000, 12_000_000]));
}

#[test]
fn the_time_between_two_events_is_wrong_by_no_more_than_is_said() {
    alone(|| {
        let mut machine = machine();
        machine.driver.event_error_ns = 500;
        let contexts = begin(machine);
        let memory = everywhere(&contexts, 1 << 20);
        let stream = stream();
        let events: Vec<u64> =
            (0..500).map(|at| copy(memory[1], memory[0], 1 + 777 * at, stream)).collect();
        synchronize();
        let errors = events.windows(2).map(|pair| {
            let is_ns = (time_ps(pair[1]) - time_ps(pair[0])) as f64 / 1000.0;
            let said_ns = ns(pair[0], pair[1]);
            assert!(said_ns >= 0.0);
            said_ns - is_ns
        });
        let errors: Vec<f64> = errors.collect();
        assert!(errors.iter().all(|error| error.abs() <= 501.0), "{errors:?}");
        assert!(errors.iter().any(|error| *error > 200.0), "{errors:?}");
        assert!(errors.iter().any(|error| *error < -200.0), "{errors:?}");
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(mean.abs() < 5.0, "{mean}");
    });
}

/// Jitter that hits nothing.
const NO_JITTER: Jitter = Jitter {
    source: None,
    target: None,
    share: 0.0,
    extra_ns: 0.0,
    extra_share: 0.0,
    lasts_ns: 0.0,
    after_ns: 0.0,
    seed: 0,
};

/// When 1000 copies of `bytes` from GPU 0 to `target` began, and how long each lasted; the first
/// lies behind what was timed before.
fn thousand(memory: &[u64], target: usize, bytes: usize) -> Vec<(u64, u64)> {
    let stream = stream();
    let start = mark(stream);
    let ends: Vec<u64> =
        (0..1000).map(|_| copy(memory[target], memory[0], bytes, stream)).collect();
    synchronize();
    let times: Vec<u64> = [start].iter().chain(&ends).map(|event| time_ps(*event)).collect();
    times.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect()
}

#[test]
fn jitter_hits_its_share_and_adds_to_the_duration_only() {
    alone(|| {
        let mut machine = machine();
        let (source, target) = (Some(0), Some(1));
        machine.faults.jitter =
            vec![Jitter { source, target, share: 0.25, extra_ns: 700.0, ..NO_JITTER }];
        let contexts = begin(machine);
        let memory = everywhere(&contexts, MB);
        let hit = thousand(&memory, 1, 1000);
        assert!(hit.iter().all(|(_, ps)| [2_010_000, 2_710_000].contains(ps)));
        let count = hit.iter().filter(|(_, ps)| *ps == 2_710_000).count();
        assert!((200..300).contains(&count), "{count} of 1000");
        let spared = thousand(&memory, 2, 1000);
        assert!(spared.iter().all(|(_, ps)| *ps == 2_010_000), "another target is spared");
    });
}

#[test]
fn jitter_by_a_share_of_the_time_is_uniform_from_none_to_twice_that() {
    alone(|| {
        let mut machine = machine();
        let whole = Jitter { share: 1.0, extra_share: 0.01, ..NO_JITTER };
        let half = Jitter { share: 0.5, target: Some(2), ..whole };
        machine.faults.jitter = vec![Jitter { target: Some(1), ..whole }, half];
        let contexts = begin(machine);
        let memory = everywhere(&contexts, MB);
        let all = thousand(&memory, 1, MB);
        // SplitMix64 from seed 0 begins with these (test vectors of its authors' C code).
        let drawn: [u64; 3] = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        for ((_, ps), drawn) in all.iter().zip(drawn) {
            let wanted = 12e6 * (1.0 + 0.02 * drawn as f64 / 2_f64.powi(64));
            assert!((*ps as f64 - wanted).abs() <= 1.0, "{ps} ps, not {wanted}");
        }
        let extra = |all: &[(u64, u64)]| {
            let mut extra: Vec<f64> = all.iter().map(|(_, ps)| *ps as f64 / 12e6 - 1.0).collect();
            extra.sort_unstable_by(f64::total_cmp);
            extra
        };
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-3, "{found}");
        let quantiles = extra(&all);
        for (place, wanted) in [(0, 0.0), (250, 0.005), (500, 0.01), (750, 0.015), (999, 0.02)] {
            near(quantiles[place], wanted);
        }
        // Of those that are hit as well; the others last no longer.
        let quantiles = extra(&thousand(&memory, 2, MB));
        let first = quantiles.iter().position(|extra| *extra > 0.0).unwrap();
        assert!((450..550).contains(&first), "{first} of 1000 are not hit");
        near(quantiles[(first + 1000) / 2], 0.01);
    });
}

#[test]
fn jitter_that_lasts_is_the_same_for_all_that_begins_meanwhile() {
    alone(|| {
        let mut machine = machine();
        let lasts_ns = 100_000.0;
        machine.faults.jitter =
            vec![Jitter { share: 1.0, extra_share: 0.01, lasts_ns, ..NO_JITTER }];
        let contexts = begin(machine);
        let memory = everywhere(&contexts, MB);
        let all = thousand(&memory, 1, MB);
        let mut drawn: Vec<u64> = Vec::new();
        for pair in all.windows(2) {
            let [(start, ps), (next, next_ps)] = pair else { unreachable!() };
            // Of 12 µs each, some eight begin in 100 µs.
            let is_same = start / 100_000_000 == next / 100_000_000;
            assert_eq!(ps == next_ps, is_same, "{pair:?}");
            drawn.extend((!is_same).then_some(*next_ps));
        }
        assert!((115..125).contains(&drawn.len()), "{}", drawn.len());
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(*least < 12_024_000 && *most > 12_216_000, "{least} to {most}");
    });
}

#[test]
fn traffic_is_counted_at_both_ends() {
    alone(|| {
        let contexts = begin(machine());
        let memory = everywhere(&contexts, MB);
        let host = pinned(MB);
        let stream = stream();
        copy(memory[1], memory[0], MB, stream);
        copy(memory[0], memory[1], 1000, stream);
        copy(memory[0], host, 300, stream);
        copy(host, memory[0], 20, stream);
        synchronize();
        let [near, far] = [0, 1].map(crate::state::traffic);
        assert_eq!((near.nvlink_tx_bytes, near.nvlink_rx_bytes), (1_000_000, 1000));
        assert_eq!((far.nvlink_tx_bytes, far.nvlink_rx_bytes), (1000, 1_000_000));
        assert_eq!((near.pcie_rx_bytes, near.pcie_tx_bytes), (300, 20));
    });
}
