//! What is seen on a terminal, which util-linux's `script` stands in for, and in a log.

use std::{path::Path, process::Command};

use crate::common::{g2g, program, text};
use regex::Regex;

/// Eight rows.
const RUN: &str = "p2p --simulate p4d.24xlarge --gpus 0,1 --operation copy --engine ce --sizes \
                   4K,64K --samples 5 --time-limit 5ms";

/// What g2g writes to a terminal when it is called with the words of `line`.
fn on_terminal(line: &str, variables: &[(&str, &str)]) -> String {
    let program = program();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &format!("{program} {line}"), "/dev/null"]);
    command
        .env_remove("NO_COLOR")
        .env_remove("CI")
        .env("TERM", "xterm-256color")
        .envs(variables.iter().copied());
    let result = command.output().unwrap();
    let said = text(&result.stdout);
    assert_eq!(result.status.code(), Some(0), "{said}");
    said
}

fn line(folder: &Path, more: &str) -> String {
    format!("{RUN} {more} --output {}", folder.join("run").display())
}

/// Whether anything has a colour.
fn is_coloured(said: &str) -> bool {
    Regex::new("\x1b\\[[0-9;]*m").unwrap().is_match(said)
}

#[test]
fn a_terminal_has_a_bar_with_the_time_left_and_styles_unless_they_are_not_wanted() {
    let bar = Regex::new("\r.*█.* [1-7]/8 rows, [0-9.]+ (s|min|h) left  p2p copy").unwrap();
    for variables in [&[][..], &[("NO_COLOR", "1")]] {
        let folder = tempfile::tempdir().unwrap();
        let said = on_terminal(&line(folder.path(), ""), variables);
        assert!(bar.is_match(&said), "{said:?}");
        // It is gone before the results come.
        let last = said.rfind('█').unwrap();
        assert!(said[last..].contains("\x1b[2K") && said.find("at the median").unwrap() > last);
        assert!(!said.contains("[1/8"), "{said:?}");
        assert_eq!(is_coloured(&said), variables.is_empty(), "{said:?}");
    }
}

#[test]
fn verbose_has_lines_above_the_bar_and_quiet_has_nothing_but_results() {
    let folder = tempfile::tempdir().unwrap();
    let said = on_terminal(&line(folder.path(), "--verbose"), &[]);
    assert!(
        said.contains("[1/8, ") && said.contains("[8/8] ") && said.contains("8 rows"),
        "{said:?}"
    );
    let folder = tempfile::tempdir().unwrap();
    let said = on_terminal(&line(folder.path(), "--quiet"), &[("NO_COLOR", "1")]);
    assert!(said.starts_with("p4d.24xlarge, ") && !said.contains('\x1b'), "{said:?}");
}

#[test]
fn a_terminal_that_draws_nothing_anew_and_a_log_have_a_line_for_each_row() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = on_terminal(&line(folder.path(), ""), &[("TERM", "dumb")]).replace("\r\n", "\n");
    let folder = tempfile::tempdir().unwrap();
    let result = g2g().args(line(folder.path(), "").split_whitespace()).output().unwrap();
    let log = text(&result.stderr);
    let row = Regex::new(
        "(?m)^\\[([1-7]/8, [0-9.]+ (s|min|h) left|8/8)\\] p2p copy (read|write) ce, GPU",
    )
    .unwrap();
    for said in [&terminal, &log] {
        assert!(!said.contains(['\r', '\x1b']), "{said:?}");
        assert_eq!(row.find_iter(said).count(), 8, "{said}");
        let told = "if it is interrupted, the same command with --resume ";
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn help_has_no_colour() {
    for words in ["--help", "run --help", "sweep --help"] {
        let said = on_terminal(words, &[]);
        assert!(said.contains("Usage: g2g") && !said.contains('\x1b'), "{said:?}");
    }
}
