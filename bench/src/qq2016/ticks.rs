//! The processor's clock, which the QQ of 2016 reads once per packet (thesis, section 6.2.1).
#![expect(unsafe_code, reason = "reads a register of the processor")]

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

/// Time over which the frequency is measured.
const CALIBRATION: Duration = Duration::from_millis(20);

/// x86-64: the time stamp counter. Elsewhere: nanoseconds of the monotonic clock.
#[inline(always)]
pub(crate) fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC reads a counter and touches no memory. If the system forbids RDTSC to
        // programs, a signal ends this program.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Ticks a second, measured once, which takes 20 ms.
pub(crate) fn per_second() -> f64 {
    static TICKS: LazyLock<f64> = LazyLock::new(|| {
        let (start, first) = (Instant::now(), now());
        while start.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        now().saturating_sub(first) as f64 / start.elapsed().as_secs_f64()
    });
    *TICKS
}

/// The maximum hold time of a storage, and when the hold began, in ticks.
#[derive(Debug)]
pub(super) struct Hold {
    given_out: u64,
    pub(super) ticks: u64,
}

impl Hold {
    pub(super) fn new() -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and small"
        )]
        let ticks = (per_second() * super::HOLD.as_secs_f64()) as u64;
        Self {
            given_out: 0,
            ticks,
        }
    }

    pub(super) fn begin(&mut self) {
        self.given_out = now();
    }

    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        now().saturating_sub(self.given_out) > self.ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_and_the_hold_time_has_many() {
        let first = now();
        assert!(Hold::new().ticks > 10_000);
        assert!(now() > first);
    }
}
