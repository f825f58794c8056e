//! NCCL, with as many ranks in this process as there are GPUs.

use std::rc::Rc;

use g2g::ffi::nccl::{
    Allocation, At, Call, Communicator, Factor, Graph, Group, Library, Registration, Window,
};
use g2g::plan::{Collective, DataType, Peers, Reduction};

use super::*;

on_both_machines! {
    one GPU: [
        a_rank_alone_keeps_its_data
        a_rank_that_nobody_joins_is_late
        memory_of_nccl_is_memory
        what_is_captured_is_done_at_each_launch
    ]
    two GPUs: [
        ranks_sum_collect_and_divide
        ranks_pass_on_gather_and_scatter
        messages_cross_in_one_group
        parts_of_a_communicator_work_by_themselves
        registered_memory_and_windows_are_used_like_all_other
        a_rank_that_leaves_in_the_middle_is_not_waited_for_ever
    ]
}

const SIZE: Bytes = Bytes::kib(64);

fn library() -> &'static Library {
    Library::load(None).unwrap()
}

fn pair(gpus: &[Context]) -> Vec<Communicator> {
    let id = library().unique_id().unwrap();
    let members = [(gpus[0].clone(), 0), (gpus[1].clone(), 1)];
    Communicator::all(library(), &members, &id, 2, PATIENCE).unwrap()
}

/// Memory of one rank, where it is filled and looked at.
struct Seat {
    gpu: Gpu,
    source: Buffer,
    target: Buffer,
}

impl Seat {
    fn new(context: &Context) -> Self {
        let buffer = || Buffer::new(context, SIZE).unwrap();
        Self { gpu: Gpu::new(context), source: buffer(), target: buffer() }
    }

    /// Writes `number`, and the place of each element, into the source.
    fn fill(&mut self, number: u32) {
        let count = u32::try_from(SIZE.get() / 4).unwrap();
        let data: Vec<u8> = (0..count).flat_map(|place| (number + place).to_le_bytes()).collect();
        self.gpu.write(self.source.all(), &data);
    }

