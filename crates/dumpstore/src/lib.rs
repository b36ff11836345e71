//! The directory of dumps: listing, naming, holding and deleting dumps.
//!
//! | module | contents |
//! |---|---|
//! | `disk` | the file system as a trait, which tests replace; `direct` bypasses the page cache |
//! | `directory` | one directory: making it, its names, room on a full disk |
//! | `template` | the names of files |
//! | `store` | the dumps: the dump-keeper deletes and holds dumps, the dump-lister lists dumps |
//! | `time` | time stamps in names, in sidecars and for users |
//!
//! The crate knows nothing of packets: the recorder writes the files. The crate reports deleted
//! dumps and messages for the user to a [`StoreListener`](store::StoreListener).

#[cfg(test)]
extern crate self as retroscope_dumpstore;

pub mod direct;
pub mod directory;
pub mod disk;
pub mod store;
pub mod template;
#[cfg(test)]
mod tests;
pub mod time;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the lock.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
