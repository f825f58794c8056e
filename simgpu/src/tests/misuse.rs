//! What is wrong is answered with the driver's code, and harms nothing.

use super::*;
use crate::attach::simgpu_attach;
use crate::cuda::{abi::*, function_names};

/// A handle that nobody has given out.
const NONSENSE: u64 = 0x1234_5678;

#[test]
fn before_anything_is_attached_there_is_no_device() {
    alone(|| {
        assert_eq!(cuInit(0), 100);
        assert_eq!(cuDeviceGetCount(Out::to(&mut 0)), 100);
        crate::state::begin(machine(), 0).unwrap();
        assert_eq!(cuDeviceGetCount(Out::to(&mut 0)), 3, "not initialised");
        assert_eq!(cuStreamCreate(Out::to(&mut 0), 1), 3);
        assert_eq!(cuInit(1), 1);
        ok(cuInit(0));
        assert_eq!(get(|out| cuDeviceGetCount(out)), 4);
    });
}

#[test]
fn calls_need_a_context_that_lives() {
    alone(|| {
        crate::state::begin(machine(), 0).unwrap();
        ok(cuInit(0));
        let alloc = || cuMemAlloc_v2(Out::to(&mut 0), 64);
        assert_eq!(alloc(), 201);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201, "never retained");
        assert_eq!(cuCtxSetCurrent(NONSENSE), 201);
        let context: u64 = get(|out| cuDevicePrimaryCtxRetain(out, 0));
        let again: u64 = get(|out| cuDevicePrimaryCtxRetain(out, 0));
        assert_eq!(context, again);
        on(context);
        let (stream, event) = (stream(), event());
        ok(cuDevicePrimaryCtxRelease_v2(0));
        ok(alloc());
        ok(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(alloc(), 709, "the current context has been destroyed");
        assert_eq!(cuCtxSetCurrent(context), 201);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201, "once too often");
        let new: u64 = get(|out| cuDevicePrimaryCtxRetain(out, 0));
        assert_ne!(new, context);
        on(new);
        assert_eq!(cuStreamSynchronize(stream), 400, "gone with its context");
        assert_eq!(cuEventQuery(event), 400);
        assert_eq!(crate::state::memory_used(0), 0);
        ok(cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201);
        let mut active = 1;
        ok(cuDevicePrimaryCtxGetState(0, Out::to(&mut 0), Out::to(&mut active)));
        assert_eq!(active, 0);
    });
}

#[test]
fn contexts_are_a_stack_of_their_thread() {
    alone(|| {
        let contexts = begin(machine());
        ok(cuCtxPushCurrent_v2(contexts[2]));
        assert_eq!(get(|out| cuCtxGetDevice(out)), 2);
        assert_eq!(get(|out| cuCtxPopCurrent_v2(out)), contexts[2]);
        assert_eq!(get(|out| cuCtxGetCurrent(out)), contexts[0]);
        ok(cuCtxSetCurrent(0));
        assert_eq!(get(|out| cuCtxGetCurrent(out)), 0);
        assert_eq!(cuCtxPopCurrent_v2(Out::to(&mut 0)), 201);
        on(contexts[1]);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(cuMemAlloc_v2(Out::to(&mut 0), 64), 201));
        });
    });
}

