//! Converts stamps of the system's clock to ring time.
//!
//! The stamps show which frames of a burst were stamped before a clock step. With the right offset,
//! stamps are a little earlier than now. With the other offset, they are off by the size of the
//! step.

use retroscope_capture::FrameMeta;

use crate::control::ring_time::Moment;

/// For this time after a step, ns, frames may still arrive that were stamped before the step.
const STEP_SETTLE_NS: i64 = 2_000_000_000;
/// Largest plausible age of an engine's statement about the present, ns.
const FRESH_NS: i64 = 1_000_000_000;
/// A stamp or a statement may be later than `now` by at most this time, ns: two readings of a clock
/// are at different moments.
const AHEAD_NS: i64 = 1_000_000;
/// Largest assumed age of a frame of a source that never runs dry, ns.
const FRAME_AGE_NS_MAX: i64 = 10_000_000_000;
/// If the ring did not follow a step, the step is tried again after this time, ns.
const STEP_RETRY_NS: i64 = 100_000_000;

/// The clock offset of one queue's frames.
#[derive(Debug)]
pub(super) struct HostStamps {
    /// The offset of the frames that are being stored, ns.
    pub(super) applied_ns: i64,
    /// The offset before the last step, ns, and until when a frame may still have this offset, ns
    /// of the monotonic clock.
    before: Option<(i64, i64)>,
    /// If the ring did not follow the last step: when to try again, ns of the monotonic clock.
    retry_mono_ns: Option<i64>,
    /// When the source was last dry, ns of the monotonic clock.
    pub(super) dry_mono_ns: i64,
}

/// The next action on frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StampAction {
    /// Store the first `count` frames (at least 1) with the current offset. `uncertain` of these
    /// are, or may be, stamped on the other side of a step.
    Store { count: usize, uncertain: usize },
    /// Another offset applies from here on.
    Step { offset_ns: i64 },
}

impl HostStamps {
    pub(super) fn new(offset_ns: i64) -> Self {
        Self {
            applied_ns: offset_ns,
            before: None,
            retry_mono_ns: None,
            dry_mono_ns: i64::MIN,
        }
    }

    /// Decides about the first of `frames`, which were fetched before `now`.
    pub(super) fn part(&mut self, frames: &[FrameMeta], now: Moment) -> StampAction {
        let is_behind = self.applied_ns != now.offset_ns;
        let other_ns = match self.before {
            _ if is_behind => now.offset_ns,
            Some((before_ns, until_ns)) if now.mono_ns <= until_ns => before_ns,
            _ => {
                self.before = None;
                return StampAction::Store {
                    count: frames.len(),
                    uncertain: 0,
                };
            }
        };
        let is_other = |meta: &&FrameMeta| {
            let far = |offset_ns| distance(meta.time_ns, offset_ns, now.ring_ns);
            far(other_ns) < far(self.applied_ns)
        };
        // If frames may be older than the size of the step, the wrong offset may also give a
        // plausible time.
        let age_ns = now
            .mono_ns
            .saturating_sub(self.dry_mono_ns)
            .min(FRAME_AGE_NS_MAX);
        let is_old = age_ns >= other_ns.saturating_sub(self.applied_ns).saturating_abs();
        let fits = |meta: &FrameMeta, offset_ns| {
            distance(meta.time_ns, offset_ns, now.ring_ns) <= age_ns.unsigned_abs()
        };
        let is_uncertain =
            |meta: &&FrameMeta| is_old && fits(meta, other_ns) && fits(meta, self.applied_ns);
        let may_step = is_behind && self.retry_mono_ns.is_none_or(|at| now.mono_ns >= at);
        let count = if may_step {
            frames.iter().take_while(|meta| !is_other(meta)).count()
        } else {
            frames.len()
        };
        if count == 0 {
            return StampAction::Step {
                offset_ns: now.offset_ns,
            };
        }
        let stored = frames[..count].iter();
        StampAction::Store {
            count,
            uncertain: stored
                .filter(|meta| is_other(meta) || is_uncertain(meta))
                .count(),
        }
    }

    /// Notes whether the ring has followed a step to the offset `offset_ns`.
    pub(super) fn stepped(&mut self, offset_ns: i64, is_followed: bool, now: Moment) {
        if is_followed {
            let until_ns = now.mono_ns.saturating_add(STEP_SETTLE_NS);
            self.before = Some((self.applied_ns, until_ns));
            self.applied_ns = offset_ns;
            self.retry_mono_ns = None;
        } else {
            self.retry_mono_ns = Some(now.mono_ns.saturating_add(STEP_RETRY_NS));
        }
    }

