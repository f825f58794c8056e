//! The order of the steps, told by a transport that notes its calls.

use std::{cell::RefCell, rc::Rc, sync::Mutex, time::Duration};

use super::*;
use crate::{
    plan::{
        Endpoint, Engine, Flow, Level, Operation, Pattern, Place, Rank, TransportKind,
        topology::NumaNode,
    },
    units::Bytes,
    world::on_ranks_within,
};

type Notes = Rc<RefCell<Vec<&'static str>>>;

/// Notes its calls; each operation lasts 100 µs of a clock of its own.
struct Diary {
    notes: Notes,
    support: Support,
    wrong: bool,
    clock: Clock,
}

struct Entry {
    notes: Notes,
    clock: Clock,
    now_ns: u64,
    wrong: bool,
}

impl Entry {
    fn reading(&self) -> Option<u64> {
        let grain_ns = crate::units::nanoseconds(self.clock.resolution);
        Some(self.now_ns / grain_ns * grain_ns)
    }
}

impl Transport for Diary {
    fn support(&self, _: &Case, _: &World) -> Result<Support, Error> {
        self.notes.borrow_mut().push("support");
        Ok(self.support.clone())
    }

    fn prepare(&self, _: &Case, _: &mut World) -> Result<Box<dyn Transfer>, Error> {
        self.notes.borrow_mut().push("prepare");
        let notes = Rc::clone(&self.notes);
        Ok(Box::new(Entry { notes, clock: self.clock, now_ns: 0, wrong: self.wrong }))
    }
}

impl Transfer for Entry {
    fn staging(&self) -> Option<Staging> {
        None
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn is_misplaced(&self) -> bool {
        false
    }

    fn fill(&mut self, _: u64) -> Result<(), Error> {
        self.notes.borrow_mut().push("fill");
        Ok(())
    }

    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error> {
        self.notes.borrow_mut().push("run");
        for span in spans {
            span.start_ns = self.reading();
            self.now_ns += 100_000 * operations;
            span.end_ns = self.reading();
        }
        Ok(())
    }

    fn verify(&mut self, _: u64) -> Result<Option<Mismatch>, Error> {
        self.notes.borrow_mut().push("verify");
        let mismatch = Mismatch { rank: 0, offset: 7, expected: 1, found: 2, count: 3 };
        Ok(self.wrong.then_some(mismatch))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.notes.borrow_mut().push("drop");
    }
}

/// Notes when it looks.
struct Onlooker(Notes);

impl Witness for Onlooker {
    fn look_before(&mut self) {
        self.0.borrow_mut().push("look before");
    }

    fn look_after(&mut self) {
        self.0.borrow_mut().push("look after");
    }
}

fn tell(operation: Operation, support: Support, wrong: bool) -> (Outcome, Vec<&'static str>) {
    let clock = Clock::of_host(Duration::from_nanos(20));
    let diary = Diary { notes: Notes::default(), support, wrong, clock };
    let outcome = outcome(&diary, operation, EFFORT).unwrap().unwrap();
    let notes = diary.notes.borrow().clone();
    (outcome, notes)
}

fn outcome(diary: &Diary, operation: Operation, effort: Effort) -> Result<Option<Outcome>, Failed> {
    let mut onlooker = Onlooker(Rc::clone(&diary.notes));
    let case = case(operation);
    let experiment = Experiment { transport: diary, case: &case, effort, seed: 1 };
    measure(&mut World::single(), &experiment, &mut onlooker)
}

/// The proofs of single operations take real time, of which a slow machine needs more.
const EFFORT: Effort = Effort {
    time_limit: Duration::from_secs(60),
    samples: Some(20),
    latency_time: Duration::from_millis(200),
    ..Level::Normal.effort()
};

fn case(operation: Operation) -> Case {
    let place = Place::Host { numa_node: NumaNode(0), cpu: None };
    let end = Endpoint { rank: Rank(0), place };
    Case {
        transport: TransportKind::Shm,
        pattern: Pattern::OneWay,
        flows: vec![Flow { source: end, target: end }],
        operation,
        engine: Engine::Cpu,
        issuer: None,
        handle: None,
        size: Bytes::new(200_000),
        slot: None,
        sample: None,
        fabric: None,
        nccl: None,
    }
}

#[test]
fn a_number_comes_out_only_behind_fill_run_and_verify() {
    let (outcome, notes) = tell(Operation::Copy, Support::Yes, false);
    let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
    // One operation is too short for a sample, eleven last 1.1 ms, which is confirmed. 16
    // operations are proven one by one, 20 samples come in one batch, and as many latencies of 100 µs
    // as fit into 200 ms in another.
    let warm_up = ["support", "prepare", "look before", "run", "run", "run"];
    let batch = ["fill", "run", "verify"];
    let end = ["look after", "drop"];
    let expected = [&warm_up[..], &batch.repeat(16 + 1 + 1)[..], &end].concat();
    assert_eq!(notes, expected);
    let bandwidth = measured.bandwidth.unwrap();
    assert_eq!(bandwidth.operations_per_sample, 11);
    // 200 000 bytes in 100 µs.
    assert!((bandwidth.gb_s.estimate - 2.0).abs() < 1e-9);
    assert_eq!(bandwidth.gb_s.count, 20);
    assert_eq!(measured.latency.count(), 2000);
    assert!(measured.latency.quantile_ns(0.5).abs_diff(100_000) <= 100);
}

#[test]
fn a_pointer_chase_has_a_latency_and_no_bandwidth() {
    let (outcome, notes) = tell(Operation::Chase, Support::Yes, false);
    let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
    assert!(measured.bandwidth.is_none());
    assert_eq!(measured.latency.count(), 2000);
    assert_eq!(notes.iter().filter(|&&note| note == "verify").count(), 1);
    // Beside the batches it ran to be warm, and once more to be sure of how long a load lasts: it
    // has no samples that could grow.
    assert_eq!(notes.iter().filter(|&&note| note == "run").count(), 2 + 1);
}

#[test]
fn each_operation_is_compared_where_that_is_wanted_but_for_a_stream() {
    let clock = Clock::of_host(Duration::from_nanos(20));
    let latency_time = Duration::from_millis(5);
    for is_streaming in [false, true] {
        let clock = Clock { is_streaming, ..clock };
        let diary = Diary { notes: Notes::default(), support: Support::Yes, wrong: false, clock };
        let effort = Effort { compares_each: true, latency_time, ..EFFORT };
        let outcome = outcome(&diary, Operation::Copy, effort).unwrap().unwrap();
        let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
        let count =
            |note: &str| diary.notes.borrow().iter().filter(|&&noted| noted == note).count();
        let [runs, compared] = ["run", "verify"].map(count);
        assert_eq!(count("fill"), compared);
        if is_streaming {
            // The stream at once, and one by one what lasts 5 ms in all; only the warm-up is not.
            assert!(compared > 1 + 40 && runs - compared < 5, "{compared} of {runs}");
            assert!(measured.operations > compared as u64);
        } else {
            assert_eq!((runs, compared, measured.operations), (20, 20, 20));
            assert_eq!(measured.bandwidth.unwrap().operations_per_sample, 1);
            assert_eq!(measured.latency.count(), 20);
        }
    }
}

/// Is prepared later on rank 1, and says on which ranks it is.
struct Late<'a> {
    diary: Diary,
    ready: &'a Mutex<Vec<Rank>>,
}

