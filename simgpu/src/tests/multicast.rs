//! Memory of several GPUs behind one address.

use super::{
    processes::{handle_of, handle_text, map},
    *,
};
use crate::{cuda::abi::*, machine::of_file};

const BYTES: usize = 2 << 20;
/// CUDA_ERROR_ILLEGAL_ADDRESS
const ILLEGAL: u32 = 700;
/// CU_MEM_HANDLE_TYPE_FABRIC
const FABRIC: u64 = 8;

/// What `cuMulticastCreate` takes: GPUs, bytes, kinds of handles, no flags.
fn properties(gpus: u64, handle_types: u64) -> [u64; 4] {
    [gpus, BYTES as u64, handle_types, 0]
}

/// An object for so many GPUs.
fn create(gpus: u64, handle_types: u64) -> u64 {
    let properties = properties(gpus, handle_types);
    get(|out| cuMulticastCreate(out, In::of((&raw const properties).cast())))
}

/// Memory of a GPU, bound to an object; where the GPU has it.
fn bind(object: u64, gpu: u32, handle_types: u32) -> u64 {
    let properties = [1, handle_types, 1, gpu, 0, 0, 0, 0];
    let properties = In::of((&raw const properties).cast());
    let memory = get(|out| cuMemCreate(out, BYTES, properties, 0));
    ok(cuMulticastBindMem(object, 0, memory, 0, BYTES, 0));
    map(memory, BYTES, &[gpu])
}

/// An object with memory of GPUs 0 and 1 of this process: its address, and that of each.
fn two_gpus() -> (u64, [u64; 2]) {
    let object = create(2, 0);
    [0, 1].iter().for_each(|gpu| ok(cuMulticastAddDevice(object, *gpu)));
    let memory = [0, 1].map(|gpu| bind(object, gpu, 0));
    (map(object, BYTES, &[0, 1]), memory)
}

fn loaded(name: &CStr) -> u64 {
    let text = concat!(include_str!("../../../kernels/multicast.ptx"), "\0");
    let module: u64 = get(|out| cuModuleLoadData(out, In::of(text.as_ptr().cast())));
    get(|out| cuModuleGetFunction(out, module, In::of(name.as_ptr())))
}

