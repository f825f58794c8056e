//! Holds the exported calls to the signatures that callers have, and to their documentation.

use std::{collections::BTreeSet, fs};

use nvml_wrapper_sys::bindings::NvmlLib;

use super::{device::*, events::*, fields::*, health::*, links::*, *};

/// Hands the names of all calls to a macro.
macro_rules! all_calls {
    ($given:ident) => {
        $given!(
            nvmlInit_v2
            nvmlInitWithFlags
            nvmlShutdown
            nvmlErrorString
            nvmlSystemGetDriverVersion
            nvmlSystemGetNVMLVersion
            nvmlSystemGetConfComputeState
            nvmlSystemGetCudaDriverVersion_v2
            nvmlDeviceGetCount_v2
            nvmlDeviceGetHandleByIndex_v2
            nvmlDeviceGetHandleByUUID
            nvmlDeviceGetHandleByPciBusId_v2
            nvmlDeviceGetName
            nvmlDeviceGetUUID
            nvmlDeviceGetIndex
            nvmlDeviceGetPciInfo_v3
            nvmlDeviceGetMemoryInfo
            nvmlDeviceGetMemoryInfo_v2
            nvmlDeviceGetCurrPcieLinkGeneration
            nvmlDeviceGetMaxPcieLinkGeneration
            nvmlDeviceGetCurrPcieLinkWidth
            nvmlDeviceGetMaxPcieLinkWidth
            nvmlDeviceGetPcieThroughput
            nvmlDeviceGetClockInfo
            nvmlDeviceGetMaxClockInfo
            nvmlDeviceGetCurrentClocksThrottleReasons
            nvmlDeviceGetCurrentClocksEventReasons
            nvmlDeviceGetTemperature
            nvmlDeviceGetPowerUsage
            nvmlDeviceGetEnforcedPowerLimit
            nvmlDeviceGetCudaComputeCapability
            nvmlDeviceGetNumaNodeId
            nvmlDeviceGetMemoryAffinity
            nvmlDeviceGetCpuAffinity
            nvmlDeviceGetPowerManagementDefaultLimit
            nvmlDeviceGetComputeMode
            nvmlDeviceGetPersistenceMode
            nvmlDeviceGetVbiosVersion
            nvmlDeviceGetInforomImageVersion
            nvmlDeviceGetMigMode
            nvmlDeviceGetEccMode
            nvmlDeviceGetTotalEccErrors
            nvmlDeviceGetPcieReplayCounter
            nvmlEventSetCreate
            nvmlDeviceGetSupportedEventTypes
            nvmlDeviceRegisterEvents
            nvmlEventSetWait_v2
            nvmlEventSetFree
            nvmlDeviceGetNvLinkState
            nvmlDeviceGetNvLinkVersion
            nvmlDeviceGetNvLinkCapability
            nvmlDeviceGetNvLinkRemotePciInfo_v2
            nvmlDeviceGetNvLinkRemoteDeviceType
            nvmlDeviceGetFieldValues
            nvmlDeviceGetP2PStatus
            nvmlDeviceGetTopologyCommonAncestor
            nvmlDeviceGetGpuFabricInfoV
        )
    };
}

/// Compiles only if every call has the signature that callers have of it.
#[expect(dead_code, reason = "the compiler's answer is all that is asked for")]
fn signatures(lib: &NvmlLib) {
    fn same<T, E>(_theirs: &Result<T, E>, _ours: T) {}
    macro_rules! same {
        ($($name:ident)*) => { $( same(&lib.$name, $name as _); )* };
    }
    all_calls!(same);
}

/// The calls in a text.
fn calls(text: &str, before: &str) -> BTreeSet<String> {
    let calls = text.split(before).skip(1).map(|rest| {
        let name = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
        name.unwrap().to_owned()
    });
    calls.filter(|name| name.starts_with("nvml")).collect()
}

#[test]
fn every_call_is_held_to_its_signature_and_documented() {
    macro_rules! names {
        ($($name:ident)*) => { [$( stringify!($name) ),*] };
    }
    let held: BTreeSet<String> = all_calls!(names).map(str::to_owned).into();
    let sources = [
        include_str!("mod.rs"),
        include_str!("device.rs"),
        include_str!("events.rs"),
        include_str!("fields.rs"),
        include_str!("health.rs"),
        include_str!("links.rs"),
    ];
    assert_eq!(calls(&sources.concat(), "fn "), held);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/simulation.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("\n## NVML\n").nth(1).unwrap().split("\n## ").next().unwrap();
    assert_eq!(calls(section, "`"), held);
}
