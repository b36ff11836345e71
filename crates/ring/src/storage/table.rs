//! A table of atomics whose place is a parameter: in the region, or on the heap.
#![expect(unsafe_code, reason = "points into the region")]

use std::{ops::Deref, ptr::NonNull};

/// A slice that owns its elements but perhaps not their memory.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: NonNull<[T]>,
    on_heap: bool,
}

// SAFETY: like `Box<[T]>`, and like a reference to memory that its maker keeps for as long as the table.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above; sharing the table shares its entries.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// A table in memory of its own.
    pub(super) fn on_heap(length: usize, entry: impl FnMut() -> T) -> Self {
        let entries: Box<[T]> = std::iter::repeat_with(entry).take(length).collect();
        Self {
            entries: NonNull::from(Box::leak(entries)),
            on_heap: true,
        }
    }

    /// A table in memory of somebody else.
    ///
    /// # Safety
    /// `first` is aligned and valid for `length` entries, for as long as the table lives, and accessed through the table
    /// only. Entries must not need to be dropped.
    pub(super) unsafe fn in_region(
        first: NonNull<T>,
        length: usize,
        mut entry: impl FnMut() -> T,
    ) -> Self {
        assert!(!std::mem::needs_drop::<T>() || cfg!(loom));
        for index in 0..length {
            // SAFETY: `index < length`, within what the caller vouches for.
            let place = unsafe { first.add(index) };
            // SAFETY: as above; nobody else accesses it.
            unsafe { place.write(entry()) };
        }
        Self {
            entries: NonNull::slice_from_raw_parts(first, length),
            on_heap: false,
        }
    }
}

impl<T> Table<T> {
    /// A table in memory of somebody else that is left as it is, so that nothing is touched before it is used.
    ///
    /// # Safety
    /// As for [`Self::in_region`]; and the memory is zeroed, and a `T` of zero bytes is valid.
    pub(super) unsafe fn zeroed_in_region(first: NonNull<T>, length: usize) -> Self {
        assert!(!std::mem::needs_drop::<T>() || cfg!(loom));
        Self {
            entries: NonNull::slice_from_raw_parts(first, length),
            on_heap: false,
        }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the constructors filled the entries or were told that zeros do; they stay valid as long as the table and are never lent mutably.
        unsafe { self.entries.as_ref() }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        if self.on_heap {
            // SAFETY: leaked from a box in `on_heap`, and given back once.
            drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_made_where_they_were_asked_for() {
        let mut next = 0_u64;
        let mut count = || {
            next += 1;
            next
        };
        assert_eq!(*Table::on_heap(3, &mut count), [1, 2, 3]);
        let mut memory = [0_u64; 4];
        let first = NonNull::from(&mut memory[0]);
        // SAFETY: the array outlives the table and is not touched meanwhile.
        let table = unsafe { Table::in_region(first, 4, &mut count) };
        assert_eq!(*table, [4, 5, 6, 7]);
        drop(table);
        // SAFETY: as above; any bytes are a `u64`.
        let table = unsafe { Table::zeroed_in_region(first, 3) };
        assert_eq!(*table, [4, 5, 6]);
    }
}
