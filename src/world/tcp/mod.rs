//! Ranks that something else than MPI has started, such as torchrun or a job of Kubernetes: they
//! meet at rank 0 over TCP.
//!
//! Rank 0 listens at a port that all know, and the others connect to it. Each rank listens, at a
//! port of the system's choice, since a part of the ranks meets at its own root. Both ends of a
//! connection prove that they know the secret, by its HMAC-SHA-256 (RFC 2104) of a random number of
//! the other end's; before that nothing else is read. Whoever connects without it, and is silent
//! perhaps, keeps nobody waiting.

mod door;
#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::HashMap,
    env, io,
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    rc::Rc,
    sync::{PoisonError, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use door::{
    Door, Guest, Hello, PROOF_LIMIT, Refusal, SECRET, SECRET_LENGTH_MIN, Secret, connect, hear,
    say, until,
};

use super::{
    Error, Keeper, Launcher, World,
    launcher::Master,
    link::{Line, Links},
};
use crate::plan::Rank;

/// What rank 0 answers when all have come: where each rank listens, or why there is no run.
type Welcome = Result<Vec<SocketAddr>, String>;

/// The ways between the ranks.
#[derive(Debug)]
pub(super) struct Mesh {
    rank: Rank,
    size: u32,
    secret: Secret,
    door: Door,
    /// Where each rank listens.
    addresses: Vec<SocketAddr>,
    /// Those who have come, and for whom nobody has asked yet.
    waiting: RefCell<Vec<Guest>>,
    /// How often this rank has met each other one.
    meetings: RefCell<HashMap<u32, u64>>,
}

impl World {
    /// The ranks of a launcher that meet at rank 0. Every rank calls it; returns when all have.
    ///
    /// # Errors
    ///
    /// There is no secret or another one, rank 0 cannot listen or be reached, or a rank does not
    /// come within the deadline.
    pub(super) fn tcp(
        launcher: &Launcher,
        master: &Master,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let secret = secret(env::var(SECRET).ok(), launcher).map_err(Error::NotJoined)?;
        Self::tcp_with(launcher, master, secret, deadline)
    }

    fn tcp_with(
        launcher: &Launcher,
        master: &Master,
        secret: Secret,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let (rank, size) = (launcher.rank, launcher.ranks);
        let join = if rank == 0 { gather } else { come };
        let (mesh, lines) = join(master, rank, size, secret, deadline).map_err(Error::NotJoined)?;
        let members = (0..size).map(Rank).collect();
        let mut world = Self::new(Rank(rank), members, deadline, Links::Sockets(lines))?;
        world.keeper = Keeper::Tcp(Rc::new(mesh));
        Ok(world)
    }
}

impl Mesh {
    /// Connects this rank with other `members`, of whom the first is the root.
    pub(super) fn part(&self, members: &[Rank], deadline: Duration) -> Result<Vec<Line>, Error> {
        let due = Instant::now() + deadline;
        let Some((&root, others)) = members.split_first() else { return Ok(Vec::new()) };
        if root == self.rank {
            return others.iter().map(|&other| self.await_guest(other, due, deadline)).collect();
        }
        let hello = Hello { meeting: self.next_meeting(root), ..self.hello() };
        let address = self.addresses[root.0 as usize];
        let connect = || connect(&[address], &self.secret, due);
        let line = until(due, connect).and_then(|(mut line, _)| {
            say(&mut line, &hello, due)?;
            Ok(line)
        });
        let start = |reason: String| Error::Start {
            action: format!("reach rank {} at {address}", root.0),
            source: io::Error::other(reason),
        };
        Ok(vec![line.map_err(start)?])
    }

    /// The connection that rank `rank` makes next.
    fn await_guest(&self, rank: Rank, due: Instant, deadline: Duration) -> Result<Line, Error> {
        let meeting = self.next_meeting(rank);
        let mut waiting = self.waiting.borrow_mut();
        loop {
            let is_it =
                |guest: &Guest| (guest.hello.rank, guest.hello.meeting) == (rank.0, meeting);
            if let Some(place) = waiting.iter().position(is_it) {
                return Ok(waiting.swap_remove(place).line);
            }
            let left = due.saturating_duration_since(Instant::now());
            let guest = self.door.guests.recv_timeout(left);
            waiting.push(guest.map_err(|_| Error::Late { rank: rank.0, waited: deadline })?);
        }
    }

    fn hello(&self) -> Hello {
        hello(self.rank.0, self.size, self.door.port)
    }

    /// The number of the next connection with `other`.
    fn next_meeting(&self, other: Rank) -> u64 {
        let mut meetings = self.meetings.borrow_mut();
        let count = meetings.entry(other.0).or_default();
        *count += 1;
        *count
    }
}

fn hello(rank: u32, size: u32, port: u16) -> Hello {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Hello { version, rank, size, meeting: 0, port }
}

/// Rank 0: waits for all others; its connections to them, in their order.
fn gather(
    master: &Master,
    rank: u32,
    size: u32,
    secret: Secret,
    deadline: Duration,
) -> Result<(Mesh, Vec<Line>), String> {
    let due = Instant::now() + deadline;
    let door = Door::open(master.port, &secret).map_err(|err| {
        format!(
            "rank 0 cannot listen on port {} ({}): {err}: set another one on all ranks",
            master.port, master.port_variable
        )
    })?;
    let mut guests: Vec<Option<Guest>> = (1..size).map(|_| None).collect();
    let own = hello(rank, size, door.port);
    let mut odd = None;
    let come = loop {
        if guests.iter().all(Option::is_some) {
            break Ok(());
        }
        let left = due.saturating_duration_since(Instant::now());
        let guest = match door.guests.recv_timeout(left) {
            Ok(guest) => guest,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                break Err(absent(&guests, master, deadline, &door));
            }
        };
        if let Some(objection) = objection(&guest.hello, &own, &guests) {
            odd = Some(guest);
            break Err(format!("{objection}: start each rank once, all with the same program"));
        }
        let place = guest.hello.rank as usize - 1;
        guests[place] = Some(guest);
    };
    let mut guests: Vec<Guest> = guests.into_iter().flatten().collect();
    let of = |guest: &Guest| SocketAddr::new(guest.address, guest.hello.port);
    // Each other rank knows where it has found rank 0.
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), master.port);
    let addresses: Vec<SocketAddr> = [nowhere].into_iter().chain(guests.iter().map(of)).collect();
    let welcome: Welcome = come.map(|()| addresses.clone());
    for guest in guests.iter_mut().chain(&mut odd) {
        // One that has gone in the meantime is missed by the next message.
        let _ = say(&mut guest.line, &welcome, Instant::now() + PROOF_LIMIT);
    }
    welcome?;
    let mesh = Mesh::new(Rank(rank), size, secret, door, addresses);
    Ok((mesh, guests.into_iter().map(|guest| guest.line).collect()))
}

