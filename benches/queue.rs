//! What queueing one operation of a GPU costs the host: by g2g's own layer, and by the driver's
//! function alone. The driver is the simulated one, whose own time is most of both; the difference
//! is g2g's.

#![allow(unsafe_code, reason = "the driver's function is called as it is, for comparison")]

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use cudarc::driver::sys;
use g2g::{
    ffi::cuda::{Buffer, Context, Memory, Stream, driver},
    machine,
    units::Bytes,
};

/// Operations that are queued before the queue is let run empty, as behind a hold.
const BATCH: u64 = 128;

const PATIENCE: Duration = Duration::from_secs(10);

fn queue(criterion: &mut Criterion) {
    machine::simulate("p5.48xlarge", 0, 0).expect("`cargo build --workspace` makes what simulates");
    let device = driver().expect("attached").devices().expect("attached")[0];
    let context = Context::retain(device).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let size = Bytes::kib(4);
    let source = Buffer::new(&context, size).expect("memory");
    let target = Buffer::new(&context, size).expect("memory");

    let mut group = criterion.benchmark_group("one copy");
    group.bench_function("g2g", |bencher| {
        bencher.iter_custom(|operations| {
            in_batches(operations, &stream, |_| {
                stream.copy(target.all(), source.all()).expect("queued");
            })
        });
    });
    let raw = raw_copies();
    group.bench_function("driver", |bencher| {
        bencher.iter_custom(|operations| in_batches(operations, &stream, |_| raw.copy()));
    });
    group.finish();
}

/// Time of queueing alone; between two batches the queue runs empty, which is not timed.
fn in_batches(operations: u64, stream: &Stream, mut queue: impl FnMut(u64)) -> Duration {
    let mut time = Duration::ZERO;
    let mut left = operations;
    while left > 0 {
        let batch = left.min(BATCH);
        let began = Instant::now();
        (0..batch).for_each(&mut queue);
        time += began.elapsed();
        stream.synchronize(PATIENCE).expect("done");
        left -= batch;
    }
    time
}

/// The same copies by the driver's functions alone.
struct RawCopies {
    stream: sys::CUstream,
    source: sys::CUdeviceptr,
    target: sys::CUdeviceptr,
}

fn raw_copies() -> RawCopies {
    let (mut source, mut target, mut stream) = (0, 0, std::ptr::null_mut());
    // SAFETY: a context is current on this thread, and `source` is a live local.
    let first = unsafe { sys::cuMemAlloc_v2(&raw mut source, 4096) };
    // SAFETY: as above, of `target`.
    let second = unsafe { sys::cuMemAlloc_v2(&raw mut target, 4096) };
    // SAFETY: as above, of `stream`.
    let third = unsafe { sys::cuStreamCreate(&raw mut stream, 1) };
    assert_eq!([first, second, third], [sys::CUresult::CUDA_SUCCESS; 3]);
    RawCopies { stream, source, target }
}

impl RawCopies {
    fn copy(&self) {
        // SAFETY: both are allocations of 4096 bytes that are never freed.
        let code = unsafe { sys::cuMemcpyAsync(self.target, self.source, 4096, self.stream) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }
}

criterion_group!(benches, queue);
criterion_main!(benches);
