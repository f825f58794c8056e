//! `g2g compare` of 100,000 rows with as many: its time, and the most memory that it takes.

#![allow(clippy::print_stdout, reason = "the memory is a result too")]

mod large;

use std::{process::Stdio, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use large::{ROWS, Shape, enlarge, g2g, measure, peak_mib};

fn compare(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("room");
    let [run, old, new] = ["run", "old", "new"].map(|name| folder.path().join(name));
    measure("p2p --simulate p5.48xlarge --sizes 256K --samples 6 --time-limit 1ms --quiet", &run);
    for (seed, to) in [&old, &new].into_iter().enumerate() {
        enlarge((&run, to), Shape::Sizes, ROWS, seed as u64).expect("room");
    }
    let command = || {
        let mut command = g2g();
        command.arg("compare").args([&old, &new]).stdout(Stdio::null());
        command
    };
    let mut group = criterion.benchmark_group("100,000 rows");
    group.sample_size(10).measurement_time(Duration::from_secs(60));
    group.bench_function("compare", |bencher| {
        bencher.iter(|| assert!(command().status().expect("the program starts").success()));
    });
    group.finish();
    println!("100,000 rows/compare: at most {} MiB", peak_mib(command()));
}

criterion_group!(benches, compare);
criterion_main!(benches);
