use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use super::*;
use crate::timing::cost::Place;

/// A network on which nothing has happened.
fn wires() -> Box<Wires> {
    let layout = Layout::new::<Wires>();
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the memory is of the global allocator, and a network begins as zeroes.
    unsafe { Box::from_raw(memory.cast()) }
}

const SIDE: Side = Side { link_gb_s: 10.0, pcie: None };

/// 1000 ns one way, at 10 GB/s, in order.
const WAY: Way = Way {
    sides: [SIDE; 2],
    latency_ns: 1000.0,
    post_ns: 10.0,
    operation_ns: 20.0,
    shuffle_ns: 0.0,
    seed: 0,
};

/// Ends of two processes on interfaces of their own, with room for so many completions.
fn ends(wires: &mut Wires, queue_size: u32) -> [u32; 2] {
    [0, 1].map(|end| wires.open((end as usize, end + 1), 100 + end, end, queue_size).unwrap())
}

fn order(wires: &Wires, kind: Kind, [from, to]: [u32; 2], context: u64) -> Order {
    Order {
        kind,
        from,
        to,
        to_number: wires.endpoints[to as usize].number,
        bytes: 1000,
        is_of_device: true,
        near: Memory { address: 5000, ..Memory::NONE },
        far: Memory { address: 7000, ..Memory::NONE },
        data: 7,
        has_data: true,
        is_told: true,
        is_injected: false,
        context,
        fault: None,
    }
}

/// Starts operations at `now_ps`.
fn start(wires: &mut Wires, orders: &[Order], now_ps: u64) {
    for order in orders {
        assert!(wires.accept(order.from, 1000));
        wires.start(*order, WAY, now_ps, &mut []);
    }
}

/// Lets everything happen; the moves, with when they were.
fn run(wires: &mut Wires) -> Vec<(u64, Move)> {
    let mut moves = Vec::new();
    while let Some((due_ps, _)) = wires.due(u64::MAX) {
        moves.extend(wires.step().map(|order| (due_ps, order)));
    }
    moves
}

fn contexts(wires: &mut Wires, at: u32) -> Vec<(NoteKind, u64)> {
    std::iter::from_fn(|| wires.fetch(at)).map(|note| (note.kind, note.context)).collect()
}

#[test]
fn a_write_arrives_and_is_told_at_both_ends() {
    let mut wires = wires();
    let [near, far] = ends(&mut wires, 16);
    let write = order(&wires, Kind::Write, [near, far], 3);
    start(&mut wires, &[write], 5_000);
    let moves = run(&mut wires);
    // 5 + 10 + 20 + 1000 / 10 + 1000 ns.
    let End { pid, memory } = moves[0].1.to;
    assert_eq!((moves.len(), moves[0].0, pid, memory.address), (1, 1_135_000, 101, 7000));
    let written = wires.fetch(far).unwrap();
    assert_eq!((written.kind, written.context, written.data), (NoteKind::Written, 0, 7));
    assert_eq!(contexts(&mut wires, near), [(NoteKind::Over(Kind::Write), 3)]);
    let [out, into] = [0, 1].map(|nic| wires.nics[nic].counts);
    assert_eq!((out.tx_bytes, out.rdma_write_bytes, into.rx_bytes), (1000, 1000, 1000));
    assert_eq!((into.tx_bytes, into.rdma_write_bytes, out.rx_bytes), (0, 0, 0));
}

#[test]
fn a_packet_goes_between_those_of_longer_operations() {
    let mut wires = wires();
    let ends = ends(&mut wires, 16);
    let of = |wires: &Wires, bytes, context| Order {
        bytes,
        context,
        ..order(wires, Kind::Write, ends, 0)
    };
    // 100 us at 10 GB/s, then two packets of 100 ns, then 100 us again.
    let orders = [(1_000_000, 1), (1000, 2), (1000, 3), (1_000_000, 4)];
    let orders = orders.map(|(bytes, context)| of(&wires, bytes, context));
    start(&mut wires, &orders, 0);
    let moves = run(&mut wires);
    let arrived: Vec<(u64, u64)> =
        moves.iter().map(|(at_ps, order)| (*at_ps, order.bytes)).collect();
    let expected = [(1_150_000, 1000), (1_250_000, 1000), (101_030_000, 1_000_000)];
    assert_eq!(arrived[..3], expected);
    // The link has carried all of them one after the other.
    assert_eq!(arrived[3], (201_230_000, 1_000_000));
}

#[test]
fn data_that_is_read_comes_after_its_request_and_goes_the_other_way() {
    let mut wires = wires();
    let ends = ends(&mut wires, 16);
    let read = order(&wires, Kind::Read, ends, 3);
    start(&mut wires, &[read], 0);
    let moves = run(&mut wires);
    assert_eq!((moves[0].0, moves[0].1.from.pid, moves[0].1.to.pid), (2_130_000, 101, 100));
    assert_eq!(wires.nics[1].counts.tx_bytes, 1000);
    assert_eq!(wires.nics[0].counts.rdma_read_bytes, 1000);
}

