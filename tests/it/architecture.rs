//! Holds the layers: who may import whom, and where `unsafe` and printing are allowed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A module and the modules it may import; `docs/architecture.md` explains the table.
const LAYERS: [(&str, &[&str]); 16] = [
    ("stderr", &[]),
    ("units", &[]),
    ("plan", &["units"]),
    ("ffi", &["plan", "stderr", "units"]),
    ("interrupt", &["ffi", "stderr"]),
    ("machine", &["ffi", "plan", "units"]),
    ("world", &["ffi", "interrupt", "plan", "units"]),
    ("transport", &["ffi", "machine", "plan", "units", "world"]),
    ("measure", &["interrupt", "plan", "transport", "units", "world"]),
    ("nccl_log", &["plan", "units"]),
    ("judge", &["machine", "nccl_log", "plan", "units"]),
    (
        "record",
        &["judge", "machine", "measure", "nccl_log", "plan", "stderr", "transport", "units"],
    ),
    ("analysis", &["judge", "machine", "measure", "nccl_log", "plan", "record", "units"]),
    (
        "show",
        &[
            "analysis",
            "judge",
            "machine",
            "measure",
            "nccl_log",
            "plan",
            "record",
            "stderr",
            "transport",
            "units",
        ],
    ),
    (
        "run",
        &[
            "analysis",
            "interrupt",
            "judge",
            "machine",
            "measure",
            "nccl_log",
            "plan",
            "record",
            "show",
            "stderr",
            "transport",
            "units",
            "world",
        ],
    ),
    (
        "command",
        &[
            "analysis",
            "interrupt",
            "judge",
            "machine",
            "nccl_log",
            "plan",
            "record",
            "run",
            "show",
            "stderr",
            "transport",
            "units",
            "world",
        ],
    ),
];

/// Longest file, in lines: one subject each.
const LINES_MAX: usize = 600;

/// Made by a program from somebody else's headers.
const GENERATED: [&str; 2] = ["src/ffi/fabric/bindings.rs", "src/ffi/nccl/bindings.rs"];

/// The Rust files below a folder of the repository, and their texts.
fn below(folder: &str) -> BTreeMap<PathBuf, String> {
    fn walk(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.insert(path.clone(), fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
    found
}

pub(crate) fn sources() -> BTreeMap<PathBuf, String> {
    below("src")
}

/// The module below `src` that a file belongs to.
fn module(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The part of a file that is compiled into the program, without comments.
fn code(text: &str) -> String {
    let program = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let lines = program.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<&str>>().join("\n")
}

/// The modules named right behind `crate::` or in the braces behind it.
fn imports(code: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut item = String::new();
            for letter in list.chars() {
                match letter {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.push(name(&item));
                        item.clear();
                        continue;
                    }
                    _ => {}
                }
                item.push(letter);
            }
            found.push(name(&item));
        } else {
            found.push(name(rest));
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

#[test]
fn braces_and_paths_are_both_read() {
    let code = "use crate::{ffi::{self, clock}, plan::Case,\n units::Bytes};\ncrate::world::Error";
    assert_eq!(imports(code), ["ffi", "plan", "units", "world"]);
}

#[test]
fn imports_point_down() {
    let layers: BTreeMap<&str, &[&str]> = LAYERS.into_iter().collect();
    for (path, text) in sources() {
        let module = module(&path);
        // Unit tests may look at anything.
        if module == "lib" || module == "main" || path.ends_with("tests.rs") {
            continue;
        }
        let allowed = layers.get(module.as_str());
        let allowed = allowed.unwrap_or_else(|| panic!("{module} is not in the table of layers"));
        for import in imports(&code(&text)) {
            assert!(
                import == module || allowed.contains(&import.as_str()),
                "{} imports {import}, which is not below {module}",
                path.display()
            );
        }
    }
}

#[test]
fn every_module_of_the_table_exists() {
    let modules: Vec<String> = sources().keys().map(|path| module(path)).collect();
    for (name, allowed) in LAYERS {
        assert!(modules.iter().any(|module| module == name), "{name}");
        assert!(allowed.iter().all(|below| modules.iter().any(|module| module == below)));
    }
}

#[test]
fn unsafe_is_in_ffi_only() {
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap();
            let is_unsafe =
                ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| code.contains(word));
            if is_unsafe {
                assert_eq!(module(&path), "ffi", "{}:{}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn standard_output_and_standard_error_are_written_in_one_place_each() {
    // The macros that print are refused by lints.
    for (stream, place) in [("stdout()", "src/show/table.rs"), ("stderr()", "src/stderr.rs")] {
        for (path, text) in sources() {
            // Asking a stream about its terminal writes nothing, nor does keeping it.
            let code = code(&text)
                .replace("stderr().is_terminal()", "")
                .replace("dup(stdout())", "")
                .replace("terminal_size_of(io::stdout())", "");
            assert!(!code.contains(stream) || path.ends_with(place), "{}", path.display());
        }
    }
}

#[test]
fn the_table_of_the_document_is_that_of_the_layers() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md");
    let document = fs::read_to_string(document).unwrap();
    for (module, allowed) in LAYERS {
        let row = document.lines().find(|line| {
            line.split('|').nth(2).is_some_and(|cell| cell.trim() == format!("`{module}`"))
        });
        let row = row.unwrap_or_else(|| panic!("{module} has no row"));
        let told = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap();
        let told: Vec<&str> = match told.split('`').nth(1) {
            Some(names) if !told.contains("but") => names.split(' ').collect(),
            _ => Vec::new(),
        };
        if told.is_empty() && !allowed.is_empty() {
            // All above but some.
            let but: Vec<&str> = told_but(row);
            let above = LAYERS.iter().map(|(name, _)| *name).take_while(|name| *name != module);
            let above: Vec<&str> = above.filter(|name| !but.contains(name)).collect();
            assert_eq!(sorted(&above), sorted(allowed), "{module}");
        } else {
            assert_eq!(sorted(&told), sorted(allowed), "{module}");
        }
    }
}

/// The names behind `but` in a row.
fn told_but(row: &str) -> Vec<&str> {
    let but = row.rsplit("but").next().unwrap();
    but.split('`').nth(1).into_iter().flat_map(|names| names.split(' ')).collect()
}

fn sorted(names: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    names.sort();
    names
}

#[test]
fn files_have_one_subject_each() {
    for (path, text) in sources().into_iter().chain(below("simgpu/src")) {
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX || GENERATED.iter().any(|file| path.ends_with(file)),
            "{} has {lines} lines",
            path.display()
        );
    }
}
