//! What the ranks of a case tell each other: 32 bits that travel with a write or a message. The
//! other end sees them when the data has arrived (`FI_REMOTE_CQ_DATA`).
//!
//! Signals are counted, so their order of arrival does not matter.

use std::collections::VecDeque;

use crate::{
    ffi::fabric::Posted,
    plan::{Meeting, Rank},
};

/// The most flows of one rank.
pub(super) const CHANNELS_MAX: usize = 1 << CHANNEL_BITS;

/// Turns and groups are counted modulo this.
pub(super) const TURNS_MAX: u64 = 1 << TURN_BITS;

const CHANNEL_BITS: u32 = 11;
const TURN_BITS: u32 = 18;

/// A signal. `channel` is the receiver's number of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The data of an operation has arrived: its number modulo the channel's turns.
    Data { channel: u32, turn: u64 },
    /// One more group of operations has arrived.
    Confirm { channel: u32 },
    /// No more operations follow: the number of groups in all, modulo [`TURNS_MAX`].
    Final { channel: u32, groups: u64 },
    /// A round of the barrier.
    Tell { round: u32 },
    /// The sender, `rank`, gives up on the case.
    GaveUp { rank: u32 },
    /// The other end of a staged flow may go on by one chunk.
    Turn { channel: u32 },
}

impl Signal {
    /// The signal as a word.
    pub(super) fn encode(self) -> u64 {
        let (kind, channel, payload) = match self {
            Self::Data { channel, turn } => (0, channel, turn),
            Self::Confirm { channel } => (1, channel, 0),
            Self::Final { channel, groups } => (2, channel, groups % TURNS_MAX),
            Self::Tell { round } => (3, 0, u64::from(round)),
            Self::GaveUp { rank } => (4, rank >> TURN_BITS, u64::from(rank) % TURNS_MAX),
            Self::Turn { channel } => (5, channel, 0),
        };
        kind << (CHANNEL_BITS + TURN_BITS) | u64::from(channel) << TURN_BITS | payload
    }

    /// The signal of a word; `None` if it is none.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let payload = word % TURNS_MAX;
        let channel = u32::try_from(word >> TURN_BITS & (CHANNELS_MAX as u64 - 1)).ok()?;
        Some(match word >> (CHANNEL_BITS + TURN_BITS) {
            0 => Self::Data { channel, turn: payload },
            1 => Self::Confirm { channel },
            2 => Self::Final { channel, groups: payload },
            3 => Self::Tell { round: u32::try_from(payload).ok()? },
            4 => Self::GaveUp { rank: channel << TURN_BITS | u32::try_from(payload).ok()? },
            5 => Self::Turn { channel },
            _ => return None,
        })
    }
}

/// Signals that the provider has not accepted yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Rank, Signal)>,
    /// The partners to whom nothing more can be sent for now.
    refused: Vec<Rank>,
}

impl Outbox {
    pub(super) fn with_capacity(signals: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(signals), refused: Vec::new() }
    }

    pub(super) fn push(&mut self, partner: Rank, signal: Signal) {
        self.waiting.push_back((partner, signal));
    }

    /// The partner that the oldest of them is for.
    pub(super) fn first(&self) -> Option<Rank> {
        self.waiting.front().map(|(partner, _)| *partner)
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Hands the signals to `post`; how many it accepted. What one partner does not take now, as it
    /// has stopped perhaps, does not keep back what others wait for.
    pub(super) fn post<E>(
        &mut self,
        mut post: impl FnMut(Rank, Signal) -> Result<Posted, E>,
    ) -> Result<u64, E> {
        self.refused.clear();
        let mut accepted = 0;
        for _ in 0..self.waiting.len() {
            let Some((partner, signal)) = self.waiting.pop_front() else { break };
            if self.refused.contains(&partner) {
                self.waiting.push_back((partner, signal));
            } else if post(partner, signal)? == Posted::Again {
                self.refused.push(partner);
                self.waiting.push_back((partner, signal));
            } else {
                accepted += 1;
            }
        }
        Ok(accepted)
    }
}

/// A dissemination barrier that advances step by step, so that a rank can work meanwhile.
#[derive(Debug)]
pub(super) struct Barrier {
    meetings: Vec<Meeting>,
    /// How often each round's signal has arrived, over all barriers.
    heard: Vec<u64>,
    /// The number of this barrier.
    number: u64,
    /// Its finished rounds.
    round: usize,
    has_told: bool,
}

impl Barrier {
    pub(super) fn new(meetings: Vec<Meeting>) -> Self {
        let heard = vec![0; meetings.len()];
        Self { meetings, heard, number: 0, round: 0, has_told: false }
    }

