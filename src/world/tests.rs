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
    on_ranks_within(Duration::from_secs(20), size, rank)
}

#[test]
fn values_come_in_the_order_of_the_ranks() {
    let all = on_ranks(4, |mut world| {
        world.barrier().unwrap();
        let all = world.agree(format!("rank {}", world.rank().0), |all| all).unwrap();
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
    let errors = on_ranks_within(Duration::from_millis(300), 3, |mut world| {
        if world.rank().0 == 2 {
            std::thread::sleep(Duration::from_secs(3));
            return String::new();
        }
        world.barrier().unwrap_err().to_string()
    });
    assert_eq!(errors[0], "rank 2 did not answer within 0.3 s");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_others_go_on_without_ranks_that_do_not_answer() {
    let all = on_ranks_within(Duration::from_millis(300), 5, |mut world| {
        match world.rank().0 {
            1 => return None,
            3 => {
                std::thread::sleep(Duration::from_secs(3));
                return None;
            }
            _ => {}
        }
        let answers = world.gather_from_some(world.rank().0 * 10).unwrap();
        let told = answers.map(|answers| {
            assert_eq!(answers.values, [(Rank(0), 0), (Rank(2), 20), (Rank(4), 40)]);
            let silent: Vec<String> =
                answers.silent.iter().map(|(_, err)| err.to_string()).collect();
            let late = "rank 3 did not answer within 0.3 s";
            assert_eq!(silent, ["rank 1 is gone: it ended in the middle of the run", late]);
            answers.silent.into_iter().map(|(rank, _)| rank).collect::<Vec<Rank>>()
        });
        if let Some(silent) = &told {
            world.leave_out(silent);
        }
        let silent = world.broadcast(told).unwrap();
        if !world.is_root() {
            world.leave_out(&silent);
        }
        let gathered = world.gather(world.rank()).unwrap();
        let own = world.scatter(gathered).unwrap();
        Some((own, world.members().to_vec()))
    });
    let left = vec![Rank(0), Rank(2), Rank(4)];
    let told = |rank| Some((Rank(rank), left.clone()));
    assert_eq!(all, [told(0), None, told(2), None, told(4)]);
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
                let failed =
                    world.agree(1, |all| all).and_then(|_| world.agree("x".to_owned(), |all| all));
                failed.unwrap_err().to_string()
            };
            world.next_round();
            (reason, world.agree(world.rank().0, |all| all).unwrap())
        });
        for (rank, (reason, ranks)) in (0..).zip(all) {
            assert_eq!(ranks, [0, 1, 2]);
            if rank != culprit {
                assert_eq!(reason, format!("rank {culprit}: out of memory"));
            }
        }
    }
}

#[test]
fn a_cause_counts_before_what_has_come_of_it() {
    // Whoever else fails, before or after, rank 2's memory is what it is about.
    for (follower, late) in [(0, 2), (1, 2), (0, 0), (1, 1), (3, 2)] {
        let all = on_ranks(4, |mut world| {
            let rank = world.rank().0;
            world.next_round();
            if rank == late {
                std::thread::sleep(Duration::from_millis(100));
            }
            let reason = if rank == 2 {
                world.abandon("out of memory");
                "rank 2: out of memory".to_owned()
            } else if rank == follower {
                let cause = world.abandon_after("cannot open rank 2's memory");
                cause.cause.map_or("none heard".to_owned(), |cause| cause.to_string())
            } else {
                world
                    .agree(1, |all| all)
                    .and_then(|_| world.agree(2, |all| all))
                    .unwrap_err()
                    .to_string()
            };
            world.next_round();
            (reason, world.agree(rank, |all| all).unwrap())
        });
        for (rank, (reason, ranks)) in (0..).zip(all) {
            let known =
                if rank == follower && rank != 0 { "none heard" } else { "rank 2: out of memory" };
            assert_eq!(reason, known, "rank {rank} of {follower}, {late}");
            assert_eq!(ranks, [0, 1, 2, 3]);
        }
    }
}

