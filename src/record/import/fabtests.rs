//! fabtests, and `fi_pingpong` of libfabric itself: `show_perf` and `show_perf_mr` in
//! `fabtests/common/shared.c`, `show_perf` in `util/pingpong.c` of libfabric 2.6, unchanged since
//! 1.5.
//!
//! Its MB are 10⁶ bytes: bytes over whole microseconds. A ping-pong counts both messages, so that
//! its time of one is that of one way; elsewhere that time is the inverse of the rate, and no
//! latency. Sizes are shortened to powers of 1024, counts to powers of 1000. A table does not say
//! which program it is of: a command in the lines above does, or the program's own words in the
//! machine-readable form (`-m`).

use super::{
    MEAN_LATENCY, Program, Reader, Sink, UNVERIFIED, begins_with_number,
    number::{Printed, rate},
    quoted, words,
};
use crate::{
    plan::{Engine, Issuer, Operation, Pattern, TransportKind},
    record::{Row, Status, row::raised},
    units::{Bytes, gb_s_of_mb_s, nanoseconds_of_microseconds},
};

/// The program.
pub(super) const PROGRAM: Program = Program {
    name: "fabtests",
    described: "fabtests",
    reader: |line| is_own(line).then(|| Box::<Text>::default() as Box<dyn Reader>),
};

/// Whether only these programs print such a line.
fn is_own(line: &str) -> bool {
    Table::headed(line).is_some() || line.trim_start().starts_with("- { xfer_size: ")
}

/// The tables that they print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    /// `bytes iters total time MB/sec usec/xfer Mxfers/sec`
    Fabtests,
    /// The same with `#sent` and `#ack`.
    PingPong,
    /// With the name of an operation before all others, which g2g has nothing like.
    Named,
}

impl Table {
    fn headed(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.strip_suffix(&["total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"])? {
            ["bytes", "iters"] => Some(Self::Fabtests),
            ["bytes", "#sent", "#ack"] => Some(Self::PingPong),
            ["name", ..] => Some(Self::Named),
            _ => None,
        }
    }
}

/// A command that prints such a table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Command {
    /// What it measures; `None` if g2g has nothing like it.
    kind: Option<Kind>,
    provider: Option<String>,
    window: Option<u32>,
    is_verified: bool,
}

/// What a row of a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    operation: Option<Operation>,
    issuer: Option<Issuer>,
    /// One way, unless both ends do the same at once and each says its own rate.
    pattern: Pattern,
    is_latency: bool,
}

impl Kind {
    /// Something of which nothing but the rate is known.
    const UNKNOWN: Self =
        Self { operation: None, issuer: None, pattern: Pattern::OneWay, is_latency: false };

    /// Messages to the other end, with a window.
    const SEND: Self = Self { operation: Some(Operation::Send), ..Self::UNKNOWN };

    /// One message at a time there and back.
    const PING_PONG: Self =
        Self { operation: Some(Operation::PingPong), is_latency: true, ..Self::UNKNOWN };

    /// One end writes into or reads from the other.
    const fn rma(issuer: Issuer) -> Self {
        let operation = match issuer {
            Issuer::Read => Operation::Read,
            Issuer::Write => Operation::Write,
        };
        Self { operation: Some(operation), issuer: Some(issuer), ..Self::UNKNOWN }
    }
}

