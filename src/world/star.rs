//! The protocol between ranks: every collective goes through one of them, the root.
//!
//! A message is JSON with the number of the round, and says a value or that a rank has failed. A
//! rank that fails may be anywhere in its collectives, and so may the others: each of their calls
//! is a receive from the root, or the root's from each, so any of them can bring the failure
//! instead of the value. What is left of the round before is dropped where it is found.
//!
//! This is why MPI's own collectives are not used, where MPI carries the messages: a rank that
//! fails could not tell those that wait in one, which is left by none before all have come.

use std::{
    collections::HashMap,
    io,
    rc::Rc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Error, Heard, Keeper, World,
    link::{Line, LinkError, Links},
    mpi::Network,
};
use crate::{
    ffi::{mpi::MessageError, simulation},
    plan::Rank,
};

/// A point in time that no wait reaches.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// How long the root listens for the cause of a failure that is a consequence of another.
const HEARING: Duration = Duration::from_secs(1);

/// How long it does so on one link before it turns to the next.
const HEARING_TURN: Duration = Duration::from_millis(5);

/// How far this rank is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    round: u64,
    /// Why this round is over for this rank, once one has failed.
    failure: Option<Failure>,
}

/// What came of [`World::gather_from_some`].
#[derive(Debug)]
pub struct Answers<T> {
    /// The values, in the order of the ranks.
    pub values: Vec<(Rank, T)>,
    /// The ranks that did not answer, and why.
    pub silent: Vec<(Rank, Error)>,
}

#[derive(Serialize, Deserialize)]
struct Message<T> {
    round: u64,
    /// When it was sent, on a simulated machine: its hosts have each their own time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    simulated_ns: Option<u64>,
    body: Result<T, Failure>,
}

/// What ended a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failure {
    rank: Rank,
    reason: String,
    /// Whether it may be a consequence of another rank's failure.
    is_consequence: bool,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Failed { rank: failure.rank.0, reason: failure.reason }
    }
}

impl World {
    /// A rank without others.
    pub(super) fn alone(rank: Rank) -> Self {
        Self {
            place: 0,
            members: vec![rank],
            deadline: Duration::MAX,
            spans_hosts: false,
            links: Links::Sockets(Vec::new()),
            progress: Rc::default(),
            keeper: Keeper::Nothing,
        }
    }

    /// The place of `rank` among `members`, the first of whom is the root. The root's links are to
    /// the other members in their order; any other member's is the one to the root.
    pub(super) fn new(
        rank: Rank,
        members: Vec<Rank>,
        deadline: Duration,
        links: Links,
    ) -> Result<Self, Error> {
        let place = members.iter().position(|&member| member == rank);
        let place = place.ok_or_else(|| Error::Protocol {
            rank: rank.0,
            reason: "it is no member of what it calls".to_owned(),
        })?;
        let keeper = Keeper::Nothing;
        let (spans_hosts, progress) = (false, Rc::default());
        Ok(Self { place, members, deadline, spans_hosts, links, progress, keeper })
    }

    /// The place of `rank` among `members`, with connections of its own.
    pub(super) fn over_mpi(
        rank: Rank,
        members: Vec<Rank>,
        deadline: Duration,
        network: &Rc<Network>,
    ) -> Result<Self, Error> {
        let peers = match members.split_first() {
            Some((&root, others)) if root == rank => {
                others.iter().map(|&other| network.connect(other)).collect()
            }
            Some((&root, _)) if members.contains(&rank) => vec![network.connect(root)],
            _ => Vec::new(),
        };
        Self::new(rank, members, deadline, Links::Mpi { network: Rc::clone(network), peers })
    }

