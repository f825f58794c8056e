//! What values of flags look like.

use std::time::Duration;

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::{
    plan::{
        Collective, Gpu, Operation,
        topology::{NumaNode, cpu_list},
    },
    units::Bytes,
};

/// The most ranks that g2g starts by itself on one machine.
pub(crate) const RANKS_MAX: i64 = 1024;

/// The shortest and the longest time that a flag takes.
const TIME_MIN: Duration = Duration::from_millis(1);
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Below it a rank could be late that is merely not scheduled.
const DEADLINE_MIN: Duration = Duration::from_millis(100);

/// GPUs by their ordinals, each once, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus(pub Vec<Gpu>);

pub(crate) fn gpus(text: &str) -> Result<Gpus, String> {
    // A number that no machine has would be a long list.
    let is_small = text.split([',', '-']).all(|number| number.trim().len() <= 4);
    let numbers = cpu_list(text).filter(|numbers| is_small && !numbers.is_empty());
    let numbers = numbers.ok_or("write the ordinals of GPUs, such as 0,2 or 0-3")?;
    let gpus: Vec<Gpu> = numbers.into_iter().map(Gpu).collect();
    match gpus.iter().enumerate().find(|&(place, gpu)| gpus[..place].contains(gpu)) {
        Some((_, gpu)) => Err(format!("GPU {} is named twice: name each once", gpu.0)),
        None => Ok(Gpus(gpus)),
    }
}

pub(crate) fn each_once<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut once: Vec<T> = Vec::new();
    for item in list {
        if !once.contains(item) {
            once.push(*item);
        }
    }
    once
}

pub(crate) fn node_pair(text: &str) -> Result<(NumaNode, NumaNode), String> {
    let node = |text: &str| text.parse().ok().map(NumaNode);
    text.split_once(':')
        .and_then(|(source, target)| Some((node(source)?, node(target)?)))
        .ok_or_else(|| "write the numbers of two NUMA nodes, such as 0:1".to_owned())
}

/// An operation, among them NCCL's collectives by their own names.
pub(crate) fn operation() -> impl TypedValueParser<Value = Operation> {
    let own = Operation::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let of_nccl = Collective::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(own.chain(of_nccl)).try_map(|name| {
        Collective::from_str(&name, false)
            .map(Operation::Collective)
            .or_else(|_| Operation::from_str(&name, false))
    })
}

pub(crate) fn slot_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|err: crate::units::BadSize| err.to_string())?;
    if size < Bytes::new(64) || !size.get().is_multiple_of(64) {
        return Err("a slot is a multiple of 64 bytes, 64 or more".to_owned());
    }
    Ok(size)
}

pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent / 100.0),
        _ => Err("write a percentage above 0 and at most 50, such as 1% or 0.5%".to_owned()),
    }
}

pub(crate) fn threshold(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("write a percentage from 0% to 100%, such as 5%".to_owned()),
    }
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let refused = || "write a time with its unit, such as 500ms, 2s or 1m; 1ms to 30d".to_owned();
    let time: jiff::SignedDuration = text.parse().map_err(|_| refused())?;
    let time = Duration::try_from(time).map_err(|_| refused())?;
    if (TIME_MIN..=TIME_MAX).contains(&time) { Ok(time) } else { Err(refused()) }
}

pub(crate) fn deadline(text: &str) -> Result<Duration, String> {
    match time(text) {
        Ok(time) if time < DEADLINE_MIN => Err("a healthy rank may need 100ms".to_owned()),
        other => other,
    }
}
