//! The generator's configuration, and its text form `generate:flows=…,size=…`.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr, time::Duration};

use super::interval::Interval;
use retroscope_capture::{
    SourceError,
    quantity::{self, per_second},
};

/// Configuration of a [`Generator`](super::Generator). Start from `Default` and change fields, or
/// parse `generate:KEY=VALUE,…`. The limits of the fields are checked when a generator is made.
///
/// ```
/// use retroscope_generate::{GeneratorConfig, Rate};
///
/// let text = "generate:flows=10,size=128,rate=500kpps,trigger-after=2s";
/// let config: GeneratorConfig = text.parse()?;
/// assert_eq!(config.rate, Some(Rate::FramesPerSecond(500_000)));
/// # Ok::<(), retroscope_capture::SourceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratorConfig {
    /// Number of distinct background flows, 1 to 1 000 000. Frames take the flows in turn.
    pub flows: u32,
    /// Bytes of a frame without frame check sequence, 60 to 9014.
    pub size: u16,
    /// The frame rate. `None`: as fast as possible on the clock, or 1 Mpps if the schedule is
    /// written to a file.
    pub rate: Option<Rate>,
    /// Seed of the random numbers, which determine the flows and the filler of frames.
    pub seed: u64,
    /// When to send the trigger packet, relative to the start; `None`: never. With a rate or in a
    /// file, the frame of the first slot at or after this time is the trigger. As fast as possible
    /// on the clock, the first burst at or after this time.
    pub trigger_after: Option<Duration>,
    /// End after this many frames, including the trigger; `None`: no limit.
    pub count: Option<u64>,
    /// End when the schedule reaches this time after the start, or the clock if frames are made as
    /// fast as possible; `None`: no limit.
    pub duration: Option<Duration>,
}

/// The rate of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Frames per second, 1 to 1 000 000 000.
    FramesPerSecond(u64),
    /// Bits per second of frame bytes, 1 to 10 000 000 000 000. Preamble, frame check sequence and
    /// gap do not count, so a 1 Gbit/s Ethernet link carries somewhat less than `1Gbit`.
    BitsPerSecond(u64),
}

impl Rate {
    /// The rate of files whose configuration has no rate.
    pub(super) const FOR_FILES: Self = Self::FramesPerSecond(1_000_000);

    fn is_in_range(self) -> bool {
        match self {
            Self::FramesPerSecond(rate) => (1..=1_000_000_000).contains(&rate),
            Self::BitsPerSecond(rate) => (1..=10_000_000_000_000).contains(&rate),
        }
    }
}

impl FromStr for Rate {
    type Err = SourceError;

    /// Parses `500kpps`, `1Mpps`, `1Gbit`; prefixes are decimal.
    fn from_str(text: &str) -> Result<Self, SourceError> {
        let frames = per_second(text, &["pps"]).map(Self::FramesPerSecond);
        let bits = || per_second(text, &["bit/s", "bit"]).map(Self::BitsPerSecond);
        frames
            .or_else(bits)
            .filter(|rate: &Self| rate.is_in_range())
            .ok_or_else(|| {
                usage(format!(
                    "rate '{text}' is not a rate: write 500kpps, 1Mpps or 1Gbit"
                ))
            })
    }
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            flows: 1000,
            size: 64,
            rate: None,
            seed: 1,
            trigger_after: None,
            count: None,
            duration: None,
        }
    }
}

impl GeneratorConfig {
    /// The prefix that marks a generator among interface names.
    pub const PREFIX: &'static str = "generate:";

    /// The keys, for messages.
    const KEYS: &'static str = "flows, size, rate, seed, trigger-after, count, duration";

    /// Checks the limits of `flows`, `size` and `rate`, and that the trigger is before an end that
    /// is known in advance.
    ///
    /// # Errors
    /// [`SourceError::Usage`] with what to write instead.
    pub fn check(&self) -> Result<(), SourceError> {
        in_range("flows", self.flows, 1..=1_000_000, FLOWS)?;
        in_range("size", self.size, 60..=9014, SIZE)?;
        if !self.rate.is_none_or(Rate::is_in_range) {
            return Err(usage(
                "the rate is out of range: write 1pps to 1Gpps, or 1bit to 10000Gbit".to_owned(),
            ));
        }
        self.check_trigger_before_end()
    }

    /// Rejects a trigger time at or after `duration`. With a rate, also rejects a trigger slot that
    /// the `count` frames do not reach.
    fn check_trigger_before_end(&self) -> Result<(), SourceError> {
        let Some(trigger_after) = self.trigger_after else {
            return Ok(());
        };
        if let Some(duration) = self.duration
            && trigger_after >= duration
        {
            let hint = "make the run longer or the trigger earlier";
            return Err(usage(format!(
                "trigger-after={trigger_after:?} is not before the end at {duration:?}: {hint}"
            )));
        }
        if let (Some(_), Some(count)) = (self.rate, self.count)
            && self.interval().first_slot_at(trigger_after.as_nanos()) >= count
        {
            let hint = "raise the count or send the trigger earlier";
            return Err(usage(format!(
                "{count} frames end before trigger-after={trigger_after:?}: {hint}"
            )));
        }
        Ok(())
    }

