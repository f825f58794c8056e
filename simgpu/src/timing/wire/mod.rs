//! Network endpoints of all processes: what is under way between them, and when it is there.
//!
//! Knows nothing of libfabric's structures and of bytes. `docs/simulated-network.md`
//! has the formulas. As the rest of the plane it is integers and starts as zeroes, since it lies in a
//! file that all processes map.

mod agenda;
mod parts;
mod pool;

use super::{GPUS, monotonic_ns, ps_of_bytes, ps_of_ns, settle::split_mix_from};
use crate::machine::NicFault;
use agenda::Agenda;
pub(crate) use parts::{
    Counts, End, Endpoint, Flight, Held, Kind, LIFESPAN_MS, Memory, Move, Nic, Note, NoteKind,
    Order, PACKET, Pcie, Side, User, Way,
};
use parts::{Link, List, Region};
use pool::{NONE, Pool};

/// Network interfaces of a machine.
pub(crate) const NICS: usize = 320;
/// Threads that have endpoints.
const USERS: usize = 256;
/// Endpoints of all processes together.
pub(crate) const ENDPOINTS: usize = 4096;
/// Operations of all endpoints that are under way.
pub(crate) const FLIGHTS: usize = 1 << 16;
/// Completions of all queues that nobody has fetched, and receives that wait for messages.
const NOTES: usize = 1 << 18;

/// Regions of memory that interfaces reach.
const REGIONS: usize = 1 << 16;

/// All that is under way on the network.
#[repr(C)]
pub(crate) struct Wires {
    /// Operations that were ever started: the seed of each one's delay, and its turn among those
    /// that are due at the same time.
    pub started: u64,
    /// Endpoints that were ever opened; a number is never given twice.
    pub opened: u64,
    pub endpoints: [Endpoint; ENDPOINTS],
    /// When each interface is free for the next operation, and its link out and in.
    pub nics: [Nic; NICS],
    pub users: [User; USERS],
    /// The last byte that was written to each GPU that does not order such writes.
    pub held: [Held; GPUS],
    /// Operations of all endpoints that were accepted and are not over.
    under_way: u32,
    /// Behind the last endpoint that was ever taken, and behind the last user.
    end: u32,
    users_end: u32,
    /// Those that were told something and do not know it yet, by bits.
    told: [u64; ENDPOINTS / 64],
    regions: Pool<Region, REGIONS>,
    flights: Pool<Flight, FLIGHTS>,
    notes: Pool<Note, NOTES>,
    agenda: Agenda<FLIGHTS>,
}

impl Wires {
    /// Interfaces reach so many bytes from `start` on from now on; their key.
    pub(crate) fn register(&mut self, start: Memory, bytes: u64) -> Option<u64> {
        self.opened += 1;
        let number = self.opened as u32;
        let at = self.regions.take(Region { start, bytes, number })?;
        Some(u64::from(number) << 32 | u64::from(at))
    }

    pub(crate) fn deregister(&mut self, key: u64) {
        let at = key as u32;
        self.regions.get_mut(at).number = 0;
        self.regions.give_back(at);
    }

    /// The memory at `address`, if all of so many bytes is in the region with this key.
    pub(crate) fn reach(&self, key: u64, address: u64, bytes: u64) -> Option<Memory> {
        let at = key as u32;
        let region = (1..=REGIONS as u32).contains(&at).then(|| self.regions.get(at))?;
        let start = region.start.address;
        let is_inside = address >= start
            && address.checked_add(bytes).is_some_and(|end| end <= start + region.bytes);
        let is_there = u64::from(region.number) == key >> 32 && is_inside;
        is_there.then_some(Memory { address, ..region.start })
    }

    /// Threads with endpoints.
    pub(crate) fn threads(&self) -> usize {
        self.users().iter().filter(|user| user.endpoints > 0).count()
    }

    /// Those that there are, with gaps.
    fn users(&self) -> &[User] {
        &self.users[..self.users_end as usize]
    }

    /// The number of a thread among those with endpoints, if it has any.
    pub(crate) fn user(&self, place: usize, thread: u32) -> Option<usize> {
        let is_it = |user: &User| (user.place as usize, user.thread) == (place, thread);
        self.users().iter().position(is_it)
    }

