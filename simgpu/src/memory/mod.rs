//! The memory that this process has or sees: where it lies, who may reach it, what it holds.
//!
//! The memory of a GPU is one file in memory, as large as the GPU's, mapped as a whole; an
//! allocation is a part of it. Pages exist from their first use, and those of freed memory are kept
//! up to a limit.

pub(crate) mod content;
pub(crate) mod contents;
pub(crate) mod repeats;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ffi::c_void,
    fs::File,
    io::{self, Write},
    ops::Range,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
};

use crate::timing::{cost::Place, memory_file, words::Key};

/// From here on it is looked whether the host has the memory.
const LARGE: u64 = 64 << 20;
/// What an allocation begins at a multiple of, as the real driver's do at least.
const ALIGNMENT: u64 = 512;
/// Freed memory of one GPU that keeps its pages.
const KEPT_BYTES: u64 = 512 << 20;
/// The page size that mappings of files are rounded to; a multiple of every Linux page size.
pub(crate) const PAGE: u64 = 64 << 10;
const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// All regions of this process, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: BTreeMap<u64, Region>,
    /// Each GPU's memory, once it has a context.
    arenas: BTreeMap<u32, Arena>,
    /// Address ranges of `cuMemAddressReserve`.
    pub reservations: Vec<Mapping>,
    /// Mapped multicast objects: in no region, as only multimem instructions reach them.
    pub teams: Vec<TeamMapping>,
}

/// A multicast object where it is mapped.
#[derive(Debug)]
pub(crate) struct TeamMapping {
    pub start: u64,
    pub bytes: u64,
    /// Of the object.
    pub handle: u64,
    /// The GPUs that may reach it, a bit each.
    pub access: u128,
    /// Where this process has the memory of each GPU, from its first use on.
    pub members: Vec<(u32, Mapping)>,
}

/// Memory that was given out, imported or registered.
#[derive(Debug)]
pub(crate) struct Region {
    pub start: u64,
    pub bytes: u64,
    pub kind: Kind,
    /// The GPU whose context made it; for device memory of [`Kind::Allocated`] also where it is.
    pub gpu: u32,
    /// Where it lies.
    pub place: Place,
    /// The word at its beginning.
    pub key: Key,
}

/// A region that is gone.
#[derive(Debug)]
pub(crate) struct Removed {
    pub region: Region,
    /// Free memory whose pages were given back: it holds zeroes now.
    pub cleared: Vec<Range<u64>>,
}

/// How memory came to be known.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, with the place in the list of exported memory, if it is there.
    Allocated { export: Option<(usize, u64)> },
    /// `cuIpcOpenMemHandle`: what undoes the mapping, the number of the export, how often it was
    /// opened.
    Imported { _mapping: Mapping, nonce: u64, opened: u32 },
    /// `cuMemMap`: the handle, and the GPUs that may reach it, a bit each.
    Mapped { handle: u64, access: u128 },
    /// `cuMemHostAlloc`: what undoes the mapping.
    Pinned { _mapping: Mapping },
    /// `cuMemHostRegister`.
    Registered,
}

impl Region {
    /// The address behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// The word of `bits` at `address`, which is inside.
    pub(crate) fn word(&self, address: u64, bits: u64) -> Key {
        Key { offset: self.key.offset + (address - self.start), bits, ..self.key }
    }

    /// Whether it goes when the context does that made it.
    pub(crate) fn goes_with_its_context(&self) -> bool {
        !matches!(self.kind, Kind::Mapped { .. })
    }

    /// Whether nobody but operations of the machine's processes can write it: it is no host memory.
    pub(crate) fn is_private(&self) -> bool {
        !matches!(self.kind, Kind::Pinned { .. } | Kind::Registered)
    }
}

