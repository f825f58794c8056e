//! The shm transport between two threads, beside a plain `memcpy` of the same size: the bytes of
//! a transfer are counted once.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use g2g::{
    ffi::host::HostBuffer,
    machine,
    plan::{self, Case, Pattern, Request, TransportKind, topology::Topology},
    transport::{self, Span},
    units::Bytes,
    world::{Local, World},
};

const SIZES: [Bytes; 4] = [Bytes::new(64), Bytes::kib(64), Bytes::mib(1), Bytes::mib(64)];

fn shm(criterion: &mut Criterion) {
    let topology = machine::topology().expect("the kernel tells the CPUs");
    let request = Request {
        patterns: vec![Pattern::OneWay],
        sizes: Some(SIZES.to_vec()),
        ranks: Some(2),
        ..Request::of(&[TransportKind::Shm])
    };
    let cases = plan::cases(&request, &topology).expect("two ranks are enough");
    let mut group = criterion.benchmark_group("one way");
    group.measurement_time(Duration::from_secs(3)).sample_size(20);
    for case in cases.iter().take(SIZES.len()) {
        group.throughput(Throughput::BytesDecimal(case.size.get()));
        group.bench_with_input(BenchmarkId::new("memcpy", case.size), case, |bencher, case| {
            let source = HostBuffer::new(case.size).expect("memory");
            let mut target = HostBuffer::new(case.size).expect("memory");
            bencher.iter(|| target.copy_from_slice(std::hint::black_box(&source)));
        });
        group.bench_with_input(BenchmarkId::new("shm", case.size), case, |bencher, case| {
            between_threads(case, &topology, |run| bencher.iter_custom(run));
        });
    }
    group.finish();
}

/// Prepares both ends of `case` and lets `measure` time counts of operations.
fn between_threads(
    case: &Case,
    topology: &Topology,
    measure: impl FnOnce(&mut dyn FnMut(u64) -> Duration),
) {
    let mut worlds = Local::threads(2, Duration::from_secs(60)).expect("sockets").into_iter();
    let (root, other) = (worlds.next().expect("rank 0"), worlds.next().expect("rank 1"));
    let (send, receive) = mpsc::channel::<u64>();
    let (confirm, confirmed) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut end = prepare(case, topology, World::local(other).expect("a rank of two"));
            for operations in receive {
                end.run(operations, &mut [Span::default()]).expect("rank 0 is there");
                confirm.send(()).expect("rank 0 is there");
            }
        });
        let mut end = prepare(case, topology, World::local(root).expect("a rank of two"));
        measure(&mut |operations| {
            send.send(operations).expect("rank 1 is there");
            let began = Instant::now();
            end.run(operations, &mut [Span::default()]).expect("rank 1 is there");
            confirmed.recv().expect("rank 1 is there");
            began.elapsed()
        });
        drop(send);
    });
}

fn prepare(case: &Case, topology: &Topology, mut world: World) -> Box<dyn transport::Transfer> {
    let shm = transport::open(TransportKind::Shm, topology).expect("shared memory");
    shm.prepare(case, &mut world).expect("both ranks are there")
}

criterion_group!(benches, shm);
criterion_main!(benches);
