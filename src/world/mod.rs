//! The other ranks of a run: who they are, and talking to them with a deadline on every wait.
//!
//! Owns the messages between ranks. Knows nothing of what they carry. Every collective is called
//! by all ranks in the same order, as in MPI. A rank that fails says so with [`World::abandon`];
//! the others get [`Error::Failed`] from their next call, and all meet again in
//! [`World::next_round`].

pub mod child;
mod host;
mod launcher;
mod link;
mod local;
mod mpi;
mod star;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

pub use host::{Host, host};
pub use launcher::{Launcher, launcher};
pub use local::Local;
#[cfg(test)]
pub(crate) use tests::on_ranks_within;

use crate::{ffi::CallError, plan::Rank};
use link::{Line, Links};
use local::Children;
use mpi::Joined;
use star::Star;

/// What can go wrong between ranks.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rank has ended, or closed its connection.
    #[error("rank {0} is gone: it ended in the middle of the run")]
    Gone(u32),
    /// A rank did not answer in time: stopped, hung, or far slower than the others.
    #[error("rank {rank} did not answer within {} s", .waited.as_secs_f64())]
    Late {
        /// The rank that was waited for.
        rank: u32,
        /// How long.
        waited: Duration,
    },
    /// A rank gave up on this round and said why.
    #[error("rank {rank}: {reason}")]
    Failed {
        /// The rank that gave up.
        rank: u32,
        /// Its own sentence.
        reason: String,
    },
    /// A message that does not fit: the ranks run different programs, or the order of their
    /// calls differs.
    #[error("rank {rank} sent a message that makes no sense here: {reason}")]
    Protocol {
        /// The sender.
        rank: u32,
        /// What does not fit.
        reason: String,
    },
    /// MPI could not send to a rank, or receive from it.
    #[error("rank {rank} cannot be reached: {source}")]
    Unreachable {
        /// The rank at the other end.
        rank: u32,
        /// MPI's answer.
        source: CallError,
    },
    /// The ranks of a launcher cannot be joined, or not left in order: why, and what to do.
    #[error("{0}")]
    NoMpi(String),
    /// The ranks could not be started or joined.
    #[error("cannot {action}: {source}")]
    Start {
        /// What was tried.
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What the root has heard of a failure that may have come of another rank's.
#[derive(Debug, Default)]
pub struct Heard {
    /// The cause.
    pub cause: Option<Error>,
    /// A rank that has ended.
    pub gone: Option<Rank>,
    /// Without a cause: the ranks that have not failed; `None` on other ranks than the root.
    pub silent: Option<Vec<Rank>>,
}

/// The ranks of this run, or some of them, seen from one of them.
///
/// A rank has one number in the whole run. Where values come or go in "the order of the ranks" it
/// is that of [`World::members`], which in a part of the ranks is not their number.
#[derive(Debug)]
pub struct World {
    // The connections end before what was started is waited for.
    star: Star,
    keeper: Keeper,
}

/// What has to be brought to an end with the run.
#[derive(Debug)]
enum Keeper {
    Nothing,
    Children(#[expect(dead_code, reason = "its drop is what matters")] Children),
    Mpi(Joined),
}

impl World {
    /// One process alone.
    pub fn single() -> Self {
        Self { star: Star::alone(Rank(0)), keeper: Keeper::Nothing }
    }

    /// Ranks on this machine that g2g has started itself.
    ///
    /// # Errors
    ///
    /// `local`'s rank is none of its ranks.
    pub fn local(local: Local) -> Result<Self, Error> {
        let Local { rank, size, deadline, streams, children } = local;
        let members = (0..size).map(Rank).collect();
        let lines = streams.into_iter().map(Line::new).collect();
        let star = Star::new(rank, members, deadline, Links::Sockets(lines))?;
        Ok(Self { star, keeper: Keeper::Children(children) })
    }

    /// The ranks that `launcher` has started, by the MPI library `library`, or one that fits the
    /// launcher. Every rank calls it; returns when all have.
    ///
    /// # Errors
    ///
    /// There is no such library, it is not the launcher's, or a rank does not answer. On ranks
    /// other than 0 the error comes late, so that the launcher ends them when rank 0 has said why.
    pub fn mpi(
        launcher: &Launcher,
        library: Option<&Path>,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let (star, joined) = mpi::join(launcher, library, deadline)?;
        Ok(Self { star, keeper: Keeper::Mpi(joined) })
    }

    /// A world of `members`, the first of whom is its root. The members all call it, and make such
    /// parts in the same order; it returns when all have. In ranks that g2g has started itself
    /// only all of them, or one alone, can be a part.
    ///
    /// After a failure the members of a part meet in it again ([`World::next_round`] and
    /// [`World::barrier`]) before they talk elsewhere: only there is dropped what was under way.
    ///
    /// # Errors
    ///
    /// This rank is no member, the ranks cannot talk to each other, or one does not answer.
    pub fn part(&self, members: &[Rank]) -> Result<Self, Error> {
        let mut part = Self { star: self.star.part(members)?, keeper: Keeper::Nothing };
        part.barrier()?;
        Ok(part)
    }

    /// This process's number.
    pub fn rank(&self) -> Rank {
        self.star.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        u32::try_from(self.members().len()).unwrap_or(u32::MAX)
    }

    /// The ranks, the root first.
    pub fn members(&self) -> &[Rank] {
        self.star.members()
    }

    /// The longest that one rank waits for another.
    pub fn deadline(&self) -> Duration {
        self.star.deadline()
    }

    /// Whether this is the rank that decides and records: the first of the members.
    pub fn is_root(&self) -> bool {
        self.star.is_root()
    }

    /// Brings the value of each rank to the root, in the order of the ranks; `None` elsewhere.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Option<Vec<T>>, Error> {
        self.star.gather(value)
    }

    /// Brings the root's value to every rank.
    pub fn broadcast<T: Serialize + DeserializeOwned>(
        &mut self,
        value: Option<T>,
    ) -> Result<T, Error> {
        self.star.broadcast(value)
    }

    /// Brings the value of each rank to every rank, in the order of the ranks: as many values as
    /// the square of the ranks go over the root's connections. [`World::exchange`] sends what is
    /// wanted only.
    pub fn all_gather<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Vec<T>, Error> {
        let all = self.gather(value)?;
        self.broadcast(all)
    }

    /// Brings the values of `members` to each of them; every rank calls it with the same members,
    /// and those that are none hear nothing.
    pub fn exchange_among<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
        members: &[Rank],
    ) -> Result<BTreeMap<Rank, T>, Error> {
        let wants = |rank| if members.contains(&rank) { members.to_vec() } else { Vec::new() };
        Ok(self.exchange(value, wants)?.into_iter().collect())
    }

    /// Brings what `choose` makes of all values, in the order of the ranks, to every rank; the root
    /// asks it.
    pub fn agree<T: Serialize + DeserializeOwned, R: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
        choose: impl FnOnce(Vec<T>) -> R,
    ) -> Result<R, Error> {
        let choice = self.gather(value)?.map(choose);
        self.broadcast(choice)
    }

    /// Brings to each rank the values of those that it wants, in the order in which it does.
    /// `wants` is the same function on every rank, of which the root asks it; who is no member has
    /// no value.
    pub fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
        wants: impl Fn(Rank) -> Vec<Rank>,
    ) -> Result<Vec<(Rank, T)>, Error> {
        self.star.exchange(value, wants)
    }

    /// Brings each rank its own value of those that the root has, in the order of the ranks.
    pub fn scatter<T: Serialize + DeserializeOwned>(
        &mut self,
        values: Option<Vec<T>>,
    ) -> Result<T, Error> {
        self.star.scatter(values)
    }

    /// From now on a rank waits so long for another one at most.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.star.set_deadline(deadline);
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.star.barrier()
    }

    /// Begins the next round; what is still under way of the one before is dropped. Every rank
    /// calls it the same number of times.
    pub fn next_round(&mut self) {
        self.star.next_round();
    }

    /// Tells the others that this rank gives up on this round and why.
    pub fn abandon(&mut self, reason: &str) {
        self.star.abandon(reason);
    }

    /// The same for a failure that may have come of another rank's. The root listens for that one
    /// for a second at most, and it becomes the reason for all.
    pub fn abandon_after(&mut self, reason: &str) -> Heard {
        self.star.abandon_after(reason)
    }

    /// The MPI library that joins the ranks, if one does: its file and what it calls itself.
    pub fn library(&self) -> Option<(PathBuf, String)> {
        match &self.keeper {
            Keeper::Mpi(joined) => joined.library(),
            Keeper::Nothing | Keeper::Children(_) => None,
        }
    }

    /// Ends in order: every rank calls it behind the last message. A world of a launcher's ranks
    /// that is dropped instead, because a rank is gone or does not answer, ends this process with
    /// exit code 1, and by that the launcher ends all: rank 0's half a second later, another's 5 s
    /// later, so that rank 0 can write what it has. So it is dropped when everything is said.
    pub fn finish(self) -> Result<(), Error> {
        let Self { star, keeper } = self;
        drop(star);
        match keeper {
            Keeper::Nothing | Keeper::Children(_) => Ok(()),
            Keeper::Mpi(joined) => joined.finish(),
        }
    }
}
