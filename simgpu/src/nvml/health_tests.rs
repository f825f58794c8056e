//! What NVML tells of GPUs that are not well, by the machine's file and as their links carry data.

use nvml_wrapper_sys::bindings::{
    self, field_id as field, nvmlEventData_t, nvmlEventSet_t, nvmlGpuFabricInfoV_t,
};

use super::{
    codes::*,
    device::{nvmlDeviceGetIndex, structure_version},
    events::*,
    health::*,
    links::*,
    tests::{Session, asked, field_value, gpu, nvml, text},
    *,
};
use crate::{machine::of_file, state::Traffic};

/// A machine of this file, whose GPUs' links have carried nothing yet.
fn session(file: &str) -> Session {
    Session::of(of_file(&format!("schema = 1\n{file}")))
}

/// So much went out over NVLink, and so much came in over PCIe.
fn carry(session: &Session, nvlink_mib: u64, pcie_mib: u64) {
    session.tell(|told| {
        told.traffic = Traffic {
            nvlink_tx_bytes: nvlink_mib << 20,
            pcie_rx_bytes: pcie_mib << 20,
            ..Traffic::default()
        };
    });
}

#[test]
fn what_a_file_says_of_a_gpu_is_told() {
    let _session = session(
        "from = 'p5.48xlarge'\n[[gpu]]\nordinals = [1]\nmig = true\necc_errors = 3\n\
         ecc_corrected_errors = 4\ntemperature_c = 91\npower_w = 500\npower_limit_w = 600\n\
         power_limit_default_w = 750\ncompute_mode = 'prohibited'\npersistence = false\n\
         vbios = '96.00.1'\ninforom = 'G520.2'\n\
         fabric = 'in-progress'\nfabric_status = 15\nclique = 7\n\
         cluster_uuid = '8f0c1a52-0000-4000-8000-0000000000ff'\n[[gpu]]\nordinals = [2]\n\
         ecc = false\n",
    );
    let [well, ill, plain] = [0, 1, 2].map(gpu);
    let mig = |device| {
        let (mut now, mut then) = (9, 9);
        assert_eq!(nvml!(nvmlDeviceGetMigMode(device, &raw mut now, &raw mut then)), SUCCESS);
        (now, then)
    };
    assert_eq!((mig(well), mig(ill)), ((0, 0), (1, 1)));
    let ecc = |device, kind| asked(|at| nvml!(nvmlDeviceGetTotalEccErrors(device, kind, 0, at)));
    assert_eq!((ecc(well, 1), ecc(ill, 0), ecc(ill, 1)), (Ok(0), Ok(4), Ok(3)));
    assert_eq!(ecc(plain, 1), Err(NOT_SUPPORTED));
    assert_eq!(field_value(plain, field::NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0), Err(NOT_SUPPORTED));
    assert_eq!(field_value(ill, field::NVML_FI_DEV_ECC_DBE_AGG_TOTAL, 0), Ok(3));
    assert_eq!(asked(|at| nvml!(nvmlDeviceGetTemperature(ill, 0, at))), Ok(91));
    assert_eq!(asked(|at| nvml!(nvmlDeviceGetPowerUsage(ill, at))), Ok(500_000));
    assert_eq!(asked(|at| nvml!(nvmlDeviceGetEnforcedPowerLimit(ill, at))), Ok(600_000));
    let built = asked(|at| nvml!(nvmlDeviceGetPowerManagementDefaultLimit(ill, at)));
    assert_eq!(built, Ok(750_000));
    let modes = [well, ill].map(|device| {
        let mode = asked(|at| nvml!(nvmlDeviceGetComputeMode(device, at)));
        (mode, asked(|at| nvml!(nvmlDeviceGetPersistenceMode(device, at))))
    });
    assert_eq!(modes, [(Ok(0), Ok(1)), (Ok(2), Ok(0))]);
    let vbios = text(32, |at, length| nvml!(nvmlDeviceGetVbiosVersion(ill, at, length)));
    let inforom = text(16, |at, length| nvml!(nvmlDeviceGetInforomImageVersion(ill, at, length)));
    assert_eq!((vbios.as_deref(), inforom.as_deref()), (Ok("96.00.1"), Ok("G520.2")));
    let fabric = |device| {
        asked(|at: *mut nvmlGpuFabricInfoV_t| {
            // SAFETY: `asked` gives a place for one.
            unsafe { (*at).version = structure_version::<nvmlGpuFabricInfoV_t>(3) };
            nvml!(nvmlDeviceGetGpuFabricInfoV(device, at))
        })
        .unwrap()
    };
    let told = fabric(ill);
    assert_eq!((told.state, told.status, told.cliqueId), (2, 15, 7));
    assert_eq!((told.clusterUuid[0], told.clusterUuid[15]), (0x8f, 0xff));
    assert_eq!((fabric(well).state, fabric(well).cliqueId), (3, 0));
}

