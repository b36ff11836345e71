//! The types of values in the configuration. All types except `bool` and tables can be parsed from
//! a text, because flags give texts.

use std::{
    fmt, marker::PhantomData, num::NonZeroUsize, ops::Deref, path::PathBuf, str::FromStr,
    time::Duration,
};

use retroscope_api::Address;
use retroscope_capture::CpuList;
use retroscope_flow::Cutoff;
use retroscope_recorder::{
    Analyzers, ClassCutoff, MinFree, NameTemplate, PostCommand, RetentionLimit, SubDirectory,
    ZstdLevel,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IntoDeserializer as _, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::{Value as Json, json};

use super::key::{Setting, Shape};
use crate::{commands::record::alerts::AlertSource, eve::EveTarget, units};

/// A type that is parsed from a text.
pub(crate) trait FromText: Sized + PartialEq {
    /// The form of the text, as a pattern of the JSON schema; empty: no pattern.
    const PATTERN: &'static str = "";
    /// Whether the JSON schema and the error messages name numbers in addition to texts.
    const TAKES_NUMBERS: bool = false;

    /// # Errors
    /// A sentence that says what to write instead.
    fn from_text(text: &str) -> Result<Self, String>;

    /// # Errors
    /// A message that says what to write instead.
    fn from_bool(_: bool) -> Result<Self, String> {
        Err("it takes a value, neither true nor false".to_owned())
    }
}

/// A value that [`FromText`] parses: from a text, from the digits of a number, or from a boolean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parsed<T>(pub(crate) T);

impl<T> Deref for Parsed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: FromText> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromText> Visitor<'_> for TextVisitor<T> {
    type Value = Parsed<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if T::TAKES_NUMBERS {
            "a text or a number"
        } else {
            "a text"
        })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        T::from_text(text).map(Parsed).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, is_on: bool) -> Result<Self::Value, E> {
        T::from_bool(is_on).map(Parsed).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        self.visit_str(&number.to_string())
    }
}

impl<T: FromText> Setting for Parsed<T> {
    /// # Panics
    /// The default is invalid. A test checks all defaults.
    fn unset(text: &str) -> Self {
        match T::from_text(text) {
            Ok(value) => Self(value),
            Err(why) => panic!("the default {text:?}: {why}"),
        }
    }

    fn schema() -> Json {
        let mut schema = match T::TAKES_NUMBERS {
            true => json!({ "type": ["string", "number"] }),
            false => json!({ "type": "string" }),
        };
        if T::from_bool(true).is_ok() {
            schema["type"] = json!(["boolean", "integer"]);
        } else if !T::PATTERN.is_empty() {
            schema["pattern"] = T::PATTERN.into();
        }
        schema
    }
}

impl<T: Setting> Setting for Option<T> {
    const SHAPE: Shape = match T::SHAPE {
        // An optional switch has a third state, so it takes a value.
        Shape::Switch => Shape::One,
        shape => shape,
    };
    const CHOICES: &'static [&'static str] = T::CHOICES;

    fn unset(_: &str) -> Self {
        None
    }

    fn schema() -> Json {
        T::schema()
    }
}

impl Setting for bool {
    const SHAPE: Shape = Shape::Switch;

    fn unset(text: &str) -> Self {
        text == "true"
    }

    fn schema() -> Json {
        json!({ "type": "boolean" })
    }
}

macro_rules! text_setting {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            fn unset(text: &str) -> Self {
                text.into()
            }

            fn schema() -> Json {
                json!({ "type": "string" })
            }
        }
    )*};
}
text_setting!(String, PathBuf);

/// The value of a key that may be one text or a list in TOML. Without the key the list is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List<T>(Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> List<Parsed<T>> {
    /// The values without [`Parsed`] around each value.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|it| &it.0)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(List(vec![T::deserialize(text.into_deserializer())?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(List)
    }
}

impl<T: Setting> Setting for List<T> {
    const SHAPE: Shape = Shape::List;

    fn unset(_: &str) -> Self {
        Self::default()
    }

    fn schema() -> Json {
        json!({ "anyOf": [T::schema(), { "type": "array", "items": T::schema() }] })
    }
}

impl<T: Setting> Setting for Vec<T> {
    const SHAPE: Shape = Shape::Table;
    const KEYS: &'static [super::key::Key] = T::KEYS;

