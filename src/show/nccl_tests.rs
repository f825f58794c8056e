//! Rows of collectives in the form in which nccl-tests 2.19 prints its own (`writeDeviceReport`,
//! `writeResultHeader`, `writeBenchmarkLine*` and `writeResultFooter` in its `src/util.cu`), so
//! that what reads that reads this.

use std::fmt::Write;

use super::words;
use crate::{
    machine::NCCL_HEADERS,
    plan::{Collective, Flow, Iterations, Operation, Split, Step},
    record::{Row, Status, provenance::Provenance},
    units::{Bytes, microseconds_at},
};

/// The version of nccl-tests that has this form.
const VERSION: &str = "2.19.6";

/// What nccl-tests says of the run before its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclTests {
    /// The smallest and the largest size.
    pub sizes: (Bytes, Bytes),
    /// From each size to the next one.
    pub step: Step,
    /// How operations follow each other.
    pub iterations: Iterations,
    /// How the ranks are divided.
    pub split: Option<Split>,
}

/// All rows of NCCL, a table for each collective, as the programs of nccl-tests print theirs; other
/// rows, and those without a number, are comments. `communicator` has the ways from each of its
/// ranks.
pub fn text(
    about: &NcclTests,
    provenance: &Provenance,
    communicator: &[Flow],
    rows: &[Row],
) -> String {
    let mut text = String::new();
    let (of_nccl, others): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.communicator_ranks.is_some());
    for row in others {
        let _ = writeln!(text, "# {}: {}", row.transport, row.reason);
    }
    for rows in of_nccl.chunk_by(|a, b| (a.operation, a.pattern) == (b.operation, b.pattern)) {
        let Some(operation) = rows[0].operation else { continue };
        let program = format!("{operation}_perf");
        text += &header(about, provenance, communicator, &program);
        let mut sum = Sum::default();
        for rows in lines(rows) {
            text += &line(operation, rows, &mut sum);
        }
        text += &sum.footer(&program);
    }
    text
}

/// The head of a table, as nccl-tests prints it.
const COLUMNS: &str = include_str!("nccl_tests_columns.txt");

fn header(
    about: &NcclTests,
    provenance: &Provenance,
    communicator: &[Flow],
    program: &str,
) -> String {
    let library = provenance.libraries.iter().find(|library| library.name == "NCCL");
    let library = library.map_or(0, |library| version_code(&library.version));
    let (step, kind) = match about.step {
        Step::Factor(factor) => (factor, "factor"),
        Step::Bytes(bytes) => (bytes.get(), "bytes"),
    };
    let own = communicator.iter().filter(|flow| flow.source.rank.0 == 0).count();
    let Iterations { warm_up, groups, operations_per_group, is_blocking, graph } = about.iterations;
    let groups = groups.map_or_else(|| "auto".to_owned(), |count| count.to_string());
    let mut text = format!(
        "# g2g {} in the form of nccl-tests version {VERSION} nccl-headers={NCCL_HEADERS} \
         nccl-library={library}{}\n\
         # Collective test starting: {program}\n\
         # nThread 1 nGpus {own} minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {warm_up} \
         iters: {groups} agg iters: {operations_per_group} validation: 1 graph: {graph} unalign: 0\n",
        provenance.version,
        words::mark(provenance.simulated),
        about.sizes.0.get(),
        about.sizes.1.get(),
    );
    if is_blocking {
        text += "# Blocking Enabled: wait after each inner iteration (-m), no barrier \n";
    }
    text += "#\n# Using devices\n";
    let devices = communicator.iter().filter_map(|flow| device(provenance, flow));
    for (number, device) in (0..).zip(devices) {
        let group = about.split.map_or(0, |split| split.color(number));
        text += &format!("#  Rank {number:2} Group {group:2} {device}\n");
    }
    text + COLUMNS
}

/// The process, the host and the GPU of a rank of the communicator.
fn device(provenance: &Provenance, flow: &Flow) -> Option<String> {
    let (rank, gpu) = (flow.source.rank, flow.source.gpu()?);
    let host = provenance.hosts.iter().find(|host| host.ranks.contains(&rank))?;
    let node = host.topology.gpus.iter().find(|node| node.gpu == gpu)?;
    // `domain:bus:device`
    let address = node.pci_bus_id.as_str();
    let address = address.rsplit_once('.').map_or(address, |(device, _)| device);
    let pid = words::or_dash((rank.0 == 0).then(std::process::id));
    Some(format!("Pid {pid:>6} on {:>10} device {:2} [{address}] {}", host.name, gpu.0, node.name))
}

/// `2.32.3` as `ncclGetVersion` counts: 10000 × major, 100 × minor.
fn version_code(version: &str) -> u32 {
    version.split('.').fold(0, |code, part| 100 * code + part.parse::<u32>().unwrap_or(0))
}

/// Rows that belong on one line: out of place, and in place.
fn lines<'a>(rows: &[&'a Row]) -> Vec<[Option<&'a Row>; 2]> {
    let key = |row: &Row| {
        let of_data = (row.size_bytes, row.data_type, row.reduction, row.root);
        (of_data, row.source_gpu, row.target_gpu, row.buffer, row.registration)
    };
    let mut lines: Vec<[Option<&Row>; 2]> = Vec::new();
    for &row in rows {
        let place = usize::from(row.in_place == Some(true));
        let of_same = |line: &[Option<&Row>; 2]| {
            line[place].is_none() && line.iter().flatten().any(|other| key(other) == key(row))
        };
        let at = lines.iter().position(of_same).unwrap_or(lines.len());
        if at == lines.len() {
            lines.push([None, None]);
        }
        lines[at][place] = Some(row);
    }
    lines
}

