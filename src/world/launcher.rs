//! What started this process, if it was an MPI launcher: told by the environment, before MPI is.

use crate::ffi::mpi::Family;

/// A launcher of several ranks, as it describes this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Whose MPI its ranks can use; `None` where Slurm has started them without any.
    pub family: Option<Family>,
    /// How many ranks it has started, at least 2.
    pub ranks: u32,
    /// The number of this one.
    pub rank: u32,
    /// Its number among those of its host.
    pub local_rank: Option<u32>,
    /// The variable that tells the count of ranks.
    pub variable: &'static str,
}

/// The launcher that has started this process as one of several ranks. `variable` looks one up in
/// the environment.
pub fn launcher(variable: impl Fn(&str) -> Option<String>) -> Option<Launcher> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let is_set = |name: &str| variable(name).is_some();
    let found = |names: [&'static str; 3], family| {
        let [ranks, rank, local_rank] = names;
        Some(Launcher {
            family,
            ranks: number(ranks)?,
            // A rank without it counts as 0, and is refused if MPI numbers it otherwise.
            rank: number(rank).unwrap_or(0),
            local_rank: number(local_rank),
            variable: ranks,
        })
    };
    let of_slurm = || match (is_set("PMIX_RANK"), is_set("PMI_FD") || is_set("PMI_RANK")) {
        (true, _) => Some(Family::OpenMpi),
        (false, true) => Some(Family::Mpich),
        (false, false) => None,
    };
    // Launchers run inside each other, mpirun inside a step of Slurm: the nearest comes first.
    found(
        ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"],
        Some(Family::OpenMpi),
    )
    .or_else(|| found(["PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"], Some(Family::Mpich)))
    .or_else(|| found(["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"], of_slurm()))
    .filter(|launcher| launcher.ranks > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(environment: &str) -> Option<Launcher> {
        let variables: Vec<(&str, &str)> =
            environment.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
        launcher(|asked| {
            let found = variables.iter().find(|(name, _)| *name == asked);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn is(
        family: Option<Family>,
        ranks: u32,
        rank: u32,
        local_rank: Option<u32>,
        variable: &'static str,
    ) -> Option<Launcher> {
        Some(Launcher { family, ranks, rank, local_rank, variable })
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        let open_mpi = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                        PMIX_RANK=3";
        let family = Some(Family::OpenMpi);
        assert_eq!(with(open_mpi), is(family, 4, 3, Some(1), "OMPI_COMM_WORLD_SIZE"));
        let hydra = "PMI_SIZE=2 PMI_RANK=0 PMI_FD=6 MPI_LOCALRANKID=0";
        assert_eq!(with(hydra), is(Some(Family::Mpich), 2, 0, Some(0), "PMI_SIZE"));
        let slurm = "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1";
        let variable = "SLURM_STEP_NUM_TASKS";
        assert_eq!(with(slurm), is(None, 8, 5, Some(1), variable));
        let pmix = format!("{slurm} PMIX_RANK=5");
        assert_eq!(with(&pmix), is(family, 8, 5, Some(1), variable));
        let pmi = format!("{slurm} PMI_FD=10");
        assert_eq!(with(&pmi), is(Some(Family::Mpich), 8, 5, Some(1), variable));
    }

    #[test]
    fn the_nearest_launcher_counts_and_one_rank_alone_needs_none() {
        let inside = "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 OMPI_COMM_WORLD_SIZE=2 \
                      OMPI_COMM_WORLD_RANK=1";
        let family = Some(Family::OpenMpi);
        assert_eq!(with(inside), is(family, 2, 1, None, "OMPI_COMM_WORLD_SIZE"));
        assert_eq!(with("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0"), None);
        let alone = "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 SLURM_STEP_NUM_TASKS=8 \
                     SLURM_PROCID=5";
        assert_eq!(with(alone), None);
        assert_eq!(with("PMI_SIZE=many PMI_RANK=0"), None);
        assert_eq!(with("SLURM_PROCID=0"), None);
        assert_eq!(with("HOME=2"), None);
        assert_eq!(with("PMI_SIZE=3"), is(Some(Family::Mpich), 3, 0, None, "PMI_SIZE"));
    }
}