/// What is at an address, as 32-bit floats.
fn floats(address: u64, count: usize) -> Vec<f32> {
    let bytes = fetch(address, 4 * count);
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn put_floats(address: u64, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    put(address, &bytes);
}

#[track_caller]
fn near(found_ns: f64, expected_ns: f64) {
    assert!((found_ns - expected_ns).abs() < 3.0, "{found_ns} ns, not {expected_ns}");
}

#[test]
fn what_is_stored_comes_to_all_and_what_is_loaded_is_the_sum() {
    alone(|| {
        begin(machine());
        let (all, memory) = two_gpus();
        let fill = loaded(c"multicast_store");
        ok(launch(fill, 0, &[all + 64, 1 << 20, 7]));
        ok(cuCtxSynchronize());
        let stored = fetch(memory[0] + 64, 1 << 20);
        assert!(stored == fetch(memory[1] + 64, 1 << 20));
        assert_ne!(stored[..16], [0; 16]);
        assert_eq!(fetch(memory[1] + 64 + (1 << 20), 16), [0; 16], "nothing behind it");
        for (place, address) in memory.iter().enumerate() {
            put_floats(*address, &[1.5, 2.0, 4.0, 8.0].map(|value| value + 100.0 * place as f32));
        }
        let sums = [103.0, 104.0, 108.0, 116.0];
        let own = allocate(16);
        ok(launch(loaded(c"multimem_reduce"), 0, &[own, all, 16]));
        ok(cuCtxSynchronize());
        assert_eq!(floats(own, 4), sums);
        let all_reduce = loaded(c"multimem_all_reduce");
        for first in [1.5, 2.5] {
            // Once more: the same launch, of other data.
            put_floats(memory[0], &[first]);
            ok(launch(all_reduce, 0, &[all + 4096, all, 16]));
            ok(cuCtxSynchronize());
            for address in memory {
                assert_eq!(floats(address + 4096, 4)[0], first + 101.5);
                assert_eq!(floats(address + 4096, 4)[1..], sums[1..]);
            }
        }
    });
}

#[test]
fn switches_take_the_time_and_carry_the_bytes_that_the_model_says() {
    alone(|| {
        begin(machine());
        let (all, _) = two_gpus();
        let stream = stream();
        let lasts_ns = |name, parameters: &[u64]| {
            let function = loaded(name);
            let first = mark(stream);
            ok(launch(function, stream, parameters));
            let last = mark(stream);
            ok(cuStreamSynchronize(stream));
            ns(first, last)
        };
        let own = allocate(1 << 20);
        let bytes = f64::from(1 << 20);
        // `launch_ns`, and the pair's latency and rate, of which NCCL's model reaches 0.85.
        let store_ns = 4000.0 + 1600.0 + bytes / (0.85 * 90.0);
        near(lasts_ns(c"multicast_store", &[all, 1 << 20, 7]), store_ns);
        let reduce_ns = 4000.0 + 1800.0 + bytes / (0.85 * 50.0);
        near(lasts_ns(c"multimem_reduce", &[own, all, 1 << 20]), reduce_ns);
        // Its own GPU's links carry the data twice each way.
        let all_reduce_ns = 4000.0 + 1600.0 + bytes / (0.85 * 90.0);
        near(lasts_ns(c"multimem_all_reduce", &[all + (1 << 20), all, 1 << 19]), all_reduce_ns);
        let counted = [0, 1].map(|gpu| {
            let traffic = crate::state::traffic(gpu);
            [traffic.nvlink_tx_bytes, traffic.nvlink_rx_bytes]
        });
        let half = 1 << 19;
        assert_eq!(counted, [[2 * half + 2 * half + 2 * half; 2], [2 * half + half; 2]]);
    });
}

#[test]
fn what_no_multimem_instruction_does_finds_nothing_there() {
    alone(|| {
        begin(machine());
        let (all, memory) = two_gpus();
        let own = allocate(64);
        assert_ne!(cuMemcpyDtoD_v2(own, all, 64), 0);
        assert_ne!(cuMemsetD8_v2(all, 0, 64), 0);
        // Nor do these go to ordinary memory.
        ok(launch(loaded(c"multicast_store"), 0, &[memory[0], 64, 7]));
        assert_eq!(cuCtxSynchronize(), ILLEGAL);
    });
}

#[test]
fn an_object_is_used_only_when_all_its_gpus_have_memory_there() {
    alone(|| {
        begin(machine());
        let object = create(2, 0);
        assert_eq!(cuMulticastAddDevice(object, 7), 101, "no such GPU");
        [0, 1].iter().for_each(|gpu| ok(cuMulticastAddDevice(object, *gpu)));
        assert_eq!(cuMulticastAddDevice(object, 2), 1, "it is for two");
        let _ = bind(object, 0, 0);
        let all = map(object, BYTES, &[0, 1]);
        ok(launch(loaded(c"multicast_store"), 0, &[all, 64, 7]));
        assert_eq!(cuCtxSynchronize(), ILLEGAL);
    });
}

#[test]
fn gpus_without_switches_that_reduce_have_no_multicast() {
    for (file, attribute) in [
        ("schema = 1\nfrom = 'p4d.24xlarge'\n", Some(0)),
        ("schema = 1\nfrom = 'g6e.12xlarge'\n", Some(0)),
        ("schema = 1\nfrom = 'p5.48xlarge'\n[nccl]\nnvls = false\n", Some(0)),
        ("schema = 1\nfrom = 'p5.48xlarge'\ndriver_version = 12000\n", None),
    ] {
        let machine = of_file(file);
        assert!(!machine.gives_multicast(0), "{file}");
        let found = crate::cuda::device::attribute_of(&machine, 0, 132);
        assert_eq!(found, attribute, "{file}");
    }
    assert!(of_file("schema = 1\nfrom = 'p5.48xlarge'\n").gives_multicast(0));
}

/// Two GPUs on each of two hosts, with what `more` says.
fn two_hosts(more: &str) -> Machine {
    let text = "schema = 1\nfrom = \"p6e-gb200.36xlarge\"\nhosts = 2\ngpu_count = 2\n";
    of_file(&format!("{text}{more}"))
}

/// The handle of an object for other hosts.
fn exported(object: u64) -> String {
    let mut handle = handle_of(&"00".repeat(64));
    ok(cuMemExportToShareableHandle(Out::to((&raw mut handle).cast()), object, 8, 0));
    handle_text(&handle)
}

fn imported(line: &str) -> u64 {
    let handle = handle_of(line);
    get(|out| cuMemImportFromShareableHandle(out, (&raw const handle) as usize, 8))
}

#[test]
fn gpus_of_two_hosts_are_behind_one_address() {
    two(
        || two_hosts(""),
        |other| {
            let object = create(2, FABRIC);
            ok(cuMulticastAddDevice(object, 0));
            other.send(&exported(object));
            // Waits until the other has added its own.
            let own = bind(object, 0, 8);
            let all = map(object, BYTES, &[0]);
            assert_eq!(other.receive(), "bound");
            let stores = loaded(c"multicast_store");
            ok(launch(stores, 0, &[all, 4096, 7]));
            ok(cuCtxSynchronize());
            assert_ne!(fetch(own, 16), [0; 16]);
            other.send(&format!("{:?}", fetch(own, 4096)));
            assert_eq!(other.receive(), format!("{:?}", fetch(own + 8192, 64)));
        },
        |line| {
            let object = imported(&line.receive());
            // Meanwhile the other waits.
            std::thread::sleep(std::time::Duration::from_millis(50));
            ok(cuMulticastAddDevice(object, 2));
            let own = bind(object, 2, 8);
            let all = map(object, BYTES, &[2]);
            line.send("bound");
            assert_eq!(line.receive(), format!("{:?}", fetch(own, 4096)));
            on(get(|out| cuDevicePrimaryCtxRetain(out, 2)));
            ok(launch(loaded(c"multicast_store"), 0, &[all + 8192, 64, 1]));
            ok(cuCtxSynchronize());
            assert_ne!(fetch(own + 8192, 16), [0; 16]);
            line.send(&format!("{:?}", fetch(own + 8192, 64)));
        },
    );
}

#[test]
fn a_gpu_of_another_clique_cannot_be_added() {
    two(
        || two_hosts("[[gpu]]\nordinals = [2]\nclique = 7\n"),
        |other| {
            let object = create(2, FABRIC);
            ok(cuMulticastAddDevice(object, 0));
            other.send(&exported(object));
            assert_eq!(other.receive(), "done");
        },
        |line| {
            let object = imported(&line.receive());
            assert_eq!(cuMulticastAddDevice(object, 2), 101);
            ok(cuMulticastAddDevice(object, 3));
            line.send("done");
        },
    );
}
