//! Graphs of what a stream and a communicator are asked to do.

use super::*;

/// What `call` queues on a stream, as a graph that can be launched.
fn captured(stream: u64, call: impl FnOnce()) -> u64 {
    ok(cuStreamBeginCapture_v2(stream, 1));
    call();
    executable(stream)
}

/// The graph of what was captured.
fn executable(stream: u64) -> u64 {
    let graph = get(|out| cuStreamEndCapture(stream, out));
    let executable = get(|out| cuGraphInstantiateWithFlags(out, graph, 0));
    ok(cuGraphDestroy(graph));
    executable
}

#[test]
fn a_graph_does_at_each_launch_what_was_captured_and_lasts_as_long() {
    alone(|| {
        let contexts = begin(machine());
        let own = stream();
        let (source, target, count) = (allocate(100_000), allocate(100_000), 100_000);
        put(source, &bytes(count, 3));
        put(target, &bytes(count, 9));
        let copies = captured(own, || {
            ok(cuMemcpyDtoDAsync_v2(target, source, count, own));
            ok(cuMemsetD8Async(source, 7, count, own));
        });
        // Nothing has been done yet.
        ok(cuStreamSynchronize(own));
        assert_eq!(fetch(target, count), bytes(count, 9));
        let begin = mark(own);
        ok(cuGraphLaunch(copies, own));
        let middle = mark(own);
        ok(cuGraphLaunch(copies, own));
        let end = mark(own);
        ok(cuStreamSynchronize(own));
        // Two copies within a GPU, each 1 us and its bytes at 1000 GB/s; the second time it is what
        // the first has left.
        let [begin, middle, end] = [begin, middle, end].map(time_ps);
        assert_eq!((middle - begin, end - middle), (2_200_000, 2_200_000));
        assert_eq!(fetch(target, count), [7].repeat(count));
        // Of another GPU's stream it is not.
        on(contexts[1]);
        assert_eq!(cuGraphLaunch(copies, stream()), 201);
        on(contexts[0]);
        ok(cuGraphExecDestroy(copies));
        assert_eq!(cuGraphLaunch(copies, own), 400);
        assert_eq!(crate::state::world().unwrap().local().live().graphs, 0);
    });
}

#[test]
fn what_no_graph_can_have_makes_a_capture_invalid() {
    alone(|| {
        begin(machine());
        let own = stream();
        let mut graph = 1;
        assert_eq!(cuStreamEndCapture(own, Out::to(&mut graph)), 401);
        assert_eq!(cuStreamBeginCapture_v2(0, 1), 900);
        for call in
            [&|| cuStreamSynchronize(own), &|| cuStreamQuery(own), &|| cuEventRecord(event(), own)]
                as [&dyn Fn() -> u32; 3]
        {
            ok(cuStreamBeginCapture_v2(own, 1));
            assert_eq!(cuStreamBeginCapture_v2(own, 1), 401);
            assert_eq!(call(), 900);
            assert_eq!((cuStreamEndCapture(own, Out::to(&mut graph)), graph), (901, 0));
            ok(cuStreamSynchronize(own));
        }
    });
}

#[test]
fn collectives_and_messages_in_graphs_of_all_ranks_move_real_data_at_each_launch() {
    alone(|| {
        let all = Ranks::begin(machine_of(2));
        let places = all.allocate(64);
        let received = all.allocate(64);
        for &stream in &all.streams {
            ok(cuStreamBeginCapture_v2(stream, 1));
        }
        good(all.group(|rank| {
            let place = places[rank];
            nccl::ncclAllReduce(place, place, 4, 2, 0, all.communicators[rank], all.streams[rank])
        }));
        good(all.group(|rank| {
            let (of, stream) = (all.communicators[rank], all.streams[rank]);
            let peer = 1 - i32::try_from(rank).unwrap();
            good(nccl::ncclSend(places[rank], 4, 2, peer, of, stream));
            nccl::ncclRecv(received[rank], 4, 2, peer, of, stream)
        }));
        let graphs: Vec<u64> = all.streams.iter().map(|&stream| executable(stream)).collect();
        let element = |value: u8| [value, 0, 0, 0].repeat(4);
        places.iter().for_each(|&place| put(place, &element(3)));
        for sum in [6, 12, 24] {
            for (&graph, &stream) in graphs.iter().zip(&all.streams) {
                ok(cuGraphLaunch(graph, stream));
            }
            all.synchronize();
            assert_eq!(
                [fetch(places[0], 16), fetch(received[1], 16)],
                [element(sum), element(sum)]
            );
        }
        // What is wrong is refused when it is captured, what has become wrong at the launch.
        ok(cuStreamBeginCapture_v2(all.streams[0], 1));
        let of = all.communicators[0];
        assert_eq!(nccl::ncclAllReduce(places[0], places[0], 4, 99, 0, of, all.streams[0]), 4);
        let graph = get(|out| cuStreamEndCapture(all.streams[0], out));
        ok(cuGraphDestroy(graph));
        good(nccl::ncclCommAbort(of));
        assert_eq!(cuGraphLaunch(graphs[0], all.streams[0]), 719);
    });
}
