//! Calls that fail on purpose, and what a process says of itself when it ends.

use super::*;
use crate::{
    cuda::abi::*,
    machine::{CallFault, FailingCall},
};

fn failing(name: &str, after: u64, code: u32, always: bool) -> FailingCall {
    let what = CallFault::Refused { code };
    FailingCall { name: name.to_owned(), process: None, after, what, always }
}

#[test]
fn a_call_fails_once_or_always_after_so_many() {
    alone(|| {
        let mut machine = machine();
        machine.faults.calls = vec![
            failing("cuMemAlloc", 2, 2, false),
            failing("cuEventCreate", 1, 999, true),
            failing("cuInit", 0, 802, false),
        ];
        crate::state::begin(machine, 0).unwrap();
        assert_eq!(cuInit(0), 802);
        contexts(4);
        let codes: Vec<u32> = (0..5).map(|_| cuMemAlloc_v2(Out::to(&mut 0), 64)).collect();
        assert_eq!(codes, [0, 0, 2, 0, 0]);
        let codes = [(); 3].map(|()| cuEventCreate(Out::to(&mut 0), 0));
        assert_eq!(codes, [0, 999, 999]);
    });
}

#[test]
fn a_fault_of_a_call_that_there_is_not_is_refused() {
    alone(|| {
        let mut machine = machine();
        machine.faults.calls = vec![failing("cuMemAloc", 0, 2, false)];
        let sentence = "fault.call: no call is named `cuMemAloc`: the nearest name is `cuMemAlloc`";
        assert_eq!(crate::state::begin(machine.clone(), 0).unwrap_err(), sentence);
        for name in ["cuMemcpyPeerAsync", "nvmlInit", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetName"]
        {
            machine.faults.calls[0].name = name.to_owned();
            assert_eq!(crate::faults::unknown_call(&machine.faults.calls), None, "{name}");
        }
    });
}

#[test]
fn a_process_reports_its_calls_and_what_it_did_not_give_back() {
    alone(|| {
        let mut machine = machine();
        let path = std::env::temp_dir().join(format!("simgpu-report-{}", parent_of_the_test()));
        machine.report = Some(path.to_str().unwrap().to_owned());
        begin(machine);
        let (there, _left) = (allocate(1000), allocate(500));
        ok(cuMemFree_v2(there));
        let _left = (stream(), event(), pinned(64));
        let gone = stream();
        ok(cuStreamDestroy_v2(gone));
    });
    if std::env::var(TEST).is_ok() {
        // This is the process that is to report.
        return;
    }
    let path = std::env::temp_dir().join(format!("simgpu-report-{}", parent_of_the_test()));
    let report = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let live = serde_json::json!({
        "contexts": 4, "device_memory": 1, "device_bytes": 500, "host_memory": 1,
        "registered": 0, "streams": 1, "events": 1, "graphs": 0, "modules": 0, "reservations": 0,
        "handles": 0, "ipc": 0, "communicators": 0,
    });
    let lines = report.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    assert_eq!(lines.len(), 2, "a process with symbolic memory and one without");
    for line in lines {
        assert_eq!(line["calls"]["cuMemAlloc"], 2);
        assert_eq!(line["calls"]["cuStreamCreate"], 2);
        assert!(line["pid"].as_u64().unwrap() > 0);
        assert_eq!(line["live"], live);
    }
}

/// The process of the test program, both in it and in the process that it runs a test in.
fn parent_of_the_test() -> u32 {
    match std::env::var(TEST) {
        Ok(_) => std::os::unix::process::parent_id(),
        Err(_) => std::process::id(),
    }
}
