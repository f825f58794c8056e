//! Ranks on one machine, started by g2g itself.
//!
//! Rank 0 is the process that the user started. Each other rank is this same binary, started by
//! rank 0 with one end of a UNIX socket pair as its standard input. The pair exists only as two
//! descriptors of two processes: nobody else can connect, and no file can be left behind. Rank 0
//! holds the other ends.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::Error;
use crate::{ffi::process::die_with_parent, plan::Rank};

/// How long rank 0 waits at the end for the others to leave before it kills them.
const FAREWELL: Duration = Duration::from_secs(2);

/// The hidden command by which a rank is started.
const START_RANK: &str = "internal-rank";

/// One rank's connections to the others; [`super::World::local`] makes a world of it.
#[derive(Debug)]
pub struct Local {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) deadline: Duration,
    /// Rank 0: to the others in their order. Others: to rank 0.
    pub(super) streams: Vec<UnixStream>,
    pub(super) children: Children,
}

/// The processes that rank 0 has started; when it is dropped they leave or are killed. They leave
/// when their connections end.
#[derive(Debug, Default)]
pub(super) struct Children(Vec<Child>);

impl Local {
    /// Starts ranks 1 to `size` - 1 as `program internal-rank RANK SIZE DEADLINE_MS`, each with its
    /// own `variables`, and becomes rank 0.
    pub fn start(
        program: &Path,
        size: u32,
        deadline: Duration,
        variables: impl Fn(Rank) -> Vec<(String, String)>,
    ) -> Result<Self, Error> {
        let mut local = Self::new(Rank(0), size, deadline, Vec::new());
        for rank in 1..size {
            let start = |source| Error::Start { action: format!("start rank {rank}"), source };
            let (near, far) = UnixStream::pair().map_err(start)?;
            let child = Command::new(program)
                .args([START_RANK, &rank.to_string(), &size.to_string()])
                .arg(deadline.as_millis().to_string())
                .envs(variables(Rank(rank)))
                .stdin(Stdio::from(OwnedFd::from(far)))
                .stdout(Stdio::null())
                .spawn()
                .map_err(start)?;
            local.streams.push(near);
            local.children.0.push(child);
        }
        Ok(local)
    }

    /// Becomes rank `rank` of those that rank 0 starts: takes the connection from standard input,
    /// and ends when rank 0 ends.
    ///
    /// # Errors
    ///
    /// Standard input is no socket: rank 0 did not start this process.
    pub fn started(rank: Rank, size: u32, deadline: Duration) -> Result<Self, Error> {
        let join = |source| Error::Start { action: "join rank 0 (which starts it)".into(), source };
        die_with_parent().map_err(|err| join(io::Error::other(err)))?;
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(join)?);
        stream.local_addr().map_err(join)?;
        Ok(Self::new(rank, size, deadline, vec![stream]))
    }

    /// All ranks of a world of threads of this process, in the order of the ranks.
    pub fn threads(size: u32, deadline: Duration) -> Result<Vec<Self>, Error> {
        let mut root = Self::new(Rank(0), size, deadline, Vec::new());
        let mut others = Vec::new();
        for rank in 1..size {
            let (near, far) = UnixStream::pair()
                .map_err(|source| Error::Start { action: format!("join rank {rank}"), source })?;
            root.streams.push(near);
            others.push(Self::new(Rank(rank), size, deadline, vec![far]));
        }
        others.insert(0, root);
        Ok(others)
    }

    fn new(rank: Rank, size: u32, deadline: Duration, streams: Vec<UnixStream>) -> Self {
        Self { rank, size, deadline, streams, children: Children::default() }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let due = Instant::now() + FAREWELL;
        for child in &mut self.0 {
            while Instant::now() < due {
                match child.try_wait() {
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Ok(Some(_)) | Err(_) => break,
                }
            }
            // Both fail only where the process is already gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
