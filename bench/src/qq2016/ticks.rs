//! The processor's clock, read once a packet as the QQ of 2016 does (thesis, section 6.2.1).
#![expect(unsafe_code, reason = "reads a register of the processor")]

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Time over which the frequency is found out.
const CALIBRATION: Duration = Duration::from_millis(20);

/// The time stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[must_use]
pub(crate) fn now() -> u64 {
    // SAFETY: RDTSC reads a counter; it touches no memory. Systems that forbid it to programs do not run this one.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The virtual counter.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[must_use]
pub(crate) fn now() -> u64 {
    let ticks;
    // SAFETY: reads a counter that the system lets programs read; touches no memory, stack or flags.
    unsafe {
        core::arch::asm!(
            "mrs {ticks}, cntvct_el0",
            ticks = out(reg) ticks,
            options(nomem, nostack, preserves_flags),
        );
    }
    ticks
}

/// Nanoseconds of the monotonic clock, where no counter is known.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[must_use]
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The hold time in ticks. Their frequency is measured once, which takes 20 ms.
#[must_use]
pub(crate) fn hold() -> u64 {
    static PER_SECOND: OnceLock<f64> = OnceLock::new();
    let per_second = PER_SECOND.get_or_init(|| {
        let (start, first) = (Instant::now(), now());
        while start.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        now().saturating_sub(first) as f64 / start.elapsed().as_secs_f64()
    });
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive and small"
    )]
    let ticks = (per_second * super::HOLD.as_secs_f64()) as u64;
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_and_the_hold_time_has_many() {
        let first = now();
        assert!(hold() > 10_000, "{}", hold());
        assert!(now() > first);
    }
}
