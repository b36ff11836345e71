//! Time from outside: the only place that reads a clock.

use std::time::{Duration, Instant};

/// Two clocks read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The real-time clock, ns since the UNIX epoch; it may step.
    pub wall_ns: i64,
    /// A clock that only goes forward, ns since an arbitrary start.
    pub mono_ns: i64,
}

/// Where threads get the time from. Tests own theirs.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Reads both clocks. Any thread.
    fn now(&self) -> Now;

    /// Reads the clock that only goes forward. Any thread.
    fn mono_ns(&self) -> i64 {
        self.now().mono_ns
    }
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic side starts at 0 now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Now {
            wall_ns: wall
                .tv_sec
                .saturating_mul(1_000_000_000)
                .saturating_add(wall.tv_nsec),
            mono_ns: self.mono_ns(),
        }
    }

    fn mono_ns(&self) -> i64 {
        duration_ns(self.start.elapsed())
    }
}

/// A duration as ns, saturating after 292 years.
#[must_use]
pub(crate) fn duration_ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