    /// The ring time of an engine's statement about the present or just before. If exactly one
    /// possible ring time is fresh ([`FRESH_NS`]), it counts; otherwise the earliest ring time. The
    /// result is never later than `now`.
    pub(super) fn ring_ns(&self, stamp_ns: i64, now: Moment) -> i64 {
        let before = self.before.filter(|(_, until_ns)| now.mono_ns <= *until_ns);
        let before_ns = before.map_or(self.applied_ns, |(before_ns, _)| before_ns);
        let offsets = [self.applied_ns, now.offset_ns, before_ns];
        let all = offsets.map(|offset_ns| stamp_ns.saturating_sub(offset_ns));
        let fresh = now.ring_ns.saturating_sub(FRESH_NS)..=now.ring_ns.saturating_add(AHEAD_NS);
        let mut plausible = all.iter().filter(|ns| fresh.contains(ns));
        let first = plausible.next();
        let one = first.filter(|first| plausible.all(|other| other == *first));
        let least = all.iter().min();
        one.or(least)
            .map_or(now.ring_ns, |ns| *ns.min(&now.ring_ns))
    }
}

/// How far a stamp is from now with an offset, ns. `u64::MAX`: more than [`AHEAD_NS`] later than
/// now, so the offset is wrong.
fn distance(stamp_ns: i64, offset_ns: i64, now_ns: i64) -> u64 {
    let ring_ns = stamp_ns.saturating_sub(offset_ns);
    if ring_ns > now_ns.saturating_add(AHEAD_NS) {
        return u64::MAX;
    }
    ring_ns.abs_diff(now_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const MS: i64 = 1_000_000;

    fn at(ring_ns: i64, offset_ns: i64) -> Moment {
        Moment {
            ring_ns,
            mono_ns: ring_ns,
            offset_ns,
        }
    }

    #[test]
    fn what_an_engine_says_around_a_step_promises_no_more_than_it_can_mean() {
        for step_ns in [3600 * S, -3600 * S, 150 * MS, -150 * MS] {
            let mut host = HostStamps::new(0);
            let now = at(100 * S, step_ns);
            for offset_ns in [0, step_ns] {
                let said_ns = 100 * S - 20 * MS;
                let heard_ns = host.ring_ns(said_ns + offset_ns, now);
                assert!(heard_ns <= said_ns, "{step_ns}: {heard_ns}");
                let is_plain = step_ns.abs() > FRESH_NS;
                assert!(heard_ns == said_ns || !is_plain, "{step_ns}: {heard_ns}");
            }
            host.stepped(step_ns, true, now);
            let later = at(100 * S + STEP_SETTLE_NS + 1, step_ns);
            assert!(matches!(
                host.part(&[], later),
                StampAction::Store { count: 0, .. }
            ));
            let said_ns = later.ring_ns - 20 * MS;
            assert_eq!(host.ring_ns(said_ns + step_ns, later), said_ns);
            assert_eq!(host.ring_ns(step_ns - S, later), -S);
            assert_eq!(host.ring_ns(step_ns + 200 * S, later), later.ring_ns);
        }
    }

    /// The link never runs dry: no frame is older than the size of a step of one hour.
    #[test]
    fn a_large_step_is_certain_on_a_busy_link() {
        for step_ns in [3600 * S, -3600 * S] {
            let mut host = HostStamps::new(0);
            let now = at(10_000 * S, step_ns);
            let meta = |offset_ns| FrameMeta {
                time_ns: now.ring_ns - MS + offset_ns,
                offset: 0,
                captured_len: 0,
                wire_len: 0,
                interface: 0,
                direction: retroscope_capture::Direction::Inbound,
                vlan: None,
            };
            let certain = |count| StampAction::Store {
                count,
                uncertain: 0,
            };
            assert_eq!(host.part(&[meta(0), meta(step_ns)], now), certain(1));
            host.stepped(step_ns, true, now);
            assert_eq!(host.part(&[meta(step_ns)], now), certain(1));
        }
    }

    #[test]
    fn a_step_that_is_not_followed_is_tried_again_later() {
        let meta = FrameMeta {
            time_ns: 3700 * S,
            offset: 0,
            captured_len: 0,
            wire_len: 0,
            interface: 0,
            direction: retroscope_capture::Direction::Inbound,
            vlan: None,
        };
        let mut host = HostStamps::new(0);
        let step = StampAction::Step {
            offset_ns: 3600 * S,
        };
        let now = at(100 * S, 3600 * S);
        assert_eq!(host.part(&[meta], now), step);
        host.stepped(3600 * S, false, now);
        let lost = StampAction::Store {
            count: 1,
            uncertain: 1,
        };
        assert_eq!(
            host.part(&[meta], at(100 * S + STEP_RETRY_NS - 1, 3600 * S)),
            lost
        );
        assert_eq!(
            host.part(&[meta], at(100 * S + STEP_RETRY_NS, 3600 * S)),
            step
        );
    }
}
