//! Moving the bytes of collectives and messages: the process whose rank came last does it for all.

use std::{fs::File, sync::Mutex};

use super::{
    arithmetic::reduce,
    types::{Code, DataType, Function, Operation},
};
use crate::{
    contents::Copied,
    execute::lock,
    memory::{Mapping, PAGE},
    state::World,
    timing::{
        After,
        meeting::{Kind, Message, Post, Window},
        split_mix,
    },
};

/// Memory of other processes that was looked into; the least recently used goes.
static VIEWS: Mutex<Vec<(Window, Mapping)>> = Mutex::new(Vec::new());
/// How many of them stay.
const VIEWS_KEPT: usize = 256;

/// A stream has come to its post, which is entry `index` of this process's order of execution:
/// moves what nothing is missing for any more.
pub(crate) fn begin(world: &World, at: usize, index: u64) {
    let own = After { place: world.place as u32, index };
    let plane = world.plane();
    let post = plane.meetings.posts[at];
    match post.kind {
        Kind::Collective => {
            if post.mover != Some(own) || post.aborted {
                return;
            }
            let Some(parts) = plane.meetings.parts(&post) else { return };
            let posts: Vec<Post> = parts.iter().map(|&at| plane.meetings.posts[at]).collect();
            drop(plane);
            for post in posts.iter().filter(|post| post.place != own.place) {
                world.shared.board(post.place as usize).await_executed(post.until);
            }
            if move_or_leave(world, &posts).is_some() {
                let mut plane = world.plane();
                parts.into_iter().for_each(|at| plane.meetings.posts[at].moved = true);
            }
        }
        Kind::Messages => {
            let list = plane.meetings.messages_of(at).into_iter();
            let mut mine: Vec<(usize, Message)> = list
                .map(|(at, _)| (at, plane.meetings.messages[at]))
                .filter(|(_, message)| message.mover == Some(own))
                .collect();
            drop(plane);
            mine.sort_unstable_by_key(|(at, _)| *at);
            // One to oneself is in the list with both its ends.
            mine.dedup_by_key(|(at, _)| *at);
            for (at, message) in mine {
                for end in message.ends.iter().filter(|end| end.place != own.place) {
                    world.shared.board(end.place as usize).await_executed(end.until);
                }
                let [source, target] = message.ends.map(|end| end.window);
                let moved = view(&source).zip(view(&target)).map(|(from, to)| {
                    // SAFETY: both are windows of that many bytes that ranks have posted and keep
                    // until their streams have gone on, which they have not.
                    unsafe { std::ptr::copy(from, to, source.bytes as usize) };
                });
                world.plane().meetings.messages[at].moved = moved.is_some();
            }
        }
    }
}

/// The post's stream goes on: what it has received is there.
pub(crate) fn finish(world: &World, at: usize) {
    let plane = world.plane();
    let post = plane.meetings.posts[at];
    let list = plane.meetings.messages_of(at);
    let communicator = &plane.meetings.communicators[post.communicator as usize];
    let members = &communicator.members[..communicator.ranks as usize];
    let alone = members.iter().all(|member| member.place as usize == world.place);
    let messages: Vec<_> =
        list.iter().map(|&(at, end)| (plane.meetings.messages[at], end)).collect();
    drop(plane);
    if !post.aborted {
        for mover in messages.iter().filter_map(|(message, _)| message.mover) {
            if mover.place as usize != world.place {
                world.shared.board(mover.place as usize).await_executed(mover.index + 1);
            }
        }
        let received = messages.iter().filter(|(_, end)| *end == 1);
        let windows = received.map(|(message, _)| message.ends[1].window).chain([post.receive]);
        // What this process has moved itself, it has noted.
        let noted = post.mover.is_some_and(|mover| mover.place as usize == world.place)
            && post.kind == Kind::Collective
            && alone;
        if !noted {
            windows.for_each(|window| written(world, &window));
        }
    }
    let mut plane = world.plane();
    let moved = match post.kind {
        Kind::Collective => plane.meetings.posts[at].moved,
        Kind::Messages => list.iter().all(|&(at, _)| plane.meetings.messages[at].moved),
    };
    if !moved && !post.aborted {
        // The process that was to move them has died.
        let communicator = &mut plane.meetings.communicators[post.communicator as usize];
        communicator.members[post.rank as usize].error = Code::REMOTE_ERROR.0.cast_unsigned();
    }
    plane.meetings.remove(at);
}

