//! What goes wrong, and what is asked for beside the plain case: two endpoints of one process.

use super::*;

/// Two endpoints that know each other, each in a domain of its own, as two processes have them.
fn pair(info: &Info, size: Bytes) -> [Side; 2] {
    let mut ends = [0, 1].map(|_| {
        let mut endpoint = open(info);
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

/// What has come to each side.
type Came = [Vec<Result<Completion, Failure>>; 2];

/// Polls both sides until each has this many completions or failures.
fn poll_until(sides: &mut [Side; 2], counts: [usize; 2]) -> Came {
    let mut came: Came = [Vec::new(), Vec::new()];
    let begin = Instant::now();
    while [0, 1].iter().any(|&side: &usize| came[side].len() < counts[side]) {
        assert!(begin.elapsed() < PATIENCE, "{counts:?} are not all of {came:?}");
        for (side, came) in sides.iter_mut().zip(&mut came) {
            let mut some = [Completion::default(); 8];
            match side.endpoint.poll(&mut some) {
                Ok(count) => came.extend(some[..count].iter().copied().map(Ok)),
                Err(failure) => came.push(Err(failure)),
            }
        }
    }
    came
}

/// Asks again until the first side's operation is under way.
fn post(sides: &mut [Side; 2], mut ask: impl FnMut(&mut Side) -> Result<Posted, CallError>) {
    let begin = Instant::now();
    while ask(&mut sides[0]).unwrap() == Posted::Again {
        assert!(begin.elapsed() < PATIENCE, "no room for an operation");
        for side in &mut *sides {
            assert_eq!(side.endpoint.poll(&mut []).unwrap(), 0);
        }
    }
}

const PART: Bytes = Bytes::kib(64);

#[test]
fn a_window_of_writes_that_are_started_together_arrives_whole() {
    const WINDOW: u64 = 16;
    for info in tcp_offers() {
        let mut sides = pair(&info, PART.times(WINDOW));
        let data = pattern(PART.times(WINDOW));
        sides[0].region.write(ZERO, &data);
        for index in 0..WINDOW {
            let more = Flags::NONE.delivery().more();
            let flags = if index + 1 < WINDOW { more } else { Flags::NONE.delivery() };
            let offset = PART.times(index);
            post(&mut sides, |near| {
                near.endpoint.write(near.local(offset, PART), near.remote(offset), index, flags)
            });
        }
        let came = poll_until(&mut sides, [16, 0]);
        let mut contexts: Vec<u64> =
            came[0].iter().filter_map(|came| came.as_ref().unwrap().context).collect();
        contexts.sort_unstable();
        assert_eq!(contexts, (0..WINDOW).collect::<Vec<u64>>(), "{info}");
        assert!(sides[1].contents(ZERO, PART.times(WINDOW)) == data, "{info}");
    }
}

#[test]
fn more_operations_than_there_is_room_for_are_refused_and_none_is_lost() {
    let info = &tcp_offers()[1];
    let mut sides = pair(info, PART);
    let begin = Instant::now();
    let mut count = 0;
    // Nothing moves the first side on once it is connected, so its room must come to an end.
    post(&mut sides, |near| {
        near.endpoint.write(near.region.all(), near.remote(ZERO), 0, Flags::NONE)
    });
    poll_until(&mut sides, [1, 0]);
    while begin.elapsed() < PATIENCE {
        let near = &mut sides[0];
        let (local, remote) = (near.region.all(), near.remote(ZERO));
        match near.endpoint.write(local, remote, 0, Flags::NONE).unwrap() {
            Posted::Again => break,
            _ => count += 1,
        }
    }
    assert!(begin.elapsed() < PATIENCE && count > 0);
    assert!(count <= sides[0].endpoint.operations_max());
    assert_eq!(sides[0].endpoint.operations(), count);
    poll_until(&mut sides, [count, 0]);
    assert_eq!(sides[0].endpoint.operations(), 0);
}

#[test]
fn injected_data_is_taken_over_before_the_call_returns_and_completes_only_at_the_peer() {
    for info in tcp_offers() {
        let size = info.facts().inject_size;
        let data = pattern(size);
        let mut sides = pair(&info, size);
        let [near, far] = &mut sides;
        assert_eq!(far.endpoint.receive(far.region.all(), 3).unwrap(), Posted::Yes);
        near.region.write(ZERO, &data);
        assert!(near.endpoint.can_inject(near.region.all()));
        post(&mut sides, |near| near.endpoint.inject(near.region.all(), near.peer, 1));
        assert_eq!(sides[0].endpoint.operations(), 0);
        sides[0].region.write(ZERO, &vec![0xEE; data.len()]);
        let [near, far] = poll_until(&mut sides, [0, 1]);
        assert!(near.is_empty());
        let came = far[0].as_ref().unwrap();
        assert_eq!((came.context, came.data), (Some(3), Some(1)));
        assert!(sides[1].contents(ZERO, size) == data, "{info}");
    }
}

#[test]
fn a_key_that_the_peer_does_not_know_fails_the_operation_and_nothing_else() {
    for info in tcp_offers() {
        let mut sides = pair(&info, PART);
        let mut told = serde_json::to_value(sides[0].other).unwrap();
        told["key"] = 0xBAD.into();
        let unknown: RemoteRegion = serde_json::from_value(told).unwrap();
        post(&mut sides, |near| {
            let remote = unknown.at(near.peer, ZERO);
            near.endpoint.write(near.region.all(), remote, 5, Flags::NONE.delivery())
        });
        let came = poll_until(&mut sides, [1, 0]);
        let failure = came[0][0].as_ref().unwrap_err();
        assert_eq!(failure.context, Some(5));
        let text = failure.to_string();
        assert!(text.starts_with(&format!("an operation({info}) failed: FI_E")), "{text}");
        assert_eq!(sides[0].endpoint.operations(), 0);
        assert!(sides[1].contents(ZERO, PART).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_message_longer_than_its_room_is_an_error_of_the_receiver_and_writes_nothing_behind_it() {
    for info in tcp_offers() {
        let mut sides = pair(&info, PART);
        sides[0].region.write(ZERO, &vec![7; 65_536]);
        let room = sides[1].local(ZERO, Bytes::new(100));
        assert_eq!(sides[1].endpoint.receive(room, 9).unwrap(), Posted::Yes);
        post(&mut sides, |near| near.endpoint.send(near.region.all(), near.peer, 5, Flags::NONE));
        let came = poll_until(&mut sides, [0, 1]);
        let failure = came[1][0].as_ref().unwrap_err();
        assert_eq!(failure.context, Some(9));
        let text = failure.to_string();
        let begin = format!("an operation({info}) failed: FI_ETRUNC (265): Truncation error");
        assert!(text.starts_with(&begin), "{text}");
        let behind = sides[1].contents(Bytes::new(100), Bytes::new(65_436));
        assert!(behind.iter().all(|&byte| byte == 0), "{info}");
    }
}

#[test]
fn a_peer_that_has_gone_fails_the_operation() {
    for info in tcp_offers() {
        let mut sides = pair(&info, PART);
        let write = |near: &mut Side| {
            let (local, remote) = (near.region.all(), near.remote(ZERO));
            near.endpoint.write(local, remote, 5, Flags::NONE.delivery())
        };
        post(&mut sides, write);
        poll_until(&mut sides, [1, 0]);
        let [mut near, far] = sides;
        drop(far);
        let begin = Instant::now();
        let failure = loop {
            assert!(begin.elapsed() < PATIENCE, "{info}: nothing said");
            match write(&mut near) {
                Ok(_) => {}
                Err(err) => break err.to_string(),
            }
            if let Err(failure) = near.endpoint.poll(&mut [Completion::default(); 8]) {
                assert_eq!(failure.context, Some(5));
                break failure.to_string();
            }
        };
        assert!(failure.contains("FI_E"), "{failure}");
    }
}

#[test]
fn memory_outlives_its_region_as_long_as_the_endpoint() {
    for info in tcp_offers() {
        let mut sides = pair(&info, PART);
        sides[0].region.write(ZERO, &pattern(PART));
        let another = sides[1].endpoint.register(memory(PART)).unwrap();
        drop(std::mem::replace(&mut sides[1].region, another));
        post(&mut sides, |near| {
            near.endpoint.write(near.region.all(), near.remote(ZERO), 1, Flags::NONE.delivery())
        });
        assert!(poll_until(&mut sides, [1, 0])[0][0].is_ok());
        // The region in its place is another one, with another key.
        assert!(sides[1].contents(ZERO, PART).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn regions_of_one_endpoint_are_told_apart_by_their_keys() {
    for info in tcp_offers() {
        let mut sides = pair(&info, PART);
        let second = sides[1].endpoint.register(memory(PART)).unwrap();
        let data = pattern(PART);
        sides[0].region.write(ZERO, &data);
        sides[0].other = second.remote();
        post(&mut sides, |near| {
            near.endpoint.write(near.region.all(), near.remote(ZERO), 1, Flags::NONE.delivery())
        });
        assert!(poll_until(&mut sides, [1, 0])[0][0].is_ok());
        assert!(sides[1].contents(ZERO, PART).iter().all(|&byte| byte == 0));
        sides[1].region = second;
        assert!(sides[1].contents(ZERO, PART) == data);
    }
}

#[test]
fn through_shared_memory_peers_that_the_provider_fails_on_are_refused() {
    let _alone = SHM.lock();
    for library in libraries() {
        let info = offer(library, "shm", "shm");
        let (mut near, far) = (open(&info), open(&info));
        let own = far.address().unwrap();
        let mut refused = |address: &[u8]| near.insert(&Address(address.to_vec())).unwrap_err();
        let err = refused(&own.0).to_string();
        assert!(err.ends_with("an endpoint of this process is no peer through shared memory"));
        let err = refused(b"fi_shm://1:0:99\0").to_string();
        assert!(err.ends_with("its endpoint has gone, or has another /dev/shm"), "{err}");
        for address in [b"fi_shm://1:0:99".as_slice(), b"", b"tcp\0", b"\xFF\0"] {
            let err = refused(address).to_string();
            assert!(err.ends_with("this is no address in shared memory"), "{err}");
        }
    }
}

fn refused(act: impl FnOnce(&mut [Side; 2])) -> String {
    let mut sides = pair(&tcp_offers()[1], PART);
    let act = std::panic::AssertUnwindSafe(|| act(&mut sides));
    let panic = std::panic::catch_unwind(act).unwrap_err();
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| (*panic.downcast_ref::<&str>().unwrap()).to_owned())
}

#[test]
fn what_would_touch_other_memory_is_refused() {
    let foreign_memory = refused(|[near, far]| {
        let _ = near.endpoint.write(far.region.all(), near.remote(ZERO), 0, Flags::NONE);
    });
    assert_eq!(foreign_memory, "the memory is another endpoint's");
    let foreign_memory = refused(|[near, far]| {
        let _ = near.endpoint.receive(far.region.all(), 0);
    });
    assert_eq!(foreign_memory, "the memory is another endpoint's");
    let foreign_peer = refused(|[near, far]| {
        let _ = near.endpoint.read(near.region.all(), far.remote(ZERO), 0, Flags::NONE);
    });
    assert_eq!(foreign_peer, "the peer is another endpoint's");
    let foreign_peer = refused(|[near, far]| {
        let _ = near.endpoint.send(near.region.all(), far.peer, 0, Flags::NONE);
    });
    assert_eq!(foreign_peer, "the peer is another endpoint's");
    let too_much = refused(|[near, _]| {
        let remote = near.remote(Bytes::new(1));
        let _ = near.endpoint.write(near.region.all(), remote, 0, Flags::NONE);
    });
    assert_eq!(too_much, "64 KiB have no room there");
    let too_far = refused(|[near, _]| {
        near.remote(PART.plus(Bytes::new(1)));
    });
    assert_eq!(too_far, "65537 is not inside a region of 64 KiB");
    let too_long = refused(|[near, _]| {
        near.local(Bytes::new(1), PART);
    });
    assert_eq!(too_long, "64 KiB at 1 are not inside 64 KiB");
    let injected = refused(|[near, _]| {
        let _ = near.endpoint.inject(near.region.all(), near.peer, 0);
    });
    let reason = "cannot be injected: they are a GPU's, or more than 128 bytes";
    assert_eq!(injected, format!("64 KiB {reason}"));
    let of_a_gpu = refused(|[near, _]| {
        let local = Slice { is_host: false, ..near.local(ZERO, Bytes::new(8)) };
        let _ = near.endpoint.inject(local, near.peer, 0);
    });
    assert_eq!(of_a_gpu, format!("8 B {reason}"));
    let foreign_peer = refused(|[near, far]| {
        let _ = near.endpoint.inject(near.local(ZERO, Bytes::new(8)), far.peer, 0);
    });
    assert_eq!(foreign_peer, "the peer is another endpoint's");
    let out_of_bounds = refused(|[near, _]| near.region.write(PART, &[0]));
    assert_eq!(out_of_bounds, "1 B at 65536 are not inside 64 KiB");
}
