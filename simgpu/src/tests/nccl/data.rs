//! What collectives leave in memory, against values reckoned here.

use super::*;

/// Elements as numbers that all types hold exactly, and their bytes, apart from the library's own
/// conversions.
fn encode(data_type: DataType, value: i64) -> Vec<u8> {
    match data_type {
        DataType::Int8 => (value as i8).to_ne_bytes().to_vec(),
        DataType::Uint8 => (value as u8).to_ne_bytes().to_vec(),
        DataType::Int32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::Uint32 => (value as u32).to_ne_bytes().to_vec(),
        DataType::Int64 | DataType::Uint64 => value.to_ne_bytes().to_vec(),
        DataType::Float32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::Float64 => (value as f64).to_ne_bytes().to_vec(),
        DataType::Float16 => (small_float(value, 10, 15) as u16).to_ne_bytes().to_vec(),
        DataType::Bfloat16 => (small_float(value, 7, 127) as u16).to_ne_bytes().to_vec(),
        DataType::Float8e4m3 => vec![small_float(value, 3, 7) as u8],
        DataType::Float8e5m2 => vec![small_float(value, 2, 15) as u8],
    }
}

/// The bits of a whole number, not negative and exact, as a float of so many bits of mantissa.
fn small_float(value: i64, mantissa_bits: u32, bias: u32) -> u32 {
    let value = u32::try_from(value).unwrap();
    if value == 0 {
        return 0;
    }
    let exponent = value.ilog2();
    let shifted = (u64::from(value) << mantissa_bits) >> exponent;
    let exact = shifted << exponent == u64::from(value) << mantissa_bits;
    assert!(exact, "{value} is not exact with {mantissa_bits} bits");
    (exponent + bias) << mantissa_bits | (shifted as u32 & ((1 << mantissa_bits) - 1))
}

fn buffer(data_type: DataType, values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(|value| encode(data_type, value)).collect()
}

/// What rank `rank` has as element `at`: powers of two, so that products stay exact.
fn value(rank: usize, at: usize) -> i64 {
    [1, 2, 1, 2, 1][(rank + at) % 5]
}

/// What the operation makes of the ranks' elements; `None`: not exact in all types.
fn reduced(operation: u32, ranks: usize, at: usize) -> Option<i64> {
    let values = (0..ranks).map(|rank| value(rank, at));
    match operation {
        0 => Some(values.sum()),
        1 => Some(values.product()),
        2 => values.max(),
        3 => values.min(),
        _ => None,
    }
}

const FUNCTIONS: [Function; 8] = [
    Function::AllReduce,
    Function::AllGather,
    Function::ReduceScatter,
    Function::Broadcast,
    Function::Reduce,
    Function::AlltoAll,
    Function::Gather,
    Function::Scatter,
];

/// What a rank must have received: none if nothing.
fn expected(called: &Called, ranks: usize, rank: usize) -> Option<Vec<i64>> {
    let Called { function, count, operation, root, .. } = *called;
    let root = usize::try_from(root).unwrap();
    let of = |at: usize| reduced(operation, ranks, at).unwrap();
    let is_root = (rank == root).then_some(());
    Some(match function {
        Function::AllReduce => (0..count).map(of).collect(),
        Function::Reduce => is_root.map(|()| (0..count).map(of).collect())?,
        Function::ReduceScatter => (0..count).map(|at| of(rank * count + at)).collect(),
        Function::AllGather => {
            (0..ranks).flat_map(|rank| (0..count).map(move |at| value(rank, at))).collect()
        }
        Function::Gather => {
            is_root?;
            (0..ranks).flat_map(|rank| (0..count).map(move |at| value(rank, at))).collect()
        }
        Function::Broadcast => (0..count).map(|at| value(root, at)).collect(),
        Function::Scatter => (0..count).map(|at| value(root, rank * count + at)).collect(),
        Function::AlltoAll => (0..ranks)
            .flat_map(|source| (0..count).map(move |at| value(source, rank * count + at)))
            .collect(),
        Function::SendRecv => unreachable!(),
    })
}

