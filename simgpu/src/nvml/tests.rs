use std::{
    ffi::{CStr, CString},
    mem, ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use libc::c_ulong;
use nvml_wrapper_sys::bindings::{
    self, field_id as field, nvmlDevice_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfoV_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
};

use super::{codes::*, device::*, fields::*, health::*, links::*, *};
use crate::{machine::Throttle, state::Traffic};

/// What the rest of the library tells NVML, by the test that runs.
pub(super) mod simulated {
    use std::sync::Mutex;

    use crate::{machine::Machine, state::Traffic};

    /// What a test says.
    #[derive(Clone, Copy)]
    pub(in crate::nvml) struct Told {
        pub machine: Option<&'static Machine>,
        pub traffic: Traffic,
        pub memory_used: u64,
        pub clock_share: f64,
        pub failing: Option<(&'static str, u32)>,
    }

    pub(in crate::nvml) const NOTHING: Told = Told {
        machine: None,
        traffic: Traffic {
            nvlink_tx_bytes: 0,
            nvlink_rx_bytes: 0,
            pcie_tx_bytes: 0,
            pcie_rx_bytes: 0,
        },
        memory_used: 0,
        clock_share: 1.0,
        failing: None,
    };

    pub(in crate::nvml) static TOLD: Mutex<Told> = Mutex::new(NOTHING);

    pub(in crate::nvml) fn machine() -> Option<&'static Machine> {
        TOLD.lock().unwrap().machine
    }

    pub(in crate::nvml) fn traffic(_gpu: u32) -> Traffic {
        TOLD.lock().unwrap().traffic
    }

    pub(in crate::nvml) fn memory_used(_gpu: u32) -> u64 {
        TOLD.lock().unwrap().memory_used
    }

    pub(in crate::nvml) fn clock_share(_gpu: u32) -> f64 {
        TOLD.lock().unwrap().clock_share
    }

    pub(in crate::nvml) fn check(name: &str) -> Option<u32> {
        let failing = TOLD.lock().unwrap().failing;
        failing.filter(|&(failing, _)| failing == name).map(|(_, code)| code)
    }
}

use simulated::{NOTHING, TOLD, Told};

/// Calls a function of NVML.
macro_rules! nvml {
    ($name:ident($($argument:expr),*)) => {
        // SAFETY: the tests pass null, or pointers to what the call is about.
        unsafe { $name($($argument),*) }
    };
}

pub(super) use nvml;

/// NVML on a machine, initialised; one at a time.
pub(super) struct Session(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Session {
    fn with(told: Told) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let session = Self(ONE.lock().unwrap_or_else(PoisonError::into_inner));
        *TOLD.lock().unwrap() = told;
        session
    }

    pub(super) fn of(machine: Machine) -> Self {
        let session = Self::with(Told { machine: Some(Box::leak(Box::new(machine))), ..NOTHING });
        assert_eq!(nvml!(nvmlInit_v2()), SUCCESS);
        session
    }

    fn on(instance: &str) -> Self {
        Self::of(crate::machine::load(instance).unwrap())
    }

    /// On an instance with some of it changed.
    fn on_changed(instance: &str, change: impl FnOnce(&mut Machine)) -> Self {
        let mut machine = crate::machine::load(instance).unwrap();
        change(&mut machine);
        Self::of(machine)
    }

    pub(super) fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut TOLD.lock().unwrap());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        while nvml!(nvmlShutdown()) == SUCCESS {}
        *TOLD.lock().unwrap() = NOTHING;
    }
}

/// What a call with one result writes, or the code that it answers.
pub(super) fn asked<T: Copy>(call: impl FnOnce(*mut T) -> nvmlReturn_t) -> Answer<T> {
    // SAFETY: all that is asked for here is numbers and handles, which may be zeros.
    let mut value: T = unsafe { mem::zeroed() };
    match call(&raw mut value) {
        SUCCESS => Ok(value),
        code => Err(code),
    }
}

/// The text that a call writes into a buffer of this length.
pub(super) fn text(
    length: u32,
    call: impl FnOnce(*mut c_char, c_uint) -> nvmlReturn_t,
) -> Answer<String> {
    let mut buffer: Vec<c_char> = vec![1; length as usize + 1];
    match call(buffer.as_mut_ptr(), length) {
        SUCCESS => {
            assert_eq!(buffer[length as usize], 1, "written past its end");
            Ok(read(&buffer))
        }
        code => Err(code),
    }
}

