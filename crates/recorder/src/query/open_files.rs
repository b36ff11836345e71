//! Descriptors that queries of this process use for dumps.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::{Resource, getrlimit};

/// Files that each query may have open, whatever other queries have open.
const OPEN_ALWAYS: usize = 64;
/// A query may open more than [`OPEN_ALWAYS`] files only while all queries of this process have
/// fewer files open than the limit on the process's descriptors, divided by `SHARE`.
const SHARE: u64 = 4;
/// Number of files of dumps that queries have open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Counts an open file in [`OPEN`] until this object is dropped.
#[derive(Debug)]
pub(super) struct OpenFile;

impl OpenFile {
    /// Counts one more file for a query that has `own` files open. `None`: too many files are open.
    pub(super) fn new(own: usize) -> Option<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX);
        let more = Self;
        let all = OPEN.fetch_add(1, Relaxed);
        (own < OPEN_ALWAYS || all < share).then_some(more)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}
