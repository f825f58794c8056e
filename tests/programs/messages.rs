//! The ranks of an MPI launcher talk in every way that g2g's ranks do, and compare what they hear.
//!
//! Arguments: `all`, or `late` for a rank that is late on purpose; then the MPI library, if not the
//! launcher's own. Rank 0 says at the end that all was right; who hears something wrong panics.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![allow(clippy::print_stdout, reason = "its answer to the test")]

use std::{env, path::PathBuf, thread, time::Duration};

use g2g::{
    plan::Rank,
    world::{self, Error, World},
};

/// Longer than MPI's short messages, which it takes whether they are received or not.
const LONG: usize = 3 << 20;

const DEADLINE: Duration = Duration::from_secs(60);

/// Where a rank is late on purpose.
const SHORT_DEADLINE: Duration = Duration::from_secs(4);

fn main() {
    let launcher = world::launcher(|name| env::var(name).ok()).expect("a launcher starts this");
    let is_late = env::args().nth(1).unwrap() == "late";
    let library = env::args_os().nth(2).map(PathBuf::from);
    let deadline = if is_late { SHORT_DEADLINE } else { DEADLINE };
    let mut world = World::launched(&launcher, library.as_deref(), deadline).unwrap();
    assert_eq!(world.rank(), Rank(launcher.rank));
    assert_eq!(world.size(), launcher.ranks);
    if is_late {
        a_late_message_is_the_next_one(&mut world);
    } else {
        values_reach_every_rank(&mut world);
        a_failure_ends_the_round_for_all(&mut world);
        parts_talk_among_themselves(&mut world);
    }
    let is_root = world.is_root();
    world.finish().unwrap();
    if is_root {
        println!("all was right");
    }
}

fn ranks(world: &World) -> Vec<u32> {
    (0..world.size()).collect()
}

fn values_reach_every_rank(world: &mut World) {
    let (own, size) = (world.rank().0, world.size());
    assert_eq!(world.agree(own, |all| all).unwrap(), ranks(world));
    let long = |rank: u32| format!("{rank}").repeat(LONG);
    if let Some(all) = world.gather(long(own)).unwrap() {
        assert!((0..size).map(long).eq(all));
    }
    assert_eq!(world.broadcast(world.is_root().then(|| long(7))).unwrap(), long(7));
    let neighbours = |rank: Rank| vec![Rank((rank.0 + 1) % size), rank, Rank(size + 1)];
    let heard = world.exchange(own * 10, neighbours).unwrap();
    assert_eq!(heard, [(Rank((own + 1) % size), (own + 1) % size * 10), (Rank(own), own * 10)]);
}

fn a_failure_ends_the_round_for_all(world: &mut World) {
    for culprit in 0..world.size() {
        world.next_round();
        if world.rank().0 == culprit {
            world.abandon("out of memory");
        } else {
            let heard =
                world.agree(1, |all| all).and_then(|_| world.agree("x".repeat(100_000), |all| all));
            assert_eq!(heard.unwrap_err().to_string(), format!("rank {culprit}: out of memory"));
        }
        world.next_round();
        assert_eq!(world.agree(world.rank().0, |all| all).unwrap(), ranks(world));
    }
}

fn parts_talk_among_themselves(world: &mut World) {
    let last = Rank(world.size() - 1);
    let mut backwards: Vec<Rank> = world.members().to_vec();
    backwards.reverse();
    let mut whole = world.part(&backwards).unwrap();
    assert_eq!((whole.is_root(), whole.rank()), (world.rank() == last, world.rank()));
    assert_eq!(whole.agree(whole.rank(), |all| all).unwrap(), backwards);

    let ends = [Rank(0), last];
    let mut pair = match ends.contains(&world.rank()) {
        true => Some(world.part(&ends).unwrap()),
        false => None,
    };
    // What is sent in one of them is not heard in the other, though it comes first.
    if let Some(pair) = pair.as_mut().filter(|pair| pair.is_root()) {
        pair.broadcast(Some("pair".to_owned())).unwrap();
    }
    assert_eq!(world.broadcast(world.is_root().then(|| "all".to_owned())).unwrap(), "all");
    if let Some(pair) = pair.as_mut().filter(|pair| !pair.is_root()) {
        assert_eq!(pair.broadcast::<String>(None).unwrap(), "pair");
    }
    match pair {
        Some(mut pair) => assert_eq!(pair.agree(pair.rank(), |all| all).unwrap(), ends),
        None => {
            assert!(matches!(world.part(&ends), Err(Error::Protocol { .. })));
            assert_eq!(world.part(&[world.rank()]).unwrap().agree(5, |all| all).unwrap(), [5]);
        }
    }
}

/// Who was late is heard when it is there: the receive that was given up is gone on with.
fn a_late_message_is_the_next_one(world: &mut World) {
    if world.rank() == Rank(1) {
        thread::sleep(SHORT_DEADLINE * 3 / 2);
    }
    let heard = world.gather("late".to_owned());
    if world.is_root() {
        assert_eq!(heard.unwrap_err().to_string(), "rank 1 did not answer within 4 s");
    }
    world.next_round();
    if let Some(all) = world.gather(world.rank().0).unwrap() {
        assert_eq!(all, ranks(world));
    }
}