/// Calls a collective on every rank, and compares what it leaves.
fn check(all: &Ranks, called: &Called, (sends, receives): (&[u64], &[u64]), in_place: bool) {
    let ranks = all.count();
    let Called { function, count, data_type, .. } = *called;
    let size = usize::try_from(data_type.bytes()).unwrap();
    for rank in 0..ranks {
        let sent = buffer(data_type, (0..count * ranks).map(|at| value(rank, at)));
        put(receives[rank], &vec![0x5A; count * ranks * size]);
        put(sends[rank], &sent);
    }
    // In place: where the library says that it is.
    let place = |rank: usize| {
        let block = u64::try_from(rank * count * size).unwrap();
        match function {
            _ if !in_place => (sends[rank], receives[rank]),
            Function::AllGather | Function::Gather => (sends[rank] + block, sends[rank]),
            Function::ReduceScatter | Function::Scatter => (sends[rank], sends[rank] + block),
            _ => (sends[rank], sends[rank]),
        }
    };
    if in_place && matches!(function, Function::AllGather | Function::Gather) {
        for rank in 0..ranks {
            let own = buffer(data_type, (0..count).map(|at| value(rank, at)));
            put(place(rank).0, &own);
        }
    }
    good(all.group(|rank| {
        let (send, receive) = place(rank);
        called.call(send, receive, all.communicators[rank], all.streams[rank])
    }));
    all.synchronize();
    for rank in 0..ranks {
        let Some(expected) = expected(called, ranks, rank) else { continue };
        let expected = buffer(data_type, expected.into_iter());
        let found = fetch(place(rank).1, expected.len());
        let name = function.shape().name;
        assert!(
            found == expected,
            "{name} {data_type:?} {} rank {rank} of {ranks}, in place {in_place}: {found:?}",
            called.operation
        );
    }
}

fn every_collective(ranks: u32) {
    let all = Ranks::begin(machine_of(ranks));
    let count = 37;
    let bytes = 8 * 64 * usize::try_from(ranks).unwrap();
    let (sends, receives) = (all.allocate(bytes), all.allocate(bytes));
    for data_type in DataType::ALL {
        for function in FUNCTIONS {
            let operations = if function.shape().reduces { 0..4 } else { 0..1 };
            for operation in operations {
                // What is summed or multiplied of eight ranks, three bits of mantissa do not hold.
                let exact = data_type.bytes() > 1
                    || ranks <= 3
                    || operation > 1
                    || !function.shape().reduces;
                if !exact {
                    continue;
                }
                let root = i32::try_from(ranks).unwrap() - 1;
                let called = Called { function, count, data_type, operation, root };
                check(&all, &called, (&sends, &receives), false);
                if function != Function::AlltoAll {
                    check(&all, &called, (&sends, &receives), true);
                }
            }
        }
    }
    for communicator in all.communicators {
        good(nccl::ncclCommDestroy(communicator));
    }
}

#[test]
fn every_collective_of_one_rank() {
    alone(|| every_collective(1));
}

#[test]
fn every_collective_of_two_ranks() {
    alone(|| every_collective(2));
}

#[test]
fn every_collective_of_three_ranks() {
    alone(|| every_collective(3));
}

#[test]
fn every_collective_of_eight_ranks() {
    alone(|| every_collective(8));
}

/// All-reduces elements of one type, those of rank 0 first.
fn all_reduce(all: &Ranks, data_type: DataType, operation: u32, inputs: &[Vec<u8>]) -> Vec<u8> {
    let places = all.allocate(64);
    for (place, input) in places.iter().zip(inputs) {
        put(*place, input);
    }
    let count = inputs[0].len() / usize::try_from(data_type.bytes()).unwrap();
    let called = Called { function: Function::AllReduce, count, data_type, operation, root: 0 };
    good(all.group(|rank| {
        called.call(places[rank], places[rank], all.communicators[rank], all.streams[rank])
    }));
    all.synchronize();
    fetch(places[0], inputs[0].len())
}

#[test]
fn means_and_factors_are_reckoned_as_documented() {
    alone(|| {
        let all = Ranks::begin(machine_of(3));
        // Integers are summed, then divided: (-7 + 2 + 0) / 3 is cut to -1.
        let inputs: Vec<Vec<u8>> = [-7_i32, 2, 0].map(|v| v.to_ne_bytes().to_vec()).to_vec();
        let found = all_reduce(&all, DataType::Int32, 4, &inputs);
        assert_eq!(found, (-1_i32).to_ne_bytes());
        // Floats are multiplied by 1/3 first; element 0 of three is of part 0: ranks 1, 2, 0.
        let inputs: Vec<Vec<u8>> =
            [1.0_f32, 10.0, 100.0].map(|v| v.to_ne_bytes().to_vec()).to_vec();
        let found = all_reduce(&all, DataType::Float32, 4, &inputs);
        let third = (1.0_f64 / 3.0) as f32;
        let expected = (10.0 * third + 100.0 * third) + 1.0 * third;
        assert_eq!(found, expected.to_ne_bytes());
        // Each rank's own factor, from the host and from a device.
        let device = allocate(64);
        let host = [0.5_f64, 2.0, 4.0];
        put(device, &host.map(f64::to_ne_bytes).concat());
        for (address, residence) in [(host.as_ptr() as u64, 1), (device, 0)] {
            let operations: Vec<u32> = (0_u64..)
                .zip(&all.communicators)
                .map(|(rank, &communicator)| {
                    let mut operation = 0;
                    let scalar = In::of((address + 8 * rank) as *const u8);
                    good(nccl::ncclRedOpCreatePreMulSum(
                        Out::to(&mut operation),
                        scalar,
                        8,
                        residence,
                        communicator,
                    ));
                    operation
                })
                .collect();
            let inputs: Vec<Vec<u8>> =
                [1.0_f64, 10.0, 100.0].map(|v| v.to_ne_bytes().to_vec()).to_vec();
            let found = all_reduce(&all, DataType::Float64, operations[0], &inputs);
            assert_eq!(found, 420.5_f64.to_ne_bytes());
            // It is of that type only, and of nothing once it is destroyed.
            let (communicator, stream) = (all.communicators[0], all.streams[0]);
            let call = |data_type| {
                nccl::ncclAllReduce(
                    device,
                    device,
                    1,
                    data_type,
                    operations[0],
                    communicator,
                    stream,
                )
            };
            assert_eq!(call(7), 4);
            for (operation, &communicator) in operations.iter().zip(&all.communicators) {
                good(nccl::ncclRedOpDestroy(*operation, communicator));
                assert_eq!(nccl::ncclRedOpDestroy(*operation, communicator), 4);
            }
            assert_eq!(call(8), 4);
            assert!(last_error().contains("unknown to this communicator"), "{}", last_error());
        }
    });
}