    /// Takes an endpoint for a thread of a process.
    pub(crate) fn open(
        &mut self,
        (place, thread): (usize, u32),
        pid: u32,
        nic: u32,
        queue_size: u32,
    ) -> Option<u32> {
        let free = self.endpoints.iter().position(|endpoint| endpoint.number == 0)?;
        let is_free = |user: &User| user.endpoints == 0;
        let user = match self.user(place, thread) {
            Some(user) => user,
            None => {
                let user = self.users.iter().position(is_free)?;
                self.users[user] = User { thread, place: place as u32, ..User::default() };
                self.users_end = self.users_end.max(user as u32 + 1);
                user
            }
        };
        self.opened += 1;
        let (number, user) = (self.opened, user as u32);
        self.endpoints[free] =
            Endpoint { number, user, pid, nic, queue_size, ..Endpoint::default() };
        self.users[user as usize].endpoints += 1;
        self.end = self.end.max(free as u32 + 1);
        Some(free as u32)
    }

    /// Gives an endpoint back; what is under way to it fails, and what is under way from it ends
    /// unseen.
    pub(crate) fn close(&mut self, at: u32) {
        let Endpoint { user, queue, receives, spent, unrung, .. } = self.endpoints[at as usize];
        self.under_way -= unrung;
        let user = &mut self.users[user as usize];
        user.endpoints -= 1;
        if user.endpoints == 0 {
            *user = User::default();
        }
        for list in [queue, receives, spent] {
            let mut next = list.first;
            while next != NONE {
                let after = self.notes.get(next).next;
                self.notes.give_back(next);
                next = after;
            }
        }
        let early = self.endpoints[at as usize].early;
        self.endpoints[at as usize] = Endpoint::default();
        let mut next = early.first;
        while next != NONE {
            let after = self.flights.get(next).next;
            self.fail(next);
            next = after;
        }
    }

    /// Gives back what a process owned that has died.
    pub(crate) fn bury(&mut self, place: usize) {
        for at in 0..self.end {
            let endpoint = &self.endpoints[at as usize];
            let is_own = self.users[endpoint.user as usize].place as usize == place;
            if endpoint.number != 0 && is_own {
                self.close(at);
            }
        }
    }

    /// Takes an operation on that is to be started on an endpoint, if it has fewer than `limit`.
    pub(crate) fn accept(&mut self, at: u32, limit: u32) -> bool {
        let endpoint = &mut self.endpoints[at as usize];
        let has_room = endpoint.under_way < limit && (self.under_way as usize) < FLIGHTS;
        if has_room {
            endpoint.under_way += 1;
            endpoint.unrung += 1;
            self.under_way += 1;
        }
        has_room
    }

    /// Starts an operation at `now_ps` that was accepted; `free_ps` is when the machine's resources
    /// are free.
    pub(crate) fn start(&mut self, order: Order, way: Way, now_ps: u64, free_ps: &mut [u64]) {
        let endpoint = &mut self.endpoints[order.from as usize];
        let (from_number, user) = (endpoint.number, endpoint.user);
        endpoint.unrung -= 1;
        endpoint.idle = 0;
        let flight = Flight { order, from_number, is_there: false, back_ps: 0, next: NONE };
        let at = self.flights.take(flight).expect("no more are accepted than there are places");
        self.started += 1;
        let user = &mut self.users[user as usize];
        user.posted_ps = user.posted_ps.max(now_ps) + ps_of_ns(way.post_ns);
        let posted_ps = user.posted_ps;
        let there_ps = self.time(order, way, posted_ps, free_ps);
        let back_ns = if order.kind == Kind::Read { 0.0 } else { way.latency_ns };
        self.flights.get_mut(at).back_ps = ps_of_ns(back_ns);
        self.agenda.push(there_ps, self.started, at);
    }

    /// An operation is over.
    fn give_back(&mut self, at: u32) {
        self.flights.give_back(at);
        self.under_way -= 1;
    }

