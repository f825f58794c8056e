//! Holds the Markdown of the repository: how long lines and documents are, and that links and names
//! of files lead somewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::common::{g2g, text};

/// Most characters of a line of prose.
const COLUMNS_MAX: usize = 100;

/// Most lines of a document in docs.
const LINES_MAX: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Markdown files that are part of the repository.
fn documents() -> BTreeMap<PathBuf, String> {
    let files = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output();
    let files = String::from_utf8(files.unwrap().stdout).unwrap();
    let documents = files.lines().map(PathBuf::from);
    documents.map(|file| (file.clone(), fs::read_to_string(root().join(file)).unwrap())).collect()
}

/// The parts of a document that matter here.
#[derive(Default)]
struct Parts {
    /// Where tables and code lie, whose lines are as long as they must be.
    unwrapped: Vec<Range<usize>>,
    links: Vec<String>,
    code: Vec<String>,
    anchors: BTreeSet<String>,
}

fn parts(text: &str) -> Parts {
    let mut parts = Parts::default();
    let mut heading = None;
    for (event, place) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Table(_) | Tag::CodeBlock(_)) => parts.unwrapped.push(place),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                parts.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                parts.anchors.extend(heading.take().map(|title| anchor(&title)));
            }
            Event::Text(ref words) | Event::Code(ref words) => {
                if let Some(title) = &mut heading {
                    title.push_str(words);
                }
                if let Event::Code(words) = event {
                    parts.code.push(words.into_string());
                }
            }
            _ => {}
        }
    }
    parts
}

/// What GitHub calls the place of a heading.
fn anchor(title: &str) -> String {
    let is_kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    title.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-")
}

#[test]
fn lines_of_prose_are_short() {
    let documents = documents();
    assert!(documents.len() > 10, "{}", documents.len());
    for (file, text) in documents {
        let unwrapped = parts(&text).unwrapped;
        let mut begin = 0;
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let end = begin + line.len();
            let is_prose = !unwrapped.iter().any(|place| place.start < end && begin < place.end);
            // A word that is too long by itself, such as a link, cannot be broken.
            let can_break = line.trim().contains(' ');
            let columns = line.trim_end().chars().count();
            assert!(
                !is_prose || !can_break || columns <= COLUMNS_MAX,
                "{}:{number} has {columns} columns",
                file.display()
            );
            begin = end;
        }
    }
}

#[test]
fn documents_are_short() {
    for (file, text) in documents().iter().filter(|(file, _)| file.starts_with("docs")) {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", file.display());
    }
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    let mut count = 0;
    for (file, text) in &documents {
        for link in parts(text).links.iter().filter(|link| !link.contains("://")) {
            let (path, place) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file.clone(),
                path => without_dots(&file.parent().unwrap().join(path)),
            };
            assert!(root().join(&target).exists(), "{}: {link}", file.display());
            let has_place = || parts(&documents[&target]).anchors.contains(place);
            assert!(place.is_empty() || has_place(), "{}: {link}", file.display());
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}

/// Folders of this repository; other projects that documents name have `src` with other endings.
const FOLDERS: [&str; 6] = ["docs/", "fuzz/", "scripts/", "simgpu/", "src/", "tests/"];

#[test]
fn files_that_are_named_are_there() {
    let mut count = 0;
    for (file, text) in documents() {
        for code in parts(&text).code {
            let name = code.split([' ', ':']).next().unwrap();
            let is_ours = FOLDERS.iter().any(|folder| name.starts_with(folder));
            let is_source = name.starts_with("scripts/") || name.ends_with(".rs");
            if is_ours && is_source && !name.contains(['*', '<', '{']) {
                assert!(root().join(name).exists(), "{}: {code}", file.display());
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count}");
}

#[test]
fn the_commands_of_the_readme_run() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().filter_map(|line| line.strip_prefix("    ./"));
    let lines = lines.map(|line| line.split('#').next().unwrap().trim().to_owned());
    let spans = parts(&readme).code.into_iter();
    let commands: BTreeSet<String> =
        spans.chain(lines).filter(|code| code.starts_with("g2g ")).collect();
    for command in &commands {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let more: &[&str] = match words[0] {
            "X" => continue,
            // What measures says what it would measure.
            "run" if words.contains(&"--simulate") => &["--dry-run"],
            "run" | "local" | "p2p" | "shm" | "nccl" | "rdma" | "check" => {
                &["--dry-run", "--simulate", "p5.48xlarge"]
            }
            // These need results or a plan.
            "compare" | "explain" | "report" | "sweep" => &["--help"],
            "step" => &["--model", "llama-3-8b"],
            _ => &[],
        };
        let result = g2g().args(&words).args(more).output().unwrap();
        assert_eq!(result.status.code(), Some(0), "{command}: {}", text(&result.stderr));
        assert!(!result.stdout.is_empty(), "{command}");
    }
    assert!(commands.len() >= 14, "{commands:?}");
}

/// A path without `..` in it.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, part| {
        if part.as_os_str() == ".." {
            so_far.pop();
        } else {
            so_far.push(part);
        }
        so_far
    })
}