/// A text that ends with a zero.
fn read(buffer: &[c_char]) -> String {
    let bytes = buffer.iter().take_while(|&&byte| byte != 0).map(|byte| byte.to_ne_bytes()[0]);
    String::from_utf8(bytes.collect()).unwrap()
}

pub(super) fn gpu(ordinal: u32) -> nvmlDevice_t {
    asked(|device| nvml!(nvmlDeviceGetHandleByIndex_v2(ordinal, device))).unwrap()
}

/// The value of a field, as an unsigned number.
pub(super) fn field_value(device: nvmlDevice_t, id: u32, scope: u32) -> Answer<u64> {
    // SAFETY: numbers, and a union of numbers.
    let mut value: nvmlFieldValue_t = unsafe { mem::zeroed() };
    (value.fieldId, value.scopeId) = (id, scope);
    assert_eq!(nvml!(nvmlDeviceGetFieldValues(device, 1, &raw mut value)), SUCCESS);
    assert_eq!((value.fieldId, value.scopeId), (id, scope));
    assert!(value.timestamp > 1_600_000_000_000_000);
    match (value.nvmlReturn, value.valueType) {
        (SUCCESS, bindings::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT) => {
            // SAFETY: of the type that was just looked at.
            let number = unsafe { value.value.uiVal };
            Ok(u64::from(number))
        }
        (SUCCESS, bindings::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG) => {
            // SAFETY: of the type that was just looked at.
            let number = unsafe { value.value.ullVal };
            Ok(number)
        }
        (SUCCESS, other) => panic!("type {other}"),
        (code, _) => Err(code),
    }
}

#[test]
fn without_a_machine_there_is_no_driver() {
    let _session = Session::with(NOTHING);
    assert_eq!(nvml!(nvmlInit_v2()), DRIVER_NOT_LOADED);
    assert_eq!(asked(|count| nvml!(nvmlDeviceGetCount_v2(count))), Err(UNINITIALIZED));
}

#[test]
fn each_initialisation_is_undone_by_one_shutdown() {
    let _session = Session::on("g5.12xlarge");
    assert_eq!(nvml!(nvmlInitWithFlags(0)), SUCCESS);
    assert_eq!(nvml!(nvmlShutdown()), SUCCESS);
    assert_eq!(asked(|count| nvml!(nvmlDeviceGetCount_v2(count))), Ok(4));
    assert_eq!(nvml!(nvmlShutdown()), SUCCESS);
    let device = asked(|device| nvml!(nvmlDeviceGetHandleByIndex_v2(0, device)));
    assert_eq!(device, Err(UNINITIALIZED));
    assert_eq!(nvml!(nvmlShutdown()), UNINITIALIZED);
}

#[test]
fn versions_follow_from_the_driver() {
    let _session = Session::on("p5.48xlarge");
    let driver = text(80, |at, length| nvml!(nvmlSystemGetDriverVersion(at, length)));
    assert_eq!(driver.unwrap(), "570.00.00");
    let nvml = text(80, |at, length| nvml!(nvmlSystemGetNVMLVersion(at, length)));
    assert_eq!(nvml.unwrap(), "12.570.00.00");
    let cuda = asked(|version| nvml!(nvmlSystemGetCudaDriverVersion_v2(version)));
    assert_eq!(cuda, Ok(12_080));
}