    /// When the data of an operation is there, and what it keeps busy.
    fn time(&mut self, order: Order, way: Way, posted_ps: u64, free_ps: &mut [u64]) -> u64 {
        let endpoints = [order.from, order.to].map(|at| self.endpoints[at as usize]);
        let [near, far] = endpoints.map(|endpoint| endpoint.nic as usize % NICS);
        let begin_ps = posted_ps.max(self.nics[near].free_ps);
        self.nics[near].free_ps = begin_ps + ps_of_ns(way.operation_ns);
        let ready_ps = self.nics[near].free_ps;
        // Of a read the request goes there first, and the data goes the other way.
        let (source, target, ready_ps) = match order.kind {
            Kind::Read => (far, near, ready_ps + ps_of_ns(way.latency_ns)),
            Kind::Write | Kind::Message => (near, far, ready_ps),
        };
        let mut pass = |link: &mut Link, side: Side, from_ps: u64| {
            let pcie = side.pcie.map(|pcie| (&mut free_ps[pcie.resource], pcie.gb_s));
            let free_ps = link.free_ps(order.bytes);
            let begin_ps = from_ps.max(free_ps).max(pcie.as_ref().map_or(0, |pcie| *pcie.0));
            let takes_ps = ps_of_bytes(order.bytes, side.link_gb_s);
            let mut end_ps = link.pass(order.bytes, begin_ps, takes_ps);
            if let Some((free_ps, gb_s)) = pcie {
                *free_ps = begin_ps + ps_of_bytes(order.bytes, gb_s);
                end_ps = end_ps.max(*free_ps);
            }
            (begin_ps, end_ps)
        };
        let [out, into] = way.sides;
        let (out_begin_ps, out_end_ps) = pass(&mut self.nics[source].out, out, ready_ps);
        let (_, in_end_ps) = pass(&mut self.nics[target].into, into, out_begin_ps);
        // One that is alone is behind nothing.
        let late_ps = match endpoints[0].under_way {
            ..=1 => 0,
            _ => split_mix_from(way.seed, self.started) % (ps_of_ns(way.shuffle_ns) + 1),
        };
        out_end_ps.max(in_end_ps) + ps_of_ns(way.latency_ns) + late_ps
    }

    /// When the next thing happens, if anything is under way or looked for.
    pub(crate) fn next_ps(&self) -> Option<u64> {
        let wakes = self.users().iter().map(|user| user.wake_ps).filter(|ps| *ps != 0);
        let due_ps = self.agenda.first().map(|(due_ps, _)| due_ps);
        due_ps.into_iter().chain(wakes).min()
    }

