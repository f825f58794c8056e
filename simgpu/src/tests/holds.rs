//! Gates: kernels that hold, waits for values, functions of the host.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    cuda::abi::*,
    timing::{QUEUE, RING, STREAMS},
};

/// Longer than any test takes, in nanoseconds.
const LONG: u64 = 60_000_000_000;

/// Lets the other threads get as far as they can.
fn settle() {
    thread::sleep(Duration::from_millis(20));
}

#[test]
fn a_hold_keeps_its_stream_until_the_flag_is_set() {
    alone(|| {
        begin(machine());
        let (flag, there, stream) = (pinned(64), allocate(8), stream());
        ok(launch(kernel(c"hold"), stream, &[flag, 5, LONG, flag + 8]));
        ok(cuMemsetD8Async(there, 1, 8, stream));
        settle();
        assert_eq!(cuStreamQuery(stream), 600);
        word(flag).store(4, Ordering::Release);
        settle();
        assert_eq!(cuStreamQuery(stream), 600, "the ticket is not reached");
        word(flag).store(5, Ordering::Release);
        ok(cuStreamSynchronize(stream));
        assert_eq!(fetch(there, 8), [1; 8]);
        assert_eq!(word(flag + 8).load(Ordering::Acquire), 0, "it did not time out");
    });
}

#[test]
fn a_hold_in_vain_lets_go_after_its_time_and_says_so() {
    alone(|| {
        begin(machine());
        let (flag, stream) = (pinned(64), stream());
        let began = Instant::now();
        ok(launch(kernel(c"hold"), stream, &[flag, 1, 50_000_000, flag + 8]));
        ok(cuStreamSynchronize(stream));
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert_eq!(word(flag + 8).load(Ordering::Acquire), 1);
    });
}

#[test]
fn streams_that_one_word_holds_begin_at_one_time() {
    alone(|| {
        let contexts = begin(machine());
        let flag = pinned(64);
        let made = [0, 1, 2].map(|gpu| {
            on(contexts[gpu]);
            (contexts[gpu], kernel(c"hold"), stream(), allocate(64))
        });
        let [near, far, _] = made.map(|(.., memory)| memory);
        let hold = |(context, hold, stream, _), ticket: u64| {
            on(context);
            ok(launch(hold, stream, &[flag, ticket, LONG, flag + 8]));
            (stream, mark(stream))
        };
        on(contexts[0]);
        let busy = stream();
        let (_, early) = hold(made[0], 1);
        // The host goes on to 2000.01 while the first one holds.
        ok(cuMemcpyAsync(far, near, 1, busy));
        ok(cuStreamSynchronize(busy));
        let (_, late) = hold(made[1], 1);
        let (waiting, _) = hold(made[2], 2);
        settle();
        word(flag).store(1, Ordering::Release);
        ok(cuEventSynchronize(early));
        ok(cuEventSynchronize(late));
        assert_eq!([early, late].map(time_ps), [2_000_010, 2_000_010]);
        assert_eq!(cuStreamQuery(waiting), 600, "its ticket is not reached");
        word(flag).store(2, Ordering::Release);
        ok(cuStreamSynchronize(waiting));
    });
}

#[test]
fn of_streams_that_are_ready_together_the_older_one_comes_first() {
    alone(|| {
        let contexts = begin(machine());
        let (flag, near) = (pinned(64), allocate(100_000));
        on(contexts[1]);
        let far = allocate(100_000);
        on(contexts[0]);
        let (hold, streams) = (kernel(c"hold"), [stream(), stream()]);
        // Queued the other way round.
        let ends = [streams[1], streams[0]].map(|stream| {
            ok(launch(hold, stream, &[flag, 1, LONG, flag + 8]));
            ok(cuMemcpyAsync(far, near, 100_000, stream));
            mark(stream)
        });
        word(flag).store(1, Ordering::Release);
        ok(cuCtxSynchronize());
        // 2000 + 100000 / 100, and the other one behind it on the link.
        assert_eq!(ends.map(time_ps), [4_000_000, 3_000_000]);
    });
}