#[test]
fn what_a_queue_has_no_room_for_is_lost() {
    let mut wires = wires();
    let [near, far] = ends(&mut wires, 16);
    let orders: Vec<Order> =
        (0..20).map(|context| order(&wires, Kind::Write, [near, far], context)).collect();
    start(&mut wires, &orders, 0);
    assert_eq!(run(&mut wires).len(), 20);
    assert_eq!(contexts(&mut wires, far).len(), 16);
    assert_eq!(wires.endpoints[near as usize].under_way, 0);
}

#[test]
fn no_more_operations_are_accepted_than_there_is_room_for() {
    let mut wires = wires();
    let [near, far] = ends(&mut wires, 16);
    assert!((0..5).all(|_| wires.accept(near, 5)));
    assert!(!wires.accept(near, 5));
    let write = order(&wires, Kind::Write, [near, far], 0);
    wires.start(write, WAY, 0, &mut []);
    run(&mut wires);
    assert!(wires.accept(near, 5) && !wires.accept(near, 5));
    // Those that the device was never told of go with their endpoint.
    wires.close(near);
    assert_eq!(wires.under_way, 0);
}

#[test]
fn a_message_waits_for_a_receive_and_comes_in_its_turn() {
    let mut wires = wires();
    let [near, far] = ends(&mut wires, 16);
    let orders = [1, 2].map(|context| order(&wires, Kind::Message, [near, far], context));
    start(&mut wires, &orders, 0);
    assert_eq!(run(&mut wires), []);
    assert_eq!(contexts(&mut wires, near), []);
    for (context, address) in [(8, 100), (9, 200)] {
        let memory = Memory { address, ..Memory::NONE };
        assert!(wires.receive(far, Note::receive(context, memory, 4096), 2, 9_000_000));
    }
    let places: Vec<u64> = run(&mut wires).iter().map(|moved| moved.1.to.memory.address).collect();
    assert_eq!(places, [100, 200]);
    assert_eq!(contexts(&mut wires, far), [(NoteKind::Received, 8), (NoteKind::Received, 9)]);
    let over = [1, 2].map(|context| (NoteKind::Over(Kind::Message), context));
    assert_eq!(contexts(&mut wires, near), over);
    let receive = Note::receive(0, Memory::NONE, 1);
    assert!(
        (0..2).all(|_| wires.receive(far, receive, 2, 0)) && !wires.receive(far, receive, 2, 0)
    );
}

#[test]
fn what_goes_to_a_process_that_has_died_fails_and_what_comes_from_it_is_over() {
    let mut wires = wires();
    let [near, far] = ends(&mut wires, 16);
    let forth = order(&wires, Kind::Write, [near, far], 1);
    let back = order(&wires, Kind::Write, [far, near], 2);
    let waits = order(&wires, Kind::Message, [near, far], 3);
    start(&mut wires, &[forth, back, waits], 0);
    wires.bury(1);
    assert_eq!(run(&mut wires), []);
    let unreachable = |context| (NoteKind::Unreachable, context);
    assert_eq!(contexts(&mut wires, near), [unreachable(1), unreachable(3)]);
    assert_eq!((wires.under_way, wires.user(1, 2)), (0, None));
    // Its place is another's now.
    assert_eq!(wires.open((1, 3), 102, 1, 16), Some(far));
    start(&mut wires, &[forth], 0);
    assert_eq!(run(&mut wires), []);
    assert_eq!(contexts(&mut wires, near), [unreachable(1)]);
}

#[test]
fn a_key_is_for_its_memory_until_that_is_deregistered() {
    let mut wires = wires();
    let start = Memory { address: 1000, place: Place::Gpu(2), ..Memory::NONE };
    let key = wires.register(start, 500).unwrap();
    let inside = wires.reach(key, 1400, 100).unwrap();
    assert_eq!((inside.address, inside.place), (1400, Place::Gpu(2)));
    for (address, bytes) in [(999, 1), (1400, 101), (2000, 0), (u64::MAX, 2)] {
        assert_eq!(wires.reach(key, address, bytes), None, "{address} {bytes}");
    }
    wires.deregister(key);
    assert_eq!(wires.reach(key, 1000, 1), None);
    let other = wires.register(start, 500).unwrap();
    assert!(other != key && wires.reach(key, 1000, 1).is_none());
    for wild in [0, u64::MAX, key | 0xffff_ffff] {
        assert_eq!(wires.reach(wild, 1000, 1), None);
    }
}

#[test]
fn many_seeds_deliver_everything_once_in_orders_of_their_own() {
    let mut orders_seen = std::collections::BTreeSet::new();
    for seed in 0..1000 {
        let mut wires = wires();
        let [near, far] = ends(&mut wires, 64);
        let way = Way { shuffle_ns: 100_000.0, seed, ..WAY };
        for context in 0..60 {
            let write = order(&wires, Kind::Write, [near, far], context);
            assert!(wires.accept(near, 64));
            wires.start(Order { data: context, ..write }, way, 0, &mut []);
        }
        assert_eq!(run(&mut wires).len(), 60);
        let arrived: Vec<u64> =
            std::iter::from_fn(|| wires.fetch(far)).map(|note| note.data).collect();
        let mut sorted = arrived.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..60).collect::<Vec<u64>>(), "seed {seed}");
        orders_seen.insert(arrived);
    }
    assert_eq!(orders_seen.len(), 1000);
}
