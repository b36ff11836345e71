//! The rule that decides where packets are analyzed: in the inserter's thread, or in a thread that
//! reads the ring.
//!
//! Inline usually costs least: frames are in the cache, and no other thread is woken. R-Scope's
//! lemma 1 (section 2.1) says when inline is better, from rates that are known in advance. Here no
//! rate is known. So by default an inserter analyzes its packets as long as it keeps up. If it does
//! not keep up and a CPU is free, a thread takes over. `docs/dev/analyzers.md` compares the rule
//! with the lemma.
//!
//! **Overload.** An inserter is *dry* when its source has no packets and no packets are left for
//! the inserter to analyze. An inserter is overloaded if it was not dry for more than
//! [`WAITING_NS_MAX`], or has stored more than a 16th of its share of the ring since it was dry. It
//! is also overloaded if its source lost packets during a long analysis.
//!
//! An engine that rests, to be woken less often, delivers many packets at once after each rest.
//! That is no overload, so a time as long as the rest does not count after the rest. An inserter
//! that needs the part `u` of its time catches up with a rest `r` in the time `r * u / (1 - u)`. So
//! a rest alone looks like overload if `u` is above `(r + 5) / (2 * r + 5)`, with `r` in ms. That
//! is 55 % after the longest rest, of 24 ms, and 69 % after a rest of 4 ms.
//!
//! **Return.** The shard returns to the inserter when a thread has read all stored packets, and the
//! inserter was dry after [`HOLD_NS`] without overload. So there is at most one change in each
//! direction a second.
//!
//! Times and counts come from the caller: this module has no clock and no thread.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use retroscope_capture::REST_NS_MAX;

use crate::start::config::Analyzers;

/// An inserter is overloaded if it is not dry for longer than this, ns. The time begins at
/// `ShardPlacement::due_ns`.
pub(crate) const WAITING_NS_MAX: i64 = 5_000_000;
/// An inserter is overloaded if `ShardPlacement::bytes` exceeds one part in 16 of its share of the
/// ring.
const RING_SHARE: u64 = 16;
/// How long an inserter must not have been overloaded before its shard returns, ns.
pub(crate) const HOLD_NS: i64 = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct AnalysisResources {
    /// CPUs that this process may run on.
    pub(crate) cpus: usize,
    /// Threads that analyze the packets that inserters do not analyze.
    pub(crate) threads: usize,
    /// Inserters that may analyze, each of one live queue.
    pub(crate) inserters: usize,
    /// Bytes of the ring.
    pub(crate) ring_bytes: u64,
}

/// The state that the inserters of a recording share.
#[derive(Debug)]
pub(crate) struct PlacementShared {
    analyzers: Analyzers,
    room: AnalysisResources,
    /// Number of inserters with `ShardPlacement::is_counted`.
    at_limit: AtomicUsize,
}

/// Decides where the packets of one inserter are analyzed.
#[derive(Debug)]
pub(crate) struct ShardPlacement {
    placing: Arc<PlacementShared>,
    is_inline: bool,
    /// Whether the inserter was dry at the last call of [`Self::observe_drain`]. `dry_ns`:
    /// monotonic time of the last call for which that held, ns.
    is_dry: bool,
    dry_ns: i64,
    /// The time in which the inserter is not dry counts from this monotonic time on, ns.
    due_ns: i64,
    /// Bytes stored since the last [`Self::observe_drain`] that was dry or before `due_ns`.
    bytes: u64,
    /// Time of the last overload, ns.
    limit_ns: i64,
    /// While a thread analyzes: whether the inserter was dry after [`HOLD_NS`] without overload,
    /// and there was no overload since.
    may_return: bool,
    /// Whether `at_limit` includes this inserter.
    is_counted: bool,
}

impl PlacementShared {
    pub(crate) fn new(analyzers: Analyzers, room: AnalysisResources) -> Arc<Self> {
        Arc::new(Self {
            analyzers,
            room,
            at_limit: AtomicUsize::new(0),
        })
    }

