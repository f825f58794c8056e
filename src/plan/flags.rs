//! Parsers of the values of flags.

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::{
    Collective, Gpu, Operation, TransportKind,
    topology::{NumaNode, cpu_list},
};
use crate::units::{BadSize, Bytes};

/// The most ranks that g2g starts by itself on one machine.
pub const RANKS_MAX: i64 = 1024;

/// GPUs by their ordinals, each once, in the order in which they were written.
pub(super) fn gpu_list(text: &str) -> Result<Vec<Gpu>, String> {
    // A huge range would become a huge list.
    let is_small = text.split([',', '-']).all(|number| number.trim().len() <= 4);
    let numbers = cpu_list(text).filter(|numbers| is_small && !numbers.is_empty());
    let numbers = numbers.ok_or("write the ordinals of GPUs, such as 0,2 or 0-3")?;
    let gpus: Vec<Gpu> = numbers.into_iter().map(Gpu).collect();
    match gpus.iter().enumerate().find(|&(place, gpu)| gpus[..place].contains(gpu)) {
        Some((_, gpu)) => Err(format!("GPU {} is named twice: name each once", gpu.0)),
        None => Ok(gpus),
    }
}

pub(super) fn node_pair(text: &str) -> Result<(NumaNode, NumaNode), String> {
    let node = |text: &str| text.parse().ok().map(NumaNode);
    text.split_once(':')
        .and_then(|(source, target)| Some((node(source)?, node(target)?)))
        .ok_or_else(|| "write the numbers of two NUMA nodes, such as 0:1".to_owned())
}

/// An operation of `transport`, or of any, among them NCCL's collectives by their own names.
pub(crate) fn operation(
    transport: Option<TransportKind>,
) -> impl TypedValueParser<Value = Operation> {
    let is_of = move |operation: Operation| {
        transport.is_none_or(|transport| operation.transports().contains(&transport))
    };
    let own = Operation::value_variants()
        .iter()
        .filter(move |operation| is_of(**operation))
        .filter_map(ValueEnum::to_possible_value);
    let of_nccl = Collective::value_variants()
        .iter()
        .filter(move |collective| is_of(Operation::Collective(**collective)))
        .filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(own.chain(of_nccl)).try_map(|name| {
        Collective::from_str(&name, false)
            .map(Operation::Collective)
            .or_else(|_| Operation::from_str(&name, false))
    })
}

pub(super) fn slot_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|err: BadSize| err.to_string())?;
    if size < Bytes::new(64) || !size.get().is_multiple_of(64) {
        return Err("a slot is a multiple of 64 bytes, 64 or more".to_owned());
    }
    Ok(size)
}
