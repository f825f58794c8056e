//! What fails: each call is named and nothing is left behind, and no driver is taken for another.

use std::{
    error::Error,
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

use g2g::ffi::{cuda::CALLS, nccl};

use super::*;

/// What explains the failure of another call, and what needs a second process.
const LEFT_OUT: [&str; 4] =
    ["cuGetErrorName", "cuGetErrorString", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle"];

/// What gives something back: if it fails, that may stay.
const GIVING_BACK: [&str; 12] = [
    "cuDevicePrimaryCtxRelease",
    "cuMemFree",
    "cuMemHostUnregister",
    "cuStreamDestroy",
    "cuEventDestroy",
    "cuModuleUnload",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuMulticastUnbind",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

#[test]
fn every_call_that_fails_is_named_and_leaves_nothing_behind() {
    for call in CALLS.iter().flat_map(|(_, names)| *names) {
        let name = call.split("_v").next().unwrap();
        if LEFT_OUT.contains(&name) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report.jsonl");
        let machine = folder.path().join("machine.toml");
        let text = format!(
            "schema = 1\nfrom = \"p4d.24xlarge\"\nreport = {:?}\n[nccl]\nnvls = true\n[[fault.call]]\nname = \"{name}\"\ncode = 4242\n",
            report.to_str().unwrap()
        );
        fs::write(&machine, text).unwrap();
        let output = run_everything(machine.to_str().unwrap());
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(output.status.success(), "{name}: {said}");
        let failures: Vec<&str> = said.lines().filter(|line| line.contains("failed: ")).collect();
        assert_eq!(failures.len(), 1, "{name}: {said}");
        assert!(failures[0].contains(&format!("{name}(")), "{}", failures[0]);
        assert!(failures[0].contains(") failed: unknown (4242): unknown"), "{}", failures[0]);
        let left = left_behind(&fs::read_to_string(&report).unwrap());
        assert!(left.is_empty() || GIVING_BACK.contains(&name), "{name}: {left:?}");
    }
}

/// The kinds of things of which a report counts any.
fn left_behind(report: &str) -> Vec<String> {
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let live = report["live"].as_object().unwrap();
    let kinds = live.iter().filter(|(_, count)| count.as_u64() != Some(0));
    kinds.map(|(kind, _)| kind.clone()).collect()
}

fn run_everything(machine: &str) -> Output {
    run("the_process_on_a_faulty_machine", machine, Path::new(""))
}

/// Runs the ignored test `part` in another process, with `input` on its standard input, and with
/// `library_path` the first place where libraries are looked for.
fn run(part: &str, input: &str, library_path: &Path) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("faults::{part}"), "--exact", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", library_path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_simulated_driver_that_nobody_asked_for_is_refused() {
    simulated_gpus();
    let folder = tempfile::tempdir().unwrap();
    let library = simulation::library().unwrap();
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).unwrap();
    let output = run("the_process_that_finds_a_driver", "go", folder.path());
    let said = String::from_utf8(output.stdout).unwrap();
    let text = "the driver that was found is the simulated one, which was not asked for: ";
    assert!(output.status.success() && said.contains(text), "{said}");
}

/// Without a word there is nothing to do: all ignored tests were asked for.
#[test]
#[ignore = "a part of another"]
fn the_process_that_finds_a_driver() {
    let mut word = String::new();
    std::io::stdin().read_to_string(&mut word).unwrap();
    if !word.is_empty() {
        println!("{}", cuda::driver().unwrap_err());
    }
}

/// Without a machine there is nothing to do: all ignored tests were asked for.
#[test]
#[ignore = "a part of another"]
fn the_process_on_a_faulty_machine() {
    let mut machine = String::new();
    std::io::stdin().read_to_string(&mut machine).unwrap();
    if machine.is_empty() {
        return;
    }
    simulation::attach(&machine, 0, 0).unwrap();
    if let Err(err) = everything() {
        println!("{err}");
    }
}

/// Makes each call once at least, up to the first that fails.
fn everything() -> Result<(), Box<dyn Error>> {
    let devices = cuda::driver()?.devices()?;
    let (near, far) = (devices[0], devices[1]);
    near.name()?;
    near.uuid()?;
    near.pci_bus_id()?;
    near.total_memory()?;
    near.can_access_peer(far)?;
    near.has_native_atomics(far)?;
    let (context, peer) = (Context::retain(near)?, Context::retain(far)?);
    context.enable_peer_access(&peer)?;
    context.free_memory()?;
    let size = Bytes::mib(1);
    let memory = Buffer::to_share(&context, size)?;
    memory.ipc_handle()?;
    // The simulated machine has none.
    memory.dma_buf().map(drop).or_else(|err| match err.to_string().contains("(801)") {
        true => Ok(()),
        false => Err(err),
    })?;
    let shared = SharedBuffer::create(&context, size, &[&peer])?;
    let opened = SharedBuffer::open(&context, shared.export()?, &[])?;
    let mut multicast = Multicast::create(&context, size, 2, Sharing::Host)?;
    multicast.handle()?;
    multicast.add(&context)?;
    multicast.add(&peer)?;
    multicast.bind(&context)?;
    multicast.bind(&peer)?;
    multicast.map()?;
    let pinned = HostMemory::new(&context, size)?;
    let registered = Registered::new(&context, Segment::create(size)?)?;
    let kernels = Kernels::load(&context)?;
    let (stream, event) = (Stream::new(&context)?, Event::new(&context)?);
    stream.set(memory.all(), 1)?;
    stream.copy(pinned.all(), memory.all())?;
    stream.record(&event)?;
    stream.wait(&event)?;
    let word = registered.slice(Bytes::new(0), Bytes::new(4));
    stream.write_value(word, 1)?;
    stream.wait_value(word, 1)?;
    kernels.fill(&stream, opened.slice(Bytes::new(0), size), 1)?;
    let library = nccl::Library::load(None)?;
    nccl::Graph::capture(library, &[&stream], 0, |_, _| Ok(()))?.launch()?;
    stream.synchronize(PATIENCE)?;
    // GPUs before Hopper need it.
    context.flush_rdma_writes()?;
    event.elapsed_since(&event)?;
    event.is_reached()?;
    Ok(())
}