    /// A world of `members`, the first of whom is its root. The members all call it, and make such
    /// parts in the same order; it returns when all have. In ranks that g2g has started itself
    /// only all of them, or one alone, can be a part: their sockets go from the root to each other
    /// rank, and the part goes on in the same rounds.
    ///
    /// After a failure the members of a part meet in it again ([`World::next_round`] and
    /// [`World::barrier`]) before they talk elsewhere: only there is dropped what was under way.
    ///
    /// # Errors
    ///
    /// This rank is no member, the ranks cannot talk to each other, or one does not answer.
    pub fn part(&self, members: &[Rank]) -> Result<Self, Error> {
        let rank = self.rank();
        let members = members.to_vec();
        let mut part = match (&self.links, &self.keeper) {
            _ if members == [rank] => Self { deadline: self.deadline, ..Self::alone(rank) },
            (Links::Mpi { network, .. }, _) => {
                Self::over_mpi(rank, members, self.deadline, network)?
            }
            (Links::Sockets(_), Keeper::Tcp(mesh)) => {
                let lines = mesh.part(&members, self.deadline)?;
                let part = Self::new(rank, members, self.deadline, Links::Sockets(lines))?;
                Self { keeper: Keeper::Tcp(Rc::clone(mesh)), ..part }
            }
            (Links::Sockets(streams), _) => {
                let refused =
                    |source| Error::Start { action: "talk among some ranks".into(), source };
                if members != self.members {
                    let reason = "only the launcher of an MPI connects them";
                    return Err(refused(io::Error::other(reason)));
                }
                let streams = streams.iter().map(Line::try_clone);
                let streams = streams.collect::<Result<_, _>>().map_err(refused)?;
                let part = Self::new(rank, members, self.deadline, Links::Sockets(streams))?;
                Self { progress: Rc::clone(&self.progress), ..part }
            }
        };
        part.barrier()?;
        Ok(part)
    }

    /// This process's number.
    pub fn rank(&self) -> Rank {
        self.members[self.place]
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// The ranks, the root first.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// The longest that one rank waits for another.
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// From now on a rank waits so long for another one at most.
    pub const fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Whether its ranks are on several hosts, and share no memory.
    pub const fn spans_hosts(&self) -> bool {
        self.spans_hosts
    }

    /// From now on its ranks are on several hosts, or on one.
    pub const fn set_spans_hosts(&mut self, spans_hosts: bool) {
        self.spans_hosts = spans_hosts;
    }

    /// Whether this is the rank that decides and records: the first of the members.
    pub const fn is_root(&self) -> bool {
        self.place == 0
    }

    /// Brings the value of each rank to the root, in the order of the ranks; `None` elsewhere.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Option<Vec<T>>, Error> {
        self.check_failure()?;
        if !self.is_root() {
            let message = self.message(Ok(value))?;
            self.send(&[(0, message)])?;
            return Ok(None);
        }
        let due = self.due();
        let mut values = vec![value];
        for link in 0..self.links.len() {
            match self.receive(link, due) {
                Ok(value) => values.push(value),
                Err(err) => {
                    let heard = self.progress.borrow_mut().failure.take();
                    let Some(failure) = heard else { return Err(err) };
                    let cause = if failure.is_consequence { self.hear(Some(link)).0 } else { None };
                    let failure = cause.unwrap_or(failure);
                    self.relay(failure.clone());
                    return Err(failure.into());
                }
            }
        }
        Ok(Some(values))
    }