#[test]
fn handles_of_nothing_are_refused() {
    alone(|| {
        let contexts = begin(machine());
        let (own, there) = (stream(), allocate(64));
        ok(cuStreamDestroy_v2(own));
        let event = event();
        ok(cuEventDestroy_v2(event));
        let module: u64 = get(|out| cuModuleLoadData(out, In::of(MODULE.as_ptr().cast())));
        let function = |name: &CStr| {
            let mut function = 0;
            let name = In::of(name.as_ptr());
            (cuModuleGetFunction(Out::to(&mut function), module, name), function)
        };
        assert_eq!(function(c"fall").0, 500);
        let (code, fill) = function(c"fill");
        ok(code);
        ok(cuModuleUnload(module));
        let to = |stream| cuMemcpyAsync(there, there + 32, 32, stream);
        for (what, code) in [
            ("a destroyed stream", to(own)),
            ("no stream", to(NONSENSE)),
            ("a context as a stream", to(contexts[0])),
            ("a stream twice", cuStreamDestroy_v2(own)),
            ("a wait on a destroyed stream", cuStreamSynchronize(own)),
            ("a destroyed event", cuEventRecord(event, 0)),
            ("an event twice", cuEventDestroy_v2(event)),
            ("a wait for no event", cuStreamWaitEvent(0, NONSENSE, 0)),
            ("a module twice", cuModuleUnload(module)),
            ("a function of no module", launch(fill, 0, &[there, 64, 1, 0])),
        ] {
            assert_eq!(code, 400, "{what}");
        }
        // A handle that is given out again is another one.
        assert_ne!(stream(), own);
    });
}

/// The beginning of a module with one kernel.
const MODULE: &CStr = c".version 6.0\n.target sm_70\n.address_size 64\n
.visible .entry fill(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) { ret; }";

#[test]
fn a_stream_and_an_event_of_different_contexts_do_not_go_together() {
    alone(|| {
        let contexts = begin(machine());
        let event = event();
        on(contexts[1]);
        let other = stream();
        assert_eq!(cuEventRecord(event, other), 400);
        ok(cuStreamWaitEvent(other, event, 0));
        let theirs = mark(other);
        on(contexts[0]);
        let own = mark(stream());
        ok(cuCtxSynchronize());
        assert_eq!(cuEventElapsedTime(Out::to(&mut 0.0), own, theirs), 400);
    });
}

#[test]
fn events_without_a_time_have_none() {
    alone(|| {
        begin(machine());
        let (stream, never) = (stream(), event());
        let recorded = mark(stream);
        let untimed: u64 = get(|out| cuEventCreate(out, 2));
        ok(cuEventRecord(untimed, stream));
        ok(cuStreamSynchronize(stream));
        let elapsed = |start, end| cuEventElapsedTime(Out::to(&mut 0.0), start, end);
        assert_eq!(elapsed(recorded, never), 400);
        assert_eq!(elapsed(recorded, untimed), 400);
        ok(elapsed(recorded, recorded));
        ok(cuEventQuery(never));
        ok(cuEventSynchronize(never));
        let flag = pinned(64);
        ok(cuStreamWaitValue32_v2(stream, flag, 1, 0));
        let late = mark(stream);
        assert_eq!(cuEventQuery(late), 600);
        assert_eq!(elapsed(recorded, late), 600);
        word(flag).store(1, std::sync::atomic::Ordering::Release);
        ok(cuEventSynchronize(late));
        ok(elapsed(recorded, late));
        assert_eq!(cuEventCreate(Out::to(&mut 0), 4), 1, "between processes only without times");
        assert_eq!(cuEventCreate(Out::to(&mut 0), 8), 1);
    });
}

