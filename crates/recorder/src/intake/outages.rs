//! Outages: the interface of a source is down, removed or left to the host, or its engine failed.
//!
//! The number of packets that an outage loses is unknown. Outages are logged while they last, so
//! that a dump whose window ends meanwhile reports the outage. A source of which a part is lost for
//! good counts as away until the recorder ends.

use std::sync::Mutex;

use crate::{
    control::{lock, ring_time::Moment},
    intake::counters::{INTERFACE_DOWN, LossLog},
};

/// Tracks the interface of one source, for all queues of the source.
#[derive(Debug)]
pub(crate) struct OutageTracker {
    source: usize,
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    gaps: u64,
    /// Total reported time of outages, ns, without the time of [`InterfacePresence::ForGood`].
    ns: u64,
    now: InterfacePresence,
    /// Whether [`OutageTracker::is_first_whole`] was called.
    is_total_loss_reported: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum InterfacePresence {
    #[default]
    Here,
    /// Away. The outage is logged up to this ring time, ns.
    Away { reported_ns: i64 },
    /// Away until the recorder ends. The time after `mono_ns` of the monotonic clock is not in
    /// `ns`.
    ForGood { mono_ns: i64 },
}

impl OutageState {
    fn begin(&mut self, known_ns: i64) {
        if matches!(self.now, InterfacePresence::Here) {
            self.now = InterfacePresence::Away {
                reported_ns: known_ns,
            };
            self.gaps += 1;
        }
    }
}

impl OutageTracker {
    pub(crate) fn new(source: usize) -> Self {
        Self {
            source,
            state: Mutex::default(),
        }
    }

    /// The interface went away after `known_ns`, when it was last known to receive.
    pub(crate) fn begin(&self, known_ns: i64) {
        lock(&self.state).begin(known_ns);
    }

    /// Logs the outage up to `now_ns`, if there is an outage.
    pub(crate) fn report(&self, now_ns: i64, log: &LossLog) {
        self.report_with(&mut lock(&self.state), now_ns, log);
    }

    /// At least a part of the interface's packets will never be recorded again. Unless the
    /// interface was away already, it went away after `known_ns`. Returns whether the final loss is
    /// new.
    pub(crate) fn for_good(&self, known_ns: i64, now: Moment, log: &LossLog) -> bool {
        let mut state = lock(&self.state);
        state.begin(known_ns);
        self.report_with(&mut state, now.ring_ns, log);
        let InterfacePresence::Away { reported_ns } = state.now else {
            return false;
        };
        log.push(
            0,
            self.source,
            INTERFACE_DOWN,
            [(reported_ns, i64::MAX); 2],
            0,
        );
        state.now = InterfacePresence::ForGood {
            mono_ns: now.mono_ns,
        };
        true
    }

    /// The whole source is no longer recorded. Returns whether that is new.
    pub(crate) fn is_first_whole(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).is_total_loss_reported, true)
    }

    /// The interface receives again, from `now_ns` on at the latest.
    pub(crate) fn end(&self, now_ns: i64, log: &LossLog) {
        let mut state = lock(&self.state);
        self.report_with(&mut state, now_ns, log);
        if matches!(state.now, InterfacePresence::Away { .. }) {
            state.now = InterfacePresence::Here;
        }
    }

    /// The number of outages and their total time, ns. If a part of the source is lost for good,
    /// the time up to `mono_ns` of the monotonic clock counts.
    pub(crate) fn totals(&self, mono_ns: i64) -> (u64, u64) {
        let state = lock(&self.state);
        let more_ns = match state.now {
            InterfacePresence::ForGood { mono_ns: since_ns } => mono_ns.saturating_sub(since_ns),
            _ => 0,
        };
        let more_ns = u64::try_from(more_ns).unwrap_or(0);
        (state.gaps, state.ns.saturating_add(more_ns))
    }

    fn report_with(&self, state: &mut OutageState, now_ns: i64, log: &LossLog) {
        let InterfacePresence::Away { reported_ns } = state.now else {
            return;
        };
        let Some(ns) = now_ns.checked_sub(reported_ns).filter(|ns| *ns > 0) else {
            return;
        };
        log.push(
            0,
            self.source,
            INTERFACE_DOWN,
            [(reported_ns, now_ns); 2],
            0,
        );
        state.ns = state.ns.saturating_add(ns.unsigned_abs());
        state.now = InterfacePresence::Away {
            reported_ns: now_ns,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_told_as_it_goes_on() {
        let (log, away) = (LossLog::default(), OutageTracker::new(3));
        away.report(50, &log);
        assert_eq!(log.within(0, 100), []);
        away.begin(100);
        // Down first, then removed: one outage.
        away.begin(120);
        away.report(150, &log);
        let told = log.within(0, 1000);
        assert_eq!((told[0].source, told[0].spans_ns[0]), (3, (100, 150)));
        away.end(200, &log);
        away.report(300, &log);
        let told = log.within(0, 1000);
        assert_eq!(told[0].spans_ns[0], (100, 200));
        assert_eq!(away.totals(5000), (1, 100));
        assert_eq!(log.within(201, 1000), []);
        away.begin(400);
        // The clock was set back.
        away.end(390, &log);
        assert_eq!(away.totals(5000), (2, 100));
    }

    #[test]
    fn what_is_gone_for_good_stays_away_to_the_end() {
        let (log, away) = (LossLog::default(), OutageTracker::new(0));
        away.begin(100);
        let now = |ring_ns, mono_ns| Moment {
            ring_ns,
            mono_ns,
            offset_ns: 0,
        };
        assert!(away.for_good(130, now(150, 7000), &log));
        assert!(!away.for_good(140, now(160, 7010), &log));
        away.begin(170);
        away.end(180, &log);
        away.report(190, &log);
        assert_eq!(away.totals(7000), (1, 50));
        assert_eq!(away.totals(7900), (1, 950));
        assert_eq!(log.within(0, 99), []);
        assert_eq!(log.within(100, 149).len(), 1);
        assert_eq!(log.within(10_000, 10_000).len(), 1);
    }
}
