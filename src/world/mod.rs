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
mod tcp;
#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

pub use host::{Host, host};
pub use launcher::{Launcher, Master, Way, launcher};
pub use local::Local;
#[cfg(test)]
pub(crate) use tests::on_ranks_within;

use crate::{ffi::CallError, plan::Rank};
use link::{Line, Links};
use local::Children;
use mpi::Joined;
pub use star::Answers;
use star::Progress;
use tcp::Mesh;

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
    NotJoined(String),
    /// The ranks could not be started or joined.
    #[error("cannot {action}: {source}")]
    Start {
        /// What was tried.
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What the root has heard about a failure that may be a consequence of another rank's.
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
    /// This rank's place among the members.
    place: usize,
    /// The first is the root.
    members: Vec<Rank>,
    deadline: Duration,
    /// Whether its ranks are on several hosts.
    spans_hosts: bool,
    progress: Rc<RefCell<Progress>>,
    // The connections end before what was started is waited for.
    links: Links,
    keeper: Keeper,
}

/// What has to be brought to an end with the run.
#[derive(Debug)]
enum Keeper {
    Nothing,
    Children(#[expect(dead_code, reason = "its drop is what matters")] Children),
    Mpi(Joined),
    Tcp(Rc<Mesh>),
}

impl World {
    /// One process alone.
    pub fn single() -> Self {
        Self::alone(Rank(0))
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
        let world = Self::new(rank, members, deadline, Links::Sockets(lines))?;
        Ok(Self { keeper: Keeper::Children(children), ..world })
    }

    /// The ranks that `launcher` has started, by MPI or over TCP; `mpi_lib` is the library of MPI
    /// that the user names. Every rank calls it; returns when all have.
    ///
    /// # Errors
    ///
    /// The ranks cannot reach each other, or one does not answer: why, and what to do.
    pub fn launched(
        launcher: &Launcher,
        mpi_lib: Option<&Path>,
        deadline: Duration,
    ) -> Result<Self, Error> {
        match &launcher.way {
            Way::Mpi(family) => Self::mpi(launcher, *family, mpi_lib, deadline),
            Way::Tcp(_) if mpi_lib.is_some() => Err(Error::NotJoined(format!(
                "the ranks of this launcher ({}) meet without MPI: leave out --mpi-lib",
                launcher.variable
            ))),
            Way::Tcp(master) => Self::tcp(launcher, master, deadline),
            Way::None => Err(Error::NotJoined(format!(
                "srun has started {} ranks ({}) that cannot find each other: start them with srun \
                 --mpi=pmix for Open MPI, or --mpi=pmi2 for MPICH",
                launcher.ranks, launcher.variable
            ))),
        }
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

    /// Brings what `choose` makes of all values, in the order of the ranks, to every rank. Only the
    /// root calls it.
    pub fn agree<T: Serialize + DeserializeOwned, R: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
        choose: impl FnOnce(Vec<T>) -> R,
    ) -> Result<R, Error> {
        let choice = self.gather(value)?.map(choose);
        self.broadcast(choice)
    }

    /// The MPI library that joins the ranks, if one does: its file and what it calls itself.
    pub fn library(&self) -> Option<(PathBuf, String)> {
        match &self.keeper {
            Keeper::Mpi(joined) => joined.library(),
            Keeper::Nothing | Keeper::Children(_) | Keeper::Tcp(_) => None,
        }
    }

    /// Ends in order: every rank calls it behind the last message. A world of a launcher's ranks
    /// that is dropped instead, because a rank is gone or does not answer, ends this process with
    /// exit code 1, and by that the launcher ends all: rank 0's half a second later, another's 5 s
    /// later, so that rank 0 can write what it has. So it is dropped when everything is said.
    pub fn finish(self) -> Result<(), Error> {
        let Self { links, keeper, .. } = self;
        drop(links);
        match keeper {
            Keeper::Nothing | Keeper::Children(_) | Keeper::Tcp(_) => Ok(()),
            Keeper::Mpi(joined) => joined.finish(),
        }
    }
}
