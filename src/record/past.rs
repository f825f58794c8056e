//! Reads the run in a folder, to resume it.
//!
//! Only rows that are whole in run.csv count, since it is written last. What a crash or a loss of
//! power has left after them, half a line or zeros, is no row.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    path::Path,
};

use serde::Deserialize;

use super::{
    Error, Row, Run, csv, json,
    provenance::{Provenance, Resumption},
};
use crate::machine::health::HostHealth;

/// No line of a run's files is longer; far above any row's.
const LINE_BYTES_MAX: u64 = 1 << 24;

/// No provenance is longer, nor what follows the rows; far above those of a thousand hosts.
const AROUND_BYTES_MAX: usize = 1 << 28;

/// Where the rows are in the files of a run.
#[derive(Debug)]
pub(super) struct Places {
    /// Bytes of run.csv with the last row.
    pub(super) csv_end: u64,
    /// Bytes of run.json before the first row.
    pub(super) json_begin: u64,
    /// Bytes of run.json with the last row.
    pub(super) json_end: u64,
    /// Whether run.json ends after it as it should.
    pub(super) is_json_whole: bool,
}

/// What precedes the rows in run.json.
#[derive(Deserialize)]
pub(super) struct Beginning {
    pub(super) provenance: Provenance,
    #[serde(default)]
    pub(super) resumed: Vec<Resumption>,
}

/// What follows them.
#[derive(Default, Deserialize)]
pub(super) struct Ending {
    #[serde(default)]
    pub(super) health: Vec<HostHealth>,
}

/// Reads the run whose run.csv is open, in `folder`, but for its topology; `None`: it has no row.
pub(super) fn read(mut csv: &File, folder: &Path) -> Result<Option<(Run, Places)>, Error> {
    let [csv_path, json_path] = ["run.csv", "run.json"].map(|name| folder.join(name));
    let read_csv = |source| Error::Read { path: csv_path.clone(), source };
    let read_json = |source| Error::Read { path: json_path.clone(), source };
    csv.rewind().map_err(read_csv)?;
    let mut csv = Lines::of(csv);
    let header = csv::text(&[]);
    let is_begun = csv.next_whole().map_err(read_csv)?;
    if is_begun.is_some_and(|line| line != header.trim_end().as_bytes()) {
        let reason = "run.csv has other columns than this version of g2g writes: go on with the \
                      version that began it";
        return Err(bad(folder, reason));
    }
    let mut csv_end = csv.at;
    let mut next = csv.next_whole().map_err(read_csv)?.map(<[u8]>::to_vec);
    let json = match File::open(&json_path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound && next.is_none() => return Ok(None),
        json => json.map_err(read_json)?,
    };
    let mut json = Lines::of(&json);
    let Some(beginning) = json.beginning().map_err(read_json)? else {
        let damaged = damaged(folder, "run.csv has rows, and run.json has none");
        return if next.is_none() { Ok(None) } else { Err(damaged) };
    };
    let Beginning { provenance, resumed } = beginning.map_err(|err| {
        let reason = format!("run.json does not begin as this version of g2g writes it ({err})");
        bad(folder, &format!("{reason}: go on with the version that began it"))
    })?;
    let mut run = Run { resumed, ..Run::new(folder, provenance) };
    let json_begin = json.end;
    while let Some(line) = next {
        let number = run.rows.len() + 1;
        let row = json.next_row().map_err(read_json)?;
        let is_same = |row: &Row| {
            row.case == number && csv::line(row).trim_end_matches('\n').as_bytes() == line
        };
        run.rows.push(row.filter(is_same).ok_or_else(|| {
            damaged(folder, &format!("row {number} is not the same in run.csv and run.json"))
        })?);
        csv_end = csv.at;
        next = csv.next_whole().map_err(read_csv)?.map(<[u8]>::to_vec);
    }
    let json_end = json.end;
    let ending = json.ending().map_err(read_json)?.ok_or_else(|| {
        damaged(folder, "run.json has more rows than run.csv, which is cut or of another run")
    })?;
    let is_json_whole = ending.is_some();
    run.health = ending.unwrap_or_default().health;
    let places = Places { csv_end, json_begin, json_end, is_json_whole };
    Ok((!run.rows.is_empty()).then_some((run, places)))
}

