//! Where the ranks of communicators meet: who is in a communicator, what each rank has posted on
//! its stream, and when a collective or a message begins and ends.
//!
//! All of it is integers and starts as zeroes, as the rest of the plane.

use super::{
    GPUS, Guard, STREAMS, Work,
    cost::{Leg, Medium},
    plane::GateKind,
    settle::{After, Turns, slower},
};

/// Communicators of all processes together.
pub(crate) const COMMUNICATORS: usize = 256;
/// Ranks of a communicator: each has a GPU of its own.
pub(crate) const RANKS: usize = GPUS;
/// Operations of communicators that are queued and not executed.
const POSTS: usize = 8192;
/// Messages that are queued and not executed.
const MESSAGES: usize = 1 << 15;
/// How far from its own place in its table an entry can be.
const REACH: usize = 64;

/// Communicators, and what their ranks have posted.
#[repr(C)]
pub(crate) struct Meetings {
    pub communicators: [Communicator; COMMUNICATORS],
    pub posts: [Post; POSTS],
    pub messages: [Message; MESSAGES],
}

/// A communicator.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Communicator {
    /// What its ranks know it by; 0: nobody's place.
    pub nonce: u64,
    pub ranks: u32,
    /// Ranks that have joined, ever: all of them once it is whole.
    pub joined: u32,
    pub members: [Member; RANKS],
}

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Member {
    /// Whether it has joined, and whether it has left again.
    pub joined: bool,
    pub left: bool,
    /// Whether it was told to stop at once.
    pub aborted: bool,
    /// Whether its process died without leaving.
    pub dead: bool,
    pub place: u32,
    pub gpu: u32,
    /// The host that it says it is on.
    pub host: u64,
    /// The time of its host when it joined.
    pub joined_ps: u64,
    /// What it allows, as the model of the communicator has it.
    pub ways: u64,
    /// The error that its program is to be told of, or 0.
    pub error: u32,
    /// What it said at its last splits, by their numbers' parity: number plus 1, color, key.
    pub splits: [(u64, i64, i64); 2],
    /// How many windows it has begun to register.
    pub windows: u64,
}

/// Memory that a rank sends from or receives in.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Window {
    /// In the rank's own process.
    pub address: u64,
    pub bytes: u64,
    /// For other processes: its process, that one's descriptor of the file, and where in it; no
    /// descriptor is -1.
    pub pid: u32,
    pub descriptor: i32,
    pub offset: u64,
}

/// A collective as it was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Call {
    pub function: u32,
    pub data_type: u32,
    pub operation: u32,
    pub root: u32,
    pub count: u64,
}

/// What a post is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// A collective: begins when all ranks have come to it.
    #[default]
    Collective,
    /// Messages of one group: ends when all their partners have come.
    Messages,
}

/// An operation of one rank on its stream.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Post {
    pub used: bool,
    pub kind: Kind,
    pub communicator: u32,
    pub rank: u32,
    /// The how manieth of its kind of its rank.
    pub number: u64,
    pub place: u32,
    pub stream: u32,
    pub sequence: u64,
    pub call: Call,
    /// The factor of a sum that multiplies first, as the bits of its type.
    pub scalar: u64,
    pub send: Window,
    pub receive: Window,
    pub duration_ps: u64,
    /// What it sends over its link to the next rank.
    pub leg: Leg,
    pub leg_bytes: u64,
    /// The element that is to be wrong on purpose, plus 1.
    pub wrong: u64,
    /// For messages: the first one, plus 1.
    pub first: u32,
    /// Whether its stream may go on, from when, and whether it was told to without its partners.
    pub complete: bool,
    pub end_ps: u64,
    pub aborted: bool,
    /// Who moves the bytes of a collective, and what its own process has to have done before.
    pub mover: Option<After>,
    pub until: u64,
    /// Whether they have been moved.
    pub moved: bool,
}

/// A message from rank to rank: what its two ends say of it. The sender's is the first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Message {
    pub used: bool,
    pub communicator: u32,
    pub source: u32,
    pub target: u32,
    /// The how manieth from the one to the other.
    pub number: u64,
    pub ends: [End; 2],
    /// Whether both ends have come; who moves the bytes, and whether that is done.
    pub matched: bool,
    pub mover: Option<After>,
    pub moved: bool,
}

/// An end of a message.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct End {
    pub posted: bool,
    pub arrived: bool,
    pub arrived_ps: u64,
    /// Whether nobody waits at this end any more.
    pub left: bool,
    pub post: u32,
    pub window: Window,
    pub place: u32,
    /// What its process has to have done before the bytes are moved.
    pub until: u64,
    /// The post's next message, plus 1, and which of its ends is the post's.
    pub next: u32,
    pub leg: Leg,
}