#[test]
fn floats_of_16_bits_are_rounded_at_each_step_in_the_order_of_ranks() {
    alone(|| {
        let all = Ranks::begin(machine_of(3));
        // In 16 bits 2048 + 1 is 2048. The one element is part 0's: ranks 1, 2, 0.
        let of = |value: i64| encode(DataType::Float16, value);
        let found = all_reduce(&all, DataType::Float16, 0, &[of(1), of(2048), of(1)]);
        assert_eq!(found, of(2048));
        let found = all_reduce(&all, DataType::Float16, 0, &[of(2048), of(1), of(1)]);
        assert_eq!(found, of(2050));
    });
}

#[test]
fn messages_go_between_ranks_and_to_oneself() {
    alone(|| {
        let all = Ranks::begin(machine_of(3));
        let (from, to) = (all.allocate(256), all.allocate(256));
        for (rank, place) in from.iter().enumerate() {
            put(*place, &bytes(256, u8::try_from(rank).unwrap()));
        }
        let number = |rank: usize| i32::try_from(rank % 3).unwrap();
        good(all.group(|rank| {
            let (communicator, stream) = (all.communicators[rank], all.streams[rank]);
            good(nccl::ncclSend(from[rank], 100, 1, number(rank + 1), communicator, stream));
            good(nccl::ncclRecv(to[rank], 100, 1, number(rank + 2), communicator, stream));
            // A second one on the same way keeps its place behind the first.
            good(nccl::ncclSend(from[rank] + 100, 50, 1, number(rank + 1), communicator, stream));
            good(nccl::ncclRecv(to[rank] + 100, 50, 1, number(rank + 2), communicator, stream));
            good(nccl::ncclSend(from[rank], 10, 1, number(rank), communicator, stream));
            nccl::ncclRecv(to[rank] + 200, 10, 1, number(rank), communicator, stream)
        }));
        all.synchronize();
        for (rank, &to) in (0_u8..).zip(&to) {
            assert_eq!(fetch(to, 150), bytes(256, (rank + 2) % 3)[..150], "rank {rank}");
            assert_eq!(fetch(to + 200, 10), bytes(256, rank)[..10]);
        }
    });
}

#[test]
fn a_split_orders_ranks_by_key() {
    alone(|| {
        let all = Ranks::begin(machine_of(4));
        let mut new = [0_u64; 4];
        good(nccl::ncclGroupStart());
        for (rank, (&parent, new)) in (0_i32..).zip(all.communicators.iter().zip(&mut new)) {
            // Ranks 3, 2 and 0; rank 1 is in none.
            let color = if rank == 1 { -1 } else { 7 };
            let none = In::of(std::ptr::null());
            good(nccl::ncclCommSplit(parent, color, -rank, Out::to(new), none));
        }
        good(nccl::ncclGroupEnd());
        assert_eq!(new[1], 0);
        for (rank, new_rank) in [(3, 0), (2, 1), (0, 2)] {
            let (mut count, mut own, mut device) = (0, -1, -1);
            good(nccl::ncclCommCount(new[rank], Out::to(&mut count)));
            good(nccl::ncclCommUserRank(new[rank], Out::to(&mut own)));
            good(nccl::ncclCommCuDevice(new[rank], Out::to(&mut device)));
            assert_eq!((count, own, device), (3, new_rank, i32::try_from(rank).unwrap()));
        }
        let split = Ranks {
            communicators: vec![new[3], new[2], new[0]],
            streams: vec![all.streams[3], all.streams[2], all.streams[0]],
            contexts: vec![all.contexts[3], all.contexts[2], all.contexts[0]],
        };
        let inputs = [1, 2, 4].map(|value| encode(DataType::Int64, value));
        let found = all_reduce(&split, DataType::Int64, 0, &inputs);
        assert_eq!(found, encode(DataType::Int64, 7));
    });
}

