//! Gates: kernels that hold, waits for values, functions of the host.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    cuda::abi::*,
    timing::{RING, STREAMS},
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
        let hold = |context, ticket: u64| {
            on(context);
            let stream = stream();
            ok(launch(kernel(c"hold"), stream, &[flag, ticket, LONG, flag + 8]));
            (stream, mark(stream))
        };
        let (_, early) = hold(contexts[0], 1);
        // The host goes on to 2000.01 while the first one holds.
        let near = allocate(64);
        on(contexts[1]);
        let far = allocate(64);
        on(contexts[0]);
        let busy = stream();
        ok(cuMemcpyAsync(far, near, 1, busy));
        ok(cuStreamSynchronize(busy));
        let (_, late) = hold(contexts[1], 1);
        let (waiting, _) = hold(contexts[2], 2);
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
        let streams = [stream(), stream()];
        // Queued the other way round.
        let ends = [streams[1], streams[0]].map(|stream| {
            ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, flag + 8]));
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
        let reader = stream();
        let start = mark(reader);
        ok(cuStreamWaitValue32_v2(reader, flag, 3, 0));
        let released = mark(reader);
        let back = pinned(1_000_000);
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

#[test]
fn a_stream_takes_4096_operations_behind_a_hold_and_more_as_it_goes_on() {
    alone(|| {
        begin(machine());
        let (flag, there, stream) = (pinned(64), allocate(64), stream());
        ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, flag + 8]));
        for _ in 0..4095 {
            ok(cuMemsetD8Async(there, 9, 64, stream));
        }
        assert_eq!(cuStreamQuery(stream), 600);
        word(flag).store(1, Ordering::Release);
        // Room comes as the queue goes on.
        for _ in 0..20_000 {
            ok(cuMemsetD8Async(there, 8, 64, stream));
        }
        ok(cuStreamSynchronize(stream));
        assert_eq!(fetch(there, 64), [8; 64]);
    });
}

#[test]
fn a_full_queue_behind_a_hold_is_an_error_after_ten_seconds() {
    alone(|| {
        begin(machine());
        let (flag, there, stream) = (pinned(64), allocate(64), stream());
        ok(launch(kernel(c"hold"), stream, &[flag, 1, LONG, flag + 8]));
        let began = Instant::now();
        let code =
            (0..10_000).map(|_| cuMemsetD8Async(there, 9, 64, stream)).find(|code| *code != 0);
        assert_eq!(code, Some(702));
        assert!(began.elapsed() >= Duration::from_secs(10));
        let began = Instant::now();
        assert_eq!(cuStreamQuery(stream), 600, "asking needs no room");
        assert!(began.elapsed() < Duration::from_secs(5));
        word(flag).store(1, Ordering::Release);
        ok(cuStreamSynchronize(stream));
        ok(cuMemsetD8Async(there, 9, 64, stream));
    });
}

#[test]
fn where_all_streams_together_have_too_much_to_do_a_caller_waits_for_any_of_them() {
    alone(|| {
        begin(machine());
        let (flag, there) = (pinned(64), allocate(64));
        let mut held = 0;
        for number in 0..RING - STREAMS - 1 {
            if number % 4000 == 0 {
                held = stream();
                ok(cuStreamWaitValue32_v2(held, flag, 1, 0));
            } else {
                ok(cuMemsetD8Async(there, 9, 1, held));
            }
        }
        let idle = stream();
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
