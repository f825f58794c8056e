//! Places of one kind that are taken and given back, in memory that starts as zeroes.

/// No place.
pub(super) const NONE: u32 = 0;

/// So many places, counted from 1. Those that were given back are taken first.
#[repr(C)]
pub(super) struct Pool<T, const N: usize> {
    /// Places that were ever taken.
    fresh: u32,
    /// The place that was given back last, or 0.
    spare: u32,
    /// For each place that was given back the one before it.
    before: [u32; N],
    items: [T; N],
}

impl<T: Copy, const N: usize> Pool<T, N> {
    /// Takes a place for `item`.
    pub(super) fn take(&mut self, item: T) -> Option<u32> {
        let place = match self.spare {
            0 if (self.fresh as usize) < N => {
                self.fresh += 1;
                self.fresh
            }
            0 => return None,
            spare => {
                self.spare = self.before[spare as usize - 1];
                spare
            }
        };
        self.items[place as usize - 1] = item;
        Some(place)
    }

    /// Gives a place back.
    pub(super) fn give_back(&mut self, place: u32) {
        self.before[place as usize - 1] = self.spare;
        self.spare = place;
    }

    pub(super) fn get(&self, place: u32) -> &T {
        &self.items[place as usize - 1]
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut T {
        &mut self.items[place as usize - 1]
    }
}
