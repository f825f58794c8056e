//! Several network interfaces at once.

use std::{
    io::{self, Write},
    path::Path,
    process::Command,
};

use crate::common::{QUICK, program, text, verified};

/// A command in namespaces where this user may make networks.
fn apart() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "--mount"]);
    command
}

#[test]
fn all_interfaces_carry_their_share_and_the_row_names_them() {
    if !apart().arg("true").status().unwrap().success() {
        let said = "SKIPPED all_interfaces: this user may make no namespaces\n";
        io::stderr().write_all(said.as_bytes()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "rdma --provider tcp --nic all --sizes 1M --pattern one-way --operation write,read,send \
         {QUICK} --no-report --output {}",
        output.display()
    );
    let mut command = apart();
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/two-networks"));
    command.arg(program()).args(line.split_whitespace());
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(name, "1");
    }
    let result = command.output().unwrap();
    let said = format!("{}{}", text(&result.stdout), text(&result.stderr));
    let rows = verified(&result, &output, &said);
    // Each way between the two hosts.
    assert_eq!(rows.len(), 2 * 3, "{said}");
    for row in 0..rows.len() {
        for column in ["source_domain", "target_domain"] {
            let mut names: Vec<&str> = rows.cell(row, column).split('+').collect();
            names.sort_unstable();
            assert_eq!(names, ["net0", "net1"], "{said}");
        }
        assert_ne!(rows.cell(row, "source_host"), rows.cell(row, "target_host"), "{said}");
        let path = ["path", "path_verdict"].map(|column| rows.cell(row, column));
        assert_eq!(path, ["tcp", "proven"], "{}", rows.cell(row, "path_reason"));
    }
    let sent = text(&result.stdout);
    let sent: Vec<f64> = sent.lines().map(|bytes| bytes.parse().unwrap()).collect();
    let (least, most) = (sent[0].min(sent[1]), sent[0].max(sent[1]));
    // Operations take the interfaces in turn; words, and what MPI says, come on top.
    assert!(least > 10e6 && least > 0.7 * most, "{sent:?}");
}
