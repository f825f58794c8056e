//! A run: a request becomes cases, cases are measured, and results become rows.

mod burn_in;
mod check;
mod estimate;
mod examine;
mod follower;
mod judge;
mod leader;
mod lookout;
mod notes;
mod options;
mod page;
mod proof;
mod ranks;
mod results;
mod resume;
mod sites;
mod step;
mod steps;
mod worker;

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) use examine::examine;
pub(crate) use follower::join;
pub(crate) use judge::catalogue;
pub use options::{Format, Measure, Options};
pub(crate) use options::{heeded, values};
pub(crate) use page::{write_own, write_page};
pub(crate) use ranks::{Entered, Task, Told};
pub use ranks::{Join, Ranks};
pub(crate) use resume::differences;
use sites::Found;
use worker::Transports;

use crate::{
    interrupt, machine,
    plan::{Rank, TransportKind, topology::Topology},
    stderr,
    transport::{Transport, cuda_env, nccl_env},
    world,
};

/// How long a run may take to end after a signal.
pub(crate) const END: Duration = Duration::from_secs(4);

/// How a transport is opened: [`crate::transport::open`], except in tests with planted faults.
pub type Open = fn(TransportKind, &Topology) -> Result<Box<dyn Transport>, String>;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is wrong: exit code 2. All ranks read the same command line.
    #[error("{0}")]
    Words(String),
    /// Nothing was measured: exit code 2.
    #[error("{0}")]
    Start(String),
    /// Something was measured, and its rows are kept: exit code 1.
    #[error("{0}")]
    Middle(String),
}

impl Failure {
    /// Nothing was measured because of `err`.
    pub(crate) fn start(err: impl Display) -> Self {
        Self::Start(err.to_string())
    }

    /// The run ends early because of `err`.
    pub(crate) fn middle(err: impl Display) -> Self {
        Self::Middle(err.to_string())
    }

    /// The failure of rank `rank`, which lost rank 0; `None` if rank 0 has reported it.
    fn of_rank(rank: Rank, err: world::Error) -> Option<Self> {
        (!Self::is_told(&err)).then(|| Self::Middle(format!("rank {}: {err}", rank.0)))
    }

    /// Whether rank 0 has reported the failure, or was killed.
    const fn is_told(err: &world::Error) -> bool {
        matches!(err, world::Error::Gone(0) | world::Error::Failed { .. })
    }
}

/// From now on signals end the run in an orderly way: the first rank at once, the others after it.
pub(crate) fn watch(is_first: bool) -> Result<(), Failure> {
    let watched = if is_first { interrupt::watch() } else { interrupt::leave_to_first_rank() };
    watched.map_err(|err| Failure::Start(format!("cannot wait for signals: {err}")))
}

/// How a command ends that could do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All is well: exit code 0.
    Well,
    /// Something is wrong: exit code 1.
    Badly,
    /// Nothing is known to be wrong, and not everything could be told: exit code 3.
    Undecided,
}

impl Ending {
    pub(crate) const fn of(is_well: bool) -> Self {
        if is_well { Self::Well } else { Self::Badly }
    }
}

impl Measure {
    /// Measures with all ranks.
    pub(crate) fn run(self, open: Open, ranks: &mut Ranks) -> Result<Ending, Failure> {
        let options = self.options();
        let request = options.request(ranks.launcher.is_some()).map_err(Failure::Words)?;
        let keeps_log = request.transports.contains(&TransportKind::Nccl);
        let notes = cuda_env::set().map_err(Failure::Start)?;
        nccl_env::set(&request.nccl, ranks.own_number(), keeps_log, request.is_check)
            .map_err(Failure::Start)?;
        if ranks.is_first() {
            let checks = (options.nccl.check == 0 && !options.quiet).then(|| {
                "g2g gives no number that it has not verified: -c 0 changes nothing".to_owned()
            });
            let notes = notes.iter().chain(&checks);
            notes.for_each(|note| stderr::say(&format!("note: {note}")));
        }
        watch(ranks.is_first())?;
        ranks.meet(request.ranks, options.mpi_lib.as_deref(), options.deadline)?;
        if request.is_check && !ranks.is_first() {
            // Rank 0 goes on without a rank that hangs. If that one ended, its launcher would end all.
            let rest = options.check.budget + options.check.burn_in.unwrap_or_default();
            machine::stay_where_it_hangs((options.deadline + rest).saturating_mul(2));
        }
        let mut transports = Transports::new(open);
        let result = match sites::find(ranks, &options, &mut transports) {
            Ok(Found { sites: Some(sites), .. }) => {
                leader::lead(&options, &request, transports, sites, ranks)
            }
            Ok(Found { topology, sites: None }) => {
                follower::follow(ranks, transports, topology).map(Ending::of)
            }
            Err(failure) => Err(failure),
        };
        machine::stay_where_it_hangs(Duration::ZERO);
        ranks.dismiss();
        result
    }
}

/// How to resume a run that has ended early.
fn remedy(folder: &Path) -> String {
    format!("the same command with --resume {} goes on", folder.display())
}

/// The folder that the user has `given`, or `results/<name>`, with a number appended if that
/// exists.
pub(crate) fn free_folder(given: Option<&Path>, name: &str) -> PathBuf {
    let first = given.map_or_else(|| Path::new("results").join(name), Path::to_owned);
    if given.is_some() || !first.exists() {
        return first;
    }
    let next = |n: u32| Path::new("results").join(format!("{name}-{n}"));
    (2..u32::MAX).map(next).find(|folder| !folder.exists()).unwrap_or(first)
}
