//! `scripts/fuzz words`: what it does is in `targets/words.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::words::take(input);
});
