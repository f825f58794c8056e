//! `g2g catalogue` from outside.

use std::{fs, path::Path, process::Output};

use crate::common::{g2g, text};
use serde_json::Value;

fn catalogue(words: &[&str]) -> Output {
    g2g().arg("catalogue").args(words).output().unwrap()
}

fn answer(words: &[&str]) -> String {
    let output = catalogue(words);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn refusal(words: &[&str]) -> String {
    let output = catalogue(words);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr).trim_end().to_owned()
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&answer(words)).unwrap()
}

#[test]
fn the_list_has_a_line_for_each_gpu_and_instance_type() {
    let text = answer(&[]);
    let line = |name: &str| {
        let lines: Vec<&str> =
            text.lines().filter(|line| line.split_whitespace().next() == Some(name)).collect();
        assert_eq!(lines.len(), 1, "{name}: {text}");
        lines[0].split_whitespace().collect::<Vec<&str>>().join(" ")
    };
    assert_eq!(line("p4d.24xlarge"), "p4d.24xlarge 8 a100_40 40960 all by NVSwitch 300 4 400");
    assert_eq!(line("h100"), "h100 H100-SXM5-80GB 9 HBM3 3350 18 450");
    assert!(line("g6.48xlarge").contains(" no "), "{text}");
    assert!(!text.contains("added by"), "{text}");
    let all = json(&["--format", "json"]);
    for kind in ["gpu", "instance"] {
        for name in all[kind].as_object().unwrap().keys() {
            line(name);
        }
    }
}

#[test]
fn an_entry_shows_all_that_is_known_of_it_and_where_from() {
    let text = answer(&["p4d.24xlarge"]);
    for part in [
        "instance type p4d.24xlarge\n",
        "efa_interfaces",
        "nvswitch-all-pairs",
        "aws/aws-ofi-nccl, topology/*.xml",
        "GPU a100_40\n",
        "1555",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let known = json(&["p4d.24xlarge", "--format", "json"]);
    assert_eq!(known["facts"]["gpu_count"], 8);
    assert_eq!(known["facts"].get("hypervisor"), None);
    assert_eq!(known["gpu"]["mem_bw_gbs"], 1555.0);
    assert_eq!(known["added_by_user"], false);
    assert!(known["sources"]["OFI-XML"].as_str().unwrap().contains("topology"));
    assert_eq!(json(&["l4", "--format", "json"])["kind"], "gpu");
}

#[test]
fn a_name_that_is_not_there_is_refused_with_the_nearest_ones() {
    let said = refusal(&["p4d.48xlarge"]);
    assert!(said.starts_with("error: the catalogue has no `p4d.48xlarge`; the nearest"), "{said}");
    assert!(said.contains("p4d.24xlarge"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_users_file_adds_machines_and_is_refused_with_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "schema = 1\n[instance.\"lab box\"]\ngpu = \"l4\"\ngpu_count = 2\n").unwrap();
    let list = answer(&["--catalogue", path]);
    let line = list.lines().find(|line| line.trim_start().starts_with("lab box")).unwrap();
    assert!(line.ends_with("the user"), "{line}");
    let shown = answer(&["lab box", "--catalogue", path]);
    assert!(shown.starts_with("instance type lab box, added by the user\n"), "{shown}");
    fs::write(&file, "schema = 1\n[instance.box]\ngpu = \"l4\"\ngpu_counts = 2\n").unwrap();
    let said = refusal(&["--catalogue", path]);
    let wanted =
        format!("error: --catalogue {path}: line 4, `instance.box`: unknown field `gpu_counts`");
    assert!(said.starts_with(&wanted) && said.lines().count() == 1, "{said}");
    let absent = Path::new("/nowhere/mine.toml");
    let said = refusal(&["--catalogue", absent.to_str().unwrap()]);
    assert!(said.starts_with("error: --catalogue /nowhere/mine.toml: No such file"), "{said}");
}