#[test]
fn memory_is_given_back_once_and_touched_within_its_bounds() {
    alone(|| {
        begin(machine());
        let (there, other) = (allocate(1000), allocate(1000));
        let host = vec![0_u8; 4096];
        let from = host.as_ptr() as u64;
        let (flag, mut out) = (pinned(64), 0);
        for (what, code) in [
            ("more than there is", cuMemAlloc_v2(Out::to(&mut out), 300 << 20) - 1),
            ("nothing", cuMemAlloc_v2(Out::to(&mut out), 0)),
            ("not the beginning", cuMemFree_v2(there + 1)),
            ("past the end", cuMemcpyHtoD_v2(there, from, 1001)),
            ("past the end of the source", cuMemcpyDtoD_v2(there, other + 1, 1000)),
            ("past the end, set", cuMemsetD8_v2(there, 0, 1001)),
            ("not aligned, set", cuMemsetD32_v2(there + 2, 0, 1)),
            ("host memory as device memory", cuMemcpyDtoD_v2(there, from, 10)),
            ("null", cuMemcpyHtoD_v2(0, from, 10)),
            ("a null result", cuMemAlloc_v2(Out::to(std::ptr::null_mut()), 64)),
            ("a value at no multiple of 4", cuStreamWriteValue32_v2(0, flag + 2, 1, 0)),
            ("a value at no multiple of 8", cuStreamWaitValue64_v2(0, flag + 4, 1, 0)),
            ("a value in memory that is not registered", cuStreamWriteValue32_v2(0, from, 1, 0)),
            ("an unknown test of a value", cuStreamWaitValue32_v2(0, flag, 1, 4)),
            ("pinned memory freed as device memory", cuMemFree_v2(flag)),
            ("device memory freed as pinned memory", cuMemFreeHost(there)),
            ("no device address", cuMemHostGetDevicePointer_v2(Out::to(&mut out), from, 0)),
            ("no attribute", cuPointerGetAttribute(Out::to(&mut out), 2, from)),
        ] {
            assert_eq!(code, 1, "{what}");
        }
        ok(cuMemFree_v2(there));
        assert_eq!(cuMemFree_v2(there), 1, "twice");
        assert_eq!(cuMemcpyHtoD_v2(there, from, 10), 1, "after it was freed");
        ok(cuMemFree_v2(0));
        assert_eq!(crate::state::memory_used(0), 1024, "one allocation is left");
    });
}

#[test]
fn what_the_host_cannot_back_is_refused() {
    alone(|| {
        let mut machine = machine();
        machine.gpus[0].memory_bytes = 1 << 46;
        machine.symbolic_memory = false;
        begin(machine);
        assert_eq!(cuMemAlloc_v2(Out::to(&mut 0), 1 << 45), 2);
        assert_eq!(crate::state::memory_used(0), 0);
        let _ = allocate(64 << 20);
    });
}

#[test]
fn what_the_host_cannot_back_can_be_described_and_not_stored() {
    alone(|| {
        let mut machine = machine();
        machine.gpus[0].memory_bytes = 1 << 46;
        machine.symbolic_memory = true;
        let contexts = begin(machine);
        on(contexts[0]);
        let large = allocate(1 << 45);
        ok(cuMemsetD8_v2(large, 3, 1 << 45));
        assert_eq!(fetch(large + (1 << 44) + 5, 3), [3; 3]);
        let mut handle = std::mem::MaybeUninit::uninit();
        assert_eq!(cuIpcGetMemHandle(Out::to(handle.as_mut_ptr()), large), 2);
    });
}

#[test]
fn a_context_that_one_thread_has_retained_is_not_destroyed_by_the_release_of_another() {
    alone(|| {
        crate::state::begin(machine(), 0).unwrap();
        ok(cuInit(0));
        on(get(|out| cuDevicePrimaryCtxRetain(out, 0)));
        let flag = pinned(64);
        ok(cuStreamWaitValue32_v2(stream(), flag, 1, 0));
        std::thread::scope(|scope| {
            let release = scope.spawn(|| cuDevicePrimaryCtxRelease_v2(0));
            // It waits for the stream by now.
            std::thread::sleep(std::time::Duration::from_millis(50));
            on(get(|out| cuDevicePrimaryCtxRetain(out, 0)));
            word(flag).store(1, std::sync::atomic::Ordering::Release);
            ok(release.join().unwrap());
        });
        let _ = allocate(64);
        ok(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201);
    });
}

