//! The catalogue for a person: a line for each GPU and instance type, or all of one with where it
//! is from.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::page::{Grid, Page};
use crate::{
    judge::expected::{self, Known},
    plan::catalogue::{Catalogue, Entry, Gpu, Instance, PeerAccess, Positive},
};

/// What stands in the place of a fact that is not known.
const UNKNOWN: &str = "?";

/// Columns that hold words.
const WORDS: [&str; 8] =
    ["path", "how", "GPU", "instance", "name", "memory", "GPUs reach each other", "added by"];

/// A line for each GPU and for each instance type.
pub fn catalogue_text(catalogue: &Catalogue) -> String {
    let gpu = |(key, gpu): (&String, &Gpu)| {
        [
            key.clone(),
            gpu.name.clone(),
            number(gpu.compute_capability),
            told(gpu.mem_type.as_ref()),
            number(gpu.mem_bw_gbs),
            told(gpu.nvlink_links),
            nvlink_rate(gpu.nvlink_gen, gpu.nvlink_gbs_per_gpu_per_dir),
            by(catalogue, key),
        ]
    };
    let instance = |(name, known): (&String, &Instance)| {
        [
            name.clone(),
            known.gpu_count.to_string(),
            known.gpu.clone(),
            told(known.gpu_mem_mib),
            known.p2p.map_or(UNKNOWN, reach).to_owned(),
            nvlink_rate(known.nvlink_gen, known.nvlink_gbs_per_gpu_per_dir),
            told(known.efa_interfaces.or((known.efa == Some(false)).then_some(0))),
            number(known.efa_total_gbps.or(known.network_gbps)),
            by(catalogue, name),
        ]
    };
    let gpu_head = [
        "GPU",
        "name",
        "compute capability",
        "memory",
        "memory GB/s",
        "NVLinks",
        "NVLink GB/s",
        "added by",
    ];
    let instance_head = [
        "instance",
        "GPUs",
        "GPU",
        "MiB each",
        "GPUs reach each other",
        "NVLink GB/s",
        "EFA",
        "network Gbit/s",
        "added by",
    ];
    let mut page = Page::default();
    page.title("GPUs; GB/s are 10^9 bytes per second, of NVLink for a whole GPU in one direction");
    page.grid(table(gpu_head, catalogue.gpu.iter().map(gpu)));
    page.lines("\n");
    page.title("Instance types; `g2g catalogue NAME` shows all of one, with where it is from");
    page.grid(table(instance_head, catalogue.instance.iter().map(instance)));
    page.text()
}

/// All of the catalogue.
pub fn catalogue_json(catalogue: &Catalogue) -> String {
    pretty(&json!(catalogue))
}

/// What is expected of each path.
fn expected_table(paths: &[Known]) -> Grid {
    let rate =
        |rate: Option<f64>| rate.map_or_else(|| UNKNOWN.to_owned(), |gb_s| format!("{gb_s:.1}"));
    let row = |known: &Known| {
        [known.path.to_owned(), rate(known.gb_s), rate(known.gb_s_low), known.derivation.clone()]
    };
    table(["path", "usual", "at least", "how"], paths.iter().map(row))
}

/// All of one entry, of the GPU of an instance, and where it is from.
pub fn catalogue_entry_text(catalogue: &Catalogue, name: &str, entry: Entry<'_>) -> String {
    let mut page = Page::default();
    for (title, facts, sources) in parts(catalogue, name, entry) {
        page.title(title);
        let rows = facts.lines().filter_map(|line| line.split_once(" = "));
        let rows = rows.filter(|(key, _)| *key != "src");
        let mut grid = Grid::new(["", ""]).numbers(&[]);
        for (key, value) in rows {
            grid.row([format!("  {key}"), value.replace('"', "")]);
        }
        page.grid(grid);
        page.lines("  from\n");
        for words in sources.values() {
            page.lines(&format!("    {words}\n"));
        }
        page.lines("\n");
    }
    if let Entry::Instance(instance) = entry {
        page.title(
            "expected by these facts, in GB/s of one direction; a run expects what the live machine \
             has",
        );
        page.grid(expected_table(&expected::known(name, instance, catalogue)));
        page.lines("\n");
    }
    page.lines("A fact that is missing is not known.\n");
    page.text()
}

