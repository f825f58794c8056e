//! The results of a run: the report, standard output and whether all is well.

use std::{io, time::Duration};

use super::{Format, leader::Run, page::write_own, step::Step};
use crate::{
    analysis::fitness::Check,
    judge::expected::Verdict,
    plan::Case,
    record::{self, Recorder, Row, Status},
    show::{self, progress::readable_wait},
    stderr::say,
    units::count as count_of,
};

impl Run<'_> {
    /// Judges and shows the results, even of a run that failed; `check`: the verdicts are the answer;
    /// `took` is how long it measured.
    pub(super) fn show_results(
        &self,
        recorder: &Recorder,
        check: Option<&Check>,
        took: Option<Duration>,
    ) -> io::Result<()> {
        self.judge.conclude(&self.hosts, self.options.quiet);
        let took = took.map(|took| readable_wait(took.as_secs_f64()) + self.whose_time());
        let (rows, provenance) = (recorder.rows(), &recorder.run().provenance);
        let answer = || {
            let mut answer = match check {
                Some(check) => show::check_page(recorder.run(), check, took.as_deref()),
                None => show::answer(recorder.run(), took.as_deref(), self.options.details),
            };
            answer.lines(&format!("results: {}\n", recorder.folder().display()));
            answer
        };
        let format = self.options.format;
        match (format, check) {
            (Format::Table, _) => show::print_page(&answer()),
            (Format::Markdown, _) => show::print(&answer().markdown()),
            (Format::Csv, _) => show::print(&record::csv_text(rows)),
            (Format::Json, Some(check)) => show::print(&show::json(check)),
            (Format::Json, None) => show::print(&record::json_text(recorder.run())),
            (Format::NcclTests, _) => {
                let communicator = self.cases().find(|case| case.nccl.is_some());
                let flows = communicator.map_or(&[][..], |case| &case.flows);
                show::print(&show::nccl_tests_text(&self.about(), provenance, flows, rows))
            }
            (Format::Prometheus, Some(check)) => show::print(&show::prometheus_check_text(check)),
            (Format::Prometheus, None) => show::print(&show::prometheus_text(provenance, rows)),
        }?;
        // Last: after a signal there may be no time for it.
        let page = (!self.options.no_report).then(|| write_own(recorder.folder())).flatten();
        let Some(page) = page else { return Ok(()) };
        let line = show::Page::of(&format!("page: {}\n", page.display()));
        match format {
            Format::Table => show::print_page(&line),
            Format::Markdown => show::print(&format!("\n{}", line.markdown())),
            // These are for programs.
            Format::Csv | Format::Json | Format::NcclTests | Format::Prometheus => Ok(()),
        }
    }

    /// What the header of nccl-tests' output says.
    fn about(&self) -> show::NcclTests {
        let sizes = || self.cases().map(|case| case.size);
        let first = self.cases().find_map(|case| case.nccl);
        let (iterations, split) =
            first.map(|nccl| (nccl.iterations, nccl.split)).unwrap_or_default();
        show::NcclTests {
            sizes: (sizes().min().unwrap_or_default(), sizes().max().unwrap_or_default()),
            step: self.options.nccl.step(),
            iterations,
            split,
        }
    }

    fn cases(&self) -> impl Iterator<Item = &Case> {
        self.steps.iter().flat_map(Step::cases)
    }
}

/// Reports corrupt and failed rows, and with --fail-below those that are too slow; whether there
/// are none.
pub(super) fn is_well(recorder: &Recorder, fail_below: Option<Option<f64>>) -> bool {
    let rows = recorder.rows();
    let count = |is_it: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is_it(row)).count();
    let with = |status| count(&|row| row.status == status);
    let (corrupt, failed) = (with(Status::Corrupt), with(Status::Failed));
    let all = count_of(rows.len(), "row");
    let file = recorder.folder().join("run.csv");
    if corrupt + failed > 0 {
        say(&format!(
            "error: of {all} {corrupt} are corrupt and {failed} failed: see status and reason in {}",
            file.display()
        ));
    }
    let is_judged = |row: &Row| row.verdict.is_some_and(|verdict| verdict != Verdict::Unknown);
    let is_untold = fail_below.is_some() && count(&is_judged) == 0;
    if is_untold {
        say(&format!(
            "error: no row has a verdict, so --fail-below has nothing to judge: see verdict_reason \
             in {}",
            file.display()
        ));
    }
    let below = fail_below.map_or(0, |least| count(&|row| is_judged(row) && is_below(row, least)));
    if below > 0 {
        let what = match fail_below.flatten() {
            Some(least) => format!("below {} % of what is expected", 100.0 * least),
            None => "below what is expected".to_owned(),
        };
        say(&format!(
            "error: of {all} {below} are {what} (--fail-below): see verdict and expected_fraction \
             in {}",
            file.display()
        ));
    }
    corrupt + failed + below == 0 && !is_untold
}

/// Whether the verdict on a row is `below`, or its share of what is expected less than `least`.
fn is_below(row: &Row, least: Option<f64>) -> bool {
    match least {
        None => row.verdict == Some(Verdict::Below),
        Some(least) => row.expected_fraction.is_some_and(|share| share < least),
    }
}
