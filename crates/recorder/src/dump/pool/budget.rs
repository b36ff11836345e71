//! The bytes of all sinks that are encoded and not written yet, and what they may take.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that an open block counts at once, at least: few packets touch what threads share.
const COUNTED_BYTES: usize = 8 * 1024;

/// What all sinks of a pool share and count. Each number stands alone: only the dumper adds bytes, and asks before.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) budget_bytes: usize,
    /// Descriptors that may stay open between two pieces of work.
    pub(super) files_kept: usize,
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) files: AtomicUsize,
}

impl Limits {
    /// Whether a queue of so many bytes may grow by so many: to half of what is left. One packet may always come that there is
    /// space for at all.
    pub(super) fn has_room(&self, queued: usize, more: usize) -> bool {
        let used = self.queued.load(Ordering::Relaxed);
        let left = self.budget_bytes.saturating_sub(used);
        more <= left && (queued == 0 || queued + more <= left / 2)
    }
}

/// Bytes of a sink that count against the budget until this is dropped.
#[derive(Debug)]
pub(in crate::dump) struct Charge {
    bytes: usize,
    /// Bytes of the sink.
    queued: Arc<AtomicUsize>,
    limits: Arc<Limits>,
}

impl Charge {
    /// No bytes of the sink that counts here.
    pub(super) fn new(queued: &Arc<AtomicUsize>, limits: &Arc<Limits>) -> Self {
        Self {
            bytes: 0,
            queued: Arc::clone(queued),
            limits: Arc::clone(limits),
        }
    }

    /// Further bytes of the same sink.
    pub(super) fn with(&self, bytes: usize) -> Self {
        let mut other = Self::new(&self.queued, &self.limits);
        other.set(bytes);
        other
    }

    /// Counts so many bytes.
    pub(super) fn set(&mut self, bytes: usize) {
        for count in [&*self.queued, &*self.limits.queued] {
            count.fetch_add(bytes, Ordering::Relaxed);
            count.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Counts at least so many bytes, in steps of [`COUNTED_BYTES`].
    pub(super) fn cover(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.set(bytes + COUNTED_BYTES);
        }
    }

    /// Whether the sink may have so many more bytes.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        self.limits.has_room(queued, more)
    }

    /// Whether the sink has other bytes than these.
    pub(super) fn is_followed(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}
