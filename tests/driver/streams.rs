//! What follows what, and what waits for what.

use super::*;

on_both_machines! {
    one GPU: [
        operations_of_a_stream_follow_each_other
        the_time_between_events_grows_with_what_is_between_them
        an_event_that_was_never_recorded_has_no_time
        an_event_is_reached_when_what_is_before_it_is_done
        a_stream_waits_for_an_event_of_another
        a_stream_waits_for_a_value_that_another_writes
        a_hold_holds_until_its_flag_has_reached_the_ticket
        a_hold_whose_time_is_over_says_so
    ]
    two GPUs: [
        contexts_take_turns_in_one_thread
    ]
}

fn operations_of_a_stream_follow_each_other(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let (near, far) = (buffer(&gpus[0], 1 << 20), buffer(&gpus[0], 1 << 20));
    for round in 0..20 {
        gpu.stream.set(near.all(), round).unwrap();
        gpu.stream.copy(far.all(), near.all()).unwrap();
        gpu.stream.set(near.all(), 0xEE).unwrap();
        gpu.stream.copy(part(&near, 1000, 10), part(&far, 0, 10)).unwrap();
        assert!(gpu.read(far.all()).iter().all(|&byte| byte == round));
        let found = gpu.read(part(&near, 999, 12));
        assert_eq!(found, [&[0xEE], &[round; 10][..], &[0xEE]].concat());
    }
}

fn the_time_between_events_grows_with_what_is_between_them(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    let (near, far) = (buffer(&gpus[0], 32 << 20), buffer(&gpus[0], 32 << 20));
    let events: Vec<Event> = (0..4).map(|_| Event::new(&gpus[0]).unwrap()).collect();
    gpu.stream.record(&events[0]).unwrap();
    for event in &events[1..] {
        gpu.stream.copy(far.all(), near.all()).unwrap();
        gpu.stream.record(event).unwrap();
    }
    let early = events[1].elapsed_since(&events[0]).err();
    gpu.finish();
    assert!(early.is_none_or(|err| code(&err) == 600), "not ready");
    let times: Vec<Duration> =
        events.iter().map(|event| event.elapsed_since(&events[0]).unwrap()).collect();
    assert_eq!(times[0], Duration::ZERO);
    assert!(times.is_sorted_by(|sooner, later| sooner < later), "{times:?}");
    assert!(times[3] < PATIENCE, "{times:?}");
    assert_eq!(events[0].elapsed_since(&events[3]).unwrap(), Duration::ZERO);
}

fn an_event_is_reached_when_what_is_before_it_is_done(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    let event = Event::new(&gpus[0]).unwrap();
    gpu.hold(1, PATIENCE);
    gpu.stream.record(&event).unwrap();
    std::thread::sleep(MOMENT);
    assert!(!event.is_reached().unwrap());
    gpu.release(1);
    gpu.finish();
    assert!(event.is_reached().unwrap());
}

fn an_event_that_was_never_recorded_has_no_time(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    let (recorded, other) = (Event::new(&gpus[0]).unwrap(), Event::new(&gpus[0]).unwrap());
    gpu.stream.record(&recorded).unwrap();
    gpu.finish();
    let err = recorded.elapsed_since(&other).unwrap_err();
    let text = "cuEventElapsedTime(an event of GPU 0) failed: CUDA_ERROR_INVALID_HANDLE (400): ";
    assert!(err.to_string().starts_with(text), "{err}");
}

fn a_stream_waits_for_an_event_of_another(gpus: &[Context]) {
    let (first, mut second) = (Gpu::new(&gpus[0]), Gpu::new(&gpus[0]));
    let memory = buffer(&gpus[0], 1 << 20);
    let event = Event::new(&gpus[0]).unwrap();
    second.stream.set(memory.all(), 1).unwrap();
    second.finish();
    first.hold(1, PATIENCE);
    first.stream.set(memory.all(), 2).unwrap();
    first.stream.record(&event).unwrap();
    second.stream.wait(&event).unwrap();
    let copy = second.host.slice(PAGE, memory.size());
    second.stream.copy(copy, memory.all()).unwrap();
    assert!(first.is_busy() && second.is_busy());
    first.release(1);
    assert!(second.read(memory.all()).iter().all(|&byte| byte == 2));
}

fn a_stream_waits_for_a_value_that_another_writes(gpus: &[Context]) {
    let (mut first, second) = (Gpu::new(&gpus[0]), Gpu::new(&gpus[0]));
    let memory = buffer(&gpus[0], 1 << 20);
    // Of the values that follow each other in a cycle, the last is met by one beyond it.
    for (wanted, written) in [(1, 1), (u32::MAX - 1, u32::MAX - 1), (u32::MAX, 1)] {
        first.stream.set(memory.all(), 1).unwrap();
        first.finish();
        let word = second.host.slice(FLAG, Bytes::new(4));
        first.stream.wait_value(word, wanted).unwrap();
        let copy = first.host.slice(PAGE, memory.size());
        first.stream.copy(copy, memory.all()).unwrap();
        assert!(first.is_busy(), "{wanted}");
        second.stream.set(memory.all(), 2).unwrap();
        second.stream.write_value(word, written).unwrap();
        first.finish();
        let found = first.host.bytes(PATIENCE).unwrap();
        assert!(found[PAGE.to_len().unwrap()..][..1 << 20].iter().all(|&byte| byte == 2));
        assert_eq!(second.host.word(FLAG).load(Ordering::Acquire), written);
        // Close enough to the next for it to be ahead.
        second.release(u32::MAX - 2);
    }
}

fn a_hold_holds_until_its_flag_has_reached_the_ticket(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    for (before, ticket, released) in [(0, 3, 3), (3, 4, 7), (u32::MAX, 1, 1), (1, 2, 1 << 31)] {
        gpu.release(before);
        gpu.hold(ticket, PATIENCE);
        gpu.stream.set(gpu.host.slice(PAGE, Bytes::new(1)), 1).unwrap();
        assert!(gpu.is_busy(), "{ticket}");
        gpu.release(ticket.wrapping_sub(1));
        assert!(gpu.is_busy(), "{ticket}");
        gpu.release(released);
        gpu.finish();
        assert_eq!(gpu.host.word(TIMED_OUT).load(Ordering::Acquire), 0);
    }
}

fn a_hold_whose_time_is_over_says_so(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    let begin = Instant::now();
    gpu.hold(1, 2 * MOMENT);
    gpu.finish();
    assert!(begin.elapsed() >= 2 * MOMENT);
    assert_eq!(gpu.host.word(TIMED_OUT).load(Ordering::Acquire), 1);
}

fn contexts_take_turns_in_one_thread(gpus: &[Context]) {
    let [first, second] = [&gpus[0], &gpus[1]].map(Gpu::new);
    let memories = [&gpus[0], &gpus[1]].map(|context| buffer(context, 1 << 20));
    for round in 0..20 {
        for (gpu, memory) in [&first, &second].into_iter().zip(&memories) {
            let event = Event::new(gpu.stream.context()).unwrap();
            gpu.kernels.fill(&gpu.stream, memory.all(), round).unwrap();
            gpu.stream.record(&event).unwrap();
        }
    }
    first.finish();
    second.finish();
    // An event is of one context, whichever is current.
    let event = Event::new(&gpus[1]).unwrap();
    assert_eq!(code(&first.stream.record(&event).unwrap_err()), 400);
}
