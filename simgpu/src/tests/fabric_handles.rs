//! Memory of a GPU on another host of its NVLink domain.

use super::{
    processes::{handle_of, handle_text, map},
    *,
};
use crate::{cuda::abi::*, machine::of_file};

/// Two GPUs on each of two hosts, with what `more` says.
fn two_hosts(more: &str) -> Machine {
    let text = "schema = 1\nfrom = \"p6e-gb200.36xlarge\"\nhosts = 2\ngpu_count = 2\n";
    of_file(&format!("{text}{more}"))
}

/// What `cuMemCreate` takes for memory of the first GPU that has a fabric handle.
static IN_FABRIC: [u32; 8] = [1, 8, 1, 0, 0, 0, 0, 0];

fn created() -> u64 {
    let properties = In::of((&raw const IN_FABRIC).cast());
    get(|out| cuMemCreate(out, 2 << 20, properties, 0))
}

/// The handle of memory, to be sent.
fn exported(memory: u64) -> String {
    let mut handle = handle_of(&"00".repeat(64));
    ok(cuMemExportToShareableHandle(Out::to((&raw mut handle).cast()), memory, 8, 0));
    handle_text(&handle)
}

#[test]
fn memory_goes_to_another_host_by_a_fabric_handle() {
    two(
        || two_hosts(""),
        |other| {
            let memory = created();
            let address = map(memory, 2 << 20, &[0]);
            gpu(0);
            put(address, &bytes(1000, 1));
            let code = cuMemExportToShareableHandle(Out::to(&mut 0), memory, 1, 0);
            assert_eq!(code, 1, "no descriptor");
            other.send(&exported(memory));
            assert_eq!(other.receive(), "done");
            assert!(fetch(address, 1000) == bytes(1000, 2), "what the other has written");
            ok(cuMemUnmap(address, 2 << 20));
            ok(cuMemRelease(memory));
            other.send("released");
            assert_eq!(other.receive(), "refused");
        },
        |line| {
            let handle = handle_of(&line.receive());
            let given = (&raw const handle) as usize;
            let memory = get(|out| cuMemImportFromShareableHandle(out, given, 8));
            // The GPUs of the second host.
            let address = map(memory, 2 << 20, &[2, 3]);
            gpu(0);
            assert!(fetch(address, 1000) == bytes(1000, 1), "what the first has written");
            put(address, &bytes(1000, 2));
            line.send("done");
            assert_eq!(line.receive(), "released");
            assert!(fetch(address, 1000) == bytes(1000, 2), "memory that is open is kept");
            assert_eq!(cuMemImportFromShareableHandle(Out::to(&mut 0), given, 8), 1, "it is gone");
            line.send("refused");
        },
    );
}

#[test]
fn gpus_of_another_clique_get_no_access_to_memory_by_a_fabric_handle() {
    two(
        || two_hosts("[[gpu]]\nordinals = [2]\nclique = 7\n"),
        |other| {
            other.send(&exported(created()));
            assert_eq!(other.receive(), "done");
        },
        |line| {
            let handle = handle_of(&line.receive());
            let given = (&raw const handle) as usize;
            let memory = get(|out| cuMemImportFromShareableHandle(out, given, 8));
            let bytes = 2 << 20;
            let address = get(|out| cuMemAddressReserve(out, bytes, 0, 0, 0));
            ok(cuMemMap(address, bytes, 0, memory, 0));
            for (gpu, code) in [(2_u32, 101), (3, 0)] {
                let access = [1, gpu, 3];
                let access = In::of((&raw const access).cast());
                assert_eq!(cuMemSetAccess(address, bytes, access, 1), code, "GPU {gpu}");
            }
            line.send("done");
        },
    );
}

/// What the driver says of fabric handles on such a machine: the attribute, and `cuMemCreate`.
fn refused(more: &str, attribute: Result<i32, u32>, created: u32) {
    begin(two_hosts(more));
    let mut value = -1;
    let found = match cuDeviceGetAttribute(Out::to(&mut value), 128, 0) {
        0 => Ok(value),
        code => Err(code),
    };
    assert_eq!(found, attribute, "{more}");
    let properties = In::of((&raw const IN_FABRIC).cast());
    assert_eq!(cuMemCreate(Out::to(&mut 0), 2 << 20, properties, 0), created, "{more}");
}

#[test]
fn without_a_channel_no_memory_has_a_fabric_handle() {
    alone(|| refused("[host]\nimex = false\n", Ok(1), 800));
}

#[test]
fn an_older_driver_does_not_know_of_fabric_handles() {
    alone(|| refused("driver_version = 12020\n", Err(1), 801));
}

#[test]
fn without_a_domain_there_are_no_fabric_handles() {
    alone(|| {
        refused("[[gpu]]\ncluster_uuid = \"00000000-0000-0000-0000-000000000000\"\n", Ok(0), 801);
    });
}
