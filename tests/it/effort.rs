//! How much time a row takes by its effort, and which latencies are known then.

use crate::common::{
    Rows, g2g,
    simulation::{EVENT_NS, Simulated, Way, assert_latency, assert_near, four_gpus},
    text,
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

/// Seconds in a wait that g2g tells: `10 s`, `3 min`.
fn seconds(told: &str) -> f64 {
    let (number, unit) = told.split_once(' ').unwrap();
    let unit_seconds = match unit {
        "s" => 1.0,
        "min" => 60.0,
        _ => panic!("{told}"),
    };
    number.parse::<f64>().unwrap() * unit_seconds
}

/// What a run of all pairs said that it takes, and what it took of the machine's time.
fn told(machine: &str, words: &str) -> [f64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let mut command = g2g();
    let line = format!("{words} --simulate {machine} --no-report --output");
    command.args(line.split_whitespace()).arg(folder.path().join("run"));
    let result = command.output().unwrap();
    let (said, printed) = (text(&result.stderr), text(&result.stdout));
    let between = |from: &str, to: &str| {
        let at = said.find(from).unwrap_or_else(|| panic!("{said}")) + from.len();
        seconds(said[at..].split_once(to).unwrap().0)
    };
    let took = printed.split_once(" rows measured in ").unwrap_or_else(|| panic!("{said}")).1;
    [
        between(", about ", " of the simulated machine"),
        seconds(took.split_once(" of the simulated machine").unwrap().0),
    ]
}

#[test]
fn all_pairs_take_what_is_promised() {
    for (machine, most) in [
        ("p5.48xlarge", 10.0),
        ("p4d.24xlarge", 15.0),
        ("g7e.48xlarge", 15.0),
        ("p6-b200.48xlarge", 15.0),
        ("p3.16xlarge", 15.0),
        ("p2.8xlarge", 60.0),
    ] {
        let [promised, took] = told(machine, "p2p");
        assert!(took <= most, "{machine}: {took} s");
        assert!((promised / took - 1.0).abs() <= 0.25, "{machine}: {promised}, not {took} s");
    }
}

#[test]
fn a_first_look_at_all_pairs_takes_four_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = "p2p --simulate p5.48xlarge --effort quick --quiet --no-report --output";
    let result = g2g().args(line.split(" ")).arg(&output).output().unwrap();
    assert!(result.status.success(), "{}", text(&result.stderr));
    let rows = Rows::read(&output);
    let all = (0..rows.len()).map(|row| rows.cell(row, "machine_seconds").parse::<f64>().unwrap());
    let seconds: f64 = all.sum();
    assert!(seconds <= 4.0, "{seconds}");
}
