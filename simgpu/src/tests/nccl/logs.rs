//! The library's log, against the expressions with which lines of the real one are recognised.

use super::*;

/// Runs collectives of two ranks with these variables; the lines of the log.
fn logged(variables: &[(&str, &str)], machine: Machine) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.%p");
    let mut all: Vec<(&str, &str)> = vec![
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING"),
        ("NCCL_DEBUG_FILE", path.to_str().unwrap()),
    ];
    all.extend(variables);
    for (name, value) in all {
        // SAFETY: the process of the test has no other thread that reads the environment yet.
        unsafe { std::env::set_var(name, value) };
    }
    let all = Ranks::begin(machine);
    let places = all.allocate(1 << 20);
    good(all.group(|rank| {
        let place = places[rank];
        nccl::ncclAllReduce(place, place, 1000, 7, 0, all.communicators[rank], all.streams[rank])
    }));
    all.synchronize();
    let path = folder.path().join(format!("log.{}", std::process::id()));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// How many lines match an expression, and the first one's parts.
fn matching(lines: &[String], expression: &str) -> (usize, Vec<String>) {
    let expression = regex::Regex::new(expression).unwrap();
    let found: Vec<_> = lines.iter().filter_map(|line| expression.captures(line)).collect();
    let parts = found.first().map_or(Vec::new(), |captures| {
        let parts = captures.iter().skip(1);
        parts.map(|part| part.map_or(String::new(), |part| part.as_str().to_owned())).collect()
    });
    (found.len(), parts)
}

const P2P_DIRECT: &str =
    r"Channel (\d+)/(\d+) : (\d+)\[(\d+)\] -> (\d+)\[(\d+)\] via P2P/direct pointer(/read)?$";
const P2P_CUMEM: &str =
    r"Channel (\d+)/(\d+) : (\d+)\[(\d+)\] -> (\d+)\[(\d+)\] via P2P/(CUMEM|MNNVL)(/read)?(/CE)?$";
const P2P_IPC: &str =
    r"Channel (\d+)/(\d+) : (\d+)\[(\d+)\] -> (\d+)\[(\d+)\] via P2P/IPC(/read)?(/CE)?$";
const SHM: &str =
    r"Channel (\d+) : (\d+)\[(\d+)\] -> (\d+)\[(\d+)\] via SHM/(direct|CE)(?:/(direct|CE))?$";
const NET: &str = r"Channel (\d+)/(\d+) : (\d+)\[(\d+)\] -> (\d+)\[(\d+)\] \[(send|receive)\] via NET/([^/]+)/(\d+)(?:\((\d+)\))?(/GDRDMA)?(\(PCI\))?(/Shared)?$";
const ALGORITHM: &str =
    r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}";
const LAYOUT: &str =
    r"comm (\S+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank (\d+) MNNVL (\d)";
const CHANNELS: &str = r"(\d+) coll channels, (\d+) collnet channels, (\d+) nvls channels, (\d+) p2p channels, (\d+) p2p channels per peer";
const ENV: &str = r"(NCCL_\w+) set by environment to (.*?)\.?$";
const PREFIX: &str = r"^[^:]+:\d+:\d+ \[\d+\] NCCL INFO ";

