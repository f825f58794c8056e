//! What started this process as one of several ranks: told by the environment, before MPI is loaded.

use crate::ffi::mpi::Family;

/// A launcher of several ranks, as it describes this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// How its ranks can reach each other.
    pub way: Way,
    /// How many ranks it has started, at least 2.
    pub ranks: u32,
    /// The number of this one.
    pub rank: u32,
    /// Its number among those of its host.
    pub local_rank: Option<u32>,
    /// The variable that tells the count of ranks.
    pub variable: &'static str,
}

/// How the ranks of a launcher can reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// By this MPI.
    Mpi(Family),
    /// Over TCP, which needs only an address.
    Tcp(Master),
    /// Slurm has started them without any.
    None,
}

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// A name or an address of its host.
    pub address: String,
    /// The port.
    pub port: u16,
    /// The variable that tells the port.
    pub port_variable: &'static str,
}

/// The launcher that has started this process as one of several ranks. `variable` looks one up in
/// the environment.
pub fn launcher(variable: impl Fn(&str) -> Option<String>) -> Option<Launcher> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let is_set = |name: &str| variable(name).is_some();
    let found = |names: [&'static str; 3], way| {
        let [ranks, rank, local_rank] = names;
        Some(Launcher {
            way,
            ranks: number(ranks)?,
            // A rank without it counts as 0, and is refused if MPI numbers it otherwise.
            rank: number(rank).unwrap_or(0),
            local_rank: number(local_rank),
            variable: ranks,
        })
    };
    let slurm = ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"];
    let of_slurm = match (is_set("PMIX_RANK"), is_set("PMI_FD") || is_set("PMI_RANK")) {
        (true, _) => Some(Family::OpenMpi),
        (false, true) => Some(Family::Mpich),
        (false, false) => None,
    };
    let by_mpi = || {
        found(
            ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"],
            Way::Mpi(Family::OpenMpi),
        )
        .or_else(|| found(["PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"], Way::Mpi(Family::Mpich)))
        .or_else(|| found(slurm, Way::Mpi(of_slurm?)))
    };
    // PyTorch's variables for one process of a group ("Distributed communication package",
    // Environment variable initialization), and those that Kubeflow gives torchrun on each host.
    let by_tcp = || {
        let master = |address, port_variable| {
            let port = variable(port_variable)?.parse::<u16>().ok()?;
            // torchrun listens there itself, and says so.
            let is_taken = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|it| it == "True");
            let port = if is_taken { port.checked_add(1)? } else { port };
            Some(Way::Tcp(Master { address: variable(address)?, port, port_variable }))
        };
        let of_process = ["WORLD_SIZE", "RANK", "LOCAL_RANK"];
        // None of them is the number of a process on its host.
        let of_host = ["PET_NNODES", "PET_NODE_RANK", "PET_LOCAL_RANK"];
        let with = |names: [&'static str; 3], address, port| {
            number(names[1])?;
            found(names, master(address, port)?)
        };
        with(of_process, "MASTER_ADDR", "MASTER_PORT")
            .or_else(|| with(of_host, "PET_MASTER_ADDR", "PET_MASTER_PORT"))
    };
    // Launchers run inside each other, mpirun or torchrun inside a step of Slurm: the nearest comes
    // first.
    let first = if is_set("TORCHELASTIC_RUN_ID") { by_tcp() } else { None };
    first
        .or_else(by_mpi)
        .or_else(by_tcp)
        .or_else(|| found(slurm, Way::None))
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
        way: Way,
        ranks: u32,
        rank: u32,
        local_rank: Option<u32>,
        variable: &'static str,
    ) -> Option<Launcher> {
        Some(Launcher { way, ranks, rank, local_rank, variable })
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        let open_mpi = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                        PMIX_RANK=3";
        let way = || Way::Mpi(Family::OpenMpi);
        assert_eq!(with(open_mpi), is(way(), 4, 3, Some(1), "OMPI_COMM_WORLD_SIZE"));
        let hydra = "PMI_SIZE=2 PMI_RANK=0 PMI_FD=6 MPI_LOCALRANKID=0";
        assert_eq!(with(hydra), is(Way::Mpi(Family::Mpich), 2, 0, Some(0), "PMI_SIZE"));
        let slurm = "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1";
        let variable = "SLURM_STEP_NUM_TASKS";
        assert_eq!(with(slurm), is(Way::None, 8, 5, Some(1), variable));
        let pmix = format!("{slurm} PMIX_RANK=5");
        assert_eq!(with(&pmix), is(way(), 8, 5, Some(1), variable));
        let pmi = format!("{slurm} PMI_FD=10");
        assert_eq!(with(&pmi), is(Way::Mpi(Family::Mpich), 8, 5, Some(1), variable));
    }

    #[test]
    fn the_nearest_launcher_counts_and_one_rank_alone_needs_none() {
        let inside = "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 OMPI_COMM_WORLD_SIZE=2 \
                      OMPI_COMM_WORLD_RANK=1";
        let way = Way::Mpi(Family::OpenMpi);
        assert_eq!(with(inside), is(way, 2, 1, None, "OMPI_COMM_WORLD_SIZE"));
        assert_eq!(with("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0"), None);
        let alone = "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 SLURM_STEP_NUM_TASKS=8 \
                     SLURM_PROCID=5";
        assert_eq!(with(alone), None);
        assert_eq!(with("PMI_SIZE=many PMI_RANK=0"), None);
        assert_eq!(with("SLURM_PROCID=0"), None);
        assert_eq!(with("HOME=2"), None);
        assert_eq!(with("WORLD_SIZE=4 RANK=1"), None);
        assert_eq!(with("WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1"), None);
        assert_eq!(with("WORLD_SIZE=4 RANK=1 MASTER_ADDR=a MASTER_PORT=70000"), None);
        assert_eq!(with("PMI_SIZE=3"), is(Way::Mpi(Family::Mpich), 3, 0, None, "PMI_SIZE"));
    }

    #[test]
    fn ranks_without_mpi_meet_where_the_variables_of_torch_say() {
        let at = |port, port_variable| {
            Way::Tcp(Master { address: "host0".to_owned(), port, port_variable })
        };
        let torch = "WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 MASTER_ADDR=host0 MASTER_PORT=29500";
        let process = |port| is(at(port, "MASTER_PORT"), 4, 3, Some(1), "WORLD_SIZE");
        assert_eq!(with(torch), process(29500));
        let agent = format!("{torch} TORCHELASTIC_USE_AGENT_STORE=True");
        assert_eq!(with(&agent), process(29501));
        let host = "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=8 PET_MASTER_ADDR=host0 \
                    PET_MASTER_PORT=23456";
        let of_host = is(at(23456, "PET_MASTER_PORT"), 2, 1, None, "PET_NNODES");
        assert_eq!(with(host), of_host);
        assert_eq!(with(&host.replace("=2", "=1:2")), None);
        // Beside Slurm without MPI, and inside of mpirun.
        let slurm = "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3";
        assert_eq!(with(&format!("{slurm} {torch}")), process(29500));
        let mpi = format!("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 {torch}");
        assert_eq!(with(&mpi).unwrap().variable, "OMPI_COMM_WORLD_SIZE");
        let inside = format!("{mpi} TORCHELASTIC_RUN_ID=none");
        assert_eq!(with(&inside), process(29500));
    }
}
