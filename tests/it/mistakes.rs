//! What a person mistypes, and the sentence that each mistake gets: tests/golden/mistakes.txt.

use std::{fs, path::Path};

use crate::common::{g2g, text};

/// The files and folders that the lines name.
fn prepare(folder: &Path) {
    fs::create_dir(folder.join("empty")).unwrap();
    for (name, content) in [
        ("text.txt", "hello\n"),
        ("nothing.csv", ""),
        ("other.csv", "a,b\n1,2\n"),
        ("broken.json", "{\"a\":"),
        ("machine.toml", "schema = 1\ngpu_count = 2\n[[par]]\n"),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
}

/// What the program says to a line; nothing of it is done.
fn answer(line: &str, folder: &Path) -> String {
    let words = line.split(' ').map(|word| if word == "''" { "" } else { word });
    let result = g2g().args(words).current_dir(folder).output().unwrap();
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "g2g {line}: {said}{}", text(&result.stdout));
    assert!(result.stdout.is_empty() && said.lines().count() == 1, "g2g {line}: {said}");
    said
}

#[test]
fn each_mistake_gets_its_sentence() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mistakes.txt");
    let golden = fs::read_to_string(path).unwrap();
    let lines = golden.lines().filter_map(|line| line.strip_prefix("$ g2g "));
    let found: String =
        lines.map(|line| format!("$ g2g {line}\n{}", answer(line, folder.path()))).collect();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes.txt");
    fs::write(&kept, &found).unwrap();
    let differs = golden.lines().zip(found.lines()).find(|(golden, found)| golden != found);
    assert!(golden == found, "{} has what is said now: {differs:?}", kept.display());
    assert!(!folder.path().join("results").exists());
}
