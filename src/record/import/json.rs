//! JSON of nccl-tests (`-J`, of which `src/util.cu` of 2.19.6 writes version 3) and of nvbandwidth
//! (`--json`, `json_output.cpp` of 0.8), element by element: of a file that was cut off, what
//! stands before the cut is read.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    About, Sink,
    nccl_tests::{self, Line, Place, Run, Wrong},
    number::Printed,
    nvbandwidth,
};

/// From the brace that opens a line, if the file has one and no text of a program that is known
/// stands before it.
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

/// Reads either; `None` where it is neither.
pub(super) fn read(bytes: &[u8], sink: &mut Sink<'_>) -> Option<About> {
    let mut file = File { about: None, run: Run::default(), sink };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = json.deserialize_map(&mut file);
    let mut about = file.about?;
    if let Err(err) = read {
        let end = if err.is_eof() { "the file was cut off" } else { "the file is damaged" };
        about.notes.push(format!("{end}: {err}"));
    }
    Some(about)
}

/// What was read so far.
struct File<'a, 'b> {
    /// Once it is known what wrote the file.
    about: Option<About>,
    run: Run,
    sink: &'a mut Sink<'b>,
}

impl File<'_, '_> {
    fn about(&mut self, tool: &'static str) -> &mut About {
        self.about.get_or_insert_with(|| About {
            tool,
            version: None,
            library: None,
            notes: Vec::new(),
        })
    }
}

impl<'de> Visitor<'de> for &mut File<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("results of nccl-tests or nvbandwidth")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "nvbandwidth" => map.next_value_seed(Nvbandwidth(self))?,
                "args" => {
                    let words: Vec<String> = map.next_value()?;
                    self.run.program = words.into_iter().next();
                }
                "nccl_version" => {
                    let code = map.next_value()?;
                    self.about(nccl_tests::PROGRAM.name).library = Some(nccl_tests::library(code));
                }
                "config" => {
                    let config: Config = map.next_value()?;
                    self.about(nccl_tests::PROGRAM.name);
                    self.configure(&config);
                }
                "results" if self.about.is_some() => {
                    let File { run, sink, .. } = &mut *self;
                    let mut number = 0;
                    map.next_value_seed(Elements(&mut |result: NcclTests| {
                        number += 1;
                        if let Err(reason) = result.rows(run, sink) {
                            sink.leave_out(|| format!("result {number}: {reason}"));
                        }
                    }))?;
                }
                "errors" if self.about.is_some() => {
                    let errors: Vec<Option<String>> = map.next_value()?;
                    let said = errors.into_iter().flatten().filter(|error| !error.is_empty());
                    let notes = said.map(|error| {
                        format!("nccl-tests ended with an error: {}", super::quoted(&error))
                    });
                    self.about(nccl_tests::PROGRAM.name).notes.extend(notes);
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

impl File<'_, '_> {
    fn configure(&mut self, config: &Config) {
        let per_process = config.nthreads.zip(config.ngpus);
        let mut groups: Vec<Option<u32>> = config.devices.iter().map(|of| of.group).collect();
        groups.sort_unstable();
        let mut sizes = groups.chunk_by(|one, other| one == other).map(<[_]>::len);
        let first = sizes.next().filter(|&first| sizes.all(|size| size == first));
        let ranks = first.zip(per_process).and_then(|(processes, (threads, gpus))| {
            processes.checked_mul(threads)?.checked_mul(gpus)?.try_into().ok()
        });
        self.run = Run {
            program: self.run.program.take(),
            ranks,
            operations_per_group: config.aggregated_iterations,
            graph: config.graph,
            // Which way of waiting it was is not said.
            blocking: config
                .blocking_collectives
                .as_ref()
                .map(|is| if is == "true" { 2 } else { 0 }),
            ..Run::default()
        };
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

/// One place of a result.
#[derive(Deserialize)]
struct Numbers {
    time: Option<Number>,
    alg_bw: Option<Number>,
    bus_bw: Option<Number>,
    nwrong: Option<Number>,
}

/// The times of its single operations.
#[derive(Deserialize)]
struct PerIteration {
    min_us: Option<Number>,
    p50_us: Option<Number>,
    p99_us: Option<Number>,
    max_us: Option<Number>,
}

/// A number, or `"nan"`.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Value(f64),
    None(IgnoredAny),
}

impl Number {
    fn value(this: Option<Self>) -> Option<f64> {
        match this {
            Some(Self::Value(value)) => Some(value),
            _ => None,
        }
    }

    /// With the six decimals that `%lf` prints.
    fn printed(this: Option<Self>) -> Option<Printed> {
        Self::value(this).and_then(|value| Printed::rounded(value, 6))
    }
}

impl NcclTests {
    fn rows(&self, run: &Run, sink: &mut Sink<'_>) -> Result<(), String> {
        let line = Line::new(
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
            let of = |value: fn(&PerIteration) -> Option<Number>| {
                single.as_ref().and_then(|single| Number::value(value(single)))
            };
            let place = Place {
                time: Number::printed(numbers.time),
                algbw: Number::printed(numbers.alg_bw),
                busbw: Number::printed(numbers.bus_bw),
                wrong: Number::value(numbers.nwrong).map_or(Wrong::NotChecked, Wrong::Elements),
                min: of(|single| single.min_us),
                p50: of(|single| single.p50_us),
                p99: of(|single| single.p99_us),
                max: of(|single| single.max_us),
            };
            sink.row(run.row(&line, &place, in_place)?);
        }
        Ok(())
    }
}

/// The object in which nvbandwidth puts everything.
struct Nvbandwidth<'a, 'b, 'c>(&'a mut File<'b, 'c>);

impl<'de> DeserializeSeed<'de> for Nvbandwidth<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Nvbandwidth<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("results of nvbandwidth")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let file = self.0;
        file.about(nvbandwidth::PROGRAM.name);
        let mut error = None;
        let mut tests = nvbandwidth::Tests::default();
        let mut read = || -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                match key.as_str() {
                    "version" => {
                        file.about(nvbandwidth::PROGRAM.name).version = map.next_value()?
                    }
                    "error" => error = map.next_value()?,
                    "testcases" => map.next_value_seed(Elements(&mut |test| {
                        tests.add(test, file.sink);
                    }))?,
                    _ => {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
            Ok(())
        };
        let read = read();
        let error: Option<String> = error;
        tests.end(error.as_deref(), file.sink);
        let note = error
            .map(|error| format!("nvbandwidth ended with an error: {}", super::quoted(&error)));
        file.about(nvbandwidth::PROGRAM.name).notes.extend(note);
        read
    }
}

/// A list whose elements are handed over one by one.
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