impl Memory {
    /// Gets a GPU's memory ready; where it lies, if it was not ready before.
    pub(crate) fn open(&mut self, gpu: u32, bytes: u64) -> io::Result<Option<Range<u64>>> {
        let Entry::Vacant(place) = self.arenas.entry(gpu) else { return Ok(None) };
        let mapping = &place.insert(Arena::new(bytes)?).mapping;
        Ok(Some(mapping.start..mapping.start + mapping.bytes))
    }

    /// The region that has all of `address..address + bytes`; neighbours that were mapped beside
    /// each other with the same rights count as one.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        if address >= region.end() {
            return None;
        }
        let mut end = region.end();
        while bytes > end - address {
            let next = self.regions.get(&end)?;
            let same = match (&region.kind, &next.kind) {
                (Kind::Mapped { access: a, .. }, Kind::Mapped { access: b, .. }) => a == b,
                _ => false,
            };
            if !same || next.place != region.place {
                return None;
            }
            end = next.end();
        }
        Some(region)
    }

    /// Whether `address` can only be device memory, of this moment or of another.
    pub(crate) fn is_device_address(&self, address: u64) -> bool {
        let mut mappings = self.arenas.values().map(|arena| &arena.mapping);
        mappings.any(|mapping| mapping.contains(address))
            || self.reservations.iter().any(|range| range.contains(address))
    }

    /// The region that begins at `start`.
    pub(crate) fn at(&mut self, start: u64) -> Option<&mut Region> {
        self.regions.get_mut(&start)
    }

    /// All regions.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// Whether a region has a part of `start..start + bytes`.
    pub(crate) fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let before_end = self.regions.range(..start.saturating_add(bytes)).next_back();
        before_end.is_some_and(|(_, region)| region.end() > start)
            || self.teams.iter().any(|team| {
                team.start < start.saturating_add(bytes) && start < team.start + team.bytes
            })
    }

    /// Adds a region that came from elsewhere than [`Memory::allocate`].
    pub(crate) fn add(&mut self, region: Region) {
        self.regions.insert(region.start, region);
    }

    /// Takes the region out; the memory of [`Kind::Allocated`] is free then.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Removed> {
        let region = self.regions.remove(&start)?;
        let cleared = match (&region.kind, self.arenas.get_mut(&region.gpu)) {
            (Kind::Allocated { .. }, Some(arena)) => arena.free(region.start, region.bytes),
            _ => Vec::new(),
        };
        Some(Removed { region, cleared })
    }

    /// Allocates on a GPU; `None`: there is no room of that size left.
    pub(crate) fn allocate(&mut self, gpu: u32, bytes: u64) -> Option<u64> {
        let arena = self.arenas.get_mut(&gpu)?;
        let start = arena.allocate(bytes)?;
        let key = arena.mapping.key(&arena.file, start);
        let region = Region {
            start,
            bytes,
            kind: Kind::Allocated { export: None },
            gpu,
            place: Place::Gpu(gpu),
            key,
        };
        self.regions.insert(start, region);
        Some(start)
    }

    /// The file of a GPU's memory, and where in it an address is.
    pub(crate) fn file(&self, gpu: u32, address: u64) -> Option<(i32, u64)> {
        let arena = self.arenas.get(&gpu)?;
        Some((arena.file.as_raw_fd(), address - arena.mapping.start))
    }
}

/// What an allocation of `bytes` takes from a GPU's memory.
pub(crate) fn taken_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The memory of one GPU as far as this process has it.
#[derive(Debug)]
struct Arena {
    file: File,
    mapping: Mapping,
    /// Free parts by their beginning, with their lengths; neighbours are joined.
    free: BTreeMap<u64, u64>,
    /// Bytes that are not free.
    taken_bytes: u64,
    /// No page above has been used since pages were last given back.
    used_end: u64,
}

