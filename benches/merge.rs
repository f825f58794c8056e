//! What it costs rank 0 to read the histograms of 1024 ranks, as they come over the links, and to make one
//! of them; and to make one of each rank's times, which is what happens where all ranks share a case.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use g2g::measure::Latency;
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, LogNormal};
use serde_json::Value;

const RANKS: usize = 1024;

/// Latencies of each rank.
const SAMPLES: usize = 10_000;

fn merge(criterion: &mut Criterion) {
    let mut random = StdRng::seed_from_u64(7);
    let around_10_us = LogNormal::new(9.2, 0.5).expect("a deviation above 0");
    let mut times = || -> Vec<Duration> {
        let ns = (0..SAMPLES).map(|_| around_10_us.sample(&mut random) * 1e-9);
        ns.map(Duration::from_secs_f64).collect()
    };
    let times: Vec<Vec<Duration>> = (0..RANKS).map(|_| times()).collect();
    let text = |times: &Vec<Duration>| serde_json::to_vec(&Latency::of(times)).expect("it is text");
    let texts: Vec<Vec<u8>> = times.iter().map(text).collect();
    let mut group = criterion.benchmark_group("1024 ranks' histograms");
    group.sample_size(10);
    group.bench_function("read and merged", |bencher| {
        bencher.iter(|| {
            let mut all = Latency::default();
            for text in &texts {
                // A link looks at the round before it knows what the message is.
                let value: Value = serde_json::from_slice(text).expect("it was written so");
                all.add(&serde_json::from_value(value).expect("it was written so"));
            }
            assert_eq!(all.count(), (RANKS * SAMPLES) as u64);
        });
    });
    group.bench_function("made of their times", |bencher| {
        bencher.iter(|| {
            let of_ranks: Vec<Latency> = times.iter().map(|times| Latency::of(times)).collect();
            assert_eq!(of_ranks.len(), RANKS);
        });
    });
    group.finish();
}

criterion_group!(benches, merge);
criterion_main!(benches);