    /// All endpoints that are open.
    pub(crate) fn open_endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints[..self.end as usize].iter().filter(|endpoint| endpoint.number != 0)
    }

    /// A thread has looked for what happens on a GPU at `time_ps`, in vain; `waits`: for nothing else.
    pub(crate) fn look(&mut self, user: usize, time_ps: u64, waits: bool) {
        let user = &mut self.users[user];
        user.looks |= waits;
        if user.wake_ps == 0 || time_ps < user.wake_ps {
            user.wake_ps = time_ps;
        }
    }

    /// Those for whom something has happened by `now_ps` are to look before time goes on; who they
    /// are, and when it has.
    pub(crate) fn wake(&mut self, now_ps: u64) -> Vec<(User, u64)> {
        let is_due = |user: &usize| (1..=now_ps).contains(&self.users[*user].wake_ps);
        let due: Vec<usize> = (0..self.users_end as usize).filter(is_due).collect();
        let woken = due.iter().map(|&user| (self.users[user], self.users[user].wake_ps)).collect();
        due.into_iter().for_each(|user| self.rouse(user));
        woken
    }

    /// A thread is to look at all of its endpoints before time goes on.
    pub(crate) fn rouse(&mut self, user: usize) {
        (self.users[user].wake_ps, self.users[user].looks) = (0, false);
        for at in 0..self.end as usize {
            let endpoint = &mut self.endpoints[at];
            if endpoint.number != 0 && endpoint.user as usize == user {
                endpoint.idle = 0;
                self.told[at / 64] |= 1 << (at % 64);
            }
        }
    }

    /// The endpoints that were told something since this was last asked, and the place of each one's
    /// process.
    pub(crate) fn take_told(&mut self) -> impl Iterator<Item = (u32, u32)> {
        let all = std::mem::replace(&mut self.told, [0; ENDPOINTS / 64]);
        let bits = |(word, bits): (usize, u64)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word as u32 * 64 + bit)
        };
        let told = all.into_iter().enumerate().filter(|(_, bits)| *bits != 0).flat_map(bits);
        let user = |at: u32| &self.users[self.endpoints[at as usize].user as usize];
        told.map(move |at| (at, user(at).place))
    }

    /// When the next thing happens, if it does by `now_ps`, and the threads that it happens to.
    pub(crate) fn due(&self, now_ps: u64) -> Option<(u64, [Option<User>; 2])> {
        let (due_ps, at) = self.agenda.first().filter(|(due_ps, _)| *due_ps <= now_ps)?;
        let Flight { order, from_number, is_there, .. } = *self.flights.get(at);
        let far = (!is_there).then_some((order.to, order.to_number));
        let user = |end: Option<(u32, u64)>| {
            let (at, _) = end.filter(|&(at, number)| self.is_live(at, number))?;
            Some(self.users[self.endpoints[at as usize].user as usize])
        };
        Some((due_ps, [Some((order.from, from_number)), far].map(user)))
    }

    /// Lets it happen: bytes to be moved, which the caller does before it asks again, or nothing.
    pub(crate) fn step(&mut self) -> Option<Move> {
        let (due_ps, at) = self.agenda.first()?;
        self.agenda.pop();
        if self.flights.get(at).is_there {
            self.end(at);
            return None;
        }
        self.arrive(at, due_ps)
    }

    fn is_live(&self, at: u32, number: u64) -> bool {
        self.endpoints[at as usize].number == number
    }

    /// The data of an operation comes to its target.
    fn arrive(&mut self, at: u32, due_ps: u64) -> Option<Move> {
        let Flight { order, from_number, .. } = *self.flights.get(at);
        if !self.is_live(order.from, from_number) {
            self.give_back(at);
            return None;
        }
        let is_refused = matches!(order.fault, Some(NicFault::Failed | NicFault::Unreachable));
        if is_refused || !self.is_live(order.to, order.to_number) {
            self.fail(at);
            return None;
        }
        let [near, far] = [order.from, order.to].map(|endpoint| self.endpoints[endpoint as usize]);
        let (far_memory, moved) = match order.kind {
            Kind::Message => {
                let Some(receive) = self.take_receive(order.to) else {
                    let target = &mut self.endpoints[order.to as usize].early;
                    append(&mut self.flights, target, at, |flight| &mut flight.next);
                    return None;
                };
                let bytes = order.bytes.min(receive.bytes);
                let told = Note::new(NoteKind::Received, receive.context, bytes);
                self.tell(order.to, told.with(&order));
                (receive.memory, bytes)
            }
            Kind::Write => {
                if order.has_data {
                    let told = Note::new(NoteKind::Written, 0, order.bytes);
                    self.tell(order.to, told.with(&order));
                }
                (order.far, order.bytes)
            }
            Kind::Read => (order.far, order.bytes),
        };
        let near_end = End { pid: near.pid, memory: order.near };
        let far_end = End { pid: far.pid, memory: far_memory };
        let is_read = order.kind == Kind::Read;
        let [source, target] = if is_read { [far.nic, near.nic] } else { [near.nic, far.nic] };
        // Others read the counters all the time: what this adds is shown as late as can be.
        let now_ns = monotonic_ns();
        for nic in [source, target] {
            self.nics[nic as usize % NICS].show(now_ns);
        }
        self.nics[source as usize % NICS].counts.tx_bytes += moved;
        self.nics[target as usize % NICS].counts.rx_bytes += moved;
        let own = &mut self.nics[near.nic as usize % NICS].counts;
        match order.kind {
            Kind::Write if order.is_of_device => own.rdma_write_bytes += moved,
            Kind::Read if order.is_of_device => own.rdma_read_bytes += moved,
            _ => {}
        }
        let flight = self.flights.get_mut(at);
        flight.is_there = true;
        let back_ps = due_ps + flight.back_ps;
        self.started += 1;
        self.agenda.push(back_ps, self.started, at);
        let (from, to) = if is_read { (far_end, near_end) } else { (near_end, far_end) };
        let is_corrupt = order.fault == Some(NicFault::Corrupt);
        Some(Move { from, to, bytes: moved, is_of_device: order.is_of_device, is_corrupt })
    }

    /// An operation is over for its initiator.
    fn end(&mut self, at: u32) {
        let Flight { order, from_number, .. } = *self.flights.get(at);
        self.give_back(at);
        if !self.is_live(order.from, from_number) {
            return;
        }
        if order.fault == Some(NicFault::Lost) {
            return;
        }
        self.endpoints[order.from as usize].under_way -= 1;
        self.spend(&order);
        if order.is_told {
            let over = NoteKind::Over(order.kind);
            self.tell(order.from, Note::new(over, order.context, order.bytes));
        }
    }

    /// An operation finds its target gone.
    fn fail(&mut self, at: u32) {
        let Flight { order, from_number, .. } = *self.flights.get(at);
        self.give_back(at);
        if self.is_live(order.from, from_number) {
            self.endpoints[order.from as usize].under_way -= 1;
            self.spend(&order);
            let kind = match order.fault {
                Some(NicFault::Failed) => NoteKind::Failed,
                _ => NoteKind::Unreachable,
            };
            self.tell(order.from, Note::new(kind, order.context, 0));
        }
    }

    /// The data of an operation is no longer needed.
    fn spend(&mut self, order: &Order) {
        let spent = Note::new(NoteKind::Over(order.kind), order.context, 0);
        if order.is_injected
            && let Some(place) = self.notes.take(spent)
        {
            let list = &mut self.endpoints[order.from as usize].spent;
            append(&mut self.notes, list, place, |note| &mut note.next);
        }
    }

    /// The address of a copy that an endpoint no longer needs to keep.
    pub(crate) fn take_spent(&mut self, at: u32) -> Option<u64> {
        let list = &mut self.endpoints[at as usize].spent;
        Some(take_first(&mut self.notes, list)?.context)
    }

    /// Adds a completion to a queue, or loses it.
    fn tell(&mut self, at: u32, note: Note) {
        self.told[at as usize / 64] |= 1 << (at % 64);
        let endpoint = &mut self.endpoints[at as usize];
        endpoint.idle = 0;
        if endpoint.queue.length >= endpoint.queue_size {
            return;
        }
        let Some(place) = self.notes.take(note) else { return };
        append(&mut self.notes, &mut endpoint.queue, place, |note| &mut note.next);
    }

    /// The first completion of a queue.
    pub(crate) fn fetch(&mut self, at: u32) -> Option<Note> {
        let list = &mut self.endpoints[at as usize].queue;
        let note = take_first(&mut self.notes, list);
        if note.is_some() {
            self.endpoints[at as usize].idle = 0;
        }
        note
    }

    fn take_receive(&mut self, at: u32) -> Option<Note> {
        take_first(&mut self.notes, &mut self.endpoints[at as usize].receives)
    }

    /// A receive waits from now on, if fewer than `limit` do; a message that waits for one comes at
    /// `now_ps`.
    pub(crate) fn receive(&mut self, at: u32, receive: Note, limit: u32, now_ps: u64) -> bool {
        if self.endpoints[at as usize].receives.length >= limit {
            return false;
        }
        let Some(place) = self.notes.take(receive) else { return false };
        let endpoint = &mut self.endpoints[at as usize];
        endpoint.idle = 0;
        append(&mut self.notes, &mut endpoint.receives, place, |note| &mut note.next);
        let early = endpoint.early.first;
        if early != NONE {
            let next = self.flights.get(early).next;
            let list = &mut self.endpoints[at as usize].early;
            list.first = next;
            list.length -= 1;
            if next == NONE {
                list.last = NONE;
            }
            self.flights.get_mut(early).next = NONE;
            self.started += 1;
            self.agenda.push(now_ps, self.started, early);
        }
        true
    }
}

/// Adds a place to the end of a list.
fn append<T: Copy, const N: usize>(
    pool: &mut Pool<T, N>,
    list: &mut List,
    place: u32,
    next: fn(&mut T) -> &mut u32,
) {
    match list.last {
        NONE => list.first = place,
        last => *next(pool.get_mut(last)) = place,
    }
    list.last = place;
    list.length += 1;
}

/// Takes the first note of a list.
fn take_first(notes: &mut Pool<Note, NOTES>, list: &mut List) -> Option<Note> {
    let first = (list.first != NONE).then_some(list.first)?;
    let note = *notes.get(first);
    notes.give_back(first);
    list.first = note.next;
    list.length -= 1;
    if list.first == NONE {
        list.last = NONE;
    }
    Some(note)
}

#[cfg(test)]
mod tests;