    fn unset(_: &str) -> Self {
        Self::new()
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": T::schema() })
    }
}

/// A whole number of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number<const MIN: u32, const MAX: u32>(pub(crate) u32);

impl<const MIN: u32, const MAX: u32> FromText for Number<MIN, MAX> {
    const PATTERN: &'static str = "^[0-9]+$";
    const TAKES_NUMBERS: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|it| (MIN..=MAX).contains(it));
        let wrong = || match MAX {
            u32::MAX => format!("{text} is no whole number from {MIN} on"),
            _ => format!("{text} is no whole number from {MIN} to {MAX}"),
        };
        number.map(Self).ok_or_else(wrong)
    }
}

/// A number of packets or dumps, at least `MIN`. TOML has no number above `i64::MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count<const MIN: u64 = 0>(pub(crate) u64);

impl<const MIN: u64> FromText for Count<MIN> {
    const PATTERN: &'static str = "^[0-9]+$";
    const TAKES_NUMBERS: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        let range = MIN..=i64::MAX.unsigned_abs();
        let number = text.parse().ok().filter(|it| range.contains(it));
        let wrong = || format!("{text} is no whole number from {MIN} to {}", i64::MAX);
        number.map(Self).ok_or_else(wrong)
    }
}

/// A number of bytes, written with a unit: `4GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromText for Size {
    const PATTERN: &'static str = "^[0-9.]+ *[kKmMgGtT][iI]?[bB]?$";
    // `size` rejects numbers, because a size needs a unit.
    fn from_text(text: &str) -> Result<Self, String> {
        units::size(text).map(Self)
    }
}

/// A limit in bytes. 0: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeLimit(pub(crate) u64);

impl FromText for SizeLimit {
    const PATTERN: &'static str = "^(0|[0-9.]+ *[kKmMgGtT][iI]?[bB]?)$";
    const TAKES_NUMBERS: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        units::size_or_none(text).map(Self)
    }
}

impl FromText for Duration {
    const PATTERN: &'static str = "^[0-9.]+ *(ns|us|µs|ms|s|m|min|h|d)?$";
    const TAKES_NUMBERS: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        units::duration(text)
    }
}

/// `ted`: the minimum number of packets that each flow keeps, if tail early drop is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TailDrop(pub(crate) Option<u32>);

impl TailDrop {
    const MIN: u32 = 16;
}

impl FromText for TailDrop {
    const TAKES_NUMBERS: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        Number::<1, 4096>::from_text(text).map(|it| Self(Some(it.0)))
    }

    fn from_bool(is_on: bool) -> Result<Self, String> {
        Ok(Self(is_on.then_some(Self::MIN)))
    }
}

/// Default TIME of `cutoff`: after this time without a packet, a flow counts as a new flow, whose
/// first bytes are kept.
const REFILL: Duration = Duration::from_secs(60);

impl FromText for ClassCutoff {
    fn from_text(text: &str) -> Result<Self, String> {
        let (class, amount) = match text.rsplit_once('=') {
            Some((class, amount)) => (Some(class.to_owned()), amount),
            None => (None, text),
        };
        let (bytes, refill) = match amount.split_once('/') {
            Some((bytes, refill)) => (bytes, units::duration(refill)?),
            None => (amount, REFILL),
        };
        let bytes = units::size_or_none(bytes).map_err(|error| match &class {
            None => format!("{error}, or 'tcp port 443=20KiB' for a class of flows"),
            Some(_) => error,
        })?;
        let refill_ns = i64::try_from(refill.as_nanos()).unwrap_or(i64::MAX);
        if refill_ns == 0 {
            return Err("a flow is always silent for 0 s: say a longer time".to_owned());
        }
        let cutoff = Cutoff { bytes, refill_ns };
        Ok(Self { class, cutoff })
    }
}

impl FromText for Analyzers {
    const TAKES_NUMBERS: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "inline" => Ok(Self::Inline),
            number => match number.parse() {
                Ok(threads @ 1..=256_usize) => NonZeroUsize::new(threads).map(Self::Threads),
                _ => None,
            }
            .ok_or_else(|| {
                "it is 'inline', 'auto', or a number of threads from 1 to 256".to_owned()
            }),
        }
    }
}

impl FromText for RetentionLimit {
    fn from_text(text: &str) -> Result<Self, String> {
        keep(text)
    }
}

