//! What it costs to take one latency sample: two readings of the clock and one count.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use g2g::{ffi::clock, measure::Latency};

fn recording(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("latency sample");
    group.bench_function("clock reading", |bencher| bencher.iter(clock::now));
    group.bench_function("recording in the histogram", |bencher| {
        let mut latency = Latency::default();
        let mut ns = 100;
        bencher.iter(|| {
            ns = ns % 1_000_000 + 37;
            latency.record(Duration::from_nanos(ns));
        });
    });
    group.bench_function("clock reading and recording", |bencher| {
        let mut latency = Latency::default();
        let mut last = clock::now();
        bencher.iter(|| {
            let now = clock::now();
            latency.record(now.since(last));
            last = now;
        });
    });
    group.finish();
}

criterion_group!(benches, recording);
criterion_main!(benches);
