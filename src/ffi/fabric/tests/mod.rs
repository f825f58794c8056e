//! Against real libraries: the system's, and that of a wheel, which is much newer.

mod one_process;
mod two_processes;

use std::{
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    ffi::{CallError, host::HostBuffer},
    units::Bytes,
};

/// After this long a test has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two libraries in one process count their endpoints in shared memory from 0 each, and so give
/// them the same names: the tests open them in turn.
static SHM: Mutex<()> = Mutex::new(());

fn libraries() -> [&'static Library; 2] {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let wheel = target.join("mpich/lib/mpich/libfabric.so.1");
    [None, Some(wheel.as_path())].map(|path| {
        Library::load(path).unwrap_or_else(|err| panic!("{err}; scripts/test installs it"))
    })
}

/// What each library offers on this machine by way of TCP.
fn tcp_offers() -> Vec<Info> {
    let wanted = [(0, "tcp;ofi_rxm"), (1, "tcp"), (1, "tcp;ofi_rxm")];
    wanted.map(|(library, provider)| offer(libraries()[library], provider, "lo")).into()
}

/// What each library offers on this machine, by way of TCP and of shared memory.
fn offers() -> Vec<Info> {
    let mut all = tcp_offers();
    all.extend(libraries().map(|library| offer(library, "shm", "shm")));
    all
}

fn offer(library: &'static Library, provider: &str, domain: &str) -> Info {
    let query = Query { provider: Some(provider), domain: Some(domain), ..Query::default() };
    library.offers(&query).unwrap().remove(0)
}

/// An endpoint, memory of it, and the way to its peer.
struct Side {
    endpoint: Endpoint,
    region: Region,
    peer: Peer,
    other: RemoteRegion,
}

impl Side {
    fn remote(&self, offset: Bytes) -> Remote {
        self.other.at(self.peer, offset)
    }

    fn local(&self, offset: Bytes, size: Bytes) -> Slice {
        self.region.all().slice(offset, size)
    }

    fn contents(&self, offset: Bytes, size: Bytes) -> Vec<u8> {
        let mut bytes = vec![0; size.to_len().unwrap()];
        self.region.read(offset, &mut bytes);
        bytes
    }
}

fn open(info: &Info) -> Endpoint {
    Endpoint::open(&Domain::open(info).unwrap()).unwrap()
}

fn memory(size: Bytes) -> Memory {
    Memory::Host(HostBuffer::new(size).unwrap())
}

