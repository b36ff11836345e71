//! Ring time: what stamps would be if no clock was ever set.
//!
//! Records in the ring, windows, watermarks and losses have ring time. So a clock that is set by
//! more than 100 ms usually neither ends nor prolongs a window. A stamp is ring time plus the
//! *offset* of its clock: the sum of the steps of this clock. The ring keeps the offsets of its
//! records ([`retroscope_ring::Step`]).
//!
//! A step of the system's clock shows as a difference to the monotonic clock, which cannot be set;
//! both are slewed alike (clock_gettime(2)). In stamps of other clocks, steps are detected from the
//! stamps alone (`intake/inserter/sequence.rs`).

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use retroscope_capture::clock::{CLOCK_STEP_NS, Clock, Now};
use retroscope_ring::{Ring, Step};

use crate::control::{
    lock,
    time::{rfc3339, seconds},
};

/// Maximum number of recent steps that are kept, for verdicts and conversions of times.
const STEPS_KEPT: usize = 256;

/// The present, in ring time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Ring time of a packet that the system stamps now, ns.
    pub(crate) ring_ns: i64,
    /// The monotonic clock, ns.
    pub(crate) mono_ns: i64,
    /// Stamp less ring time of a packet that the system stamps now, ns.
    pub(crate) offset_ns: i64,
}

/// The system's clock as ring time, and recent steps of all clocks. Aligned to separate cache
/// lines, because it is read with each burst.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RingClock {
    clock: Arc<dyn Clock>,
    /// System clock less monotonic clock at the start, ns.
    start_ns: i64,
    /// Sum of the steps since the start, ns. Written under the mutex.
    offset_ns: AtomicI64,
    /// Monotonic time up to which all steps were detected, ns.
    looked_mono_ns: AtomicI64,
    /// Monotonic time at which the last step was found, ns. Written under the mutex.
    stepped_mono_ns: AtomicI64,
    /// Number of steps of the system's clock.
    count: AtomicU64,
    steps: Mutex<Vec<NamedStep>>,
}

/// A step, with a text for the user.
#[derive(Debug, Clone)]
struct NamedStep {
    /// The step is between `from_ns` and `to_ns`, in ring time, ns.
    from_ns: i64,
    to_ns: i64,
    /// For the system's clock: stamp less ring time before and after the step, ns.
    offsets_ns: Option<(i64, i64)>,
    text: String,
    /// Whether a notice has reported the step to the user.
    is_told: bool,
}