#[test]
fn a_gpu_that_is_prohibited_takes_no_context_and_the_others_do() {
    alone(|| {
        let mut machine = machine();
        machine.gpus[0].health.compute_mode = crate::machine::ComputeMode::Prohibited;
        crate::state::begin(machine, 0).unwrap();
        ok(cuInit(0));
        let mut context = 0_u64;
        assert_eq!(cuDevicePrimaryCtxRetain(Out::to(&raw mut context), 0), 999);
        ok(cuDevicePrimaryCtxRetain(Out::to(&raw mut context), 1));
    });
}

#[test]
fn host_memory_is_registered_once() {
    alone(|| {
        begin(machine());
        let host = vec![1_u8; 64 << 10];
        let at = host.as_ptr() as u64;
        ok(cuMemHostRegister_v2(at, 4096, 3));
        assert_eq!(cuMemHostRegister_v2(at + 100, 4096, 3), 712);
        assert_eq!(cuMemHostUnregister(at + 100), 713);
        assert_eq!(get(|out| cuMemHostGetDevicePointer_v2(out, at + 8, 0)), at + 8);
        assert_eq!(get(|out| cuPointerGetAttribute(out, 2, at)), 1);
        ok(cuMemHostUnregister(at));
        assert_eq!(cuMemHostUnregister(at), 713);
        assert_eq!(cuMemHostRegister_v2(4096, 4096, 3), 1, "there is no memory");
        let flag = pinned(4096);
        assert_eq!(cuMemHostRegister_v2(flag, 4096, 3), 712);
        ok(cuMemFreeHost(flag));
        assert_eq!(cuMemFreeHost(flag), 1);
    });
}

#[test]
fn peers_are_enabled_once_and_where_the_machine_allows_it() {
    alone(|| {
        let mut machine = machine();
        for pair in machine.pairs.iter_mut().filter(|pair| (pair.source, pair.target) == (0, 3)) {
            (pair.read_allowed, pair.write_allowed) = (false, false);
        }
        for pair in machine.pairs.iter_mut().filter(|pair| (pair.source, pair.target) == (3, 0)) {
            (pair.read_allowed, pair.write_allowed) = (false, false);
        }
        let contexts = begin(machine);
        assert_eq!(cuCtxEnablePeerAccess(contexts[1], 0), 704);
        assert_eq!(cuCtxEnablePeerAccess(contexts[0], 0), 101, "itself");
        assert_eq!(cuCtxEnablePeerAccess(contexts[3], 0), 217);
        assert_eq!(cuCtxEnablePeerAccess(contexts[1], 1), 1);
        assert_eq!(cuCtxEnablePeerAccess(NONSENSE, 0), 201);
        ok(cuCtxDisablePeerAccess(contexts[1]));
        assert_eq!(cuCtxDisablePeerAccess(contexts[1]), 705);
        let can = |gpu, peer| get(|out| cuDeviceCanAccessPeer(out, gpu, peer));
        assert_eq!([can(0, 1), can(0, 3), can(3, 0), can(0, 0)], [1, 0, 0, 0]);
        let attribute = |which, peer| get(|out| cuDeviceGetP2PAttribute(out, which, 0, peer));
        assert_eq!([1, 2, 3, 4].map(|which| attribute(which, 1)), [0, 1, 1, 1]);
        assert_eq!([2, 3, 4].map(|which| attribute(which, 3)), [0, 0, 0]);
        assert_eq!(cuDeviceGetP2PAttribute(Out::to(&mut 0), 2, 0, 0), 101);
        assert_eq!(cuDeviceCanAccessPeer(Out::to(&mut 0), 0, 4), 101);
    });
}

