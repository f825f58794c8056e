//! What a run prints for a person: the answer first, within the width of the terminal.

use std::{fs, path::Path, process::Output};

use crate::common::{Rows, g2g, run, text};

/// Prints within so many columns.
fn within(width: usize, line: &str) -> Output {
    let mut command = g2g();
    command.env("COLUMNS", width.to_string());
    run(command, line)
}

/// A p5.48xlarge whose GPU 3 sends at 59 % of its speed.
fn write_slow(folder: &Path) -> String {
    let machine = folder.join("slow.toml");
    let fault = "[[fault.slow]]\nsource = 3\nfraction = 0.59\n";
    fs::write(&machine, format!("schema = 1\nfrom = \"p5.48xlarge\"\n{fault}")).unwrap();
    machine.display().to_string()
}

fn line(machine: &str, folder: &Path, more: &str) -> String {
    let output = folder.join("run").display().to_string();
    format!("p2p --simulate {machine} --sizes 1M,64M --quiet --output {output} {more}")
}

#[test]
fn a_slow_gpu_is_named_at_the_top() {
    for width in [80, 200] {
        let folder = tempfile::tempdir().unwrap();
        let machine = write_slow(folder.path());
        let result = within(width, &line(&machine, folder.path(), "--no-report"));
        let printed = text(&result.stdout);
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        let lines: Vec<&str> = printed.lines().collect();
        assert!(lines.len() <= 120, "{} lines: {printed}", lines.len());
        let summary = lines[..lines.iter().position(|line| line.is_empty()).unwrap()].join("\n");
        assert!(summary.lines().count() <= 12, "{summary}");
        assert!(summary.contains("GPU 3 is 25 to 41 % slower as a source to all"), "{summary}");
        let words: Vec<&str> = summary.split_whitespace().collect();
        assert!(words.join(" ").contains("57 % (28 rows)"), "{summary}");
        // Each kind and size has a matrix of reads and one of writes.
        let matrices = lines.iter().filter(|line| line.trim_start().starts_with("from / to"));
        assert_eq!(matrices.count(), 8, "{printed}");
        assert!(lines.last().unwrap().starts_with("results: "), "{printed}");
    }
}

#[test]
fn pairs_that_are_alike_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let result = within(80, &line("p5.48xlarge", folder.path(), ""));
    let printed = text(&result.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.len() <= 40, "{} lines: {printed}", lines.len());
    assert_eq!(lines.iter().filter(|line| line.contains(": all 56 pairs ")).count(), 9);
    for line in lines.iter().filter(|line| line.contains("GB/s read by the target")) {
        let told: f64 = line.split(' ').rev().nth(1).unwrap().parse().unwrap();
        let of_size = if line.contains(" 1 MiB") { "1048576" } else { "67108864" };
        let rows = Rows::read(&folder.path().join("run"));
        let mut rates: Vec<f64> = (0..rows.len())
            .filter(|&row| {
                let cell = |column| rows.cell(row, column);
                line.contains(&format!("copy {},", cell("engine")))
                    && (cell("issuer"), cell("size_bytes")) == ("read", of_size)
            })
            .map(|row| rows.number(row, "bandwidth_gb_s"))
            .collect();
        rates.sort_by(f64::total_cmp);
        assert_eq!(rates.len(), 56);
        assert!((rates[28] - told).abs() <= 0.005, "{line}: {}", rates[28]);
    }
    let last = format!("page: {}", folder.path().join("run/report.html").display());
    assert_eq!(*lines.last().unwrap(), last);
}

#[test]
fn what_is_below_ends_with_code_1_if_that_is_asked_for() {
    for (more, code) in [
        ("", 0),
        ("--fail-below", 1),
        // Reads and writes of GPU 3 reach 57 to 60 %.
        ("--fail-below=50%", 0),
        ("--fail-below=90", 1),
        ("--fail-below=101", 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let machine = write_slow(folder.path());
        let more = format!("--gpus 2,3 --engine ce --operation copy --no-report {more}");
        let result = run(g2g(), &line(&machine, folder.path(), &more));
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(code), "{more}: {said}");
        assert_eq!(said.contains("(--fail-below)"), code == 1, "{more}: {said}");
    }
}

#[test]
fn where_nothing_is_judged_fail_below_does_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "shm --sizes 64 --samples 3 --quiet --no-report --fail-below --output {}",
        output.display()
    );
    let result = run(g2g(), &line);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{said}");
    assert!(said.contains("no row has a verdict"), "{said}");
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let plan = "command = \"p2p\"\nflags = \"--simulate p4d.24xlarge --gpus 0,1 --samples 3 \
                --operation copy --sizes 1M\"\nrepetitions = 1\n[[axis]]\nname = \"--engine\"\n\
                values = [\"ce\", \"sm\"]\n";
    fs::write(folder.path().join("plan.toml"), plan).unwrap();
    for side in ["a", "b"] {
        let output = folder.path().join(side);
        let line = format!(
            "p2p --simulate p4d.24xlarge --gpus 0-2 --operation copy --samples 20 --quiet \
             --no-report --output {}",
            output.display()
        );
        assert!(run(g2g(), &line).status.success());
    }
    let quick = "--samples 3 --time-limit 2ms --quiet --no-report";
    let commands = [
        format!("local --simulate p4d.24xlarge --gpus 0-2 --sizes 1M {quick}"),
        format!("p2p --simulate g6e.48xlarge {quick} --sizes 1M"),
        format!("p2p --simulate p4d.24xlarge --gpus 0-2 --sizes 1M {quick} --details"),
        format!("shm --simulate p4d.24xlarge --gpus 0,1 --sizes 1M --slot-size 512K {quick}"),
        format!("nccl --simulate p4d.24xlarge --gpus 0-3 --sizes 1M,2M {quick}"),
        format!("rdma --provider shm --operation write,ping-pong --sizes 8,64K {quick}"),
        "topo --simulate p5.48xlarge".to_owned(),
        "doctor --simulate p5.48xlarge --verbose".to_owned(),
        "catalogue".to_owned(),
        "catalogue p5.48xlarge".to_owned(),
        "run --simulate p5.48xlarge --dry-run".to_owned(),
        format!("compare {} {} --all", file("a"), file("b")),
        format!("sweep {} --quiet", file("plan.toml")),
        "explain tests/fixtures/nccl-2.27.3-p4d-4pods-efa.log".to_owned(),
    ];
    for width in [60, 80, 120, 200] {
        for (number, command) in commands.iter().enumerate() {
            let output = file(&format!("{width}-{number}"));
            let has_output = command.contains("--samples") || command.starts_with("sweep");
            let output = if has_output { format!("--output {output}") } else { String::new() };
            let result = within(width, &format!("{command} {output}"));
            let printed = text(&result.stdout);
            assert!(printed.lines().count() > 3, "{command}: {printed}{}", text(&result.stderr));
            for line in printed.lines() {
                let is_one_word = line.split_whitespace().count() <= 2;
                assert!(
                    line.chars().count() <= width || is_one_word,
                    "{command}, {width} columns: {line}"
                );
            }
        }
    }
}
