//! What 1024 histograms of ranks cost: made of their times and sent on, read by rank 0, and merged
//! from a run's files for its page.

mod large;

use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

use criterion::{Criterion, criterion_group, criterion_main};
use g2g::{measure::Latency, record::Run};
use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogWriterBuilder, Tag},
};
use large::{Shape, enlarge, measure};
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, LogNormal};
use serde_json::Value;

const RANKS: usize = 1024;

/// Latencies of each rank.
const SAMPLES: usize = 10_000;

fn merge(criterion: &mut Criterion) {
    let mut random = StdRng::seed_from_u64(7);
    let around_10_us = LogNormal::new(9.2, 0.5).expect("a deviation above 0");
    let mut times = |_| -> Vec<Duration> {
        let ns = (0..SAMPLES).map(|_| around_10_us.sample(&mut random) * 1e-9);
        ns.map(Duration::from_secs_f64).collect()
    };
    let times: Vec<Vec<Duration>> = (0..RANKS).map(&mut times).collect();
    let mut group = criterion.benchmark_group("1024 ranks' histograms");
    group.sample_size(10);
    let text = |times: &Vec<Duration>| serde_json::to_vec(&Latency::of(times)).expect("it is text");
    group.bench_function("made and sent", |bencher| {
        bencher.iter(|| times.iter().map(text).collect::<Vec<Vec<u8>>>());
    });
    let texts: Vec<Vec<u8>> = times.iter().map(text).collect();
    // A link looks at the round before it knows what the message is.
    let read = |text: &Vec<u8>| -> Latency {
        let value: Value = serde_json::from_slice(text).expect("it was written so");
        serde_json::from_value(value).expect("it was written so")
    };
    group.bench_function("read by rank 0", |bencher| {
        bencher.iter(|| texts.iter().map(read).collect::<Vec<Latency>>());
    });
    let folder = tempfile::tempdir().expect("room");
    let [one, all] = ["one", "all"].map(|name| folder.path().join(name));
    measure("p2p --simulate p5.48xlarge --sizes 256K --samples 6 --time-limit 1ms --quiet", &one);
    enlarge((&one, &all), Shape::Sizes, RANKS, 0).expect("room");
    log(&all.join("latency.hlog"), &texts.iter().map(read).collect::<Vec<Latency>>());
    let run = Run::read(&all).expect("it was written so");
    group.bench_function("merged from latency.hlog", |bencher| {
        bencher.iter(|| {
            let mut merged = Latency::default();
            let each = |_, latency: Latency| merged.merge(&latency);
            run.latencies(0..RANKS, each).expect("it was written so");
            assert_eq!(merged.count(), (RANKS * SAMPLES) as u64);
        });
    });
    group.finish();
}

/// Writes a log with a histogram for each row.
fn log(path: &Path, histograms: &[Latency]) {
    fs::remove_file(path).expect("it is ours");
    let mut file = File::create(path).expect("room");
    let mut serializer = V2DeflateSerializer::new();
    let builder = IntervalLogWriterBuilder::new();
    let mut log = builder.begin_log_with(&mut file, &mut serializer).expect("room");
    for (row, latency) in (1..).zip(histograms) {
        let tag = format!("case-{row}_p2p");
        let (start, lasted) = (Duration::ZERO, Duration::from_secs(1));
        log.write_histogram(latency.histogram(), start, lasted, Tag::new(&tag)).expect("room");
    }
}

criterion_group!(benches, merge);
criterion_main!(benches);
