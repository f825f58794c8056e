//! How files and folders are made, and a file that grows by whole records.
//!
//! A folder may be in a place where others write too, such as `/tmp`. So nothing is written through
//! a symbolic link that may be theirs, and nothing that is made can be written by all, whatever the
//! umask.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::Error;
use crate::stderr;

/// The most that others may do with a file, and with a folder.
const FILE_MODE: u32 = 0o664;
const FOLDER_MODE: u32 = 0o775;

/// Makes a file where nothing is, not even a link.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Opens a file that is there, for reading and writing; no link to one.
pub(super) fn open(path: &Path) -> io::Result<File> {
    unlinked(OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path))
}

/// Opens a file to write at its end, and makes it if it is not there; no link to one.
pub(super) fn open_end(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.append(true).create(true).mode(FILE_MODE);
    unlinked(options.custom_flags(libc::O_NOFOLLOW).open(path))
}

/// Puts a file with these `bytes` in the place of what is there, at once. A link is replaced and
/// what it leads to stays; what is no file, such as a pipe or a terminal, is written to, and so is
/// `/dev/stdout` whatever it is.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let is_no_file = fs::metadata(path).is_ok_and(|there| !there.is_file());
    if is_no_file || fs::read_link(path).is_ok_and(|target| target.starts_with("/proc/self/fd")) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    remove(&new)?;
    let mut file = create(&new)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    written.and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
        // What there is of it helps nobody.
        let _ = fs::remove_file(&new);
    })
}

/// Removes a file or a link, if there is one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

