//! The verdicts of a check for a person, and for Prometheus.

use std::collections::BTreeSet;

use super::{
    page::{Grid, Page, Sentence, Tone},
    summary, words,
};
use crate::{
    analysis::fitness::{Check, Fitness, HostFitness},
    plan::TransportKind,
    record::{Row, Run, Status},
    units::count,
};

/// The file of the verdicts in the folder of a run.
pub(crate) const FILE: &str = "check.json";

/// The hosts, the worst first, then what shows it; `took` is how long was measured.
pub fn check_page(run: &Run, check: &Check, took: Option<&str>) -> Page {
    let hosts = &check.hosts;
    let mut page = Page::default();
    let provenance = &run.provenance;
    page.title(summary::machine(provenance) + words::mark(provenance.simulated));
    page.sentence(outcome(hosts));
    page.sentence(summary::outcome(&run.rows, took));
    if let Some(text) = pairs_left_out(&run.rows, hosts.len()) {
        page.sentence(Sentence { tone: Tone::Note, text });
    }
    page.lines("\n");
    let mut grid = Grid::new(["host", "verdict", "why"]).words(&["host", "verdict", "why"]);
    for host in hosts {
        grid.row([host.host.clone(), host.verdict.to_string(), why(host)]);
    }
    page.grid(grid);
    let reasons: String = hosts
        .iter()
        .flat_map(|host| host.reasons.iter().map(move |reason| (host, reason)))
        .map(|(host, reason)| {
            let shown = match reason.shown.is_empty() {
                true => String::new(),
                false => format!(": {}", reason.shown),
            };
            let (verdict, stage, said) = (reason.verdict, reason.stage, &reason.said);
            format!("  {}, {verdict}, {stage}: {said}{shown}\n", host.host)
        })
        .collect();
    if !reasons.is_empty() {
        page.lines(&format!("\nWhat shows it:\n{reasons}"));
    }
    page.lines("\n");
    page
}

/// How many pairs of so many hosts were measured, if others were not.
fn pairs_left_out(rows: &[Row], hosts: usize) -> Option<String> {
    let is_measured = |row: &&Row| row.transport == TransportKind::Rdma && row.status == Status::Ok;
    let pair = |row: &Row| {
        let mut ends = [row.source_host.clone()?, row.target_host.clone()?];
        ends.sort();
        (ends[0] != ends[1]).then_some(ends)
    };
    let measured: BTreeSet<_> = rows.iter().filter(is_measured).filter_map(pair).collect();
    let (measured, all) = (measured.len(), hosts * hosts.saturating_sub(1) / 2);
    (0 < measured && measured < all).then(|| {
        format!(
            "{measured} of {all} pairs of hosts were measured: the ways of others are not judged."
        )
    })
}

/// A line for each host that is not fit, the worst first.
pub fn unfit_lines(check: &Check) -> Vec<String> {
    let mark = words::mark(check.simulated);
    let others = check.hosts.iter().filter(|host| host.verdict != Fitness::Fit);
    let line =
        |host: &HostFitness| format!("{} is {}: {}{mark}", host.host, host.verdict, why(host));
    others.map(line).collect()
}

/// Its worst reason, and how many more there are.
pub(super) fn why(host: &HostFitness) -> String {
    match &host.reasons[..] {
        [] => "all was measured, verified and judged".to_owned(),
        [reason] => reason.said.clone(),
        [first, others @ ..] => format!("{}; and {} more", first.said, others.len()),
    }
}

/// How many hosts are what.
pub(super) fn outcome(hosts: &[HostFitness]) -> Sentence {
    let with = |verdict| hosts.iter().filter(|host| host.verdict == verdict).count();
    let all = [Fitness::Unfit, Fitness::Suspect, Fitness::Unknown, Fitness::Fit];
    let told = all.into_iter().filter(|verdict| with(*verdict) > 0);
    let told: Vec<String> =
        told.map(|verdict| format!("{} {verdict}", count(with(verdict), "host"))).collect();
    let tone = match hosts.first().map(|host| host.verdict) {
        Some(Fitness::Unfit) => Tone::Bad,
        Some(Fitness::Fit) => Tone::Good,
        Some(Fitness::Suspect | Fitness::Unknown) | None => Tone::Note,
    };
    Sentence { tone, text: format!("{}.", told.join(", ")) }
}
