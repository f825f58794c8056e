//! The clocks of GPUs, told by a kernel that spins: reading them by NVML would need rights that not
//! every user has, and takes longer.

use std::{cell::Cell, rc::Rc, time::Duration};

use super::{Gpus, PATIENCE, Ready};
use crate::{
    ffi::{CallError, cuda::Memory},
    plan::{Case, Gpu, Rank},
    transport::{Clocks, Error, TryingTo},
    units::Bytes,
};

/// A clock that is lower by more than this share has fallen; one that is higher has risen. Clocks
/// change in steps of 15 MHz, which is more.
const NOISE: f64 = 0.005;

/// The clock of a GPU's multiprocessors, in cycles per nanosecond; 0 before the first look.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    /// What counts as risen.
    full: Cell<f64>,
    /// At the last look.
    now: Cell<f64>,
}

impl Gpus {
    /// Lets the GPUs that `rank` has in `case` spin for `duration`, all at once; their clocks then.
    pub(in crate::transport) fn spin(
        &self,
        case: &Case,
        rank: Rank,
        duration: Duration,
    ) -> Result<Clocks, Error> {
        const DOING: &str = "look at a GPU's clock";
        let gpus = self.of(case, rank)?;
        gpus.iter().try_for_each(|gpu| gpu.spin(duration)).trying_to(DOING)?;
        let mut clocks = Clocks::default();
        for gpu in gpus {
            let (full, before) = (gpu.warmth.full.get(), gpu.warmth.now.get());
            let now = gpu.spun_clock().trying_to(DOING)?;
            gpu.warmth.now.set(now);
            clocks.are_full &= full > 0.0 && now >= full * (1.0 - NOISE);
            clocks.have_risen |= now > before * (1.0 + NOISE);
        }
        Ok(clocks)
    }

    /// From now on these GPUs' clocks count as risen when they are what they are now.
    pub(in crate::transport) fn note_full(&self, case: &Case, rank: Rank) -> Result<(), Error> {
        self.of(case, rank)?.iter().for_each(|gpu| gpu.warmth.full.set(gpu.warmth.now.get()));
        Ok(())
    }

    fn of(&self, case: &Case, rank: Rank) -> Result<Vec<Rc<Ready>>, Error> {
        let own = case.ends().filter(|end| end.rank == rank).filter_map(|end| end.gpu());
        let mut gpus: Vec<Gpu> = own.collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus.into_iter().map(|gpu| self.ready(gpu)).collect()
    }
}

impl Ready {
    /// Queues spinning for `duration`, and the copy of what it tells.
    pub(super) fn spin(&self, duration: Duration) -> Result<(), CallError> {
        let size = Bytes::new(16);
        let answers = self.answers.slice(Bytes::default(), size);
        self.kernels.spin(&self.stream, duration, answers)?;
        self.stream.copy(self.copied.borrow().slice(Bytes::default(), size), answers)
    }

    /// Waits for it; the clock that it had.
    fn spun_clock(&self) -> Result<f64, CallError> {
        self.stream.synchronize(PATIENCE)?;
        let mut copied = self.copied.borrow_mut();
        let (words, _) = copied.bytes(PATIENCE)?.as_chunks::<8>();
        let [cycles, ns] = [0, 1].map(|word| u64::from_ne_bytes(words[word]));
        Ok(cycles as f64 / ns.max(1) as f64)
    }
}
