//! The other ranks of a run: who they are, and talking to them with a deadline on every wait.
//!
//! Owns the messages between ranks. Knows nothing of what they carry. Every collective is called
//! by all ranks in the same order, as in MPI. A rank that fails says so with [`World::abandon`];
//! the others get [`Error::Failed`] from their next call, and all meet again in
//! [`World::next_round`].

mod local;

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

pub use local::Local;
#[cfg(test)]
pub(crate) use local::tests::on_ranks_within;

use crate::plan::Rank;

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
    /// The ranks could not be started or joined.
    #[error("cannot {action}: {source}")]
    Start {
        /// What was tried.
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The ranks of this run, seen from one of them.
#[derive(Debug)]
pub enum World {
    /// One process alone.
    Single,
    /// Ranks on this machine that g2g started itself.
    Local(Local),
}

impl World {
    /// This process's number.
    pub fn rank(&self) -> Rank {
        match self {
            Self::Single => Rank(0),
            Self::Local(local) => local.rank(),
        }
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        match self {
            Self::Single => 1,
            Self::Local(local) => local.size(),
        }
    }

    /// The longest that one rank waits for another.
    pub fn deadline(&self) -> Duration {
        match self {
            Self::Single => Duration::MAX,
            Self::Local(local) => local.deadline(),
        }
    }

    /// Whether this is the rank that decides and records.
    pub fn is_root(&self) -> bool {
        self.rank() == Rank(0)
    }

    /// Brings the value of each rank to rank 0, in the order of the ranks; `None` elsewhere.
    ///
    /// # Errors
    ///
    /// A rank is gone, late or has failed.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Option<Vec<T>>, Error> {
        match self {
            Self::Single => Ok(Some(vec![value])),
            Self::Local(local) => local.gather(value),
        }
    }

    /// Brings rank 0's value to every rank.
    ///
    /// # Errors
    ///
    /// A rank is gone, late or has failed.
    pub fn broadcast<T: Serialize + DeserializeOwned>(
        &mut self,
        value: Option<T>,
    ) -> Result<T, Error> {
        match self {
            Self::Single => value.ok_or_else(no_value),
            Self::Local(local) => local.broadcast(value),
        }
    }

    /// Brings the value of each rank to every rank, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// A rank is gone, late or has failed.
    pub fn all_gather<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Vec<T>, Error> {
        let all = self.gather(value)?;
        self.broadcast(all)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    ///
    /// A rank is gone, late or has failed.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.all_gather(()).map(drop)
    }

    /// Begins the next round; what is still under way of the one before is dropped. Every rank
    /// calls it the same number of times.
    pub fn next_round(&mut self) {
        if let Self::Local(local) = self {
            local.next_round();
        }
    }

    /// Tells the others that this rank gives up on this round and why.
    pub fn abandon(&mut self, reason: &str) {
        if let Self::Local(local) = self {
            local.abandon(reason);
        }
    }
}

/// What launchers tell each process about the count of ranks: Open MPI's mpirun, the process
/// managers of MPICH's family, Slurm's srun.
const LAUNCHERS: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// The variable by which a launcher says that it has started several ranks, and how many.
/// `variable` looks one up in the environment.
pub fn launcher(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, u32)> {
    let ranks = |name: &&'static str| Some((*name, variable(name)?.parse().ok()?));
    LAUNCHERS.iter().filter_map(ranks).find(|&(_, ranks)| ranks > 1)
}

fn no_value() -> Error {
    Error::Protocol { rank: 0, reason: "rank 0 has nothing to broadcast".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_of_several_ranks_is_seen() {
        let with = |name: &'static str, value: &'static str| {
            launcher(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(with("PMI_SIZE", "4"), Some(("PMI_SIZE", 4)));
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "1"), None);
        assert_eq!(with("SLURM_STEP_NUM_TASKS", "many"), None);
        assert_eq!(with("HOME", "2"), None);
    }
}
