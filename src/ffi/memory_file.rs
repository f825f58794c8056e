//! Files without a name, which live in memory.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::FileExt,
    },
};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use super::CallError;

/// A file that ends with this process, for libraries that can only write to a path.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, most often for want of descriptors.
    pub fn new() -> Result<Self, CallError> {
        let made = memfd_create("g2g", MemfdFlags::CLOEXEC);
        let file = made.map_err(|code| CallError::new("memfd_create", "a file in memory", code))?;
        Ok(Self(file.into()))
    }

    /// Its path for this process; in another one it names something else.
    pub fn path(&self) -> String {
        format!("{}{}", Self::FOLDER, self.0.as_raw_fd())
    }

    /// How every such path begins.
    pub const FOLDER: &'static str = "/proc/self/fd/";

    /// The contents from `offset` on.
    pub fn read_from(&self, offset: u64) -> io::Result<Vec<u8>> {
        let end = self.0.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap_or(0)];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Frees the pages before `offset`. They read as zero afterwards.
    pub fn forget_before(&self, offset: u64) {
        // If this fails, the memory stays until the process ends.
        let _ =
            fallocate(&self.0, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, offset);
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_written_by_its_path_is_read_here() {
        let file = MemoryFile::new().unwrap();
        let mut writer = File::create(file.path()).unwrap();
        writer.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(file.read_from(0).unwrap(), b"one\ntwo\n");
        assert_eq!(file.read_from(4).unwrap(), b"two\n");
        // The writer continues behind what is forgotten.
        writer.write_all(&vec![b'x'; 1 << 16]).unwrap();
        file.forget_before(1 << 16);
        writer.write_all(b"three").unwrap();
        assert_eq!(file.read_from(8 + (1 << 16)).unwrap(), b"three");
        assert_eq!(file.read_from(0).unwrap()[..4], [0; 4]);
        let kept = file.0.metadata().unwrap();
        assert!(std::os::unix::fs::MetadataExt::blocks(&kept) * 512 < 1 << 14);
    }
}
