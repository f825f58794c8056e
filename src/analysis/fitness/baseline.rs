//! What an earlier run measured, to judge the rows of a check by.

use std::collections::HashMap;

use statrs::statistics::{Data, OrderStatistics};

use super::rate;
use crate::{
    record::{Naming, Row, Status},
    units::Bytes,
};

/// The rates of an earlier run.
#[derive(Clone, Debug, Default)]
pub struct Baseline(HashMap<Kind, f64>);

/// Rows that are compared, on whatever hosts they were measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    what: String,
    size: Option<Bytes>,
    gpus: [Option<u32>; 2],
    numa_nodes: [Option<u32>; 2],
}

impl Kind {
    fn of(row: &Row) -> Self {
        Self {
            what: row.kind(&Naming::default()),
            size: row.size_bytes,
            gpus: [row.source_gpu, row.target_gpu],
            numa_nodes: [row.source_numa_node, row.target_numa_node],
        }
    }
}

impl Baseline {
    /// Of the `rows` of a run: of rows that differ in their hosts only the median. Of a case that was
    /// measured again the second one counts, and what a burn-in has added does not.
    pub fn of(rows: &[Row]) -> Self {
        let mut cases: HashMap<String, &Row> = HashMap::new();
        for row in rows.iter().filter(|row| row.status == Status::Ok) {
            let case = cases.entry(row.identity()).or_insert(row);
            if row.flags.split(' ').any(|flag| flag == "measured_again") {
                *case = row;
            }
        }
        let mut all: HashMap<Kind, Vec<f64>> = HashMap::new();
        for row in cases.into_values() {
            all.entry(Kind::of(row)).or_default().extend(rate(row));
        }
        all.retain(|_, rates| !rates.is_empty());
        Self(all.into_iter().map(|(kind, rates)| (kind, Data::new(rates).median())).collect())
    }

    /// The rate of such a row there, in GB/s.
    pub(super) fn rate(&self, row: &Row) -> Option<f64> {
        self.0.get(&Kind::of(row)).copied()
    }
}