impl Arena {
    fn new(bytes: u64) -> io::Result<Self> {
        let file = File::from(memory_file(c"g2g simulated GPU")?);
        let mut bytes = bytes.next_multiple_of(PAGE);
        // Address space may be short, as with 39-bit kernels or under a limit; then there is
        // less memory than the GPU should have.
        let mapping = loop {
            file.set_len(bytes)?;
            match Mapping::of_file(&file, 0, bytes) {
                Ok(mapping) => break mapping,
                Err(err) if bytes <= 1 << 30 => return Err(err),
                Err(_) => bytes = (bytes / 2).next_multiple_of(PAGE),
            }
        };
        let free = BTreeMap::from([(mapping.start, mapping.bytes)]);
        Ok(Self { file, free, taken_bytes: 0, used_end: mapping.start, mapping })
    }

    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let bytes = taken_bytes(bytes);
        // The first part that is large enough: freed memory, whose pages are there, comes first.
        let (start, length) =
            self.free.iter().map(|(a, b)| (*a, *b)).find(|(_, length)| *length >= bytes)?;
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        self.taken_bytes += bytes;
        self.used_end = self.used_end.max(start + bytes);
        Some(start)
    }

    /// Frees a part; what holds zeroes since.
    fn free(&mut self, start: u64, bytes: u64) -> Vec<Range<u64>> {
        let mut start = start;
        let mut bytes = taken_bytes(bytes);
        self.taken_bytes -= bytes;
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
            bytes += length;
        }
        if let Some(length) = self.free.remove(&(start + bytes)) {
            bytes += length;
        }
        self.free.insert(start, bytes);
        if self.used_end - self.mapping.start - self.taken_bytes > KEPT_BYTES {
            return self.give_back();
        }
        Vec::new()
    }

    /// Gives the pages of all free memory back; where they were.
    fn give_back(&mut self) -> Vec<Range<u64>> {
        let mut cleared = Vec::new();
        for (&start, &bytes) in self.free.range(..self.used_end) {
            // Behind the last use a page is free as a whole; elsewhere its rest is somebody's.
            let end = match start + bytes {
                end if end < self.used_end => end,
                end => end.min(self.used_end.next_multiple_of(PAGE)),
            };
            cleared.extend(self.mapping.give_back(&self.file, start, end - start));
        }
        let last = self.free.range(..self.used_end).next_back();
        if let Some((&start, &bytes)) = last
            && start + bytes >= self.used_end
        {
            self.used_end = start;
        }
        cleared
    }
}

/// A mapping, undone on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub start: u64,
    pub bytes: u64,
}

impl Mapping {
    /// Maps a part of a file, which must be that long.
    pub(crate) fn of_file(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        Self::map(0, bytes, (READ_WRITE, flags), Some((file, offset)))
    }

    /// Addresses without memory, beginning at a multiple of `alignment`.
    pub(crate) fn reserve_aligned(bytes: u64, alignment: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let larger = bytes.checked_add(alignment).ok_or_else(too_large)?;
        let mut range = Self::map(0, larger, (libc::PROT_NONE, flags), None)?;
        let start = range.start.next_multiple_of(alignment);
        let end = range.start + range.bytes;
        // What is before and behind the part that is wanted is undone at once.
        drop(Self { start: range.start, bytes: start - range.start });
        drop(Self { start: start + bytes, bytes: end - (start + bytes) });
        range.start = start;
        range.bytes = bytes;
        Ok(range)
    }

    /// Puts memory of a file where addresses are reserved, or takes it away again.
    pub(crate) fn fill(&self, start: u64, bytes: u64, file: Option<&File>) -> io::Result<()> {
        debug_assert!(self.contains(start) && start + bytes <= self.start + self.bytes);
        let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
        let filled = match file {
            Some(file) => {
                Self::map(start, bytes, (READ_WRITE, flags | libc::MAP_SHARED), Some((file, 0)))
            }
            None => {
                let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                Self::map(start, bytes, (libc::PROT_NONE, flags), None)
            }
        };
        // It is a part of this mapping, which undoes it too.
        std::mem::forget(filled?);
        Ok(())
    }

