//! The results of a run: the report, standard output and whether all is well.

use std::io;

use super::{Format, leader::Run, page::write_own, steps::Step};
use crate::{
    analysis::attribution,
    interrupt,
    plan::Case,
    record::{self, Recorder, Status},
    show,
    stderr::say,
};

impl Run<'_> {
    /// Judges and shows the results, even of a run that failed.
    pub(super) fn show_results(&self, recorder: &Recorder) -> io::Result<()> {
        self.judge.conclude(recorder.rows(), &self.hosts, self.options.quiet);
        let shown = self.show(recorder);
        // After a signal there is no time for a page; `g2g report` can write it later.
        if !self.options.no_report && interrupt::asked().is_none() {
            write_own(recorder.folder());
        }
        shown
    }

    /// Prints the results in the requested format.
    fn show(&self, recorder: &Recorder) -> io::Result<()> {
        let (rows, provenance) = (recorder.rows(), &recorder.run().provenance);
        let page = || {
            let slow = attribution::find(rows, &|row| attribution::way(row, &self.hosts));
            let mut page = show::tables(rows);
            page.lines(&attribution::text(&slow));
            page
        };
        show::print(&match self.options.format {
            Format::Table => page().text(),
            Format::Markdown => page().markdown(),
            Format::Csv => record::csv_text(rows),
            Format::Json => record::json_text(recorder.run()),
            Format::NcclTests => {
                let communicator = self.cases().find(|case| case.nccl.is_some());
                let flows = communicator.map_or(&[][..], |case| &case.flows);
                show::nccl_tests_text(&self.about(), provenance, flows, rows)
            }
            Format::Prometheus => show::prometheus_text(provenance, rows),
        })
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

/// Reports corrupt and failed rows; whether there are none.
pub(super) fn is_well(recorder: &Recorder) -> bool {
    let count = |status| recorder.rows().iter().filter(|row| row.status == status).count();
    let (corrupt, failed) = (count(Status::Corrupt), count(Status::Failed));
    if corrupt + failed > 0 {
        say(&format!(
            "error: of {} rows {corrupt} are corrupt and {failed} failed: see status and reason in \
             {}",
            recorder.rows().len(),
            recorder.folder().join("run.csv").display()
        ));
    }
    corrupt + failed == 0
}