/// Parses the limits after which old dumps are deleted: a size, an age or both, as `50GiB,30d`.
///
/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn keep(text: &str) -> Result<RetentionLimit, String> {
    let mut keep = RetentionLimit::default();
    for part in text.split(',') {
        let is_second = match (units::size(part), units::duration(part)) {
            (Ok(_), Ok(_)) => {
                return Err(format!(
                    "{part:?} may be a size or a time: say 5MiB or 5min"
                ));
            }
            (Ok(bytes), Err(_)) => keep.bytes.replace(bytes).is_some(),
            // A number without a unit is neither a size nor an age.
            (Err(_), Ok(age)) if part.ends_with(char::is_alphabetic) => {
                keep.age.replace(age).is_some()
            }
            _ => {
                return Err(format!(
                    "{part:?} is neither a size nor a time: write it like 50GiB,30d"
                ));
            }
        };
        if is_second {
            return Err("a size and a time, each once, as 50GiB,30d".to_owned());
        }
    }
    Ok(keep)
}

impl FromText for ZstdLevel {
    const PATTERN: &'static str = "^zstd(:1?[0-9])?$";

    fn from_text(text: &str) -> Result<Self, String> {
        let (method, level) = text.split_once(':').unwrap_or((text, "3"));
        let level = level.parse().ok().and_then(Self::new);
        let level = level.filter(|_| method == "zstd");
        level.ok_or_else(|| "zstd, or zstd:LEVEL with a level of 1 to 19".to_owned())
    }
}

impl FromText for MinFree {
    fn from_text(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return units::size(text).map(Self::Bytes);
        };
        let percent = percent.parse::<f64>().ok();
        let percent = percent.filter(|percent| (0.0..100.0).contains(percent));
        let percent = percent.ok_or_else(|| "0% to 99%, or a size, as 20GiB".to_owned())?;
        Ok(Self::Percent(percent))
    }
}

macro_rules! by_function {
    ($($type:ty: $read:expr),* $(,)?) => {$(
        impl FromText for $type {
            fn from_text(text: &str) -> Result<Self, String> {
                $read(text).map_err(|error| error.to_string())
            }
        }
    )*};
}
by_function! {
    AlertSource: AlertSource::from_str,
    EveTarget: EveTarget::from_str,
    Address: Address::from_str,
    CpuList: CpuList::from_str,
    NameTemplate: NameTemplate::new,
    PostCommand: PostCommand::new,
    SubDirectory: SubDirectory::new,
}

/// Makes an enum whose variants are the values of a key.
macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
        #[serde(expecting = "a text")]
        pub(crate) enum $name { $($(#[$of])* #[serde(rename = $text)] $variant,)* }

        impl $crate::commands::record::config::Setting for $name {
            const CHOICES: &'static [&'static str] = &[$($text),*];

            /// # Panics
            /// The default is invalid. A test checks all defaults.
            fn unset(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)*
                    _ => panic!("{text:?} is no value"),
                }
            }

            fn schema() -> serde_json::Value {
                serde_json::json!({ "type": "string", "enum": Self::CHOICES })
            }
        }
    };
}
pub(crate) use choices;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept() {
        let read = |text| keep(text).map(|keep| (keep.bytes, keep.age));
        let day = Duration::from_secs(86_400);
        assert_eq!(read("50GiB"), Ok((Some(50 << 30), None)));
        assert_eq!(read("30d"), Ok((None, Some(30 * day))));
        assert_eq!(read("1GiB,2d"), Ok((Some(1 << 30), Some(2 * day))));
        assert_eq!(read("2d,1GiB"), read("1GiB,2d"));
        for bad in [
            "",
            "50",
            "5m",
            "x",
            "1GiB,",
            "1GiB,2GiB",
            "1d,2d",
            "1GiB,2d,3d",
            "1GiB 2d",
        ] {
            assert!(keep(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn room_that_is_left() {
        let min_free = MinFree::from_text;
        assert_eq!(min_free("10%"), Ok(MinFree::Percent(10.0)));
        assert_eq!(min_free("2.5%"), Ok(MinFree::Percent(2.5)));
        assert_eq!(min_free("20GiB"), Ok(MinFree::Bytes(20 << 30)));
        for bad in ["", "%", "10", "100%", "-1%", "NaN%", "x%"] {
            assert!(min_free(bad).is_err(), "{bad}");
        }
    }
}