    /// The elements of the target.
    fn elements(&mut self) -> Vec<u32> {
        let bytes = self.gpu.read(self.target.all());
        bytes.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

fn seats(gpus: &[Context]) -> Vec<Seat> {
    let mut seats: Vec<Seat> = gpus[..2].iter().map(Seat::new).collect();
    for (number, seat) in (1..).zip(&mut seats) {
        seat.fill(number * 1000);
    }
    seats
}

/// What `queue` queues for each rank, in one group, to its end.
fn together<'a>(
    ranks: &'a [Communicator],
    seats: &'a [Seat],
    mut queue: impl FnMut(&mut Group<'a>, At<'a>, &'a Seat),
) {
    let mut group = Group::start(library()).unwrap();
    for (communicator, seat) in ranks.iter().zip(seats) {
        queue(&mut group, At { communicator, stream: &seat.gpu.stream }, seat);
    }
    group.end().unwrap();
    seats.iter().for_each(|seat| seat.gpu.finish());
}

fn half(memory: Slice<'_>, number: u64) -> Slice<'_> {
    let half = Bytes::new(SIZE.get() / 2);
    memory.slice(Bytes::new(half.get() * number), half)
}

/// A sum of whole buffers, but for what a test says otherwise.
fn call<'a>(collective: Collective, source: Slice<'a>, target: Slice<'a>) -> Call<'a> {
    let (reduction, factor, root, peers) = (Reduction::Sum, None, None, Peers::default());
    Call { collective, source, target, data_type: KIND, reduction, factor, root, peers }
}

const ELEMENTS: u32 = 16 * 1024;
const KIND: DataType = DataType::Uint32;

/// A communicator of one rank.
fn alone(context: &Context) -> Communicator {
    let id = library().unique_id().unwrap();
    Communicator::all(library(), &[(context.clone(), 0)], &id, 1, PATIENCE).unwrap().remove(0)
}

fn a_rank_alone_keeps_its_data(gpus: &[Context]) {
    let mut seat = Seat::new(&gpus[0]);
    seat.fill(7);
    let alone = alone(&gpus[0]);
    let mut group = Group::start(library()).unwrap();
    let sum = call(Collective::AllReduce, seat.source.all(), seat.target.all());
    group.queue(At { communicator: &alone, stream: &seat.gpu.stream }, sum).unwrap();
    group.end().unwrap();
    seat.gpu.finish();
    alone.async_error().unwrap();
    Communicator::close(vec![alone]).unwrap();
    assert_eq!(seat.elements(), (7..7 + ELEMENTS).collect::<Vec<u32>>());
}

fn what_is_captured_is_done_at_each_launch(gpus: &[Context]) {
    let mut seat = Seat::new(&gpus[0]);
    let alone = alone(&gpus[0]);
    // Filling and looking borrow the seat, which a graph does too: so it is captured anew.
    for number in [7, 9] {
        seat.fill(number);
        seat.gpu.write(seat.target.all(), &[0; 4]);
        let streams = [&seat.gpu.stream];
        let graph = Graph::capture(library(), &streams, 2, |group, half_of| {
            let [source, target] = [&seat.source, &seat.target].map(|of| half(of.all(), half_of));
            let sum = call(Collective::AllReduce, source, target);
            group.queue(At { communicator: &alone, stream: &seat.gpu.stream }, sum)
        });
        let graph = graph.unwrap();
        seat.gpu.finish();
        (0..3).for_each(|_| graph.launch().unwrap());
        seat.gpu.finish();
        drop(graph);
        assert_eq!(seat.elements(), (number..number + ELEMENTS).collect::<Vec<u32>>());
    }
    Communicator::close(vec![alone]).unwrap();
}

fn a_rank_that_nobody_joins_is_late(gpus: &[Context]) {
    let id = library().unique_id().unwrap();
    let begin = Instant::now();
    let err = Communicator::all(library(), &[(gpus[0].clone(), 0)], &id, 2, MOMENT).unwrap_err();
    assert!(matches!(err.source, Cause::Late(MOMENT)), "{err}");
    assert_eq!(err.call, "ncclCommInitRankConfig");
    assert!(err.to_string().contains("rank 0 of 2"), "{err}");
    assert!(begin.elapsed() < PATIENCE);
}

fn memory_of_nccl_is_memory(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let memory = Allocation::new(library(), &gpus[0], SIZE).unwrap();
    let data = patterned(1, SIZE.get());
    gpu.write(memory.all(), &data);
    assert_eq!(gpu.read(memory.all()), data);
}

fn ranks_sum_collect_and_divide(gpus: &[Context]) {
    let (ranks, mut seats) = (pair(gpus), seats(gpus));
    let factors: Vec<Factor<'_>> =
        ranks.iter().map(|rank| Factor::new(rank, KIND, &3_u32.to_le_bytes()).unwrap()).collect();
    let sum = |place: u32| 3000 + 2 * place;
    together(&ranks, &seats, |group, at, seat| {
        let sum = call(Collective::AllReduce, seat.source.all(), seat.target.all());
        group.queue(at, sum).unwrap();
    });
    for seat in &mut seats {
        assert_eq!(seat.elements(), (0..ELEMENTS).map(sum).collect::<Vec<u32>>());
    }
    let mut number = 0;
    together(&ranks, &seats, |group, at, seat| {
        let sum = call(Collective::AllReduce, seat.source.all(), seat.target.all());
        let (reduction, factor) = (Reduction::MulSum, Some(&factors[number]));
        number += 1;
        group.queue(at, Call { reduction, factor, ..sum }).unwrap();
    });
    assert_eq!(seats[1].elements()[5], 3 * sum(5));
    together(&ranks, &seats, |group, at, seat| {
        let source = half(seat.source.all(), 0);
        group.queue(at, call(Collective::AllGather, source, seat.target.all())).unwrap();
    });
    assert_eq!(seats[0].elements()[ELEMENTS as usize / 2], 2000);
    together(&ranks, &seats, |group, at, seat| {
        let target = half(seat.target.all(), 0);
        let scatter = call(Collective::ReduceScatter, seat.source.all(), target);
        group.queue(at, Call { reduction: Reduction::Max, ..scatter }).unwrap();
    });
    assert_eq!(seats[1].elements()[0], 2000 + ELEMENTS / 2);
    drop(factors);
    Communicator::close(ranks).unwrap();
}

fn ranks_pass_on_gather_and_scatter(gpus: &[Context]) {
    let (ranks, mut seats) = (pair(gpus), seats(gpus));
    together(&ranks, &seats, |group, at, seat| {
        let broadcast = call(Collective::Broadcast, seat.source.all(), seat.target.all());
        group.queue(at, Call { root: Some(1), ..broadcast }).unwrap();
    });
    assert_eq!(seats[0].elements()[9], 2009);
    together(&ranks, &seats, |group, at, seat| {
        let reduce = call(Collective::Reduce, seat.source.all(), seat.target.all());
        group.queue(at, Call { reduction: Reduction::Min, root: Some(0), ..reduce }).unwrap();
    });
    assert_eq!(seats[0].elements()[9], 1009);
    assert_eq!(seats[1].elements()[9], 2009, "only the root's target is written");
    together(&ranks, &seats, |group, at, seat| {
        let exchange = call(Collective::AllToAll, seat.source.all(), seat.target.all());
        group.queue(at, exchange).unwrap();
    });
    assert_eq!(seats[0].elements()[ELEMENTS as usize / 2], 2000);
    assert_eq!(seats[1].elements()[0], 1000 + ELEMENTS / 2);
    together(&ranks, &seats, |group, at, seat| {
        let gather = call(Collective::Gather, half(seat.source.all(), 0), seat.target.all());
        group.queue(at, Call { root: Some(1), ..gather }).unwrap();
    });
    assert_eq!(seats[1].elements()[0], 1000);
    together(&ranks, &seats, |group, at, seat| {
        let scatter = call(Collective::Scatter, seat.source.all(), half(seat.target.all(), 1));
        group.queue(at, Call { root: Some(0), ..scatter }).unwrap();
    });
    assert_eq!(seats[1].elements()[ELEMENTS as usize / 2], 1000 + ELEMENTS / 2);
}

fn messages_cross_in_one_group(gpus: &[Context]) {
    let (ranks, mut seats) = (pair(gpus), seats(gpus));
    together(&ranks, &seats, |group, at, seat| {
        let peer = u32::from(std::ptr::eq(at.communicator, &raw const ranks[0]));
        let peers = Peers { to: Some(peer), from: Some(peer) };
        let messages = call(Collective::SendRecv, seat.source.all(), seat.target.all());
        group.queue(at, Call { peers, ..messages }).unwrap();
    });
    assert_eq!((seats[0].elements()[3], seats[1].elements()[3]), (2003, 1003));
}

/// The element with the number 3 of each target.
fn elements(seats: &mut [Seat]) -> Vec<u32> {
    seats.iter_mut().map(|seat| seat.elements()[3]).collect()
}

fn parts_of_a_communicator_work_by_themselves(gpus: &[Context]) {
    let whole = pair(gpus);
    let divide = |places: [(u32, u32); 2]| {
        let members: Vec<_> = whole.iter().zip(places).collect();
        Communicator::divide(&members).unwrap()
    };
    let mut seats = seats(gpus);
    let alone = divide([(0, 0), (1, 0)]);
    together(&alone, &seats, |group, at, seat| {
        let sum = call(Collective::AllReduce, seat.source.all(), seat.target.all());
        group.queue(at, sum).unwrap();
    });
    assert_eq!(elements(&mut seats), [1003, 2003], "a part of one has its own data");
    let turned = divide([(7, 1), (7, 0)]);
    together(&turned, &seats, |group, at, seat| {
        let broadcast = call(Collective::Broadcast, seat.source.all(), seat.target.all());
        group.queue(at, Call { root: Some(0), ..broadcast }).unwrap();
    });
    assert_eq!(elements(&mut seats), [2003; 2], "the second has become the first");
}

fn registered_memory_and_windows_are_used_like_all_other(gpus: &[Context]) {
    let ranks: Vec<Rc<Communicator>> = pair(gpus).into_iter().map(Rc::new).collect();
    let mut seats = seats(gpus);
    let memory = |of: &Rc<Communicator>| -> Box<dyn Memory> {
        Box::new(Allocation::new(library(), of.context(), SIZE).unwrap())
    };
    let members = ranks.iter().map(|of| (Rc::clone(of), memory(of))).collect();
    let windows = Window::symmetric(members).unwrap();
    let registered: Vec<Registration> =
        ranks.iter().map(|of| Registration::new(Rc::clone(of), memory(of)).unwrap()).collect();
    let count = windows.len();
    for rank in 0..count {
        let target: [Slice<'_>; 2] = [windows[rank].all(), registered[rank].all()];
        target.into_iter().for_each(|target| seats[rank].gpu.write(target, &[0; 4]));
    }
    for of_both in [|rank: usize| rank, |rank: usize| rank + 2] {
        let mut group = Group::start(library()).unwrap();
        for (rank, (communicator, seat)) in ranks.iter().zip(&seats).enumerate() {
            let all = windows.iter().map(Memory::all).chain(registered.iter().map(Memory::all));
            let target = all.collect::<Vec<Slice<'_>>>()[of_both(rank)];
            let at = At { communicator, stream: &seat.gpu.stream };
            group.queue(at, call(Collective::AllReduce, seat.source.all(), target)).unwrap();
        }
        group.end().unwrap();
        seats.iter().for_each(|seat| seat.gpu.finish());
    }
    for (rank, seat) in seats.iter_mut().enumerate() {
        for found in [windows[rank].all(), registered[rank].all()] {
            let bytes = seat.gpu.read(found);
            assert_eq!(u32::from_le_bytes(bytes[16..20].try_into().unwrap()), 3008);
        }
    }
    drop((windows, registered));
    let ranks = ranks.into_iter().map(|rank| Rc::into_inner(rank).unwrap());
    Communicator::close(ranks.collect()).unwrap();
}

fn a_rank_that_leaves_in_the_middle_is_not_waited_for_ever(gpus: &[Context]) {
    let mut ranks = pair(gpus);
    let seats = seats(gpus);
    let left = ranks.pop().unwrap();
    let stays = ranks.pop().unwrap();
    let mut group = Group::start(library()).unwrap();
    let sum = call(Collective::AllReduce, seats[0].source.all(), seats[0].target.all());
    group.queue(At { communicator: &stays, stream: &seats[0].gpu.stream }, sum).unwrap();
    // It may be queued, or be late while the two connect; nothing may wait for ever.
    let ended = group.end();
    drop(left);
    stays.abort();
    let begin = Instant::now();
    let _ = seats[0].gpu.stream.synchronize(PATIENCE);
    assert!(begin.elapsed() < PATIENCE, "{ended:?}");
    assert!(stays.async_error().unwrap_err().to_string().contains("aborted before"));
}
