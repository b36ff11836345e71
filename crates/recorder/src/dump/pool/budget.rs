//! The budget for bytes that are encoded and not yet written, or not yet in the digests.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::dump::{block::SpareBlocks, output::EncodedPiece};

/// An open block is counted with this many bytes in advance, so that few packets touch shared
/// counters.
const COUNTED_BYTES: usize = 8 * 1024;

/// Limits and counters of all sinks of a pool. Only the dumper adds bytes.
#[derive(Debug)]
pub(super) struct PoolLimits {
    pub(super) budget_bytes: usize,
    /// Descriptors that may stay open between two pieces of work.
    pub(super) files_kept: usize,
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) files: AtomicUsize,
    pub(super) spares: SpareBlocks,
}

impl PoolLimits {
    /// Whether a queue of `queued` bytes may grow by `more`: to half of the rest of the budget. An
    /// empty queue may always take a packet that fits into the rest.
    pub(super) fn has_room(&self, queued: usize, more: usize) -> bool {
        let used = self.queued.load(Ordering::Relaxed);
        let left = self.budget_bytes.saturating_sub(used);
        more <= left && (queued == 0 || queued + more <= left / 2)
    }
}

/// Bytes of a sink that count against the budget until the charge is dropped.
#[derive(Debug)]
pub(in crate::dump) struct Charge {
    bytes: usize,
    /// Counter for all bytes of the sink.
    queued: Arc<AtomicUsize>,
    limits: Arc<PoolLimits>,
}

impl Charge {
    /// A charge of 0 bytes for the sink with the counter `queued`.
    pub(super) fn new(queued: &Arc<AtomicUsize>, limits: &Arc<PoolLimits>) -> Self {
        Self {
            bytes: 0,
            queued: Arc::clone(queued),
            limits: Arc::clone(limits),
        }
    }

    pub(super) fn with(&self, bytes: usize) -> Self {
        let mut other = Self::new(&self.queued, &self.limits);
        other.set(bytes);
        other
    }

    pub(super) fn set(&mut self, bytes: usize) {
        for count in [&*self.queued, &*self.limits.queued] {
            count.fetch_add(bytes, Ordering::Relaxed);
            count.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Counts at least `bytes`.
    pub(super) fn cover(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.set(bytes + COUNTED_BYTES);
        }
    }

    /// Whether the sink may have `more` bytes in addition.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        self.limits.has_room(queued, more)
    }

    /// Whether bytes of the sink were handed over and are not yet written, or not yet in the
    /// digests.
    pub(super) fn is_followed(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A piece of a file that both lanes of a sink share.
#[derive(Debug)]
pub(in crate::dump) struct Load {
    pub(super) piece: EncodedPiece,
    pub(super) charge: Charge,
}

impl Drop for Load {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.piece.block);
        self.charge.limits.spares.put(block);
    }
}