impl Command {
    /// The command in a line, be it behind a prompt or launcher.
    fn of(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let program = words.find_map(|word| {
            let name = word.rsplit('/').next().unwrap_or(word);
            name.starts_with("fi_").then_some(name)
        })?;
        let words: Vec<&str> = words.collect();
        let option = |flag: &str| {
            let mut found = words.iter().enumerate().filter(|(_, word)| word.starts_with(flag));
            let (at, word) = found.next()?;
            let value = &word[flag.len()..];
            if value.is_empty() { words.get(at + 1).copied() } else { Some(value) }
        };
        let of = option("-o");
        let rma = Kind::rma(if of == Some("read") { Issuer::Read } else { Issuer::Write });
        let has = |flag| words.contains(&flag);
        let kind = match program {
            "fi_pingpong"
            | "fi_rdm_pingpong"
            | "fi_rdm_tagged_pingpong"
            | "fi_msg_pingpong"
            | "fi_dgram_pingpong"
            | "fi_rdm_cntr_pingpong" => Some(Kind::PING_PONG),
            "fi_msg_bw" | "fi_rdm_bw" | "fi_rdm_tagged_bw" => Some(Kind::SEND),
            // One end writes, and the other one sees each.
            "fi_rma_bw" if of == Some("writedata") => Some(rma),
            "fi_rma_bw" => Some(Kind { pattern: Pattern::BothWays, ..rma }),
            // One write at a time there and back, or one read at a time.
            "fi_rma_pingpong" => Some(Kind { is_latency: true, ..rma }),
            "fi_rma_tx_completion"
            | "fi_rdm_bw_mt"
            | "fi_multi_recv"
            | "fi_rdm_atomic"
            | "fi_unmap_mem" => None,
            _ => return None,
        };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_;-".contains(letter);
        let provider = option("-p")
            .map(|name| name.trim_matches(['"', '\'']))
            .filter(|name| name.chars().all(plain));
        Some(Self {
            kind,
            provider: provider.map(str::to_owned),
            window: option("-W").and_then(|window| window.parse().ok()),
            is_verified: if program == "fi_pingpong" { has("-c") } else { has("-v") },
        })
    }
}

/// What a row says of its transfers.
struct Numbers {
    size: u64,
    /// Whether the size is one that was shortened to this.
    is_rounded: bool,
    mb_s: Option<Printed>,
    us: Option<Printed>,
    /// Transfers for each count, where no command says it: 2 of a ping-pong, otherwise 1.
    transfers: Option<u32>,
}

/// Reads what fabtests prints.
#[derive(Debug, Default)]
struct Text {
    /// The last command before the next table.
    next: Option<Command>,
    /// The command of the table.
    command: Option<Command>,
    table: Option<Table>,
    /// Whether the program's own words come next.
    is_words: bool,
}

impl Reader for Text {
    fn line(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        if line == "---" {
            self.command = None;
            self.is_words = true;
            return Ok(());
        }
        if let Some(fields) = line.trim_start().strip_prefix("- { ") {
            let numbers = machine_readable(fields)
                .ok_or_else(|| format!("{} is half a result", quoted(line)))?;
            return self.row(&numbers, None, sink);
        }
        if let Some(table) = Table::headed(line) {
            self.table = Some(table);
            self.command = self.next.take();
            return Ok(());
        }
        if let Some(command) = Command::of(line) {
            if self.is_words && line.ends_with(':') {
                self.command = Some(command);
            } else {
                self.next = Some(command);
            }
            self.is_words = false;
            return Ok(());
        }
        match self.table {
            Some(Table::Named) => match line.split_whitespace().nth(4) {
                Some(time) if time.ends_with('s') => {
                    Err(format!("g2g has nothing like {}", quoted(line)))
                }
                _ => Ok(()),
            },
            Some(table) if begins_with_number(line) => self.numbers(table, line, sink),
            _ => Ok(()),
        }
    }
}

impl Text {
    fn numbers(&self, table: Table, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        let words = words(line, if table == Table::PingPong { 8 } else { 7 })?;
        let no_number = || format!("{} is no row", quoted(line));
        let [size, times, .., total, time, mb_s, us, _] = words[..] else {
            return Err(no_number());
        };
        let (size, is_short) = shortened(size, 1024).ok_or_else(no_number)?;
        let (times, _) = shortened(times, 1000).ok_or_else(no_number)?;
        let (total, _) = shortened(total, 1024).ok_or_else(no_number)?;
        time.strip_suffix('s').and_then(Printed::read).ok_or_else(no_number)?;
        let mb_s = Printed::read(mb_s).ok_or_else(no_number)?;
        let us = Printed::read(us).ok_or_else(no_number)?;
        let numbers = Numbers {
            size,
            is_rounded: is_short && !is_near(mb_s, us, size),
            mb_s: Some(mb_s),
            us: Some(us),
            transfers: match table {
                Table::PingPong => Some(2),
                Table::Fabtests | Table::Named => transfers(total, size, times),
            },
        };
        let lost = words[2].strip_prefix(['-', '+']).filter(|_| table == Table::PingPong);
        self.row(&numbers, lost, sink)
    }

