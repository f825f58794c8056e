use std::path::PathBuf;

use super::*;

fn given(name: &str, value: &str) -> Setting {
    Setting { name: name.to_owned(), value: value.to_owned(), origin: Origin::Given }
}

/// A library of this version that knows all that the catalogue has for it.
fn library(version: [u32; 3]) -> Known {
    let version = Version(version);
    let lives = |name: &&str| {
        let Lifetime { since, until } = Catalogue::built_in().lifetime(name).unwrap();
        since.is_none_or(|since| since <= version) && until.is_none_or(|until| version <= until)
    };
    let names = Catalogue::built_in().variables().filter(lives).map(str::to_owned).collect();
    Known { version, names }
}

fn found(name: &str, value: &str) -> Option<Finding> {
    finding(&given(name, value), Some(&library([2, 30, 7])))
}

#[test]
fn a_value_can_hold_the_number_of_the_rank() {
    let pair = |value: &str| ("NCCL_HOSTID".to_owned(), value.to_owned());
    let request = NcclRequest { variables: vec![pair("{rank}-of-{rank}")], allows_unknown: true };
    let own = request.of_rank(Rank(12));
    assert_eq!(own, NcclRequest { variables: vec![pair("12-of-12")], allows_unknown: true });
}

#[test]
fn every_entry_of_the_catalogue_is_read_and_names_its_source() {
    let Catalogue { nccl_env, nccl_env_other, .. } = Catalogue::built_in();
    assert!(nccl_env.len() > 60 && nccl_env_other.len() > 150);
    for (name, variable) in nccl_env {
        assert!(!variable.src.is_empty(), "{name}");
        assert!(!nccl_env_other.contains_key(name), "{name} is there twice");
    }
}

#[test]
fn what_nccl_reads_as_it_is_written_is_well() {
    for (name, value) in [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_P2P_DISABLE", "0x1"),
        ("NCCL_P2P_DISABLE", ""),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "5"),
        ("NCCL_ALGO", "ring,TREE"),
        ("NCCL_ALGO", "^NVLS,NVLSTree"),
        ("NCCL_ALGO", "ring;allreduce:tree,nvls;Broadcast:ring"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "INIT,Graph"),
        ("NCCL_CTA_POLICY", "efficiency|ZERO"),
        ("NCCL_BUFFSIZE", "8388608"),
        ("NCCL_MAX_CTAS", "64"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_SET_THREAD_NAME", "true"),
        ("NCCL_NET", "Libfabric"),
        ("FI_PROVIDER", "efa"),
        ("FI_EFA_USE_DEVICE_RDMA", "0"),
        ("FI_UNHEARD_OF", "1"),
        ("OFI_NCCL_UNHEARD_OF", "1"),
    ] {
        assert_eq!(found(name, value), None, "{name}={value}");
    }
}

#[test]
fn what_nccl_does_not_read_as_it_is_written_is_refused_with_what_to_write() {
    for (name, value, parts) in [
        ("NCCL_P2P_DISABLE", "true", ["reads it as 0", "write 0 or 1"]),
        ("NCCL_P2P_DISABLE", "2", ["no meaning of its own for 2", "write 0 or 1"]),
        ("NCCL_SHM_DISABLE", "yes", ["reads it as 0", "write 0 or 1"]),
        ("NCCL_P2P_LEVEL", "nvl", ["ignores it", "NVL"]),
        ("NCCL_P2P_LEVEL", "NODE", ["ignores it", "PHB or SYS, in capitals"]),
        ("NCCL_ALGO", "ring,foo", ["`foo`", "refuses every communicator"]),
        ("NCCL_ALGO", "allreduce:ring;tree", ["only the first list", "refuses every"]),
        ("NCCL_ALGO", "sum:ring", ["`sum` is no function", "AllReduce"]),
        ("NCCL_PROTO", "LL, Simple", ["` Simple`", "LL,LL128,Simple"]),
        ("NCCL_DEBUG", "verbose", ["ignores it", "INFO"]),
        ("NCCL_DEBUG_SUBSYS", "INIT,FOO", ["`FOO`", "ignores the whole list"]),
        ("NCCL_BUFFSIZE", "8M", ["reads it as 8", "write a number"]),
        ("NCCL_MAX_CTAS", "65", ["for 65", "from 1 to 64"]),
        ("NCCL_BUFFSIZE", "99999999999999999999", ["too large", "write a number"]),
        ("NCCL_IB_TIMEOUT", "long", ["reads it as 0", "write a number"]),
        ("NCCL_SET_THREAD_NAME", "on", ["ignores it", "write 0 or 1"]),
        ("NCCL_SOCKET_FAMILY", "af_inet", ["ignores it", "in capitals"]),
        ("FI_EFA_MTU_SIZE", "4096", ["aborts", "leave it out"]),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "1", ["any more", "2.30.4 was the last"]),
    ] {
        let finding = found(name, value).unwrap_or_else(|| panic!("{name}={value} is well"));
        assert_eq!(finding.gravity, Gravity::Wrong, "{}", finding.sentence);
        assert!(finding.is_refused(&NcclRequest::default()));
        for part in parts {
            assert!(finding.sentence.contains(part), "{part}: {}", finding.sentence);
        }
        assert!(finding.sentence.starts_with(&format!("{name}={value} (--nccl-env): ")));
    }
}

