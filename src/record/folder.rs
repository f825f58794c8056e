//! A run's folder, read back.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Display,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::{
    Error, Row, csv, files, hlog, json,
    past::{Beginning, Ending, Lines},
    provenance::{Provenance, Resumption},
};
use crate::{
    machine::{health::HostHealth, survey::Survey},
    measure::Latency,
    plan::TransportKind,
};

/// The end of run.json is looked for in so many bytes, and in more if it is not there.
const ENDING_USUAL: u64 = 64 << 10;

/// The file of what rank 0's host consists of.
const TOPOLOGY: &str = "topology.json";

/// The content of a run's folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// The folder.
    pub folder: PathBuf,
    /// Where the rows come from.
    pub provenance: Provenance,
    /// When it was resumed.
    pub resumed: Vec<Resumption>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What rank 0's host consists of, if that was written down.
    pub topology: Option<Survey>,
    /// How the GPUs of each host have done; empty if the run was killed, or has no GPUs.
    pub health: Vec<HostHealth>,
}

impl Run {
    /// One that has no row yet.
    pub(super) fn new(folder: &Path, provenance: Provenance) -> Self {
        let (resumed, rows, health) = (Vec::new(), Vec::new(), Vec::new());
        let folder = folder.to_owned();
        Self { folder, provenance, resumed, rows, topology: None, health }
    }

    /// Reads a folder.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("run.json");
        let read = |source| Error::Read { path: path.clone(), source };
        let content = |reason: String| Error::Content { path: path.clone(), reason };
        let mut file = File::open(&path).map_err(read)?;
        let unknown = |why: &dyn Display| content(format!("no run of this version of g2g: {why}"));
        let beginning = Lines::of(&file).beginning().map_err(read)?;
        let beginning = beginning.ok_or_else(|| unknown(&"it ends before its rows"))?;
        let Beginning { provenance, resumed } = beginning.map_err(|err| unknown(&err))?;
        let ending = ending(&mut file).map_err(read)?;
        let Ending { health } = match serde_json::from_str(&ending) {
            // A kill may cut the file within its rows or after them: the rows before it are whole.
            Err(err) if err.is_eof() => Ending::default(),
            ending => ending.map_err(|err| unknown(&err))?,
        };
        let rows = csv::read(&folder.join("run.csv"))?;
        let topology = topology(&folder.join(TOPOLOGY))?;
        Ok(Self { folder: folder.to_owned(), provenance, resumed, rows, topology, health })
    }

    /// How long the machine was busy with the rows of each transport, in seconds.
    ///
    /// Hosts that measure a row each at the same time have the same time, which counts once.
    pub fn machine_seconds(&self) -> BTreeMap<TransportKind, f64> {
        let mut all = BTreeMap::new();
        let mut step: (Option<(TransportKind, u64)>, Vec<&str>) = (None, Vec::new());
        for row in &self.rows {
            let Some(seconds) = row.machine_seconds else { continue };
            let time = Some((row.transport, seconds.to_bits()));
            let is_within = row.source_host == row.target_host;
            let host = row.source_host.as_deref().filter(|_| is_within);
            if step.0 != time || host.is_none_or(|host| step.1.contains(&host)) {
                *all.entry(row.transport).or_insert(0.0) += seconds;
                step = (time.filter(|_| host.is_some()), Vec::new());
            }
            step.1.extend(host);
        }
        all
    }
}

/// The machine as JSON, as in topology.json.
pub fn topology_json(survey: &Survey) -> String {
    // Every value is a plain number or text.
    serde_json::to_string_pretty(survey).unwrap_or_default() + "\n"
}

/// Writes down what rank 0's host consists of, beside the results of a run.
pub fn keep_topology(folder: &Path, survey: &Survey) -> Result<(), Error> {
    let path = folder.join(TOPOLOGY);
    files::replace(&path, topology_json(survey).as_bytes())
        .map_err(|source| Error::Write { path, source })
}

fn topology(path: &Path) -> Result<Option<Survey>, Error> {
    let text = match fs::read_to_string(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|source| Error::Read { path: path.to_owned(), source })?,
    };
    let read = serde_json::from_str(&text);
    read.map(Some).map_err(|err| Error::Content { path: path.to_owned(), reason: err.to_string() })
}

impl Run {
    /// Gives `each` every one of these rows, by its place, with its latencies over all ranks.
    pub fn latencies(
        &self,
        rows: impl Iterator<Item = usize>,
        mut each: impl FnMut(usize, Latency),
    ) -> Result<(), Error> {
        let places: HashMap<usize, usize> = rows.map(|row| (self.rows[row].case, row)).collect();
        if places.is_empty() {
            return Ok(());
        }
        let path = self.folder.join("latency.hlog");
        let is_wanted = |case: usize| places.contains_key(&case);
        hlog::read(&path, is_wanted, |case, latency| each(places[&case], latency))
    }
}

