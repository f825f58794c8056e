//! The library's variables: read once in a process, as the real one does.

use std::sync::OnceLock;

use super::{
    log::{self, Subsystem},
    model::{Algorithm, Protocol},
    types::{Code, Function, Refused},
};

/// Names of ways between GPUs, from the nearest to the farthest.
const LEVELS: [&str; 10] = ["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"];

/// Distances of [`LEVELS`] that a machine here can have, and the default limit.
pub(super) mod level {
    pub(in super::super) const LOC: u64 = 0;
    pub(in super::super) const NVL: u64 = 1;
    pub(in super::super) const PIX: u64 = 4;
    pub(in super::super) const PXB: u64 = 5;
    pub(in super::super) const PHB: u64 = 8;
    pub(in super::super) const SYS: u64 = 9;
}

/// What the variables say.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    /// How far two GPUs may be from each other to reach each other's memory.
    pub p2p_level: u64,
    /// Whether the receiver reads; `None`: the library decides.
    pub p2p_read: Option<bool>,
    pub p2p_direct: bool,
    pub shm: bool,
    pub net_intra: bool,
    pub nvls: bool,
    pub cumem: bool,
    /// Whether there are windows.
    pub windows: bool,
    /// Whether several ranks may have one GPU.
    pub shares_gpus: bool,
    pub channels_min: Option<u32>,
    pub channels_max: Option<u32>,
    /// What `NCCL_HOSTID` says.
    pub host: Option<String>,
    /// Algorithms and protocols as they were given, and what that allows for each function.
    pub algorithms: Option<String>,
    pub protocols: Option<String>,
}

/// The variables of this process.
pub(crate) fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(Environment::read)
}

/// A variable's text, if it has one.
pub(super) fn text(name: &str) -> Option<String> {
    std::env::var_os(name)
        .map(|value| value.to_string_lossy().into_owned())
        .filter(|value| !value.is_empty())
}