    /// The same, where some may not answer: the root has the ranks that did, each with its value,
    /// and those that did not, each with the reason.
    pub fn gather_from_some<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
    ) -> Result<Option<Answers<T>>, Error> {
        if !self.is_root() {
            return self.gather(value).map(|_| None);
        }
        self.check_failure()?;
        let due = self.due();
        let mut answers = Answers { values: vec![(self.rank(), value)], silent: Vec::new() };
        for link in 0..self.links.len() {
            // What has arrived is read, however long the links before it took.
            let due = due.max(Instant::now() + HEARING.min(self.deadline));
            let rank = Rank(self.peer(link));
            match self.receive(link, due) {
                Ok(value) => answers.values.push((rank, value)),
                Err(err @ (Error::Gone(_) | Error::Late { .. } | Error::Unreachable { .. })) => {
                    answers.silent.push((rank, err));
                }
                Err(err) => {
                    let failure = self.progress.borrow_mut().failure.take();
                    failure.into_iter().for_each(|failure| self.relay(failure));
                    return Err(err);
                }
            }
        }
        Ok(Some(answers))
    }

    /// Goes on without `ranks`, of whom the root is none. Each of the others calls it.
    pub fn leave_out(&mut self, ranks: &[Rank]) {
        let own = self.rank();
        for (place, member) in self.members.iter().enumerate().rev() {
            if ranks.contains(member) && place > 0 && self.place == 0 {
                self.links.remove(place - 1);
            }
        }
        self.members.retain(|member| !ranks.contains(member));
        self.place = self.members.iter().position(|member| *member == own).unwrap_or_default();
    }

    /// Brings the root's value to every rank.
    pub fn broadcast<T: Serialize + DeserializeOwned>(
        &mut self,
        value: Option<T>,
    ) -> Result<T, Error> {
        self.check_failure()?;
        if !self.is_root() {
            return self.receive(0, self.due());
        }
        let value = value.ok_or_else(|| self.misuse("the root has nothing to broadcast"))?;
        let message = self.message(Ok(&value))?;
        let messages: Vec<_> =
            (0..self.links.len()).map(|link| (link, Rc::clone(&message))).collect();
        self.send(&messages)?;
        Ok(value)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let all = self.gather(())?;
        self.broadcast(all.map(drop))
    }

    /// Brings each rank its own value of those that the root has, in the order of the ranks.
    pub fn scatter<T: Serialize + DeserializeOwned>(
        &mut self,
        values: Option<Vec<T>>,
    ) -> Result<T, Error> {
        self.check_failure()?;
        if !self.is_root() {
            return self.receive(0, self.due());
        }
        let missing = || self.misuse("the root has not one value for each rank");
        let values = values.filter(|values| values.len() == self.members.len());
        let mut values = values.ok_or_else(missing)?.into_iter();
        let own = values.next().ok_or_else(missing)?;
        let messages: Result<Vec<_>, Error> =
            values.enumerate().map(|(link, value)| Ok((link, self.message(Ok(value))?))).collect();
        self.send(&messages?)?;
        Ok(own)
    }

    /// Brings to each rank the values of those that it wants, in the order in which it does. The
    /// root calls `wants` for every rank; it must be the same function on all. A rank that is no
    /// member has no value.
    pub fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        value: T,
        wants: impl Fn(Rank) -> Vec<Rank>,
    ) -> Result<Vec<(Rank, T)>, Error> {
        let Some(values) = self.gather(value)? else {
            return self.receive(0, self.due());
        };
        let mut values: HashMap<Rank, T> = self.members.iter().copied().zip(values).collect();
        let mut messages = Vec::new();
        for (link, &member) in self.members.iter().skip(1).enumerate() {
            let wanted: Vec<(Rank, &T)> = wants(member)
                .into_iter()
                .filter_map(|rank| Some((rank, values.get(&rank)?)))
                .collect();
            messages.push((link, self.message(Ok(wanted))?));
        }
        self.send(&messages)?;
        let own = wants(self.rank()).into_iter();
        Ok(own.filter_map(|rank| Some((rank, values.remove(&rank)?))).collect())
    }

    /// Begins the next round; what is still under way of the one before is dropped. Every rank
    /// calls it the same number of times.
    pub fn next_round(&mut self) {
        let mut progress = self.progress.borrow_mut();
        progress.round += 1;
        progress.failure = None;
    }

    /// Tells the others that this rank gives up on this round and why.
    pub fn abandon(&mut self, reason: &str) {
        // A rank that has heard of another's failure has nothing of its own to report.
        if self.check_failure().is_ok() {
            let reason = reason.to_owned();
            self.relay(Failure { rank: self.rank(), reason, is_consequence: false });
        }
    }

    /// The same for a failure that may be a consequence of another rank's. The root listens for
    /// that cause, for a second at most, and tells it to all ranks instead.
    pub fn abandon_after(&mut self, reason: &str) -> Heard {
        if let Err(cause) = self.check_failure() {
            return Heard { cause: Some(cause), ..Heard::default() };
        }
        let (cause, gone, silent) = match self.is_root() {
            true => {
                let (cause, gone, silent) = self.hear(None);
                (cause, gone, Some(silent))
            }
            false => (None, None, None),
        };
        let (rank, reason) = (self.rank(), reason.to_owned());
        let own = Failure { rank, reason, is_consequence: true };
        self.relay(cause.clone().unwrap_or(own));
        Heard { cause: cause.map(Error::from), gone, silent }
    }

    /// The root's search for a failure that came of no other, for a rank that is gone, and for the
    /// ranks that have not failed; nothing was heard yet but on the link `heard`. A rank that fails
    /// says so in this round; one that does not may be waiting.
    fn hear(&mut self, heard: Option<usize>) -> (Option<Failure>, Option<Rank>, Vec<Rank>) {
        let due = Instant::now() + HEARING.min(self.deadline);
        let mut open: Vec<usize> =
            (0..self.links.len()).filter(|&link| Some(link) != heard).collect();
        let mut silent: Vec<Rank> = Vec::new();
        let mut cause = None;
        let mut gone = None;
        while !open.is_empty() && cause.is_none() && Instant::now() < due {
            open.retain(|&link| {
                let turn = Instant::now() + HEARING_TURN;
                let answer = self.receive::<serde_json::Value>(link, turn);
                if let Err(Error::Gone(rank)) = answer {
                    gone.get_or_insert(Rank(rank));
                }
                // What comes behind a failure is of the next round.
                let heard = self.progress.borrow_mut().failure.take();
                let is_open = matches!(answer, Ok(_) | Err(Error::Late { .. }));
                if heard.is_none() && !is_open {
                    silent.push(Rank(self.peer(link)));
                }
                cause = cause.take().or(heard.filter(|failure| !failure.is_consequence));
                is_open
            });
        }
        silent.extend(open.into_iter().map(|link| Rank(self.peer(link))));
        silent.sort_unstable();
        (cause, gone, silent)
    }

    /// Sends a failure over all links; errors of broken links are ignored.
    fn relay(&mut self, failure: Failure) {
        let message = self.message(Err::<(), _>(failure.clone()));
        self.progress.borrow_mut().failure = Some(failure);
        let Ok(message) = message else { return };
        for link in 0..self.links.len() {
            let _ = self.send(&[(link, Rc::clone(&message))]);
        }
    }

    /// The error of a call that breaks the protocol on this rank.
    fn misuse(&self, reason: &str) -> Error {
        Error::Protocol { rank: self.rank().0, reason: reason.to_owned() }
    }

    fn check_failure(&self) -> Result<(), Error> {
        match self.progress.borrow().failure.clone() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// The rank at the other end of a link.
    fn peer(&self, link: usize) -> u32 {
        let place = if self.is_root() { link + 1 } else { 0 };
        self.members.get(place).map_or(u32::MAX, |rank| rank.0)
    }

    /// How long this rank waits: for the root half as long again as the root for any other, so
    /// that the root, which knows the culprit, speaks first.
    fn limit(&self) -> Duration {
        if self.is_root() { self.deadline } else { self.deadline.saturating_mul(3) / 2 }
    }

    fn due(&self) -> Instant {
        Instant::now() + self.limit().min(FAR)
    }

    fn message<T: Serialize>(&self, body: Result<T, Failure>) -> Result<Rc<[u8]>, Error> {
        let round = self.progress.borrow().round;
        let simulated_ns = simulation::time_ns();
        let text = serde_json::to_vec(&Message { round, simulated_ns, body })
            .map_err(|err| self.misuse(&err.to_string()))?;
        Ok(text.into())
    }

    fn send(&mut self, messages: &[(usize, Rc<[u8]>)]) -> Result<(), Error> {
        let due = self.due();
        self.links.send(messages, due).map_err(|(link, err)| self.error(link, err))
    }

    /// The next value of this round from a link.
    fn receive<T: DeserializeOwned>(&mut self, link: usize, due: Instant) -> Result<T, Error> {
        let rank = self.peer(link);
        let protocol = |err: serde_json::Error| Error::Protocol { rank, reason: err.to_string() };
        loop {
            let text = self.links.receive(link, due).map_err(|err| self.error(link, err))?;
            // What an abandoned round left behind may be of any type: look at the round first.
            let header: Message<serde_json::Value> =
                serde_json::from_slice(&text).map_err(protocol)?;
            header.simulated_ns.into_iter().for_each(simulation::reach_ns);
            let round = self.progress.borrow().round;
            if header.round < round {
                continue;
            }
            return match header.body {
                Err(failure) => {
                    self.progress.borrow_mut().failure = Some(failure.clone());
                    Err(failure.into())
                }
                Ok(_) if header.round > round => Err(Error::Protocol {
                    rank,
                    reason: format!("it is in round {}, not {round}", header.round),
                }),
                Ok(value) => serde_json::from_value(value).map_err(protocol),
            };
        }
    }

    /// What is wrong with a link, said of the rank at its other end.
    fn error(&self, link: usize, err: LinkError) -> Error {
        let rank = self.peer(link);
        match err {
            LinkError::Gone => Error::Gone(rank),
            LinkError::Message(MessageError::Late) => Error::Late { rank, waited: self.limit() },
            LinkError::Message(MessageError::Call(source)) => Error::Unreachable { rank, source },
            LinkError::Message(err @ MessageError::TooLong(_)) => {
                Error::Protocol { rank, reason: err.to_string() }
            }
        }
    }
}
