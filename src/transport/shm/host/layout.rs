//! How a ring is used: the choices, and those worth trying for a case.

use crate::{
    ffi::shm::{NON_TEMPORAL, Store},
    plan::Case,
    transport::shm::slot_sizes,
    units::Bytes,
};

use super::ring_end::SLOTS_AT;

/// The smallest slot worth a choice; below, one slot holds one transfer.
const SLOT_MIN: Bytes = Bytes::kib(16);

/// The slots that tuning tries.
const SLOT_CHOICES: [Bytes; 6] =
    [SLOT_MIN, Bytes::kib(64), Bytes::kib(128), Bytes::kib(256), Bytes::kib(512), Bytes::mib(1)];

/// A ring is at least this large if its slots are many: below it, source and target meet in the
/// same cache lines too soon (measured 2026-11 on Sapphire Rapids: 64 KiB of slots 10 GB/s,
/// 512 KiB and more 18 GB/s).
const RING_MIN: Bytes = Bytes::mib(1);

/// Past this ring size only the fewest slots are made.
const RING_MAX: Bytes = Bytes::mib(8);

/// Non-temporal stores are tried from this transfer size on; below, source and target stay in the
/// caches of any current CPU, and storing past them only loses.
const NON_TEMPORAL_MIN: Bytes = Bytes::mib(1);

/// How a ring is used: all that tuning chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slot: Bytes,
    pub(super) slots: u64,
    pub(super) source_store: Store,
    pub(super) target_store: Store,
}

impl Layout {
    pub(super) fn of(slot: Bytes, source_store: Store, target_store: Store) -> Self {
        let fitting = |bytes: Bytes| bytes.get() / slot.get();
        let slots = if slot > RING_MIN {
            fitting(RING_MAX).clamp(2, 8)
        } else {
            fitting(RING_MIN).clamp(8, 1024)
        };
        Self { slot, slots, source_store, target_store }
    }

    /// All layouts that are worth trying for `case`; never empty.
    pub(super) fn all(case: &Case) -> Vec<Self> {
        let mut stores = vec![(Store::Cached, Store::Cached)];
        if NON_TEMPORAL && case.size >= NON_TEMPORAL_MIN {
            stores.push((Store::Cached, Store::NonTemporal));
            stores.push((Store::NonTemporal, Store::Cached));
        }
        let layouts = |&slot: &Bytes| {
            stores.iter().map(move |&(source, target)| Self::of(slot, source, target))
        };
        slot_sizes(case, &SLOT_CHOICES).iter().flat_map(layouts).collect()
    }

    pub(super) fn segment_size(&self) -> Bytes {
        Bytes::new(self.slot.times(self.slots).get().saturating_add(SLOTS_AT as u64))
    }
}