/// What nccl-tests adds up.
#[derive(Debug, Default)]
struct Sum {
    busbw_gb_s: f64,
    count: u32,
    wrong: u32,
}

impl Sum {
    fn footer(&self, program: &str) -> String {
        let verdict = if self.wrong == 0 { "OK" } else { "FAILED" };
        let mean = self.busbw_gb_s / f64::from(self.count.max(1));
        format!(
            "# {:<20} : {} {verdict}\n# {:<20} : {} \n#\n# Collective test concluded: {program}\n#\n\n",
            "Out of bounds values",
            self.wrong,
            "Avg bus bandwidth",
            significant(mean)
        )
    }
}

fn line(operation: Operation, rows: [Option<&Row>; 2], sum: &mut Sum) -> String {
    let mut comments = String::new();
    let Some(row) = rows.into_iter().flatten().next() else { return comments };
    let (Some(size), Some(data_type), Some(ranks)) =
        (row.size_bytes, row.data_type, row.communicator_ranks)
    else {
        return comments;
    };
    let elements = size.get() / data_type.size().get();
    let is_divided = operation.collective().is_some_and(|of| of.shape().is_divided());
    let count = if is_divided { elements / u64::from(ranks) } else { elements };
    // nccl-tests names a reduction of sendrecv too.
    let is_send_recv = operation == Operation::Collective(Collective::SendRecv);
    let reduction = if is_send_recv { "sum" } else { row.reduction.map_or("none", Into::into) };
    let root = row.root.map_or(-1, i64::from);
    let mut line =
        format!("{:>12}  {count:>12}  {data_type:>8}  {reduction:>6}  {root:>6}", size.get());
    for row in rows {
        line += &body(row, ranks, sum);
        for row in row.into_iter().filter(|row| row.status != Status::Ok) {
            let _ = writeln!(comments, "# {operation} {size}: {}", row.reason);
        }
    }
    line + "\n" + &comments
}

/// The four columns of one place.
fn body(row: Option<&Row>, ranks: u32, sum: &mut Sum) -> String {
    let cells = |time: &str, algbw: &str, busbw: &str, wrong: &str| {
        format!("  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}")
    };
    let none = "N/A";
    let Some(row) = row else { return cells(none, none, none, none) };
    if row.status == Status::Corrupt {
        sum.wrong += 1;
        let size = row.data_type.map_or(1, |data_type| data_type.size().get());
        let wrong = row.corrupt_bytes.unwrap_or(0).div_ceil(size).to_string();
        return cells(none, none, none, &wrong);
    }
    let (Some(algbw), Some(size)) = (row.bandwidth_gb_s, row.size_bytes) else {
        return cells(none, none, none, none);
    };
    // Of one rank nccl-tests prints 0, as its formulas say.
    let busbw = if ranks == 1 { 0.0 } else { row.bandwidth_gb_s_bus.unwrap_or(0.0) };
    sum.busbw_gb_s += busbw;
    sum.count += 1;
    let time_us = microseconds_at(size, algbw);
    cells(&fitting(time_us, 7), &fitting(algbw, 6), &fitting(busbw, 6), "0")
}

/// As many decimals as there is room for, up to two.
fn fitting(value: f64, width: usize) -> String {
    let decimals = |count: usize| format!("{value:.count$}");
    let fits = |text: &String| text.len() <= width;
    let plain = [2, 1, 0].map(decimals).into_iter().find(fits);
    let decimals = usize::from(width >= 7);
    plain.unwrap_or_else(|| exponent_of_c(&format!("{value:.decimals$e}")))
}

/// A number with an exponent, which C writes with a sign and two digits.
fn exponent_of_c(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Six significant digits, as C's `%g` writes them.
fn significant(value: f64) -> String {
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    match rounded.abs() {
        0.0 | 1e-4..1e6 => rounded.to_string(),
        _ => exponent_of_c(&format!("{rounded:e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_form_of_c() {
        // printf's answers.
        for (value, width, expected) in [
            (0.0, 7, "0.00"),
            (12.344, 7, "12.34"),
            (1234.567, 7, "1234.57"),
            (12345.678, 7, "12345.7"),
            (1_234_567.8, 7, "1234568"),
            (12_345_678.9, 7, "1.2e+07"),
            (123.456, 6, "123.46"),
            (1234.56, 6, "1234.6"),
            (123_456.7, 6, "123457"),
            (1_234_567.0, 6, "1e+06"),
        ] {
            assert_eq!(fitting(value, width), expected);
        }
        for (value, expected) in [
            (0.0, "0"),
            (235.801, "235.801"),
            (1.5, "1.5"),
            (100.0, "100"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_012_345, "1.2345e-05"),
            (0.000_123_4, "0.0001234"),
        ] {
            assert_eq!(significant(value), expected);
        }
    }

    #[test]
    fn a_version_is_counted_as_nccl_does() {
        assert_eq!(version_code("2.32.3"), 23_203);
    }
}
