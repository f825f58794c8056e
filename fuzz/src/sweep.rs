//! `scripts/fuzz sweep`: what it does is in `targets/sweep.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::sweep::take(input);
});