#[test]
fn a_kernel_that_touches_what_it_may_not_fails_its_context_for_good() {
    alone(|| {
        let contexts = begin(machine());
        let (near, stream) = (allocate(4096), stream());
        on(contexts[1]);
        let far = allocate(4096);
        on(contexts[0]);
        ok(cuCtxDisablePeerAccess(contexts[1]));
        put(near, &bytes(4096, 1));
        let copy = kernel(c"copy_by_read");
        let flag = pinned(64);
        ok(cuStreamWaitValue32_v2(stream, flag, 1, 0));
        ok(launch(copy, stream, &[near, far, 4096]));
        ok(cuMemcpyAsync(flag + 4, near + 4, 4, stream));
        word(flag).store(1, std::sync::atomic::Ordering::Release);
        assert_eq!(cuStreamSynchronize(stream), 700);
        let behind = word(flag + 4).load(std::sync::atomic::Ordering::Acquire);
        assert_eq!(behind, 0, "what was queued behind is not done");
        for code in [
            cuMemAlloc_v2(Out::to(&mut 0), 64),
            cuMemcpyHtoD_v2(near, near, 1),
            launch(copy, stream, &[near, near + 64, 64]),
            cuStreamQuery(stream),
            cuCtxSynchronize(),
            cuMemFree_v2(near),
        ] {
            assert_eq!(code, 700);
        }
        // Other contexts and questions about devices go on.
        assert_eq!(get(|out| cuCtxGetDevice(out)), 0);
        on(contexts[1]);
        let _ = allocate(64);
        ok(cuDevicePrimaryCtxReset_v2(0));
        on(get(|out| cuDevicePrimaryCtxRetain(out, 0)));
        let _ = allocate(64);
    });
}

#[test]
fn reads_fail_where_only_writes_are_allowed() {
    alone(|| {
        let mut machine = machine();
        for pair in machine.pairs.iter_mut().filter(|pair| (pair.source, pair.target) == (1, 0)) {
            pair.read_allowed = false;
        }
        let contexts = begin(machine);
        let near = allocate(4096);
        on(contexts[1]);
        let far = allocate(4096);
        on(contexts[0]);
        assert_eq!(get(|out| cuDeviceCanAccessPeer(out, 0, 1)), 0);
        let stream = stream();
        ok(cuMemcpyAsync(far, near, 4096, stream));
        ok(launch(kernel(c"copy_by_write"), stream, &[far, near, 4096]));
        ok(cuStreamSynchronize(stream));
        ok(cuMemcpyAsync(near, far, 4096, stream));
        assert_eq!(cuStreamSynchronize(stream), 700);
    });
}

#[test]
fn launches_are_checked() {
    alone(|| {
        begin(machine());
        let (fill, there) = (kernel(c"fill"), allocate(64));
        let values = [there, 64, 1, 0];
        let parameters: Vec<In<u8>> =
            values.iter().map(|value| In::of((&raw const *value).cast())).collect();
        let none = In::of(std::ptr::null());
        let launch = |[gx, gy, gz]: [u32; 3], [bx, by, bz]: [u32; 3], shared| {
            let parameters = In::of(parameters.as_ptr());
            cuLaunchKernel(fill, gx, gy, gz, bx, by, bz, shared, 0, parameters, none)
        };
        ok(launch([1, 1, 1], [32, 1, 1], 0));
        for (grid, block, shared) in [
            ([0, 1, 1], [32, 1, 1], 0),
            ([1, 1, 1], [0, 1, 1], 0),
            ([1, 65_536, 1], [32, 1, 1], 0),
            ([1, 1, 1], [1025, 1, 1], 0),
            ([1, 1, 1], [32, 33, 1], 0),
            ([1, 1, 1], [1, 1, 65], 0),
            ([1, 1, 1], [32, 1, 1], 49_153),
        ] {
            assert_eq!(launch(grid, block, shared), 1, "{grid:?} {block:?} {shared}");
        }
        let load = |text: &CStr| cuModuleLoadData(Out::to(&mut 0), In::of(text.as_ptr()));
        assert_eq!(load(c"no PTX"), 218);
        assert_eq!(load(c"\x7fELF"), 209);
        assert_eq!(load(c".version 6.0\n.entry other(.param .u64 a) { ret; }"), 801);
    });
}