    fn row(
        &self,
        numbers: &Numbers,
        lost: Option<&str>,
        sink: &mut Sink<'_>,
    ) -> Result<(), String> {
        let command = self.command.as_ref();
        let size = Bytes::new(numbers.size);
        let row = Row {
            transport: TransportKind::Rdma,
            engine: Some(Engine::Nic),
            size_bytes: Some(size),
            provider: command.and_then(|command| command.provider.clone()),
            window: command.and_then(|command| command.window),
            ..Row::default()
        };
        if let Some(lost) = lost {
            let reason = format!("{} messages were not acknowledged", quoted(lost));
            let operation = Some(Operation::PingPong);
            sink.row(Row { status: Status::Failed, operation, reason, ..row });
            return Ok(());
        }
        let kind = match command {
            Some(command) => command.kind.ok_or("g2g has nothing like its program")?,
            None if numbers.transfers == Some(2) => Kind::PING_PONG,
            None => Kind::UNKNOWN,
        };
        let is_one_way = kind.pattern == Pattern::OneWay;
        let latency_ns = numbers.us.and_then(|us| nanoseconds_of_microseconds(us.value));
        let rate = rate(size, numbers.mb_s.map(|mb_s| mb_s.map(gb_s_of_mb_s)), numbers.us);
        let gb_s = rate.map(|rate| rate.gb_s).filter(|_| !kind.is_latency);
        let row = Row {
            status: Status::Ok,
            operation: kind.operation,
            issuer: kind.issuer,
            pattern: Some(kind.pattern),
            flows: Some(if is_one_way { 1 } else { 2 }),
            latency_ns_p50: latency_ns.filter(|_| kind.is_latency),
            bandwidth_gb_s: gb_s,
            bandwidth_gb_s_total: gb_s.filter(|_| is_one_way),
            ..row
        };
        let flags = [
            (!command.is_some_and(|command| command.is_verified), UNVERIFIED),
            (row.latency_ns_p50.is_some(), MEAN_LATENCY),
            (numbers.is_rounded, "size_rounded"),
        ];
        sink.row(row.with_flags(&raised(&flags)));
        Ok(())
    }
}

/// `xfer_size: 64, iterations: 10000, total: 1280000, time: 0.1, MB/sec: 6.4, usec/xfer: 10.0, …`
fn machine_readable(fields: &str) -> Option<Numbers> {
    let fields = fields.strip_suffix('}')?;
    let value = |name: &str| {
        fields.split(", ").find_map(|field| field.strip_prefix(name)?.strip_prefix(": "))
    };
    let whole = |name| value(name)?.trim().parse::<u64>().ok();
    let (size, times, total) = (whole("xfer_size")?, whole("iterations")?, whole("total")?);
    value("Mxfers/sec")?;
    Some(Numbers {
        size,
        is_rounded: false,
        mb_s: Printed::read(value("MB/sec")?),
        us: Printed::read(value("usec/xfer")?),
        transfers: transfers(total, size, times),
    })
}

/// How many transfers each count stands for; `None` where two shortened numbers leave it open.
fn transfers(total: u64, size: u64, times: u64) -> Option<u32> {
    let each = total as f64 / size as f64 / times as f64;
    let is_near = |count: f64| (0.85 * count..1.15 * count).contains(&each);
    if is_near(1.0) {
        Some(1)
    } else if is_near(2.0) {
        Some(2)
    } else {
        None
    }
}

/// `1.5k` in steps of 1024 or 1000, and whether it was shortened.
fn shortened(text: &str, base: u64) -> Option<(u64, bool)> {
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let scale = match unit {
        "" => 1,
        "k" => base,
        "m" => base.pow(2),
        "g" | "b" => base.pow(3),
        _ => return None,
    };
    let number = &text[..text.len() - unit.len()];
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths: u64 = tenths.parse().ok().filter(|&tenths| tenths < 10)?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    Some((whole.checked_add((tenths * scale).div_ceil(10))?, scale > 1))
}

/// Whether rate and time together say this size, as far as they have digits.
fn is_near(mb_s: Printed, us: Printed, size: u64) -> bool {
    let said = mb_s.value * us.value;
    let tolerance = 0.01 + mb_s.uncertainty() + us.uncertainty();
    (said / size as f64 - 1.0).abs() <= tolerance
}
