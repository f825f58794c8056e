//! `scripts/fuzz catalogue`: what it does is in `targets/catalogue.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::catalogue::take(input);
});