/// Where a window is in this process; `None` if it cannot be reached from here.
fn view(window: &Window) -> Option<*mut u8> {
    if window.bytes == 0 {
        return Some(std::ptr::dangling_mut());
    }
    if window.pid == std::process::id() {
        return Some(window.address as *mut u8);
    }
    if window.descriptor < 0 {
        return None;
    }
    let mut views = lock(&VIEWS);
    let covers = |seen: &Window| {
        (seen.pid, seen.descriptor) == (window.pid, window.descriptor)
            && seen.offset <= window.offset
            && window.offset + window.bytes <= seen.offset + seen.bytes
    };
    let found = views.iter().position(|(seen, _)| covers(seen));
    let view = match found {
        Some(at) => views.remove(at),
        None => {
            let path = format!("/proc/{}/fd/{}", window.pid, window.descriptor);
            let file = File::options().read(true).write(true).open(path).ok()?;
            let before = window.offset % PAGE;
            let bytes = (before + window.bytes).next_multiple_of(PAGE);
            let mapping = Mapping::of_file(&file, window.offset - before, bytes).ok()?;
            if views.len() == VIEWS_KEPT {
                views.remove(0);
            }
            (Window { offset: window.offset - before, bytes, ..*window }, mapping)
        }
    };
    let start = view.1.start + (window.offset - view.0.offset);
    views.push(view);
    Some(start as *mut u8)
}

/// Does a collective, unless what it would leave is there already: a benchmark repeats itself.
fn move_or_leave(world: &World, posts: &[Post]) -> Option<()> {
    let own = posts.iter().all(|post| post.place as usize == world.place);
    if !own {
        return move_all(posts);
    }
    let contents = || world.executor.contents();
    let counted = |copied: &Copied| contents().writes(*copied, |at| world.shared.writes(at));
    let made: Vec<Copied> = posts.iter().map(copied).collect();
    let before: Vec<u64> = made.iter().map(counted).collect();
    let known = posts.iter().all(is_known);
    if known && made.iter().zip(&before).all(|(made, writes)| contents().has(*made, *writes)) {
        return Some(());
    }
    posts.iter().for_each(|post| written(world, &post.receive));
    move_all(posts)?;
    posts.iter().for_each(|post| written(world, &post.receive));
    // Where memory is shared with other processes, this one's writes are counted too: then nothing
    // is remembered.
    let after: Vec<u64> = made.iter().map(counted).collect();
    if known && before == after {
        for (made, writes) in made.into_iter().zip(after) {
            contents().copied(made, writes);
        }
    }
    Some(())
}

/// Whether only operations of the machine write what a rank sends and receives, and nothing in it
/// changes when it is done again.
fn is_known(post: &Post) -> bool {
    let device = |window: &Window| window.bytes == 0 || window.descriptor >= 0;
    post.wrong == 0 && device(&post.send) && device(&post.receive)
}

/// What is remembered of a rank's part of a collective: the longer of its ranges from both
/// beginnings, and what is done.
fn copied(post: &Post) -> Copied {
    let call = post.call;
    let parts = [call.function, call.data_type, call.operation, call.root, post.rank];
    let parts = parts.map(u64::from).into_iter().chain([
        call.count,
        post.scalar,
        u64::from(post.communicator) + 1,
    ]);
    Copied {
        target: post.receive.address,
        source: post.send.address,
        bytes: post.send.bytes.max(post.receive.bytes),
        // Never 0, which is a copy.
        what: parts.fold(1, |hash, part| split_mix(hash ^ part)) | 1,
    }
}

/// What is remembered of a range that is written counts no more.
fn written(world: &World, window: &Window) {
    if window.bytes > 0 {
        let counters = world.executor.contents().written(window.address, window.bytes);
        counters.into_iter().for_each(|counter| world.shared.count_write(counter));
    }
}

/// All ranks' memory of a collective, by rank.
struct Ranks {
    sends: Vec<*mut u8>,
    receives: Vec<*mut u8>,
    /// The bits of what each multiplies its elements with.
    factors: Vec<u64>,
}