    /// Memory of this process alone, with all its pages in place.
    pub(crate) fn private(bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(0, bytes, (READ_WRITE, flags), None)
    }

    /// With `MAP_FIXED` the range at `at` must be part of a mapping that is this one's to change.
    fn map(
        at: u64,
        bytes: u64,
        (protection, flags): (libc::c_int, libc::c_int),
        file: Option<(&File, u64)>,
    ) -> io::Result<Self> {
        let (descriptor, offset) = file.map_or((-1, 0), |(file, at)| (file.as_raw_fd(), at));
        // SAFETY: a new mapping at an address of the kernel's choice touches no other, and one at a
        // fixed address replaces what `fill` has the right to replace.
        let address = unsafe {
            libc::mmap(
                at as *mut c_void,
                bytes as usize,
                protection,
                flags,
                descriptor,
                libc::off_t::try_from(offset).map_err(io::Error::other)?,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: address as u64, bytes })
    }

    /// Whether `address` is inside.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.bytes
    }

    /// The word at `address` of this mapping of the beginning of `file`.
    fn key(&self, file: &File, address: u64) -> Key {
        file_key(file, address - self.start)
    }

    /// Gives the whole pages inside a range back to the system; where they were.
    fn give_back(&self, file: &File, start: u64, bytes: u64) -> Option<Range<u64>> {
        let first = (start - self.start).next_multiple_of(PAGE);
        let end = (start - self.start + bytes) / PAGE * PAGE;
        if end <= first {
            return None;
        }
        // SAFETY: the call takes no pointer; nobody has memory in these pages of the file.
        let code = unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                first as libc::off_t,
                (end - first) as libc::off_t,
            )
        };
        (code == 0).then_some(self.start + first..self.start + end)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: this value made the mapping, and nobody refers to it any more: the driver
            // has waited for all operations before it lets go of memory.
            unsafe { libc::munmap(self.start as *mut c_void, self.bytes as usize) };
        }
    }
}

/// The word at `offset` of a file.
pub(crate) fn file_key(file: &File, offset: u64) -> Key {
    file.metadata().map_or(Key::default(), |data| Key {
        device: data.dev(),
        inode: data.ino(),
        offset,
        bits: 0,
    })
}

/// Whether the host has not `bytes` of memory now, or not altogether with the `used` ones, of which
/// some may not have been touched yet; proc(5).
pub(crate) fn host_lacks(bytes: u64, used: u64) -> bool {
    if bytes < LARGE {
        return false;
    }
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return false };
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    of("MemAvailable:").is_some_and(|available| bytes > available)
        || of("MemTotal:").is_some_and(|total| used.saturating_add(bytes) > total)
}

/// Says that the host has not the memory for so much more of a simulated machine.
pub(crate) fn warn_of_lack(bytes: u64, what: &str) {
    let sentence = format!(
        "warning: this host has not the memory that {} MiB more {what} would take",
        bytes >> 20
    );
    let _ = writeln!(io::stderr(), "{sentence}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_given_back_are_nobody_elses() {
        let mut arena = Arena::new(2 * KEPT_BYTES).unwrap();
        let large = arena.allocate(KEPT_BYTES + ALIGNMENT).unwrap();
        let own = arena.allocate(ALIGNMENT).unwrap();
        let last = arena.allocate(ALIGNMENT).unwrap();
        let pages = vec![Range { start: large, end: large + KEPT_BYTES }];
        let cleared = arena.free(large, KEPT_BYTES + ALIGNMENT);
        assert_eq!(cleared, pages, "{own} is in the page behind");
        arena.free(last, ALIGNMENT);
        let again = arena.allocate(KEPT_BYTES + ALIGNMENT).unwrap();
        assert_eq!(again, large);
        assert_eq!(arena.free(again, KEPT_BYTES + ALIGNMENT), pages);
    }
}
