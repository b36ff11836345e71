//! Converts time stamps from a file's units to nanoseconds.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The conversion of an interface's time stamps to nanoseconds since the UNIX epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeScale {
    /// A whole number of nanoseconds in a unit, without an offset: nearly every file.
    Factor(u64),
    /// Any other unit or offset.
    Ratio {
        /// Units in a second, at least 1.
        per_second: u64,
        /// Seconds to add.
        offset_seconds: i64,
    },
}

impl TimeScale {
    /// The scale for `per_second` units a second, at least 1, and an offset in seconds.
    pub(crate) fn new(per_second: u64, offset_seconds: i64) -> Self {
        assert!(per_second > 0);
        if offset_seconds == 0 && NS_PER_SECOND.is_multiple_of(per_second) {
            Self::Factor(NS_PER_SECOND / per_second)
        } else {
            Self::Ratio {
                per_second,
                offset_seconds,
            }
        }
    }

    /// Units in a second for a pcapng `if_tsresol` value. `None` if the number exceeds 64 bits.
    pub(crate) fn units_per_second(tsresol: u8) -> Option<u64> {
        let exponent = u32::from(tsresol & 0x7f);
        if tsresol & 0x80 == 0 {
            10_u64.checked_pow(exponent)
        } else {
            1_u64.checked_shl(exponent)
        }
    }

    /// Converts `time` units to ns since the epoch, rounded down, clamped to the range of `i64`.
    #[inline]
    pub(crate) fn ns(self, time: u64) -> i64 {
        match self {
            Self::Factor(factor) => time
                .checked_mul(factor)
                .and_then(|ns| i64::try_from(ns).ok())
                .unwrap_or(i64::MAX),
            Self::Ratio {
                per_second,
                offset_seconds,
            } => {
                let fraction = u128::from(time % per_second) * u128::from(NS_PER_SECOND)
                    / u128::from(per_second);
                let seconds = i128::from(time / per_second) + i128::from(offset_seconds);
                // No overflow: |seconds| < 2^66, the fraction < 10^9.
                clamp(seconds * i128::from(NS_PER_SECOND) + fraction.cast_signed())
            }
        }
    }

    /// One unit in ns, rounded down, at least 1.
    pub(crate) fn resolution_ns(self) -> u64 {
        match self {
            Self::Factor(factor) => factor,
            Self::Ratio { per_second, .. } => (NS_PER_SECOND / per_second).max(1),
        }
    }
}

/// The nearest `i64`.
fn clamp(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units() {
        assert_eq!(TimeScale::units_per_second(6), Some(1_000_000));
        assert_eq!(TimeScale::units_per_second(0), Some(1));
        assert_eq!(
            TimeScale::units_per_second(19),
            Some(10_000_000_000_000_000_000)
        );
        assert_eq!(TimeScale::units_per_second(20), None);
        assert_eq!(TimeScale::units_per_second(0x80), Some(1));
        assert_eq!(TimeScale::units_per_second(0x80 | 63), Some(1 << 63));
        assert_eq!(TimeScale::units_per_second(0x80 | 64), None);
    }

    #[test]
    fn converts_exactly() {
        assert_eq!(
            TimeScale::new(1_000_000, 0).ns(1_500_000_000_123_456),
            1_500_000_000_123_456_000
        );
        assert_eq!(TimeScale::new(1_000_000_000, -10).ns(500), -9_999_999_500);
        assert_eq!(TimeScale::new(1 << 10, 0).ns(1 << 9), 500_000_000);
        assert_eq!(
            TimeScale::new(1 << 63, 0).ns((1 << 63) + (1 << 62)),
            1_500_000_000
        );
        assert_eq!(TimeScale::new(10_u64.pow(12), 0).ns(1_999), 1);
        assert_eq!(TimeScale::new(3, 0).ns(4), 1_333_333_333);
    }

    #[test]
    fn clamps_and_never_wraps() {
        assert_eq!(TimeScale::new(1, 0).ns(u64::MAX), i64::MAX);
        assert_eq!(TimeScale::new(1_000_000_000, 0).ns(u64::MAX), i64::MAX);
        assert_eq!(TimeScale::new(1, i64::MAX).ns(u64::MAX), i64::MAX);
        assert_eq!(TimeScale::new(1, i64::MIN).ns(0), i64::MIN);
        assert_eq!(TimeScale::new(u64::MAX, i64::MIN).ns(u64::MAX), i64::MIN);
    }

    #[test]
    fn resolution_is_at_least_a_nanosecond() {
        assert_eq!(TimeScale::new(1_000, 5).resolution_ns(), 1_000_000);
        assert_eq!(TimeScale::new(1 << 63, 0).resolution_ns(), 1);
        assert_eq!(TimeScale::new(1, 0).resolution_ns(), 1_000_000_000);
    }
}