    /// The time between two slots; without a rate, of [`Rate::FOR_FILES`].
    pub(super) fn interval(&self) -> Interval {
        match self.rate.unwrap_or(Rate::FOR_FILES) {
            Rate::FramesPerSecond(rate) => Interval::new(1, rate),
            Rate::BitsPerSecond(rate) => Interval::new(u128::from(self.size) * 8, rate),
        }
    }

    /// Sets one field from its text.
    fn set(&mut self, key: &str, value: &str) -> Result<(), SourceError> {
        match key {
            "flows" => self.flows = number(key, value, FLOWS)?,
            "size" => self.size = number(key, value, SIZE)?,
            "rate" => self.rate = Some(value.parse()?),
            "seed" => self.seed = number(key, value, "a number from 0 to 18446744073709551615")?,
            "count" => self.count = Some(number(key, value, COUNT)?),
            "trigger-after" => self.trigger_after = Some(duration(key, value)?),
            "duration" => self.duration = Some(duration(key, value)?),
            _ => {
                return Err(usage(format!(
                    "generate: does not know '{key}': write some of {}",
                    Self::KEYS
                )));
            }
        }
        Ok(())
    }
}

impl FromStr for GeneratorConfig {
    type Err = SourceError;

    /// Parses `generate:KEY=VALUE,…`. Missing keys keep their default; `generate:` alone has all
    /// defaults.
    fn from_str(text: &str) -> Result<Self, SourceError> {
        let Some(list) = text.strip_prefix(Self::PREFIX) else {
            return Err(usage(format!(
                "'{text}' is not a generator: write generate:flows=100,rate=500kpps"
            )));
        };
        let mut config = Self::default();
        for item in list.split(',').filter(|_| !list.is_empty()) {
            let Some((key, value)) = item.split_once('=') else {
                return Err(usage(format!(
                    "generate: cannot read '{item}': write KEY=VALUE with some of {}",
                    Self::KEYS
                )));
            };
            config.set(key.trim(), value.trim())?;
        }
        config.check()?;
        Ok(config)
    }
}

/// The expected values in messages: number of flows, bytes of a frame, and number of frames.
const FLOWS: &str = "1 to 1000000";
const SIZE: &str = "60 to 9014, the bytes of a frame without its frame check sequence";
const COUNT: &str = "how many frames to make, such as 1000000";

fn in_range<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
    expected: &str,
) -> Result<(), SourceError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{key}={value} is out of range: write {expected}");
    Err(usage(message))
}

/// Parses a number, or returns a sentence with the expected value.
fn number<T: FromStr>(key: &str, value: &str, expected: &str) -> Result<T, SourceError> {
    value
        .parse()
        .map_err(|_| usage(format!("{key}={value} does not fit: write {expected}")))
}

/// Parses a duration, or returns a sentence with the expected value.
fn duration(key: &str, value: &str) -> Result<Duration, SourceError> {
    quantity::duration(value).ok_or_else(|| {
        usage(format!(
            "{key}={value} is not a duration: write 250ms, 10s, 5m or 2h"
        ))
    })
}

fn usage(message: String) -> SourceError {
    SourceError::Usage(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = "generate:flows=7,size=1514,rate=1Gbit,seed=9,trigger-after=250ms,count=1000000,duration=1m";
        let config: GeneratorConfig = text.parse().unwrap();
        assert_eq!(
            config,
            GeneratorConfig {
                flows: 7,
                size: 1514,
                rate: Some(Rate::BitsPerSecond(1_000_000_000)),
                seed: 9,
                trigger_after: Some(Duration::from_millis(250)),
                count: Some(1_000_000),
                duration: Some(Duration::from_secs(60)),
            }
        );
        assert_eq!(
            "generate:".parse::<GeneratorConfig>().unwrap(),
            GeneratorConfig::default()
        );
    }

    #[test]
    fn mistakes_get_one_line_that_names_them() {
        // A text, and words of its error message: the wrong word, and in some cases words about
        // what to write instead.
        for (text, named) in [
            ("eth0", &["eth0"][..]),
            ("generate:flows", &["'flows'"]),
            ("generate:flows=0", &["flows=0", "1000000"]),
            ("generate:flows=-1", &["flows=-1", "1000000"]),
            ("generate:size=59", &["size=59", "60", "9014"]),
            ("generate:size=9015", &["size=9015", "60", "9014"]),
            ("generate:rate=500", &["'500'", "500kpps"]),
            ("generate:rate=0pps", &["'0pps'"]),
            ("generate:speed=1", &["'speed'", "flows", "size"]),
            ("generate:duration=soon", &["duration=soon"]),
            (
                "generate:duration=1s,trigger-after=1s",
                &["trigger-after=1s"],
            ),
            (
                "generate:count=10,rate=10pps,trigger-after=1s",
                &["10 frames", "trigger-after=1s"],
            ),
            ("generate:flows=1,,size=64", &["''"]),
        ] {
            let SourceError::Usage(message) = text.parse::<GeneratorConfig>().unwrap_err() else {
                panic!("{text}");
            };
            let names = |word: &&str| message.contains(word);
            assert!(named.iter().all(names), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: {message}");
        }
        assert!(
            "generate:count=11,rate=10pps,trigger-after=1s"
                .parse::<GeneratorConfig>()
                .is_ok()
        );
    }
}