/// Why somebody is no rank of this run beside the `guests`, who are ranks 1, 2 and so on.
fn objection(theirs: &Hello, own: &Hello, guests: &[Option<Guest>]) -> Option<String> {
    let Hello { version, rank, size, .. } = theirs;
    let place = rank.checked_sub(1).and_then(|place| guests.get(place as usize));
    match place {
        _ if *version != own.version => {
            Some(format!("rank {rank} is g2g {version}, and rank 0 is {}", own.version))
        }
        _ if *size != own.size => {
            Some(format!("to rank {rank} there are {size} ranks, and to rank 0 {}", own.size))
        }
        None => Some(format!("there is no rank {rank} of {size} beside rank 0")),
        Some(Some(_)) => Some(format!("two processes are rank {rank}")),
        Some(None) => None,
    }
}

/// Says which ranks have not come.
fn absent(guests: &[Option<Guest>], master: &Master, deadline: Duration, door: &Door) -> String {
    let absent = (1..).zip(guests).filter(|(_, guest)| guest.is_none());
    let absent: Vec<String> = absent.map(|(rank, _): (u32, _)| rank.to_string()).collect();
    let ranks = if absent.len() == 1 { "rank" } else { "ranks" };
    let refused = door.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
    let refused = refused.map_or_else(String::new, |reason| format!("; turned away: {reason}"));
    format!(
        "{ranks} {} did not come to {}:{} within {} s{refused}",
        absent.join(", "),
        master.address,
        master.port,
        deadline.as_secs_f64()
    )
}

/// Another rank: connects to rank 0, and waits until all have come.
fn come(
    master: &Master,
    rank: u32,
    size: u32,
    secret: Secret,
    deadline: Duration,
) -> Result<(Mesh, Vec<Line>), String> {
    let Master { address, port, .. } = master;
    let due = Instant::now() + deadline;
    let door = Door::open(0, &secret).map_err(|err| format!("cannot listen: {err}"))?;
    let reached = until(due, || {
        let places = (address.as_str(), *port).to_socket_addrs();
        let places: Vec<SocketAddr> = places.map_err(Refusal::of)?.collect();
        connect(&places, &secret, due)
    });
    let (mut line, root) = reached.map_err(|reason| {
        let waited = deadline.as_secs_f64();
        format!("cannot join rank 0 at {address}:{port} within {waited} s: {reason}")
    })?;
    say(&mut line, &hello(rank, size, door.port), due)?;
    // Rank 0, which knows who has not come, speaks first.
    let due = Instant::now() + deadline.saturating_mul(3) / 2;
    let welcome: Welcome = hear(&mut line, due)
        .map_err(|reason| format!("rank 0 at {address}:{port} has not begun the run: {reason}"))?;
    let mut addresses = welcome.map_err(|reason| format!("rank 0: {reason}"))?;
    if addresses.len() != size as usize {
        return Err(format!("rank 0 knows {} ranks, and not {size}", addresses.len()));
    }
    addresses[0] = root;
    Ok((Mesh::new(Rank(rank), size, secret, door, addresses), vec![line]))
}

impl Mesh {
    fn new(rank: Rank, size: u32, secret: Secret, door: Door, addresses: Vec<SocketAddr>) -> Self {
        let (waiting, meetings) = (RefCell::default(), RefCell::default());
        Self { rank, size, secret, door, addresses, waiting, meetings }
    }
}

/// The secret of this process's variables, or what to do.
fn secret(given: Option<String>, launcher: &Launcher) -> Result<Secret, String> {
    let remedy = format!(
        "give all ranks the same {SECRET} of {SECRET_LENGTH_MIN} characters or more, such as \
         `openssl rand -hex 32` prints"
    );
    let given = given.filter(|secret| !secret.is_empty()).ok_or_else(|| {
        format!(
            "a launcher has started {} ranks ({}), which meet over TCP and have no secret: \
             {remedy}; or unset {} to measure this host alone",
            launcher.ranks, launcher.variable, launcher.variable
        )
    })?;
    Secret::new(&given).ok_or_else(|| format!("{SECRET} is too short: {remedy}"))
}
