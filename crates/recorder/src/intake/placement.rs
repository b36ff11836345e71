//! The rule that decides where packets are looked at: in their inserter's thread, or in one that reads the ring.
//!
//! Inline costs least: the frames are in cache, and no other thread is woken. R-Scope's lemma 1 (section 2.1) says when it is the better
//! design, from rates that are known ahead. Here nothing is: an inserter looks itself as long as it keeps up, and where it does not and a
//! CPU is free, a thread takes over, with the ring as its long queue. `docs/analyzers.md` holds the rule beside the lemma.
//!
//! **Too much waits** where the source has not run dry for [`WAITING_NS_MAX`], or more than its part of the ring was stored since it did. An engine
//! that rests, so as to be woken less often, has all that came meanwhile to give behind it. That is no overload: the time as long as the rest that
//! follows it does not count. An inserter that needs the part `u` of its time catches up with a rest `r` in `r * u / (1 - u)`, so a rest alone
//! looks like too much above `(r + 5) / (2 * r + 5)` of its time: 55 % behind the longest rest, of 24 ms, 69 % behind one of 4 ms. With 5 ms alone
//! that were 17 % and 56 %. Half of an engine's buffer may fill during a rest at the link's full speed; the time that does not count is no longer.
//!
//! **Back** it comes where all that was stored has been read, the source has run dry since, and for [`HOLD_NS`] not too much was waiting.
//! So there is one change in each direction a second at most.
//!
//! Times and counts come from the caller: there is no clock here, and no thread.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use retroscope_capture::REST_NS_MAX;

use crate::start::config::Analyzers;

/// More time than this without running dry is too much, ns, beside what follows a rest.
pub(crate) const WAITING_NS_MAX: i64 = 5_000_000;
/// More than this part of the ring, divided by the inserters, is too much: one in 16.
const RING_SHARE: u64 = 16;
/// How long an inserter must not have been at its limit before packets come back to it, ns.
pub(crate) const HOLD_NS: i64 = 1_000_000_000;

/// What there is room for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnalysisResources {
    /// CPUs that this process may run on.
    pub(crate) cpus: usize,
    /// Threads that look at what inserters leave to them.
    pub(crate) threads: usize,
    /// Live queues; each has an inserter.
    pub(crate) inserters: usize,
    /// Bytes of the ring.
    pub(crate) ring_bytes: u64,
}

/// What the inserters of a recording have in common.
#[derive(Debug)]
pub(crate) struct PlacementShared {
    analyzers: Analyzers,
    room: AnalysisResources,
    /// Inserters that are at their limit, or were when they handed over. Each counts itself.
    at_limit: AtomicUsize,
}

/// Where the packets of one inserter are looked at. See the module.
#[derive(Debug)]
pub(crate) struct ShardPlacement {
    placing: Arc<PlacementShared>,
    is_inline: bool,
    /// Whether the source was dry when last told, and then at which time of the monotonic clock, ns.
    is_dry: bool,
    dry_ns: i64,
    /// From here on it should have run dry: when it woke from being dry, and as long after it as the rest was.
    due_ns: i64,
    /// Bytes stored since then.
    bytes: u64,
    /// When it was last at its limit.
    limit_ns: i64,
    /// Whether it has run dry since a thread took over, and the time to hold on is over.
    may_return: bool,
    /// Whether it is counted.
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

    /// One in so many bytes of the ring, divided by the inserters.
    pub(crate) fn part_of_ring(&self, share: u64) -> u64 {
        self.room.ring_bytes / (share * self.room.inserters as u64).max(1)
    }

    /// Whether each inserter at its limit has a CPU, and each thread that looks for one of them.
    fn is_cpu_free(&self) -> bool {
        // Relaxed: a number that stands for itself. Of two that count themselves at once, one at least sees both.
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

    /// The source was asked until `now_ns` of the monotonic clock. If it was dry before, it rested: since then, but no longer than
    /// its first packet `lay_ns` there, as far as its stamp tells. A link that was silent was no rest.
    pub(crate) fn observe_wait(&mut self, now_ns: i64, queueing_delay_ns: i64) {
        if self.is_dry {
            let rest_ns = now_ns.saturating_sub(self.dry_ns);
            self.due_ns = now_ns + rest_ns.min(queueing_delay_ns).clamp(0, REST_NS_MAX);
        }
    }

    /// So many bytes were stored since the last call of [`told`](Self::told).
    pub(crate) fn stored(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The source `is_dry` or not at `now_ns` of the monotonic clock.
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

    /// Whether the inserter looks at what it stores next, where a thread `has_read` all before it.
    pub(crate) fn is_inline(&mut self, has_read: bool) -> bool {
        if self.may_return && has_read {
            self.may_return = false;
            self.is_inline = true;
            self.count(false);
        }
        self.is_inline
    }

    /// Counts this inserter among those at their limit, or no more.
    fn count(&mut self, is_at_limit: bool) {
        if is_at_limit != self.is_counted {
            self.is_counted = is_at_limit;
            // Relaxed: as where it is read.
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
