//! The real transport between threads: what it moves, and what its verification finds.

use std::{sync::Mutex, time::Duration};

use super::{ring_end::SLOTS_AT, *};
use crate::{
    ffi::shm::Store,
    plan::{
        Endpoint, Engine, Flow, Operation, Pattern, Place, TransportKind,
        topology::{NumaNode, tests::machine},
    },
    world::on_ranks_within,
};

fn end(rank: u32) -> Endpoint {
    Endpoint { rank: Rank(rank), place: Place::Host { numa_node: NumaNode(0), cpu: None } }
}

fn case(pattern: Pattern, size: u64, slot: Option<u64>) -> Case {
    let there = Flow { source: end(0), target: end(1) };
    let back = Flow { source: end(1), target: end(0) };
    let flows = match pattern {
        Pattern::OneWay => vec![there],
        Pattern::BothWays => vec![there, back],
        _ => vec![there, Flow { source: end(2), target: end(3) }],
    };
    let slot = slot.map(Bytes::new);
    Case {
        transport: TransportKind::Shm,
        pattern,
        flows,
        operation: Operation::Copy,
        engine: Engine::Cpu,
        issuer: None,
        handle: None,
        size: Bytes::new(size),
        slot,
        sample: None,
        fabric: None,
        nccl: None,
    }
}

fn on_ranks<T: Send>(size: u32, rank: impl Fn(World) -> T + Sync) -> Vec<T> {
    on_ranks_within(Duration::from_secs(20), size, rank)
}

/// The CPUs of this machine; threads share them, since all have `cpu: None`.
fn topology() -> Topology {
    let cpus = host::allowed_cpus().unwrap();
    machine(&[&cpus])
}

#[test]
fn every_pattern_size_and_slot_arrives_whole() {
    let topology = topology();
    for pattern in [Pattern::OneWay, Pattern::BothWays, Pattern::Pairs] {
        for (size, slot) in [(1, None), (65, None), (70_001, Some(192)), (3 << 20, None)] {
            let case = case(pattern, size, slot);
            let answers = on_ranks(5, |mut world| {
                assert_eq!(support(&case), Support::Yes);
                let mut transfer = prepare(&case, &mut world, &topology).unwrap();
                transfer.fill(9).unwrap();
                let mut spans = [Span::default(); 3];
                transfer.run(2, &mut spans).unwrap();
                let times = world.agree(spans.to_vec(), |all| all).unwrap();
                (transfer.verify(9).unwrap(), crate::transport::durations(&times).unwrap().len())
            });
            assert_eq!(answers, [(None, 3); 5], "{case:?}");
        }
    }
}

#[test]
fn a_change_of_layout_loses_nothing() {
    // From many slots to few and back: an end's old view of the other is past the new ring.
    let case = case(Pattern::OneWay, 3 << 20, None);
    let topology = topology();
    let answers = on_ranks(2, |mut world| {
        let mut transfer = ShmTransfer::new(&case, &mut world, &topology).unwrap();
        let mut wrong = 0;
        for slot in [Bytes::new(1024), Bytes::mib(1), Bytes::kib(16), Bytes::kib(512)] {
            transfer.arrange(Layout::of(slot, Store::Cached, Store::Cached));
            transfer.fill(slot.get()).unwrap();
            transfer.run(3, &mut [Span::default(); 2]).unwrap();
            wrong += usize::from(transfer.verify(slot.get()).unwrap().is_some());
            world.barrier().unwrap();
        }
        wrong
    });
    assert_eq!(answers, [0, 0]);
}

#[test]
fn a_byte_changed_in_the_target_is_found_where_it_lies() {
    let case = case(Pattern::OneWay, 70_001, None);
    let topology = topology();
    for place in [0, 35_000, 69_999, 70_000] {
        let answers = on_ranks(2, |mut world| {
            let mut transfer = ShmTransfer::new(&case, &mut world, &topology).unwrap();
            transfer.tune(&case, &mut world).unwrap();
            transfer.fill(4).unwrap();
            transfer.run(1, &mut [Span::default(); 1]).unwrap();
            if world.rank() == Rank(1) {
                transfer.ring_ends[0].buffer[place] ^= 1;
            }
            transfer.verify(4).unwrap()
        });
        assert_eq!(answers[0], None);
        let mismatch = answers[1].unwrap();
        assert_eq!((mismatch.offset, mismatch.count, mismatch.rank), (place as u64, 1, 1));
    }
}