/// Does what a collective does to all ranks' memory; `None` if some of it cannot be reached.
fn move_all(posts: &[Post]) -> Option<()> {
    let call = posts[0].call;
    let function = Function::of(call.function)?;
    let data_type = DataType::of(call.data_type)?;
    let ranks = Ranks {
        sends: posts.iter().map(|post| view(&post.send)).collect::<Option<_>>()?,
        receives: posts.iter().map(|post| view(&post.receive)).collect::<Option<_>>()?,
        factors: posts.iter().map(|post| post.scalar).collect(),
    };
    let bytes = (call.count * data_type.bytes()) as usize;
    if bytes == 0 {
        return Some(());
    }
    let operation = Operation::of(call.operation);
    let root = call.root as usize;
    match function {
        Function::AllReduce => {
            let reduced = ranks.reduced(data_type, operation, bytes);
            (0..posts.len()).for_each(|rank| ranks.receive(rank, 0, &reduced));
        }
        Function::Reduce => {
            let order = (1..=posts.len()).map(|step| (root + step) % posts.len());
            let mut reduced = vec![0; bytes];
            ranks.reduce((data_type, operation), order, 0, &mut reduced);
            ranks.receive(root, 0, &reduced);
        }
        Function::ReduceScatter => {
            let parts = (0..posts.len()).map(|part| {
                let order = (1..=posts.len()).map(move |step| (part + step) % posts.len());
                let mut reduced = vec![0; bytes];
                ranks.reduce((data_type, operation), order, part * bytes, &mut reduced);
                reduced
            });
            // In place a rank receives in the middle of what it sends.
            let parts: Vec<Vec<u8>> = parts.collect();
            parts.iter().enumerate().for_each(|(rank, part)| ranks.receive(rank, 0, part));
        }
        Function::AllGather => ranks.exchange(bytes, |_, _| Some((0, 1))),
        Function::Broadcast => {
            ranks.exchange(bytes, |source, _| (source == root).then_some((0, 0)));
        }
        Function::AlltoAll => ranks.exchange(bytes, |_, _| Some((1, 1))),
        Function::Gather => {
            ranks.exchange(bytes, |_, target| (target == root).then_some((0, 1)));
        }
        Function::Scatter => {
            ranks.exchange(bytes, |source, _| (source == root).then_some((1, 0)));
        }
        Function::SendRecv => return None,
    }
    for (rank, post) in posts.iter().enumerate() {
        if let Some(element) = post.wrong.checked_sub(1) {
            ranks.spoil(rank, element * data_type.bytes(), post.receive.bytes);
        }
    }
    Some(())
}

impl Ranks {
    /// What a rank sends from `offset` on.
    fn sent(&self, rank: usize, offset: usize, bytes: usize) -> &[u8] {
        // SAFETY: the rank has posted a window at least that long, which it keeps until its
        // stream goes on; nobody writes it while it is read, unless the program races.
        let start = unsafe { self.sends[rank].add(offset) };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// Puts bytes where a rank receives them.
    fn receive(&self, rank: usize, offset: usize, bytes: &[u8]) {
        // SAFETY: the rank has posted a window at least that long.
        let start = unsafe { self.receives[rank].add(offset) };
        // SAFETY: as above; where it receives in place the ranges are the same.
        unsafe { std::ptr::copy(bytes.as_ptr(), start, bytes.len()) };
    }

    /// Reduces `target.len()` bytes at `offset` of what ranks send, in an order of ranks.
    fn reduce(
        &self,
        (data_type, operation): (DataType, Operation),
        order: impl Iterator<Item = usize>,
        offset: usize,
        target: &mut [u8],
    ) {
        let input = |rank| (self.sent(rank, offset, target.len()), self.factors[rank]);
        let inputs: Vec<(&[u8], u64)> = order.map(input).collect();
        reduce(data_type, operation, &inputs, target);
    }

    /// All that ranks send reduced, as a ring does it: part *j* of as many as there are ranks
    /// begins with rank *j* + 1 and ends with rank *j*.
    fn reduced(&self, data_type: DataType, operation: Operation, bytes: usize) -> Vec<u8> {
        let ranks = self.sends.len();
        let size = data_type.bytes() as usize;
        let part = (bytes / size).div_ceil(ranks) * size;
        let mut reduced = vec![0; bytes];
        for (at, target) in reduced.chunks_mut(part).enumerate() {
            let order = (1..=ranks).map(|step| (at + step) % ranks);
            self.reduce((data_type, operation), order, at * part, target);
        }
        reduced
    }

    /// Moves blocks from every source to every target for which `blocks` says by how many blocks
    /// for each number of the partner: in the source for the target's, in the target for the
    /// source's.
    fn exchange(&self, bytes: usize, blocks: impl Fn(usize, usize) -> Option<(usize, usize)>) {
        for source in 0..self.sends.len() {
            for target in 0..self.receives.len() {
                if let Some((out, into)) = blocks(source, target) {
                    let block = self.sent(source, out * target * bytes, bytes);
                    self.receive(target, into * source * bytes, block);
                }
            }
        }
    }

    /// Turns one bit of what a rank has received, on purpose.
    fn spoil(&self, rank: usize, offset: u64, bytes: u64) {
        if offset >= bytes {
            return;
        }
        // SAFETY: the offset is inside of the window.
        let byte = unsafe { self.receives[rank].add(offset as usize) };
        // SAFETY: as above.
        let value = unsafe { byte.read() };
        // SAFETY: as above.
        unsafe { byte.write(value ^ 1) };
    }
}
