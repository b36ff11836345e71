//! What one payload term asks.

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;
use regex::bytes::Regex;

/// A question about a payload.
///
/// A clone of a pattern remembers its searches apart from the original, so that threads do not wait for each other.
#[derive(Debug, Clone)]
pub(crate) enum Test {
    Contains(Box<Finder<'static>>),
    StartsWith(Box<[u8]>),
    Matches(Regex),
}

impl Test {
    pub(super) fn contains(needle: &[u8]) -> Self {
        Self::Contains(Box::new(Finder::new(needle).into_owned()))
    }

    pub(super) fn starts_with(prefix: Vec<u8>) -> Self {
        Self::StartsWith(prefix.into_boxed_slice())
    }

    pub(super) fn matches(pattern: Regex) -> Self {
        Self::Matches(pattern)
    }

    /// The string that must be somewhere in the payload, if that is all.
    pub(crate) fn needle(&self) -> Option<&[u8]> {
        match self {
            Self::Contains(finder) => Some(finder.needle()),
            _ => None,
        }
    }

    /// The answer. Takes time linear in the payload.
    #[inline]
    pub(crate) fn holds(&self, payload: &[u8]) -> bool {
        match self {
            Self::Contains(finder) => finder.find(payload).is_some(),
            Self::StartsWith(prefix) => payload.starts_with(prefix),
            Self::Matches(pattern) => pattern.is_match(payload),
        }
    }
}

/// Whether any of many strings is in a payload: one pass for all of them.
#[derive(Debug, Clone)]
pub(crate) struct AnyString(AhoCorasick);

impl AnyString {
    /// `None` for more strings than an automaton can hold.
    pub(crate) fn new<'n>(needles: impl IntoIterator<Item = &'n [u8]>) -> Option<Self> {
        AhoCorasick::new(needles).ok().map(Self)
    }

    #[inline]
    pub(crate) fn holds(&self, payload: &[u8]) -> bool {
        self.0.is_match(payload)
    }
}
