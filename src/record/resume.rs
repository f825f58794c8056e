//! Resumes a run that has ended early, in its own folder.
//!
//! Finished rows stay byte for byte. What a crash has left after them is cut off.

use std::{
    fs::{File, TryLockError},
    io, mem,
    path::{Path, PathBuf},
};

use super::{
    Error, Made, Recorder, Run, csv,
    files::{self, RecordFile},
    hlog, json,
    past::{self, Places, bad},
    provenance::{Provenance, Resumption},
};

/// The folder of a run, locked against other processes.
#[derive(Debug)]
pub struct Held {
    folder: PathBuf,
    csv: File,
    past: Option<(Run, Places)>,
}

impl Held {
    /// Locks `folder` and reads the run in it. Changes nothing yet.
    ///
    /// # Errors
    ///
    /// There is no run, its files are not as g2g writes them, or another g2g works there.
    pub fn of(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("run.csv");
        let csv = files::open(&path).map_err(|err| {
            let reason = match err.kind() {
                io::ErrorKind::NotFound => "it has no run.csv: name the folder of a run".to_owned(),
                _ => format!("cannot open run.csv: {err}"),
            };
            bad(folder, &reason)
        })?;
        lock(&csv, folder)?;
        let past = past::read(&csv, folder)?;
        Ok(Self { folder: folder.to_owned(), csv, past })
    }

    /// What is there, if it has a row.
    pub fn past(&self) -> Option<&Run> {
        self.past.as_ref().map(|(run, _)| run)
    }

    /// Opens the files for the rows that are missing, and writes `now` into run.json. A run without
    /// rows begins again, with `provenance`. Without `now` no row is missing, and files that are
    /// whole are not touched.
    ///
    /// # Errors
    ///
    /// latency.hlog lacks rows, or a file cannot be written.
    pub fn open(self, provenance: &Provenance, now: Option<Resumption>) -> Result<Recorder, Error> {
        let Self { folder, csv, past } = self;
        let [csv_path, json_path, hlog_path] = super::FILES.map(|file| folder.join(file));
        let Some((mut run, places)) = past else {
            for path in [&json_path, &hlog_path] {
                remove(path)?;
            }
            let mut csv = RecordFile::cut(&csv_path, csv, 0)?;
            csv.append(csv::text(&[]).as_bytes())?;
            return Recorder::begin(&folder, provenance, csv, Made::Nothing);
        };
        let hlog = hlog::Hlog::resume(&hlog_path, &run.rows)?;
        let is_anew = now.is_some() || !places.is_json_whole;
        if let Some(mut now) = now {
            // Of a resumption that added no row only the health is kept.
            let idle = run.resumed.iter().position(|before| before.rows == run.rows.len());
            let idle = idle.map(|first| run.resumed.split_off(first)).unwrap_or_default();
            let kept = idle.into_iter().flat_map(|before| before.health);
            now.health = kept.chain(mem::take(&mut run.health)).collect();
            run.resumed.push(now);
        }
        let json = json::Json::resume(&json_path, &run, is_anew, &places)?;
        let csv = RecordFile::cut(&csv_path, csv, places.csv_end)?;
        Ok(Recorder { run, made: Made::Nothing, csv, json, hlog })
    }
}