/// Whether a call returns only after a stream that is held 50 ms has gone on.
fn waits_for_a_held_stream(stream: u64, flag: u64, call: impl FnOnce()) -> bool {
    word(flag).store(0, Ordering::Release);
    ok(cuStreamWaitValue32_v2(stream, flag, 1, 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            word(flag).store(1, Ordering::Release);
        });
        call();
        word(flag).load(Ordering::Acquire) == 1
    })
}

#[test]
fn what_waits_for_a_whole_context_waits_for_each_of_its_streams() {
    alone(|| {
        let contexts = begin(machine());
        on(contexts[1]);
        let flag = pinned(64);
        on(contexts[0]);
        let (there, host) = (allocate(64), pinned(64));
        ok(cuMemsetD8_v2(there, 0, 64));
        let held = stream();
        assert!(waits_for_a_held_stream(held, flag, || ok(cuCtxSynchronize())));
        assert!(waits_for_a_held_stream(held, flag, || ok(cuMemFree_v2(there))));
        assert!(waits_for_a_held_stream(held, flag, || ok(cuMemFreeHost(host))));
        // Another GPU's work does not keep this one's memory.
        on(contexts[1]);
        let other = allocate(64);
        assert!(!waits_for_a_held_stream(held, flag, || ok(cuMemFree_v2(other))));
        on(contexts[0]);
        assert!(waits_for_a_held_stream(held, flag, || ok(cuDevicePrimaryCtxReset_v2(0))));
    });
}

#[test]
fn what_nobody_waits_for_is_done_all_the_same() {
    alone(|| {
        begin(machine());
        let (flag, stream) = (pinned(64), stream());
        for value in 1..=20 {
            let began = Instant::now();
            ok(cuStreamWriteValue32_v2(stream, flag, value, 0));
            while word(flag).load(Ordering::Acquire) != value {
                assert!(began.elapsed() < Duration::from_secs(10), "{value}");
                thread::yield_now();
            }
            // Now and then so long that nothing in the driver is awake any more.
            if value % 4 == 0 {
                settle();
            }
        }
    });
}

#[test]
fn a_hold_takes_no_time() {
    alone(|| {
        begin(machine());
        let (flag, stream) = (pinned(64), stream());
        let start = mark(stream);
        ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, flag + 8]));
        let end = mark(stream);
        settle();
        word(flag).store(1, Ordering::Release);
        ok(cuStreamSynchronize(stream));
        assert_eq!(time_ps(end), time_ps(start));
    });
}

#[test]
fn a_wait_for_a_value_ends_when_a_stream_writes_it() {
    alone(|| {
        let contexts = begin(machine());
        let (flag, target) = (allocate(64), allocate(1_000_000));
        ok(cuMemsetD8_v2(flag, 0, 64));
        ok(cuCtxSynchronize());
        on(contexts[1]);
        let source = allocate(1_000_000);
        put(source, &bytes(1_000_000, 7));
        let writer = stream();
        on(contexts[0]);
        let (reader, back) = (stream(), pinned(1_000_000));
        let start = mark(reader);
        ok(cuStreamWaitValue32_v2(reader, flag, 3, 0));
        let released = mark(reader);
        ok(cuMemcpyAsync(back, target, 1_000_000, reader));
        settle();
        assert_eq!(cuStreamQuery(reader), 600);
        on(contexts[1]);
        ok(cuMemcpyAsync(target, source, 1_000_000, writer));
        ok(cuStreamWriteValue32_v2(writer, flag, 2, 0));
        ok(cuMemcpyAsync(target, source, 1_000_000, writer));
        ok(cuStreamWriteValue32_v2(writer, flag, 3, 0));
        on(contexts[0]);
        ok(cuStreamSynchronize(reader));
        assert_eq!(time_ps(released) - time_ps(start), 24_000_000);
        // SAFETY: the memory is there until the process ends, and nothing writes it any more.
        let found = unsafe { std::slice::from_raw_parts(back as *const u8, 1_000_000) };
        assert!(found == bytes(1_000_000, 7), "what was written before the value is there");
    });
}

