//! Durations and order, worked out by hand.

use super::*;
use crate::cuda::abi::*;

const MIB: usize = 1 << 20;

#[test]
fn a_copy_lasts_its_latency_and_its_bytes() {
    alone(|| {
        let contexts = begin(machine());
        let near = allocate(MIB);
        on(contexts[1]);
        let far = allocate(MIB);
        on(contexts[0]);
        let host = pinned(MIB);
        let copies = [
            // A stream of the source writes: 2000 + 1048576 / 100.
            (far, near, 2000.0 + 10485.76),
            // A stream of the target reads: 2500 + 1048576 / 80.
            (near, far, 2500.0 + 13107.2),
            (near, host, 3000.0 + 52428.8),
            (host, near, 3500.0 + 41943.04),
            (near, near + MIB as u64 / 2, 0.0),
        ];
        let stream = stream();
        for (target, source, wanted) in copies {
            let (bytes, wanted) =
                if wanted == 0.0 { (MIB / 2, 1000.0 + 524.288) } else { (MIB, wanted) };
            let start = mark(stream);
            ok(cuMemcpyAsync(target, source, bytes, stream));
            let end = mark(stream);
            ok(cuStreamSynchronize(stream));
            // Times are rounded down to whole nanoseconds, one by one.
            let found = ns(start, end);
            assert!((found - wanted).abs() <= 1.0, "{found} ns, not {wanted}");
        }
    });
}
