//! Ranks that a launcher has started: finding the MPI that fits it, joining, and the end.

use std::{
    cell::RefCell,
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    rc::Rc,
    thread,
    time::Duration,
};

use super::{Error, Keeper, Launcher, World};
use crate::{
    ffi::mpi::{Family, Library, Mpi},
    interrupt,
    plan::Rank,
};

/// The least time that all ranks have to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long rank 0 stays after a failure, with everything said: MPICH's launcher has been seen to
/// end the ranks before it had passed on what they printed.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How much longer than rank 0 the others stay after a failure. Launchers end all ranks when one
/// leaves without order, and rank 0 has rows to write and to print.
const FAREWELL: Duration = Duration::from_secs(5);

/// MPI guarantees tags up to here.
const TAG_MAX: u16 = 32_767;

/// The folders where MPIs are put that no search path names.
const USUAL_FOLDERS: [&str; 9] = [
    "/opt/amazon/openmpi/lib64",
    "/opt/amazon/openmpi5/lib64",
    "/opt/amazon/openmpi/lib",
    "/opt/amazon/openmpi5/lib",
    "/usr/lib64/openmpi/lib",
    "/usr/lib64/mpich/lib",
    "/opt/intel/oneapi/mpi/latest/lib",
    "/opt/intel/oneapi/mpi/latest/lib/release",
    "/usr/local/lib",
];

/// The programs by which launchers start processes on a host.
const STARTERS: [&str; 12] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "orted",
    "prterun",
    "prte",
    "prted",
    "prun",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "pmi_proxy",
];

/// Where the search looks; all that it knows of the machine.
struct Places {
    /// The program files of this process's parents, the nearest first.
    parents: Vec<PathBuf>,
    /// The folders of `LD_LIBRARY_PATH`.
    search_path: Vec<PathBuf>,
}

/// MPI as the connections of this rank share it.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) mpi: Mpi,
    /// How many connections this rank has had with each other one.
    connections: RefCell<HashMap<u32, u16>>,
}

impl Network {
    /// One more connection with the rank `peer`, and its tag: both ranks have made the same number
    /// before, since they make them in the same order.
    pub(super) fn connect(&self, peer: Rank) -> (u32, u16) {
        let mut connections = self.connections.borrow_mut();
        let count = connections.entry(peer.0).or_default();
        let tag = *count;
        *count = if tag == TAG_MAX { 0 } else { tag + 1 };
        (peer.0, tag)
    }
}

/// What ends MPI. Dropped without [`Joined::finish`], as after a failure, it ends this process:
/// rank 0 first, and the launcher ends all others; these when rank 0 has had its time.
#[derive(Debug)]
pub(super) struct Joined {
    network: Option<Rc<Network>>,
    limit: Duration,
}

impl Joined {
    /// The library's file and what it calls itself.
    pub(super) fn library(&self) -> Option<(PathBuf, String)> {
        let library = &self.network.as_ref()?.mpi.library;
        Some((library.path.clone(), library.version.clone()))
    }

    /// Ends MPI in order.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let network = self.network.take().and_then(Rc::into_inner);
        let network = network.ok_or_else(|| {
            Error::NotJoined("a part of the ranks is still in use at the end of the run".to_owned())
        })?;
        let rank = network.mpi.rank;
        network.mpi.finish(self.limit).map_err(|source| Error::Unreachable { rank, source })
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let Some(network) = self.network.take() else { return };
        thread::sleep(if network.mpi.rank == 0 { LAST_WORDS } else { FAREWELL });
        network.mpi.abort(interrupt::asked().map_or(1, |signal| signal.exit_code().into()));
    }
}

impl World {
    /// The ranks that a `launcher` of `family` has started, by the MPI library `given`, or one that
    /// fits the launcher. Every rank calls it; returns when all have.
    ///
    /// # Errors
    ///
    /// There is no such library, it is not the launcher's, or a rank does not answer. Rank 0 says
    /// so at once; on others the error comes late, so that the launcher ends them when rank 0 has
    /// said why.
    pub(super) fn mpi(
        launcher: &Launcher,
        family: Family,
        given: Option<&Path>,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let farewell = if launcher.rank == 0 { Duration::ZERO } else { FAREWELL };
        let limit = deadline.max(START_LIMIT) + farewell;
        let joined = library(launcher, family, given)
            .and_then(|library| start(library, launcher, limit))
            .map_err(Error::NotJoined)
            .and_then(|mpi| meet(Network { mpi, connections: RefCell::default() }, deadline));
        match joined {
            Ok((world, network)) => {
                let keeper = Keeper::Mpi(Joined { network: Some(network), limit });
                Ok(Self { keeper, ..world })
            }
            Err(err) => {
                thread::sleep(farewell);
                Err(err)
            }
        }
    }
}

/// Connects all ranks. MPI may move messages in its own calls only: one that waits for a first
/// connection would go on waiting while its sender measures.
fn meet(network: Network, deadline: Duration) -> Result<(World, Rc<Network>), Error> {
    let (rank, size) = (Rank(network.mpi.rank), network.mpi.size);
    let network = Rc::new(network);
    let mut world = World::over_mpi(rank, (0..size).map(Rank).collect(), deadline, &network)?;
    world.barrier()?;
    Ok((world, network))
}

/// Starts MPI; it must know the ranks that the launcher has started.
fn start(library: Library, launcher: &Launcher, limit: Duration) -> Result<Mpi, String> {
    let Launcher { ranks, rank, variable, .. } = launcher;
    let mpi = library.start(limit).map_err(|err| err.to_string())?;
    if (mpi.rank, mpi.size) == (*rank, *ranks) {
        return Ok(mpi);
    }
    let sentence = format!(
        "this is rank {rank} of {ranks} ({variable}), but rank {} of {} to {} ({}), which is not \
         the launcher's own MPI: name that with --mpi-lib",
        mpi.rank,
        mpi.size,
        mpi.library.version,
        mpi.library.path.display()
    );
    // Copies that know nothing of each other end each by itself.
    mpi.finish(limit).map_err(|err| format!("{sentence}; {err}"))?;
    Err(sentence)
}

