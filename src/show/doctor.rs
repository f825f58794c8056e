//! What the doctor says, for a person and for programs.

use std::fmt::Write;

use crate::{
    judge::doctor::{Located, Report, Verdict},
    nccl_log::explain::{paragraph, upper},
};

/// The findings, problems first; those that are fine are counted, or told too.
pub fn doctor_text(report: &Report, is_verbose: bool) -> String {
    let mut text = String::new();
    let simulated = if report.simulated { " [SIMULATED]" } else { "" };
    for line in &report.hosts {
        paragraph(&mut text, "", &format!("{line}{simulated}"));
    }
    for (verdict, title) in [
        (Verdict::Problem, "Problems"),
        (Verdict::Note, "Notes"),
        (Verdict::CannotTell, "Cannot tell"),
        (Verdict::Ok, "Ok"),
    ] {
        if verdict == Verdict::Ok && !is_verbose {
            continue;
        }
        let of_verdict = |located: &&Located| located.finding.verdict == verdict;
        for (index, located) in report.findings.iter().filter(of_verdict).enumerate() {
            if index == 0 {
                let _ = write!(text, "\n{title}\n");
            }
            add(&mut text, located);
        }
    }
    let counted = |verdict, one: &str, several: &str| match report.count(verdict) {
        1 => format!("1 {one}"),
        number => format!("{number} {several}"),
    };
    let summary = format!(
        "{}, {}, {} cannot tell, {} ok{}.",
        counted(Verdict::Problem, "problem", "problems"),
        counted(Verdict::Note, "note", "notes"),
        report.count(Verdict::CannotTell),
        report.count(Verdict::Ok),
        if is_verbose { "" } else { " (--verbose shows them)" }
    );
    text.push('\n');
    paragraph(&mut text, "", &summary);
    for line in &report.beyond {
        paragraph(&mut text, "", &format!("{}.", upper(line)));
    }
    text
}

/// All of it as JSON.
pub fn doctor_json(report: &Report) -> String {
    // Every value is a plain number or text.
    serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
}

fn add(text: &mut String, located: &Located) {
    let finding = &located.finding;
    let ranks: Vec<String> = located.ranks.iter().map(u32::to_string).collect();
    let place = match &ranks[..] {
        [] => String::new(),
        [rank] => format!(" (rank {rank})"),
        ranks => format!(" (ranks {})", ranks.join(", ")),
    };
    paragraph(text, "- ", &format!("{}: {}{place}.", finding.check, finding.seen));
    for (word, more) in [
        ("What it means", &finding.means),
        ("What to do", &finding.remedy),
        ("See", &finding.source),
    ] {
        if let Some(more) = more {
            paragraph(text, "  ", &format!("{word}: {more}."));
        }
    }
}
