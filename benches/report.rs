//! `g2g report` of 100,000 rows: its time, the most memory that it takes, and the size of the
//! page. The rows are of many sizes, or of all pairs of 317 GPUs.

#![allow(clippy::print_stdout, reason = "the memory is a result too")]

mod large;

use std::{fs, process::Stdio, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use large::{ROWS, Shape, enlarge, g2g, measure, peak_mib};

/// GPUs whose pairs are the rows of a large run.
const GPUS: usize = ROWS.isqrt() + 1;

fn report(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("room");
    let small = "p2p --simulate p5.48xlarge --sizes 256K --samples 6 --time-limit 1ms --quiet";
    let shapes = [
        ("report of many sizes", small.to_owned(), Shape::Sizes),
        (
            "report of many pairs",
            format!("{small} --operation copy --issuer write --engine ce --pattern one-way"),
            Shape::Pairs(GPUS),
        ),
    ];
    let mut group = criterion.benchmark_group("100,000 rows");
    group.sample_size(10).measurement_time(Duration::from_secs(60));
    for (place, (name, words, shape)) in shapes.into_iter().enumerate() {
        let [run, large] =
            ["run", "large"].map(|name| folder.path().join(format!("{name}-{place}")));
        measure(&words, &run);
        enlarge((&run, &large), shape, ROWS, 0).expect("room");
        let command = || {
            let mut command = g2g();
            command.arg("report").arg(&large).stdout(Stdio::null());
            command
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| assert!(command().status().expect("the program starts").success()));
        });
        let peak = peak_mib(command());
        let page = fs::metadata(large.join("report.html")).expect("it was written").len() >> 20;
        println!("100,000 rows/{name}: at most {peak} MiB, a page of {page} MiB");
        fs::remove_dir_all(large).expect("it is ours");
    }
    group.finish();
}

criterion_group!(benches, report);
criterion_main!(benches);
