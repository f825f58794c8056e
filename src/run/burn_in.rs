//! A burn-in: the rows of a check again and again, of which only what has changed is a row.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    path::Path,
    time::Duration,
};

use statrs::statistics::{Data, OrderStatistics};

use crate::{
    analysis::fitness::{HEALTH, allowance, rate},
    judge::counters::Seen,
    plan::TransportKind,
    record::{
        Error, Row, Status,
        rounds::{Round, Rounds},
    },
    show::progress::readable_wait,
    transport::{Moment, machine_now},
};

/// The flag of a row whose case has become slower.
const DRIFTED: &str = "drifted";

/// The rounds of a burn-in.
pub(super) struct BurnIn {
    rounds: Rounds,
    /// How long it lasts.
    time_s: f64,
    /// By what tells their cases.
    known: HashMap<String, Known>,
    /// The round under way, and when it began.
    now: Option<(BTreeMap<TransportKind, Sum>, Moment)>,
    /// Whether nothing could be verified in the last round: more of them tell nothing.
    is_over: bool,
}

/// What is known of a case.
struct Known {
    /// The number of its first row, and its rate.
    case: usize,
    first: Option<f64>,
    /// Its last row.
    status: Status,
    rate: Option<f64>,
    flags: Vec<&'static str>,
    /// Whether its rate was another one in the round before.
    is_doubtful: bool,
}

/// What the cases of a transport have done in a round.
#[derive(Default)]
struct Sum {
    verified: u64,
    wrong: u64,
    /// Shares of the first rates, with the numbers of the first rows.
    shares: Vec<(f64, usize)>,
    temperature_c_max: Option<u32>,
}

impl BurnIn {
    /// For so long, in the `folder` of a run that has `rows`, of which the first `planned` are a
    /// check.
    pub(super) fn new(
        folder: &Path,
        time: Duration,
        rows: &[Row],
        planned: usize,
    ) -> Result<Self, Error> {
        let mut known: HashMap<String, Known> = HashMap::new();
        for (place, row) in rows.iter().enumerate() {
            let rate = rate(row);
            let case = known.entry(row.identity()).or_insert(Known {
                case: row.case,
                first: rate,
                status: row.status,
                rate,
                flags: Vec::new(),
                is_doubtful: false,
            });
            // The rates of rows that came again count.
            if place < planned || row.flags.contains("measured_again") {
                case.first = rate;
            }
            (case.status, case.rate, case.flags) = (row.status, rate, health(row));
        }
        let (rounds, time_s) = (Rounds::open(folder)?, time.as_secs_f64());
        Ok(Self { rounds, time_s, known, now: None, is_over: false })
    }

    /// Begins a round, if there is time for one.
    pub(super) fn begin(&mut self) -> bool {
        let has_time = self.rounds.seconds < self.time_s && !self.is_over;
        self.now = has_time.then(|| (BTreeMap::new(), machine_now()));
        has_time
    }

    /// The counters around a case of `transport`.
    pub(super) fn heat(&mut self, transport: TransportKind, seen: &[Seen]) {
        let Some((sums, _)) = &mut self.now else { return };
        let gpus = seen.iter().flat_map(|host| host.after.gpus.values()).flatten();
        let hottest = gpus.filter_map(|gpu| gpu.health.condition.temperature_c).max();
        let sum = sums.entry(transport).or_default();
        sum.temperature_c_max = sum.temperature_c_max.max(hottest);
    }

    /// A row of the round under way, if something has changed: what the case has come to, its flags
    /// of the machine, or, in two rounds one after the other, its rate.
    pub(super) fn changed(&mut self, row: Row) -> Option<Row> {
        let (sums, began) = self.now.as_mut()?;
        let Some(known) = self.known.get_mut(&row.identity()) else { return Some(row) };
        let sum = sums.entry(row.transport).or_default();
        let new = rate(&row);
        match row.status {
            Status::Ok => sum.verified += 1,
            Status::Corrupt | Status::Failed => sum.wrong += 1,
            Status::Skipped => {}
        }
        let share = |of: Option<f64>| Some(new? / of?);
        sum.shares.extend(share(known.first).map(|share| (share, known.case)));
        let allowed = allowance(&row);
        let is_other = share(known.rate).is_some_and(|share| (share - 1.0).abs() > allowed);
        let is_confirmed = mem::replace(&mut known.is_doubtful, is_other) && is_other;
        let flags = health(&row);
        let has_news = row.status != known.status
            || flags.iter().any(|flag| !known.flags.contains(flag))
            || is_confirmed;
        if !has_news {
            return None;
        }
        let after = self.rounds.seconds + machine_now().since(*began).as_secs_f64();
        let slower = share(known.first).filter(|share| 1.0 - share > allowed);
        let mut reason = match row.reason.is_empty() {
            true => format!("{} after the first rows", readable_wait(after)),
            false => format!("{}, {} after the first rows", row.reason, readable_wait(after)),
        };
        if let Some((share, first)) = slower.zip(known.first) {
            reason += &format!(": {:.1} % of {first:.3} GB/s then", 100.0 * share);
        }
        (known.status, known.flags, known.is_doubtful) = (row.status, flags, false);
        known.rate = new.or(known.rate);
        let drifted: &[&str] = if slower.is_some() { &[DRIFTED] } else { &[] };
        Some(Row { reason, ..row.with_flags(drifted) })
    }

