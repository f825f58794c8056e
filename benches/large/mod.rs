//! Runs of a hundred thousand rows: those of a run on a simulated machine, many times over with numbers of
//! their own.

#![allow(dead_code, reason = "each bench uses a part of it")]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Rows of a large run.
pub(crate) const ROWS: usize = 100_000;

/// Bytes from a size to the next one of the same case.
const STEP: usize = 4096;

/// GPUs of a host where there are many hosts.
const GPUS_PER_HOST: usize = 8;

/// What rows with the same numbers differ in.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Their sizes.
    Sizes,
    /// Their GPUs, of so many.
    Pairs(usize),
}

/// The program.
pub(crate) fn g2g() -> Command {
    Command::new(env!("CARGO_BIN_EXE_g2g"))
}

/// Measures on a simulated machine.
pub(crate) fn measure(words: &str, to: &Path) {
    let mut command = g2g();
    command.args(words.split(' ')).arg("--output").arg(to).stdout(Stdio::null());
    let status = command.status().expect("the program starts");
    assert!(status.success(), "`cargo build --release --workspace` makes what simulates");
}

/// Writes the results in `from` so many times over that they are so many rows.
pub(crate) fn enlarge(
    (from, to): (&Path, &Path),
    shape: Shape,
    count: usize,
    seed: u64,
) -> std::io::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    fs::create_dir(to)?;
    fs::copy(from.join("run.json"), to.join("run.json"))?;
    let csv = fs::read_to_string(from.join("run.csv"))?;
    let (header, rows) = csv.split_once('\n').unwrap_or_default();
    let rows: Vec<&str> = rows.lines().collect();
    let mut file = BufWriter::new(File::create(to.join("run.csv"))?);
    writeln!(file, "{header}")?;
    for row in 0..count {
        let factor = random.random_range(0.995..1.005);
        let round = row / rows.len();
        let cell = |(name, cell): (&str, &str)| match (name, cell.parse::<f64>(), shape) {
            ("case", ..) => (row + 1).to_string(),
            ("size_bytes", Ok(bytes), Shape::Sizes) => (bytes + (STEP * round) as f64).to_string(),
            (_, _, Shape::Pairs(gpus)) if is_end(name) => end(name, row, gpus),
            ("bandwidth_gb_s_low", Ok(gb_s), _) => (gb_s * factor * 0.995).to_string(),
            ("bandwidth_gb_s_high", Ok(gb_s), _) => (gb_s * factor * 1.005).to_string(),
            ("path_reason" | "verdict_reason", ..) => format!("{cell} ({factor})"),
            (name, Ok(number), _) if name.contains("gb_s") && !name.contains("expected") => {
                (number * factor).to_string()
            }
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
    for (row, line) in (0..count).zip(lines.iter().cycle()) {
        let (_, rest) = line.split_once('_').unwrap_or_default();
        writeln!(file, "Tag=case-{}_{rest}", row + 1)?;
    }
    file.flush()
}

fn is_end(name: &str) -> bool {
    let is_one = |end: &str| ["gpu", "rank", "host"].contains(&end);
    name.strip_prefix("source_").or(name.strip_prefix("target_")).is_some_and(is_one)
}

/// The cell of one end of a row's pair.
fn end(name: &str, row: usize, gpus: usize) -> String {
    let source = row / (gpus - 1);
    let other = row % (gpus - 1);
    let rank = match name.starts_with("source") {
        true => source,
        false => other + usize::from(other >= source),
    };
    match name.rsplit('_').next() {
        Some("gpu") => (rank % GPUS_PER_HOST).to_string(),
        Some("host") => format!("node-{}", rank / GPUS_PER_HOST),
        _ => rank.to_string(),
    }
}

/// The most memory that a program has had.
pub(crate) fn peak_mib(mut command: Command) -> u64 {
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
