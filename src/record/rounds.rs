//! The rounds of a burn-in: `rounds.csv`, a line for each transport in each round.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    Error,
    files::{self, RecordFile},
};
use crate::plan::TransportKind;

/// The file in the folder of a run.
const FILE: &str = "rounds.csv";

/// What the cases of a transport did in a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Its number, from 1 on. The rows before are of none.
    pub round: u64,
    /// When it began, in seconds of the rounds before.
    pub began_s: f64,
    /// How long all of it took, in seconds.
    pub took_s: f64,
    /// The transport.
    pub transport: TransportKind,
    /// The cases that were measured, and verified.
    pub verified: u64,
    /// Those that were corrupt or failed.
    pub wrong: u64,
    /// The least share that the rate of a case has of its first.
    pub share_least: Option<f64>,
    /// The number of that case's first row.
    pub slowest_case: Option<usize>,
    /// The median of these shares.
    pub share_median: Option<f64>,
    /// The highest temperature of a GPU after a case, in degrees Celsius.
    pub temperature_c_max: Option<u32>,
}

/// The open file.
#[derive(Debug)]
pub struct Rounds {
    file: RecordFile,
    /// How many rounds it has.
    pub count: u64,
    /// What they took, in seconds.
    pub seconds: f64,
}

impl Rounds {
    /// Of the run in `folder`, which may have some.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written, or is not as g2g writes it.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let write = |source| Error::Write { path: path.clone(), source };
        let (rounds, end) = read(folder)?;
        let last = rounds.last();
        let (count, seconds) =
            last.map_or((0, 0.0), |last| (last.round, last.began_s + last.took_s));
        let file = match end {
            0 => {
                // What a crash has left of the header is none.
                files::remove(&path).map_err(write)?;
                let header = lines(&[]).map_err(|err| write(err.into()))?;
                RecordFile::create(&path, &header, "")?
            }
            end => RecordFile::cut(&path, files::open(&path).map_err(write)?, end)?,
        };
        Ok(Self { file, count, seconds })
    }

    /// Appends a round, at once.
    pub fn append(&mut self, round: &[Round]) -> Result<(), Error> {
        let lines = lines(round).map_err(|err| self.file.failed(err.into()))?;
        self.file.append(&lines)?;
        if let Some(last) = round.last() {
            self.count = last.round;
            self.seconds = last.began_s + last.took_s;
        }
        Ok(())
    }
}

/// The rounds of the run in `folder`, and the bytes of the lines that are whole.
pub fn read(folder: &Path) -> Result<(Vec<Round>, u64), Error> {
    let path = folder.join(FILE);
    let text = match fs::read_to_string(&path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        text => text.map_err(|source| Error::Read { path: path.clone(), source })?,
    };
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    let rounds: Result<Vec<Round>, csv::Error> =
        csv::Reader::from_reader(&text.as_bytes()[..end]).deserialize().collect();
    let rounds = rounds.map_err(|err| Error::Content { path, reason: err.to_string() })?;
    Ok((rounds, end as u64))
}

/// The lines of a round; without any the header.
fn lines(round: &[Round]) -> Result<Vec<u8>, csv::Error> {
    let mut writer =
        csv::WriterBuilder::new().has_headers(round.is_empty()).from_writer(Vec::new());
    if round.is_empty() {
        writer.serialize(Round::default())?;
    }
    round.iter().try_for_each(|line| writer.serialize(line))?;
    let mut bytes = writer.into_inner().map_err(|err| err.into_error())?;
    if round.is_empty() {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(end);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(number: u64, transport: TransportKind) -> Round {
        Round {
            round: number,
            began_s: 10.5 * (number - 1) as f64,
            took_s: 10.5,
            transport,
            verified: 12,
            wrong: 1,
            share_least: Some(0.97),
            slowest_case: Some(7),
            share_median: None,
            temperature_c_max: Some(61),
        }
    }

    #[test]
    fn rounds_are_read_as_they_were_written_and_half_a_line_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let of =
            |number| [TransportKind::Local, TransportKind::P2p].map(|kind| round(number, kind));
        let mut rounds = Rounds::open(folder.path()).unwrap();
        assert_eq!((rounds.count, rounds.seconds), (0, 0.0));
        rounds.append(&of(1)).unwrap();
        rounds.append(&of(2)).unwrap();
        assert_eq!((rounds.count, rounds.seconds), (2, 21.0));
        let (kept, end) = read(folder.path()).unwrap();
        assert_eq!(kept, [of(1), of(2)].concat());

        let path = folder.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len() as u64, end);
        // A crash may cut it anywhere; a round may lack lines.
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut rounds = Rounds::open(folder.path()).unwrap();
            rounds.append(&of(3)).unwrap();
            let (kept, _) = read(folder.path()).unwrap();
            assert_eq!(&kept[kept.len() - 2..], of(3), "{length}");
        }
    }
}