#[test]
fn a_gpu_is_found_by_index_uuid_and_pci_address() {
    let _session = Session::on("p4d.24xlarge");
    for ordinal in 0..8 {
        let device = gpu(ordinal);
        assert_eq!(asked(|index| nvml!(nvmlDeviceGetIndex(device, index))), Ok(ordinal));
        let uuid = text(80, |at, length| nvml!(nvmlDeviceGetUUID(device, at, length))).unwrap();
        assert_eq!((uuid.len(), &uuid[..4]), (40, "GPU-"));
        let uuid = CString::new(uuid).unwrap();
        let found = asked(|at| nvml!(nvmlDeviceGetHandleByUUID(uuid.as_ptr(), at)));
        assert_eq!(found, Ok(device));
        let pci: nvmlPciInfo_t = asked(|at| nvml!(nvmlDeviceGetPciInfo_v3(device, at))).unwrap();
        assert_eq!((pci.domain, pci.bus, pci.device), (0, 0x10 + ordinal, 0));
        assert_eq!(pci.pciDeviceId, 0x20b0_10de);
        assert_eq!(read(&pci.busId), format!("00000000:{:02X}:00.0", 0x10 + ordinal));
        assert_eq!(read(&pci.busIdLegacy), format!("0000:{:02X}:00.0", 0x10 + ordinal));
        for address in [read(&pci.busId), read(&pci.busIdLegacy), read(&pci.busId)[9..].to_owned()]
        {
            let address = CString::new(address.to_lowercase()).unwrap();
            let found = asked(|at| nvml!(nvmlDeviceGetHandleByPciBusId_v2(address.as_ptr(), at)));
            assert_eq!(found, Ok(device), "{address:?}");
        }
    }
    let by_pci = |text: &CStr| {
        asked(|device| nvml!(nvmlDeviceGetHandleByPciBusId_v2(text.as_ptr(), device)))
    };
    assert_eq!(by_pci(c"0000:99:00.0"), Err(NOT_FOUND));
    assert_eq!(by_pci(c"0000:10:00.1"), Err(INVALID_ARGUMENT));
    assert_eq!(by_pci(c"first"), Err(INVALID_ARGUMENT));
    let unknown = asked(|at| nvml!(nvmlDeviceGetHandleByUUID(c"GPU-0".as_ptr(), at)));
    assert_eq!(unknown, Err(NOT_FOUND));
}

#[test]
fn bad_arguments_are_refused() {
    let _session = Session::on("p5.48xlarge");
    let null = ptr::null_mut();
    let index = asked(|device| nvml!(nvmlDeviceGetHandleByIndex_v2(8, device)));
    assert_eq!(index, Err(INVALID_ARGUMENT));
    for bad in [null, ptr::without_provenance_mut(9), ptr::without_provenance_mut(usize::MAX)] {
        let mut index = 0;
        assert_eq!(nvml!(nvmlDeviceGetIndex(bad, &raw mut index)), INVALID_ARGUMENT);
    }
    assert_eq!(nvml!(nvmlDeviceGetIndex(gpu(0), ptr::null_mut())), INVALID_ARGUMENT);
    assert_eq!(nvml!(nvmlDeviceGetName(gpu(0), ptr::null_mut(), 96)), INVALID_ARGUMENT);
    let by_uuid = asked(|device| nvml!(nvmlDeviceGetHandleByUUID(ptr::null(), device)));
    assert_eq!(by_uuid, Err(INVALID_ARGUMENT));
    let none = nvml!(nvmlDeviceGetFieldValues(gpu(0), 1, ptr::null_mut()));
    assert_eq!(none, INVALID_ARGUMENT);
    let clock = asked(|mhz: *mut u32| nvml!(nvmlDeviceGetClockInfo(gpu(0), 9, mhz)));
    assert_eq!(clock, Err(INVALID_ARGUMENT));
}

#[test]
fn a_text_needs_room_for_itself_and_a_zero() {
    let _session = Session::on("p5.48xlarge");
    let name = |length| text(length, |at, length| nvml!(nvmlDeviceGetName(gpu(0), at, length)));
    assert_eq!(name(22).as_deref(), Ok("NVIDIA H100 80GB HBM3"));
    assert_eq!(name(21), Err(INSUFFICIENT_SIZE));
}

#[test]
fn memory_is_what_the_machine_has_less_what_is_allocated() {
    let session = Session::on("p5.48xlarge");
    session.tell(|told| told.memory_used = 5 << 30);
    let memory: nvmlMemory_t = asked(|at| nvml!(nvmlDeviceGetMemoryInfo(gpu(0), at))).unwrap();
    assert_eq!((memory.total, memory.used, memory.free), (80 << 30, 5 << 30, 75 << 30));
    let versioned = |version| {
        asked(|at: *mut nvmlMemory_v2_t| {
            // SAFETY: `asked` gives a place for one.
            unsafe { (*at).version = version };
            nvml!(nvmlDeviceGetMemoryInfo_v2(gpu(0), at))
        })
    };
    let memory = versioned(structure_version::<nvmlMemory_v2_t>(2)).unwrap();
    assert_eq!((memory.total, memory.reserved, memory.free), (80 << 30, 0, 75 << 30));
    assert_eq!(versioned(0).err(), Some(ARGUMENT_VERSION_MISMATCH));
}

