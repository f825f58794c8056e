//! Ranks on one machine, started by g2g itself.
//!
//! Rank 0 is the process that the user started. Each other rank is this same binary, started by
//! rank 0 with one end of a UNIX socket pair as its standard input. The pair exists only as two
//! descriptors of two processes: nobody else can connect, and no file can be left behind. Rank 0
//! holds the other ends, and every collective goes through it.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Error, no_value};
use crate::{ffi::process::die_with_parent, plan::Rank};

/// How long rank 0 waits at the end for the others to leave before it kills them.
const FAREWELL: Duration = Duration::from_secs(2);

/// The hidden command by which a rank is started.
const START_RANK: &str = "internal-rank";

/// Longest message: far above the samples of one batch, far below what a wild length would ask.
const MESSAGE_BYTES_MAX: usize = 1 << 28;

/// One rank's connections to the others.
#[derive(Debug)]
pub struct Local {
    rank: u32,
    size: u32,
    deadline: Duration,
    round: u64,
    /// Rank 0: the connection to rank `i + 1` at place `i`. Others: the connection to rank 0.
    links: Vec<UnixStream>,
    /// Rank 0: the processes it started.
    children: Vec<Child>,
    /// Why this round is over for this rank, once another has said so.
    failure: Option<(u32, String)>,
}

/// What goes over a connection.
#[derive(Serialize, Deserialize)]
struct Message<T> {
    round: u64,
    body: Body<T>,
}

#[derive(Serialize, Deserialize)]
enum Body<T> {
    Value(T),
    Failed { rank: u32, reason: String },
}

impl Local {
    /// Starts ranks 1 to `size` - 1 as `program internal-rank RANK SIZE DEADLINE_MS`, and becomes
    /// rank 0.
    ///
    /// # Errors
    ///
    /// A process could not be started.
    pub fn start(program: &Path, size: u32, deadline: Duration) -> Result<Self, Error> {
        let mut local = Self::new(0, size, deadline, Vec::new());
        for rank in 1..size {
            let start = |source| Error::Start { action: format!("start rank {rank}"), source };
            let (near, far) = UnixStream::pair().map_err(start)?;
            let child = Command::new(program)
                .args([START_RANK, &rank.to_string(), &size.to_string()])
                .arg(deadline.as_millis().to_string())
                .stdin(Stdio::from(OwnedFd::from(far)))
                .stdout(Stdio::null())
                .spawn()
                .map_err(start)?;
            local.links.push(near);
            local.children.push(child);
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
        die_with_parent().map_err(|err| join(std::io::Error::other(err)))?;
        let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(join)?);
        link.local_addr().map_err(join)?;
        Ok(Self::join(rank, size, deadline, link))
    }

    /// Becomes rank `rank`, with `link` to rank 0.
    pub fn join(rank: Rank, size: u32, deadline: Duration, link: UnixStream) -> Self {
        Self::new(rank.0, size, deadline, vec![link])
    }

    /// All ranks of a world of threads of this process, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// The system gives no more sockets.
    pub fn threads(size: u32, deadline: Duration) -> Result<Vec<Self>, Error> {
        let mut root = Self::new(0, size, deadline, Vec::new());
        let mut others = Vec::new();
        for rank in 1..size {
            let (near, far) = UnixStream::pair()
                .map_err(|source| Error::Start { action: format!("join rank {rank}"), source })?;
            root.links.push(near);
            others.push(Self::join(Rank(rank), size, deadline, far));
        }
        others.insert(0, root);
        Ok(others)
    }

    fn new(rank: u32, size: u32, deadline: Duration, links: Vec<UnixStream>) -> Self {
        Self { rank, size, deadline, round: 0, links, children: Vec::new(), failure: None }
    }

    pub(super) fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Option<Vec<T>>, Error> {
        self.check_failure()?;
        if self.rank != 0 {
            self.send(0, Body::Value(&value))?;
            return Ok(None);
        }
        let due = Instant::now() + self.deadline;
        let mut values = vec![value];
        for link in 0..self.links.len() {
            match self.receive(link, due) {
                Ok(value) => values.push(value),
                Err(err) => {
                    if let Error::Failed { rank, reason } = &err {
                        self.relay(*rank, reason);
                    }
                    return Err(err);
                }
            }
        }
        Ok(Some(values))
    }

    pub(super) fn broadcast<T: Serialize + DeserializeOwned>(
        &mut self,
        value: Option<T>,
    ) -> Result<T, Error> {
        self.check_failure()?;
        if self.rank != 0 {
            return self.receive(0, Instant::now() + self.deadline);
        }
        let value = value.ok_or_else(no_value)?;
        for link in 0..self.links.len() {
            self.send(link, Body::Value(&value))?;
        }
        Ok(value)
    }

    pub(super) fn next_round(&mut self) {
        self.round += 1;
        self.failure = None;
    }

    pub(super) fn abandon(&mut self, reason: &str) {
        // Whoever heard of a failure from another rank has nothing of its own to tell.
        if self.failure.is_none() {
            self.relay(self.rank, reason);
        }
    }

    /// Sends the failure of `rank` along; a link that is broken has no one to tell.
    fn relay(&mut self, rank: u32, reason: &str) {
        self.failure = Some((rank, reason.to_owned()));
        for link in 0..self.links.len() {
            let body: Body<()> = Body::Failed { rank, reason: reason.to_owned() };
            let _ = self.send(link, body);
        }
    }

