//! Arguments of C callers, checked once.

use std::{ffi::CStr, ptr};

use libc::{c_char, c_int, c_uint, c_ulonglong};
use nvml_wrapper_sys::bindings::{nvmlDevice_st, nvmlDevice_t, nvmlEventSet_st};

use super::{
    Answer,
    codes::{INSUFFICIENT_SIZE, INVALID_ARGUMENT},
};

/// What a call is given.
pub(super) trait Argument {
    /// What its work sees.
    type Checked;

    /// # Safety
    ///
    /// A pointer is null, or points at what NVML's interface says: a value of its type or memory
    /// for one, as many as another argument of the call says, or a text that ends with a zero; and
    /// nothing else touches it before the call returns. A device's handle may be anything.
    unsafe fn checked(self) -> Self::Checked;
}

/// A pointer to what a call writes, and what some calls read first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<T>(*mut T);

impl<T> Argument for *mut T {
    type Checked = Given<T>;

    unsafe fn checked(self) -> Given<T> {
        Given(self)
    }
}

impl Argument for *const c_char {
    /// Refused if it is null.
    type Checked = Answer<String>;

    unsafe fn checked(self) -> Answer<String> {
        if self.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, so the caller vouches for a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(self) };
        Ok(text.to_string_lossy().into_owned())
    }
}

impl Argument for c_uint {
    type Checked = c_uint;

    unsafe fn checked(self) -> c_uint {
        self
    }
}

impl Argument for c_ulonglong {
    type Checked = c_ulonglong;

    unsafe fn checked(self) -> c_ulonglong {
        self
    }
}

impl Argument for c_int {
    type Checked = c_int;

    unsafe fn checked(self) -> c_int {
        self
    }
}

impl<T> Given<T> {
    /// Refuses null.
    pub(super) fn there(self) -> Answer<*mut T> {
        if self.0.is_null() { Err(INVALID_ARGUMENT) } else { Ok(self.0) }
    }

    /// Writes what was asked for.
    pub(super) fn put(self, value: T) -> Answer {
        let place = self.there()?;
        // SAFETY: not null, so memory for a `T`, by what `checked` was promised.
        unsafe { place.write(value) };
        Ok(())
    }

    /// Writes as many values, of the `capacity` for which there is memory.
    pub(super) fn put_all(self, values: &[T], capacity: c_uint) -> Answer
    where
        T: Copy,
    {
        let place = self.there()?;
        if values.len() > capacity as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: not null, so memory for `capacity` of them, by what `checked` was promised.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), place, values.len()) };
        Ok(())
    }

    /// The version with which a versioned structure begins.
    pub(super) fn version(self) -> Answer<c_uint> {
        let place = self.there()?;
        // SAFETY: not null, so a structure whose first field is an integer that the caller set.
        Ok(unsafe { place.cast::<c_uint>().read() })
    }

    /// The same memory, for an older version of what it is for.
    pub(super) fn older<U>(self) -> Given<U> {
        const { assert!(size_of::<U>() <= size_of::<T>() && align_of::<U>() <= align_of::<T>()) };
        Given(self.0.cast())
    }

    /// Changes each of so many values.
    pub(super) fn change_all(self, count: usize, change: impl Fn(T) -> T)
    where
        T: Copy,
    {
        for index in 0..count {
            // SAFETY: below `count`, the length that the caller gave for the array.
            let place = unsafe { self.0.add(index) };
            // SAFETY: one of the caller's values; integers, of which any bytes will do.
            let value = unsafe { place.read() };
            // SAFETY: the same place.
            unsafe { place.write(change(value)) };
        }
    }
}

impl Given<c_char> {
    /// Writes a text and a zero behind it.
    pub(super) fn put_text(self, text: &str, capacity: c_uint) -> Answer {
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        Given(self.0.cast::<u8>()).put_all(&bytes, capacity)
    }
}

impl Given<nvmlEventSet_st> {
    /// The number that a handle stands for, from 0.
    pub(super) fn number(self) -> Option<usize> {
        self.0.addr().checked_sub(1)
    }
}

impl Given<nvmlDevice_st> {
    /// The ordinal that a handle stands for.
    pub(super) fn ordinal(self) -> Option<u32> {
        u32::try_from(self.0.addr().checked_sub(1)?).ok()
    }
}

/// The handle of the GPU of this ordinal.
pub(super) fn handle(ordinal: u32) -> nvmlDevice_t {
    ptr::without_provenance_mut(ordinal as usize + 1)
}
