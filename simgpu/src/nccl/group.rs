//! Groups: what a thread calls between a start and its end begins together at the end.

use std::{cell::RefCell, collections::HashMap};

use super::{
    collective::{self, Message, Wanted},
    communicator::{self, Pending},
    types::{Code, Refused},
};
use crate::{cuda::queue::synchronize_all, execute::lock, state::World};

/// What waits for the end of a group.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// A rank joins its communicator.
    Join {
        handle: u64,
        function: &'static str,
    },
    /// A rank does something with all others of its communicator.
    Together {
        handle: u64,
        pending: Pending,
    },
    Collective(Wanted),
    Message(Message),
}

#[derive(Default)]
struct Group {
    depth: u32,
    jobs: Vec<Job>,
    refused: Option<Refused>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a group, or one in another.
pub(super) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Adds a job to this thread's group; without one it begins at once.
pub(super) fn add(world: &World, job: Job) -> Result<(), Refused> {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.jobs.push(job.clone());
        }
        group.depth == 0
    });
    if alone { run(world, vec![job]) } else { Ok(()) }
}

/// A call in this thread's group was refused: so is the group.
pub(super) fn refuse(refused: &Refused) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && group.refused.is_none() {
            group.refused = Some(refused.clone());
        }
    });
}

/// Ends a group; with the outermost one its jobs begin.
pub(super) fn end(world: &World) -> Result<(), Refused> {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        if group.depth > 0 {
            return Some(None);
        }
        Some(Some(std::mem::take(group)))
    });
    match ended {
        None => Err(Refused::new(Code::INVALID_USAGE, "ncclGroupEnd: not in a group call.")),
        Some(None) => Ok(()),
        Some(Some(Group { refused: Some(refused), .. })) => Err(refused),
        Some(Some(group)) => run(world, group.jobs),
    }
}

/// Adds up what collectives of one kind have in a group: by the sum an algorithm is chosen.
fn add_up(jobs: &mut [Job]) {
    let kind = |wanted: &Wanted| {
        (wanted.communicator, wanted.function as u32, wanted.data_type, wanted.operation)
    };
    let mut sums = HashMap::new();
    for job in &*jobs {
        if let Job::Collective(wanted) = job {
            let sum: &mut u64 = sums.entry(kind(wanted)).or_default();
            *sum = sum.saturating_add(wanted.count);
        }
    }
    for job in jobs {
        if let Job::Collective(wanted) = job {
            wanted.together = sums[&kind(wanted)];
        }
    }
}

/// Connects all ranks before any begins. A new connection waits until its GPU is at rest.
fn connect(world: &World, jobs: &[Job]) {
    let waiting = jobs.iter().filter_map(|job| match job {
        Job::Collective(wanted) => collective::connect_algorithm(world, wanted),
        Job::Message(message) => collective::connect_peer(world, message),
        Job::Join { .. } | Job::Together { .. } => None,
    });
    waiting.for_each(|gpu| synchronize_all(world, Some(gpu)));
}

/// Does all jobs: all ranks join before any is waited for, and messages of a rank begin together.
fn run(world: &World, mut jobs: Vec<Job>) -> Result<(), Refused> {
    add_up(&mut jobs);
    connect(world, &jobs);
    let mut in_progress = false;
    let joining: Vec<(u64, &'static str)> = jobs
        .iter()
        .filter_map(|job| match job {
            Job::Join { handle, function } => Some((*handle, *function)),
            _ => None,
        })
        .collect();
    in_progress |= join_all(world, &joining)?;
    in_progress |= do_together(world, &jobs)?;
    let mut messages: Vec<Vec<Message>> = Vec::new();
    for job in &jobs {
        match job {
            Job::Collective(wanted) => collective::post_or_capture(world, *wanted)?,
            Job::Message(message) => {
                let of_same = |group: &&mut Vec<Message>| {
                    group.first().is_some_and(|first| first.communicator == message.communicator)
                };
                match messages.iter_mut().find(of_same) {
                    Some(group) => group.push(*message),
                    None => messages.push(vec![*message]),
                }
            }
            Job::Join { .. } | Job::Together { .. } => {}
        }
    }
    for group in messages {
        collective::post_or_capture_messages(world, group)?;
    }
    if in_progress {
        return Err(Refused::new(Code::IN_PROGRESS, ""));
    }
    Ok(())
}

/// Lets ranks join, then waits for those that block; whether others go on.
fn join_all(world: &World, joining: &[(u64, &'static str)]) -> Result<bool, Refused> {
    let mut others = false;
    for &(handle, function) in joining {
        communicator::join(world, handle, function)?;
    }
    for &(handle, _) in joining {
        if communicator::blocks(handle)? {
            communicator::await_ready(world, handle)?;
        } else {
            others = true;
        }
    }
    Ok(others)
}

/// Tells the others of what all do together, then waits for them where the communicator blocks;
/// whether others go on.
fn do_together(world: &World, jobs: &[Job]) -> Result<bool, Refused> {
    let together = || {
        jobs.iter().filter_map(|job| match job {
            Job::Together { handle, pending } => Some((*handle, *pending)),
            _ => None,
        })
    };
    for (handle, pending) in together() {
        communicator::announce(world, handle, &pending)?;
    }
    let mut others = false;
    let mut joining = Vec::new();
    for (handle, pending) in together() {
        if communicator::blocks(handle)? {
            let made = communicator::await_finished(world, handle, &pending)?;
            joining.extend(made.map(|handle| (handle, "ncclCommSplit")));
        } else {
            let found = communicator::find(handle)?;
            lock(&found).pending.push(pending);
            others = true;
        }
    }
    Ok(join_all(world, &joining)? || others)
}
