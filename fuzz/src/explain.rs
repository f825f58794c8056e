//! Reads whatever libFuzzer makes up as a log of NCCL, and explains it: no panic, nothing that a
//! terminal would obey. `scripts/fuzz` runs it.

#![no_main]

use g2g::evidence::{
    explain::Explanation,
    nccl_log::{Path, Reader},
};

libfuzzer_sys::fuzz_target!(|log: &[u8]| {
    let mut reader = Reader::default();
    reader.read("log", log).expect("memory can be read");
    let log = reader.finish();
    for asked in [None, Some(Path::P2p), Some(Path::Shm), Some(Path::Net)] {
        let _ = log.path_verdict(asked);
    }
    let explanation = Explanation::of(log);
    let text = explanation.text();
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
    serde_json::to_string(&explanation).expect("every explanation is JSON");
});
