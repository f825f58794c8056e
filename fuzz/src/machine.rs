//! `scripts/fuzz machine`: simgpu's machine files: no panic, one sentence of what is wrong.

#![no_main]

#[allow(dead_code, unreachable_pub, reason = "a part of it is used")]
#[path = "../../simgpu/src/machine/mod.rs"]
mod machine;

use std::{fs, path::PathBuf, sync::OnceLock};

/// A file in memory for this process.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| format!("/dev/shm/g2g-fuzz-{}-machine.toml", std::process::id()).into())
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fs::write(file(), input).expect("memory takes every write");
    match machine::load(file().to_str().expect("it is text")) {
        Ok(machine) => assert!(!machine.gpus.is_empty()),
        Err(err) => assert!(!err.to_string().contains('\n'), "{err}"),
    }
});