#[test]
fn a_name_that_nobody_knows_is_refused_unless_it_is_allowed() {
    let allowing = NcclRequest { allows_unknown: true, ..NcclRequest::default() };
    for (name, part) in [
        ("NCCL_P2P_DISABEL", "was NCCL_P2P_DISABLE meant?"),
        ("NCCL_NCHANNELS_PER_PEER", "was NCCL_NCHANNELS_PER_NET_PEER meant?"),
        ("NCCL_P2P_DIRECT_READ", "NCCL_P2P_READ_ENABLE says who asks"),
        ("NCCL_P2P_DIRECT_WRITE", "NCCL_P2P_READ_ENABLE says who asks"),
        ("NCCL_WHATEVER_THIS_MAY_BE", "leave it out"),
    ] {
        for known in [Some(library([2, 30, 7])), None] {
            let finding = finding(&given(name, "1"), known.as_ref()).unwrap();
            assert_eq!(finding.gravity, Gravity::Unknown);
            assert!(finding.sentence.contains(part), "{}", finding.sentence);
            assert!(finding.is_refused(&NcclRequest::default()) && !finding.is_refused(&allowing));
        }
    }
}

#[test]
fn versions_decide_what_is_read() {
    let old = library([2, 21, 5]);
    let of = |name: &str| finding(&given(name, "1"), Some(&old)).unwrap().sentence;
    assert!(of("NCCL_RAS_ENABLE").contains("2.21.5 does not read it yet, 2.24.3 was the first"));
    assert_eq!(finding(&given("NCCL_SHM_USE_CUDA_MEMCPY", "1"), Some(&old)), None);
    assert_eq!(finding(&given("NCCL_SHM_USE_CUDA_MEMCPY", "1"), None), None);
    // What the library knows is known, whatever the catalogue says.
    let names = vec!["NCCL_OF_TOMORROW".to_owned()];
    let tomorrow = Known { version: Version([3, 0, 0]), names };
    assert_eq!(finding(&given("NCCL_OF_TOMORROW", "x"), Some(&tomorrow)), None);
    let gone = finding(&given("NCCL_DEBUG", "INFO"), Some(&tomorrow)).unwrap();
    assert!(gone.sentence.contains("this NCCL 3.0.0 does not read it"), "{}", gone.sentence);
}

#[test]
fn what_may_not_be_wanted_is_said_and_not_refused() {
    for (name, value, part) in [
        ("NCCL_PROTO", "LL128", "can corrupt data"),
        ("NCCL_PROTO", "Simple;allreduce:ll128,ll", "can corrupt data"),
        ("NCCL_MAX_NCHANNELS", "4", "NCCL_MAX_CTAS takes its place"),
        ("FI_EFA_USE_DEVICE_RDMA", "1", "aborts on devices without RDMA"),
    ] {
        let finding = found(name, value).unwrap();
        assert_eq!(finding.gravity, Gravity::Doubtful);
        assert!(finding.sentence.contains(part), "{}", finding.sentence);
        assert!(!finding.is_refused(&NcclRequest::default()));
    }
}

#[test]
fn what_is_set_first_holds() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let file = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
    let settings = settings(
        &[pair("NCCL_ALGO", "ring")],
        [pair("NCCL_PROTO", "LL"), pair("NCCL_ALGO", "tree"), pair("HOME", "/home/me")],
        &[
            file("/home/me/.nccl.conf", "#NCCL_DEBUG=INFO\nNCCL_PROTO=Simple\nNCCL_BUFFSIZE=1\n"),
            file("/etc/nccl.conf", "NCCL_BUFFSIZE=2\nno sign\nPATH=/bin\n NCCL_DEBUG=WARN\r\n"),
        ],
    );
    let shown: Vec<String> = settings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "NCCL_ALGO=ring (--nccl-env)",
            "NCCL_PROTO=LL (from the environment)",
            "NCCL_BUFFSIZE=1 (from /home/me/.nccl.conf)",
            // No setting is called so: it may be anything.
            " NCCL_DEBUG (from /etc/nccl.conf)",
        ]
    );
    // The blank belongs to the name: NCCL would look for ` NCCL_DEBUG`.
    let blank = finding(&settings[3], None).unwrap();
    assert!(blank.sentence.contains("was NCCL_DEBUG meant?"), "{}", blank.sentence);
}
