//! A time range as arguments.

use std::time::Duration;

use retroscope_recorder::parse_time;
use serde::Serialize;

use crate::{failure::Failure, units::duration};

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct StretchArgs {
    /// Select packets from this time on, like 2026-11-20T19:15:03.5Z (any offset), or a number
    /// since 1970 (s, ms, µs or ns, by its size)
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "last")]
    pub(super) from: Option<WithText<i64>>,

    /// Select packets up to this time, inclusive
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "last")]
    pub(super) to: Option<WithText<i64>>,

    /// Select the packets of the last DURATION. While the recorder runs, the range may end some
    /// tens of milliseconds ago
    #[arg(long, value_name = "DURATION", value_parser = length)]
    pub(super) last: Option<WithText<Duration>>,
}

/// A value and the user's text. Requests carry the text, so no conversion changes the value.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(super) struct WithText<T> {
    text: String,
    #[serde(skip)]
    pub(super) value: T,
}

impl<T> WithText<T> {
    /// Parses a text.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn read(
        text: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Self, String> {
        let value = read(text)?;
        let text = text.to_owned();
        Ok(Self { text, value })
    }
}

/// Parses a time.
///
/// # Errors
/// The text is no time.
pub(super) fn time(text: &str) -> Result<WithText<i64>, String> {
    WithText::read(text, parse_time)
}

/// Parses a duration.
///
/// # Errors
/// The text is no duration.
pub(super) fn length(text: &str) -> Result<WithText<Duration>, String> {
    WithText::read(text, duration)
}

impl StretchArgs {
    /// Start and end in ns since the epoch, and duration in ns.
    ///
    /// # Errors
    /// The range ends before it begins.
    pub(crate) fn ns(&self) -> Result<[Option<i64>; 3], Failure> {
        let at = |given: &Option<WithText<i64>>| given.as_ref().map(|given| given.value);
        let (from, to) = (at(&self.from), at(&self.to));
        if from.zip(to).is_some_and(|(from, to)| from > to) {
            return Err(Failure::usage("--to is before --from"));
        }
        let last = self.last.as_ref().map(|last| last.value.as_nanos());
        Ok([
            from,
            to,
            last.map(|last| i64::try_from(last).unwrap_or(i64::MAX)),
        ])
    }

    /// The given arguments, by their names in the API.
    ///
    /// # Errors
    /// The errors of [`Self::ns`].
    pub(crate) fn parameters(&self) -> Result<Vec<(&'static str, String)>, Failure> {
        self.ns()?;
        let text = |given: &Option<WithText<i64>>| given.as_ref().map(|given| given.text.clone());
        let last = self.last.as_ref().map(|last| last.text.clone());
        let all = [
            ("from", text(&self.from)),
            ("to", text(&self.to)),
            ("last", last),
        ];
        let given = all
            .into_iter()
            .filter_map(|(name, text)| Some((name, text?)));
        Ok(given.collect())
    }
}
