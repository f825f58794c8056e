//! `scripts/fuzz explain`: what it does is in `targets/explain.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::explain::take(input);
});