/// Bytes that repeat themselves nowhere: eight at a time count up.
fn pattern(size: Bytes) -> Vec<u8> {
    let mut bytes = vec![0; size.to_len().unwrap()];
    for (index, word) in (1_u64..).zip(bytes.chunks_mut(8)) {
        let value = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_ne_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
    bytes
}

const ZERO: Bytes = Bytes::new(0);

#[test]
fn an_absent_library_and_one_that_is_another_are_sentences_that_say_what_to_do() {
    let absent = Library::load(Some(Path::new("/absent/libfabric.so.1"))).unwrap_err();
    assert_eq!(
        absent.to_string(),
        "/absent/libfabric.so.1: cannot open shared object file: No such file or directory: this \
         needs libfabric: install it (libfabric1 on Debian and Ubuntu, the EFA installer on AWS) \
         or give --fabric-lib"
    );
    let other = Library::load(Some(Path::new("libc.so.6"))).unwrap_err();
    assert_eq!(
        other.to_string(),
        "libc.so.6 has no fi_getinfo of FABRIC_1.3: this needs libfabric 1.17 or newer"
    );
}

#[test]
fn the_file_and_the_version_that_were_loaded_are_told() {
    let [system, wheel] = libraries();
    assert!(wheel.path.ends_with("lib/mpich/libfabric.so.1"), "{wheel:?}");
    assert!(system.path.is_absolute() && system.path != wheel.path, "{system:?}");
    assert!(wheel.version().starts_with("2.") && wheel.has_dma_buf(), "{wheel:?}");
    assert_eq!(system.has_dma_buf(), !["1.17", "1.18", "1.19"].contains(&&*system.version()));
}

#[test]
fn an_offer_says_what_the_provider_is_and_can() {
    for info in tcp_offers() {
        let facts = info.facts();
        assert_eq!((facts.domain.as_str(), facts.mr_mode.as_str()), ("lo", ""));
        let layered = facts.provider.ends_with(";ofi_rxm");
        assert_eq!(facts.protocol, if layered { "FI_PROTO_RXM" } else { "FI_PROTO_XNET" });
        assert_eq!(facts.cq_data_size, Bytes::new(8));
        assert!(facts.caps.contains("FI_REMOTE_WRITE"), "{facts:?}");
        assert_eq!(facts.threading, "FI_THREAD_DOMAIN");
        assert_eq!(facts.data_progress, "FI_PROGRESS_MANUAL");
        assert!(facts.msg_order.contains("FI_ORDER_RMA_WAW"), "{facts:?}");
        assert_eq!(facts.max_order_waw_size, Bytes::new(u64::MAX));
    }
    for library in libraries() {
        let shm = offer(library, "shm", "shm");
        let facts = shm.facts();
        assert_eq!(
            (facts.protocol.as_str(), facts.mr_mode.as_str()),
            ("FI_PROTO_SHM", "FI_MR_VIRT_ADDR")
        );
        assert_eq!(facts.max_order_waw_size, ZERO);
    }
}

#[test]
fn only_what_was_asked_for_is_offered_and_nothing_twice() {
    for library in libraries() {
        let query = Query { provider: Some("tcp"), domain: Some("lo"), ..Query::default() };
        let offers = library.offers(&query).unwrap();
        for (index, info) in offers.iter().enumerate() {
            assert_eq!(info.facts().domain, "lo");
            assert!(info.facts().provider.starts_with("tcp"));
            assert!(offers[..index].iter().all(|other| other.facts() != info.facts()), "{info}");
        }
        let fabrics: Vec<&str> = offers.iter().map(|info| info.facts().fabric.as_str()).collect();
        assert!(fabrics.contains(&"127.0.0.1/32"), "{fabrics:?}");
        let query = Query { fabric: Some("127.0.0.1/32"), ..query };
        let offers = library.offers(&query).unwrap();
        assert!(!offers.is_empty());
        assert!(offers.iter().all(|info| info.facts().fabric == "127.0.0.1/32"));

        let query = Query { provider: Some("absent"), ..Query::default() };
        assert!(library.offers(&query).unwrap().is_empty());
        let query = Query { provider: Some("t\0cp"), ..Query::default() };
        let err = library.offers(&query).unwrap_err().to_string();
        assert!(err.starts_with("fi_getinfo(t\0cp) failed: ") && err.contains("nul byte"), "{err}");
    }
}

/// Offsets and sizes that a C compiler gives for the headers of 1.20 on machines of 64 bits.
#[test]
fn what_the_headers_have_added_lies_where_c_has_it() {
    use super::grown::{fi_cq_err_entry, fi_mr_attr, fi_mr_dmabuf};
    use std::mem::offset_of;
    assert_eq!(offset_of!(fi_mr_attr, iov_count), 8);
    assert_eq!(offset_of!(fi_mr_attr, requested_key), 32);
    assert_eq!(offset_of!(fi_mr_attr, iface), 64);
    assert_eq!(offset_of!(fi_mr_attr, device), 72);
    assert_eq!(offset_of!(fi_mr_attr, hmem_data), 80);
    assert_eq!(size_of::<fi_mr_attr>(), 88);
    assert_eq!(offset_of!(fi_mr_dmabuf, base_addr), 24);
    assert_eq!(size_of::<fi_mr_dmabuf>(), 32);
    assert_eq!(offset_of!(fi_cq_err_entry, err), 56);
    assert_eq!(offset_of!(fi_cq_err_entry, src_addr), 80);
    assert_eq!(size_of::<fi_cq_err_entry>(), 88);
}