/// A number as `strtoll` reads it with base 0: as far as it is one. `None`: it is too large.
pub(super) fn number(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.strip_prefix("0x") {
        Some(rest) if rest.starts_with(|digit: char| digit.is_ascii_hexdigit()) => (16, rest),
        _ if lower.starts_with('0') => (8, lower.as_str()),
        _ => (10, lower.as_str()),
    };
    let end = digits.find(|digit: char| !digit.is_digit(base)).unwrap_or(digits.len());
    if end == 0 {
        return Some(0);
    }
    let sign = if negative { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{}", &digits[..end]), base).ok()
}

/// A variable that is a number; says so in the log.
fn parameter(name: &str, default: i64) -> i64 {
    let Some(text) = text(name) else { return default };
    match number(&text) {
        Some(value) => {
            log::info(Subsystem::Env, &format!("{name} set by environment to {value}."));
            value
        }
        None => {
            let line = format!("Invalid value {text} for {name}, using default {default}.");
            log::info(Subsystem::All, &line);
            default
        }
    }
}

/// A variable that is a text; says so in the log.
fn named(name: &str) -> Option<String> {
    let text = text(name)?;
    log::info(Subsystem::Env, &format!("{name} set by environment to {text}"));
    Some(text)
}

impl Environment {
    fn read() -> Self {
        let given = |name: &str| u32::try_from(parameter(name, -2)).ok().filter(|count| *count > 0);
        let or_older = |newer: &str, older: &str| {
            let bound = |count: u32| count.clamp(1, 64);
            (given(newer).map(bound), given(older).map(bound))
        };
        // If both are set, the more restrictive one counts.
        let (least, less) = or_older("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS");
        let (most, more) = or_older("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS");
        let read = parameter("NCCL_P2P_READ_ENABLE", -2);
        let cumem = parameter("NCCL_CUMEM_ENABLE", -2);
        // Where they lie changes nothing here: they are read, so that the log tells of them.
        parameter("NCCL_BUFFSIZE", -2);
        parameter("NCCL_CUMEM_HOST_ENABLE", -1);
        Self {
            p2p_level: p2p_level(),
            p2p_read: (read != -2).then_some(read != 0),
            p2p_direct: parameter("NCCL_P2P_DIRECT_DISABLE", 0) == 0,
            shm: parameter("NCCL_SHM_DISABLE", 0) != 1,
            net_intra: parameter("NCCL_NET_DISABLE_INTRA", 0) != 1,
            nvls: parameter("NCCL_NVLS_ENABLE", 2) != 0,
            cumem: if cumem == -2 { has_cumem() } else { cumem != 0 },
            windows: parameter("NCCL_WIN_ENABLE", 1) != 0,
            shares_gpus: parameter("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1,
            channels_min: least.into_iter().chain(less).max(),
            channels_max: most.into_iter().chain(more).min(),
            host: named("NCCL_HOSTID"),
            algorithms: named("NCCL_ALGO"),
            protocols: named("NCCL_PROTO"),
        }
    }

    /// The ways to do a function that the variables leave, by algorithm and protocol.
    pub(super) fn allows(
        &self,
        function: Function,
        algorithm: Algorithm,
        protocol: Protocol,
    ) -> Result<bool, Refused> {
        let prefix = function.shape().name;
        let of = |list: &Option<String>, names: &[&str], name: &str| match list {
            Some(list) => listed(list, prefix, names, name),
            None => Ok(true),
        };
        let algorithms = Algorithm::NAMES;
        Ok(of(&self.algorithms, &algorithms, algorithm.name())?
            && of(&self.protocols, &Protocol::NAMES, protocol.name())?)
    }
}

/// The level of `NCCL_P2P_LEVEL`: a name, or a number of old.
fn p2p_level() -> u64 {
    if parameter("NCCL_P2P_DISABLE", 0) == 1 {
        return level::LOC;
    }
    let Some(text) = named("NCCL_P2P_LEVEL") else { return level::PXB };
    if let Some(at) = LEVELS.iter().position(|name| *name == text) {
        return at as u64;
    }
    match number(&text).unwrap_or(0) {
        ..=0 => level::LOC,
        1 => level::PIX,
        2 => level::PXB,
        3 => level::PHB,
        _ => level::SYS,
    }
}

/// Whether the driver is recent enough for memory and addresses apart to be the default.
fn has_cumem() -> bool {
    crate::state::machine().is_some_and(|machine| machine.driver_version >= 12_000)
}

/// Functions that lists can be about.
const PREFIXES: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];

/// Whether a list such as `ring,tree;allreduce:^tree` leaves `name` to the function `prefix`.
fn listed(list: &str, prefix: &str, names: &[&str], name: &str) -> Result<bool, Refused> {
    let refuse = |text: String| Refused::new(Code::INVALID_USAGE, text);
    let mut allowed = true;
    for (at, entry) in list.split(';').filter(|entry| !entry.is_empty()).enumerate() {
        let (about, elements) = match entry.split_once(':') {
            Some((about, elements)) => (Some(about), elements),
            None if at == 0 => (None, entry),
            None => {
                let text = "All entries except the first must have a prefix";
                return Err(refuse(format!("{text}: \"{list}\"")));
            }
        };
        let (excludes, elements) = match elements.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, elements),
        };
        let elements: Vec<&str> = elements.split(',').filter(|e| !e.is_empty()).collect();
        let known = |element: &&str| names.iter().any(|name| name.eq_ignore_ascii_case(element));
        if let Some(unknown) = elements.iter().find(|element| !known(element)) {
            let text = format!("Unrecognized element token \"{unknown}\" when parsing \"{list}\"");
            return Err(refuse(text));
        }
        if let Some(about) = about
            && !PREFIXES.iter().any(|prefix| prefix.eq_ignore_ascii_case(about))
        {
            let text = format!("Unrecognized prefix token \"{about}\" when parsing \"{list}\"");
            return Err(refuse(text));
        }
        if about.is_none_or(|about| about.eq_ignore_ascii_case(prefix)) {
            let found = elements.iter().any(|element| element.eq_ignore_ascii_case(name));
            allowed = found != excludes;
        }
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        for (text, value) in [
            ("1", Some(1)),
            (" -2x", Some(-2)),
            ("0x1F", Some(31)),
            ("010", Some(8)),
            ("yes", Some(0)),
            ("99999999999999999999", None),
        ] {
            assert_eq!(number(text), value, "{text}");
        }
    }

    #[test]
    fn lists_allow_exclude_and_name_functions() {
        let ring = |list, function| listed(list, function, &Algorithm::NAMES, "Ring");
        assert_eq!(ring("RING,tree", "AllReduce"), Ok(true));
        assert_eq!(ring("tree", "AllReduce"), Ok(false));
        assert_eq!(ring("^ring", "AllReduce"), Ok(false));
        assert_eq!(ring("^tree", "AllReduce"), Ok(true));
        assert_eq!(ring("allreduce:tree", "AllReduce"), Ok(false));
        assert_eq!(ring("allreduce:tree", "Broadcast"), Ok(true));
        assert_eq!(ring("tree;broadcast:ring", "Broadcast"), Ok(true));
        assert!(ring("tree;ring", "AllReduce").is_err());
        assert!(ring("rings", "AllReduce").is_err());
        assert!(ring("alltoall:ring", "AllReduce").is_err());
    }
}
