//! Ranks as threads, at ports of this machine.

use super::{
    door::{MAGIC, NUMBER_LENGTH, PROOF_LENGTH, PROOF_LIMIT},
    *,
};
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
};

const SECRET_WORDS: &str = "a secret of many words";

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn launcher(rank: u32, ranks: u32, port: u16) -> Launcher {
    let master = Master { address: "localhost".to_owned(), port, port_variable: "MASTER_PORT" };
    Launcher {
        way: crate::world::Way::Tcp(master),
        ranks,
        rank,
        local_rank: None,
        variable: "WORLD_SIZE",
    }
}

/// The world of a rank of `ranks` with this secret, or the sentence why there is none.
fn world(rank: u32, ranks: u32, port: u16, secret: &str, ms: u64) -> Result<World, String> {
    let launcher = launcher(rank, ranks, port);
    let crate::world::Way::Tcp(master) = &launcher.way else { unreachable!() };
    let secret = Secret::new(secret).unwrap();
    let deadline = Duration::from_millis(ms);
    World::tcp_with(&launcher, master, secret, deadline).map_err(|err| err.to_string())
}

/// What each rank returns, each in a thread.
fn on_ranks<T: Send>(ranks: &[u32], of_rank: impl Fn(u32) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let of_rank = &of_rank;
        let threads: Vec<_> =
            ranks.iter().map(|&rank| scope.spawn(move || of_rank(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_meet_in_all_and_in_parts() {
    let port = free_port();
    let sums = on_ranks(&[3, 1, 0, 2], |rank| {
        let mut world = world(rank, 4, port, SECRET_WORDS, 20_000).unwrap();
        let all = world.agree(rank, |all| all).unwrap();
        assert_eq!(all, [0, 1, 2, 3]);
        // Overlapping parts, of which rank 2 is the root of two, and is met by rank 3 twice.
        let parts: [&[u32]; 4] = [&[2, 3], &[0, 1], &[2, 3, 1], &[1, 0]];
        let mut sums = Vec::new();
        for members in parts.into_iter().filter(|members| members.contains(&rank)) {
            let members: Vec<Rank> = members.iter().copied().map(Rank).collect();
            let mut part = world.part(&members).unwrap();
            sums.push(part.agree(rank, |all| all.into_iter().sum::<u32>()).unwrap());
        }
        world.barrier().unwrap();
        world.finish().unwrap();
        (rank, sums)
    });
    let expected = [(3, vec![5, 6]), (1, vec![1, 6, 1]), (0, vec![1, 1]), (2, vec![5, 6])];
    assert_eq!(sums, expected);
}

#[test]
fn who_does_not_come_is_named_and_all_hear_of_it() {
    let port = free_port();
    let said = on_ranks(&[0, 2], |rank| world(rank, 4, port, SECRET_WORDS, 600).unwrap_err());
    let own = format!("ranks 1, 3 did not come to localhost:{port} within 0.6 s");
    assert_eq!(said, [own.clone(), format!("rank 0: {own}")]);
}

#[test]
fn who_has_another_secret_is_told_so_and_stays_outside() {
    let port = free_port();
    let said = on_ranks(&[0, 1], |rank| {
        let secret = if rank == 0 { SECRET_WORDS } else { "another one of such length" };
        world(rank, 2, port, secret, 1500).unwrap_err()
    });
    let own = format!("rank 1 did not come to localhost:{port} within 1.5 s; turned away: ");
    assert!(said[0].starts_with(&own), "{}", said[0]);
    assert!(said[0].ends_with("it has another G2G_SECRET"), "{}", said[0]);
    assert!(said[1].ends_with("it has another G2G_SECRET: give all ranks the same"), "{said:?}");
}

#[test]
fn strangers_keep_nobody_waiting() {
    let port = free_port();
    let said = on_ranks(&[0, 1, 100], |rank| {
        if rank < 2 {
            // Rank 1 comes when all strangers are there.
            thread::sleep(Duration::from_millis(800 * u64::from(rank)));
            let began = Instant::now();
            let mut world = world(rank, 2, port, SECRET_WORDS, 20_000).unwrap();
            world.barrier().unwrap();
            assert!(began.elapsed() < PROOF_LIMIT, "{:?}", began.elapsed());
            return None;
        }
        thread::sleep(Duration::from_millis(200));
        let come = || TcpStream::connect(("localhost", port)).unwrap();
        let silent: Vec<TcpStream> = (0..20).map(|_| come()).collect();
        let mut garbage = come();
        garbage.write_all(&[0xA5; 4096]).unwrap();
        // One that hears what a rank says and says it back.
        let mut mirror = come();
        mirror.write_all(&MAGIC).unwrap();
        mirror.write_all(&[7; NUMBER_LENGTH]).unwrap();
        let mut answer = [0; 8 + NUMBER_LENGTH + PROOF_LENGTH];
        mirror.read_exact(&mut answer).unwrap();
        mirror.write_all(&answer[8 + NUMBER_LENGTH..]).unwrap();
        let mut rest = Vec::new();
        let ended = mirror.read_to_end(&mut rest);
        drop(silent);
        Some(ended.is_err() || rest.is_empty())
    });
    assert_eq!(said, [None, None, Some(true)]);
}

#[test]
fn ranks_that_do_not_belong_together_are_refused_with_what_differs() {
    for (other, ranks, expected) in [
        (1, 3, "to rank 1 there are 3 ranks, and to rank 0 2: "),
        (5, 2, "there is no rank 5 of 2 beside rank 0: "),
    ] {
        let port = free_port();
        let said = on_ranks(&[0, other], |rank| {
            let ranks = if rank == 0 { 2 } else { ranks };
            world(rank, ranks, port, SECRET_WORDS, 20_000).unwrap_err()
        });
        assert!(said[0].starts_with(expected), "{said:?}");
        assert_eq!(said[1], format!("rank 0: {}", said[0]));
    }
    let port = free_port();
    let said = on_ranks(&[0, 1, 1], |rank| world(rank, 3, port, SECRET_WORDS, 5_000).err());
    assert!(said[0].as_ref().unwrap().starts_with("two processes are rank 1"), "{said:?}");
}

#[test]
fn a_port_in_use_and_a_rank_0_that_is_no_g2g_are_told() {
    let other = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let said = world(0, 2, port, SECRET_WORDS, 500).unwrap_err();
    let expected = format!("rank 0 cannot listen on port {port} (MASTER_PORT): ");
    assert!(said.starts_with(&expected), "{said}");
    let answer = thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(&[0x55; 200]).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let said = world(1, 2, port, SECRET_WORDS, 5_000).unwrap_err();
    let expected = format!("cannot join rank 0 at localhost:{port} within 5 s: what listens");
    assert!(said.starts_with(&expected), "{said}");
    answer.join().unwrap();
    let said = world(1, 2, free_port(), SECRET_WORDS, 400).unwrap_err();
    assert!(said.contains("within 0.4 s: ") && said.contains("refused"), "{said}");
}

#[test]
fn a_secret_is_asked_for_and_must_be_long() {
    let launcher = launcher(0, 4, 1);
    let of = |given: Option<&str>| secret(given.map(str::to_owned), &launcher).err();
    assert!(of(None).unwrap().contains("4 ranks (WORLD_SIZE), which meet over TCP"));
    assert!(of(Some("")).unwrap().contains("openssl rand -hex 32"));
    assert!(of(Some("fifteen letters")).unwrap().starts_with("G2G_SECRET is too short"));
    assert_eq!(of(Some("sixteen letters!")), None);
}