#[test]
fn gpus_of_a_workstation_s_kind_are_cut_into_instances_too() {
    let _session = session("from = 'g7e.12xlarge'\n[[gpu]]\nordinals = [1]\nmig = true\n");
    let mode = |ordinal| {
        let mut pending = 9;
        asked(|now| nvml!(nvmlDeviceGetMigMode(gpu(ordinal), now, &raw mut pending)))
    };
    assert_eq!((mode(0), mode(1)), (Ok(0), Ok(1)));
}

#[test]
fn errors_are_counted_once_so_much_was_carried() {
    let session = session(
        "from = 'p4d.24xlarge'\n[[gpu]]\nordinals = [0]\nnvlinks_down = [0]\n\
         [[fault.health]]\ngpu = 0\nwhat = 'nvlink-crc'\nafter_mib = 10\ncount = 5\n\
         [[fault.health]]\ngpu = 0\nwhat = 'pcie-replay'\nafter_mib = 20\n\
         [[fault.health]]\ngpu = 0\nwhat = 'ecc-uncorrected'\nafter_mib = 20\ncount = 2\n",
    );
    let counted = |ordinal| {
        let device = gpu(ordinal);
        [
            field_value(device, field::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0),
            field_value(device, field::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 1),
            field_value(device, field::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 2),
            field_value(device, field::NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0),
            field_value(device, field::NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0),
            field_value(device, field::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0),
        ]
        .map(Answer::unwrap)
    };
    carry(&session, 9, 0);
    assert_eq!(counted(0), [0; 6]);
    carry(&session, 9, 1);
    assert_eq!(counted(0), [5, 5, 0, 0, 0, 0]);
    carry(&session, 15, 5);
    assert_eq!(counted(0), [5, 5, 0, 1, 2, 0]);
    assert_eq!(asked(|at| nvml!(nvmlDeviceGetPcieReplayCounter(gpu(0), at))), Ok(1));
    assert_eq!(counted(1), [0; 6]);
}

#[test]
fn errors_are_counted_up_to_the_end_of_the_counter() {
    let most = "[[fault.health]]\nwhat = 'ecc-corrected'\ncount = 9223372036854775807\n";
    let _session = session(&most.repeat(3));
    let counted = asked(|at| nvml!(nvmlDeviceGetTotalEccErrors(gpu(0), 0, 0, at)));
    assert_eq!(counted, Ok(u64::MAX));
}

#[test]
fn clocks_are_held_down_for_a_while() {
    let session = session(
        "from = 'p5.48xlarge'\n[[fault.health]]\ngpu = 2\nwhat = 'throttle'\n\
         reason = 'hw-thermal-slowdown'\nafter_mib = 8\nfor_mib = 4\n",
    );
    let now = |ordinal| {
        let device = gpu(ordinal);
        let reasons = asked(|at| nvml!(nvmlDeviceGetCurrentClocksEventReasons(device, at)));
        let clock = asked(|at| nvml!(nvmlDeviceGetClockInfo(device, 1, at)));
        let power = field_value(device, field::NVML_FI_DEV_PERF_POLICY_POWER, 0);
        assert_eq!(power, Ok(0));
        let heat = field_value(device, field::NVML_FI_DEV_PERF_POLICY_THERMAL, 0);
        (reasons.unwrap(), clock.unwrap(), heat.unwrap())
    };
    for (carried_mib, expected) in
        [(7, (0, 1980, 0)), (9, (64, 990, 1 << 20)), (12, (0, 1980, 4 << 20))]
    {
        carry(&session, carried_mib, 0);
        assert_eq!(now(2), expected, "{carried_mib}");
        assert_eq!(now(1), (0, 1980, 0));
    }
}

