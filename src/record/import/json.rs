//! JSON of nccl-tests (`-J`, of which `src/util.cu` of 2.19.6 writes version 3) and of nvbandwidth
//! (`--json`, `json_output.cpp` of 0.8), element by element: of a file that was cut off, what
//! precedes the cut is read.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    Imported, Row, Sink,
    nccl_tests::{self, Place, Run},
    number::Printed,
    nvbandwidth, quoted,
};

/// The file from the first line that begins with a brace; `None` if it has none, or the text of a
/// known program comes first.
pub(super) fn beginning(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        if line.trim_ascii_start().starts_with(b"{") {
            return bytes.get(at..);
        }
        if super::reader(&String::from_utf8_lossy(line)).is_some() {
            return None;
        }
        at += line.len();
    }
    None
}

/// Reads either, as far as the file goes.
pub(super) fn read(bytes: &[u8], sink: &mut Sink<'_>) {
    let mut file = File { run: Run::default(), tests: None, error: None, sink };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = (&mut file).deserialize(&mut json);
    let File { tests, error, sink, .. } = file;
    if let Some(tests) = tests {
        tests.end(error.as_deref(), sink);
    }
    let Imported { tool, notes, .. } = &mut sink.about;
    notes.extend(error.map(|error| format!("{tool} ended with an error: {}", quoted(&error))));
    if let Err(err) = read {
        let end = if err.is_eof() { "the file was cut off" } else { "the file is damaged" };
        notes.push(format!("{end}: {err}"));
    }
}

/// What was read so far.
struct File<'a, 'b> {
    run: Run,
    /// Of nvbandwidth, from the beginning of its object.
    tests: Option<nvbandwidth::Tests>,
    /// How nvbandwidth has ended.
    error: Option<String>,
    sink: &'a mut Sink<'b>,
}

impl<'de> DeserializeSeed<'de> for &mut File<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// The object of nccl-tests, and within one of its own that of nvbandwidth.
impl<'de> Visitor<'de> for &mut File<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("results of nccl-tests or nvbandwidth")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let File { run, tests, error, sink } = &mut *self;
            let is_known = !sink.about.tool.is_empty();
            match (key.as_str(), &mut *tests) {
                ("version", Some(_)) => sink.about.version = map.next_value()?,
                ("error", Some(_)) => *error = map.next_value()?,
                ("testcases", Some(tests)) => {
                    map.next_value_seed(Elements(&mut |test| tests.add(test, sink)))?;
                }
                ("nvbandwidth", None) => {
                    sink.about.tool = nvbandwidth::PROGRAM.name;
                    *tests = Some(nvbandwidth::Tests::default());
                    map.next_value_seed(&mut *self)?;
                }
                ("args", None) => {
                    let words: Vec<String> = map.next_value()?;
                    run.program = words.into_iter().next();
                }
                ("nccl_version", None) => {
                    sink.about.library = Some(nccl_tests::library(map.next_value()?));
                    sink.about.tool = nccl_tests::PROGRAM.name;
                }
                ("config", None) => {
                    *run = map.next_value::<Config>()?.run(run.program.take());
                    sink.about.tool = nccl_tests::PROGRAM.name;
                }
                ("results", None) if is_known => {
                    let mut number = 0;
                    map.next_value_seed(Elements(&mut |result: NcclTests| {
                        number += 1;
                        if let Err(reason) = result.rows(run, sink) {
                            sink.leave_out(|| format!("result {number}: {reason}"));
                        }
                    }))?;
                }
                ("errors", None) if is_known => {
                    let errors: Vec<Option<String>> = map.next_value()?;
                    let said = errors.into_iter().flatten().filter(|error| !error.is_empty());
                    let notes = said
                        .map(|error| format!("nccl-tests ended with an error: {}", quoted(&error)));
                    sink.about.notes.extend(notes);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// What nccl-tests says of its run.
#[derive(Deserialize)]
struct Config {
    nthreads: Option<usize>,
    ngpus: Option<usize>,
    aggregated_iterations: Option<u64>,
    graph: Option<u32>,
    /// `true` or `false`, as text.
    blocking_collectives: Option<String>,
    #[serde(default)]
    devices: Vec<Device>,
}

/// The first device of a process.
#[derive(Deserialize)]
struct Device {
    group: Option<u32>,
}

impl Config {
    fn run(self, program: Option<String>) -> Run {
        let mut groups: Vec<Option<u32>> = self.devices.iter().map(|of| of.group).collect();
        groups.sort_unstable();
        let mut sizes = groups.chunk_by(|one, other| one == other).map(<[_]>::len);
        let first = sizes.next().filter(|&first| sizes.all(|size| size == first));
        let ranks = || {
            let ranks = first?.checked_mul(self.nthreads?)?.checked_mul(self.ngpus?)?;
            ranks.try_into().ok()
        };
        let row = Row {
            communicator_ranks: ranks(),
            operations_per_group: self.aggregated_iterations,
            graph: self.graph,
            blocking: self.blocking_collectives.map(|is| is == "true"),
            ..Row::default()
        };
        // Which way of waiting it was is not said.
        Run { program, row, has_timed_barriers: false }
    }
}

/// A result of nccl-tests.
#[derive(Deserialize)]
struct NcclTests {
    size: u64,
    #[serde(rename = "type")]
    data_type: Option<String>,
    redop: Option<String>,
    root: Option<String>,
    out_of_place: Option<Numbers>,
    in_place: Option<Numbers>,
    out_of_place_per_iter: Option<PerIteration>,
    in_place_per_iter: Option<PerIteration>,
}

/// One place of a result. A number can be `"nan"`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Numbers {
    time: Value,
    alg_bw: Value,
    bus_bw: Value,
    nwrong: Value,
}

/// The times of its single operations.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PerIteration {
    min_us: Value,
    p50_us: Value,
    p99_us: Value,
    max_us: Value,
}

/// With the six decimals that `%lf` prints.
fn printed(number: &Value) -> Option<Printed> {
    number.as_f64().and_then(|value| Printed::rounded(value, 6))
}

impl NcclTests {
    fn rows(&self, run: &Run, sink: &mut Sink<'_>) -> Result<(), String> {
        let line = run.line(
            self.size,
            self.data_type.as_deref(),
            self.redop.as_deref(),
            self.root.as_deref(),
        )?;
        let places = [
            (&self.out_of_place, &self.out_of_place_per_iter, false),
            (&self.in_place, &self.in_place_per_iter, true),
        ];
        for (numbers, single, in_place) in places {
            let Some(numbers) = numbers else { continue };
            let of = |value: fn(&PerIteration) -> &Value| value(single.as_ref()?).as_f64();
            let place = Place {
                time: printed(&numbers.time),
                algbw: printed(&numbers.alg_bw),
                busbw: printed(&numbers.bus_bw),
                wrong: numbers.nwrong.as_f64(),
                min: of(|single| &single.min_us),
                p50: of(|single| &single.p50_us),
                p99: of(|single| &single.p99_us),
                max: of(|single| &single.max_us),
                ..Place::default()
            };
            sink.row(run.row(&line, &place, in_place));
        }
        Ok(())
    }
}

/// A list, read element by element.
struct Elements<'a, T>(&'a mut dyn FnMut(T));

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Elements<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of results")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            (self.0)(element);
        }
        Ok(())
    }
}