/// A message as one rank posts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub source: u32,
    pub target: u32,
    pub number: u64,
    /// 0: it sends; 1: it receives.
    pub end: usize,
    pub window: Window,
    pub leg: Leg,
}

/// Why something cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no room as long as nothing is executed.
    Full,
    /// This rank has called the same collective with other arguments.
    Differs(u32),
}

/// Where an entry is looked for first.
fn hash(parts: [u64; 4], entries: usize) -> usize {
    let mixed = parts.iter().fold(0_u64, |hash, part| {
        (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    });
    (mixed >> 7) as usize % entries
}

impl Communicator {
    /// Whether all its ranks have joined.
    pub(crate) fn is_whole(&self) -> bool {
        self.joined == self.ranks
    }
}

impl Meetings {
    /// The communicator that `nonce` names.
    pub(crate) fn find(&self, nonce: u64) -> Option<usize> {
        self.communicators.iter().position(|found| found.nonce == nonce)
    }

    /// The same; it is made if it is not there.
    pub(crate) fn find_or_make(&mut self, nonce: u64, ranks: u32) -> Option<usize> {
        self.find(nonce).or_else(|| {
            let free = self.find(0)?;
            let made = &mut self.communicators[free];
            made.members = [Member::default(); RANKS];
            (made.ranks, made.joined, made.nonce) = (ranks, 0, nonce);
            Some(free)
        })
    }

    /// Where a rank's post is, or would have to be looked for.
    fn post_places(communicator: u32, rank: u32, kind: Kind, number: u64) -> [usize; REACH] {
        let parts = [u64::from(communicator), u64::from(rank), kind as u64, number];
        let first = hash(parts, POSTS);
        std::array::from_fn(|step| (first + step) % POSTS)
    }

    fn find_post(&self, communicator: u32, rank: u32, kind: Kind, number: u64) -> Option<usize> {
        let places = Self::post_places(communicator, rank, kind, number);
        places.into_iter().find(|&at| {
            let post = &self.posts[at];
            post.used
                && (post.communicator, post.rank) == (communicator, rank)
                && (post.kind, post.number) == (kind, number)
        })
    }

    /// All ranks' posts of a collective, once there are all.
    pub(crate) fn parts(&self, post: &Post) -> Option<Vec<usize>> {
        let ranks = self.communicators[post.communicator as usize].ranks;
        let of = |rank| self.find_post(post.communicator, rank, post.kind, post.number);
        (0..ranks).map(of).collect()
    }

    /// Whether all ranks of a post's communicator are of the process at `place`.
    pub(crate) fn is_alone(&self, post: &Post, place: usize) -> bool {
        let communicator = &self.communicators[post.communicator as usize];
        let members = &communicator.members[..communicator.ranks as usize];
        members.iter().all(|member| member.place as usize == place)
    }

    /// Puts a rank's post where the others find it.
    pub(crate) fn add(&mut self, post: Post) -> Result<usize, Refusal> {
        let ranks = self.communicators[post.communicator as usize].ranks;
        if post.kind == Kind::Collective {
            let others = (0..ranks).filter(|&rank| rank != post.rank);
            for rank in others {
                let other = self.find_post(post.communicator, rank, post.kind, post.number);
                if other.is_some_and(|other| self.posts[other].call != post.call) {
                    return Err(Refusal::Differs(rank));
                }
            }
        }
        let mut places =
            Self::post_places(post.communicator, post.rank, post.kind, post.number).into_iter();
        let at = places.find(|&at| !self.posts[at].used).ok_or(Refusal::Full)?;
        self.posts[at] = Post { used: true, ..post };
        Ok(at)
    }

    /// Puts a message's end where the other end finds it, and in the list of its post.
    pub(crate) fn add_message(&mut self, post: usize, posted: Posted) -> Result<(), Refusal> {
        let communicator = self.posts[post].communicator;
        let Posted { source, target, number, end, window, leg } = posted;
        let ends = u64::from(source) << 32 | u64::from(target);
        let first = hash([u64::from(communicator), ends, number, 7], MESSAGES);
        let places = (0..REACH).map(|step| (first + step) % MESSAGES);
        let same = places.clone().find(|&at| {
            let message = &self.messages[at];
            message.used
                && message.communicator == communicator
                && (message.source, message.target) == (source, target)
                && message.number == number
        });
        if let Some(at) = same {
            let other = &self.messages[at].ends[1 - end];
            if other.posted && other.window.bytes != window.bytes {
                return Err(Refusal::Differs(if end == 0 { target } else { source }));
            }
        }
        let free = || places.clone().find(|&at| !self.messages[at].used);
        let at = same.or_else(free).ok_or(Refusal::Full)?;
        if same.is_none() {
            self.messages[at] =
                Message { used: true, communicator, source, target, number, ..Message::default() };
        }
        let next = self.posts[post].first;
        let place = self.posts[post].place;
        self.messages[at].ends[end] = End {
            posted: true,
            post: post as u32,
            window,
            place,
            next,
            leg,
            ..self.messages[at].ends[end]
        };
        // Which end it is goes along, since a message to oneself has both.
        self.posts[post].first = (at as u32 * 2 + end as u32) + 1;
        Ok(())
    }

    /// The messages of a post, each with the end that is the post's.
    pub(crate) fn messages_of(&self, post: usize) -> Vec<(usize, usize)> {
        let mut list = Vec::new();
        let mut next = self.posts[post].first;
        while let Some(link) = next.checked_sub(1) {
            let (at, end) = (link as usize / 2, link as usize % 2);
            list.push((at, end));
            next = self.messages[at].ends[end].next;
        }
        list
    }

    /// The post has been executed, or will never be: its place is free.
    pub(crate) fn remove(&mut self, post: usize) {
        for (at, end) in self.messages_of(post) {
            let message = &mut self.messages[at];
            message.ends[end].left = true;
            if message.ends.iter().all(|end| end.left || !end.posted) {
                message.used = false;
            }
        }
        self.posts[post].used = false;
    }

    /// A rank leaves its communicator; with the last one it is gone.
    pub(crate) fn leave(&mut self, communicator: usize, rank: usize) {
        self.communicators[communicator].members[rank].left = true;
        self.free_if_empty(communicator);
    }

    fn free_if_empty(&mut self, communicator: usize) {
        let found = &mut self.communicators[communicator];
        let members = &found.members[..found.ranks as usize];
        if members.iter().any(|member| member.joined && !member.left) {
            return;
        }
        found.nonce = 0;
        for message in &mut self.messages {
            message.used &= message.communicator as usize != communicator;
        }
    }

    /// Takes back what a process had that has ended.
    pub(crate) fn bury(&mut self, place: usize) {
        for at in 0..COMMUNICATORS {
            if self.communicators[at].nonce == 0 {
                continue;
            }
            let ranks = self.communicators[at].ranks as usize;
            let members = self.communicators[at].members[..ranks].iter_mut();
            let mut touched = false;
            for member in members.filter(|m| m.joined && !m.left && m.place as usize == place) {
                (member.left, member.dead, touched) = (true, true, true);
            }
            if !touched {
                continue;
            }
            let theirs = |post: &Post| post.used && post.place as usize == place;
            let posts: Vec<usize> = (0..POSTS).filter(|&post| theirs(&self.posts[post])).collect();
            posts.into_iter().for_each(|post| self.remove(post));
            self.free_if_empty(at);
        }
    }
}

impl Guard<'_> {
    /// A stream has come to the post at its head; whoever has waited for it may go on.
    pub(super) fn arrive(&mut self, at: usize, turns: &mut Turns) {
        let post = self.meetings.posts[at];
        let member =
            &self.meetings.communicators[post.communicator as usize].members[post.rank as usize];
        if post.complete {
            // Its process began to let it go on, and died.
            self.pass(post.stream as usize, post.end_ps, post.mover, turns);
        } else if member.aborted {
            self.abandon(at, turns);
        } else {
            match post.kind {
                Kind::Collective => self.gather(&post, turns),
                Kind::Messages => self.match_messages(at, turns),
            }
        }
    }

    /// Whether a post's stream has come to it and waits there.
    fn waits(&self, at: usize) -> bool {
        let post = &self.meetings.posts[at];
        !post.complete && self.is_closed(post.stream as usize, post.sequence)
    }

    /// The place in the order of its process that the last step of `place` has.
    fn last_step(&self, place: u32) -> After {
        let timed = self.shared.board(place as usize).timed();
        After { place, index: timed.saturating_sub(1) }
    }

    /// Lets all ranks go on with a collective to which the last one has come.
    fn gather(&mut self, last: &Post, turns: &mut Turns) {
        let Some(parts) = self.meetings.parts(last) else { return };
        if !parts.iter().all(|&at| self.waits(at)) {
            return;
        }
        let posts: Vec<Post> = parts.iter().map(|&at| self.meetings.posts[at]).collect();
        let arrived = posts.iter().map(|post| self.streams[post.stream as usize].end_ps);
        let start_ps = arrived.max().unwrap_or(0);
        let legs: Vec<(Leg, u64)> = posts.iter().map(|post| (post.leg, post.leg_bytes)).collect();
        let end_ps = self.count(&legs, start_ps, posts[0].duration_ps);
        let mover = self.last_step(last.place);
        for &at in &parts {
            let until = self.shared.board(self.meetings.posts[at].place as usize).timed();
            let post = &mut self.meetings.posts[at];
            (post.end_ps, post.until, post.mover) = (end_ps, until, Some(mover));
            post.complete = true;
        }
        for post in posts {
            self.pass(post.stream as usize, end_ps, Some(mover), turns);
        }
    }

    /// Counts traffic; when what makes it ends.
    fn count(&mut self, legs: &[(Leg, u64)], start_ps: u64, duration_ps: u64) -> u64 {
        for (leg, bytes) in legs {
            if leg.medium != Medium::None {
                self.shared.count_traffic(*leg, *bytes);
            }
        }
        let ends: Vec<(u16, u16)> = legs.iter().map(|(leg, _)| (leg.source, leg.target)).collect();
        let clock = self.clock_share(&ends, start_ps);
        self.end_ps(&ends, start_ps, slower(duration_ps, clock))
    }

    /// A rank's messages are there: those whose other end is there too can be moved.
    fn match_messages(&mut self, at: usize, turns: &mut Turns) {
        let post = self.meetings.posts[at];
        let now_ps = self.streams[post.stream as usize].end_ps;
        let list = self.meetings.messages_of(at);
        for &(message, end) in &list {
            let end = &mut self.meetings.messages[message].ends[end];
            (end.arrived, end.arrived_ps) = (true, now_ps);
        }
        let mover = self.last_step(post.place);
        let mut touched = vec![at];
        for (message, _) in list {
            let found = self.meetings.messages[message];
            if found.matched || !found.ends.iter().all(|end| end.arrived) {
                continue;
            }
            let until = found.ends.map(|end| self.shared.board(end.place as usize).timed());
            let message = &mut self.meetings.messages[message];
            (message.matched, message.mover) = (true, Some(mover));
            for (end, until) in message.ends.iter_mut().zip(until) {
                end.until = until;
            }
            touched.extend(found.ends.map(|end| end.post as usize));
        }
        touched.sort_unstable();
        touched.dedup();
        for at in touched {
            self.end_messages(at, turns);
        }
    }

    /// Lets a rank go on if all its messages have their other ends.
    fn end_messages(&mut self, at: usize, turns: &mut Turns) {
        let list = self.meetings.messages_of(at);
        let messages: Vec<(Message, usize)> =
            list.iter().map(|&(message, end)| (self.meetings.messages[message], end)).collect();
        if !self.waits(at) || !messages.iter().all(|(message, _)| message.matched) {
            return;
        }
        let post = self.meetings.posts[at];
        let ends = messages.iter().flat_map(|(message, _)| message.ends);
        let begun = self.streams[post.stream as usize].end_ps;
        let start_ps = ends.map(|end| end.arrived_ps).fold(begun, u64::max);
        let sent = messages.iter().filter(|(_, end)| *end == 0);
        let legs: Vec<(Leg, u64)> =
            sent.map(|(message, _)| (message.ends[0].leg, message.ends[0].window.bytes)).collect();
        let end_ps = self.count(&legs, start_ps, post.duration_ps);
        let post = &mut self.meetings.posts[at];
        (post.end_ps, post.complete) = (end_ps, true);
        let stream = post.stream as usize;
        self.pass(stream, end_ps, None, turns);
    }

    /// Lets a post's stream go on without its partners.
    fn abandon(&mut self, at: usize, turns: &mut Turns) {
        let now_ps = self.shared.host_ps(self.host);
        let post = &mut self.meetings.posts[at];
        (post.complete, post.aborted, post.end_ps) = (true, true, now_ps);
        let stream = post.stream as usize;
        self.pass(stream, now_ps, None, turns);
    }

    /// Frees the streams that wait for partners of a rank that is told to stop.
    pub(crate) fn abort(&mut self, communicator: usize, rank: usize) {
        self.meetings.communicators[communicator].members[rank].aborted = true;
        let waiting: Vec<usize> = (0..POSTS)
            .filter(|&at| {
                let post = &self.meetings.posts[at];
                post.used
                    && (post.communicator as usize, post.rank as usize) == (communicator, rank)
                    && !post.complete
                    && self.is_closed(post.stream as usize, post.sequence)
            })
            .collect();
        let mut turns = Turns::new();
        for at in waiting {
            self.abandon(at, &mut turns);
        }
        self.settle(None, turns);
    }

    /// Takes up again what a process began that died with the lock.
    pub(super) fn arrive_again(&mut self) {
        let gated = (0..STREAMS).filter(|&at| self.streams[at].gate);
        let posts: Vec<usize> = gated
            .filter_map(|stream| match self.head(stream).work {
                Work::Gate(gate) if gate.kind == GateKind::Meet => Some(gate.key.offset as usize),
                _ => None,
            })
            .collect();
        let mut turns = Turns::new();
        for at in posts {
            self.arrive(at, &mut turns);
        }
        self.settle(None, turns);
    }
}
