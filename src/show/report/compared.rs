//! Several runs: what changed between them, and all of them in one set of charts.

use super::{Part, Section, Table, pairs, sizes};
use crate::{
    analysis::{
        compare::{Case, Comparison, Source},
        statistics::{ChangeVerdict, Quantity},
    },
    record::{Naming, Row},
    show::{
        compare::{changed, overview, without_verdict},
        page::{Sentence, Tone},
        summary::limited,
        words,
    },
    units::count,
};

impl Part {
    /// Runs with their names, and the comparison of each further one with the first.
    pub fn of_comparisons(names: &[&str], runs: &[Source], comparisons: &[Comparison]) -> Self {
        let of_one = |comparison| [tables(runs, comparison), heat_maps(runs, comparison)];
        let rows: Vec<(&str, &[Row])> =
            names.iter().copied().zip(runs.iter().map(|run| &run.rows[..])).collect();
        let sections = comparisons.iter().flat_map(of_one).chain([sizes::together(&rows)]);
        let is_there =
            |section: &Section| !(section.charts.is_empty() && section.tables.is_empty());
        let of_one = |comparison| sentences(runs, comparison);
        Self {
            number: 0,
            csv: None,
            csv_name: String::new(),
            name: "Comparison".to_owned(),
            is_simulated: runs.iter().any(Source::is_simulated),
            machine: count(runs.len(), "run"),
            started: String::new(),
            sentences: comparisons.iter().flat_map(of_one).collect(),
            sections: sections.filter(is_there).collect(),
        }
    }
}

/// The verdict, and what limits it.
fn sentences(sources: &[Source], comparison: &Comparison) -> Vec<Sentence> {
    let Comparison { a, b, cases, differences, .. } = comparison;
    let with = |verdict: ChangeVerdict| cases.iter().filter(move |case| case.verdict == verdict);
    let loss = |case: &&Case| case.loss().unwrap_or_default();
    let worst = with(ChangeVerdict::Slower).max_by(|a, b| loss(a).total_cmp(&loss(b)));
    let [slower, faster, same] =
        [ChangeVerdict::Slower, ChangeVerdict::Faster, ChangeVerdict::Same]
            .map(|verdict| with(verdict).count());
    let others = format!("{faster} faster, {same} the same within noise.");
    let compared = slower + faster + same;
    let (tone, text) = match worst {
        Some(case) => {
            let (source, row) = case.example;
            let has_hosts = sources[source].hosts.len() > 1;
            let title = sources[source].rows[row].title(&Naming { has_hosts, ..Naming::default() });
            let change =
                case.change.map_or_else(String::new, |change| words::percent(change.share));
            let text = format!(
                "{b} against {a}: {slower} of {} slower, the worst {change}: {title}; {others}",
                count(compared, "case")
            );
            (Tone::Bad, text)
        }
        None if compared == 0 => (Tone::Note, format!("{b} against {a}: nothing can be compared.")),
        None => {
            let cases = count(compared, "case");
            (Tone::Good, format!("{b} against {a}: none of {cases} is slower; {others}"))
        }
    };
    let differences = differences.iter().map(|difference| format!("Differs: {difference}."));
    let reasons = without_verdict(comparison);
    let reasons = reasons
        .iter()
        .map(|(reason, cases)| format!("No verdict on {}: {reason}.", count(*cases, "case")));
    let notes = limited(differences.chain(reasons), Tone::Note, "g2g compare has them");
    let mut sentences = vec![Sentence { tone, text }];
    sentences.extend(notes);
    for sentence in &mut sentences {
        sentence.text = sentence.text.replace("->", "→");
    }
    sentences
}

fn tables(sources: &[Source], comparison: &Comparison) -> Section {
    let Comparison { a, b, .. } = comparison;
    let table = |title: String, grid| Table { title, about: "", grid };
    let (cases, left) = changed(sources, comparison, false);
    let more = if left > 0 { format!(", and {left} more") } else { String::new() };
    let overview = overview(sources, comparison, false);
    let overview = overview.map(|grid| table(format!("{b} (B) against {a} (A)"), grid));
    let cases = cases.map(|grid| table(format!("What changed, the worst first{more}"), grid));
    Section {
        title: "What changed",
        about: "Cases that both runs have. What is called slower or faster is so in view \
                of how many were looked at.",
        tables: overview.into_iter().chain(cases).collect(),
        ..Section::default()
    }
}

fn heat_maps(sources: &[Source], comparison: &Comparison) -> Section {
    let Comparison { a, b, cases, .. } = comparison;
    let ratio = |case: &Case| {
        let (source, row) = case.example;
        let is_one = source == 0 && case.quantity == Quantity::Bandwidth;
        let change = case.change.filter(|_| is_one)?;
        Some((&sources[0].rows[row], 1.0 + change.share))
    };
    Section {
        title: "Pairs",
        about: "How many times the first run's bandwidth each ordered pair has in the other one.",
        charts: pairs::changes(&sources[0].rows, cases.iter().filter_map(ratio), [b, a]),
        ..Section::default()
    }
}
