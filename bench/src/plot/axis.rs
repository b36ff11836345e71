//! An axis of values: where a value stands, which ticks it gets, how numbers are written.

/// Linear from nought, or logarithmic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

/// An axis that covers all values it was made for.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis for `values`: linear ones start at nought, logarithmic ones at the next 1, 2 or 5 below the least value. Values
    /// that are not finite, or not above nought on a logarithmic axis, are not counted. `None` if no value is left.
    pub(super) fn covering(scale: Scale, values: impl Iterator<Item = f64>) -> Option<Axis> {
        let usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            least = least.min(value);
            greatest = greatest.max(value);
        }
        if greatest < least {
            return None;
        }
        Some(match scale {
            Scale::Linear => {
                let step = step(greatest.max(f64::MIN_POSITIVE));
                Axis {
                    scale,
                    low: 0.0,
                    high: (greatest / step * 1.02).ceil().max(1.0) * step,
                }
            }
            Scale::Log => {
                let ladder: Vec<f64> = rungs(least, greatest).collect();
                let low = ladder.iter().copied().rfind(|rung| *rung <= least);
                let high = ladder.iter().copied().find(|rung| *rung > greatest * 1.02);
                Axis {
                    scale,
                    low: low.unwrap_or(least),
                    high: high.unwrap_or(greatest * 2.0),
                }
            }
        })
    }

    /// Where `value` stands, 0 at the low end and 1 at the high end; values outside stand at the ends.
    pub(super) fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => 0.0,
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// The values that get a line and a number, rising.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.high);
                let mut ticks = vec![0.0];
                let mut tick = step;
                while tick <= self.high * 1.000_001 {
                    ticks.push(tick);
                    tick += step;
                }
                ticks
            }
            Scale::Log => {
                let within = |rung: &f64| *rung >= self.low * 0.999 && *rung <= self.high * 1.001;
                let all: Vec<f64> = rungs(self.low, self.high).filter(within).collect();
                if all.len() <= 9 {
                    return all;
                }
                // Over more than three decades the powers of ten are enough.
                let is_power = |rung: &f64| (rung.log10() - rung.log10().round()).abs() < 1e-9;
                all.into_iter().filter(is_power).collect()
            }
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `high` into four to eight parts. `high` is above nought.
fn step(high: f64) -> f64 {
    let power = 10f64.powf((high / 4.0).log10().floor());
    let times = high / 4.0 / power;
    power * [5.0, 2.0].into_iter().find(|t| *t <= times).unwrap_or(1.0)
}

/// 1, 2 and 5 times the powers of ten around `least..=greatest`, rising.
fn rungs(least: f64, greatest: f64) -> impl Iterator<Item = f64> {
    let first = least.log10().floor();
    let decades = greatest.log10().floor() - first + 2.0;
    std::iter::successors(Some(0.0), move |n| (n + 1.0 < decades).then_some(n + 1.0))
        .flat_map(move |n| [1.0, 2.0, 5.0].map(|times| times * 10f64.powf(first + n)))
}

/// A number as it stands beside a point: three significant digits, thousands apart.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    if size >= 1000.0 {
        return grouped(&format!("{value:.0}"));
    }
    let digits = match size {
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 || size == 0.0 => 2,
        _ if size >= 0.0995 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// A number as it stands at a tick: no digits that say nothing.
pub(super) fn tick_number(value: f64) -> String {
    if value >= 1000.0 {
        return grouped(&format!("{value:.0}"));
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A whole number of digits, perhaps with a sign, with a comma before each group of three.
fn grouped(number: &str) -> String {
    let digits = number.trim_start_matches('-').len();
    let mut text = number[..number.len() - digits].to_owned();
    for (index, digit) in number[number.len() - digits..].char_indices() {
        if index > 0 && (digits - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_start_at_nought_and_cover() {
        for greatest in [0.003, 1.0, 7.2, 47.0, 190.0, 4_768.0] {
            let axis = Axis::covering(Scale::Linear, [greatest, greatest / 3.0].into_iter());
            let axis = axis.expect("two values");
            let ticks = axis.ticks();
            assert!((4..=11).contains(&ticks.len()), "{greatest}: {ticks:?}");
            assert_eq!(ticks[0], 0.0);
            assert!(axis.place(greatest) > 0.6 && axis.place(greatest) <= 1.0);
            assert!(axis.place(greatest / 3.0) < axis.place(greatest));
        }
    }

    #[test]
    fn logarithmic_axes_cover_and_skip_what_has_no_logarithm() {
        let axis = Axis::covering(Scale::Log, [0.0, 3.0, 250.0, f64::NAN].into_iter());
        let axis = axis.expect("two values count");
        assert_eq!(
            axis.ticks(),
            [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]
        );
        assert_eq!(axis.place(0.0), 0.0);
        assert!((axis.place(20.0) - (10f64.ln() / 250f64.ln())).abs() < 1e-9);
        let wide = Axis::covering(Scale::Log, [1.0, 90_000.0].into_iter()).expect("two values");
        let ticks = wide.ticks();
        assert_eq!(ticks.len(), 6, "{ticks:?}");
        assert!(Axis::covering(Scale::Log, [0.0, -1.0].into_iter()).is_none());
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let written = [
            0.0,
            0.0123,
            0.5,
            1.5,
            12.34,
            99.97,
            190.4,
            1234.0,
            -1_234_567.0,
        ]
        .map(number);
        assert_eq!(
            written,
            [
                "0.00",
                "0.0123",
                "0.500",
                "1.50",
                "12.3",
                "100",
                "190",
                "1,234",
                "-1,234,567"
            ]
        );
        assert_eq!(
            [0.0, 0.5, 20.0, 5000.0].map(tick_number),
            ["0", "0.5", "20", "5,000"]
        );
    }
}
