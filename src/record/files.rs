//! A file that grows by whole records.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::Error;
use crate::stderr;

/// A file whose records are written with one system call each, before an ending that always
/// stands behind the last one.
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
        let mut file = make(path).map_err(write)?;
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

    /// The same of a file without an ending, cut behind `end` if there is more.
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

    /// Writes `record` before the ending. On failure the file is as it was.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<(), Error> {
        self.keep()?;
        let mut bytes = record.to_vec();
        bytes.extend(self.ending.as_bytes());
        let written = self.file.write_all_at(&bytes, self.end).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.end += record.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.restore();
                Err(Error::Write { path: self.path.clone(), source })
            }
        }
    }

    /// Writes another ending, after which there is no record more. On failure the file is as it was.
    pub(super) fn conclude(&mut self, ending: &[u8]) -> Result<(), Error> {
        self.keep()?;
        let written = self.file.write_all_at(ending, self.end).and_then(|()| self.file.sync_data());
        written.map_err(|source| {
            self.restore();
            Error::Write { path: self.path.clone(), source }
        })
    }

    /// Makes the file anew with all that it has, if somebody has removed it.
    fn keep(&mut self) -> Result<(), Error> {
        let path = &self.path;
        let removed = || Ok::<bool, io::Error>(self.file.metadata()?.nlink() == 0);
        let again = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut content = vec![0; usize::try_from(self.file.metadata()?.len()).unwrap_or(0)];
            self.file.read_exact_at(&mut content, 0)?;
            let mut file = make(path)?;
            file.write_all(&content)?;
            file.sync_data()?;
            Ok(file)
        };
        let write = |source| Error::Write { path: path.clone(), source };
        if removed().map_err(write)? {
            let file = again().map_err(write)?;
            let shown = path.display();
            stderr::say(&format!("warning: {shown} was removed meanwhile: it is made anew, whole"));
            self.file = file;
        }
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

/// Makes a file that is not there.
fn make(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
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
}