    fn check_failure(&self) -> Result<(), Error> {
        match &self.failure {
            Some((rank, reason)) => Err(Error::Failed { rank: *rank, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The rank at the other end of a link.
    fn peer(&self, link: usize) -> u32 {
        if self.rank == 0 { u32::try_from(link).unwrap_or(u32::MAX) + 1 } else { 0 }
    }

    fn send<T: Serialize>(&mut self, link: usize, body: Body<T>) -> Result<(), Error> {
        let rank = self.peer(link);
        let protocol = |reason: String| Error::Protocol { rank, reason };
        let text = serde_json::to_vec(&Message { round: self.round, body })
            .map_err(|err| protocol(err.to_string()))?;
        let length = u32::try_from(text.len())
            .ok()
            .filter(|&length| length as usize <= MESSAGE_BYTES_MAX)
            .ok_or_else(|| protocol(format!("a message of {} bytes", text.len())))?;
        let mut frame = length.to_le_bytes().to_vec();
        frame.extend(text);
        let due = Instant::now() + self.deadline;
        let mut sent = 0;
        while sent < frame.len() {
            let left = self.time_left(due, rank)?;
            let stream = &mut self.links[link];
            let step =
                stream.set_write_timeout(Some(left)).and_then(|()| stream.write(&frame[sent..]));
            sent += self.progress(step, rank)?;
        }
        Ok(())
    }

    /// The next value of this round from a link.
    fn receive<T: DeserializeOwned>(&mut self, link: usize, due: Instant) -> Result<T, Error> {
        let rank = self.peer(link);
        loop {
            let mut length = [0; 4];
            self.read(link, &mut length, due)?;
            let length = u32::from_le_bytes(length) as usize;
            if length > MESSAGE_BYTES_MAX {
                let reason = format!("it claims {length} bytes");
                return Err(Error::Protocol { rank, reason });
            }
            let mut text = vec![0; length];
            self.read(link, &mut text, due)?;
            let protocol =
                |err: serde_json::Error| Error::Protocol { rank, reason: err.to_string() };
            // What an abandoned round left behind may be of any type: look at the round first.
            let header: Message<serde_json::Value> =
                serde_json::from_slice(&text).map_err(protocol)?;
            if header.round < self.round {
                continue;
            }
            return match header.body {
                Body::Failed { rank, reason } => {
                    self.failure = Some((rank, reason.clone()));
                    Err(Error::Failed { rank, reason })
                }
                Body::Value(_) if header.round > self.round => Err(Error::Protocol {
                    rank,
                    reason: format!("it is in round {}, not {}", header.round, self.round),
                }),
                Body::Value(value) => serde_json::from_value(value).map_err(protocol),
            };
        }
    }

    fn read(&mut self, link: usize, target: &mut [u8], due: Instant) -> Result<(), Error> {
        let rank = self.peer(link);
        let mut filled = 0;
        while filled < target.len() {
            let left = self.time_left(due, rank)?;
            let stream = &mut self.links[link];
            let step = stream
                .set_read_timeout(Some(left))
                .and_then(|()| stream.read(&mut target[filled..]));
            filled += self.progress(step, rank)?;
        }
        Ok(())
    }

    fn time_left(&self, due: Instant, rank: u32) -> Result<Duration, Error> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Error::Late { rank, waited: self.deadline }) } else { Ok(left) }
    }

    /// What one read or write achieved; a time-out is seen by the next look at the clock.
    fn progress(&self, step: io::Result<usize>, rank: u32) -> Result<usize, Error> {
        match step {
            Ok(0) => Err(Error::Gone(rank)),
            Ok(count) => Ok(count),
            Err(err) => match err.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(Error::Gone(rank)),
            },
        }
    }
}

impl Drop for Local {
    /// Closes the connections, on which the other ranks leave, and takes care that they do.
    fn drop(&mut self) {
        self.links.clear();
        let due = Instant::now() + FAREWELL;
        for child in &mut self.children {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::world::World;

    /// Runs `rank` in a thread for each rank and returns what they return.
    pub(crate) fn on_ranks_within<T: Send>(
        deadline: Duration,
        size: u32,
        rank: impl Fn(World) -> T + Sync,
    ) -> Vec<T> {
        let worlds = Local::threads(size, deadline).unwrap();
        std::thread::scope(|scope| {
            let run = |world| scope.spawn(|| rank(World::Local(world)));
            let threads: Vec<_> = worlds.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn on_ranks<T: Send>(size: u32, rank: impl Fn(World) -> T + Sync) -> Vec<T> {
        on_ranks_within(Duration::from_millis(300), size, rank)
    }

    #[test]
    fn values_come_in_the_order_of_the_ranks() {
        let all = on_ranks(4, |mut world| {
            world.barrier().unwrap();
            let all = world.all_gather(format!("rank {}", world.rank().0)).unwrap();
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
        let errors = on_ranks(3, |mut world| {
            if world.rank().0 == 2 {
                std::thread::sleep(Duration::from_secs(1));
                return String::new();
            }
            world.barrier().unwrap_err().to_string()
        });
        assert_eq!(errors[0], "rank 2 did not answer within 0.3 s");
        assert!(began.elapsed() < Duration::from_secs(10));
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
                    let failed = world.all_gather(1).and_then(|_| world.all_gather("x".to_owned()));
                    failed.unwrap_err().to_string()
                };
                world.next_round();
                (reason, world.all_gather(world.rank().0).unwrap())
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
    fn a_wild_length_is_refused_before_memory_is_taken() {
        let (near, far) = UnixStream::pair().unwrap();
        (&near).write_all(&u32::MAX.to_le_bytes()).unwrap();
        let mut world = Local::join(Rank(1), 2, Duration::from_secs(1), far);
        let err = world.broadcast::<u32>(None).unwrap_err().to_string();
        assert!(err.contains("claims 4294967295 bytes"), "{err}");
    }
}