    /// One part in `share` of the ring, divided by the inserters; bytes.
    pub(crate) fn part_of_ring(&self, share: u64) -> u64 {
        self.room.ring_bytes / (share * self.room.inserters as u64).max(1)
    }

    /// Whether there is a CPU for each overloaded inserter and for each thread that takes over.
    fn is_cpu_free(&self) -> bool {
        // Relaxed: a single number. If two inserters count themselves at the same time, at least
        // one sees both counts.
        let at_limit = self.at_limit.load(Relaxed);
        at_limit + at_limit.min(self.room.threads) <= self.room.cpus
    }
}

impl ShardPlacement {
    pub(crate) fn new(placing: Arc<PlacementShared>) -> Self {
        Self {
            is_inline: !matches!(placing.analyzers, Analyzers::Threads(_)),
            placing,
            is_dry: true,
            dry_ns: i64::MIN,
            due_ns: i64::MIN,
            bytes: 0,
            limit_ns: i64::MIN,
            may_return: false,
            is_counted: false,
        }
    }

    /// The source was polled until `now_ns` of the monotonic clock. If the inserter was dry before,
    /// the source's rest is the time since then. The rest is at most [`REST_NS_MAX`], and at most
    /// the queueing delay that the stamp of the first packet shows: silence on the link is no rest.
    pub(crate) fn observe_wait(&mut self, now_ns: i64, queueing_delay_ns: i64) {
        if self.is_dry {
            let rest_ns = now_ns.saturating_sub(self.dry_ns);
            self.due_ns = now_ns + rest_ns.min(queueing_delay_ns).clamp(0, REST_NS_MAX);
        }
    }

    pub(crate) fn stored(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Decides again where packets are analyzed. `is_dry`: at `now_ns` of the monotonic clock, the
    /// source is dry and this thread has no packets to analyze.
    pub(crate) fn observe_drain(&mut self, is_dry: bool, now_ns: i64) {
        self.is_dry = is_dry;
        if is_dry {
            self.dry_ns = now_ns;
        }
        if is_dry || now_ns < self.due_ns {
            self.bytes = 0;
        }
        let late_ns = now_ns.saturating_sub(self.due_ns);
        let is_at_limit = !is_dry
            && (late_ns > WAITING_NS_MAX || self.bytes > self.placing.part_of_ring(RING_SHARE));
        if is_at_limit {
            self.limit_ns = now_ns;
        }
        if self.placing.analyzers != Analyzers::Auto {
            return;
        }
        if self.is_inline {
            self.count(is_at_limit);
            self.is_inline = !is_at_limit || !self.placing.is_cpu_free();
            self.may_return = false;
        } else {
            let is_over = now_ns.saturating_sub(self.limit_ns) >= HOLD_NS;
            self.may_return = is_over && (is_dry || self.may_return);
        }
    }

    /// At `now_ns` of the monotonic clock: the source lost packets while the analysis kept the
    /// inserter busy. This is an overload. Returns whether the inserter must analyze all the same.
    pub(crate) fn observe_overlong(&mut self, now_ns: i64) -> bool {
        self.limit_ns = now_ns;
        if self.placing.analyzers == Analyzers::Auto && self.is_inline {
            self.count(true);
            self.is_inline = !self.placing.is_cpu_free();
            self.may_return = false;
        }
        self.is_inline
    }

    /// Whether the inserter analyzes the next packets. `has_read`: all earlier packets were read,
    /// so the shard may return to the inserter.
    pub(crate) fn is_inline(&mut self, has_read: bool) -> bool {
        if self.may_return && has_read {
            self.may_return = false;
            self.is_inline = true;
            self.count(false);
        }
        self.is_inline
    }

    fn count(&mut self, is_at_limit: bool) {
        if is_at_limit != self.is_counted {
            self.is_counted = is_at_limit;
            // Relaxed: see `is_cpu_free`.
            match is_at_limit {
                true => self.placing.at_limit.fetch_add(1, Relaxed),
                false => self.placing.at_limit.fetch_sub(1, Relaxed),
            };
        }
    }
}

impl Drop for ShardPlacement {
    fn drop(&mut self) {
        self.count(false);
    }
}

#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
