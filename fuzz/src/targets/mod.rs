//! What each target does with the bytes that it is given. The fuzzers of `fuzz/` and the brief runs
//! of `tests/it/fuzz.rs` call the same functions: they panic where a promise is broken, and say
//! whether the input was taken for what it should be.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

pub(crate) mod catalogue;
pub(crate) mod explain;
pub(crate) mod html;
pub(crate) mod import;
pub(crate) mod results;
pub(crate) mod sweep;
pub(crate) mod system;
pub(crate) mod words;

/// Between the parts of an input that is several files.
pub(crate) const BETWEEN: u8 = 0x1c;

/// A folder in memory for the inputs of one target in this process.
pub(crate) struct Folder {
    target: &'static str,
    path: OnceLock<PathBuf>,
}

impl Folder {
    const fn new(target: &'static str) -> Self {
        Self { target, path: OnceLock::new() }
    }

    /// Where it is; it is made when it is first asked for.
    fn path(&self) -> &Path {
        self.path.get_or_init(|| {
            // `scripts/fuzz` removes what has such a name.
            let name = format!("g2g-fuzz-{}-{}", std::process::id(), self.target);
            let folder = Path::new("/dev/shm").join(name);
            fs::create_dir_all(&folder).expect("memory takes a folder");
            folder
        })
    }

    /// Removes it, if it was made.
    fn remove(&self) {
        if let Some(path) = self.path.get() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The files that an input stands for; what is missing at its end is empty.
fn files<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut parts = input.splitn(N, |byte| *byte == BETWEEN);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Fails unless it is one line, which no input can make endless.
fn assert_sentence(sentence: &str) {
    assert!(!sentence.trim().is_empty() && !sentence.contains('\n'), "{sentence:?}");
    assert!(sentence.len() < 20_000, "{} bytes: {sentence:.300}", sentence.len());
}
