//! Machine files that were damaged by chance.

use super::*;

#[path = "../../../tests/common/mutation.rs"]
mod mutation;

/// Inputs from each file.
const INPUTS: u64 = 1500;

#[test]
fn a_damaged_machine_file_is_a_machine_or_one_sentence() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/machine");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let whole = std::fs::read(&path).unwrap();
        assert!(file::parse(std::str::from_utf8(&whole).unwrap(), "whole").is_ok(), "{path:?}");
        for seed in 0..INPUTS {
            let damaged = mutation::damaged(&whole, seed);
            let Ok(text) = std::str::from_utf8(&damaged) else { continue };
            let said = format!("{path:?}, seed {seed}");
            match file::parse(text, "damaged") {
                Ok(machine) => {
                    let gpus = machine.gpus.len();
                    assert!((1..=GPUS_MAX as usize).contains(&gpus), "{said}: {gpus}");
                    assert_eq!(machine.pairs.len(), gpus * (gpus - 1), "{said}");
                    crate::system::files(&machine, 0);
                }
                Err(problem) => {
                    let problem = problem.to_string();
                    assert!(!problem.is_empty() && !problem.contains('\n'), "{said}: {problem}");
                }
            }
        }
    }
}
