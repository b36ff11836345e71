//! The time range in the ring: a trigger for earlier packets would dump nothing.

use crate::Empty;

/// The time range in the ring, ns of ring time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingExtent {
    /// When the recording began.
    pub(crate) begun_ns: i64,
    /// The oldest packet in the ring; `None`: the ring is empty.
    pub(crate) oldest_ns: Option<i64>,
    /// The newest packet that was overwritten; `None`: nothing was overwritten.
    pub(crate) evicted_ns: Option<i64>,
}

impl RingExtent {
    /// Why the ring has nothing up to `end_ns`. `None`: the ring may have packets, or nothing was
    /// received at that time.
    pub(crate) fn gone(&self, end_ns: i64) -> Option<Empty> {
        if self.oldest_ns.is_some_and(|oldest_ns| oldest_ns <= end_ns) {
            return None;
        }
        if end_ns < self.begun_ns {
            let ns = self.begun_ns.abs_diff(end_ns);
            return Some(Empty::NotRecorded { ns });
        }
        let evicted_ns = self.evicted_ns.filter(|evicted_ns| end_ns <= *evicted_ns)?;
        let ns = self.oldest_ns.unwrap_or(evicted_ns).abs_diff(end_ns);
        Some(Empty::AgedOut { ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_from_what_never_came() {
        let held = |oldest_ns, evicted_ns| RingExtent {
            begun_ns: 100,
            oldest_ns,
            evicted_ns,
        };
        let before = Some(Empty::NotRecorded { ns: 10 });
        for held in [
            held(None, None),
            held(Some(120), None),
            held(Some(300), Some(200)),
        ] {
            assert_eq!(held.gone(90), before);
        }
        // A packet of another clock, from before the recording began.
        assert_eq!(held(Some(80), None).gone(90), None);
        // The link was silent: nothing was overwritten, and the ring is empty or has later packets.
        assert_eq!(held(None, None).gone(100), None);
        assert_eq!(held(Some(300), None).gone(150), None);
        let gone = |end_ns| held(Some(300), Some(200)).gone(end_ns);
        assert_eq!(gone(200), Some(Empty::AgedOut { ns: 100 }));
        assert_eq!((gone(201), gone(300)), (None, None));
        // The ring has a packet that is older than the newest overwritten packet.
        assert_eq!(held(Some(180), Some(200)).gone(190), None);
    }
}
