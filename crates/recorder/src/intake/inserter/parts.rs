//! What the inserters of a recorder have in common.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_capture::clock::duration_ns;
use retroscope_packet::LinkType;

use super::shards::ShardHash;
use crate::{
    control::common::RecorderShared,
    intake::{capture_filter::CaptureFilter, inline::InlineParts, shedding::SheddingConfig},
    start::config::Config,
};

/// How long an inserter waits for its source while anybody needs its watermark or its counters: they are at most this old then.
pub(super) const SOURCE_WAIT: Duration = Duration::from_millis(8);

/// An interface of a queue: its ring-wide identifier and its link type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownInterface {
    pub(super) id: u16,
    pub(super) link_type: LinkType,
}

/// What the inserters of a recorder have in common.
#[derive(Debug, Clone)]
pub(crate) struct InserterParts {
    pub(crate) common: Arc<RecorderShared>,
    /// Bytes kept of each frame; 0: all that were captured.
    pub(crate) snaplen: u32,
    /// `-f`, if any. In a box, so that one is cheaply lent to the queues of many files.
    pub(crate) filter: Option<Box<CaptureFilter>>,
    /// What is kept of flows, where not all is.
    pub(crate) classes: Option<SheddingConfig>,
    /// `-c`: packets still to be stored, shared by all inserters.
    pub(crate) remaining: Option<Arc<AtomicI64>>,
    /// Live, where the inserters may have shards.
    pub(crate) inline: Option<InlineParts>,
    /// From files, what gives packets a shard; live it is 0.
    pub(crate) shards: Option<ShardHash>,
    /// How late a packet may be whose stamp is not of the system's clock, ns.
    pub(crate) hold_ns: i64,
    /// `--duration`, ns: live of the monotonic clock, offline of packet time.
    pub(crate) duration_ns: Option<i64>,
}

impl InserterParts {
    /// Parts for an inserter with this configuration, without filters and shards.
    pub(crate) fn new(config: &Config, common: Arc<RecorderShared>) -> Self {
        let count = config.count.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        Self {
            common,
            snaplen: config.snaplen,
            filter: None,
            classes: None,
            remaining: count.map(|n| Arc::new(AtomicI64::new(n))),
            inline: None,
            shards: None,
            hold_ns: duration_ns(config.hold),
            duration_ns: config.duration.map(duration_ns),
        }
    }

    /// Takes up to `wanted` packets off what `-c` still lets in, and returns how many there were.
    pub(super) fn reserve(&self, wanted: usize) -> usize {
        let Some(remaining) = &self.remaining else {
            return wanted;
        };
        let taken = i64::try_from(wanted).unwrap_or(i64::MAX);
        // Relaxed: nothing but the number is shared. Below 0 it says by how much more was wanted.
        let before = remaining.fetch_sub(taken, Ordering::Relaxed);
        usize::try_from(before.clamp(0, taken)).unwrap_or(0)
    }

    /// Whether `-c` lets nothing in any more.
    pub(super) fn is_spent(&self) -> bool {
        // Relaxed: as above.
        let remaining = self.remaining.as_ref();
        remaining.is_some_and(|remaining| remaining.load(Ordering::Relaxed) <= 0)
    }
}