#[test]
fn no_memory_is_given_away_as_a_dma_buf_and_the_driver_says_so() {
    alone(|| {
        begin(machine());
        let supported: i32 = get(|out| cuDeviceGetAttribute(out, 124, 0));
        let place = allocate(2 << 20);
        let given = cuMemGetHandleForAddressRange(Out::to(&mut 0), place, 2 << 20, 1, 0);
        assert_eq!((supported, given), (0, 801));
    });
}

#[test]
fn memory_and_addresses_apart_are_checked() {
    alone(|| {
        begin(machine());
        let bytes = 2 << 20;
        let words: [u32; 8] = [1, 0, 1, 1, 0, 0, 0, 0];
        let properties = In::of((&raw const words).cast());
        assert_eq!(cuMemCreate(Out::to(&mut 0), 4096, properties, 0), 1, "no whole granule");
        assert_eq!(cuMemCreate(Out::to(&mut 0), 300 << 20, properties, 0), 2);
        let memory: u64 = get(|out| cuMemCreate(out, bytes, properties, 0));
        assert_eq!(crate::state::memory_used(1), bytes as u64);
        assert_eq!(cuMemExportToShareableHandle(Out::to(&mut 0), memory, 1, 0), 1, "not asked for");
        let address: u64 = get(|out| cuMemAddressReserve(out, 2 * bytes, 0, 0, 0));
        assert_eq!(cuMemMap(address + 4096, bytes, 0, memory, 0), 1);
        assert_eq!(cuMemMap(address, 2 * bytes, 0, memory, 0), 1, "more than there is");
        assert_eq!(cuMemcpyHtoD_v2(address, (&raw const words) as u64, 4), 1, "nothing is there");
        ok(cuMemMap(address, bytes, 0, memory, 0));
        assert_eq!(cuMemMap(address, bytes, 0, memory, 0), 208);
        assert_eq!(cuMemcpyHtoD_v2(address, (&raw const words) as u64, 4), 1, "no access");
        let access: [u32; 3] = [1, 1, 3];
        let access = In::of((&raw const access).cast());
        assert_eq!(cuMemSetAccess(address, 2 * bytes, access, 1), 1, "half of it is empty");
        ok(cuMemSetAccess(address, bytes, access, 1));
        ok(cuMemcpyHtoD_v2(address, (&raw const words) as u64, 4));
        assert_eq!(cuMemAddressFree(address, 2 * bytes), 1, "something is mapped");
        ok(cuMemRelease(memory));
        assert_eq!(cuMemRelease(memory), 1);
        assert_eq!(crate::state::memory_used(1), bytes as u64, "it is mapped yet");
        assert_eq!(cuMemUnmap(address, 4096), 1, "only as a whole");
        ok(cuMemUnmap(address, bytes));
        assert_eq!(crate::state::memory_used(1), 0);
        ok(cuMemAddressFree(address, 2 * bytes));
        assert_eq!(cuMemImportFromShareableHandle(Out::to(&mut 0), 0, 1), 1, "of no machine");
    });
}

#[test]
fn a_child_that_was_forked_cannot_use_the_driver() {
    alone(|| {
        begin(machine());
        // SAFETY: the child only makes one call, which takes no lock, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = cuMemAlloc_v2(Out::to(&mut 0), 64);
            // SAFETY: the call ends the process.
            unsafe { libc::_exit(code.cast_signed()) };
        }
        let mut status = 0;
        // SAFETY: the status is a live local.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 3);
        let _ = allocate(64);
    });
}

#[test]
fn codes_have_names_and_sentences() {
    alone(|| {
        begin(machine());
        let text = |call: extern "C" fn(u32, Out<*const std::ffi::c_char>) -> u32, code| {
            let mut text = std::ptr::null();
            let answer = call(code, Out::to(&mut text));
            // SAFETY: a text that is there is a C string that lives for ever.
            (answer, (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap()))
        };
        assert_eq!(text(cuGetErrorName, 0), (0, Some("CUDA_SUCCESS")));
        assert_eq!(text(cuGetErrorName, 2), (0, Some("CUDA_ERROR_OUT_OF_MEMORY")));
        assert_eq!(text(cuGetErrorString, 2), (0, Some("out of memory")));
        assert_eq!(text(cuGetErrorName, 12_345), (1, None));
    });
}