/// The refusal of a folder whose files are damaged.
pub(super) fn damaged(folder: &Path, reason: &str) -> Error {
    bad(folder, &format!("{reason}: measure anew, with another --output"))
}

/// The refusal of a folder.
pub(super) fn bad(folder: &Path, reason: &str) -> Error {
    Error::Folder { path: folder.to_owned(), reason: reason.to_owned() }
}

/// The lines of a file.
pub(super) struct Lines<'a> {
    file: BufReader<&'a File>,
    /// Bytes that were read.
    pub(super) at: u64,
    /// Bytes up to the end of the last thing that was found.
    end: u64,
    /// Whether a line was found that is not whole.
    is_cut: bool,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(super) fn of(file: &'a File) -> Self {
        Self { file: BufReader::new(file), at: 0, end: 0, is_cut: false, line: Vec::new() }
    }

    /// Reads the next line with its break, if it has one; whether there is one.
    fn read(&mut self) -> io::Result<bool> {
        self.line.clear();
        let mut file = (&mut self.file).take(LINE_BYTES_MAX);
        let length = file.read_until(b'\n', &mut self.line)?;
        self.at += length as u64;
        Ok(length > 0)
    }

    /// The next line without its break; `None` at the end of the file.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let is_there = self.read()?;
        Ok(is_there.then(|| self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }

    /// The next line if it is whole: it has its break, and none of the zeros that a loss of power
    /// leaves. `None` for all lines after one that is not whole.
    pub(super) fn next_whole(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.is_cut {
            self.read()?;
        }
        let line = self.line.strip_suffix(b"\n").filter(|line| !line.contains(&0));
        self.is_cut |= line.is_none();
        Ok(line)
    }

    /// What precedes the rows; `None`: there is no place for them.
    pub(super) fn beginning(&mut self) -> io::Result<Option<serde_json::Result<Beginning>>> {
        let mut text = Vec::new();
        let mut begin = 0;
        while let Some(line) = self.next()? {
            text.extend(line);
            if line == json::ROWS.as_bytes() {
                self.end = begin + json::ROWS.len() as u64;
                text.extend(b"]}");
                return Ok(Some(serde_json::from_slice(&text)));
            }
            if text.len() > AROUND_BYTES_MAX {
                break;
            }
            begin = self.at;
        }
        Ok(None)
    }

    /// The row that the next line begins with; `None`: there is none.
    fn next_row(&mut self) -> io::Result<Option<Row>> {
        let begin = self.at;
        let Some(line) = self.next()? else { return Ok(None) };
        let mut values = serde_json::Deserializer::from_slice(line).into_iter();
        // A crash may have left anything after it.
        let row = values.next().and_then(Result::ok);
        self.end = begin + values.byte_offset() as u64;
        Ok(row)
    }

    /// What follows the rows, of which there may be one more; the inner `None`: it is cut. The outer
    /// `None`: there are more rows.
    fn ending(&mut self) -> io::Result<Option<Option<Ending>>> {
        let mut text = b"{\"rows\":[".to_vec();
        let mut is_more = false;
        let mut is_behind = false;
        while let Some(line) = self.next()? {
            let row = line.strip_suffix(b",").unwrap_or(line);
            if !is_behind && serde_json::from_slice::<Row>(row).is_ok() {
                if is_more {
                    return Ok(None);
                }
                is_more = true;
                continue;
            }
            is_behind = true;
            text.extend(line);
            if text.len() > AROUND_BYTES_MAX {
                break;
            }
        }
        let ending = serde_json::from_slice(&text).ok();
        Ok(Some(ending.filter(|_| !is_more)))
    }
}
