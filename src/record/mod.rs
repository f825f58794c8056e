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
mod row;
pub mod sweep;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{machine::health::HostHealth, plan::Rank};

use provenance::{Provenance, Resumption};

pub use crate::measure::Latency;

pub use columns::{COLUMNS, Cell, Column, MemoryKind, Role, Row, Status};
pub use csv::text as csv_text;
pub use folder::{Run, keep_topology, topology_json};
pub use json::text as json_text;
pub use names::Naming;
pub use past::Past;
pub use resume::Held;
pub use row::CollectivePath;

/// Results that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be used.
    #[error("cannot use {path} for the results: {reason}", path = .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What stands against it, and what to do.
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
    /// A file holds something else than it should.
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

/// Removes what was just made for a run; what cannot be removed stays.
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
    folder: PathBuf,
    made: Made,
    csv: csv::Csv,
    json: json::Json,
    hlog: hlog::Hlog,
    rows: Vec<Row>,
    health: Vec<HostHealth>,
    provenance: Provenance,
    resumed: Vec<Resumption>,
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
        let files = || {
            let csv = csv::Csv::create(&folder.join("run.csv"))?;
            resume::lock(csv.file(), folder)?;
            let json = json::Json::create(&folder.join("run.json"), provenance)?;
            let hlog = hlog::Hlog::create(&folder.join("latency.hlog"))?;
            Ok((csv, json, hlog))
        };
        match files() {
            Ok(files) => Ok(Self { made, ..Self::over(folder, files, provenance) }),
            Err(Error::Write { path, source }) => {
                // Another run that has just taken the folder keeps its files.
                if source.kind() != io::ErrorKind::AlreadyExists {
                    remove(folder, made);
                }
                let reason = format!("cannot write {}: {source}", path.display());
                Err(refuse(format!("{reason}; name another with --output")))
            }
            Err(err) => Err(err),
        }
    }

    /// Takes away again what was made for the run: nothing was measured.
    pub fn discard(self) {
        remove(&self.folder, self.made);
    }

    /// Over open files, which have no row yet and were there before.
    fn over(
        folder: &Path,
        (csv, json, hlog): (csv::Csv, json::Json, hlog::Hlog),
        provenance: &Provenance,
    ) -> Self {
        Self {
            folder: folder.to_owned(),
            made: Made::Nothing,
            csv,
            json,
            hlog,
            rows: Vec::new(),
            health: Vec::new(),
            provenance: provenance.clone(),
            resumed: Vec::new(),
        }
    }

    /// Appends a row to every file, with its latencies over all ranks and of each, and hands it to
    /// the disk. Where one cannot be written, each
    /// file ends with the last row that it could take whole.
    ///
    /// # Errors
    ///
    /// A file cannot be written, most often because the disk is full.
    pub fn append(&mut self, row: Row, latencies: &[(Option<Rank>, Latency)]) -> Result<(), Error> {
        // run.csv last: a row that stands there stands in the other files too.
        for (rank, latency) in latencies {
            self.hlog.append(&row, *rank, latency)?;
        }
        self.json.append(&row)?;
        self.csv.append(&row)?;
        self.rows.push(row);
        Ok(())
    }

    /// Appends to what NCCL's log has of `rank`, a file of its own below the folder.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append_nccl_log(&self, rank: Rank, text: &str) -> Result<(), Error> {
        let folder = self.folder.join("nccl");
        let path = folder.join(format!("rank-{}.log", rank.0));
        let written = files::make_folder(&folder)
            .and_then(|()| files::open_end(&path))
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| Error::Write { path, source })
    }

    /// Says in run.json how the GPUs of each host have done. There is no row behind it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn conclude(&mut self, health: Vec<HostHealth>) -> Result<(), Error> {
        self.health = health;
        self.json.conclude(&self.health)
    }

    /// How the GPUs of each host have done, once it was said.
    pub fn health(&self) -> &[HostHealth] {
        &self.health
    }

    /// Where the run comes from.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// When the run was gone on with.
    pub fn resumed(&self) -> &[Resumption] {
        &self.resumed
    }

    /// The rows so far.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
