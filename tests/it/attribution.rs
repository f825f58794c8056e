//! On simulated machines with one slow part the run names that part, and on healthy ones none.

use std::fs;

use crate::common::{g2g, run, text};

/// The lines about what is slow, of a run over all pairs of a machine made from `instance`.
fn slow(instance: &str, defects: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    let file = format!("schema = 1\nfrom = \"{instance}\"\nname = \"test\"\n{defects}");
    fs::write(&machine, file).unwrap();
    let line = format!(
        "p2p --simulate {} --sizes 4M --operation copy --engine ce --samples 20 --quiet \
         --no-report --output {}",
        machine.display(),
        folder.path().join("run").display()
    );
    let result = run(g2g(), &line);
    let (printed, said) = (text(&result.stdout), text(&result.stderr));
    assert_eq!(result.status.code(), Some(0), "{printed}{said}");
    let lines = printed.lines().filter(|line| !line.starts_with(' '));
    let slow = lines.filter(|line| line.contains(" % slower "));
    slow.map(|line| line.trim_end_matches('.').to_owned()).collect()
}

#[test]
fn one_slow_part_is_named_and_nothing_else() {
    let slow_fault = |rest: &str| format!("[[fault.slow]]\n{rest}\nfraction = 0.59\n");
    // 4 MiB take longer by 41 % less the share of the latency.
    for (what, fault, expected) in [
        ("source", "source = 3", "GPU 3 is # % slower as a source to all, as a target normal"),
        ("target", "target = 5", "GPU 5 is # % slower as a target of all, as a source normal"),
        ("direction", "source = 1\ntarget = 6", "GPU 1 -> GPU 6 is # % slower than other pairs"),
    ] {
        let found = slow("p4d.24xlarge", &slow_fault(fault));
        let numbers = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
        let share = |line: &str| -> Vec<f64> {
            let words = line.split(' ').skip_while(|word| *word != "is");
            words.filter(|word| numbers(word)).map(|word| word.parse().unwrap()).collect()
        };
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        let plain = share(&found[0])
            .into_iter()
            .fold(found[0].clone(), |line, number| line.replacen(&format!(" {number}"), " #", 1));
        assert_eq!(plain.replace("# to #", "#"), expected, "{what}");
        assert!(share(&found[0]).iter().all(|share| (30.0..=41.0).contains(share)), "{found:?}");
    }
}

#[test]
fn a_pair_that_is_slow_both_ways_is_no_slow_gpu() {
    let fault = "[[fault.slow]]\nsource = 1\ntarget = 6\nboth_ways = true\nfraction = 0.5\n";
    let found = slow("p5.48xlarge", fault);
    let names: Vec<&str> = found.iter().map(|line| line.split(" is ").next().unwrap()).collect();
    assert_eq!(names, ["GPU 1 -> GPU 6", "GPU 6 -> GPU 1"]);
}

#[test]
fn healthy_machines_have_nothing_that_is_slow() {
    // It hits a tenth of the samples of some 15 copies.
    let jitter = "[[fault.jitter]]\nshare = 0.008\nextra_ns = 20000\n";
    for instance in ["p3dn.24xlarge", "p4d.24xlarge", "g7e.24xlarge"] {
        assert_eq!(slow(instance, ""), [""; 0], "{instance}");
        assert_eq!(slow(instance, jitter), [""; 0], "{instance} with jitter");
    }
}
