//! `run.json`: where the rows come from, and the rows again.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use serde::Serialize;

use super::{
    Error, Row, Run,
    files::{self, RecordFile},
    past::Places,
    provenance::{Provenance, Resumption},
    resume::remove,
};

const ENDING: &str = "\n]\n}\n";

/// The line before the rows.
pub(super) const ROWS: &str = "\"rows\": [";

/// How the line of a row begins.
pub(super) const ROW: &str = "{\"case\":";

/// The open file.
#[derive(Debug)]
pub(super) struct Json {
    file: RecordFile,
    is_empty: bool,
}

impl Json {
    pub(super) fn create(path: &Path, provenance: &Provenance) -> Result<Self, Error> {
        let file = RecordFile::create(path, beginning(provenance, &[]).as_bytes(), ENDING)?;
        Ok(Self { file, is_empty: true })
    }

    /// Opens the file of a run that goes on. If `is_anew`, a new file with what now precedes the rows
    /// is written first, and replaces the old one when it is whole.
    pub(super) fn resume(
        path: &Path,
        run: &Run,
        is_anew: bool,
        places: &Places,
    ) -> Result<Self, Error> {
        let write = |source| Error::Write { path: path.to_owned(), source };
        let mut old = files::open(path).map_err(write)?;
        if !is_anew {
            let file = RecordFile::of(path, old, places.json_end, ENDING);
            return Ok(Self { file, is_empty: false });
        }
        let part = path.with_extension("json.part");
        remove(&part)?;
        let beginning = beginning(&run.provenance, &run.resumed);
        let rows = places.json_end - places.json_begin;
        let copy = || {
            let mut new = files::create(&part)?;
            new.write_all(beginning.as_bytes())?;
            old.seek(SeekFrom::Start(places.json_begin))?;
            io::copy(&mut old.take(rows), &mut new)?;
            new.write_all(ENDING.as_bytes())?;
            new.sync_all()?;
            fs::rename(&part, path)?;
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
            Ok(new)
        };
        let new = copy().map_err(write)?;
        let end = beginning.len() as u64 + rows;
        Ok(Self { file: RecordFile::of(path, new, end, ENDING), is_empty: false })
    }

    pub(super) fn append(&mut self, row: &Row) -> Result<(), Error> {
        let separator = if self.is_empty { "\n" } else { ",\n" };
        self.file.append(format!("{separator}{}", compact(row)).as_bytes())?;
        self.is_empty = false;
        Ok(())
    }

    /// Says at the end how long each transport took, and how the GPUs have done.
    pub(super) fn conclude(&mut self, run: &Run) -> Result<(), Error> {
        self.file.conclude(ending(run).as_bytes())
    }
}

/// What `--format json` prints: the same as the file.
pub fn text(run: &Run) -> String {
    let separator = if run.rows.is_empty() { "" } else { "\n" };
    let beginning = beginning(&run.provenance, &run.resumed);
    format!("{beginning}{separator}{}{}", lines(&run.rows), ending(run))
}

/// What follows the rows.
fn ending(run: &Run) -> String {
    let mut ending = "\n]".to_owned();
    let seconds = run.machine_seconds();
    if !seconds.is_empty() {
        ending += &format!(",\n\"machine_seconds\": {}", compact(&seconds));
    }
    if !run.health.is_empty() {
        ending += &format!(",\n\"health\": [\n{}\n]", lines(&run.health));
    }
    ending + "\n}\n"
}

/// What precedes the rows.
fn beginning(provenance: &Provenance, resumed: &[Resumption]) -> String {
    let provenance = serde_json::to_string_pretty(provenance)
        .expect("provenance is text, numbers and lists, which all have a form in JSON");
    let resumed = match resumed {
        [] => String::new(),
        resumed => format!("\"resumed\": [\n{}\n],\n", lines(resumed)),
    };
    format!("{{\n\"provenance\": {provenance},\n{resumed}{ROWS}")
}

/// The elements of a list, each on a line.
fn lines(elements: &[impl Serialize]) -> String {
    elements.iter().map(compact).collect::<Vec<String>>().join(",\n")
}

fn compact(row: &impl Serialize) -> String {
    serde_json::to_string(row).expect("it is text and numbers, which all have a form in JSON")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, generate::SchemaSettings};

    use super::*;
    use crate::{machine::health::HostHealth, plan::TransportKind};

    /// What stands in a run.json.
    #[derive(JsonSchema)]
    #[schemars(title = "run.json of g2g", deny_unknown_fields)]
    #[allow(dead_code, reason = "its fields are named by the schema")]
    struct Content {
        /// Where the rows come from.
        provenance: Provenance,
        /// Each time that the run was resumed after an early end.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        resumed: Vec<Resumption>,
        /// The rows, in their order. A key is a column of run.csv, an empty cell is `null`.
        rows: Vec<Row>,
        /// How long the machine was busy with the rows of each transport, in seconds.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        machine_seconds: BTreeMap<TransportKind, f64>,
        /// How the GPUs of each host have done; behind the last row of a run with GPUs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        health: Vec<HostHealth>,
    }

    #[test]
    fn the_published_schema_is_what_the_types_say() {
        let schema = SchemaSettings::draft2020_12().for_serialize().into_generator();
        let schema = schema.into_root_schema_for::<Content>();
        let schema = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let published = include_str!("../../docs/run.schema.json");
        if schema != published {
            let made = concat!(env!("CARGO_MANIFEST_DIR"), "/target/run.schema.json");
            std::fs::write(made, schema).unwrap();
            panic!("docs/run.schema.json is not what the types say: compare it with {made}");
        }
    }

    #[test]
    fn the_file_is_whole_after_every_row_and_equals_what_is_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let provenance = Provenance::example();
        let mut json = Json::create(&path, &provenance).unwrap();
        let mut run = Run::new(folder.path(), provenance);
        for number in 1..4 {
            let text = std::fs::read_to_string(&path).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["rows"].as_array().unwrap().len(), number - 1);
            assert_eq!(text, super::text(&run));
            run.rows.push(Row::absent(number, TransportKind::P2p, "no \"GPU\", here"));
            json.append(&run.rows[number - 1]).unwrap();
        }
        let value: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(value["rows"][2]["reason"], "no \"GPU\", here");
        assert_eq!(value["provenance"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