    /// Ends the round under way; what it was like.
    pub(super) fn end(&mut self) -> Result<Option<String>, Error> {
        let Some((sums, began)) = self.now.take() else { return Ok(None) };
        let (round, began_s) = (self.rounds.count + 1, self.rounds.seconds);
        let took_s = machine_now().since(began).as_secs_f64();
        let line = |(transport, sum): (TransportKind, Sum)| {
            let least = sum.shares.iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
            let shares: Vec<f64> = sum.shares.iter().map(|(share, _)| *share).collect();
            Round {
                round,
                began_s,
                took_s,
                transport,
                verified: sum.verified,
                wrong: sum.wrong,
                share_least: least.map(|(share, _)| *share),
                slowest_case: least.map(|(_, case)| *case),
                share_median: (!shares.is_empty()).then(|| Data::new(shares).median()),
                temperature_c_max: sum.temperature_c_max,
            }
        };
        let lines: Vec<Round> = sums.into_iter().map(line).collect();
        self.rounds.append(&lines)?;
        self.is_over = lines.iter().all(|line| line.verified == 0);
        let (verified, wrong) =
            lines.iter().fold((0, 0), |(ok, bad), line| (ok + line.verified, bad + line.wrong));
        let slowest = lines.iter().filter_map(|line| line.share_least.zip(line.slowest_case));
        let slowest = slowest.min_by(|(a, _), (b, _)| a.total_cmp(b));
        let slowest = slowest.map_or_else(String::new, |(share, case)| {
            format!(", the slowest case {case} at {:.1} % of its first rate", 100.0 * share)
        });
        let time = readable_wait(self.rounds.seconds);
        Ok(Some(format!("round {round}, {time}: {verified} verified, {wrong} wrong{slowest}")))
    }
}

/// The flags of a row that concern the machine.
fn health(row: &Row) -> Vec<&'static str> {
    HEALTH.into_iter().filter(|flag| row.flags.split(' ').any(|own| own == *flag)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gb_s: f64) -> Row {
        let bandwidth_gb_s = Some(gb_s);
        Row { status: Status::Ok, bandwidth_gb_s, ..Row::absent(1, TransportKind::Local, "") }
    }

    #[test]
    fn a_row_comes_only_where_something_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        // Another case is always well.
        let well = || Row { source_gpu: Some(1), ..row(50.0) };
        let mut burn_in = BurnIn::new(folder.path(), hour, &[row(100.0), well()], 2).unwrap();
        let mut round = |row: Row| {
            assert!(burn_in.begin());
            let changed = burn_in.changed(row);
            assert!(burn_in.changed(well()).is_none());
            assert!(burn_in.end().unwrap().is_some());
            changed
        };
        let mut rates = |rates: &[f64]| -> Vec<Row> {
            rates.iter().filter_map(|gb_s| round(row(*gb_s))).collect()
        };
        // What is slow once is so by chance.
        assert_eq!(rates(&[100.5, 80.0, 100.0, 98.0]).len(), 0);
        let slower = rates(&[80.0, 80.0, 80.0, 81.0]);
        let [slower] = &slower[..] else { panic!("{slower:?}") };
        assert_eq!(slower.flags, "drifted");
        assert!(slower.reason.ends_with(" after the first rows: 80.0 % of 100.000 GB/s then"));
        let back = rates(&[100.0, 100.0, 100.0]);
        assert_eq!(back.iter().map(|row| &*row.flags).collect::<Vec<_>>(), [""]);

        let corrupt = |_| Row { status: Status::Corrupt, reason: "a byte".into(), ..row(1.0) };
        let corrupt: Vec<Row> = (0..3).map(corrupt).filter_map(&mut round).collect();
        let [corrupt] = &corrupt[..] else { panic!("{corrupt:?}") };
        assert!(corrupt.reason.starts_with("a byte, ") && corrupt.status == Status::Corrupt);
        assert_eq!(round(row(100.0)).map(|row| row.status), Some(Status::Ok));
        let hot = || Row { flags: "throttled".to_owned(), ..row(100.0) };
        assert!(round(hot()).is_some_and(|row| row.flags == "throttled"));
        assert!(round(hot()).is_none());

        // What was found of a case when it was measured is not known when it fails.
        let failed = Row { status: Status::Failed, provider: Some("efa".into()), ..row(1.0) };
        assert!(round(failed).is_some());
        // A case that no row tells of is not passed over.
        assert!(round(Row { size_bytes: Some(crate::units::Bytes::mib(1)), ..row(1.0) }).is_some());

        // Where nothing can be verified no round follows.
        assert!(burn_in.begin());
        burn_in.changed(Row { status: Status::Failed, ..row(1.0) });
        burn_in.end().unwrap();
        assert!(!burn_in.begin());

        let (rounds, _) = crate::record::rounds::read(folder.path()).unwrap();
        assert_eq!(rounds.iter().map(|round| round.wrong).sum::<u64>(), 5);
        assert_eq!(rounds[1].share_least, Some(0.8));
        // Nothing is left of the time.
        let mut over = BurnIn::new(folder.path(), Duration::ZERO, &[row(100.0)], 1).unwrap();
        assert!(!over.begin() && over.changed(row(50.0)).is_none());
    }
}