#[test]
fn a_wait_for_a_value_looks_at_what_the_host_writes() {
    alone(|| {
        begin(machine());
        let (flag, stream) = (pinned(64), stream());
        for (test, value, before, after) in
            [(0, 5, 4, 5), (1, 7, 6, 7), (2, 0b100, 0b011, 0b110), (3, 0xFFFF_0000, 0xFFFF, 0xFF)]
        {
            word(flag).store(before, Ordering::Release);
            ok(cuStreamWaitValue32_v2(stream, flag, value, test));
            settle();
            assert_eq!(cuStreamQuery(stream), 600, "test {test}");
            word(flag).store(after, Ordering::Release);
            ok(cuStreamSynchronize(stream));
        }
        ok(cuStreamWriteValue64_v2(stream, flag, 1 << 40, 0));
        ok(cuStreamWaitValue64_v2(stream, flag, 1 << 40, 0));
        ok(cuStreamSynchronize(stream));
    });
}

#[test]
fn a_value_that_the_host_took_back_is_waited_for_again() {
    alone(|| {
        begin(machine());
        let (flag, writer, reader) = (pinned(64), stream(), stream());
        ok(cuStreamWriteValue32_v2(writer, flag, 1, 0));
        ok(cuStreamWaitValue32_v2(reader, flag, 1, 0));
        ok(cuStreamSynchronize(reader));
        word(flag).store(0, Ordering::Release);
        ok(cuStreamWaitValue32_v2(reader, flag, 1, 0));
        settle();
        assert_eq!(cuStreamQuery(reader), 600);
        ok(cuStreamWriteValue32_v2(writer, flag, 1, 0));
        ok(cuStreamSynchronize(reader));
    });
}

#[test]
fn streams_that_pass_a_word_to_and_fro_take_turns() {
    alone(|| {
        let contexts = begin(machine());
        let flags = [allocate(64), allocate(64)];
        for flag in flags {
            ok(cuMemsetD8_v2(flag, 0, 64));
        }
        let near = allocate(1000);
        on(contexts[1]);
        let far = allocate(1000);
        on(contexts[0]);
        ok(cuCtxSynchronize());
        let [ping, pong] = [stream(), stream()];
        let start = mark(ping);
        for round in 1..=50 {
            ok(cuMemcpyAsync(far, near, 1000, ping));
            ok(cuStreamWriteValue32_v2(ping, flags[0], round, 0));
            ok(cuStreamWaitValue32_v2(ping, flags[1], round, 0));
            ok(cuStreamWaitValue32_v2(pong, flags[0], round, 0));
            ok(cuMemcpyAsync(near, far, 1000, pong));
            ok(cuStreamWriteValue32_v2(pong, flags[1], round, 0));
        }
        let end = mark(ping);
        ok(cuCtxSynchronize());
        // Each round is a write, 2000 + 1000 / 100, and a read, 2500 + 1000 / 80.
        assert_eq!(time_ps(end) - time_ps(start), 50 * (2_010_000 + 2_512_500));
    });
}

extern "C" fn add_one(data: *mut c_void) {
    word(data as u64).fetch_add(1, Ordering::AcqRel);
}

extern "C" fn wait_for_one(data: *mut c_void) {
    while word(data as u64).load(Ordering::Acquire) == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_function_of_the_host_is_called_in_its_turn_and_keeps_no_other_stream() {
    alone(|| {
        begin(machine());
        let (data, one, other) = (pinned(64), stream(), stream());
        ok(cuLaunchHostFunc(one, Some(wait_for_one), data as *mut c_void));
        ok(cuLaunchHostFunc(one, Some(add_one), data as *mut c_void));
        settle();
        assert_eq!(cuStreamQuery(one), 600);
        ok(cuLaunchHostFunc(other, Some(add_one), data as *mut c_void));
        ok(cuStreamSynchronize(one));
        assert_eq!(word(data).load(Ordering::Acquire), 2);
        assert_eq!(cuLaunchHostFunc(one, None, data as *mut c_void), 1);
    });
}

/// Fills the queue of a stream behind a hold; how many entries it takes without waiting.
fn entries_behind_a_hold(flag: u64, stream: u64, queue: impl Fn() + Send + Sync) -> usize {
    ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, flag + 8]));
    let entries = AtomicUsize::new(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while seen != entries.load(Ordering::Acquire) {
                seen = entries.load(Ordering::Acquire);
                thread::sleep(Duration::from_millis(100));
            }
            word(flag).store(1, Ordering::Release);
        });
        while word(flag).load(Ordering::Acquire) == 0 {
            queue();
            entries.fetch_add(1, Ordering::AcqRel);
        }
    });
    // The last one came when there was room again.
    entries.into_inner() - 1
}