/// What follows the rows, as JSON; it ends early where the file was cut.
fn ending(file: &mut (impl Read + Seek)) -> io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    let mut size = ENDING_USUAL;
    loop {
        let start = length.saturating_sub(size);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let last = [json::ROW, json::ROWS].iter().filter_map(|mark| {
            let (_, behind) = text.rsplit_once(&format!("\n{mark}"))?;
            Some(behind.split_once("\n]").map_or("", |(_, ending)| ending))
        });
        match last.min_by_key(|ending| ending.len()) {
            Some(ending) => return Ok(format!("{{{}", ending.trim_start_matches(','))),
            None if start == 0 => return Ok("{}".to_owned()),
            None => size *= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Recorder, Row};

    fn health(host: String) -> HostHealth {
        HostHealth { host, start: Vec::new(), end: Vec::new(), xids: None }
    }

    #[test]
    fn what_a_run_has_written_is_read_whatever_its_length() {
        for (rows, hosts) in [(0, 0), (0, 1), (1, 0), (2, 3), (900, 2), (3, 4000)] {
            let folder = tempfile::tempdir().unwrap();
            let provenance = Provenance::example();
            let mut recorder = Recorder::create(folder.path(), &provenance).unwrap();
            for row in 1..=rows {
                let row = Row::absent(row, TransportKind::P2p, "\n]\n\"rows\": [ {\"case\": }");
                recorder.append(row, &[]).unwrap();
            }
            let names: Vec<String> = (0..hosts).map(|host| format!("host-{host}")).collect();
            recorder.conclude(names.iter().cloned().map(health).collect()).unwrap();
            let run = Run::read(folder.path()).unwrap();
            assert_eq!(run.rows.len(), rows);
            assert_eq!(run.provenance.started, provenance.started);
            assert_eq!(run.provenance.hosts, provenance.hosts);
            let read: Vec<String> = run.health.into_iter().map(|health| health.host).collect();
            assert_eq!(read, names, "{rows} rows");
        }
    }

    #[test]
    fn a_run_that_a_kill_has_cut_within_its_rows_or_behind_them_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(folder.path(), &Provenance::example()).unwrap();
        for row in 1..=3 {
            recorder.append(Row::absent(row, TransportKind::P2p, "no GPU"), &[]).unwrap();
        }
        recorder.conclude(vec![health("host".to_owned())]).unwrap();
        let path = folder.path().join("run.json");
        let whole = fs::read_to_string(&path).unwrap();
        let begin = whole.find(json::ROWS).unwrap() + json::ROWS.len();
        let end = whole.rfind('}').unwrap();
        for cut in begin..=end {
            fs::write(&path, &whole[..cut]).unwrap();
            let run = Run::read(folder.path()).unwrap_or_else(|err| panic!("{cut}: {err}"));
            assert_eq!((run.rows.len(), run.health.len()), (3, 0), "{cut}");
        }
        for text in [&whole[..begin - json::ROWS.len()], &(whole[..end].to_owned() + "?}")] {
            fs::write(&path, text).unwrap();
            assert!(Run::read(folder.path()).is_err());
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(Run::read(folder.path()).unwrap().health.len(), 1);
    }

    #[test]
    fn time_that_hosts_spend_together_counts_once() {
        let mut run = Run::new(Path::new("run"), Provenance::example());
        let mut busy = |transport, ends: [&str; 2], seconds| {
            let row = Row::absent(1, transport, "");
            let [source_host, target_host] = ends.map(|host| Some(host.to_owned()));
            run.rows.push(Row { source_host, target_host, machine_seconds: Some(seconds), ..row });
        };
        use TransportKind::{Local, P2p};
        for (ends, seconds) in [
            // Two steps of both hosts, which last equally long.
            (["a", "a"], 1.5),
            (["b", "b"], 1.5),
            (["a", "a"], 1.5),
            (["b", "b"], 1.5),
            // Pairs between hosts, one after another.
            (["a", "b"], 2.0),
            (["b", "a"], 2.0),
            (["b", "b"], 2.0),
        ] {
            busy(P2p, ends, seconds);
        }
        busy(Local, ["a", "a"], 2.0);
        run.rows.push(Row::absent(9, Local, "no GPU"));
        assert_eq!(run.machine_seconds(), BTreeMap::from([(Local, 2.0), (P2p, 9.0)]));
    }

    #[test]
    fn what_is_no_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |text: &str| {
            std::fs::write(folder.path().join("run.json"), text).unwrap();
            Run::read(folder.path()).unwrap_err().to_string()
        };
        for text in ["", "{", "[]", "{\"provenance\": {}\n}", "\n\"rows\": [\n]\n}\n"] {
            let said = refused(text);
            assert!(said.contains("run.json: no run of this version of g2g"), "{text:?}: {said}");
        }
    }
}