/// Keeps other processes of g2g out of `folder` as long as `csv`, its run.csv, is open.
pub(super) fn lock(csv: &File, folder: &Path) -> Result<(), Error> {
    match csv.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(bad(folder, "another g2g works in it: wait until it has ended, or name another"))
        }
        // Without locks in the file system the run goes on unlocked.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    files::remove(path).map_err(|source| Error::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tempfile::TempDir;

    use super::*;
    use crate::{
        machine::health::HostHealth,
        measure::Latency,
        plan::{Operation, Pattern, Rank, TransportKind},
        record::{Row, Status},
        units::Bytes,
    };

    /// The bytes of run.csv, run.json and latency.hlog.
    type Files = [Vec<u8>; 3];

    type Latencies = Vec<(Option<Rank>, Latency)>;

    /// A file is written after those behind it in this list.
    const NAMES: [&str; 3] = ["run.csv", "run.json", "latency.hlog"];

    /// Thousands of folders, which no disk has to keep.
    fn folder() -> TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    /// Where a run comes from, in few bytes.
    fn small() -> Provenance {
        let (hosts, environment, command) = (Vec::new(), Vec::new(), Vec::new());
        Provenance { hosts, environment, command, ..Provenance::example() }
    }

    fn rows() -> Vec<(Row, Latencies)> {
        let latency = |ns| Latency::of(&[Duration::from_nanos(ns); 3]);
        let measured = |case, ns| Row {
            status: Status::Ok,
            pattern: Some(Pattern::BothWays),
            operation: Some(Operation::Copy),
            size_bytes: Some(Bytes::kib(4)),
            bandwidth_gb_s: Some(0.1 + 0.2),
            latency_ns_max: Some(ns),
            path_reason: Some("1, \"2\"\n3".to_owned()),
            ..Row::absent(case, TransportKind::P2p, "")
        };
        vec![
            (Row::absent(1, TransportKind::Nccl, "no \"libnccl\", here"), Vec::new()),
            (measured(2, 200), vec![(None, latency(200))]),
            (
                measured(3, 300),
                [None, Some(Rank(0)), Some(Rank(11))].map(|rank| (rank, latency(300))).to_vec(),
            ),
        ]
    }

    fn read(folder: &Path) -> Files {
        NAMES.map(|name| fs::read(folder.join(name)).unwrap())
    }

    fn write(folder: &Path, files: &Files) {
        for (name, bytes) in NAMES.iter().zip(files) {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }

    /// The files before the first row and after each.
    fn run(provenance: &Provenance) -> Vec<Files> {
        let folder = folder();
        let mut recorder = Recorder::create(&folder.path().join("run"), provenance).unwrap();
        let mut files = vec![read(recorder.folder())];
        for (row, latencies) in rows() {
            recorder.append(row, &latencies).unwrap();
            files.push(read(recorder.folder()));
        }
        files
    }

    fn resumption(rows: usize) -> Resumption {
        let (time, command, changed) = ("now".to_owned(), vec!["g2g".to_owned()], Vec::new());
        Resumption { time, command, rows, changed, health: Vec::new() }
    }

    /// The run in `folder`, when a process that another test has just begun, and that has what was
    /// open until it runs its own program, has let go of it.
    fn hold(folder: &Path) -> Result<Held, Error> {
        for _ in 0..1000 {
            match Held::of(folder) {
                Err(err) if err.to_string().contains("another g2g works in it") => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                held => return held,
            }
        }
        Held::of(folder)
    }

    /// Goes on in `folder` to the end; how many rows were there.
    fn go_on(folder: &Path, provenance: &Provenance) -> Result<usize, Error> {
        let held = hold(folder)?;
        let count = held.past().map_or(0, |past| past.rows.len());
        let mut recorder = held.open(provenance, Some(resumption(count)))?;
        for (row, latencies) in rows().into_iter().skip(count) {
            recorder.append(row, &latencies).unwrap();
        }
        Ok(count)
    }

    fn tags(hlog: &[u8]) -> Vec<String> {
        let lines = String::from_utf8(hlog.to_vec()).unwrap();
        let tag = |line: &str| Some(line.strip_prefix("Tag=")?.split_once(',')?.0.to_owned());
        lines.lines().filter_map(tag).collect()
    }

    /// Fails unless `folder` has what a run has left that was not interrupted.
    fn assert_all(folder: &Path, whole: &Files, what: &str) {
        let [csv, json, hlog] = read(folder);
        assert_eq!(csv, whole[0], "{what}");
        assert_eq!(tags(&hlog), tags(&whole[2]), "{what}");
        let value = |bytes: &[u8]| -> serde_json::Value { serde_json::from_slice(bytes).unwrap() };
        let (json, whole) = (value(&json), value(&whole[1]));
        assert_eq!((&json["rows"], &json["provenance"]), (&whole["rows"], &whole["provenance"]));
        let rows: Vec<Row> = rows().into_iter().map(|(row, _)| row).collect();
        assert_eq!(hold(folder).unwrap().past().unwrap().rows, rows, "{what}");
    }

    #[test]
    fn a_run_that_ends_at_any_byte_goes_on_with_the_rows_that_were_finished() {
        let provenance = small();
        let states = run(&provenance);
        let whole = states.last().unwrap();
        for (finished, pair) in states.windows(2).enumerate() {
            let mut files = pair[0].clone();
            // The order in which they are written.
            for file in (0..NAMES.len()).rev() {
                let (old, new) = (&pair[0][file], &pair[1][file]);
                let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
                for cut in same..new.len() {
                    // A kill leaves what was there before, a loss of power zeros.
                    files[file] = match cut % 2 {
                        0 => [&new[..cut], old.get(cut..).unwrap_or_default()].concat(),
                        _ => [&new[..cut], &vec![0; new.len() - cut]].concat(),
                    };
                    let folder = folder();
                    write(folder.path(), &files);
                    let what = format!("row {}, {} at {cut}", finished + 1, NAMES[file]);
                    // Going on takes its time: the cut is put right in the same way at all of them.
                    if cut % 50 < 2 || new.len() - cut < 4 || cut - same < 4 {
                        let count = go_on(folder.path(), &provenance);
                        assert_eq!(count.unwrap_or_else(|err| panic!("{what}: {err}")), finished);
                        assert_all(folder.path(), whole, &what);
                    } else {
                        let held = hold(folder.path());
                        let held = held.unwrap_or_else(|err| panic!("{what}: {err}"));
                        let past = held.past().map_or(&[][..], |past| &past.rows);
                        assert!(past.iter().eq(rows().iter().take(finished).map(|(row, _)| row)));
                    }
                }
                files[file].clone_from(new);
            }
        }
    }

    #[test]
    fn a_run_that_ends_before_its_first_row_begins_anew() {
        let provenance = small();
        let states = run(&provenance);
        let [csv, json, hlog] = &states[0];
        for (name, whole) in NAMES.iter().zip(&states[0]) {
            for cut in (0..whole.len()).step_by(3) {
                let folder = folder();
                // What comes behind the file that is cut is not there yet.
                fs::write(folder.path().join("run.csv"), csv).unwrap();
                if *name != "run.csv" {
                    fs::write(folder.path().join("run.json"), json).unwrap();
                }
                fs::write(folder.path().join(name), &whole[..cut]).unwrap();
                assert_eq!(go_on(folder.path(), &provenance).unwrap(), 0, "{name} at {cut}");
                assert_all(folder.path(), states.last().unwrap(), name);
            }
        }
        assert!(hlog.ends_with(b"\n"));
    }

    #[test]
    fn a_wrong_byte_costs_no_row_in_silence() {
        let provenance = small();
        let states = run(&provenance);
        let whole = states.last().unwrap();
        for (file, name) in NAMES.iter().enumerate() {
            // By five ways to be wrong and a seventh part of the bytes.
            for at in (0..whole[file].len()).step_by(7) {
                let right = whole[file][at];
                let wrong = [0, b'\n', b'"', right ^ 1, right ^ 0x80][at % 5];
                let folder = folder();
                let mut files = whole.clone();
                files[file][at] = wrong;
                write(folder.path(), &files);
                let what = format!("{name} at {at} is {wrong:#04x}");
                match go_on(folder.path(), &provenance) {
                    Err(err) => {
                        let told = err.to_string();
                        assert!(told.contains(name) && told.lines().count() == 1, "{what}: {told}");
                        assert!(read(folder.path()) == files, "{what}: it was changed");
                    }
                    // The last row of run.csv is none if it is cut.
                    Ok(count) => {
                        assert!(count == 3 || (count == 2 && file == 0), "{what}: {count}");
                        assert!(read(folder.path())[0] == whole[0], "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn run_json_tells_when_it_was_gone_on_with_and_what_was_known_of_gpus_until_then() {
        let provenance = small();
        let folder = folder();
        let path = folder.path().join("run");
        let of_host = |host: &str| HostHealth {
            host: host.to_owned(),
            start: Vec::new(),
            end: Vec::new(),
            xids: None,
        };
        let mut recorder = Recorder::create(&path, &provenance).unwrap();
        recorder.append(rows().remove(0).0, &[]).unwrap();
        recorder.conclude(vec![of_host("first")]).unwrap();
        drop(recorder);
        let hosts = |health: &[HostHealth]| -> Vec<String> {
            health.iter().map(|health| health.host.clone()).collect()
        };
        for (nth, rows_after) in [(0, 1), (1, 2), (2, 2)] {
            let held = hold(&path).unwrap();
            let past = held.past().unwrap();
            assert_eq!(past.rows.len(), if nth == 2 { 2 } else { 1 });
            let resumption = resumption(past.rows.len());
            let mut recorder = held.open(&provenance, Some(resumption)).unwrap();
            if rows_after > recorder.rows().len() {
                let (row, latencies) = rows().remove(1);
                recorder.append(row, &latencies).unwrap();
                recorder.conclude(vec![of_host("second")]).unwrap();
            }
        }
        let held = hold(&path).unwrap();
        let past = held.past().unwrap();
        // The first time brought no row, and the last one none yet.
        let told: Vec<(usize, Vec<String>)> =
            past.resumed.iter().map(|one| (one.rows, hosts(&one.health))).collect();
        assert_eq!(told, [(1, vec!["first".to_owned()]), (2, vec!["second".to_owned()])]);
        assert_eq!(past.provenance.started, provenance.started);

        drop(held);
        // With all rows there the files are as they were.
        let before = read(&path);
        let recorder = hold(&path).unwrap().open(&provenance, None).unwrap();
        let json = super::super::json_text(recorder.run());
        assert_eq!(json.as_bytes(), before[1]);
        assert_eq!(read(&path), before);
    }

    #[test]
    fn two_do_not_work_in_one_folder() {
        let provenance = small();
        let folder = folder();
        let path = folder.path().join("run");
        let recorder = Recorder::create(&path, &provenance).unwrap();
        let told = Held::of(&path).unwrap_err().to_string();
        assert!(told.contains("another g2g works in it"), "{told}");
        drop(recorder);
        let held = hold(&path).unwrap();
        assert!(Held::of(&path).is_err());
        drop(held.open(&provenance, None).unwrap());
        assert!(hold(&path).is_ok());
    }

    #[test]
    fn what_is_no_run_is_refused() {
        let folder = folder();
        let told = |path: &Path| Held::of(path).unwrap_err().to_string();
        assert!(told(folder.path()).contains("it has no run.csv: name the folder of a run"));
        fs::write(folder.path().join("run.csv"), "case,other\n").unwrap();
        assert!(told(folder.path()).contains("run.csv has other columns"));
    }
}