#[test]
fn counters_are_hidden_wrap_and_begin_again() {
    let sent = field::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
    let received = field::NVML_FI_DEV_PCIE_COUNT_RX_BYTES;
    let session = session(
        "from = 'p5.48xlarge'\n[[gpu]]\nordinals = [0]\nnvlink_counters = false\n\
         pcie_counter_bits = 0\n[[gpu]]\nordinals = [1]\npcie_counter_bits = 32\n\
         [[fault.health]]\ngpu = 2\nwhat = 'counters-restart'\nafter_mib = 100\n",
    );
    carry(&session, 99, 4097);
    assert_eq!(field_value(gpu(0), sent, u32::MAX), Err(NOT_SUPPORTED));
    assert_eq!(field_value(gpu(0), sent, 0), Err(NOT_SUPPORTED));
    assert_eq!(field_value(gpu(0), received, 0), Err(NOT_SUPPORTED));
    assert_eq!(field_value(gpu(1), received, 0), Ok(1 << 20));
    carry(&session, 99, 0);
    assert_eq!(field_value(gpu(2), sent, u32::MAX), Ok(99 << 10));
    carry(&session, 103, 0);
    assert_eq!(field_value(gpu(2), sent, u32::MAX), Ok(3 << 10));
}

#[test]
fn a_lost_gpu_answers_nothing_more() {
    let session = session("[[fault.health]]\ngpu = 1\nwhat = 'lost'\nafter_mib = 1\n");
    let [well, ill] = [0, 1].map(gpu);
    let index = |device| asked(|at| nvml!(nvmlDeviceGetIndex(device, at)));
    assert_eq!(index(ill), Ok(1));
    carry(&session, 0, 1);
    assert_eq!((index(well), index(ill)), (Ok(0), Err(GPU_IS_LOST)));
}

#[test]
fn an_error_that_comes_later_but_is_described_earlier_is_told_as_well() {
    let session = session(
        "[[fault.health]]\nwhat = 'xid'\nxid = 63\nafter_mib = 6000\n[[fault.health]]\n\
         what = 'xid'\nxid = 79\nafter_mib = 1\n",
    );
    let set: nvmlEventSet_t = asked(|set| nvml!(nvmlEventSetCreate(set))).unwrap();
    assert_eq!(nvml!(nvmlDeviceRegisterEvents(gpu(0), XID, set)), SUCCESS);
    let wait = || {
        let event: Answer<nvmlEventData_t> = asked(|at| nvml!(nvmlEventSetWait_v2(set, at, 0)));
        event.map(|event| event.eventData)
    };
    carry(&session, 1, 0);
    assert_eq!([wait(), wait()], [Ok(79), Err(TIMEOUT)]);
    carry(&session, 6000, 0);
    assert_eq!([wait(), wait()], [Ok(63), Err(TIMEOUT)]);
    assert_eq!(nvml!(nvmlEventSetFree(set)), SUCCESS);
}

#[test]
fn an_error_is_told_once_in_each_set_from_its_registration_on() {
    let session = session(
        "[[fault.health]]\nwhat = 'xid'\nxid = 63\n[[fault.health]]\ngpu = 1\nwhat = 'xid'\n\
         xid = 79\nafter_mib = 1\n",
    );
    let sets = [0, 1].map(|_| {
        let set: nvmlEventSet_t = asked(|set| nvml!(nvmlEventSetCreate(set))).unwrap();
        for device in [0, 1].map(gpu) {
            assert_eq!(nvml!(nvmlDeviceRegisterEvents(device, XID, set)), SUCCESS);
        }
        set
    });
    let wait = |set| {
        let event: Answer<nvmlEventData_t> = asked(|at| nvml!(nvmlEventSetWait_v2(set, at, 0)));
        event.map(|event| (event.device, event.eventData))
    };
    assert_eq!(sets.map(wait), [Err(TIMEOUT); 2], "what was before is not told");
    carry(&session, 1, 0);
    assert_eq!(sets.map(wait), [Ok((gpu(1), 79)); 2]);
    assert_eq!(sets.map(wait), [Err(TIMEOUT); 2]);
    assert_eq!(asked(|at| nvml!(nvmlDeviceGetSupportedEventTypes(gpu(0), at))), Ok(XID));
    let others = bindings::nvmlEventTypeClock.into();
    assert_eq!(nvml!(nvmlDeviceRegisterEvents(gpu(0), others, sets[0])), NOT_SUPPORTED);
    assert_eq!(nvml!(nvmlEventSetFree(sets[0])), SUCCESS);
    assert_eq!(nvml!(nvmlEventSetFree(sets[0])), INVALID_ARGUMENT);
    assert_eq!(wait(sets[0]), Err(INVALID_ARGUMENT));
    assert_eq!(nvml!(nvmlEventSetFree(std::ptr::null_mut())), INVALID_ARGUMENT);
    assert_eq!(nvml!(nvmlEventSetFree(sets[1])), SUCCESS);
}
