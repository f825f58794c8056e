//! What operations do to memory.

use std::sync::atomic::Ordering;

use super::*;
use crate::{cuda::abi::*, machine::Flip};

/// Enough that its pages are told apart, little enough to be quick.
const SIZE: usize = 100_000;

fn copy(target: u64, source: u64, bytes: usize) {
    ok(cuMemcpyAsync(target, source, bytes, 0));
    ok(cuCtxSynchronize());
}

#[test]
fn bytes_arrive_whatever_the_way() {
    alone(|| {
        let contexts = begin(machine());
        let sent = bytes(SIZE, 3);
        let (near, other) = (allocate(SIZE), allocate(SIZE));
        on(contexts[1]);
        let far = allocate(SIZE);
        on(contexts[0]);
        let host = pinned(SIZE);
        put(near, &sent);
        for (target, source) in [(other, near), (far, other), (host, far), (near, host)] {
            copy(target, source, SIZE);
            assert!(fetch(target, SIZE) == sent);
        }
        // By halves onto itself: what overlaps comes out right.
        copy(near + 10, near, SIZE - 10);
        assert!(fetch(near + 10, SIZE - 10) == sent[..SIZE - 10]);
        ok(cuMemcpyPeer(far, contexts[1], near, contexts[0], SIZE));
        assert!(fetch(far, 20) == fetch(near, 20));
        assert_eq!(cuMemcpyPeer(far, contexts[0], near, contexts[0], SIZE), 1);
    });
}

#[test]
fn pageable_memory_can_be_used_again_when_the_call_returns() {
    alone(|| {
        begin(machine());
        let (there, stream) = (allocate(SIZE), stream());
        for size in [1000, SIZE] {
            let mut sent = bytes(size, 1);
            ok(cuMemcpyHtoDAsync_v2(there, sent.as_ptr() as u64, size, stream));
            sent.fill(0);
            let mut back = vec![0; size];
            ok(cuMemcpyDtoHAsync_v2(back.as_mut_ptr() as u64, there, size, stream));
            assert!(back == bytes(size, 1));
        }
    });
}

#[test]
fn memory_is_set_in_all_widths() {
    alone(|| {
        begin(machine());
        let there = allocate(64);
        ok(cuMemsetD8_v2(there, 1, 64));
        ok(cuMemsetD16_v2(there + 2, 0x0302, 3));
        ok(cuMemsetD32_v2(there + 8, 0x0706_0504, 2));
        assert_eq!(fetch(there, 18), [1, 1, 2, 3, 2, 3, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 1, 1]);
    });
}

#[test]
fn kernels_do_what_they_are_for() {
    alone(|| {
        let contexts = begin(machine());
        let [fill, compare, copies, reads] =
            [c"fill", c"compare", c"copy_by_read", c"read_only"].map(kernel);
        let (near, result, stream) = (allocate(SIZE), pinned(64), stream());
        on(contexts[1]);
        let far = allocate(SIZE);
        on(contexts[0]);
        let size = SIZE as u64;
        let compared = |address| {
            word(result).store(0, Ordering::Release);
            word(result + 8).store(u32::MAX, Ordering::Release);
            word(result + 12).store(u32::MAX, Ordering::Release);
            ok(launch(compare, stream, &[address, size, 42, result]));
            ok(cuStreamSynchronize(stream));
            [0, 8].map(|at| word(result + at).load(Ordering::Acquire))
        };
        ok(launch(fill, stream, &[near, size, 42, 0]));
        ok(launch(copies, stream, &[far, near, size]));
        assert_eq!(compared(far), [0, u32::MAX]);
        ok(cuMemsetD8Async(far + 500, fetch(far + 500, 1)[0] ^ 1, 1, stream));
        assert_eq!(compared(far), [1, 500]);
        word(result).store(0, Ordering::Release);
        ok(launch(reads, stream, &[near, 8, result]));
        ok(cuStreamSynchronize(stream));
        let first = u32::from_le_bytes(fetch(near, 4).try_into().unwrap());
        assert_eq!(word(result).load(Ordering::Acquire), first, "the checksum of one word");
    });
}