#[test]
fn the_documentation_lists_the_functions() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/simulation.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("\n## The driver\n").unwrap();
    let (section, collectives) = section.split_once("\n## Collectives\n").unwrap();
    let named = collectives.split('`').skip(1).step_by(2);
    let listed: std::collections::BTreeSet<&str> =
        named.filter(|name| name.starts_with("nccl") && *name != "ncclConfig_t").collect();
    let codes = [
        "ncclInternalError",
        "ncclInvalidUsage",
        "ncclInvalidArgument",
        "ncclInProgress",
        "ncclRemoteError",
    ];
    let others = ["ncclGetVersion", "ncclGetErrorString", "ncclGetLastError"];
    let own = crate::nccl::function_names().chain(codes).chain(others);
    assert_eq!(listed, own.collect());
    let table = section.lines().filter(|line| line.starts_with("| "));
    let mut listed: Vec<&str> = table.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    let mut own: Vec<&str> = function_names().collect();
    listed.sort_unstable();
    own.sort_unstable();
    assert_eq!(listed, own);
}

#[test]
fn functions_are_found_by_name() {
    alone(|| {
        begin(machine());
        let find = |name: &CStr| {
            let (mut function, mut status) = (std::ptr::null_mut(), 7);
            let name = In::of(name.as_ptr());
            let code =
                cuGetProcAddress_v2(name, Out::to(&mut function), 12_060, 0, Out::to(&mut status));
            (code, function as usize, status)
        };
        assert_eq!(find(c"cuMemAlloc"), (0, cuMemAlloc_v2 as *const () as usize, 0));
        assert_eq!(find(c"cuStreamQuery"), (0, cuStreamQuery as *const () as usize, 0));
        assert_eq!(find(c"cuGraphClone"), (500, 0, 1));
    });
}

#[test]
fn attaching_is_refused_in_a_sentence() {
    alone(|| {
        let attach = |machine: Option<&CStr>, state: Option<&CStr>| {
            let mut sentence = [0; 200];
            let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
            let (machine, state) = (pointer(machine), pointer(state));
            // SAFETY: the texts are C strings or null, and the array is as long as it is said to
            // be.
            let code = unsafe {
                simgpu_attach(machine, state, 0, 0, sentence.as_mut_ptr(), sentence.len())
            };
            // SAFETY: the array is zeroed, or the call has written a C string.
            let sentence = unsafe { CStr::from_ptr(sentence.as_ptr()) };
            (code, sentence.to_str().unwrap().to_owned())
        };
        assert_eq!(attach(None, None).1, "either a machine or a state must be given");
        assert_eq!(attach(Some(c"a"), Some(c"b")).0, 1);
        let (code, sentence) = attach(Some(c"p5.48xlarg"), None);
        assert!(code == 1 && sentence.contains("p5.48xlarge"), "{sentence}");
        // SAFETY: the array is as long as it is said to be.
        assert_eq!(unsafe { simgpu_state([0; 8].as_mut_ptr(), 8) }, 1, "there is none");
        assert_eq!(attach(Some(c"p5.48xlarge"), None), (0, String::new()));
        assert_eq!(attach(Some(c"p5.48xlarge"), None).1, "this process is attached already");
        // SAFETY: the array is as long as it is said to be.
        assert_eq!(unsafe { simgpu_state([0; 8].as_mut_ptr(), 8) }, 1, "there is no room");
        ok(cuInit(0));
        assert_eq!(get(|out| cuDeviceGetCount(out)), 8);
    });
}