#[test]
fn a_pcie_link_below_what_it_could_be_is_told() {
    let _session = Session::on_changed("g6e.12xlarge", |machine| {
        (machine.gpus[1].pcie_generation, machine.gpus[1].pcie_lanes) = ((3, 4), (8, 16));
    });
    let device = gpu(1);
    for (value, expected) in [
        (asked(|at| nvml!(nvmlDeviceGetCurrPcieLinkGeneration(device, at))), 3),
        (asked(|at| nvml!(nvmlDeviceGetMaxPcieLinkGeneration(device, at))), 4),
        (asked(|at| nvml!(nvmlDeviceGetCurrPcieLinkWidth(device, at))), 8),
        (asked(|at| nvml!(nvmlDeviceGetMaxPcieLinkWidth(device, at))), 16),
        (asked(|at| nvml!(nvmlDeviceGetPcieReplayCounter(device, at))), 0),
    ] {
        assert_eq!(value, Ok(expected));
    }
}

#[test]
fn what_holds_clocks_down_is_told_and_halves_them() {
    let session = Session::on_changed("p5.48xlarge", |machine| {
        machine.gpus[2].throttle = vec![Throttle::HwSlowdown, Throttle::HwPowerBrake];
    });
    for (ordinal, reasons, sm_mhz) in [(1, 0, 1980), (2, 8 | 128, 990)] {
        let device = gpu(ordinal);
        let older = asked(|at| nvml!(nvmlDeviceGetCurrentClocksThrottleReasons(device, at)));
        let newer = asked(|at| nvml!(nvmlDeviceGetCurrentClocksEventReasons(device, at)));
        assert_eq!((older, newer), (Ok(reasons), Ok(reasons)));
        let now = |kind| asked(|at| nvml!(nvmlDeviceGetClockInfo(device, kind, at)));
        let most = |kind| asked(|at| nvml!(nvmlDeviceGetMaxClockInfo(device, kind, at)));
        let [graphics, sm, memory, video] = [0, 1, 2, 3];
        assert_eq!((now(sm), now(graphics), now(memory)), (Ok(sm_mhz), Ok(sm_mhz), Ok(2619)));
        assert_eq!((most(sm), most(memory)), (Ok(1980), Ok(2619)));
        assert_eq!(now(video), Err(NOT_SUPPORTED));
    }
    session.tell(|told| told.clock_share = 0.25);
    let now = |kind| asked(|at| nvml!(nvmlDeviceGetClockInfo(gpu(0), kind, at)));
    assert_eq!([now(1), now(2)], [Ok(495), Ok(655)]);
}

#[test]
fn links_to_a_switch_are_told_with_those_that_are_down() {
    let _session =
        Session::on_changed("p4d.24xlarge", |machine| machine.gpus[0].nvlinks.down = vec![4]);
    let device = gpu(0);
    let state = |link| asked(|at| nvml!(nvmlDeviceGetNvLinkState(device, link, at)));
    let up: Vec<Answer<u32>> = (0..12).map(state).collect();
    let expected: Vec<Answer<u32>> = (0..12).map(|link| Ok(u32::from(link != 4))).collect();
    assert_eq!(up, expected);
    assert_eq!((state(12), state(18)), (Err(INVALID_ARGUMENT), Err(INVALID_ARGUMENT)));
    // NVML numbers versions by itself: 5 stands for 3.1, which A100 have.
    assert_eq!(asked(|at| nvml!(nvmlDeviceGetNvLinkVersion(device, 0, at))), Ok(5));
    let can = |link, capability| {
        asked(|at| nvml!(nvmlDeviceGetNvLinkCapability(device, link, capability, at)))
    };
    assert_eq!((can(0, 0), can(4, 0), can(0, 1)), (Ok(1), Ok(0), Ok(0)));
    assert_eq!(can(0, 6), Err(INVALID_ARGUMENT));
    let kind = |link| asked(|at| nvml!(nvmlDeviceGetNvLinkRemoteDeviceType(device, link, at)));
    assert_eq!((kind(0), kind(4)), (Ok(2), Err(NOT_SUPPORTED)));
    let count = field_value(device, field::NVML_FI_DEV_NVLINK_LINK_COUNT, 0);
    assert_eq!(count, Ok(12));
}