    /// Begins the next barrier.
    pub(super) fn begin(&mut self) {
        self.number += 1;
        self.round = 0;
        self.has_told = false;
    }

    /// Notes that the signal of `round` has arrived.
    pub(super) fn hear(&mut self, round: u32) {
        if let Some(heard) = self.heard.get_mut(round as usize) {
            *heard += 1;
        }
    }

    /// Advances as far as possible and calls `tell` for each round that it enters. Whether all
    /// ranks have come.
    pub(super) fn step(&mut self, mut tell: impl FnMut(Rank, u32)) -> bool {
        while let Some(meeting) = self.meetings.get(self.round) {
            if !self.has_told {
                tell(meeting.tell, u32::try_from(self.round).unwrap_or(u32::MAX));
                self.has_told = true;
            }
            if self.heard[self.round] < self.number {
                return false;
            }
            self.round += 1;
            self.has_told = false;
        }
        true
    }

    /// The rank that this one waits for.
    pub(super) fn missing(&self) -> Option<Rank> {
        self.meetings.get(self.round).map(|meeting| meeting.hear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_said() {
        let last = u32::try_from(CHANNELS_MAX - 1).unwrap();
        for signal in [
            Signal::Data { channel: 0, turn: 0 },
            Signal::Data { channel: last, turn: TURNS_MAX - 1 },
            Signal::Confirm { channel: last },
            Signal::Final { channel: 7, groups: 12 },
            Signal::Tell { round: 10 },
            Signal::GaveUp { rank: (1 << 29) - 1 },
            Signal::GaveUp { rank: 300_000 },
            Signal::Turn { channel: last },
        ] {
            let word = signal.encode();
            assert_eq!(Signal::decode(word), Some(signal));
            // EFA's completion data has four bytes.
            assert!(u32::try_from(word).is_ok());
        }
        let more = Signal::Final { channel: 7, groups: TURNS_MAX + 5 };
        assert_eq!(Signal::decode(more.encode()), Some(Signal::Final { channel: 7, groups: 5 }));
        assert_eq!(Signal::decode(7 << 29), None);
    }

    #[test]
    fn a_partner_that_takes_nothing_keeps_nothing_from_the_others() {
        let mut outbox = Outbox::default();
        for (partner, channel) in [(2, 0), (1, 1), (2, 2), (0, 3)] {
            outbox.push(Rank(partner), Signal::Confirm { channel });
        }
        let mut offered = Vec::new();
        let mut post = |stopped: Option<u32>| {
            outbox.post(|partner, signal| {
                offered.push((partner.0, signal));
                let is_stopped = stopped == Some(partner.0);
                Ok::<_, ()>(if is_stopped { Posted::Again } else { Posted::Yes })
            })
        };
        assert_eq!(post(Some(2)), Ok(2));
        assert_eq!(post(None), Ok(2));
        let of = |(partner, channel)| (partner, Signal::Confirm { channel });
        assert_eq!(offered, [(2, 0), (1, 1), (0, 3), (2, 0), (2, 2)].map(of));
        assert!(outbox.is_empty());
    }

    #[test]
    fn nobody_leaves_a_barrier_before_the_last_has_come() {
        let members: Vec<Rank> = (0..5).map(Rank).collect();
        let meetings = |place: usize| {
            let step = |by: usize| Meeting {
                tell: members[(place + by) % 5],
                hear: members[(place + 5 - by) % 5],
            };
            vec![step(1), step(2), step(4)]
        };
        let mut barriers: Vec<Barrier> =
            (0..5).map(|place| Barrier::new(meetings(place))).collect();
        for _ in 0..3 {
            let mut told: Vec<(Rank, u32)> = Vec::new();
            for (place, barrier) in barriers.iter_mut().enumerate().take(4) {
                barrier.begin();
                assert!(!barrier.step(|rank, round| told.push((rank, round))), "{place}");
            }
            let mut step_all = |barriers: &mut Vec<Barrier>, count: usize| {
                let mut left = 0;
                for _ in 0..20 {
                    for (rank, round) in std::mem::take(&mut told) {
                        barriers[rank.0 as usize].hear(round);
                    }
                    let waiting = barriers.iter_mut().take(count);
                    left = waiting
                        .filter_map(|barrier| {
                            barrier.step(|rank, round| told.push((rank, round))).then_some(())
                        })
                        .count();
                }
                left
            };
            assert_eq!(step_all(&mut barriers, 4), 0);
            barriers[4].begin();
            assert_eq!(step_all(&mut barriers, 5), 5);
            assert_eq!(barriers[2].missing(), None);
        }
    }
}
