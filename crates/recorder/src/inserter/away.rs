//! Stretches of time in which an interface is down or removed.
//!
//! Nothing is received then, and nobody knows what passed the wire. They are told to the log of losses as they go on, so that a
//! dump whose window ends meanwhile knows.

use crate::counters::{INTERFACE_DOWN, LossEvent, LossLog, QueueCounters};

/// Follows the interface of one source.
#[derive(Debug)]
pub(super) struct Away {
    source: usize,
    /// While it is away: up to when that was told, ns since the epoch.
    told_ns: Option<i64>,
}

impl Away {
    pub(super) fn new(source: usize) -> Self {
        Self {
            source,
            told_ns: None,
        }
    }

    /// It went away after `known_ns`, when it was last known to receive.
    pub(super) fn begin(&mut self, known_ns: i64, counters: &QueueCounters) {
        if self.told_ns.is_none() {
            self.told_ns = Some(known_ns);
            counters.add_gap();
        }
    }

    /// If it is away, it still is at `now_ns`.
    pub(super) fn tell(&mut self, now_ns: i64, counters: &QueueCounters, log: &LossLog) {
        let Some(told_ns) = self.told_ns.as_mut().filter(|told_ns| **told_ns < now_ns) else {
            return;
        };
        log.push(LossEvent {
            source: self.source,
            cause: INTERFACE_DOWN,
            from_ns: *told_ns,
            to_ns: now_ns,
            packets: 0,
        });
        counters.lengthen_gap(now_ns - *told_ns);
        *told_ns = now_ns;
    }

    /// It went away after `known_ns`, or before, and nothing of it will be recorded any more.
    pub(super) fn for_good(&mut self, known_ns: i64, counters: &QueueCounters, log: &LossLog) {
        self.begin(known_ns, counters);
        log.push(LossEvent {
            source: self.source,
            cause: INTERFACE_DOWN,
            from_ns: self.told_ns.take().unwrap_or(known_ns),
            to_ns: i64::MAX,
            packets: 0,
        });
    }

    /// It receives again, from `now_ns` on at the latest.
    pub(super) fn end(&mut self, now_ns: i64, counters: &QueueCounters, log: &LossLog) {
        self.tell(now_ns, counters, log);
        self.told_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_told_as_it_goes_on() {
        let (log, counters) = (LossLog::default(), QueueCounters::new());
        let mut away = Away::new(3);
        away.tell(50, &counters, &log);
        assert_eq!(log.within(0, 100), []);
        away.begin(100, &counters);
        // It went down first and was removed then: one gap.
        away.begin(120, &counters);
        away.tell(150, &counters, &log);
        let told = log.within(0, 1000);
        assert_eq!(
            (told[0].source, told[0].from_ns, told[0].to_ns),
            (3, 100, 150)
        );
        away.end(200, &counters, &log);
        away.tell(300, &counters, &log);
        let told = log.within(0, 1000);
        assert_eq!((told[0].from_ns, told[0].to_ns), (100, 200));
        assert_eq!(counters.gaps(), (1, 100));
        assert_eq!(log.within(201, 1000), []);
        away.begin(400, &counters);
        // The clock was set back.
        away.end(390, &counters, &log);
        assert_eq!(counters.gaps(), (2, 100));
        away.for_good(500, &counters, &log);
        assert_eq!(log.within(10_000, 10_000).len(), 1);
        assert_eq!(counters.gaps(), (3, 100), "its length is not known yet");
    }
}