#[test]
fn a_call_waits_while_its_stream_has_1024_entries_of_any_kind() {
    alone(|| {
        let contexts = begin(machine());
        let (flag, there, stream, other) = (pinned(64), allocate(64), stream(), stream());
        let (event, turn) = (event(), AtomicUsize::new(0));
        let queue = || {
            on(contexts[0]);
            match turn.fetch_add(1, Ordering::Relaxed) % 5 {
                0 => ok(cuMemsetD8Async(there, 9, 64, stream)),
                1 => ok(cuEventRecord(event, stream)),
                2 => ok(cuStreamWaitEvent(stream, event, 0)),
                3 => ok(cuStreamWriteValue32_v2(stream, flag + 32, 7, 0)),
                _ => ok(cuStreamWaitValue32_v2(stream, flag + 32, 7, 0)),
            }
        };
        assert_eq!(entries_behind_a_hold(flag, stream, queue), 1024);
        ok(cuStreamSynchronize(stream));
        // Room comes as the queue goes on; another stream has a queue of its own.
        for _ in 0..20_000 {
            ok(cuMemsetD8Async(there, 8, 64, other));
        }
        ok(cuStreamSynchronize(other));
        assert_eq!(fetch(there, 64), [8; 64]);
    });
}

#[test]
fn a_machine_can_have_shorter_queues() {
    alone(|| {
        let contexts = begin(Machine {
            driver: Driver { queue_entries: 100, ..machine().driver },
            ..machine()
        });
        let (flag, event, stream) = (pinned(64), event(), stream());
        let queue = || {
            on(contexts[0]);
            ok(cuEventRecord(event, stream));
        };
        assert_eq!(entries_behind_a_hold(flag, stream, queue), 100);
    });
}

/// Whether a call waits for the end of a hold of 50 ms, which it comes behind.
fn waits_for_a_hold(hold: (u64, u64), flag: u64, call: impl FnOnce()) -> bool {
    let (kernel, stream) = hold;
    word(flag).store(0, Ordering::Release);
    ok(launch(kernel, stream, &[flag, 1, LONG, flag + 8]));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            word(flag).store(1, Ordering::Release);
        });
        call();
        let waited = word(flag).load(Ordering::Acquire) == 1;
        ok(cuStreamSynchronize(stream));
        waited
    })
}

#[test]
fn what_changes_a_context_waits_for_the_kernels_that_run_in_it() {
    alone(|| {
        let contexts = begin(machine());
        on(contexts[1]);
        // The flag is of another context, which is at rest.
        let flag = pinned(64);
        on(contexts[0]);
        let hold = (kernel(c"hold"), stream());
        let own = vec![0_u8; 4096];
        let address = own.as_ptr() as u64;
        let waits = |call: &dyn Fn()| waits_for_a_hold(hold, flag, call);
        assert!(waits(&|| _ = stream()));
        assert!(waits(&|| ok(cuMemFree_v2(allocate(64)))));
        assert!(waits(&|| ok(cuMemFreeHost(pinned(64)))));
        assert!(waits(&|| ok(cuMemHostRegister_v2(address, 4096, 0))));
        assert!(waits(&|| ok(cuMemHostUnregister(address))));
        assert!(waits(&|| _ = kernel(c"fill")));
        // Of which CUDA's documentation says that they return at once, or that make nothing.
        let (other, event) = (stream(), event());
        assert!(!waits(&|| _ = super::event()));
        assert!(!waits(&|| ok(cuEventDestroy_v2(event))));
        assert!(!waits(&|| ok(cuStreamDestroy_v2(other))));
        assert!(!waits(&|| _ = get(|free| cuMemGetInfo_v2(free, Out::to(&mut 0)))));
        on(contexts[1]);
        assert!(!waits(&|| _ = allocate(64)), "another GPU's context is at rest");
    });
}

