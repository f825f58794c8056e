//! `scripts/fuzz results`: what it does is in `targets/results.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::results::take(input);
});