/// Makes a folder and those above it, as far as they are not there. A link to one is taken if it is
/// this user's or root's.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let own = fs::metadata("/proc/self").map(|process| process.uid());
    let is_trusted =
        |link: &fs::Metadata| link.uid() == 0 || own.as_ref().ok() == Some(&link.uid());
    if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink() && !is_trusted(&there)) {
        let reason = "it is a symbolic link that belongs to another user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Says in words why a link was not followed.
fn unlinked(opened: io::Result<File>) -> io::Result<File> {
    opened.map_err(|err| match err.raw_os_error() {
        Some(libc::ELOOP) => {
            let reason = "it is a symbolic link, and g2g writes through none: remove it";
            io::Error::new(io::ErrorKind::PermissionDenied, reason)
        }
        _ => err,
    })
}

/// A file whose records are written with one system call each, before an ending that always
/// follows the last one.
#[derive(Debug)]
pub(super) struct RecordFile {
    path: PathBuf,
    file: File,
    /// Where the ending begins and the next record goes.
    end: u64,
    ending: &'static str,
}

impl RecordFile {
    /// Makes the file with `beginning` and `ending`.
    pub(super) fn create(
        path: &Path,
        beginning: &[u8],
        ending: &'static str,
    ) -> Result<Self, Error> {
        let write = |source| Error::Write { path: path.to_owned(), source };
        let mut file = create(path).map_err(write)?;
        file.write_all(beginning)
            .and_then(|()| file.write_all(ending.as_bytes()))
            .and_then(|()| file.sync_data())
            .map_err(write)?;
        Ok(Self { path: path.to_owned(), file, end: beginning.len() as u64, ending })
    }

    /// The open `file` at `path`, whose records end at `end`.
    pub(super) fn of(path: &Path, file: File, end: u64, ending: &'static str) -> Self {
        Self { path: path.to_owned(), file, end, ending }
    }

    /// The open `file` at `path`, which has no ending, truncated to `end`.
    pub(super) fn cut(path: &Path, file: File, end: u64) -> Result<Self, Error> {
        let cut = || match file.metadata()?.len() == end {
            true => Ok(()),
            false => file.set_len(end).and_then(|()| file.sync_data()),
        };
        cut().map_err(|source| Error::Write { path: path.to_owned(), source })?;
        Ok(Self::of(path, file, end, ""))
    }

    /// The file itself.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// That it cannot be written, for a reason of its own.
    pub(super) fn failed(&self, source: io::Error) -> Error {
        Error::Write { path: self.path.clone(), source }
    }

    /// Writes `record` before the ending. On failure the file is as it was.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<(), Error> {
        self.conclude(&[record, self.ending.as_bytes()].concat())?;
        self.end += record.len() as u64;
        Ok(())
    }

    /// Writes another ending, which no record can follow. On failure the file is as it was.
    pub(super) fn conclude(&mut self, ending: &[u8]) -> Result<(), Error> {
        self.keep().map_err(|source| self.failed(source))?;
        let written = self.file.write_all_at(ending, self.end).and_then(|()| self.file.sync_data());
        written.map_err(|source| {
            self.restore();
            self.failed(source)
        })
    }

    /// Creates the file again with all of its content, if somebody has removed it.
    fn keep(&mut self) -> io::Result<()> {
        let old = self.file.metadata()?;
        if old.nlink() > 0 {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            make_folder(folder)?;
        }
        let mut content = vec![0; usize::try_from(old.len()).unwrap_or(0)];
        self.file.read_exact_at(&mut content, 0)?;
        let mut file = create(&self.path)?;
        // The lock was on the old file, where the file system has locks.
        let _ = file.try_lock();
        file.write_all(&content)?;
        file.sync_data()?;
        let shown = self.path.display();
        stderr::say(&format!("warning: {shown} was removed meanwhile: it is made anew, whole"));
        self.file = file;
        Ok(())
    }

    /// Takes back a record that was written in part. The ending goes where it stood before, into
    /// blocks that the file already has.
    fn restore(&mut self) {
        let ending = self.ending.as_bytes();
        let restored: io::Result<()> = self
            .file
            .write_all_at(ending, self.end)
            .and_then(|()| self.file.set_len(self.end + ending.len() as u64))
            .and_then(|()| self.file.sync_data());
        if let Err(err) = restored {
            // With standard error gone too there is nobody to tell.
            let path = self.path.display();
            stderr::say(&format!("warning: {path} may end with half a record: {err}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn the_ending_always_stands_behind_the_last_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = RecordFile::create(&path, b"[", "]\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[]\n");
        file.append(b"1").unwrap();
        file.append(b",22").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1,22]\n");
    }

    #[test]
    fn half_a_record_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = RecordFile::create(&path, b"[1", "]\n").unwrap();
        file.file.write_all_at(b",12345678", file.end).unwrap();
        file.restore();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1]\n");
    }

    #[test]
    fn a_file_that_is_removed_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/file");
        fs::create_dir(folder.path().join("run")).unwrap();
        let mut file = RecordFile::create(&path, b"[", "]\n").unwrap();
        file.append(b"1").unwrap();
        fs::remove_dir_all(folder.path().join("run")).unwrap();
        file.append(b",22").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1,22]\n");
        // What another run has put there meanwhile is its own.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "other").unwrap();
        assert!(file.conclude(b"]!\n").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");
    }

    #[test]
    fn a_file_that_is_there_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        assert!(RecordFile::create(&path, b"", "").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn no_link_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        for target in ["victim", "nothing"] {
            symlink(at(target), at("link")).unwrap();
            assert!(create(&at("link")).is_err());
            for opened in [open(&at("link")), open_end(&at("link"))] {
                let told = opened.unwrap_err().to_string();
                assert_eq!(told, "it is a symbolic link, and g2g writes through none: remove it");
            }
            // One that stands where the new file is made, too.
            symlink(at(target), at("link.new")).unwrap();
            replace(&at("link"), b"new").unwrap();
            assert!(!at("link").is_symlink() && !at("link.new").is_symlink());
            assert_eq!(fs::read(at("link")).unwrap(), b"new");
            fs::remove_file(at("link")).unwrap();
            assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
            assert!(!at("nothing").exists());
        }
    }

    #[test]
    fn a_link_to_a_folder_is_taken_unless_it_is_somebody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        symlink(at("folder"), at("link")).unwrap();
        make_folder(&at("link")).unwrap();
        // Only root can give a link away.
        if lchown(at("link"), Some(12_345), None).is_ok() {
            let told = make_folder(&at("link")).unwrap_err().to_string();
            assert_eq!(told, "it is a symbolic link that belongs to another user");
        }
    }

    #[test]
    fn what_is_no_file_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/null", &link).unwrap();
        replace(&link, b"anything").unwrap();
        assert!(link.is_symlink());
    }
}
