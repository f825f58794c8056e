//! Logs of NCCL.

use g2g::{
    nccl_log::{Asked, Reader, Wishes, explain::Explanation},
    units::Bytes,
};

/// A log is read and explained: no panic, nothing that a terminal would obey.
pub(crate) fn take(log: &[u8]) -> bool {
    let mut reader = Reader::default();
    reader.read("log", log).expect("memory can be read");
    let log = reader.finish();
    let is_log = log.messages > 0;
    let wishes =
        ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_READ"].map(|name| (name, "1"));
    let wishes = [Wishes::of([]), Wishes::of(wishes)];
    let asked = Asked { function: "AllReduce", count: Bytes::kib(1), size: Bytes::kib(4) };
    for asked in [None, Some(&asked)] {
        let _ = log.summary(asked);
        for wishes in &wishes {
            let _ = log.path_verdict(asked, wishes);
        }
    }
    let explanation = Explanation::of(log);
    let text = explanation.text();
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
    serde_json::to_string(&explanation).expect("every explanation is JSON");
    is_log
}
