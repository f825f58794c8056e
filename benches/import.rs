//! What it costs to read results of other programs: a million rows of each form.

use std::fmt::Write;

use criterion::{Criterion, criterion_group, criterion_main};
use g2g::record::import;

const ROWS: usize = 1_000_000;

/// Lines of a table between what stands before and behind it, until there are enough rows.
fn text(before: &str, line: impl Fn(usize) -> String, rows_per_line: usize) -> Vec<u8> {
    let mut text = before.to_owned();
    for number in 0..ROWS / rows_per_line {
        text.push_str(&line(number));
    }
    text.into_bytes()
}

fn files() -> [(&'static str, Vec<u8>); 4] {
    let nccl_tests = text(
        "# Collective test starting: all_reduce_perf\n# size count type redop root time algbw \
         busbw #wrong time algbw busbw #wrong\n",
        |number| {
            let size = 8 * (number + 1);
            format!(
                "{size:12}  {:12}     float     sum      -1    22.31    0.01    0.02       0    22.31    0.01    0.02       0\n",
                size / 4
            )
        },
        2,
    );
    let mut json = r#"{"args":["all_reduce_perf"],"nccl_version":23003,"config":{"nthreads":1,"ngpus":8},"results":["#.to_owned();
    for number in 0..ROWS / 2 {
        let place = r#"{"time":22.310000,"alg_bw":0.010000,"bus_bw":0.020000,"nwrong":0.000000}"#;
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(
            json,
            r#"{comma}{{"size":{},"count":2,"type":"float","redop":"sum","root":"    -1","out_of_place":{place},"in_place":{place},"actual_iterations":20,"experiment_name":""}}"#,
            8 * (number + 1)
        );
    }
    json.push_str("]}");
    let osu = text(
        "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n",
        |number| format!("{:<10}{:>20.2}\n", number + 1, 12_000.0),
        1,
    );
    let fabtests = text(
        "---\nfi_rma_bw -p efa -m 10.0.0.7 :\n",
        |number| {
            format!(
                "- {{ xfer_size: {}, iterations: 200, total: 1, time: 0.1, MB/sec: 11400.4, \
                 usec/xfer: 91.98, Mxfers/sec: 0.01 }}\n",
                number + 1
            )
        },
        1,
    );
    [
        ("text of nccl-tests", nccl_tests),
        ("JSON of nccl-tests", json.into_bytes()),
        ("text of OSU", osu),
        ("machine-readable text of fabtests", fabtests),
    ]
}

fn reading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a million rows");
    group.sample_size(10);
    for (name, bytes) in files() {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let about = import::read(&bytes, &mut |row| drop(std::hint::black_box(row)));
                assert_eq!(about.expect("it has rows").rows, ROWS);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, reading);
criterion_main!(benches);
