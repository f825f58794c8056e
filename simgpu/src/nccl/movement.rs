//! Moving the bytes of collectives and messages: the process whose rank came last does it for all.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs::File,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{
    arithmetic::reduce,
    types::{Amount, Code, DataType, Function, Operation, Shape},
};
use crate::{
    execute::lock,
    memory::{
        Mapping, PAGE,
        content::{Content, Input, Reduction},
        contents::{Contents, range},
        repeats::Copied,
    },
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
/// Bytes of each rank that are reduced at once.
const BLOCK: usize = 64 << 10;

/// A stream has come to its post, which is entry `index` of this process's order of execution:
/// moves what nothing is missing for any more.
pub(crate) fn begin(world: &World, at: usize, index: u64) {
    let own = After { place: world.place as u32, index };
    let mut plane = world.plane();
    let post = plane.meetings.posts[at];
    if !plane.meetings.is_alone(&post, world.place) {
        let messages = plane.meetings.messages_of(at).into_iter();
        let windows = messages.map(|(at, end)| plane.meetings.messages[at].ends[end].window);
        let windows: Vec<Window> = windows.chain([post.send, post.receive]).collect();
        drop(plane);
        // Whichever process moves the bytes needs those, and those of the next operations.
        let mut contents = world.executor.contents();
        let mut windows = windows.iter().map(|window| range(window.address, window.bytes));
        if !windows.all(|window| contents.close(window)) {
            world.executor.fail_all();
        }
        drop(contents);
        plane = world.plane();
    }
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
                // Both are windows of that many bytes that ranks have posted and keep until their
                // streams have gone on, which they have not.
                let moved = view(&source).zip(view(&target)).map(|(from, to)| {
                    world.executor.contents().copy(to, from, source.bytes);
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
    let alone = plane.meetings.is_alone(&post, world.place);
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
fn view(window: &Window) -> Option<u64> {
    if window.bytes == 0 {
        return Some(window.address);
    }
    if window.pid == std::process::id() {
        return Some(window.address);
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
    Some(start)
}

/// Does a collective, unless what it would leave is there already: a benchmark repeats itself.
fn move_or_leave(world: &World, posts: &[Post]) -> Option<()> {
    let own = posts.iter().all(|post| post.place as usize == world.place);
    if !own {
        return move_all(world, posts);
    }
    let contents = || world.executor.contents();
    let counted =
        |copied: &Copied| contents().repeats.writes(*copied, |at| world.shared.writes(at));
    let made: Vec<Copied> = posts.iter().map(copied).collect();
    let before: Vec<u64> = made.iter().map(counted).collect();
    let known = posts.iter().all(is_known);
    if known
        && made.iter().zip(&before).all(|(made, writes)| contents().repeats.has(*made, *writes))
    {
        return Some(());
    }
    posts.iter().for_each(|post| written(world, &post.receive));
    move_all(world, posts)?;
    posts.iter().for_each(|post| written(world, &post.receive));
    // Where memory is shared with other processes, this one's writes are counted too: then nothing
    // is remembered.
    let after: Vec<u64> = made.iter().map(counted).collect();
    if known && before == after {
        for (made, writes) in made.into_iter().zip(after) {
            contents().repeats.copied(made, writes);
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
        let counters = world.executor.contents().repeats.written(window.address, window.bytes);
        counters.into_iter().for_each(|counter| world.shared.count_write(counter));
    }
}

/// All ranks' memory of a collective, by rank.
struct Ranks<'w> {
    contents: MutexGuard<'w, Contents>,
    sends: Vec<u64>,
    receives: Vec<u64>,
    /// The bits of what each multiplies its elements with.
    factors: Vec<u64>,
}

/// What some of a reduction leaves.
struct Part {
    /// Where it is put, in bytes from the beginning of the reduction.
    place: Range<u64>,
    left: Left,
}

enum Left {
    /// As if the reduction began at address 0.
    Described(Content),
    Bytes(Vec<u8>),
}

/// Does what a collective does to all ranks' memory; `None` if some of it cannot be reached.
fn move_all(world: &World, posts: &[Post]) -> Option<()> {
    let call = posts[0].call;
    let function = Function::of(call.function)?;
    let data_type = DataType::of(call.data_type)?;
    let mut ranks = Ranks {
        sends: posts.iter().map(|post| view(&post.send)).collect::<Option<_>>()?,
        receives: posts.iter().map(|post| view(&post.receive)).collect::<Option<_>>()?,
        factors: posts.iter().map(|post| post.scalar).collect(),
        contents: world.executor.contents(),
    };
    let bytes = call.count * data_type.bytes();
    if bytes == 0 {
        return Some(());
    }
    let operation = Operation::of(call.operation);
    let root = call.root as usize;
    let reduction = (data_type, operation);
    match function {
        Function::AllReduce => {
            // As a ring does it: part j of as many as there are ranks begins with rank j + 1.
            let part = call.count.div_ceil(posts.len() as u64) * data_type.bytes();
            let begins = (0..bytes).step_by(part as usize).enumerate();
            let reduced: Vec<Part> = begins
                .flat_map(|(at, begin)| {
                    ranks.reduced(reduction, at, begin..bytes.min(begin + part))
                })
                .collect();
            (0..posts.len()).for_each(|rank| ranks.receive(rank, 0, &reduced));
        }
        Function::Reduce => {
            let reduced = ranks.reduced(reduction, root, 0..bytes);
            ranks.receive(root, 0, &reduced);
        }
        Function::ReduceScatter => {
            // In place a rank receives in the middle of what it sends.
            let parts: Vec<Vec<Part>> = (0..posts.len())
                .map(|part| {
                    let begin = part as u64 * bytes;
                    ranks.reduced(reduction, part, begin..begin + bytes)
                })
                .collect();
            for (rank, part) in parts.iter().enumerate() {
                ranks.receive(rank, rank as u64 * bytes, part);
            }
        }
        Function::AllGather
        | Function::Broadcast
        | Function::AlltoAll
        | Function::Gather
        | Function::Scatter => ranks.exchange(function.shape(), root, bytes),
        Function::SendRecv => return None,
    }
    for (rank, post) in posts.iter().enumerate() {
        if let Some(element) = post.wrong.checked_sub(1) {
            ranks.spoil(rank, element * data_type.bytes(), post.receive.bytes);
        }
    }
    Some(())
}

impl Ranks<'_> {
    /// What a rank receives at the beginning, of a reduction from `offset` on.
    fn receive(&mut self, rank: usize, offset: u64, parts: &[Part]) {
        let start = self.receives[rank].wrapping_sub(offset);
        for Part { place, left } in parts {
            let target = start + place.start..start + place.end;
            match left {
                Left::Described(content) => self.contents.put(target, &content.moved(start)),
                Left::Bytes(bytes) => self.contents.put_bytes(target.start, bytes),
            }
        }
    }

    /// Reduces `range` of what ranks send: begins with the rank behind `last`, goes round and ends
    /// with that.
    fn reduced(
        &self,
        (data_type, operation): (DataType, Operation),
        last: usize,
        range: Range<u64>,
    ) -> Vec<Part> {
        let ranks = self.sends.len();
        let order: Vec<usize> = (1..=ranks).map(|step| (last + step) % ranks).collect();
        let size = data_type.bytes();
        // Between two of these no rank's description changes, but within an element.
        let mut cuts = BTreeSet::from([range.start, range.end]);
        for &start in &self.sends {
            let sent = start + range.start..start + range.end;
            for segment in self.contents.segments(&sent) {
                let cut = segment.range.start - start;
                let down = range.start + (cut - range.start) / size * size;
                cuts.extend([down, down + if down == cut { 0 } else { size }]);
            }
        }
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let parts = cuts.windows(2).map(|ends| {
            let place = ends[0]..ends[1];
            let inputs = order.iter().map(|&rank| {
                let start = self.sends[rank];
                let content = self.contents.content(&(start + place.start..start + place.end))?;
                let content = content.moved(start.wrapping_neg());
                Some(Input { content, factor: self.factors[rank] })
            });
            let inputs = inputs.collect::<Option<Vec<Input>>>();
            let reduction = inputs.map(|inputs| Reduction { data_type, operation, inputs });
            let left = match reduction.filter(Reduction::is_shallow) {
                Some(reduction) => {
                    let reduction = Arc::new(reduction);
                    Left::Described(Content::Reduced { reduction, start: 0 })
                }
                None => Left::Bytes(self.reduced_bytes((data_type, operation), &order, &place)),
            };
            Part { place, left }
        });
        parts.collect()
    }

    fn reduced_bytes(
        &self,
        (data_type, operation): (DataType, Operation),
        order: &[usize],
        place: &Range<u64>,
    ) -> Vec<u8> {
        let mut reduced = vec![0; (place.end - place.start) as usize];
        let mut begin = place.start;
        for target in reduced.chunks_mut(BLOCK) {
            let bytes = target.len() as u64;
            let sent: Vec<Cow<'_, [u8]>> = order
                .iter()
                .map(|&rank| self.contents.bytes(&range(self.sends[rank] + begin, bytes)))
                .collect();
            let factors = order.iter().map(|&rank| self.factors[rank]);
            let inputs: Vec<(&[u8], u64)> =
                sent.iter().map(|sent| &sent[..]).zip(factors).collect();
            reduce(data_type, operation, &inputs, target);
            begin += bytes;
        }
        reduced
    }

    /// Moves a block from every rank that sends to every rank that receives: that of the target's
    /// number where there is one for each, to the place of the source's number.
    fn exchange(&mut self, shape: Shape, root: usize, bytes: u64) {
        let ranks = self.sends.len();
        let members = |amount: Amount| if amount.is_at_root() { root..root + 1 } else { 0..ranks };
        let block =
            |amount: Amount, rank| if amount.is_for_all() { rank as u64 * bytes } else { 0 };
        for source in members(shape.sends) {
            for target in members(shape.receives) {
                let from = self.sends[source] + block(shape.sends, target);
                let to = self.receives[target] + block(shape.receives, source);
                self.contents.copy(to, from, bytes);
            }
        }
    }

    /// Turns one bit of what a rank has received, on purpose.
    fn spoil(&mut self, rank: usize, offset: u64, bytes: u64) {
        if offset < bytes {
            let address = self.receives[rank] + offset;
            let mut byte = [0];
            self.contents.read(address, &mut byte);
            self.contents.put_bytes(address, &[byte[0] ^ 1]);
        }
    }
}