impl RingClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        Self {
            clock,
            start_ns: now.wall_ns.saturating_sub(now.mono_ns),
            offset_ns: AtomicI64::new(0),
            looked_mono_ns: AtomicI64::new(now.mono_ns),
            stepped_mono_ns: AtomicI64::new(i64::MIN),
            count: AtomicU64::new(0),
            steps: Mutex::default(),
        }
    }

    pub(crate) fn mono_ns(&self) -> i64 {
        self.clock.mono_ns()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// The underlying clocks, for a thread that outlives this object.
    pub(crate) fn shared(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// Reads the clocks, and detects a step. Not for each packet.
    pub(crate) fn now(&self) -> Moment {
        self.moment(self.clock.now())
    }

    /// As [`Self::now`], if the calling thread has read the monotonic clock at `before_ns`. If that
    /// was at most a millisecond ago, this saves one reading.
    pub(crate) fn now_since(&self, before_ns: i64) -> Moment {
        self.moment(self.clock.now_since(before_ns))
    }

    fn moment(&self, now: Now) -> Moment {
        let mut offset_ns = self.offset_ns.load(Relaxed);
        if now.is_one_moment() {
            let looked_ns = self.looked_mono_ns.load(Relaxed);
            if self.apart_ns(now, offset_ns).abs() > CLOCK_STEP_NS {
                offset_ns = self.step(now);
            } else if now.mono_ns.saturating_sub(looked_ns) > 1_000_000 {
                self.looked_mono_ns.store(now.mono_ns, Relaxed);
            }
        }
        let steady_ns = now.mono_ns.saturating_add(self.start_ns);
        let ring_ns = now.wall_ns.saturating_sub(offset_ns);
        let is_apart = ring_ns.saturating_sub(steady_ns).abs() > CLOCK_STEP_NS;
        Moment {
            // If the clocks were not read at the same moment, they may wrongly appear to differ.
            ring_ns: if is_apart { steady_ns } else { ring_ns },
            mono_ns: now.mono_ns,
            offset_ns,
        }
    }

    /// The change of the difference between system clock and monotonic clock since the start, less
    /// the known steps (`offset_ns`), ns.
    fn apart_ns(&self, now: Now, offset_ns: i64) -> i64 {
        let since_start_ns = now.wall_ns.saturating_sub(now.mono_ns);
        since_start_ns
            .saturating_sub(self.start_ns)
            .saturating_sub(offset_ns)
    }

    /// Adds a step to the offset and to the list, unless another thread has already added the step.
    /// Returns the offset.
    fn step(&self, now: Now) -> i64 {
        let mut steps = lock(&self.steps);
        let before_ns = self.offset_ns.load(Relaxed);
        let step_ns = self.apart_ns(now, before_ns);
        // A reading from before the last step would undo that step.
        let is_stale = now.mono_ns <= self.stepped_mono_ns.load(Relaxed);
        if is_stale || step_ns.abs() <= CLOCK_STEP_NS {
            return before_ns;
        }
        self.stepped_mono_ns.store(now.mono_ns, Relaxed);
        let offset_ns = before_ns.saturating_add(step_ns);
        self.offset_ns.store(offset_ns, Relaxed);
        self.count.fetch_add(1, Relaxed);
        let looked_ns = self.looked_mono_ns.swap(now.mono_ns, Relaxed);
        let uncertain_ns = now.mono_ns.saturating_sub(looked_ns).max(0);
        let to_ns = now.mono_ns.saturating_add(self.start_ns);
        let text = format!(
            "the clock was stepped by {} at {}, or up to {} before",
            seconds(step_ns),
            rfc3339(now.wall_ns),
            seconds(uncertain_ns)
        );
        let span_ns = (to_ns.saturating_sub(uncertain_ns), to_ns);
        push(&mut steps, span_ns, Some((before_ns, offset_ns)), text);
        offset_ns
    }

    /// Records a step of a source's clock, between `from_ns` and `to_ns` of ring time; `text` is
    /// for the user.
    pub(crate) fn note(&self, from_ns: i64, to_ns: i64, text: String) {
        push(&mut lock(&self.steps), (from_ns, to_ns), None, text);
    }

    /// The ranges of ring time, past and future, in which the system's clock shows stamps within a
    /// closed interval. Several ranges if a step back repeated stamps; usually no range if a step
    /// left the stamps out.
    pub(crate) fn ring_times(&self, (from_ns, to_ns): (i64, i64)) -> Vec<(i64, i64)> {
        let steps = lock(&self.steps);
        let mut own = Vec::new();
        let (mut begin_ns, mut offset_ns) = (i64::MIN, self.offset_ns.load(Relaxed));
        for step in steps.iter() {
            if let Some((before_ns, after_ns)) = step.offsets_ns {
                own.push((begin_ns, step.to_ns, before_ns));
                (begin_ns, offset_ns) = (step.from_ns, after_ns);
            }
        }
        own.push((begin_ns, i64::MAX, offset_ns));
        let times = own.into_iter().map(|(begin_ns, end_ns, offset_ns)| {
            let (from_ns, to_ns) = ring_times_at((from_ns, to_ns), offset_ns);
            (from_ns.max(begin_ns), to_ns.min(end_ns))
        });
        times.filter(|(from_ns, to_ns)| from_ns <= to_ns).collect()
    }

    /// The stamp of the system's clock at this ring time, ns.
    pub(crate) fn stamp_ns(&self, ring_ns: i64) -> i64 {
        let steps = lock(&self.steps);
        let own = steps
            .iter()
            .filter_map(|step| Some((step.to_ns, step.offsets_ns?)));
        // The earliest later step has the offset that was valid before.
        let behind = own
            .filter(|(to_ns, _)| *to_ns > ring_ns)
            .min_by_key(|(to_ns, _)| *to_ns);
        let offset_ns = match behind {
            Some((_, (before_ns, _))) => before_ns,
            None => self.offset_ns.load(Relaxed),
        };
        ring_ns.saturating_add(offset_ns)
    }

    /// Steps of the system's clock since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Steps within a window of ring time, in words.
    pub(crate) fn within(&self, from_ns: i64, to_ns: i64) -> Vec<String> {
        let touches = |step: &&NamedStep| step.from_ns <= to_ns && step.to_ns >= from_ns;
        let steps = lock(&self.steps);
        let within = steps.iter().filter(touches);
        within.map(|step| step.text.clone()).collect()
    }

    pub(crate) fn take_unreported_steps(&self) -> Vec<String> {
        let mut steps = lock(&self.steps);
        let unreported = steps.iter_mut().filter(|step| !step.is_told);
        unreported
            .map(|step| {
                step.is_told = true;
                step.text.clone()
            })
            .collect()
    }
}

/// The ring times of a range of stamps, for one offset; an unbounded end stays unbounded.
pub(crate) fn ring_times_at((from_ns, to_ns): (i64, i64), offset_ns: i64) -> (i64, i64) {
    let ring_ns = |ns: i64| match ns {
        i64::MIN | i64::MAX => ns,
        ns => ns.saturating_sub(offset_ns),
    };
    (ring_ns(from_ns), ring_ns(to_ns))
}

fn push(
    steps: &mut Vec<NamedStep>,
    (from_ns, to_ns): (i64, i64),
    offsets_ns: Option<(i64, i64)>,
    text: String,
) {
    if steps.len() >= STEPS_KEPT {
        steps.remove(0);
    }
    steps.push(NamedStep {
        from_ns,
        to_ns,
        offsets_ns,
        text,
        is_told: false,
    });
}

/// Converts ring time back to stamps, with a thread's own copy of the ring's steps.
#[derive(Debug)]
pub(crate) struct StampRestorer {
    ring: Ring,
    steps: Vec<Step>,
    made: u64,
}

impl StampRestorer {
    pub(crate) fn new(ring: &Ring) -> Self {
        Self {
            ring: ring.clone(),
            steps: Vec::new(),
            made: 0,
        }
    }

    /// Whether any clock made a step. If not, all offsets are 0.
    pub(crate) fn is_stepped(&self) -> bool {
        self.ring.steps_made() > 0
    }

    /// Stamp less ring time of a record of a source, ns. Call this after the record was found.
    pub(crate) fn offset_ns(&mut self, producer: usize, source: usize, record: u64) -> i64 {
        let made = self.ring.steps_made();
        if made == 0 {
            return 0;
        }
        if made != self.made {
            (self.steps, self.made) = (self.ring.steps(), made);
        }
        Step::stamp_ns(&self.steps, producer, clock_of(source), record, 0)
    }
}

/// The ring's number for the clock of a source. Sources beyond the largest number share one clock.
pub(crate) fn clock_of(source: usize) -> u16 {
    u16::try_from(source).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::tests::rig::{FakeClock, MS, S};

    const START: i64 = 1_800_000_000 * S;

    #[test]
    fn ring_time_goes_on_where_the_clock_is_set() {
        let clock = Arc::new(FakeClock::default());
        clock.wall_ns.store(START, SeqCst);
        let ring_clock = RingClock::new(clock.clone());
        for (round, step_ns) in [0, 3600 * S, -7200 * S, 90 * MS, 20 * MS]
            .iter()
            .enumerate()
        {
            clock.pass(S);
            clock.wall_ns.fetch_add(*step_ns, SeqCst);
            let now = ring_clock.now();
            let since_start_ns = i64::try_from(round + 1).unwrap() * S;
            // A difference of up to 100 ms is no step, but several such differences may add up to a
            // step.
            let rest_ns = if round == 3 { 90 * MS } else { 0 };
            assert_eq!(now.ring_ns, START + since_start_ns + rest_ns, "{round}");
            assert_eq!(
                now.ring_ns + now.offset_ns,
                clock.wall_ns.load(SeqCst),
                "{round}"
            );
        }
        assert_eq!(ring_clock.count(), 3);
        assert_eq!(ring_clock.take_unreported_steps().len(), 3);
        assert!(ring_clock.take_unreported_steps().is_empty());
        let within = ring_clock.within(START + 2 * S - 1, START + 2 * S - 1);
        assert_eq!(within.len(), 1, "{within:?}");
        assert!(within[0].contains(" 3600.000 s"), "{within:?}");
        assert!(within[0].contains(" 1.000 s"), "{within:?}");
    }

    #[test]
    fn steps_are_kept_within_a_bound() {
        let clock = Arc::new(FakeClock::default());
        let ring_clock = RingClock::new(clock);
        for at in 0..10 * STEPS_KEPT as i64 {
            ring_clock.note(at, at, String::new());
        }
        assert_eq!(ring_clock.within(i64::MIN, i64::MAX).len(), STEPS_KEPT);
    }
}
