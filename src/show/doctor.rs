//! The doctor's report for a person.

use super::{page::Page, words};
use crate::{
    judge::doctor::{Located, Report, Verdict},
    nccl_log::explain::{line, upper},
    units::count,
};

/// The findings, problems first. Checks that passed are only counted, unless `is_verbose`.
pub fn doctor_page(report: &Report, is_verbose: bool) -> Page {
    let mut text = String::new();
    let simulated = words::mark(report.simulated);
    for host in &report.hosts {
        line(&mut text, "", &format!("{host}{simulated}"));
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
        if report.count(verdict) > 0 {
            text.push_str(&format!("\n{title}\n"));
        }
        for located in report.findings.iter().filter(|located| located.finding.verdict == verdict) {
            add(&mut text, located);
        }
    }
    let summary = format!(
        "{}, {}, {} cannot tell, {} ok{}.",
        count(report.count(Verdict::Problem), "problem"),
        count(report.count(Verdict::Note), "note"),
        report.count(Verdict::CannotTell),
        report.count(Verdict::Ok),
        if is_verbose { "" } else { " (--verbose shows them)" }
    );
    text.push('\n');
    line(&mut text, "", &summary);
    for told in &report.beyond {
        line(&mut text, "", &format!("{}.", upper(told)));
    }
    Page::of(&text)
}

fn add(text: &mut String, located: &Located) {
    let finding = &located.finding;
    let ranks: Vec<String> = located.ranks.iter().map(u32::to_string).collect();
    let place = match &ranks[..] {
        [] => String::new(),
        [rank] => format!(" (rank {rank})"),
        ranks => format!(" (ranks {})", ranks.join(", ")),
    };
    line(text, "- ", &format!("{}: {}{place}.", finding.check, finding.seen));
    for (word, more) in [
        ("What it means", &finding.means),
        ("What to do", &finding.remedy),
        ("See", &finding.source),
    ] {
        if let Some(more) = more {
            line(text, "  ", &format!("{word}: {more}."));
        }
    }
}
