//! What can go wrong on a machine, a line of the table in docs/reliability.md each: what is said,
//! that nothing that was finished is lost, and that nothing stays behind.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod libraries;
mod processes;
mod system;

use std::{
    fs,
    process::{Command, Output},
};

/// Runs words of a shell that may mount what they like: it goes with them. `$g2g` is the program.
fn in_own_mounts(words: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", words]);
    command.env("g2g", env!("CARGO_BIN_EXE_g2g")).output().unwrap()
}

/// The text of a test file, or of all files in the folder of one.
fn source(name: &str) -> String {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    if let Ok(text) = fs::read_to_string(tests.join(format!("{name}.rs"))) {
        return text;
    }
    let files = fs::read_dir(tests.join(name)).unwrap_or_else(|_| panic!("no test {name}"));
    files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
}

#[test]
fn each_line_of_the_table_is_a_test() {
    let text = include_str!("../../docs/reliability.md");
    let (_, table) = text.split_once("\n## What can go wrong\n").unwrap();
    let mut lines = 0;
    for line in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, _, file, names, _] = cells[..] else { panic!("{line}") };
        let code = |cell: &str| {
            let words = cell.split(", ").map(|word| word.trim_matches('`').to_owned());
            words.filter(|word| !word.is_empty()).collect::<Vec<String>>()
        };
        for file in code(file) {
            let text = source(&file);
            assert!(text.contains("#[test]"), "{line}");
            for name in code(names) {
                let is_in = |function: &str| function.split('(').next().unwrap().contains(&name);
                assert!(text.split("\nfn ").skip(1).any(is_in), "{line}");
            }
            lines += 1;
        }
    }
    assert!(lines > 25, "{lines}");
}