/// The library given, or the first of the launcher's family that loads.
fn library(launcher: &Launcher, family: Family, given: Option<&Path>) -> Result<Library, String> {
    let Launcher { ranks, variable, .. } = launcher;
    let mut tried = Vec::new();
    let candidates = match given {
        Some(path) => vec![path.to_owned()],
        None => candidates(family, &Places::of_process(), Path::exists),
    };
    for path in candidates {
        match Library::load(&path) {
            Ok(library) if library.family == family => return Ok(library),
            Ok(library) => tried.push(format!("{} is {}", path.display(), library.version)),
            Err(reason) => tried.push(format!("{}: {reason}", path.display())),
        }
    }
    let remedy = match given {
        Some(_) => format!("give --mpi-lib a library of {family}, or leave it out"),
        None => format!("install {family} on every host, or name its library with --mpi-lib"),
    };
    Err(format!(
        "a launcher of {family} has started {ranks} ranks ({variable}), and no library of \
         {family} is here: {}; {remedy}",
        tried.join("; ")
    ))
}

/// The files to try, the best first: beside the launcher, on the search path, in the usual places;
/// at last the names alone, for the loader to look up.
fn candidates(family: Family, places: &Places, exists: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let names: &[&str] = match family {
        Family::OpenMpi => &["libmpi.so.40", "libmpi_abi.so.1"],
        Family::Mpich => &["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"],
    };
    let beside = places.parents.iter().filter(|parent| is_starter(parent)).flat_map(|starter| {
        let prefix = starter.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let of_debian = format!("lib/{}-linux-gnu", env::consts::ARCH);
        [PathBuf::from("lib"), "lib64".into(), of_debian.into()].map(|lib| prefix.join(lib))
    });
    let folders = beside
        .chain(places.search_path.iter().cloned())
        .chain(USUAL_FOLDERS.iter().map(PathBuf::from));
    let files = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.filter(|file| exists(file)).chain(names.iter().map(PathBuf::from)).collect()
}

fn is_starter(program: &Path) -> bool {
    // Debian says behind a dot whose it is: mpiexec.openmpi, mpiexec.mpich.
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    STARTERS.contains(&name) || STARTERS.contains(&name.split('.').next().unwrap_or_default())
}

impl Places {
    fn of_process() -> Self {
        let search_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let search_path = env::split_paths(&search_path).filter(|folder| folder.is_absolute());
        Self { parents: parents(), search_path: search_path.collect() }
    }
}

/// The program files of this process's parents, as far as they can be seen: shells and wrappers
/// stand between a launcher and what it starts.
fn parents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pid = "self".to_owned();
    while let Some(parent) = parent(&pid) {
        found.extend(fs::read_link(format!("/proc/{parent}/exe")));
        pid = parent;
    }
    found
}

/// The parent of a process; `None` for the first process of all, and of a PID namespace.
fn parent(pid: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    (parent != "0").then(|| parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        family: Family,
        parents: &[&str],
        search_path: &[&str],
        files: &[&str],
    ) -> Vec<String> {
        let places = Places {
            parents: parents.iter().map(PathBuf::from).collect(),
            search_path: search_path.iter().map(PathBuf::from).collect(),
        };
        let exists = |file: &Path| files.iter().any(|there| Path::new(there) == file);
        let candidates = candidates(family, &places, exists);
        candidates.iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn the_library_beside_the_launcher_comes_before_all_others() {
        let files = [
            "/usr/local/lib/libmpi.so.40",
            "/home/me/mpi/lib/libmpi.so.40",
            "/home/me/mpi/lib/libmpi.so.12",
            "/path/libmpi.so.40",
            "/usr/lib/libmpi.so.40",
        ];
        // A shell stands between the launcher and this process.
        let parents = ["/usr/bin/bash", "/home/me/mpi/bin/prted", "/usr/bin/sshd"];
        assert_eq!(
            found(Family::OpenMpi, &parents, &["/path"], &files),
            [
                "/home/me/mpi/lib/libmpi.so.40",
                "/path/libmpi.so.40",
                "/usr/local/lib/libmpi.so.40",
                "libmpi.so.40",
                "libmpi_abi.so.1"
            ]
        );
    }

    #[test]
    fn debian_keeps_libraries_below_the_architecture() {
        let folder = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
        for (family, starter, name) in [
            (Family::OpenMpi, "/usr/bin/orterun", "libmpi.so.40"),
            (Family::Mpich, "/usr/bin/mpiexec.hydra", "libmpich.so.12"),
        ] {
            let file = format!("{folder}/{name}");
            let found = found(family, &[starter], &[], &[&file]);
            assert_eq!(found.first(), Some(&file));
        }
    }

    #[test]
    fn without_a_file_the_loader_is_asked_for_every_name_of_the_family() {
        assert_eq!(
            found(Family::Mpich, &[], &[], &["/usr/local/lib/libmpi.so.40"]),
            ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"]
        );
    }

    #[test]
    fn the_parents_of_a_process_begin_with_the_one_that_has_started_it() {
        // The test program's parent, cargo or a shell, has others.
        assert!(!parents().is_empty());
        let parent = parent("self").unwrap();
        let link = fs::read_link(format!("/proc/{parent}/exe")).unwrap();
        assert_eq!(parents().first(), Some(&link));
    }
}