#[test]
fn what_seems_a_consequence_and_has_no_cause_is_told_itself() {
    for culprit in 0..3 {
        let all = on_ranks(3, |mut world| {
            world.next_round();
            if world.rank().0 == culprit {
                let heard = world.abandon_after("no such file");
                assert!(heard.cause.is_none());
                let others = vec![Rank(1), Rank(2)];
                assert_eq!(heard.silent, (culprit == 0).then_some(others));
            } else {
                let err = world.agree(1, |all| all).unwrap_err().to_string();
                assert_eq!(err, format!("rank {culprit}: no such file"));
            }
            world.next_round();
            world.agree(world.rank().0, |all| all).unwrap()
        });
        assert_eq!(all, vec![[0, 1, 2]; 3]);
    }
}

#[test]
fn each_rank_gets_what_it_wants_in_the_order_in_which_it_does() {
    let next = |rank: Rank| vec![Rank((rank.0 + 1) % 4), Rank(9), rank];
    let all = on_ranks(4, |mut world| {
        let name = format!("rank {}", world.rank().0);
        world.exchange(name, next).unwrap()
    });
    for (rank, heard) in (0..).zip(all) {
        let wanted = [(rank + 1) % 4, rank].map(|rank| (Rank(rank), format!("rank {rank}")));
        assert_eq!(heard, wanted);
    }
}

#[test]
fn a_failure_in_an_exchange_reaches_all() {
    let all = on_ranks(3, |mut world| {
        if world.rank() == Rank(2) {
            world.abandon("no memory");
            return String::new();
        }
        world.exchange(1, |_| vec![Rank(0)]).unwrap_err().to_string()
    });
    assert_eq!(all[..2], ["rank 2: no memory"; 2]);
}

#[test]
fn over_sockets_a_part_is_all_ranks_or_one_alone() {
    let ranks = [0, 1, 2].map(Rank);
    on_ranks(3, |mut world| {
        let mut all = world.part(&ranks).unwrap();
        assert_eq!(all.agree(all.rank(), |all| all).unwrap(), ranks);
        // A failure there is one of the round, which all meet behind.
        all.next_round();
        all.next_round();
        if all.rank() == Rank(1) {
            all.abandon("out of memory");
        } else {
            all.agree(1, |all| all).unwrap_err();
        }
        world.next_round();
        assert_eq!(world.agree(world.rank(), |all| all).unwrap(), ranks);

        let mut alone = world.part(&[world.rank()]).unwrap();
        assert_eq!((alone.size(), alone.is_root()), (1, true));
        assert_eq!(alone.agree(alone.rank(), |all| all).unwrap(), [world.rank()]);
        let err = world.part(&ranks[..2]).unwrap_err().to_string();
        assert!(err.starts_with("cannot talk among some ranks: "), "{err}");
    });
}

#[test]
fn one_process_alone_hears_itself() {
    let mut world = World::single();
    assert_eq!((world.rank(), world.size(), world.is_root()), (Rank(0), 1, true));
    world.barrier().unwrap();
    assert_eq!(world.agree(7, |all| all).unwrap(), [7]);
    assert_eq!(world.exchange(7, |rank| vec![rank]).unwrap(), [(Rank(0), 7)]);
    assert!(matches!(world.broadcast::<u32>(None), Err(Error::Protocol { .. })));
    world.finish().unwrap();
}

#[test]
fn a_rank_that_is_gone_is_heard_of_behind_what_came_of_it() {
    let heard = on_ranks(3, |mut world| {
        world.next_round();
        match world.rank().0 {
            0 => world.abandon_after("no such file").gone,
            1 => None,
            _ => {
                assert!(world.barrier().is_err());
                None
            }
        }
    });
    assert_eq!(heard[0], Some(Rank(1)));
}

#[test]
fn srun_without_pmix_is_told_what_to_add() {
    let launcher = Launcher {
        way: Way::None,
        ranks: 8,
        rank: 0,
        local_rank: None,
        variable: "SLURM_STEP_NUM_TASKS",
    };
    let reason = World::launched(&launcher, None, Duration::from_secs(1)).unwrap_err().to_string();
    assert!(reason.contains("8 ranks (SLURM_STEP_NUM_TASKS)"), "{reason}");
    assert!(reason.contains("srun --mpi=pmix"), "{reason}");
}
