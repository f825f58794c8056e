//! The protocol between ranks, over sockets between threads.

use std::time::{Duration, Instant};

use super::*;

/// Runs `rank` in a thread for each rank and returns what they return.
pub(crate) fn on_ranks_within<T: Send>(
    deadline: Duration,
    size: u32,
    rank: impl Fn(World) -> T + Sync,
) -> Vec<T> {
    let worlds = Local::threads(size, deadline).unwrap();
    std::thread::scope(|scope| {
        let run = |world| scope.spawn(|| rank(World::local(world).unwrap()));
        let threads: Vec<_> = worlds.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn on_ranks<T: Send>(size: u32, rank: impl Fn(World) -> T + Sync) -> Vec<T> {
    on_ranks_within(Duration::from_millis(300), size, rank)
}

#[test]
fn values_come_in_the_order_of_the_ranks() {
    let all = on_ranks(4, |mut world| {
        world.barrier().unwrap();
        let all = world.all_gather(format!("rank {}", world.rank().0)).unwrap();
        let root = world.is_root().then_some(77);
        (all, world.broadcast(root).unwrap(), world.gather(world.rank()).unwrap())
    });
    for (rank, (names, seventy_seven, gathered)) in all.into_iter().enumerate() {
        assert_eq!(names, ["rank 0", "rank 1", "rank 2", "rank 3"]);
        assert_eq!(seventy_seven, 77);
        assert_eq!(gathered.is_some(), rank == 0);
    }
}

#[test]
fn a_rank_that_leaves_is_named_and_the_others_hear_of_it() {
    let errors = on_ranks(3, |mut world| {
        (world.rank().0 != 1).then(|| world.barrier().unwrap_err().to_string())
    });
    assert_eq!(errors[0].as_deref(), Some("rank 1 is gone: it ended in the middle of the run"));
    assert_eq!(errors[2].as_deref(), Some("rank 0 is gone: it ended in the middle of the run"));
}

#[test]
fn a_rank_that_stops_is_named_within_the_deadline() {
    let began = Instant::now();
    let errors = on_ranks(3, |mut world| {
        if world.rank().0 == 2 {
            std::thread::sleep(Duration::from_secs(1));
            return String::new();
        }
        world.barrier().unwrap_err().to_string()
    });
    assert_eq!(errors[0], "rank 2 did not answer within 0.3 s");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_failure_ends_the_round_for_all_and_the_next_one_is_whole() {
    for culprit in 0..3 {
        let all = on_ranks(3, |mut world| {
            world.next_round();
            let reason = if world.rank().0 == culprit {
                world.abandon("out of memory");
                String::new()
            } else {
                let failed = world.all_gather(1).and_then(|_| world.all_gather("x".to_owned()));
                failed.unwrap_err().to_string()
            };
            world.next_round();
            (reason, world.all_gather(world.rank().0).unwrap())
        });
        for (rank, (reason, ranks)) in (0..).zip(all) {
            assert_eq!(ranks, [0, 1, 2]);
            if rank != culprit {
                assert_eq!(reason, format!("rank {culprit}: out of memory"));
            }
        }
    }
}
