//! `scripts/fuzz import`: what it does is in `targets/import.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::import::take(input);
});