#[test]
fn the_first_work_of_each_kind_waits_for_the_kernels_that_run_in_its_context() {
    alone(|| {
        begin(machine());
        let (hold, fill) = (kernel(c"hold"), kernel(c"fill"));
        let (flag, there, held, stream) = (pinned(64), allocate(1 << 20), stream(), stream());
        use_nothing();
        // The hold itself is used first where nothing runs.
        ok(launch(hold, held, &[flag, 0, LONG, flag + 8]));
        ok(cuStreamSynchronize(held));
        let queued: [&dyn Fn(); 10] = [
            &|| ok(cuMemsetD8Async(there, 1, 64, stream)),
            &|| ok(cuMemsetD16Async(there, 1, 32, stream)),
            &|| ok(cuMemsetD32Async(there, 1, 16, stream)),
            &|| ok(cuMemcpyAsync(there, there + (1 << 19), 64, stream)),
            &|| ok(cuMemcpyAsync(there, there + (1 << 19), 65, stream)),
            &|| ok(cuMemcpyAsync(there, there + (1 << 19), 1 << 17, stream)),
            &|| ok(cuMemcpyAsync(there + 1, there + (1 << 19), 1 << 17, stream)),
            &|| ok(cuStreamWriteValue32_v2(stream, there, 1, 0)),
            &|| ok(cuStreamWaitValue32_v2(stream, there, 1, 0)),
            &|| ok(launch(fill, stream, &[there, 64, 1, 0])),
        ];
        for (at, queue) in queued.into_iter().enumerate() {
            assert!(waits_for_a_hold((hold, held), flag, queue), "{at}");
            assert!(!waits_for_a_hold((hold, held), flag, queue), "{at} again");
            ok(cuStreamSynchronize(stream));
        }
        use_nothing();
        ok(launch(hold, held, &[flag, 0, LONG, flag + 8]));
        ok(cuStreamSynchronize(held));
        ok(cuFuncLoad(fill));
        let filled = || ok(launch(fill, stream, &[there, 64, 1, 0]));
        assert!(!waits_for_a_hold((hold, held), flag, filled), "it was loaded before");
    });
}

#[test]
fn a_graph_that_was_not_uploaded_is_at_its_first_launch() {
    alone(|| {
        begin(machine());
        let (hold, flag, there) = (kernel(c"hold"), pinned(64), allocate(64));
        let (held, stream) = (stream(), stream());
        let graph = || {
            ok(cuStreamBeginCapture_v2(stream, 0));
            ok(cuMemsetD8Async(there, 1, 64, stream));
            let graph = get(|graph| cuStreamEndCapture(stream, graph));
            get(|made| cuGraphInstantiateWithFlags(made, graph, 0))
        };
        let (one, other) = (graph(), graph());
        let launched = |graph| move || ok(cuGraphLaunch(graph, stream));
        assert!(waits_for_a_hold((hold, held), flag, launched(one)));
        assert!(!waits_for_a_hold((hold, held), flag, launched(one)));
        ok(cuGraphUpload(other, stream));
        assert!(!waits_for_a_hold((hold, held), flag, launched(other)));
    });
}

#[test]
fn where_all_streams_together_have_too_much_to_do_a_caller_waits_for_any_of_them() {
    alone(|| {
        begin(machine());
        let (flag, there, idle) = (pinned(64), allocate(64), stream());
        // A queue is left for each stream 0.
        let streams: Vec<u64> = (0..(RING - STREAMS).div_ceil(QUEUE)).map(|_| stream()).collect();
        for number in 0..RING - STREAMS {
            let held = streams[number / QUEUE];
            if number % QUEUE == 0 {
                ok(cuStreamWaitValue32_v2(held, flag, 1, 0));
            } else {
                ok(cuMemsetD8Async(there, 9, 1, held));
            }
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                settle();
                word(flag).store(1, Ordering::Release);
            });
            ok(cuMemsetD8Async(there, 9, 1, idle));
        });
        ok(cuCtxSynchronize());
    });
}
