//! The time between frames, exact for any rate.

/// The time between two slots of a run: ns as a fraction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    numerator: u128,
    /// The denominator of the fraction of a ns whose numerator is [`DueTime::rest`].
    pub(super) denominator: u128,
}

impl Interval {
    /// The time of `units` frames or bits at a rate of `per_second`.
    pub(super) fn new(units: u128, per_second: u64) -> Self {
        Self {
            numerator: units * 1_000_000_000,
            denominator: u128::from(per_second),
        }
    }

    /// The time of `slots` slots.
    pub(super) fn times(self, slots: u64) -> DueTime {
        let product = u128::from(slots) * self.numerator;
        DueTime {
            ns: u64::try_from(product / self.denominator).unwrap_or(u64::MAX),
            rest: product % self.denominator,
        }
    }

    /// The first slot that is due at `time_ns` after the start or later.
    pub(super) fn first_slot_at(self, time_ns: u128) -> u64 {
        let slots = time_ns.saturating_mul(self.denominator);
        u64::try_from(slots.div_ceil(self.numerator)).unwrap_or(u64::MAX)
    }
}

/// A time after the start: whole ns, and the rest in parts of the interval's denominator.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueTime {
    pub(super) ns: u64,
    pub(super) rest: u128,
}
