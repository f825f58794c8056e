//! The plain case as it is in a run: each endpoint in a process of its own.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, Command},
};

use serde::{Serialize, de::DeserializeOwned};

use super::*;

/// Tells the second process which offer it takes, and where the first one listens.
const OFFER: &str = "G2G_TEST_FABRIC_OFFER";
const SOCKET: &str = "G2G_TEST_FABRIC_SOCKET";

/// The way from one process to the other beside the network.
struct Line(UnixStream);

impl Line {
    /// Gives the other process `mine` for what it gives; meanwhile `endpoint` moves on.
    fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        endpoint: &mut Endpoint,
        mine: &T,
    ) -> T {
        let mut message = serde_json::to_vec(mine).unwrap();
        message.push(b'\n');
        self.0.write_all(&message).unwrap();
        let begin = Instant::now();
        let mut theirs = Vec::new();
        while theirs.last() != Some(&b'\n') {
            assert!(begin.elapsed() < PATIENCE, "the other process says nothing");
            assert_eq!(endpoint.poll(&mut []).unwrap(), 0);
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => theirs.push(byte[0]),
                Ok(_) => panic!("the other process has gone"),
                Err(err) => assert_eq!(err.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        serde_json::from_slice(&theirs).unwrap()
    }
}

/// This process's side of a pair.
fn connect(line: &mut Line, info: &Info, size: Bytes) -> Side {
    let mut endpoint = open(info);
    let region = endpoint.register(memory(size)).unwrap();
    let mine = (endpoint.address().unwrap(), region.remote());
    let (address, other) = line.exchange(&mut endpoint, &mine);
    let peer = endpoint.insert(&address).unwrap();
    Side { endpoint, region, peer, other }
}

/// Starts this program again as the other process of `test`, on offer `index`.
fn start(test: &str, index: usize) -> (Child, Line) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let test = format!("ffi::fabric::tests::two_processes::{test}");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--ignored", "--nocapture", "--quiet"])
        .env(OFFER, index.to_string())
        .env(SOCKET, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    (child, Line(stream))
}

/// The offer and the line of a process that was started so.
fn started() -> (Info, Line) {
    let index: usize = std::env::var(OFFER).unwrap().parse().unwrap();
    let stream = UnixStream::connect(std::env::var(SOCKET).unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    (offers().remove(index), Line(stream))
}

fn one(endpoint: &mut Endpoint) -> Completion {
    let begin = Instant::now();
    let mut some = [Completion::default(); 1];
    while endpoint.poll(&mut some).unwrap() == 0 {
        assert!(begin.elapsed() < PATIENCE, "nothing is done");
    }
    some[0]
}

fn post(side: &mut Side, mut ask: impl FnMut(&mut Side) -> Result<Posted, CallError>) {
    let begin = Instant::now();
    while ask(side).unwrap() == Posted::Again {
        assert!(begin.elapsed() < PATIENCE, "no room for an operation");
        assert_eq!(side.endpoint.poll(&mut []).unwrap(), 0);
    }
}

const SIZES: [Bytes; 5] =
    [Bytes::new(8), Bytes::new(4097), Bytes::kib(64), Bytes::mib(1), Bytes::mib(64)];
const MARGIN: Bytes = Bytes::new(24);
const MARK: u8 = 0xEE;
/// What comes along with a write and with a message.
const NOTE: u64 = 0x1234_5678_9ABC_DEF0;

/// How the bytes of one step move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Write,
    WriteAndTell,
    Read,
    Send,
}

const KINDS: [Kind; 4] = [Kind::Write, Kind::WriteAndTell, Kind::Read, Kind::Send];

/// Moves `data` once at `MARGIN`, and checks it where it ends: every byte, and those around.
fn step(line: &mut Line, side: &mut Side, kind: Kind, is_near: bool, data: &[u8]) {
    let size = Bytes::of_len(data.len());
    let is_source = is_near != (kind == Kind::Read);
    if is_source {
        side.region.write(MARGIN, data);
    } else {
        side.region.write(ZERO, &vec![MARK; data.len() + 48]);
        if kind == Kind::Send {
            let local = side.local(MARGIN, size);
            assert_eq!(side.endpoint.receive(local, 77).unwrap(), Posted::Yes);
        }
    }
    line.exchange(&mut side.endpoint, &());
    if is_near {
        post(side, |side| {
            let (local, remote, peer) = (side.local(MARGIN, size), side.remote(MARGIN), side.peer);
            match kind {
                Kind::Write => side.endpoint.write(local, remote, 5, Flags::NONE.delivery()),
                Kind::WriteAndTell => side.endpoint.write(local, remote, 5, Flags::NONE.data(NOTE)),
                Kind::Read => side.endpoint.read(local, remote, 5, Flags::NONE),
                Kind::Send => side.endpoint.send(local, peer, 5, Flags::NONE.data(NOTE)),
            }
        });
        assert_eq!(side.endpoint.operations(), 1);
        assert_eq!(one(&mut side.endpoint).context, Some(5));
        assert_eq!(side.endpoint.operations(), 0);
    } else if kind == Kind::WriteAndTell {
        let told = one(&mut side.endpoint);
        assert_eq!((told.context, told.data), (None, Some(NOTE)));
    } else if kind == Kind::Send {
        let length = data.len();
        let received = Completion { context: Some(77), data: Some(NOTE), length };
        assert_eq!(one(&mut side.endpoint), received);
    }
    // A write that tells has arrived when it is told; the others when their issuer says so.
    if kind != Kind::WriteAndTell {
        line.exchange(&mut side.endpoint, &());
    }
    if !is_source {
        assert!(side.contents(MARGIN, size) == data, "{kind:?} of {size}: data");
        for offset in [ZERO, MARGIN.plus(size)] {
            assert_eq!(side.contents(offset, MARGIN), [MARK; 24], "{kind:?} of {size}: margin");
        }
    }
    line.exchange(&mut side.endpoint, &());
}

fn every_step(line: &mut Line, info: &Info, is_near: bool) {
    for size in SIZES {
        let all = pattern(size.plus(Bytes::new(8)));
        let mut side = connect(line, info, size.plus(MARGIN.times(2)));
        for (round, kind) in KINDS.into_iter().enumerate() {
            let data = &all[round..all.len() - 8 + round];
            step(line, &mut side, kind, is_near, data);
        }
        // One that ended early would fail the other's last poll.
        line.exchange(&mut side.endpoint, &());
    }
}

#[test]
fn every_byte_arrives_by_write_read_and_send_from_8_bytes_to_64_mib() {
    let _alone = SHM.lock();
    for (index, info) in offers().iter().enumerate() {
        let (mut child, mut line) = start("the_other_process_takes_every_step", index);
        every_step(&mut line, info, true);
        assert!(child.wait().unwrap().success(), "{info}");
    }
}

#[test]
#[ignore = "the other process of a test"]
fn the_other_process_takes_every_step() {
    let (info, mut line) = started();
    every_step(&mut line, &info, false);
}

/// What a process holds: its descriptors, and the files of its endpoints on `/dev/shm`.
fn held() -> (usize, BTreeSet<String>) {
    let own = std::process::id().to_string();
    let files = fs::read_dir("/dev/shm").unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let is_own = |name: &String| name.split(|c: char| !c.is_alphanumeric()).any(|word| word == own);
    (descriptors, names.filter(is_own).collect())
}

#[test]
fn nothing_is_left_of_an_endpoint_that_was_dropped() {
    let _alone = SHM.lock();
    for (index, info) in offers().iter().enumerate() {
        let (mut child, mut line) = start("the_other_process_counts", index);
        for _ in 0..3 {
            let mut side = connect(&mut line, info, Bytes::mib(1));
            post(&mut side, |side| {
                let remote = side.remote(ZERO);
                side.endpoint.write(side.region.all(), remote, 1, Flags::NONE.delivery())
            });
            one(&mut side.endpoint);
            line.exchange(&mut side.endpoint, &());
        }
        assert!(child.wait().unwrap().success(), "{info}");
    }
}

#[test]
#[ignore = "the other process of a test"]
fn the_other_process_counts() {
    let (info, mut line) = started();
    let mut after = Vec::new();
    for _ in 0..3 {
        let mut side = connect(&mut line, &info, Bytes::mib(1));
        line.exchange(&mut side.endpoint, &());
        let (_, files) = held();
        assert_eq!(files.is_empty(), info.facts().provider != "shm", "{files:?}");
        drop(side);
        after.push(held());
    }
    // The first may leave what the library keeps for itself.
    assert_eq!(after[1], after[2]);
    assert!(after[0].1.is_empty() && after[0].0 <= after[1].0, "{after:?}");
}

#[test]
fn a_process_that_was_killed_fails_the_operation() {
    for (index, info) in tcp_offers().iter().enumerate() {
        let (mut child, mut line) = start("the_other_process_waits_for_its_end", index);
        let mut side = connect(&mut line, info, Bytes::mib(1));
        let write = |side: &mut Side| {
            let (local, remote) = (side.region.all(), side.remote(ZERO));
            side.endpoint.write(local, remote, 5, Flags::NONE)
        };
        post(&mut side, write);
        one(&mut side.endpoint);
        child.kill().unwrap();
        child.wait().unwrap();
        let begin = Instant::now();
        let failure = loop {
            assert!(begin.elapsed() < PATIENCE, "{info}: nothing said");
            if let Err(err) = write(&mut side) {
                break err.to_string();
            }
            if let Err(failure) = side.endpoint.poll(&mut [Completion::default(); 8]) {
                assert_eq!(failure.context, Some(5));
                break failure.to_string();
            }
        };
        assert!(failure.contains("FI_E"), "{failure}");
    }
}

#[test]
#[ignore = "the other process of a test"]
fn the_other_process_waits_for_its_end() {
    let (info, mut line) = started();
    let mut side = connect(&mut line, &info, Bytes::mib(1));
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        assert_eq!(side.endpoint.poll(&mut []).unwrap(), 0);
    }
}
