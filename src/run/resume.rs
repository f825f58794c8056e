//! `--resume`: what must be unchanged before a run continues, and what is left of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{
    Failure,
    options::{Measure, Options},
    step::Step,
};
use crate::{
    plan::topology::Host,
    record::{
        COLUMNS, Cell, Held, Recorder, Row,
        provenance::{Machine, Provenance, Resumption},
    },
};

/// The remedy if nothing else helps.
const ANEW: &str = "begin anew with --output";

/// Opens the files of the run in `folder` for the missing rows; this process is `now`, and `steps` are
/// those of a run with such rows. Refuses to mix two different runs.
pub(super) fn take_up(
    folder: &Path,
    options: &Options,
    now: &Provenance,
    steps: &dyn Fn(&[Row]) -> Vec<Step>,
) -> Result<Recorder, Failure> {
    let held = Held::of(folder).map_err(Failure::start)?;
    let Some(past) = held.past() else { return held.open(now, None).map_err(Failure::start) };
    let refuse =
        |reason: String| Failure::Start(format!("cannot go on in {}: {reason}", folder.display()));
    if let Some(reason) = other_request(&past.provenance, options, now) {
        return Err(refuse(reason));
    }
    let changed = changes(&past.provenance, now);
    if !changed.is_empty() && !options.resume_changed {
        let reason = changed.join("; ");
        return Err(refuse(format!("{reason}: {ANEW}, or allow it with --resume-changed")));
    }
    let steps = steps(&past.rows);
    if let Some(reason) = other_plan(&past.rows, &steps, options) {
        return Err(refuse(reason));
    }
    let rows = past.rows.len();
    // Those of a burn-in are in no plan.
    let is_done =
        options.check.burn_in.is_none() && rows == steps.iter().map(Step::rows).sum::<usize>();
    let time = now.started.clone();
    let resumption =
        Resumption { time, command: now.command.clone(), rows, changed, health: Vec::new() };
    held.open(now, (!is_done).then_some(resumption)).map_err(Failure::start)
}

/// Why this is another request than the run began with, if it is.
fn other_request(then: &Provenance, options: &Options, now: &Provenance) -> Option<String> {
    let before = Measure::read(&then.command);
    // What decides the numbers.
    let asked = |of: &Options| {
        let simulate = of.simulate.as_ref().map(PathBuf::from);
        (of.request(false), of.effort(), of.seed, simulate, of.catalogue.clone())
    };
    if before.is_none_or(|before| asked(&before) != asked(options)) {
        let words = then.command.get(1..).unwrap_or_default().join(" ");
        return Some(format!(
            "it was begun with other words: give `{words}` again, with --resume in place of \
             --output"
        ));
    }
    if then.ranks != now.ranks {
        let (was, is) = (then.ranks, now.ranks);
        return Some(format!("it has {was} ranks, and there are {is}: start as many as it has"));
    }
    let variables = |of: &Provenance| of.environment.iter().cloned().collect();
    let changed = differences("the variable", "not set", variables(then), variables(now));
    changed.first().map(|reason| format!("{reason}: set it as it was"))
}

/// What has changed in the program and the machine.
fn changes(then: &Provenance, now: &Provenance) -> Vec<String> {
    let told = |of: &Provenance| -> BTreeMap<String, String> {
        let Machine {
            product,
            cpu_model,
            kernel,
            huge_pages,
            shared_huge_pages,
            cpu_governor,
            // The host name may change when the host restarts, the others from hour to hour.
            hostname: _,
            memory_bytes: _,
            shared_memory_free_bytes: _,
        } = of.machine.clone();
        let of_all_hosts = |each: &dyn Fn(&Host) -> Vec<String>| {
            let names: Vec<String> = of.hosts.iter().flat_map(each).collect();
            Some(names.join(" ")).filter(|names| !names.is_empty())
        };
        let of_gpus = |host: &Host| host.topology.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let names = of_all_hosts(&|host| vec![host.name.clone()]);
        [
            ("version of g2g", Some(of.version.to_string())),
            ("revision of g2g", Some(of.git_revision.to_string())),
            ("architecture", Some(of.architecture.to_string())),
            ("machine", product),
            ("processor", cpu_model),
            ("kernel", kernel),
            ("kernel's choice of huge pages", huge_pages),
            ("kernel's choice of huge pages for shared memory", shared_huge_pages),
            ("governor of CPUs' clocks", cpu_governor),
            ("list of hosts", names.filter(|_| of.hosts.len() > 1)),
            ("list of GPUs", of_all_hosts(&of_gpus)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    };
    let libraries = |of: &Provenance| {
        of.libraries.iter().map(|of| (of.name.clone(), of.version.clone())).collect()
    };
    let mut changes = differences("the", "unknown", told(then), told(now));
    changes.extend(differences("the version of", "unknown", libraries(then), libraries(now)));
    changes
}

/// A sentence for each name whose value has changed.
pub(crate) fn differences(
    what: &str,
    none: &str,
    was: BTreeMap<String, String>,
    is: BTreeMap<String, String>,
) -> Vec<String> {
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let differing = names.into_iter().filter(|name| was.get(*name) != is.get(*name));
    let shown = |of: Option<&String>| of.map_or(none.to_owned(), |value| format!("`{value}`"));
    let sentence = |name: &String| {
        let (was, is) = (shown(was.get(name)), shown(is.get(name)));
        format!("{what} {name} was {was} and is {is}")
    };
    differing.map(sentence).collect()
}

/// Where the rows differ from the plan, if they do.
fn other_plan(rows: &[Row], steps: &[Step], options: &Options) -> Option<String> {
    let mut planned = steps.iter().flat_map(Step::planned);
    for (row, number) in rows.iter().zip(1..) {
        let Some(planned) = planned.next() else {
            // What changes in a burn-in is in no plan.
            if options.check.burn_in.is_some() {
                return None;
            }
            let count = rows.len();
            return Some(format!("it has {count} rows, and {} come of this: {ANEW}", number - 1));
        };
        let planned = Row { case: number, simulated: options.simulate.is_some(), ..planned };
        // Hosts are not planned: one that was stopped may come back under another name.
        let planned_columns = COLUMNS.iter().filter(|column| column.role.is_planned());
        let cells = planned_columns.map(|of| (of.name, (of.cell)(row), (of.cell)(&planned)));
        if let Some((name, was, is)) = { cells }.find(|(_, was, is)| was != is) {
            let [was, is] = [was, is].map(|cell| match cell {
                Cell::Empty => "empty".to_owned(),
                Cell::Text(text) => format!("{text:?}"),
                cell => cell.to_string(),
            });
            return Some(format!("in row {number} {name} was {was} and would be {is}: {ANEW}"));
        }
    }
    None
}
