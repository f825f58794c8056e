//! Memory of GPUs and of the host, and copies by the copy engines.

use g2g::ffi::host::{self, HostBuffer};

use super::*;

on_both_machines! {
    one GPU: [
        a_gpu_says_what_it_is
        memory_in_use_is_not_given_back
        it_is_known_where_host_memory_lies
        the_bytes_of_host_memory_are_shown_when_nothing_writes_them
        more_memory_than_there_is_is_refused
        what_is_given_back_can_be_had_again
        a_copy_moves_its_bytes_and_no_others
        registered_memory_is_one_for_gpu_and_host
    ]
    two GPUs: [
        gpus_reach_each_other_after_access_was_enabled_once_or_twice
    ]
}

fn a_gpu_says_what_it_is(gpus: &[Context]) {
    let driver = cuda::driver().unwrap();
    assert!(driver.version >= 12_000, "{driver:?}");
    assert!(driver.library.is_file(), "{driver:?}");
    for (ordinal, context) in (0..).zip(gpus) {
        let device = context.device();
        assert_eq!(device.ordinal(), ordinal);
        assert!(!device.name().unwrap().is_empty());
        let uuid = device.uuid().unwrap();
        assert_eq!(
            uuid.split('-').map(str::len).collect::<Vec<_>>(),
            [3, 8, 4, 4, 4, 12],
            "{uuid}"
        );
        assert!(device.multiprocessors().unwrap() > 0);
        assert!(device.compute_capability().unwrap() >= (7, 0));
        assert!(device.copy_engines().unwrap() > 0);
        assert!(context.free_memory().unwrap() <= device.total_memory().unwrap());
        assert!(!device.can_access_peer(device).unwrap());
    }
}

fn memory_in_use_is_not_given_back(gpus: &[Context]) {
    let size = Bytes::mib(1);
    let segment = || Registered::new(&gpus[0], Segment::create(size).unwrap()).unwrap();
    // The driver itself waits before it frees some kinds of memory; not before it unpins or unmaps.
    is_kept_while_in_use(&gpus[0], segment());
    is_kept_while_in_use(&gpus[0], SharedBuffer::create(&gpus[0], size, &[]).unwrap());
    is_kept_while_in_use(&gpus[0], HostMemory::new(&gpus[0], size).unwrap());
    is_kept_while_in_use(&gpus[0], Buffer::new(&gpus[0], size).unwrap());
}

fn is_kept_while_in_use(context: &Context, memory: impl Memory + Send) {
    let gpu = Gpu::new(context);
    gpu.hold(1, PATIENCE);
    gpu.stream.set(memory.all(), 1).unwrap();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(memory);
            assert!(begin.elapsed() >= MOMENT, "given back behind the back of the stream");
        });
        std::thread::sleep(MOMENT);
        gpu.release(1);
    });
    gpu.finish();
}

fn it_is_known_where_host_memory_lies(gpus: &[Context]) {
    let mut pinned = HostMemory::new(&gpus[0], Bytes::mib(1)).unwrap();
    let own = HostBuffer::new(Bytes::mib(1)).unwrap();
    // Where the kernel tells it of any memory.
    let is_told = host::numa_node(&own, 0).is_some();
    let bytes = pinned.bytes(PATIENCE).unwrap();
    for place in [0, bytes.len() / 2, bytes.len() - 1] {
        assert_eq!(host::numa_node(bytes, place).is_some(), is_told);
    }
}

fn the_bytes_of_host_memory_are_shown_when_nothing_writes_them(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    let mut pinned = HostMemory::new(&gpus[0], Bytes::mib(1)).unwrap();
    assert!(pinned.bytes(PATIENCE).unwrap().iter().all(|&byte| byte == 0));
    gpu.hold(1, PATIENCE);
    gpu.stream.set(pinned.all(), 7).unwrap();
    let err = pinned.bytes(MOMENT).unwrap_err().to_string();
    // Of this stream, or of another test's, which is waited for as well.
    assert!(err.starts_with("cuStreamQuery(a stream of GPU "), "{err}");
    assert!(err.ends_with(") failed: not done within 0.05 s"), "{err}");
    gpu.release(1);
    assert!(pinned.bytes(PATIENCE).unwrap().iter().all(|&byte| byte == 7));
}

