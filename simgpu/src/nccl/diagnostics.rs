//! The library's own diagnostics, when a communicator is made: what they would find of the machine's
//! faults, in the words of 2.32.3 (wheel nvidia-nccl-cu13).
//!
//! As of the real one, the process of rank 0 tells its standard output, through the C library's
//! buffer; what the ranks have in common is told by a thread, after the communicator is there.

use std::{ffi::CString, thread, time::Duration};

use super::{
    communicator::Communicator,
    environment, log,
    model::{Model, Way},
};
use crate::{
    machine::{ErrorCounter, Flip},
    state::World,
};

/// How much later the thread tells what it finds.
const LATER: Duration = Duration::from_millis(20);

/// Tells what the diagnostics find that the environment asks for.
pub(super) fn tell(world: &World, own: &Communicator, model: &Model) {
    let is_on = |name: &str| {
        let value = environment::text(name).and_then(|text| environment::number(&text));
        own.rank == 0 && value.is_some_and(|value| value != 0)
    };
    if is_on("NCCL_RUN_DIAGNOSTICS") {
        let mut lines = vec!["=== NCCL Diagnostics ===".to_owned()];
        lines.extend(between_gpus(world, model));
        lines.push("[OK] net bw: skipped (single host or no network transport)".to_owned());
        lines.push(format!("NCCL diagnostics completed in 245.3 ms across {} ranks", own.ranks));
        put(&lines);
    }
    if is_on("NCCL_RUN_RAS_DIAGNOSTICS") {
        put(&["=== RAS Diagnostics ===".to_owned()]);
        let mut lines = in_common(world, own, model);
        lines.push(format!("RAS diagnostics completed in 38.4 ms across {} ranks", own.ranks));
        thread::spawn(move || {
            thread::sleep(LATER);
            put(&lines);
        });
    }
}

/// Of the ways between GPUs that reach each other's memory: those whose data is wrong.
fn between_gpus(world: &World, model: &Model) -> Vec<String> {
    let ranks = model.ranks.len();
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let pairs: Vec<(usize, usize)> = pairs
        .filter(|(from, to)| from != to)
        .filter(|&(from, to)| matches!(model.way(from, to), Way::Peer { .. }))
        .collect();
    let gpu = |rank: usize| model.ranks[rank].gpu;
    let is_wrong = |&&(from, to): &&(usize, usize)| {
        let is_it = |flip: &Flip| {
            let hits = |named: Option<u32>, gpu: u32| named.is_none_or(|named| named == gpu);
            flip.always && hits(flip.source, gpu(from)) && hits(flip.target, gpu(to))
        };
        world.machine.faults.flips.iter().any(is_it)
    };
    let wrong: Vec<(usize, usize)> = pairs.iter().filter(is_wrong).copied().collect();
    let mut lines: Vec<String> = Vec::new();
    for &(from, to) in &wrong {
        let [source, target] = [from, to].map(|rank| world.machine.place_of(gpu(rank)));
        lines.push(format!(
            "[INFO] p2p: write mismatch srcRank={from} srcCudaDev={source} srcNvmlDev={source} \
             dstRank={to} dstCudaDev={target} dstNvmlDev={target} path=NVL handle=DIRECT \
             expected=0x5a5a5a5a5a5a5a5a got=0x5a5a5a5a5a5a5aa5 verify=0x5a5a5a5a5a5a5aa5; inspect \
             the affected GPU pair with 'nvidia-smi topo -m' and the applicable 'nvidia-smi topo \
             -p2p' check"
        ));
    }
    let (all, well) = (pairs.len(), pairs.len() - wrong.len());
    lines.push(match wrong.len() {
        0 => format!(
            "[OK]   p2p: verified P2P access in both directions between every GPU pair ({all} peer \
             accesses)"
        ),
        _ => format!("[INFO] p2p: only {well}/{all} GPU-to-GPU peer accesses passed verification"),
    });
    lines
}

/// Of errors and links of the ranks' GPUs.
fn in_common(world: &World, own: &Communicator, model: &Model) -> Vec<String> {
    let (ranks, comm) = (own.ranks, own.nonce);
    let of = format!("across {ranks} ranks in comm {comm:#x}");
    let errors = |gpu: u32| {
        let carried = world.shared.traffic(gpu as usize).iter().sum();
        let since = world.machine.errors(gpu, carried, ErrorCounter::EccUncorrected);
        since + world.machine.gpus[gpu as usize].health.ecc_errors.uncorrected
    };
    let listed = |has: &dyn Fn(u32) -> bool| {
        let list = (0..).zip(&model.ranks).filter(|(_, rank)| has(rank.gpu));
        let list: Vec<String> = list.map(|(number, _): (u32, _)| number.to_string()).collect();
        (!list.is_empty()).then(|| format!("{{{}}}", list.join(",")))
    };
    let worst = model.ranks.iter().map(|rank| errors(rank.gpu)).max().unwrap_or(0);
    let links = |gpu: u32| &world.machine.gpus[gpu as usize].nvlinks;
    let ecc = match listed(&|gpu| errors(gpu) > 0) {
        Some(list) => {
            format!(
                "[INFO] ECC: uncorrected volatile errors on rank(s) {list} (worst={worst}) {of}"
            )
        }
        None => format!("[OK]   ECC: no uncorrected volatile errors {of}"),
    };
    let nvlink = match listed(&|gpu| !links(gpu).down.is_empty()) {
        Some(list) => format!("[INFO] NVLink: inactive link(s) on rank(s) {list} {of}"),
        None => {
            let count = model.ranks.first().map_or(0, |rank| links(rank.gpu).count);
            format!("[OK]   NVLink: {count} links per GPU, all active at consistent speed {of}")
        }
    };
    vec![ecc, nvlink]
}

/// Writes lines as the C library does.
fn put(lines: &[String]) {
    for line in lines {
        let line = CString::new(format!("{} NCCL DIAG {line}", log::process())).unwrap_or_default();
        // SAFETY: the text ends in NUL and lives as long as the call.
        unsafe { libc::puts(line.as_ptr()) };
    }
}