#[test]
fn a_communicator_of_one_process_uses_pointers() {
    alone(|| {
        let lines = logged(&[], machine_of(2));
        assert_eq!(matching(&lines, PREFIX).0, lines.len(), "{lines:?}");
        assert_eq!(matching(&lines, "NCCL version 2.32.3").0, 1);
        assert_eq!(matching(&lines, LAYOUT).0, 2);
        assert_eq!(matching(&lines, LAYOUT).1[1..], ["0", "2", "1", "2", "0", "0"]);
        let (count, parts) = matching(&lines, P2P_DIRECT);
        assert_eq!(
            (count, &parts[..6]),
            (48, &["00", "0", "0", "0", "1", "1"].map(String::from)[..])
        );
        assert_eq!(matching(&lines, CHANNELS).1, ["24", "24", "16", "24", "2"]);
        assert_eq!(
            matching(&lines, ALGORITHM),
            (1, ["AllReduce", "4000", "RING", "LL", "0", "0"].map(String::from).to_vec())
        );
        let support = r"NVLS multicast support is (not )?available on dev (\d+)";
        assert_eq!(matching(&lines, support), (2, vec![String::new(), "0".to_owned()]));
        assert_eq!(matching(&lines, "Init START").0, 2);
        assert_eq!(matching(&lines, "Init COMPLETE").0, 2);
        assert_eq!(matching(&lines, r"Using network (\S+)").1, ["Socket"]);
        assert_eq!(matching(&lines, r"Connected all rings, use ring PXN (\d) GDR (\d)").0, 2);
        assert_eq!(matching(&lines, r"Check P2P Type isAllDirectP2p 1 directMode 1").0, 2);
    });
}

#[test]
fn variables_change_the_way_and_are_told_of() {
    alone(|| {
        let lines = logged(
            &[("NCCL_P2P_DIRECT_DISABLE", "1"), ("NCCL_P2P_READ_ENABLE", "1")],
            machine_of(2),
        );
        let (count, parts) = matching(&lines, P2P_CUMEM);
        assert_eq!((count, parts[6].as_str(), parts[7].as_str()), (48, "CUMEM", "/read"));
        assert_eq!(matching(&lines, ENV).0, 2);
    });
}

#[test]
fn without_cumem_it_is_ipc() {
    alone(|| {
        let variables = [("NCCL_P2P_DIRECT_DISABLE", "1"), ("NCCL_CUMEM_ENABLE", "0")];
        assert_eq!(matching(&logged(&variables, machine_of(2)), P2P_IPC).0, 48);
    });
}

#[test]
fn without_peer_access_it_is_host_memory() {
    alone(|| {
        let lines = logged(&[("NCCL_P2P_LEVEL", "LOC")], machine_of(2));
        assert_eq!(matching(&lines, SHM).0, 8);
        assert_eq!(matching(&lines, P2P_DIRECT).0, 0);
        let set = matching(&lines, ENV).1;
        assert_eq!(set, ["NCCL_P2P_LEVEL", "LOC"]);
    });
}

#[test]
fn refused_peer_access_is_host_memory_too() {
    alone(|| {
        let mut machine = machine_of(2);
        machine.pairs.iter_mut().for_each(|pair| pair.read_allowed = false);
        assert_eq!(matching(&logged(&[], machine), SHM).0, 8);
    });
}

#[test]
fn without_both_it_is_the_network() {
    alone(|| {
        let variables = [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")];
        let lines = logged(&variables, machine_of(2));
        assert_eq!(matching(&lines, NET).1[6..9], ["send", "Socket", "0"]);
    });
}

#[test]
fn the_switch_reduces_where_it_is_asked_to() {
    alone(|| {
        let lines = logged(&[("NCCL_ALGO", "NVLS")], machine_of(2));
        let used = r"NVLS comm (\S+) headRank (-?\d+) nHeads (\d+) nvlsRanks (\d+) buffSize";
        assert_eq!(matching(&lines, used).1[1..], ["0", "2", "2"]);
        assert_eq!(matching(&lines, ALGORITHM).1[2..4], ["NVLS", "SIMPLE"]);
    });
}

#[test]
fn the_names_of_variables_are_in_the_library() {
    // What asks for the version has them; without a caller it would not be linked here.
    let mut version = 0;
    good(nccl::ncclGetVersion(Out::to(&mut version)));
    assert_eq!(version, 23_203);
    let library = std::env::current_exe().unwrap();
    let bytes = std::fs::read(library).unwrap();
    for name in ["NCCL_P2P_READ_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_IB_GID_INDEX", "NCCL_CTA_POLICY"]
    {
        let delimited = [b"\0", name.as_bytes(), b"\0"].concat();
        assert!(bytes.windows(delimited.len()).any(|window| window == delimited), "{name}");
    }
}
