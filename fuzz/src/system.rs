//! `scripts/fuzz system`: what it does is in `targets/system.rs`.

#![no_main]

mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::system::take(input);
});
