//! A table of atomics in the region.
#![expect(unsafe_code, reason = "points into the region")]

use std::{ops::Deref, ptr::NonNull};

/// A slice in memory of another owner.
#[derive(Debug)]
pub(super) struct Table<T>(NonNull<[T]>);

// SAFETY: like a reference to memory that its creator keeps for as long as the table.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: like a shared reference: sharing the table shares its entries.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// A table over the entries from `first` on. Touches no page.
    ///
    /// # Safety
    /// `first` is aligned and valid for `length` entries, for as long as the table lives. Other
    /// code at most loads the entries, atomically. The memory is zeroed. A `T` whose bytes are all
    /// zero is valid and need not be dropped.
    pub(super) unsafe fn new(first: NonNull<T>, length: usize) -> Self {
        assert!(!std::mem::needs_drop::<T>());
        Self(NonNull::slice_from_raw_parts(first, length))
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: zeros are valid entries, as the caller of `new` promised. They stay valid as long
        // as the table and are never lent mutably.
        unsafe { self.0.as_ref() }
    }
}