impl Transport for Late<'_> {
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error> {
        self.diary.support(case, world)
    }

    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error> {
        if !world.is_root() {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.ready.lock().unwrap().push(world.rank());
        self.diary.prepare(case, world)
    }
}

/// Notes how many ranks are ready when it looks.
struct Counting<'a>(&'a Mutex<Vec<Rank>>, usize);

impl Witness for Counting<'_> {
    fn look_before(&mut self) {
        self.1 = self.0.lock().unwrap().len();
    }

    fn look_after(&mut self) {}
}

#[test]
fn nobody_looks_before_all_ranks_are_ready() {
    let ready = Mutex::default();
    let seen = on_ranks_within(Duration::from_secs(20), 2, |mut world| {
        let clock = Clock::of_host(Duration::from_nanos(20));
        let notes = Notes::default();
        let diary = Diary { notes, support: Support::Yes, wrong: false, clock };
        let mut witness = Counting(&ready, 0);
        let late = Late { diary, ready: &ready };
        let case = case(Operation::Copy);
        let experiment = Experiment { transport: &late, case: &case, effort: EFFORT, seed: 1 };
        measure(&mut world, &experiment, &mut witness).unwrap();
        witness.1
    });
    assert_eq!(seen, [2, 2]);
}

#[test]
fn what_streams_lasts_as_long_as_its_samples_on_average() {
    let clock = Clock::of_host(Duration::from_nanos(20));
    // Three that waited for one word, of which two were seen together with it.
    let samples = [9, 3, 3].map(Duration::from_millis);
    assert_eq!(typical(&samples, clock), Duration::from_millis(3));
    let clock = Clock { is_streaming: true, ..clock };
    assert_eq!(typical(&samples, clock), Duration::from_millis(5));
    assert_eq!(typical(&[], clock), Duration::ZERO);
}

#[test]
fn wrong_data_ends_the_case_without_a_number() {
    let (outcome, notes) = tell(Operation::Copy, Support::Yes, true);
    assert!(matches!(outcome, Outcome::Corrupt(Mismatch { offset: 7, count: 3, .. }, None)));
    assert_eq!(notes[notes.len() - 4..], ["fill", "run", "verify", "drop"]);
    assert_eq!(notes.iter().filter(|&&note| note == "verify").count(), 1);
}

#[test]
fn what_cannot_run_is_not_prepared() {
    let (outcome, notes) = tell(Operation::Copy, Support::No("no such path".to_owned()), false);
    assert!(matches!(outcome, Outcome::Skipped(reason) if reason == "no such path"));
    assert_eq!(notes, ["support"]);
}

#[test]
fn a_clock_that_often_stands_still_gives_no_number() {
    // Four operations last 400 µs: by this clock 1 ms in two samples of five, and nothing in the
    // others. The median of those that have a rate would be 2.5 times too low.
    let clock = Clock {
        accuracy: Duration::ZERO,
        resolution: Duration::from_millis(1),
        sample_time_min: Duration::from_millis(100),
        stream_time_min: Duration::ZERO,
        operations_max: 4,
        operations_step: 1,
        is_streaming: false,
    };
    let diary = Diary { notes: Notes::default(), support: Support::Yes, wrong: false, clock };
    let error = outcome(&diary, Operation::Copy, EFFORT).unwrap_err().to_string();
    assert!(error.contains("no time by its clock: give larger --sizes"), "{error}");
}