#[test]
fn a_copy_that_changes_nothing_is_left_out_and_any_write_brings_it_back() {
    alone(|| {
        let contexts = begin(machine());
        let (near, spare) = (allocate(SIZE), allocate(SIZE));
        on(contexts[1]);
        let far = allocate(SIZE);
        on(contexts[0]);
        put(near, &bytes(SIZE, 1));
        copy(far, near, SIZE);
        // Behind the driver's back, which no program could do: so a copy that is left out shows.
        let backdoor = word(far + 40);
        let there = backdoor.load(Ordering::Acquire);
        let is_left_out = |makes: &dyn Fn()| {
            backdoor.store(!there, Ordering::Release);
            makes();
            let left_out = backdoor.load(Ordering::Acquire) == !there;
            copy(far, near, SIZE / 2);
            copy(far, near, SIZE);
            assert_eq!(backdoor.load(Ordering::Acquire), there);
            copy(far, near, SIZE);
            left_out
        };
        let again = || copy(far, near, SIZE);
        assert!(is_left_out(&again));
        assert!(is_left_out(&|| {
            ok(cuMemsetD8_v2(spare, 9, SIZE));
            again();
        }));
        let by_kernel = || {
            ok(launch(kernel(c"copy_by_write"), 0, &[far, near, SIZE as u64]));
            ok(cuCtxSynchronize());
        };
        assert!(is_left_out(&by_kernel), "by whatever engine");
        let same = |at, count: usize| bytes(SIZE, 1)[at..at + count].to_vec();
        let writes: [(&str, &dyn Fn()); 6] = [
            ("the source is set", &|| ok(cuMemsetD8_v2(near, same(0, 1)[0], 1))),
            ("the target is set", &|| ok(cuMemsetD8_v2(far + 9, same(9, 1)[0], 1))),
            ("the source is received", &|| put(near + 99, &same(99, 50))),
            ("a kernel writes the source", &|| {
                ok(launch(kernel(c"copy_by_read"), 0, &[near, near + 251, 100]));
                ok(launch(kernel(c"copy_by_read"), 0, &[near, near + 502, 100]));
            }),
            ("a stream writes a value", &|| {
                let value = u32::from_le_bytes(same(4, 4).try_into().unwrap());
                ok(cuStreamWriteValue32_v2(0, near + 4, value, 0));
            }),
            ("another copy writes the target", &|| ok(cuMemcpyDtoD_v2(far + 251, near, 10))),
        ];
        for (what, write) in writes {
            assert!(
                !is_left_out(&|| {
                    write();
                    again();
                }),
                "{what}"
            );
        }
        // Memory that another process may write is watched, not distrusted.
        let mut handle = std::mem::MaybeUninit::<Handle>::zeroed();
        ok(cuIpcGetMemHandle(Out::to(handle.as_mut_ptr()), near));
        again();
        assert!(is_left_out(&again));
    });
}

#[test]
fn what_a_kernel_wrote_that_held_in_vain_is_copied() {
    alone(|| {
        let contexts = begin(machine());
        let (near, flag) = (allocate(64), pinned(64));
        on(contexts[1]);
        let far = allocate(64);
        on(contexts[0]);
        ok(cuMemsetD8_v2(near, 0, 64));
        copy(far, near, 64);
        ok(launch(kernel(c"hold"), 0, &[flag, 1, 1_000_000, near]));
        copy(far, near, 64);
        assert_eq!(fetch(far, 4), 1_u32.to_le_bytes());
    });
}

#[test]
fn copies_with_the_host_are_always_made() {
    alone(|| {
        begin(machine());
        let (there, host) = (allocate(64), pinned(64));
        for value in 1..4 {
            word(host).store(value, Ordering::Release);
            copy(there, host, 64);
            assert_eq!(fetch(there, 4), value.to_le_bytes());
        }
    });
}

#[test]
fn freed_memory_is_given_out_again_and_is_not_zero() {
    alone(|| {
        begin(machine());
        let first = allocate(SIZE);
        assert_ne!(fetch(first, 16), [0; 16]);
        ok(cuMemsetD8_v2(first, 0, SIZE));
        ok(cuMemFree_v2(first));
        let second = allocate(SIZE / 2);
        assert_eq!(second, first);
        assert_ne!(fetch(second, 16), [0; 16]);
        // All of it can be had, and had again; pages that are given back come anew.
        for _ in 0..8 {
            let large = allocate(200 << 20);
            ok(cuMemFree_v2(large));
        }
        assert_eq!(crate::state::memory_used(0), 50_176);
        copy(second + 1000, second, 1000);
    });
}

#[test]
fn pages_of_freed_memory_are_kept_up_to_a_limit() {
    alone(|| {
        let mut machine = machine();
        machine.gpus[0].memory_bytes = 2 << 30;
        machine.symbolic_memory = false;
        begin(machine);
        let kept_bytes = |address| {
            let local = crate::state::world().unwrap().local();
            let (descriptor, _) = local.memory.file(0, address).unwrap();
            let path = format!("/proc/self/fd/{descriptor}");
            std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
        };
        let use_and_free = |bytes: usize| {
            let there = allocate(bytes);
            ok(cuMemsetD8_v2(there + bytes as u64 / 2, 1, 1 << 20));
            ok(cuMemFree_v2(there));
            there
        };
        let own = allocate(1 << 20);
        let there = use_and_free(400 << 20);
        assert!(kept_bytes(there) >= 1 << 20, "for the next that comes");
        use_and_free(600 << 20);
        assert!(kept_bytes(there) < 1 << 20);
        assert_ne!(fetch(own, 16), [0; 16], "what is not free stays");
    });
}

#[test]
fn a_flipped_byte_is_found_in_the_target_also_of_a_copy_that_was_left_out() {
    alone(|| {
        let mut machine = machine();
        let flip =
            |after, always| Flip { source: Some(0), target: Some(1), offset: 77, after, always };
        machine.faults.flips = vec![flip(1, false), flip(3, true)];
        let contexts = begin(machine);
        let near = allocate(SIZE);
        on(contexts[1]);
        let far = allocate(SIZE);
        on(contexts[0]);
        let sent = bytes(SIZE, 5);
        put(near, &sent);
        let wrong = || {
            copy(far, near, SIZE);
            let found = fetch(far, SIZE);
            let wrong = (0..SIZE).filter(|&at| found[at] != sent[at]);
            wrong.collect::<Vec<_>>()
        };
        // The second is left out, but for its flip; so the third is made again.
        assert_eq!([wrong(), wrong(), wrong()], [vec![], vec![77], vec![]]);
        assert_eq!([wrong(), wrong()], [[77], [77]]);
        copy(far, near, 77);
        assert_eq!(
            fetch(far + 77, 1)[0],
            sent[77] ^ 1,
            "a short one is spared and repairs nothing"
        );
    });
}