#[test]
fn links_between_gpus_end_in_the_gpu_that_topology_says() {
    let _session = Session::on("p3.16xlarge");
    let end = |link| {
        let pci = asked(|at| nvml!(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu(0), link, at)));
        pci.map(|pci: nvmlPciInfo_t| pci.bus - 0x10)
    };
    let ends: Vec<Answer<u32>> = (0..6).map(end).collect();
    assert_eq!(ends, [1, 2, 3, 3, 4, 4].map(Ok));
    let kind = asked(|at| nvml!(nvmlDeviceGetNvLinkRemoteDeviceType(gpu(0), 5, at)));
    assert_eq!(kind, Ok(0));
}

#[test]
fn a_gpu_without_nvlink_says_so() {
    let _session = Session::on("g5.12xlarge");
    let state = asked(|at| nvml!(nvmlDeviceGetNvLinkState(gpu(0), 0, at)));
    assert_eq!(state, Err(NOT_SUPPORTED));
    let sent = field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
    assert_eq!(field_value(gpu(0), sent, u32::MAX), Err(NOT_SUPPORTED));
    assert_eq!(field_value(gpu(0), field::NVML_FI_DEV_NVLINK_LINK_COUNT, 0), Ok(0));
}

#[test]
fn counters_give_the_traffic_of_all_links_and_of_each() {
    let session =
        Session::on_changed("p4d.24xlarge", |machine| machine.gpus[0].nvlinks.down = vec![0]);
    session.tell(|told| {
        told.traffic = Traffic {
            nvlink_tx_bytes: (11 << 20) + 3,
            nvlink_rx_bytes: 22 << 10,
            pcie_tx_bytes: 70,
            pcie_rx_bytes: 80,
        };
    });
    let value = |id, scope| field_value(gpu(0), id, scope);
    let [tx, rx] = [
        field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    ];
    assert_eq!((value(tx, u32::MAX), value(rx, u32::MAX)), (Ok(11 << 10), Ok(22)));
    assert_eq!((value(tx, 0), value(tx, 1), value(rx, 11)), (Ok(0), Ok(1 << 10), Ok(2)));
    let sent = field::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES;
    let each: Vec<u64> = (0..12).map(|link| value(sent, link).unwrap()).collect();
    assert_eq!(each.iter().sum::<u64>(), (11 << 20) + 3);
    assert_eq!((each[0], each[3], each[4]), (0, (1 << 20) + 1, 1 << 20));
    assert_eq!(value(field::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0), Ok(70));
    assert_eq!(value(field::NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0), Ok(80));
    assert_eq!(value(field::NVML_FI_DEV_NVLINK_GET_STATE, 0), Ok(0));
    assert_eq!(value(field::NVML_FI_DEV_NVLINK_GET_STATE, 1), Ok(1));
    assert_eq!(value(field::NVML_FI_DEV_NVLINK_GET_SPEED, 1), Ok(25_000));
    assert_eq!(value(field::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0), Ok(25_000));
    assert_eq!(value(field::NVML_FI_DEV_NVLINK_GET_VERSION, 1), Ok(5));
    assert_eq!(value(field::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, 1), Err(NOT_SUPPORTED));
}

#[test]
fn of_many_fields_each_has_its_own_code() {
    let _session = Session::on("p5.48xlarge");
    let ids = [field::NVML_FI_DEV_NVLINK_LINK_COUNT, 9999, field::NVML_FI_DEV_PCIE_REPLAY_COUNTER];
    // SAFETY: numbers, and unions of numbers.
    let mut values: [nvmlFieldValue_t; 3] = unsafe { mem::zeroed() };
    for (value, id) in values.iter_mut().zip(ids) {
        value.fieldId = id;
    }
    assert_eq!(nvml!(nvmlDeviceGetFieldValues(gpu(0), 3, values.as_mut_ptr())), SUCCESS);
    assert_eq!(values.map(|value| value.nvmlReturn), [SUCCESS, NOT_SUPPORTED, SUCCESS]);
    assert_eq!(values.map(|value| value.fieldId), ids);
    for count in [0, -1] {
        let code = nvml!(nvmlDeviceGetFieldValues(gpu(0), count, values.as_mut_ptr()));
        assert_eq!(code, INVALID_ARGUMENT);
    }
}

