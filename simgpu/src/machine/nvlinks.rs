//! The NVLinks of a machine that a file describes: how many each GPU has, and those that are down.

use std::collections::BTreeSet;

use toml::Spanned;

use super::{
    Gpu, Link, Machine, NVLINKS_MAX, NvLinkEnd, Pair,
    apply::{link, scale},
    file::File,
    problem::Problem,
};

/// Generation of NVLinks, where nothing says.
const GENERATION: u32 = 4;

/// NVLinks of a pair.
fn links(pair: &Pair) -> u32 {
    match pair.link {
        Link::NvLink(links) => links,
        Link::Pcie => 0,
    }
}

/// Makes the links of GPUs and those of pairs agree: with a switch a pair has as many as the GPU
/// with fewer, without one a GPU has those of its pairs.
pub(super) fn count(machine: &mut Machine, file: &File) -> Result<(), Problem> {
    if machine.gpus.iter().any(|gpu| gpu.nvlinks.switch) {
        let links_of = |pair: &Pair| {
            let [source, target] = [pair.source, pair.target];
            let count = |ordinal: u32| machine.gpus[ordinal as usize].nvlinks.count;
            let is_connected = machine.shares_nvlinks(source, target);
            if is_connected { count(source).min(count(target)) } else { 0 }
        };
        let links: Vec<u32> = machine.pairs.iter().map(links_of).collect();
        for (pair, links) in machine.pairs.iter_mut().zip(links) {
            pair.link = link(links);
        }
    } else {
        for (ordinal, gpu) in (0..).zip(&mut machine.gpus) {
            let own = machine.pairs.iter().filter(|pair| pair.source == ordinal);
            gpu.nvlinks.count = own.map(links).sum();
        }
        agree(machine).map_err(|text| blame(file, text))?;
    }
    for nvlinks in machine.gpus.iter_mut().map(|gpu| &mut gpu.nvlinks) {
        nvlinks.generation = match (nvlinks.count, nvlinks.generation) {
            (0, _) => 0,
            (_, 0) => GENERATION,
            (_, given) => given,
        };
    }
    Ok(())
}

/// Whether links without a switch have two ends each, and GPUs no more than there can be.
fn agree(machine: &Machine) -> Result<(), String> {
    for pair in &machine.pairs {
        let back = machine.pair(pair.target, pair.source).map_or(0, links);
        if links(pair) != back {
            return Err(format!(
                "a link has two ends, but there are {} from GPU {} to {} and {back} back: give \
                 both, or `both_ways = true`",
                links(pair),
                pair.source,
                pair.target
            ));
        }
    }
    match (0..).zip(&machine.gpus).find(|(_, gpu)| gpu.nvlinks.count > NVLINKS_MAX) {
        Some((ordinal, gpu)) => Err(format!(
            "GPU {ordinal} would have {} links: at most {NVLINKS_MAX}",
            gpu.nvlinks.count
        )),
        None => Ok(()),
    }
}

/// Links that do not agree are those of the last pair that was given any, or those that an
/// instance has with its switch.
fn blame(file: &File, text: String) -> Problem {
    let given = file.pair.iter().rev().find_map(|entry| entry.get_ref().nvlinks.as_ref());
    match (given, &file.nvswitch) {
        (Some(links), _) => Problem::new(links, "pair.nvlinks", text),
        (None, Some(switch)) => Problem::new(switch, "nvswitch", text),
        (None, None) => unreachable!("the links of instances agree"),
    }
}

/// Takes links of GPUs down. What they carried is missing from the rates of pairs and ports.
pub(super) fn take_down(
    machine: &mut Machine,
    named: &[(u32, &Spanned<i64>)],
) -> Result<(), Problem> {
    let mut down = BTreeSet::new();
    for &(gpu, number) in named {
        let count = machine.gpus[gpu as usize].nvlinks.count;
        let link = u32::try_from(*number.get_ref()).ok().filter(|&link| link < count);
        let Some(link) = link else {
            let text = format!("GPU {gpu} has {count} NVLinks, numbered from 0");
            return Err(Problem::new(number, "gpu.nvlinks_down", text));
        };
        down.insert((gpu, link));
        down.extend(other_end(machine, gpu, link));
    }
    for (ordinal, gpu) in (0..).zip(&mut machine.gpus) {
        let own = down.iter().filter(|&&(gpu, _)| gpu == ordinal);
        gpu.nvlinks.down = own.map(|&(_, link)| link).collect();
        let share = f64::from(up(gpu)) / f64::from(gpu.nvlinks.count.max(1));
        for port in [&mut gpu.egress_gb_s, &mut gpu.ingress_gb_s] {
            // A rate of 0 would mean for ever; no pair is left that uses the port.
            *port = port.map(|gb_s| gb_s * share).filter(|&gb_s| gb_s > 0.0);
        }
    }
    let left: Vec<u32> = machine.pairs.iter().map(|pair| links_left(machine, pair)).collect();
    for (pair, left) in machine.pairs.iter_mut().zip(left) {
        lose(pair, left);
    }
    Ok(())
}

/// Links of a GPU that are up.
fn up(gpu: &Gpu) -> u32 {
    gpu.nvlinks.count - u32::try_from(gpu.nvlinks.down.len()).unwrap_or(0)
}

/// NVLinks of a pair that are up; its own number still counts those that are down.
fn links_left(machine: &Machine, pair: &Pair) -> u32 {
    let [source, target] =
        [pair.source, pair.target].map(|ordinal| &machine.gpus[ordinal as usize]);
    let all = links(pair);
    if source.nvlinks.switch {
        return all.min(up(source)).min(up(target));
    }
    let first = first_link(machine, pair.source, pair.target);
    let own = first..first + all;
    own.filter(|link| !source.nvlinks.down.contains(link)).map(|_| 1).sum()
}

/// Leaves a pair so many of its links. With none it is refused: no GPU is then reached over PCIe
/// instead.
fn lose(pair: &mut Pair, left: u32) {
    let all = links(pair);
    if left == all {
        return;
    }
    pair.link = link(left);
    if left == 0 {
        (pair.read_allowed, pair.write_allowed, pair.atomics) = (false, false, false);
    } else {
        scale(pair, f64::from(left) / f64::from(all));
    }
}

/// The GPU in which a link ends, and its number there; `None` if it ends in a switch.
fn other_end(machine: &Machine, gpu: u32, link: u32) -> Option<(u32, u32)> {
    let Some(NvLinkEnd::Gpu(peer)) = machine.nvlink_end(gpu, link) else {
        return None;
    };
    // The links between two GPUs are numbered in the same order at both.
    Some((peer, first_link(machine, peer, gpu) + link - first_link(machine, gpu, peer)))
}

/// The number of the first link from a GPU to another, while all are up.
fn first_link(machine: &Machine, gpu: u32, peer: u32) -> u32 {
    let own = machine.pairs.iter().filter(|pair| pair.source == gpu && pair.target < peer);
    own.map(links).sum()
}