#[test]
fn what_no_rank_may_call_is_refused_with_a_sentence() {
    alone(|| {
        let all = Ranks::begin(machine_of(2));
        let place = all.allocate(4096);
        let (communicator, stream) = (all.communicators[0], all.streams[0]);
        let root = |root| nccl::ncclBroadcast(place[0], place[0], 4, 7, root, communicator, stream);
        assert_eq!(root(2), 4);
        assert_eq!(
            last_error(),
            "ncclBroadcast : invalid root 2 (root should be in the 0..2 range)"
        );
        assert_eq!(root(-1), 4);
        let reduce = |data_type, operation| {
            nccl::ncclAllReduce(place[0], place[0], 4, data_type, operation, communicator, stream)
        };
        assert_eq!(reduce(12, 0), 4);
        assert_eq!(last_error(), "ncclAllReduce : invalid type 12");
        assert_eq!(reduce(7, 5), 4);
        assert_eq!(nccl::ncclAllReduce(place[1], place[0], 4, 7, 0, communicator, stream), 4);
        assert!(last_error().contains("allocated on device 1"), "{}", last_error());
        assert_eq!(
            nccl::ncclAllReduce(place[0], place[0], 4, 7, 0, communicator, all.streams[1]),
            1
        );
        assert_eq!(nccl::ncclAllReduce(place[0], place[0], 2000, 7, 0, communicator, stream), 4);
        assert_eq!(
            nccl::ncclAllReduce(place[0], place[0], usize::MAX, 7, 0, communicator, stream),
            4
        );
        assert_eq!(nccl::ncclAllReduce(place[0], place[0], 4, 7, 0, 0, stream), 4);
        assert_eq!(nccl::ncclGroupEnd(), 5);
        // A count of 0 is nothing, for all ranks or for one.
        good(nccl::ncclAllReduce(0, 0, 0, 7, 0, communicator, stream));
        ok(cuStreamSynchronize(stream));
        // Ranks that call for unlike roots.
        let codes = all.group(|rank| {
            let root = i32::try_from(rank).unwrap();
            nccl::ncclBroadcast(
                place[rank],
                place[rank],
                4,
                7,
                root,
                all.communicators[rank],
                all.streams[rank],
            )
        });
        assert_eq!(codes, 4);
        assert!(last_error().contains("rank 1 and rank 0 differ"), "{}", last_error());
        for communicator in &all.communicators {
            good(nccl::ncclCommAbort(*communicator));
        }
        all.synchronize();
        assert_eq!(nccl::ncclCommDestroy(all.communicators[0]), 4);
        let mut other = 0;
        let id = UniqueId { magic: 0, nonce: 1, rest: [0; 14] };
        assert_eq!(nccl::ncclCommInitRank(Out::to(&mut other), 2, id, 0), 4);
        assert_eq!(nccl::ncclCommInitRank(Out::to(&mut other), 2, id, 2), 4);
    });
}

#[test]
fn a_collective_that_is_repeated_is_made_again_once_something_has_changed() {
    alone(|| {
        let all = Ranks::begin(machine_of(2));
        let (from, to) = (all.allocate(64), all.allocate(64));
        from.iter().for_each(|&place| put(place, &[1; 16]));
        let run = |operation| {
            let called = Called {
                function: Function::AllReduce,
                count: 16,
                data_type: DataType::Uint8,
                operation,
                root: 0,
            };
            good(all.group(|rank| {
                called.call(from[rank], to[rank], all.communicators[rank], all.streams[rank])
            }));
            all.synchronize();
            [fetch(to[0], 16), fetch(to[1], 16)]
        };
        let both = |value: u8| [vec![value; 16], vec![value; 16]];
        assert_eq!([run(0), run(0)], [both(2), both(2)]);
        assert_eq!(run(1), both(1), "another operation");
        assert_eq!(run(0), both(2));
        put(to[1], &[9; 16]);
        assert_eq!(run(0), both(2), "what was received has been written");
        put(from[0], &[5; 16]);
        assert_eq!(run(0), both(6), "what is sent has been written");
        ok(cuMemcpyAsync(to[0], from[0], 16, all.streams[0]));
        ok(cuStreamSynchronize(all.streams[0]));
        assert_eq!(fetch(to[0], 16), [5; 16], "a copy is no collective");
        assert_eq!(run(0), both(6));
    });
}
