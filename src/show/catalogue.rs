//! The catalogue: a line for each GPU and instance type, or all facts of one with their sources.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    page::{Column, Grid, Page},
    words::{self, or_unknown},
};
use crate::{
    judge::expected::{self, Known},
    plan::catalogue::{Catalogue, Entry, Gpu, Instance, PeerAccess, Positive},
};

/// Columns that hold words.
const WORDS: [&str; 8] =
    ["path", "how", "GPU", "instance", "name", "memory", "GPUs reach each other", "added by"];

/// An entry under its name.
type Named<'a, T> = (&'a Catalogue, &'a String, &'a T);

/// A line for each GPU and for each instance type.
pub fn catalogue_page(catalogue: &Catalogue) -> Page {
    let gpus: [Column<Named<'_, Gpu>>; 8] = [
        ("GPU", |(_, name, _)| name.clone()),
        ("name", |(.., gpu)| gpu.name.clone()),
        ("compute capability", |(.., gpu)| number(gpu.compute_capability)),
        ("memory", |(.., gpu)| or_unknown(gpu.mem_type.as_ref())),
        ("memory GB/s", |(.., gpu)| number(gpu.mem_bw_gbs)),
        ("NVLinks", |(.., gpu)| or_unknown(gpu.nvlink_links)),
        ("NVLink GB/s", |(.., gpu)| nvlink_rate(gpu.nvlink_gen, gpu.nvlink_gbs_per_gpu_per_dir)),
        ("added by", added_by),
    ];
    let instances: [Column<Named<'_, Instance>>; 9] = [
        ("instance", |(_, name, _)| name.clone()),
        ("GPUs", |(.., known)| known.gpu_count.to_string()),
        ("GPU", |(.., known)| known.gpu.clone()),
        ("MiB each", |(.., known)| or_unknown(known.gpu_mem_mib)),
        ("GPUs reach each other", |(.., known)| or_unknown(known.p2p.map(reach))),
        ("NVLink GB/s", |(.., known)| {
            nvlink_rate(known.nvlink_gen, known.nvlink_gbs_per_gpu_per_dir)
        }),
        ("EFA", |(.., known)| {
            or_unknown(known.efa_interfaces.or((known.efa == Some(false)).then_some(0)))
        }),
        ("network Gbit/s", |(.., known)| number(known.efa_total_gbps.or(known.network_gbps))),
        ("added by", added_by),
    ];
    let mut page = Page::default();
    page.title("GPUs; GB/s are 10^9 bytes per second, of NVLink for a whole GPU in one direction");
    let named = catalogue.gpu.iter().map(|(name, gpu)| (catalogue, name, gpu));
    page.grid(Grid::of(&gpus, named).words(&WORDS).without_empty());
    page.lines("\n");
    page.title("Instance types; `g2g catalogue NAME` shows all of one, with where it is from");
    let named = catalogue.instance.iter().map(|(name, known)| (catalogue, name, known));
    page.grid(Grid::of(&instances, named).words(&WORDS).without_empty());
    page
}

/// All of the catalogue.
pub fn catalogue_json(catalogue: &Catalogue) -> String {
    words::json(&json!(catalogue))
}

/// The expected bandwidth of each path.
fn expected_table(paths: &[Known]) -> Grid {
    let columns: [Column<&Known>; 4] = [
        ("path", |known| known.path.to_owned()),
        ("usual", |known| or_unknown(known.gb_s.map(|gb_s| format!("{gb_s:.1}")))),
        ("at least", |known| or_unknown(known.gb_s_low.map(|gb_s| format!("{gb_s:.1}")))),
        ("how", |known| known.derivation.clone()),
    ];
    Grid::of(&columns, paths).words(&WORDS).without_empty()
}

/// All facts of an entry, and of the GPU of an instance, with their sources.
pub fn catalogue_entry_page(catalogue: &Catalogue, name: &str, entry: Entry<'_>) -> Page {
    let mut page = Page::default();
    for (title, facts, sources) in parts(catalogue, name, entry) {
        page.title(title);
        let facts = facts.lines().filter_map(|line| line.split_once(" = "));
        let columns: [Column<(&str, &str)>; 2] =
            [("", |(key, _)| format!("  {key}")), ("", |(_, value)| value.replace('"', ""))];
        page.grid(Grid::of(&columns, facts.filter(|(key, _)| *key != "src")).numbers(&[]));
        page.lines("  from\n");
        for source in sources.values() {
            page.lines(&format!("    {source}\n"));
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
    page
}

/// The same as JSON.
pub fn catalogue_entry_json(catalogue: &Catalogue, name: &str, entry: Entry<'_>) -> String {
    let (kind, facts, gpu, expected) = match entry {
        Entry::Gpu(gpu) => ("gpu", json!(gpu), Value::Null, Value::Null),
        Entry::Instance(instance) => {
            let expected = json!(expected::known(name, instance, catalogue));
            ("instance", json!(instance), json!(catalogue.gpu_of(instance)), expected)
        }
    };
    let parts = parts(catalogue, name, entry).into_iter();
    let sources: BTreeMap<&str, &str> = parts.flat_map(|(.., sources)| sources).collect();
    words::json(&json!({
        "name": name, "kind": kind, "added_by_user": catalogue.is_added(name),
        "facts": without_gaps(facts), "gpu": without_gaps(gpu), "sources": sources,
        "expected": expected,
    }))
}

/// The parts of an entry: a title, the facts as lines of TOML, and their sources.
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

/// The facts, a line for each key.
fn lines(entry: &impl Serialize) -> String {
    // An entry is read from such lines.
    toml::to_string(entry).unwrap_or_default()
}

fn sources<'a>(catalogue: &'a Catalogue, names: &'a [String]) -> BTreeMap<&'a str, &'a str> {
    names.iter().map(|name| (name.as_str(), catalogue.words_of(name))).collect()
}

/// The facts that are known.
fn without_gaps(facts: Value) -> Value {
    match facts {
        Value::Object(facts) => facts.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}

fn number(fact: Option<Positive>) -> String {
    or_unknown(fact.map(Positive::get))
}

/// The rate of NVLinks; 0 where there are none.
fn nvlink_rate(generation: Option<u32>, rate: Option<Positive>) -> String {
    if generation == Some(0) { "0".to_owned() } else { number(rate) }
}

/// Who has added an entry that is not g2g's own.
fn added_by<T>((catalogue, name, _): Named<'_, T>) -> String {
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