fn more_memory_than_there_is_is_refused(gpus: &[Context]) {
    let size = Bytes::new(1 << 60);
    let err = Buffer::new(&gpus[0], size).unwrap_err().to_string();
    let text = "cuMemAlloc(1073741824 GiB on GPU 0) failed: CUDA_ERROR_OUT_OF_MEMORY (2): ";
    assert!(err.starts_with(text) && err.len() > text.len(), "{err}");
    assert!(Buffer::new(&gpus[0], Bytes::new(0)).is_err());
    assert!(HostMemory::new(&gpus[0], size).is_err());
    assert!(SharedBuffer::create(&gpus[0], size, &[]).is_err());
}

fn what_is_given_back_can_be_had_again(gpus: &[Context]) {
    let free = gpus[0].free_memory().unwrap().get();
    for _ in 0..5 {
        let most = buffer(&gpus[0], free / 5 * 3);
        assert_eq!(code(&Buffer::new(&gpus[0], most.size()).unwrap_err()), 2);
        drop(most);
        SharedBuffer::create(&gpus[0], Bytes::new(free / 5 * 3), &[]).unwrap();
    }
}

fn a_copy_moves_its_bytes_and_no_others(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let (near, far) = (buffer(&gpus[0], 3 << 20), buffer(&gpus[0], 3 << 20));
    let data = patterned(1, 3 << 20);
    gpu.write(near.all(), &data);
    for (target, source, size) in
        [(0, 0, 0), (1, 0, 1), (3, 5, 17), (4096, 1, 4095), (7, 9, (2 << 20) + 3)]
    {
        gpu.stream.set(far.all(), 0xEE).unwrap();
        gpu.stream.copy(part(&far, target, size), part(&near, source, size)).unwrap();
        is_copied(&gpu.read(far.all()), target, &data, source, size);
    }
}

fn registered_memory_is_one_for_gpu_and_host(gpus: &[Context]) {
    let gpu = Gpu::new(&gpus[0]);
    let memory = buffer(&gpus[0], 1 << 20);
    let segment = Segment::create(memory.size()).unwrap();
    let elsewhere = Segment::open(segment.address()).unwrap();
    let registered = Registered::new(&gpus[0], segment).unwrap();
    gpu.kernels.fill(&gpu.stream, memory.all(), 9).unwrap();
    gpu.stream.copy(registered.all(), memory.all()).unwrap();
    gpu.finish();
    let mut found = vec![0; 1 << 20];
    elsewhere.read(0, &mut found, Store::Cached);
    assert!(found == patterned(9, 1 << 20));
    registered.word(8).store(7, Ordering::Release);
    gpu.stream.wait_value(part(&registered, 8, 4), 7).unwrap();
    gpu.finish();
    drop(registered);
    assert_eq!(elsewhere.word(8).load(Ordering::Acquire), 7);
}

fn gpus_reach_each_other_after_access_was_enabled_once_or_twice(gpus: &[Context]) {
    let (near, far) = (buffer(&gpus[0], 1 << 20), buffer(&gpus[1], 1 << 20));
    let access = gpus[0].device().can_access_peer(gpus[1].device()).unwrap();
    assert!(gpus[0].device().has_native_atomics(gpus[1].device()).is_ok());
    assert!(gpus[0].device().has_native_atomics(gpus[0].device()).is_err());
    let mut gpu = Gpu::new(&gpus[0]);
    let data = patterned(3, 1 << 20);
    // The driver finds a way for copies by itself.
    gpu.write(near.all(), &data);
    gpu.stream.copy(far.all(), near.all()).unwrap();
    assert!(gpu.read(far.all()) == data);
    if !access {
        let err = gpus[0].enable_peer_access(&gpus[1]).unwrap_err().to_string();
        let text = "cuCtxEnablePeerAccess(GPU 0 to GPU 1) failed: ";
        assert!(err.starts_with(text), "{err}");
        return;
    }
    gpus[0].enable_peer_access(&gpus[1]).unwrap();
    gpus[0].enable_peer_access(&gpus[1]).unwrap();
    gpu.kernels.fill(&gpu.stream, far.all(), 4).unwrap();
    gpu.kernels.copy_by_read(&gpu.stream, near.all(), far.all(), 1).unwrap();
    assert!(gpu.read(near.all()) == patterned(4, 1 << 20));
    gpu.kernels.copy_by_write(&gpu.stream, far.all(), near.all(), 1).unwrap();
    gpu.finish();
    assert!(Gpu::new(&gpus[1]).read(far.all()) == patterned(4, 1 << 20));
}
