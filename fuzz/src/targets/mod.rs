//! What each target does with the bytes that it is given. The fuzzers of `fuzz/` and the brief runs
//! of `tests/fuzz.rs` call the same functions: they panic where a promise is broken, and say
//! whether the input was taken for what it should be.

#![allow(dead_code, reason = "each program uses a part of it")]

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
