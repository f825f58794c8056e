//! Files without a name, which live in memory.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::FileExt,
    },
};

use super::CallError;

/// A file that is gone with this process. A library that can only write into a file by its path
/// writes into it.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, most often for want of descriptors.
    pub fn new() -> Result<Self, CallError> {
        // SAFETY: the name is a string with its end.
        let descriptor = unsafe { libc::memfd_create(c"g2g".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(CallError::last("memfd_create", "a file in memory"));
        }
        // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
        Ok(Self(unsafe { File::from_raw_fd(descriptor) }))
    }

    /// Its path for this process; in another one it names something else.
    pub fn path(&self) -> String {
        format!("{}{}", Self::FOLDER, self.0.as_raw_fd())
    }

    /// How every such path begins.
    pub const FOLDER: &'static str = "/proc/self/fd/";

    /// What stands from `offset` on.
    pub fn read_from(&self, offset: u64) -> io::Result<Vec<u8>> {
        let end = self.0.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap_or(0)];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Gives back the memory of what stands before `offset`, in whole pages; what is read of it
    /// later is zero.
    pub fn forget_before(&self, offset: u64) {
        const MODE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let length = libc::off_t::try_from(offset).unwrap_or(0);
        // Where it cannot, the memory stays until the process ends.
        // SAFETY: the descriptor is this file's, and the call takes integers only.
        let _ = unsafe { libc::fallocate(self.0.as_raw_fd(), MODE, 0, length) };
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
        // Whoever writes goes on behind what is forgotten.
        writer.write_all(&vec![b'x'; 1 << 16]).unwrap();
        file.forget_before(1 << 16);
        writer.write_all(b"three").unwrap();
        assert_eq!(file.read_from(8 + (1 << 16)).unwrap(), b"three");
        assert_eq!(file.read_from(0).unwrap()[..4], [0; 4]);
        let kept = file.0.metadata().unwrap();
        assert!(std::os::unix::fs::MetadataExt::blocks(&kept) * 512 < 1 << 14);
    }
}