/// The same as JSON.
pub fn catalogue_entry_json(catalogue: &Catalogue, name: &str, entry: Entry<'_>) -> String {
    let (kind, facts, gpu, sources, expected) = match entry {
        Entry::Gpu(gpu) => {
            ("gpu", json!(gpu), Value::Null, sources(catalogue, &gpu.src), Value::Null)
        }
        Entry::Instance(instance) => {
            let gpu = catalogue.gpu_of(instance);
            let mut all = sources(catalogue, &instance.src);
            all.extend(gpu.iter().flat_map(|gpu| sources(catalogue, &gpu.src)));
            let expected = json!(expected::known(name, instance, catalogue));
            ("instance", json!(instance), json!(gpu), all, expected)
        }
    };
    let added = catalogue.is_added(name);
    pretty(&json!({
        "name": name, "kind": kind, "added_by_user": added, "facts": without_gaps(facts),
        "gpu": without_gaps(gpu), "sources": sources, "expected": expected,
    }))
}

/// What there is to show: a title, the facts as lines of TOML, and the words of their sources.
fn parts<'a>(
    catalogue: &'a Catalogue,
    name: &str,
    entry: Entry<'a>,
) -> Vec<(String, String, BTreeMap<&'a str, &'a str>)> {
    let mark = |name: &str| if catalogue.is_added(name) { ", added by the user" } else { "" };
    let of_gpu = |key: &str, gpu: &'a Gpu| {
        let title = format!("GPU {key}{}", mark(key));
        (title, lines(gpu), sources(catalogue, &gpu.src))
    };
    match entry {
        Entry::Gpu(gpu) => vec![of_gpu(name, gpu)],
        Entry::Instance(instance) => {
            let title = format!("instance type {name}{}", mark(name));
            let own = (title, lines(instance), sources(catalogue, &instance.src));
            let gpu = catalogue.gpu_of(instance).map(|gpu| of_gpu(&instance.gpu, gpu));
            [own].into_iter().chain(gpu).collect()
        }
    }
}

/// What is known, a line for each key, in the order of the keys.
fn lines(entry: &impl Serialize) -> String {
    // Every entry was read from such lines.
    toml::to_string(entry).unwrap_or_default()
}

fn sources<'a>(catalogue: &'a Catalogue, names: &'a [String]) -> BTreeMap<&'a str, &'a str> {
    names.iter().map(|name| (name.as_str(), catalogue.words_of(name))).collect()
}

/// Without what is not known.
fn without_gaps(facts: Value) -> Value {
    match facts {
        Value::Object(facts) => facts.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}

fn pretty(value: &Value) -> String {
    // Every value is a plain number or text.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn told(fact: Option<impl ToString>) -> String {
    fact.map_or_else(|| UNKNOWN.to_owned(), |fact| fact.to_string())
}

fn number(fact: Option<Positive>) -> String {
    told(fact.map(Positive::get))
}

/// The rate of NVLinks; 0 where there are none.
fn nvlink_rate(generation: Option<u32>, rate: Option<Positive>) -> String {
    if generation == Some(0) { "0".to_owned() } else { number(rate) }
}

/// Who has added an entry, where it was not there before.
fn by(catalogue: &Catalogue, name: &str) -> String {
    if catalogue.is_added(name) { "the user".to_owned() } else { String::new() }
}

const fn reach(access: PeerAccess) -> &'static str {
    match access {
        PeerAccess::NvswitchAllPairs => "all by NVSwitch",
        PeerAccess::Nvlink => "by NVLink",
        PeerAccess::NvlinkHybridCubeMesh => "some by NVLink",
        PeerAccess::Pcie => "over PCIe",
        PeerAccess::Unsupported => "no",
        PeerAccess::UnsupportedOrBroken => "no, or it does not work",
    }
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Grid {
    let mut grid = Grid::new(head).words(&WORDS);
    for row in rows {
        grid.row(row);
    }
    grid.without_empty()
}
