//! Holds `docs/machines.md` and `docs/simulated-faults.md` to what machine files are and instances
//! have, and the catalogue to its own list of sources.

use std::{collections::BTreeSet, fs};

use super::{
    Machine,
    file::parse,
    rates::{self, Way},
};

/// The text below a heading, as far as the next one that is not below it.
fn section(heading: &str) -> String {
    let page = |name: &str| {
        fs::read_to_string(format!("{}/../docs/{name}.md", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let text = page("machines") + &page("simulated-faults");
    let depth = heading.chars().take_while(|&letter| letter == '#').count();
    let mut is_code = false;
    let mut lines = text.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "{heading}");
    let lines = lines.take_while(|line| {
        is_code ^= line.starts_with("```");
        let hashes = line.chars().take_while(|&letter| letter == '#').count();
        is_code || hashes == 0 || hashes > depth
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A row of a table of keys.
#[derive(Debug)]
struct Key {
    name: String,
    default: String,
}

/// The keys of the first table below a heading.
fn keys(heading: &str) -> Vec<Key> {
    let section = section(heading);
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let keys = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{row}");
        Key { name: cells[0].trim_matches('`').to_owned(), default: cells[3].to_owned() }
    });
    let keys: Vec<Key> = keys.collect();
    assert!(!keys.is_empty(), "{heading}");
    keys
}

/// The keys that a table of a file takes, from its refusal of one that it does not.
fn taken(table: &str) -> BTreeSet<String> {
    let text = match table {
        "" => "no_such_key = 1".to_owned(),
        "rate" => "gpu = [{ local_ce = { no_such_key = 1 } }]".to_owned(),
        table => format!("{}\nno_such_key = 1", head(table)),
    };
    let problem = parse(&text, "").unwrap_err().to_string();
    let (_, list) = problem.split_once("expected").unwrap_or_else(|| panic!("{problem}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// How a table begins: some are there once.
fn head(table: &str) -> String {
    match table {
        "driver" | "efa" | "nccl" | "host" => format!("[{table}]"),
        _ => format!("[[{table}]]"),
    }
}

/// Each table of keys: its heading, the table, and what it must have to be a table at all.
const TABLES: [(&str, &str, &str); 19] = [
    ("### Top level", "", ""),
    ("### `[[gpu]]`", "gpu", ""),
    ("### `[[pair]]`", "pair", ""),
    ("### Rates", "rate", ""),
    ("### `[[nic]]`", "nic", ""),
    ("### `[host]`", "host", ""),
    ("### `[[host.file]]`", "host.file", "path = '/proc/cmdline'\ndenied = true\n"),
    ("### `[driver]`", "driver", ""),
    ("### `[efa]`", "efa", ""),
    ("### `[nccl]`", "nccl", ""),
    ("## `[[fault.slow]]`", "fault.slow", "fraction = 0.5\n"),
    ("## `[[fault.jitter]]`", "fault.jitter", "share = 0.5\nextra_ns = 1\n"),
    ("## `[[fault.flip]]`", "fault.flip", ""),
    ("## `[[fault.call]]`", "fault.call", "name = 'cuInit'\ncode = 1\n"),
    ("## `[[fault.rank]]`", "fault.rank", "what = 'wrong'\n"),
    ("## `[[fault.health]]`", "fault.health", "what = 'lost'\n"),
    ("## `[[fault.detour]]`", "fault.detour", ""),
    ("## `[[fault.nic]]`", "fault.nic", "what = 'lost'\n"),
    ("## `[[fault.network]]`", "fault.network", "fraction = 0.5\n"),
];

#[test]
fn the_documented_keys_are_those_that_files_take() {
    for (heading, table, _) in TABLES {
        let mut documented: BTreeSet<String> =
            keys(heading).into_iter().map(|key| key.name).collect();
        if table.is_empty() {
            documented.extend(
                ["gpu", "pair", "nic", "host", "fault", "driver", "efa", "nccl"].map(str::to_owned),
            );
        }
        if table == "host" {
            documented.insert("file".to_owned());
        }
        assert_eq!(documented, taken(table), "{heading}");
    }
}

fn machine(text: &str) -> Machine {
    parse(text, "machine").unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

#[test]
fn the_documented_defaults_are_what_files_leave_out() {
    let mut count = 0;
    for (heading, table, needed) in TABLES.into_iter().filter(|&(_, table, _)| table != "rate") {
        let given = keys(heading).into_iter().filter_map(|key| {
            let default = key.default.strip_prefix('`')?.strip_suffix('`')?.to_owned();
            Some(format!("{} = {default}\n", key.name))
        });
        let given: String = given.collect();
        count += given.lines().count();
        let table =
            if table.is_empty() { String::new() } else { format!("{}\n{needed}", head(table)) };
        let left_out = machine(&format!("schema = 1\n{table}"));
        assert_eq!(machine(&format!("schema = 1\n{table}{given}")), left_out, "{given}");
    }
    assert!(count > 40, "{count}");
}

#[test]
fn what_must_be_there_is_documented_so() {
    for (heading, table, needed) in TABLES {
        let keys = keys(heading);
        let with = |default: &str| {
            let keys = keys.iter().filter(|key| key.default.starts_with(default));
            keys.map(|key| key.name.clone()).collect::<BTreeSet<String>>()
        };
        let (must, one_must) = (with("required"), with("one is required"));
        let mut lines: BTreeSet<&str> = needed.lines().collect();
        if table.is_empty() {
            lines.insert("schema = 1");
        }
        let names = lines.iter().map(|line| line.split(' ').next().unwrap().to_owned());
        let names = names.filter(|name| !one_must.contains(name));
        assert_eq!(must, names.collect(), "{heading}");
        for missing in needed.lines() {
            let rest = needed.replace(missing, "");
            let problem = parse(&format!("schema = 1\n{}\n{rest}", head(table)), "").unwrap_err();
            let sentence = problem.to_string();
            let is_said = ["missing field", "must be given"].map(|said| sentence.contains(said));
            assert!(is_said.contains(&true), "{sentence}");
        }
    }
}

#[test]
fn every_example_is_a_machine() {
    let text = section("## Machine files");
    let examples: Vec<&str> = text.split("```toml\n").skip(1).collect();
    assert_eq!(examples.len(), 4);
    for example in examples {
        machine(example.split("```").next().unwrap());
    }
}

#[test]
fn shares_and_latencies_are_documented() {
    let ways: [(&str, Way); 11] = [
        ("NVLink 2", rates::nvlink(2, false)),
        ("NVLink 3", rates::nvlink(3, false)),
        ("NVLink 4", rates::nvlink(4, false)),
        ("NVLink 5", rates::nvlink(5, false)),
        ("NVLink, direct", rates::nvlink(3, false)),
        ("NVLink, NVSwitch", rates::nvlink(3, true)),
        ("PCIe between GPUs, one NUMA node", rates::PCIE_NEAR),
        ("PCIe between GPUs, two NUMA nodes", rates::PCIE_FAR),
        ("PCIe to the host", rates::HOST_PCIE),
        ("NVLink-C2C to the host", rates::HOST_C2C),
        ("own memory", rates::LOCAL),
    ];
    let rows = |heading: &str| {
        let section = section(heading);
        let rows = section.lines().filter(|line| line.starts_with("| ") && line.contains(" | "));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    let (shares, latencies) =
        (rows("### Shares of the raw rate"), rows("### Latencies in nanoseconds"));
    let mut found = 0;
    for (name, way) in ways {
        let (read, write) = (way.reads(1.0), way.writes(1.0));
        let [ce_read, ce_write] = [read.ce.gb_s, write.ce.gb_s];
        let row =
            format!("{ce_read:.3} | {ce_write:.3} | {:.3} | {:.3} |", read.sm.gb_s, write.sm.gb_s);
        let starts = [format!("| {name} |"), format!("| {name}, of half its bandwidth |")];
        for line in shares.iter().filter(|line| starts.iter().any(|start| line.starts_with(start)))
        {
            assert!(line.ends_with(&row), "{line}\n{row}");
            found += 1;
        }
        assert_eq!(read.ce.latency_ns, write.ce.latency_ns);
        let (ce, load) = (read.ce.latency_ns, way.load_latency_ns());
        let row = format!("{ce} | {} | {} | {load} |", read.sm.latency_ns, write.sm.latency_ns);
        for line in latencies.iter().filter(|line| line.starts_with(&starts[0])) {
            assert!(line.ends_with(&row), "{line}\n{row}");
            found += 1;
        }
    }
    assert_eq!(found, 9 + 7);
}

#[test]
fn every_source_of_the_catalogue_is_explained_and_used() {
    fn named(value: &toml::Value, found: &mut BTreeSet<String>) {
        match value {
            toml::Value::Table(table) => table.iter().for_each(|(key, value)| match key.as_str() {
                "src" => {
                    // One name, or several.
                    let several = value.as_array().map(Vec::as_slice);
                    let names = several.unwrap_or(std::slice::from_ref(value)).iter();
                    found.extend(names.map(|name| name.as_str().unwrap().to_owned()));
                }
                _ => named(value, found),
            }),
            toml::Value::Array(values) => values.iter().for_each(|value| named(value, found)),
            _ => {}
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/plan/catalogue.toml");
    let catalogue: toml::Value = toml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut found = BTreeSet::new();
    named(&catalogue, &mut found);
    let explained = catalogue["source"].as_table().unwrap();
    assert_eq!(found, explained.keys().cloned().collect());
}
