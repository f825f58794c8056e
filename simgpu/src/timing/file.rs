//! The file that all processes of a machine map.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use super::Shared;

/// What only this version of the library writes at the beginning of a state.
const MAGIC: u64 = 0x6732_675f_7369_6d01;
/// Where the machine's text begins; before it are `MAGIC`, its length, and the size of [`Shared`].
const TEXT: u64 = 4096;

/// A machine's state, open in this process.
#[derive(Debug)]
pub(crate) struct State {
    /// The file; others open it by its number.
    pub file: File,
    /// Where it is mapped; for ever.
    pub shared: &'static Shared,
    /// The text that it was made with.
    pub text: String,
}

impl State {
    /// Makes the state of a new machine that `text` describes.
    pub(crate) fn create(text: &str) -> io::Result<Self> {
        let file = File::from(memory_file(c"g2g simulated machine")?);
        let header = [MAGIC, text.len() as u64, size_of::<Shared>() as u64];
        let header: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.set_len(start(text.len() as u64) + size_of::<Shared>() as u64)?;
        file.write_all_at(&header, 0)?;
        file.write_all_at(text.as_bytes(), TEXT)?;
        let shared = map(&file, text.len() as u64)?;
        shared.make_lock()?;
        Ok(Self { file, shared, text: text.to_owned() })
    }

    /// Opens the state that another process has at `path`.
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        let mut file = File::options().read(true).write(true).open(path)?;
        let not_ours = || io::Error::new(io::ErrorKind::InvalidData, "it is no such state");
        let mut header = [0; 24];
        file.read_exact(&mut header).map_err(|_| not_ours())?;
        let word =
            |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| header[at * 8 + byte]));
        let (magic, length, size) = (word(0), word(1), word(2));
        if magic != MAGIC || size != size_of::<Shared>() as u64 {
            return Err(not_ours());
        }
        let mut text = vec![0; usize::try_from(length).map_err(|_| not_ours())?];
        file.read_exact_at(&mut text, TEXT)?;
        let text = String::from_utf8(text).map_err(|_| not_ours())?;
        if file.metadata()?.len() < start(length) + size {
            return Err(not_ours());
        }
        Ok(Self { shared: map(&file, length)?, file, text })
    }
}

fn start(text_length: u64) -> u64 {
    (TEXT + text_length).next_multiple_of(1 << 16)
}

/// A file in memory, without a name that could be left behind.
pub(crate) fn memory_file(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in NUL.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn map(file: &File, text_length: u64) -> io::Result<&'static Shared> {
    let start = libc::off_t::try_from(start(text_length)).map_err(io::Error::other)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other; the file is
    // long enough, as `create` made it and `open` has looked.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            start,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is never undone; it is zeroes, which all of `Shared` has as a value,
    // or what this same version of the library has written.
    Ok(unsafe { &*address.cast::<Shared>() })
}
