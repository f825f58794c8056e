//! What a machine is like where g2g relies on more than a yes or no: printed, for
//! `scripts/hardware`, which sets the real one beside the simulated one.
//!
//! A probe wants its GPU to itself, so each runs in a process of its own.

#![allow(clippy::print_stdout, reason = "what a probe finds is printed")]

use std::{
    process::Command,
    sync::atomic::AtomicU32,
    thread::{scope, sleep},
};

use super::*;

/// Declares each probe for the simulated machine, which may be another one (`G2G_TEST_MACHINE`),
/// and for the real one.
macro_rules! probes {
    ($($name:ident)*) => {
        mod simulated {
            $(#[test] #[ignore = "asked by itself"] fn $name() {
                super::$name(crate::simulated_gpus());
            })*
        }

        mod real {
            $(#[test] #[ignore = "needs an NVIDIA GPU"] fn $name() {
                super::$name(crate::real_gpus(1));
            })*
        }
    };
}

probes! { depth_of_a_queue clocks_under_load }

/// More entries than any queue is known to hold.
const ENTRIES_MAX: u32 = 1 << 16;

/// A call that has not returned after so long is blocked.
const BLOCKED: Duration = Duration::from_millis(500);

/// How many entries a stream takes behind a kernel that holds, of records and of waits, before a
/// call blocks.
fn depth_of_a_queue(gpus: &[Context]) {
    let (held, other) = (Gpu::new(&gpus[0]), Gpu::new(&gpus[0]));
    // Before them are the kernel and the first record.
    let records = 2 + entries(&held, |event| held.stream.record(event).unwrap());
    let waits = entries(&held, |event| other.stream.wait(event).unwrap());
    other.finish();
    println!("\nprobe queue_entries {records}\nprobe queue_entries_waits {waits}");
    assert!(records > 16 && waits > 16, "fewer than any driver is known to take");
}

/// How often `queue` returns while `held` holds; its event is behind that.
fn entries(held: &Gpu, queue: impl Fn(&Event) + Sync) -> u32 {
    let (event, count) = (Event::new(held.stream.context()).unwrap(), AtomicU32::new(0));
    held.release(0);
    held.hold(1, PATIENCE);
    held.stream.record(&event).unwrap();
    let found = scope(|scope| {
        scope.spawn(|| {
            while count.load(Ordering::Relaxed) < ENTRIES_MAX && !event.is_reached().unwrap() {
                queue(&event);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        loop {
            let before = count.load(Ordering::Relaxed);
            sleep(BLOCKED);
            if before > 0 && count.load(Ordering::Relaxed) == before {
                held.release(1);
                break before;
            }
        }
    });
    held.finish();
    found
}

/// How long a GPU is idle before its clocks are looked at.
const IDLE: Duration = Duration::from_secs(5);

/// The load after which clocks do not rise any more.
const LOAD: Duration = Duration::from_secs(2);

/// How long a look lasts.
const LOOK: Duration = Duration::from_millis(2);

/// By how much clocks may be apart that are one.
const NOISE: f64 = 0.005;

/// How low the clock of an idle GPU is, and after how much load it is as high as it gets.
fn clocks_under_load(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let result = buffer(&gpus[0], 16);
    // On the simulated machine this is the first load, and its time passes with the load alone.
    if !cuda::driver().unwrap().is_simulated {
        sleep(IDLE);
    }
    let (mut load_ms, mut looks) = (0.0, Vec::new());
    while load_ms < LOAD.as_secs_f64() * 1e3 {
        gpu.kernels.spin(&gpu.stream, LOOK, result.all()).unwrap();
        let found = words(&gpu.read(result.all()));
        looks.push((load_ms, found[0] as f64 / found[1] as f64));
        load_ms += found[1] as f64 / 1e6;
    }
    let highest = looks.iter().map(|(_, clock)| *clock).fold(0.0, f64::max);
    let (rise_ms, _) = looks.iter().find(|(_, clock)| *clock >= highest * (1.0 - NOISE)).unwrap();
    let idle_percent = 100.0 * looks[0].1 / highest;
    println!("\nprobe clock_rise_ms {rise_ms:.1}\nprobe idle_clock_percent {idle_percent:.1}");
    assert!(highest > 0.1, "cycles per nanosecond: {highest}");
}

/// What the probes print of a simulated machine.
fn probed(machine: &str) -> Vec<(String, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.toml");
    std::fs::write(&path, machine).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["probes::simulated::", "--ignored", "--nocapture", "--test-threads", "1"]);
    let output = command.env("G2G_TEST_MACHINE", path).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    let lines = said.lines().filter_map(|line| line.strip_prefix("probe ")?.split_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn probes_find_what_a_machine_file_says() {
    for (driver, [entries, rise_ms, idle_percent]) in [
        ("", [1024.0, 400.0, 25.0]),
        (
            "[driver]\nqueue_entries = 100\nclock_rise_ms = 90\nidle_clock_percent = 60",
            [100.0, 90.0, 60.0],
        ),
    ] {
        let found = probed(&format!("schema = 1\n{driver}\n"));
        let expected = [
            ("clock_rise_ms", rise_ms, 5.0),
            ("idle_clock_percent", idle_percent, 1.0),
            ("queue_entries", entries, 0.0),
            ("queue_entries_waits", entries, 0.0),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((name, value), (expected_name, expected, slack)) in found.iter().zip(expected) {
            assert_eq!(name, expected_name);
            assert!((value - expected).abs() <= slack, "{found:?}");
        }
    }
}
