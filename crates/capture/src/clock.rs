//! The clocks that engines pace and stamp by. The only place of this crate that asks the system for the time.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: i64 = 1_000_000_000;

/// Wall-clock time in ns since the UNIX epoch: the clock of the kernel's software time stamps.
pub(crate) fn realtime_ns() -> i64 {
    to_ns(clock_gettime(ClockId::Realtime))
}

/// Nanoseconds on a clock that only moves forward, for pacing and deadlines.
pub(crate) fn monotonic_ns() -> i64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

/// Lets the calling thread sleep until the monotonic clock shows `deadline_ns`. May return early when a signal arrives.
pub(crate) fn sleep_until(deadline_ns: i64) {
    let deadline = Timespec {
        tv_sec: deadline_ns.div_euclid(SECOND_NS),
        tv_nsec: deadline_ns.rem_euclid(SECOND_NS),
    };
    // An interrupted sleep is a short one: the caller looks at the clock anyway.
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// Seconds and nanoseconds as one number; saturates in the year 2262.
fn to_ns(time: Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(SECOND_NS)
        .saturating_add(time.tv_nsec)
}

/// A `Duration` in ns; saturates at 292 years.
pub(crate) fn duration_ns(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
