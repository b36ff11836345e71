//! The settings and state that all inserters of a recorder share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_capture::clock::duration_ns;
use retroscope_packet::LinkType;

use super::shards::{ShardHash, StoredShards};
use crate::{
    control::common::RecorderShared,
    intake::{capture_filter::CaptureFilter, inline::InlineParts, shedding::SheddingConfig},
    start::config::Config,
};

/// Longest wait that an inserter grants its source while the inserter's watermark or counters are
/// needed.
pub(super) const SOURCE_WAIT: Duration = Duration::from_millis(8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownInterface {
    pub(super) id: u16,
    pub(super) link_type: LinkType,
}

#[derive(Debug, Clone)]
pub(crate) struct InserterParts {
    pub(crate) common: Arc<RecorderShared>,
    /// Most bytes kept of each frame; 0: all captured bytes, up to the ring's limit of 256 KiB.
    pub(crate) snaplen: u32,
    /// The capture filter (`-f`), if any. Boxed, so that one filter is cheaply lent to the queues
    /// of many files.
    pub(crate) filter: Option<Box<CaptureFilter>>,
    /// The configuration of shedding; `None`: all packets of flows are kept.
    pub(crate) classes: Option<SheddingConfig>,
    /// `-c`: packets still to be stored, shared by all inserters.
    pub(crate) remaining: Option<Arc<AtomicI64>>,
    /// Live: the parts that an inserter needs to run a shard. `None`: inserters run no shards.
    pub(crate) inline: Option<InlineParts>,
    /// Assigns packets to shards. `None`: the shard number is 0.
    pub(crate) shards: Option<ShardHash>,
    pub(crate) stored_shards: Option<Arc<StoredShards>>,
    /// How late a packet may be if its stamp is not from the system's clock, ns.
    pub(crate) hold_ns: i64,
    /// `--duration`, ns: live of the monotonic clock, offline of packet time.
    pub(crate) duration_ns: Option<i64>,
}

impl InserterParts {
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
            stored_shards: None,
            hold_ns: duration_ns(config.hold),
            duration_ns: config.duration.map(duration_ns),
        }
    }

    /// Takes up to `wanted` packets from the number that `-c` still admits. Returns the number
    /// taken.
    pub(super) fn reserve(&self, wanted: usize) -> usize {
        let Some(remaining) = &self.remaining else {
            return wanted;
        };
        let taken = i64::try_from(wanted).unwrap_or(i64::MAX);
        // Relaxed: only the number is shared. A negative number says how many packets too many were
        // requested.
        let before = remaining.fetch_sub(taken, Ordering::Relaxed);
        usize::try_from(before.clamp(0, taken)).unwrap_or(0)
    }

    /// Whether `-c` admits no more packets.
    pub(super) fn is_spent(&self) -> bool {
        let remaining = self.remaining.as_ref();
        remaining.is_some_and(|remaining| remaining.load(Ordering::Relaxed) <= 0)
    }
}
