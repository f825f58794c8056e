//! Synchronises the members of a case: each counts its steps in a cache line of shared memory,
//! where the others read them without a message.

use std::{sync::atomic::Ordering, time::Duration};

use super::{Error, TryingTo, Wait, patience::Patience};
use crate::{
    ffi::{
        process::Peer,
        shm::{Address, Segment},
    },
    plan::{Case, Rank},
    units::Bytes,
    world::{self, World},
};

/// Distance between words that different CPUs write: two cache lines of 64 bytes, since Intel's
/// prefetcher fetches lines in pairs (Intel 64 and IA-32 Optimization Reference Manual, "Data
/// Prefetching"), and one line of Apple's and some Arm cores.
pub(super) const LINE: usize = 128;

/// Where in its line a member says that it gave up.
const GAVE_UP: usize = 8;

/// This rank's view of the members of a case.
#[derive(Debug)]
pub(super) struct Control {
    /// A line for each member: its count of steps, and behind it ([`GAVE_UP`]) whether it gave up.
    segment: Segment,
    /// This rank's place among the members, if it is one.
    own: Option<usize>,
    peers: Vec<Member>,
    wait: Wait,
    /// The longest wait for another member.
    pub(super) deadline: Duration,
    /// Steps of this rank so far.
    pub(super) turn: u64,
}

/// Another rank with a part in the case.
#[derive(Debug)]
struct Member {
    rank: Rank,
    process: Peer,
    /// Where its line begins.
    line: usize,
}

impl Control {
    /// Connects the members of `case`; every rank calls it, those without a part too.
    pub(super) fn new(case: &Case, world: &mut World, wait: Wait) -> Result<Self, Error> {
        let members = case.members();
        let segment = share(world, Bytes::of_len(members.len() * LINE))?;
        let pids = world.exchange_among(std::process::id(), &members)?;
        let rank = world.rank();
        let member = |(place, &other): (usize, &Rank)| Member {
            rank: other,
            process: Peer::watch(pids.get(&other).copied().unwrap_or(0)),
            line: place * LINE,
        };
        let others = members.iter().enumerate().filter(|&(_, &other)| other != rank);
        Ok(Self {
            own: members.iter().position(|&member| member == rank),
            peers: others.map(member).collect(),
            segment,
            wait,
            deadline: world.deadline(),
            turn: 0,
        })
    }

    /// Whether this rank has a part in the case.
    pub(super) fn is_member(&self) -> bool {
        self.own.is_some()
    }

    /// A bounded wait for what another member does in the middle of a step.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.wait, self.deadline)
    }

    /// This rank has come one step further.
    #[inline]
    pub(super) fn step(&mut self) {
        self.turn += 1;
        if let Some(own) = self.own {
            self.segment.word(own * LINE).store(self.turn, Ordering::Release);
        }
    }

    /// Returns when every member has come as far as this rank.
    pub(super) fn wait_for_all(&self, waiting_for: &'static str) -> Result<(), Error> {
        for member in &self.peers {
            let turn = self.segment.word(member.line);
            // A quarter longer than a rank in the middle of a flow waits. That rank knows the
            // culprit, so it is to report first.
            let mut patience = Patience::new(self.wait, self.deadline + self.deadline / 4);
            while turn.load(Ordering::Acquire) < self.turn {
                self.look(&mut patience, member.rank, waiting_for)?;
            }
        }
        Ok(())
    }

    /// Called after each look in vain at what `rank` is to do. Now and then it checks the clock,
    /// and whether all members still live and go on.
    #[inline]
    pub(super) fn look(
        &self,
        patience: &mut Patience,
        rank: Rank,
        waiting_for: &'static str,
    ) -> Result<(), Error> {
        std::hint::spin_loop();
        if !patience.spin() {
            return Ok(());
        }
        self.check()?;
        patience.check(rank, waiting_for)
    }

    /// Whether all other members still live and go on.
    pub(super) fn check(&self) -> Result<(), Error> {
        for member in &self.peers {
            if member.process.has_ended() {
                return Err(world::Error::Gone(member.rank.0).into());
            }
            if self.segment.word(member.line + GAVE_UP).load(Ordering::Acquire) != 0 {
                return Err(Error::Abandoned(member.rank.0));
            }
        }
        Ok(())
    }

    /// Tells the other members that this one gave up. Its own error says why.
    pub(super) fn give_up(&self) {
        if let Some(own) = self.own {
            self.segment.word(own * LINE + GAVE_UP).store(1, Ordering::Release);
        }
    }
}

/// Memory that all ranks see: rank 0 makes it, and every rank calls.
pub(super) fn share(world: &mut World, size: Bytes) -> Result<Segment, Error> {
    let own = world.is_root().then(|| Segment::create(size)).transpose();
    let own = own.trying_to("share memory")?;
    let address = world.broadcast(own.as_ref().map(Segment::address))?;
    let segment = own.map_or_else(|| open(Some(address)), Ok)?;
    // It has no name: rank 0, which may not need it, keeps it until every rank has opened it.
    world.barrier()?;
    Ok(segment)
}

/// Opens what another rank offers.
pub(super) fn open(address: Option<Address>) -> Result<Segment, Error> {
    let address = address.ok_or(Error::Disagreement("a rank offers no segment"))?;
    Segment::open(address).map_err(Error::Open)
}
