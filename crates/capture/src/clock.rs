//! The clocks of the system: the only place that reads them, but for the command line's own.

use std::{fmt::Debug, time::Duration};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in a second.
pub const SECOND_NS: i64 = 1_000_000_000;

/// A change of the difference between real-time and monotonic clock that is more than this is a step, and no slew or error of reading, ns.
pub const CLOCK_STEP_NS: i64 = 100_000_000;

/// Readings of the monotonic clock around one of the real-time clock that are no further apart than this belong together. The three
/// readings take less than a microsecond, with an interrupt between them a few; a thread that lost its processor waits longer. It is a
/// hundredth of a step.
pub(crate) const READ_GAP_NS_MAX: i64 = CLOCK_STEP_NS / 100;

/// How often both are read at most, where they are further apart. A thread seldom loses its processor twice in a row, right where it
/// reads; and it must come back to its packets, whatever the clocks do.
const READINGS_MAX: usize = 8;

/// Two clocks read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The real-time clock, ns since the UNIX epoch; it may step. The kernel's software time stamps are its.
    pub wall_ns: i64,
    /// A clock that only goes forward, ns since an arbitrary start; the system's is `CLOCK_MONOTONIC`.
    pub mono_ns: i64,
    /// How long before `mono_ns` the real-time clock was read at most, ns.
    pub read_gap_ns: i64,
}

impl Now {
    /// Whether both were read as good as at once. Else their difference tells nothing about either.
    #[must_use]
    pub fn is_one_moment(self) -> bool {
        self.read_gap_ns <= READ_GAP_NS_MAX
    }

    /// How far the real-time clock is ahead of the monotonic one, at most: a stamp of the monotonic clock that is placed by it is never
    /// placed too early.
    pub(crate) fn offset_max_ns(self) -> i64 {
        self.wall_ns - (self.mono_ns - self.read_gap_ns)
    }
}

/// Where threads get the time from. Tests own theirs.
pub trait Clock: Send + Sync + Debug {
    /// Reads both clocks. Any thread.
    fn now(&self) -> Now;

    /// The same where the calling thread has read the monotonic clock before, at `before_ns`: that is one of the readings if it is no
    /// more than a millisecond ago.
    fn now_since(&self, before_ns: i64) -> Now {
        let _ = before_ns;
        self.now()
    }

    /// Reads the clock that only goes forward. Any thread.
    fn mono_ns(&self) -> i64 {
        self.now().mono_ns
    }
}

/// The system's clocks. The monotonic one is the system's own (`CLOCK_MONOTONIC`), so that other processes can compare with it.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        now()
    }

    fn now_since(&self, before_ns: i64) -> Now {
        together(before_ns, realtime_ns, monotonic_ns)
    }

    fn mono_ns(&self) -> i64 {
        monotonic_ns()
    }
}

/// Both clocks of the system.
#[must_use]
pub fn now() -> Now {
    together(monotonic_ns(), realtime_ns, monotonic_ns)
}

/// The real-time clock alone, ns since the UNIX epoch.
#[must_use]
pub fn realtime_ns() -> i64 {
    read_ns(ClockId::Realtime)
}

/// The monotonic clock alone, ns since an arbitrary start, for pacing and deadlines.
#[must_use]
pub fn monotonic_ns() -> i64 {
    read_ns(ClockId::Monotonic)
}

/// Seconds and nanoseconds as one number; saturates in the year 2262.
fn read_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec
        .saturating_mul(SECOND_NS)
        .saturating_add(time.tv_nsec)
}

/// Reads one clock between two readings of the other, the first of them `before_ns`, again where these are far apart: a thread that
/// stands still between two readings would see a step of the real-time clock that nobody made. Of [`READINGS_MAX`] such readings the closest counts, and says how close it is.
fn together(mut before_ns: i64, wall_ns: impl Fn() -> i64, mono_ns: impl Fn() -> i64) -> Now {
    let mut read = || {
        let (wall_ns, mono_ns) = (wall_ns(), mono_ns());
        let read_gap_ns = mono_ns.saturating_sub(before_ns);
        before_ns = mono_ns;
        Now {
            wall_ns,
            mono_ns,
            read_gap_ns,
        }
    };
    let mut closest = read();
    for _ in 1..READINGS_MAX {
        if closest.is_one_moment() {
            break;
        }
        let next = read();
        if next.read_gap_ns < closest.read_gap_ns {
            closest = next;
        }
    }
    closest
}

/// Lets the calling thread sleep until the monotonic clock shows `deadline_ns`. May return early when a signal arrives.
pub fn sleep_until(deadline_ns: i64) {
    let deadline = Timespec {
        tv_sec: deadline_ns.div_euclid(SECOND_NS),
        tv_nsec: deadline_ns.rem_euclid(SECOND_NS),
    };
    // An interrupted sleep is a short one: the caller looks at the clock anyway.
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// A duration as ns; saturates at 292 years.
#[must_use]
pub fn duration_ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const MS: i64 = 1_000_000;
    const OFFSET_NS: i64 = 1_800_000_000_000_000_000;

    /// Reads clocks that are [`OFFSET_NS`] apart and go on by `pauses`, one after each reading, and tells by how much they seem further
    /// apart, and whether they were read as one moment.
    fn read(pauses: &[i64]) -> (i64, bool) {
        let (mono, pauses) = (Cell::new(0), RefCell::new(pauses.iter()));
        let read = || {
            let now_ns = mono.get();
            let pause_ns = pauses.borrow_mut().next().copied().unwrap_or(0);
            mono.set(now_ns + 50 + pause_ns);
            now_ns
        };
        let now = together(read(), || OFFSET_NS + read(), read);
        let error_ns = now.wall_ns - now.mono_ns - OFFSET_NS;
        assert!(-now.read_gap_ns <= error_ns && error_ns <= 0, "{now:?}");
        assert_eq!(now.offset_max_ns() - OFFSET_NS, error_ns + now.read_gap_ns);
        (error_ns, now.is_one_moment())
    }

    #[test]
    fn a_thread_that_stands_still_between_two_readings_sees_no_step() {
        for paused in 0..4 {
            let mut pauses = [0; 4];
            pauses[paused] = 2000 * MS;
            assert_eq!(read(&pauses), (-50, true), "behind reading {paused}");
        }
        let pauses = [900 * MS, 900 * MS, 0, 900 * MS, 0, 0];
        assert_eq!(read(&pauses), (-50, true));
    }

    #[test]
    fn of_readings_far_apart_the_closest_counts() {
        let mut pauses = [300 * MS; 2 * READINGS_MAX + 1];
        (pauses[4], pauses[5]) = (2 * MS, 3 * MS);
        assert_eq!(read(&pauses), (-3 * MS - 50, false));
        // And it comes to an end.
        assert_eq!(read(&[300 * MS; 100]), (-300 * MS - 50, false));
    }

    #[test]
    fn a_recent_reading_of_the_monotonic_clock_saves_one() {
        for (before_ns, readings) in [(-MS / 2, 2), (-2 * MS, 4)] {
            let count = Cell::new(0);
            let read = || {
                count.set(count.get() + 1);
                50 * count.get()
            };
            assert!(together(before_ns, read, read).is_one_moment());
            assert_eq!(count.get(), readings);
        }
    }
}
