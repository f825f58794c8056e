//! `g2g compare` of a million rows with a million: its time, and the most memory that it takes. The rows
//! are those of a run on a simulated machine, many times over with numbers of their own.

#![allow(clippy::print_stdout, reason = "the memory is a result too")]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use criterion::{Criterion, criterion_group, criterion_main};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const ROWS: usize = 1_000_000;

fn g2g() -> Command {
    Command::new(env!("CARGO_BIN_EXE_g2g"))
}

fn compare(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("room");
    let [run, old, new] = ["run", "old", "new"].map(|name| folder.path().join(name));
    let words = "p2p --simulate p5.48xlarge --sizes 256K --samples 6 --time-limit 1ms --quiet";
    let mut command = g2g();
    command.args(words.split(' ')).arg("--output").arg(&run).stdout(Stdio::null());
    let status = command.status().expect("the program starts");
    assert!(status.success(), "`cargo build --release --workspace` makes what simulates");
    for (seed, to) in [&old, &new].into_iter().enumerate() {
        enlarge(&run, to, seed as u64).expect("room");
    }
    let command = || {
        let mut command = g2g();
        command.arg("compare").args([&old, &new]).stdout(Stdio::null());
        command
    };
    let mut group = criterion.benchmark_group("a million rows");
    group.sample_size(10).measurement_time(Duration::from_secs(60));
    group.bench_function("compare", |bencher| {
        bencher.iter(|| assert!(command().status().expect("the program starts").success()));
    });
    group.finish();
    println!("a million rows/compare: at most {} MiB", peak_mib(command()));
}

/// Writes the results in `from` so many times over that they are [`ROWS`] rows.
fn enlarge(from: &Path, to: &Path, seed: u64) -> std::io::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    fs::create_dir(to)?;
    fs::copy(from.join("run.json"), to.join("run.json"))?;
    let csv = fs::read_to_string(from.join("run.csv"))?;
    let (header, rows) = csv.split_once('\n').unwrap_or_default();
    let rows: Vec<&str> = rows.lines().collect();
    let mut file = BufWriter::new(File::create(to.join("run.csv"))?);
    writeln!(file, "{header}")?;
    for row in 0..ROWS {
        let factor = random.random_range(0.995..1.005);
        let cell = |(name, cell): (&str, &str)| match (name, cell.parse::<f64>()) {
            ("case", _) => (row + 1).to_string(),
            ("size_bytes", Ok(bytes)) => (bytes + 4096.0 * (row / rows.len()) as f64).to_string(),
            ("bandwidth_gb_s_low", Ok(gb_s)) => (gb_s * factor * 0.995).to_string(),
            ("bandwidth_gb_s_high", Ok(gb_s)) => (gb_s * factor * 1.005).to_string(),
            ("path_reason" | "verdict_reason", _) => format!("{cell} ({factor})"),
            (name, Ok(number)) if name.contains("gb_s") => (number * factor).to_string(),
            _ => cell.to_owned(),
        };
        let cells = header.split(',').zip(rows[row % rows.len()].split(',')).map(cell);
        writeln!(file, "{}", cells.collect::<Vec<String>>().join(","))?;
    }
    let hlog = fs::read_to_string(from.join("latency.hlog"))?;
    let (lines, head): (Vec<&str>, Vec<&str>) =
        hlog.lines().partition(|line| line.starts_with("Tag="));
    let mut file = BufWriter::new(File::create(to.join("latency.hlog"))?);
    head.iter().try_for_each(|line| writeln!(file, "{line}"))?;
    for (row, line) in (0..ROWS).zip(lines.iter().cycle()) {
        let (_, rest) = line.split_once('_').unwrap_or_default();
        writeln!(file, "Tag=case-{}_{rest}", row + 1)?;
    }
    file.flush()
}

/// The most memory that a program has had.
fn peak_mib(mut command: Command) -> u64 {
    let mut child = command.spawn().expect("the program starts");
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().expect("it is ours").is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0) / 1024);
        thread::sleep(Duration::from_millis(5));
    }
    most
}

criterion_group!(benches, compare);
criterion_main!(benches);
