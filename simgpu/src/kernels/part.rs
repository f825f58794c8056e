//! A kernel on a part of what a launch works on, in memory of the caller.

use super::{Expected, KERNELS, Launch, Multicast, Written};

/// Enough that the loop over a block's threads is the inner one.
const THREADS: u32 = 128;

/// What a comparison has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Bytes, or elements of a reduction.
    pub count: u64,
    /// The number of the first; all ones if there is none.
    pub first: u64,
}

impl Wrong {
    /// Nothing is wrong.
    pub(crate) const NONE: Self = Self { count: 0, first: u64::MAX };
}

fn run(name: &str, parameters: &[u64]) {
    let kernel = KERNELS.iter().find(|kernel| kernel.name == name).expect("a name of the table");
    let sized = kernel.parameters.iter().zip(parameters);
    let parameters = sized.map(|(&size, value)| value.to_le_bytes()[..size].to_vec()).collect();
    let (grid, block, multicast) = ([1; 3], [THREADS, 1, 1], Multicast::default());
    let launch = Launch { kernel, grid, block, parameters, multicast };
    // SAFETY: the functions below pass slices that they have, with their lengths.
    unsafe { launch.run(&|_| 0.0) };
}

/// Writes `what` into `target`, whose beginning is aligned to elements.
pub(crate) fn write(target: &mut [u8], what: Written) {
    let (address, bytes) = (target.as_mut_ptr() as u64, target.len() as u64);
    match what {
        Written::Pattern { seed, flip } => run("fill", &[address, bytes, seed, flip]),
        Written::Given { values, rank } => {
            let count = bytes / values.element_bytes();
            let (data_type, reduction) = (values.data_type.into(), values.reduction.into());
            let rank_of_ranks = u64::from(rank) << 32 | u64::from(values.ranks);
            let parameters = [address, count, values.seed, data_type, reduction, rank_of_ranks];
            run("give", &parameters);
        }
    }
}

/// Compares `found`, whose beginning is aligned to elements.
pub(crate) fn compare(found: &[u8], expected: Expected) -> Wrong {
    let (address, bytes) = (found.as_ptr() as u64, found.len() as u64);
    let mut result = [0, u64::MAX];
    let answer = result.as_mut_ptr() as u64;
    match expected {
        Expected::Pattern { seed } => run("compare", &[address, bytes, seed, answer]),
        Expected::Reduced { values, tolerance } => {
            let count = bytes / values.element_bytes();
            let kind = u64::from(values.data_type) << 32 | u64::from(values.reduction);
            let ranks = u64::from(tolerance) << 32 | u64::from(values.ranks);
            run("compare_reduced", &[address, count, values.seed, kind, ranks, answer]);
        }
    }
    let [count, first] = result;
    Wrong { count, first }
}