#[test]
fn peer_status_is_told_by_direction_and_by_what_is_asked() {
    let _session = Session::on_changed("p3.16xlarge", |machine| {
        // GPU 1 may no longer read GPU 0, nor GPU 0 write to GPU 1.
        let pair = machine.pairs.iter_mut().find(|pair| (pair.source, pair.target) == (0, 1));
        let pair = pair.unwrap();
        (pair.read_allowed, pair.write_allowed) = (false, false);
    });
    let status = |from, to, index| {
        asked(|at| nvml!(nvmlDeviceGetP2PStatus(gpu(from), gpu(to), index, at))).unwrap()
    };
    let [read, write, nvlink, atomics, pcie] = [0, 1, 2, 3, 4];
    let [ok, refused] = [0, 5];
    assert_eq!((status(0, 1, read), status(1, 0, read)), (ok, refused));
    assert_eq!((status(0, 1, write), status(1, 0, write)), (refused, ok));
    assert_eq!((status(0, 2, nvlink), status(0, 5, nvlink)), (ok, refused));
    assert_eq!((status(0, 1, atomics), status(1, 0, atomics)), (refused, ok));
    assert_eq!((status(0, 2, pcie), status(0, 5, pcie), status(0, 5, read)), (refused, refused, 5));
    let itself = asked(|at| nvml!(nvmlDeviceGetP2PStatus(gpu(3), gpu(3), read, at)));
    assert_eq!(itself, Err(INVALID_ARGUMENT));
    let unknown = asked(|at| nvml!(nvmlDeviceGetP2PStatus(gpu(3), gpu(4), 5, at)));
    assert_eq!(unknown, Err(INVALID_ARGUMENT));
}

#[test]
fn peers_over_pcie_are_told_as_such() {
    let _session = Session::on("g7e.12xlarge");
    let status = |index| asked(|at| nvml!(nvmlDeviceGetP2PStatus(gpu(0), gpu(1), index, at)));
    assert_eq!([0, 1, 2, 3, 4].map(status), [Ok(0), Ok(0), Ok(5), Ok(5), Ok(0)]);
}

#[test]
fn topology_tells_switch_node_and_system_apart() {
    let _session = Session::on("p4d.24xlarge");
    let level =
        |a, b| asked(|at| nvml!(nvmlDeviceGetTopologyCommonAncestor(gpu(a), gpu(b), at))).unwrap();
    assert_eq!([level(2, 3), level(1, 2), level(3, 4), level(5, 5)], [10, 40, 50, 0]);
}

#[test]
fn the_nearest_numa_node_is_a_bit_in_a_set() {
    let _session = Session::on_changed("p5.48xlarge", |machine| machine.gpus[7].numa_node = 70);
    let nodes = |ordinal: u32, words: u32, scope: u32| {
        let mut set: Vec<c_ulong> = vec![7; 2];
        let at = set.as_mut_ptr();
        match nvml!(nvmlDeviceGetMemoryAffinity(gpu(ordinal), words, at, scope)) {
            SUCCESS => Ok(set),
            code => Err(code),
        }
    };
    assert_eq!(nodes(0, 2, 0), Ok(vec![1, 0]));
    assert_eq!(nodes(4, 1, 0), Ok(vec![2, 7]), "one word is written, the other left");
    assert_eq!(nodes(7, 2, 1), Ok(vec![0, 1 << 6]));
    assert_eq!(nodes(7, 1, 0), Err(INSUFFICIENT_SIZE));
    assert_eq!(nodes(0, 1, 2), Err(INVALID_ARGUMENT));
}

#[test]
fn the_nearest_processors_are_bits_in_a_set() {
    let _session = Session::on("p4d.24xlarge");
    let cpus = |ordinal: u32, words: u32| {
        let mut set: Vec<c_ulong> = vec![7; 2];
        match nvml!(nvmlDeviceGetCpuAffinity(gpu(ordinal), words, set.as_mut_ptr())) {
            SUCCESS => Ok(set),
            code => Err(code),
        }
    };
    // 0-23,48-71 and 24-47,72-95
    assert_eq!(cpus(3, 2), Ok(vec![0xffff_0000_00ff_ffff, 0xff]));
    assert_eq!(cpus(4, 2), Ok(vec![0x0000_ffff_ff00_0000, 0xffff_ff00]));
    assert_eq!(cpus(4, 1), Err(INSUFFICIENT_SIZE));
    assert_eq!(cpus(4, 0), Err(INVALID_ARGUMENT));
}