#[test]
fn a_byte_changed_in_a_slot_on_its_way_is_found() {
    // One slot's worth of data, so that the slot can be changed between the copy in and the copy
    // out: the target waits until the source's thread has done both.
    let case = case(Pattern::OneWay, 4096, None);
    let topology = topology();
    let is_spoilt = Mutex::new(false);
    let answers = on_ranks(2, |mut world| {
        let mut transfer = ShmTransfer::new(&case, &mut world, &topology).unwrap();
        transfer.arrange(Layout::all(&case)[0]);
        transfer.fill(4).unwrap();
        transfer.ring_ends[0].left = 1;
        if world.rank() == Rank(0) {
            assert!(transfer.ring_ends[0].step());
            transfer.ring_ends[0].ring.write(SLOTS_AT + 1000, &[0xAA, 0xAA], Store::Cached);
            *is_spoilt.lock().unwrap() = true;
        }
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            assert!(*is_spoilt.lock().unwrap());
            assert!(transfer.ring_ends[0].step());
        }
        transfer.verify(4).unwrap()
    });
    let mismatch = answers[1].unwrap();
    assert!((1000..1002).contains(&mismatch.offset), "{mismatch:?}");
    assert_eq!(mismatch.found, 0xAA);
}

#[test]
fn a_peer_that_never_comes_is_an_error_within_the_deadline() {
    let case = case(Pattern::OneWay, 64, None);
    let topology = topology();
    let answers = on_ranks(2, |mut world| {
        let mut transfer = ShmTransfer::new(&case, &mut world, &topology).unwrap();
        transfer.arrange(Layout::all(&case)[0]);
        transfer.control.deadline = Duration::from_millis(40);
        let is_absent = world.rank() == Rank(1);
        let answer = (!is_absent).then(|| transfer.run(1, &mut [Span::default()]));
        world.barrier().unwrap();
        answer.map(|answer| answer.unwrap_err().to_string())
    });
    let reason = "no byte moved for 0.05 s while waiting for rank 1 to be ready";
    assert_eq!(answers[0].as_deref(), Some(reason));
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_allocated() {
    let Support::No(reason) = support(&case(Pattern::OneWay, 1 << 45, None)) else {
        panic!("32 TiB fit");
    };
    assert!(
        reason.starts_with("sources, targets and slots need 65536.0 GiB of memory"),
        "{reason}"
    );
    let Support::No(reason) = support(&case(Pattern::OneWay, 1 << 45, Some(1 << 44))) else {
        panic!("slots of 16 TiB fit");
    };
    assert!(reason.contains("of /dev/shm") && reason.contains("--slot-size"), "{reason}");
}

#[test]
fn layouts_fit_the_transfer() {
    let slots = |size, slot| -> Vec<(u64, u64)> {
        let layouts = Layout::all(&case(Pattern::OneWay, size, slot));
        layouts.iter().map(|layout| (layout.slot.get(), layout.slots)).collect()
    };
    assert_eq!(slots(1, None), [(64, 1024)]);
    assert_eq!(slots(4096, None), [(4096, 256)]);
    assert_eq!(slots(100_000, None), [(16_384, 64), (65_536, 16), (100_032, 10)]);
    assert_eq!(slots(100_000, Some(1 << 30)), [(100_032, 10)]);
    assert_eq!(slots(4 << 30, Some(4 << 30))[0], (4 << 30, 2));
}

#[test]
fn a_rank_that_gives_up_is_heard_of_by_those_that_spin() {
    let case = case(Pattern::BothWays, 64, None);
    let topology = topology();
    let answers = on_ranks(2, |mut world| {
        let mut transfer = ShmTransfer::new(&case, &mut world, &topology).unwrap();
        transfer.arrange(Layout::all(&case)[0]);
        if world.rank() == Rank(1) {
            transfer.control.deadline = Duration::from_millis(20);
        }
        // Rank 0 waits for a slot that rank 1 never fills, since it does not take part.
        let answer = match world.rank() {
            Rank(0) => transfer.run(1, &mut [Span::default()]),
            _ => {
                transfer.control.turn = 1_000_000;
                transfer.run(1, &mut [Span::default()])
            }
        };
        world.barrier().unwrap();
        answer.unwrap_err().to_string()
    });
    assert_eq!(answers[0], "rank 1 gave up on this case");
    assert!(answers[1].starts_with("no byte moved for "), "{}", answers[1]);
}
