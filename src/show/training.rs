//! The communication of a training step, for a person.

use super::{
    page::{Column, Grid, Page, Sentence, Tone},
    words,
};
use crate::{
    analysis::training::{Timed, Total, total},
    plan::training::{Group, Route, Way},
};

/// Columns that hold words.
const WORDS: [&str; 4] = ["when", "what", "how", "among"];

/// A line for each part, then what a step takes in all.
pub fn training_page(all: &[Timed], simulated: bool) -> Page {
    let columns: [Column<&Timed>; 8] = [
        ("when", |timed| timed.communication.phase.to_string()),
        ("what", |timed| timed.communication.what.to_owned()),
        ("how", |timed| way(timed.communication.route.way)),
        ("among", |timed| among(timed)),
        ("size", |timed| timed.communication.operations.size.rounded()),
        ("times", |timed| timed.communication.operations.times.to_string()),
        ("GB sent", |timed| format!("{:.2}", timed.moved_gb)),
        ("seconds", |timed| {
            timed.seconds.map_or_else(String::new, |seconds| format!("{seconds:.3}"))
        }),
    ];
    let mut page = Page::default();
    let mark = words::mark(simulated);
    page.title(format!("The communication of a step, of one GPU; GB are 10^9 bytes{mark}"));
    page.grid(Grid::of(&columns, all.iter()).words(&WORDS).spare(&["when"]).without_empty());
    let sum = |is_copy: bool| -> f64 {
        let own = |timed: &&Timed| (timed.communication.route.group == Group::Own) == is_copy;
        all.iter().filter(own).map(|timed| timed.moved_gb).sum()
    };
    page.lines("\n");
    let mut text = format!("A GPU sends {:.2} GB to others in a step", sum(false));
    if sum(true) > 0.0 {
        text += &format!(", and copies {:.2} GB between it and host memory", sum(true));
    }
    page.sentence(Sentence { tone: Tone::Note, text: text + "." });
    if let Some(Total { in_turn_s, side_by_side_s }) = total(all) {
        let text = format!(
            "That takes {in_turn_s:.3} s one after the other, and {side_by_side_s:.3} s if \
             collectives and copies of each direction go on side by side. What is hidden behind \
             computation costs nothing."
        );
        page.sentence(Sentence { tone: Tone::Note, text });
    }
    page
}

fn way(way: Way) -> String {
    match way {
        Way::Collective(collective) => collective.to_string(),
        Way::ToHost => "gpu -> host".to_owned(),
        Way::FromHost => "host -> gpu".to_owned(),
    }
}

fn among(timed: &Timed) -> String {
    let Route { group, ranks, .. } = timed.communication.route;
    if group == Group::Own { String::new() } else { format!("{ranks} {group}") }
}
