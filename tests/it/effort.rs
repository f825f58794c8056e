//! How much time a row takes by its effort, and which latencies are known then.

use crate::common::{
    Rows,
    simulation::{EVENT_NS, Simulated, Way, assert_latency, assert_near, four_gpus},
};

const MIB: f64 = 1_048_576.0;

/// A twentieth of all transfers lasts so much longer.
const EXTRA_NS: f64 = 50_000.0;

fn run(effort: &str, sizes: &str) -> Rows {
    let jitter = format!("\n[[fault.jitter]]\nshare = 0.05\nextra_ns = {EXTRA_NS:?}\n");
    let line = format!("p2p --gpus 0,1 --operation copy --sizes {sizes} --effort {effort} --quiet");
    Simulated::run(&four_gpus("", &jitter), &line).rows()
}

/// The time of one copy by a copy engine.
fn time_ns(rows: &Rows, row: usize) -> f64 {
    let gpu = |column| rows.cell(row, column).parse().unwrap();
    let way = Way { source: gpu("source_gpu"), target: gpu("target_gpu") };
    way.time_ns("ce", rows.cell(row, "issuer"), rows.number(row, "size_bytes"))
}

#[test]
fn a_percentile_is_known_where_ten_latencies_are_larger() {
    let rows = run("normal", "4K,1M,256M");
    for row in 0..rows.len() {
        let samples = rows.number(row, "latency_samples");
        for (column, needed) in
            [("latency_ns_p90", 100.0), ("latency_ns_p99", 1000.0), ("latency_ns_p999", 10_000.0)]
        {
            let is_known = !rows.cell(row, column).is_empty();
            assert_eq!(is_known, samples >= needed, "{column} of {samples}");
        }
        if rows.cell(row, "engine") == "ce" {
            let time_ns = time_ns(&rows, row);
            assert_latency(rows.number(row, "latency_ns_p50"), time_ns, "p50");
            if samples >= 1000.0 {
                let late_ns = time_ns + EVENT_NS + EXTRA_NS;
                assert_near(rows.number(row, "latency_ns_p99"), late_ns, 0.02, "p99");
            }
        }
    }
    let of_size = |size: f64| {
        let rows_of = (0..rows.len()).filter(|row| rows.number(*row, "size_bytes") == size);
        rows_of.map(|row| rows.number(row, "latency_samples")).collect::<Vec<f64>>()
    };
    assert!(of_size(4096.0).iter().all(|samples| *samples >= 1000.0), "{:?}", of_size(4096.0));
    // A sample that is one operation is a latency too: there are as many of both.
    let long: Vec<usize> =
        (0..rows.len()).filter(|row| rows.number(*row, "size_bytes") == 256.0 * MIB).collect();
    for row in long {
        assert_eq!(rows.number(row, "operations_per_sample"), 1.0);
        assert_eq!(rows.cell(row, "latency_samples"), rows.cell(row, "bandwidth_samples"));
    }
}

#[test]
fn more_effort_takes_more_of_the_machines_time_and_knows_more() {
    let [quick, normal, thorough] = ["quick", "normal", "thorough"].map(|effort| run(effort, "1M"));
    let seconds = |rows: &Rows| {
        // The first row also waits for clocks to rise.
        (1..rows.len()).map(|row| rows.number(row, "machine_seconds")).fold(0.0, f64::max)
    };
    let all = [&quick, &normal, &thorough].map(seconds);
    assert!(all[0] < all[1] && all[1] < all[2], "{all:?}");
    assert!((0..quick.len()).all(|row| quick.cell(row, "engine") == "ce"));
    assert_eq!((quick.len(), normal.len(), thorough.len()), (4, 8, 8));
    for row in 0..thorough.len() {
        assert_eq!(thorough.number(row, "latency_samples"), 10_000.0);
    }
}