#[test]
fn what_is_not_simulated_is_not_supported() {
    let _session = Session::on("p5.48xlarge");
    let device = gpu(0);
    for answer in [
        asked(|at| nvml!(nvmlDeviceGetNumaNodeId(device, at))),
        asked(|at| nvml!(nvmlDeviceGetPcieThroughput(device, 0, at))),
    ] {
        assert_eq!(answer, Err::<u32, _>(NOT_SUPPORTED));
    }
}

#[test]
fn modes_are_those_of_an_undivided_gpu_with_ecc() {
    let modes = |of: &dyn Fn(*mut u32, *mut u32) -> nvmlReturn_t| {
        let (mut current, mut pending) = (7, 7);
        let code = of(&raw mut current, &raw mut pending);
        (code, current, pending)
    };
    for (instance, mig) in
        [("p5.48xlarge", (SUCCESS, 0, 0)), ("g5.12xlarge", (NOT_SUPPORTED, 7, 7))]
    {
        let _session = Session::on(instance);
        let device = gpu(0);
        assert_eq!(modes(&|now, then| nvml!(nvmlDeviceGetMigMode(device, now, then))), mig);
        let ecc = modes(&|now, then| nvml!(nvmlDeviceGetEccMode(device, now, then)));
        assert_eq!(ecc, (SUCCESS, 1, 1));
        let errors = |kind| asked(|at| nvml!(nvmlDeviceGetTotalEccErrors(device, kind, 0, at)));
        assert_eq!((errors(1), errors(2)), (Ok(0), Err(INVALID_ARGUMENT)));
        let capability = modes(&|major, minor| {
            nvml!(nvmlDeviceGetCudaComputeCapability(device, major.cast(), minor.cast()))
        });
        let expected = if instance == "p5.48xlarge" { (SUCCESS, 9, 0) } else { (SUCCESS, 8, 6) };
        assert_eq!(capability, expected);
    }
}

/// State, health mask and summary of a GPU's fabric.
fn fabric(ordinal: u32, version: u32) -> Answer<(u8, u32, u8)> {
    let info = asked(|at: *mut nvmlGpuFabricInfoV_t| {
        // SAFETY: `asked` gives a place for one.
        unsafe { (*at).version = version };
        nvml!(nvmlDeviceGetGpuFabricInfoV(gpu(ordinal), at))
    });
    info.map(|info| (info.state, info.healthMask, info.healthSummary))
}

#[test]
fn the_fabric_is_complete_on_hopper_and_degraded_where_a_link_is_down() {
    let [older, newer] = [
        structure_version::<nvmlGpuFabricInfo_v2_t>(2),
        structure_version::<nvmlGpuFabricInfoV_t>(3),
    ];
    {
        let _session =
            Session::on_changed("p5.48xlarge", |machine| machine.gpus[1].nvlinks.down = vec![0]);
        assert_eq!((fabric(0, newer), fabric(1, newer)), (Ok((3, 2, 1)), Ok((3, 1, 3))));
        assert_eq!(fabric(1, older), Ok((3, 1, 0)), "which has no summary");
        assert_eq!(fabric(0, 1), Err(ARGUMENT_VERSION_MISMATCH));
    }
    let _session = Session::on("p4d.24xlarge");
    assert_eq!(fabric(0, newer), Ok((0, 0, 0)));
}

#[test]
fn a_fault_is_answered_in_place_of_the_call_whatever_its_version() {
    let session = Session::on("p5.48xlarge");
    session.tell(|told| told.failing = Some(("nvmlDeviceGetPciInfo", 15)));
    let pci: Answer<nvmlPciInfo_t> = asked(|at| nvml!(nvmlDeviceGetPciInfo_v3(gpu(0), at)));
    assert_eq!(pci.err(), Some(15));
    session.tell(|told| told.failing = Some(("nvmlDeviceGetGpuFabricInfoV", 999)));
    assert_eq!(fabric(0, structure_version::<nvmlGpuFabricInfoV_t>(3)), Err(999));
}

#[test]
fn every_code_has_a_sentence() {
    let mut sentences = Vec::new();
    for code in [SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, 12_345] {
        // SAFETY: a text that stays for ever.
        sentences.push(unsafe { CStr::from_ptr(nvmlErrorString(code)) }.to_str().unwrap());
    }
    assert_eq!(sentences.len(), 6);
    assert_eq!((sentences[1], sentences[5]), ("NVML is not initialised", "unknown error"));
}
