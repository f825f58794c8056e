//! Handles that are never dangling: numbers of places in a table, each with the how manieth owner
//! it has.

/// Values by handle.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Distinguishes handles of different tables.
    tag: u64,
    places: Vec<(u64, Option<T>)>,
    free: Vec<usize>,
}

/// Bits of a handle for its place; above them its generation, above that the table's tag.
const PLACE_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;

impl<T> Table<T> {
    /// Empty; `tag` is not 0.
    pub(crate) fn new(tag: u8) -> Self {
        Self { tag: u64::from(tag), places: Vec::new(), free: Vec::new() }
    }

    /// Adds a value; its handle.
    pub(crate) fn add(&mut self, value: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let generation = (self.places[place].0 + 1) % (1 << GENERATION_BITS);
        self.places[place] = (generation, Some(value));
        self.handle(place)
    }

    /// The value of a handle.
    pub(crate) fn get(&self, handle: u64) -> Option<&T> {
        self.places[self.place(handle)?].1.as_ref()
    }

    /// The value of a handle, to be changed.
    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let place = self.place(handle)?;
        self.places[place].1.as_mut()
    }

    /// Takes a value out; its handle is of nothing from now on.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<T> {
        let place = self.place(handle)?;
        let value = self.places[place].1.take();
        self.free.push(place);
        value
    }

    /// All values with their handles.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(place, (_, value))| Some((self.handle(place), value.as_ref()?)))
    }

    /// All values, to be changed.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// Takes out all values that are to go.
    pub(crate) fn take(&mut self, goes: impl Fn(&T) -> bool) -> Vec<T> {
        let handles: Vec<u64> =
            self.all().filter(|(_, value)| goes(value)).map(|(handle, _)| handle).collect();
        handles.into_iter().filter_map(|handle| self.remove(handle)).collect()
    }

    fn handle(&self, place: usize) -> u64 {
        self.tag << (PLACE_BITS + GENERATION_BITS)
            | self.places[place].0 << PLACE_BITS
            | place as u64
    }

    fn place(&self, handle: u64) -> Option<usize> {
        let place = (handle % (1 << PLACE_BITS)) as usize;
        let taken = self.places.get(place).is_some_and(|(_, value)| value.is_some());
        (taken && self.handle(place) == handle).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_nothing_once_its_value_is_gone() {
        let mut table = Table::new(1);
        let first = table.add("first");
        assert_eq!(table.get(first), Some(&"first"));
        assert_eq!(table.remove(first), Some("first"));
        let second = table.add("second");
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(Table::<&str>::new(2).get(second), None);
    }
}
