use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    ffi::{CallError, host::HostBuffer},
    units::Bytes,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The system's library and that of a wheel, which is much newer.
fn libraries() -> [&'static Library; 2] {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let wheel = target.join("mpich/lib/mpich/libfabric.so.1");
    [None, Some(wheel.as_path())].map(|path| {
        Library::load(path).unwrap_or_else(|err| panic!("{err}; scripts/test installs it"))
    })
}

/// The offers that the tests use: of each library, by way of TCP and of shared memory.
fn offers() -> Vec<Info> {
    let mut found = Vec::new();
    for library in libraries() {
        for (provider, domain) in [("tcp", "lo"), ("tcp;ofi_rxm", "lo"), ("shm", "shm")] {
            found.push(offer(library, provider, domain));
        }
    }
    found
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
}

fn memory(size: Bytes) -> Memory {
    Memory::Host(HostBuffer::new(size).unwrap())
}

/// Two endpoints that know each other, each in a domain of its own, as two processes have them.
fn pair(info: &Info, size: Bytes) -> [Side; 2] {
    let mut ends = [0, 1].map(|_| {
        let mut endpoint = Endpoint::open(&Domain::open(info).unwrap()).unwrap();
        let region = endpoint.register(memory(size)).unwrap();
        (endpoint, region)
    });
    let known = [1, 0].map(|other: usize| {
        let (endpoint, region) = &ends[other];
        (endpoint.address().unwrap(), region.remote())
    });
    let peers = [0, 1].map(|side: usize| ends[side].0.insert(&known[side].0).unwrap());
    let mut known = known.into_iter().zip(peers);
    ends.map(|(endpoint, region)| {
        let ((_, other), peer) = known.next().unwrap();
        Side { endpoint, region, peer, other }
    })
}

/// Polls both sides until `done` says so of what came, by side.
fn poll_until(
    sides: &mut [Side; 2],
    done: impl Fn(&[Vec<Completion>; 2]) -> bool,
) -> [Vec<Completion>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    let begin = Instant::now();
    while !done(&all) {
        assert!(begin.elapsed() < PATIENCE, "came in vain: {all:?}");
        for (side, all) in sides.iter_mut().zip(&mut all) {
            let mut some = [Completion::default(); 8];
            let count = side.endpoint.poll(&mut some).unwrap();
            all.extend(&some[..count]);
        }
    }
    all
}

/// Asks again until the operation is under way.
fn post(sides: &mut [Side; 2], mut ask: impl FnMut(&mut [Side; 2]) -> Result<Posted, CallError>) {
    let begin = Instant::now();
    while ask(sides).unwrap() == Posted::Again {
        assert!(begin.elapsed() < PATIENCE, "no room for an operation");
        for side in &mut *sides {
            let none = side.endpoint.poll(&mut []).unwrap();
            assert_eq!(none, 0);
        }
    }
}

/// Bytes that repeat themselves nowhere: eight at a time count up.
fn pattern(size: Bytes) -> Vec<u8> {
    let mut bytes = vec![0; size.to_len().unwrap()];
    for (index, word) in (1_u64..).zip(bytes.chunks_mut(8)) {
        word.copy_from_slice(
            &index.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_ne_bytes()[..word.len()],
        );
    }
    bytes
}

fn contents(region: &Region, offset: Bytes, size: Bytes) -> Vec<u8> {
    let mut bytes = vec![0; size.to_len().unwrap()];
    region.read(offset, &mut bytes);
    bytes
}

const MARGIN: Bytes = Bytes::new(24);

/// What is before and behind the `size` bytes at `MARGIN` is as it was, and they are `expected`.
fn assert_holds(region: &Region, expected: &[u8], what: &str) {
    let size = Bytes::of_len(expected.len());
    let around = [(Bytes::new(0), MARGIN), (MARGIN.plus(size), MARGIN)];
    for (offset, size) in around {
        assert!(contents(region, offset, size).iter().all(|&byte| byte == 0xEE), "{what}: margin");
    }
    assert!(contents(region, MARGIN, size) == expected, "{what}: data");
}

#[test]
fn every_byte_arrives_by_write_read_and_send_from_8_bytes_to_64_mib() {
    let sizes = [Bytes::new(8), Bytes::new(4097), Bytes::kib(64), Bytes::mib(1), Bytes::mib(64)];
    let offers = offers();
    for size in sizes {
        let all = pattern(size.plus(Bytes::new(8)));
        let room = size.plus(MARGIN.times(2));
        let clear = vec![0xEE; room.to_len().unwrap()];
        for info in &offers {
            let mut sides = pair(info, room);
            for (round, kind) in ["write", "read", "send"].into_iter().enumerate() {
                let what = format!("{kind} of {size} by {info}");
                let data = &all[round..all.len() - 8 + round];
                let (source, target) = if kind == "read" { (1, 0) } else { (0, 1) };
                sides[target].region.write(Bytes::new(0), &clear);
                sides[source].region.write(MARGIN, data);
                move_once(&mut sides, kind, size);
                assert_holds(&sides[target].region, data, &what);
            }
        }
    }
}

/// Moves `size` bytes at `MARGIN` from or to the first side, and looks at what is said of it.
fn move_once(sides: &mut [Side; 2], kind: &str, size: Bytes) {
    let receives = kind == "send";
    if receives {
        let local = sides[1].region.all().slice(MARGIN, size);
        post(sides, |sides| sides[1].endpoint.receive(local, 77));
    }
    post(sides, |[near, _]| {
        let local = near.region.all().slice(MARGIN, size);
        let (remote, peer) = (near.remote(MARGIN), near.peer);
        match kind {
            "write" => near.endpoint.write(local, remote, 5, Flags::NONE.delivery()),
            "read" => near.endpoint.read(local, remote, 5, Flags::NONE),
            _ => near.endpoint.send(local, peer, 5, Flags::NONE),
        }
    });
    assert_eq!(sides[0].endpoint.operations(), 1);
    let came =
        poll_until(sides, |came| came[0].len() == 1 && came[1].len() == usize::from(receives));
    assert_eq!(came[0][0].context, Some(5));
    assert_eq!(sides[0].endpoint.operations(), 0);
    if receives {
        let length = size.to_len().unwrap();
        assert_eq!(came[1][0], Completion { context: Some(77), data: None, length });
    }
}
