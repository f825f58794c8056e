//! Memory that outlives its case, for the next one: a driver takes about a millisecond to allocate,
//! pin or free any, as long as a case takes to measure.

use std::{cell::RefCell, rc::Rc};

use super::Ready;
use crate::{
    ffi::{
        CallError,
        cuda::{Memory, Slice},
    },
    units::Bytes,
};

/// Memory without a case.
#[derive(Debug)]
pub(super) struct Shelf<M>(RefCell<Vec<M>>);

/// Memory of a case. When that is over, it goes back to its shelf once nothing works on it.
#[derive(Debug)]
pub(super) struct Kept<M: Memory> {
    /// `None` once it has gone back.
    memory: Option<M>,
    ready: Rc<Ready>,
    shelf: fn(&Ready) -> &Shelf<M>,
}

impl<M> Default for Shelf<M> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<M: Memory> Shelf<M> {
    /// Frees what it holds.
    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    fn take(&self, size: Bytes) -> Option<M> {
        let mut memory = self.0.borrow_mut();
        let fitting = memory.iter().position(|memory| memory.size() == size);
        fitting.map(|fitting| memory.swap_remove(fitting))
    }
}

impl<M: Memory> Kept<M> {
    /// Memory of `size` from a shelf of `ready`, or what `make` makes: the sizes of cases come one
    /// after another, so what the shelf holds of another size is freed first. Its contents are
    /// undefined.
    pub(super) fn new(
        ready: &Rc<Ready>,
        shelf: fn(&Ready) -> &Shelf<M>,
        size: Bytes,
        make: impl FnOnce() -> Result<M, CallError>,
    ) -> Result<Self, CallError> {
        let memory = match shelf(ready).take(size) {
            Some(memory) => memory,
            None => {
                shelf(ready).clear();
                make()?
            }
        };
        Ok(Self { memory: Some(memory), ready: Rc::clone(ready), shelf })
    }
}

impl<M: Memory> Memory for Kept<M> {
    fn all(&self) -> Slice<'_> {
        self.get().all()
    }
}

impl<M: Memory> Kept<M> {
    /// The memory itself.
    pub(super) fn get(&self) -> &M {
        let Some(memory) = &self.memory else { unreachable!("it goes back on drop only") };
        memory
    }
}

impl<M: Memory> Drop for Kept<M> {
    fn drop(&mut self) {
        // What a stream may still work on is freed, which the driver does once it may.
        if self.ready.context.is_at_rest() {
            (self.shelf)(&self.ready).0.borrow_mut().extend(self.memory.take());
        }
    }
}
