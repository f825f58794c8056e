//! The results: one row a case, written as soon as it is known.
//!
//! Owns the columns and the files of a run's folder. Knows nothing of how a number came about.

mod columns;
pub(crate) mod csv;
pub(crate) mod files;
mod folder;
mod hlog;
pub mod import;
mod json;
mod names;
mod past;
pub mod provenance;
mod resume;
pub mod rounds;
mod row;
pub mod sweep;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{machine::health::HostHealth, plan::Rank};

use files::RecordFile;
use provenance::Provenance;

pub use crate::measure::Latency;

pub use columns::{COLUMNS, Cell, Column, MemoryKind, Role, Row, Status};
pub use csv::text as csv_text;
pub use folder::{Run, keep_topology, topology_json};
pub use json::text as json_text;
pub use names::Naming;
pub use resume::Held;

/// Results that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be used.
    #[error("cannot use {path} for the results: {reason}", path = .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// A file of a run cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file has unexpected content.
    #[error("cannot read {path}: {reason}", path = .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        reason: String,
    },
    /// A file in it cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The files of a run.
const FILES: [&str; 3] = ["run.csv", "run.json", "latency.hlog"];

/// Removes what was just made for a run, as far as it can be removed.
fn remove(folder: &Path, made: Made) {
    if matches!(made, Made::Nothing) {
        return;
    }
    for file in FILES {
        let _ = fs::remove_file(folder.join(file));
    }
    if matches!(made, Made::Folder) {
        let _ = fs::remove_dir(folder);
    }
}

/// The open files of a run.
#[derive(Debug)]
pub struct Recorder {
    /// What is in them, but for the topology.
    run: Run,
    made: Made,
    csv: RecordFile,
    json: json::Json,
    hlog: hlog::Hlog,
}

/// What was made for this run.
#[derive(Clone, Copy, Debug)]
enum Made {
    Folder,
    Files,
    Nothing,
}

impl Recorder {
    /// Makes `folder` with the files of a run that has no row yet.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written, or holds a run already.
    pub fn create(folder: &Path, provenance: &Provenance) -> Result<Self, Error> {
        let refuse = |reason: String| Error::Folder { path: folder.to_owned(), reason };
        if folder.exists() && !folder.is_dir() {
            return Err(refuse("it is a file: name a folder with --output".to_owned()));
        }
        let made = if folder.exists() { Made::Files } else { Made::Folder };
        files::make_folder(folder)
            .map_err(|err| refuse(format!("{err}; name another with --output")))?;
        for file in FILES {
            if folder.join(file).symlink_metadata().is_ok() {
                let reason = format!("it already holds {file}: name another with --output");
                return Err(refuse(reason));
            }
        }
        let begin = || {
            let header = csv::text(&[]);
            let csv = RecordFile::create(&folder.join("run.csv"), header.as_bytes(), "")?;
            resume::lock(csv.file(), folder)?;
            Self::begin(folder, provenance, csv, made)
        };
        begin().map_err(|err| match err {
            Error::Write { path, source } => {
                // Another run that has just taken the folder keeps its files.
                if source.kind() != io::ErrorKind::AlreadyExists {
                    remove(folder, made);
                }
                let reason = format!("cannot write {}: {source}", path.display());
                refuse(format!("{reason}; name another with --output"))
            }
            err => err,
        })
    }

    /// Makes the files beside run.csv of a run that has no row yet.
    fn begin(
        folder: &Path,
        provenance: &Provenance,
        csv: RecordFile,
        made: Made,
    ) -> Result<Self, Error> {
        let json = json::Json::create(&folder.join("run.json"), provenance)?;
        let hlog = hlog::Hlog::create(&folder.join("latency.hlog"))?;
        Ok(Self { run: Run::new(folder, provenance.clone()), made, csv, json, hlog })
    }

    /// Removes what was made for the run, which has measured nothing.
    pub fn discard(self) {
        remove(&self.run.folder, self.made);
    }

    /// Appends a row to every file, with its latencies over all ranks and of each, and hands it to
    /// the disk. Where one cannot be written, each file ends with the last row that it could take
    /// whole.
    pub fn append(&mut self, row: Row, latencies: &[(Option<Rank>, Latency)]) -> Result<(), Error> {
        // run.csv last: a row in it is in the other files too.
        for (rank, latency) in latencies {
            self.hlog.append(&row, *rank, latency)?;
        }
        self.json.append(&row)?;
        self.csv.append(csv::line(&row).as_bytes())?;
        self.run.rows.push(row);
        Ok(())
    }

    /// Appends to the file with NCCL's log of `rank`.
    pub fn append_nccl_log(&self, rank: Rank, text: &str) -> Result<(), Error> {
        let folder = self.run.folder.join("nccl");
        let path = folder.join(format!("rank-{}.log", rank.0));
        let written = files::make_folder(&folder)
            .and_then(|()| files::open_end(&path))
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| Error::Write { path, source })
    }

    /// Writes into run.json how long each transport took, and the health of each host's GPUs. No
    /// row can follow.
    pub fn conclude(&mut self, health: Vec<HostHealth>) -> Result<(), Error> {
        self.run.health = health;
        self.json.conclude(&self.run)
    }

    /// What is in the files, but for the topology.
    pub const fn run(&self) -> &Run {
        &self.run
    }

    /// The rows so far.
    pub fn rows(&self) -> &[Row] {
        &self.run.rows
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.run.folder
    }
}
