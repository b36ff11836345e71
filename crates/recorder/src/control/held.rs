//! From when on the ring may have packets: what asks for earlier ones would dump nothing.

use std::fmt;

use crate::control::time::seconds;

/// Why the ring has none of the packets that a trigger asks for. Its text is a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// They were overwritten, or could have been.
    AgedOut {
        /// How long before what the ring still has its window ends, ns.
        ns: u64,
    },
    /// The recording began later.
    NotRecorded {
        /// How long before it its window ends, ns.
        ns: u64,
    },
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::AgedOut { ns } | Self::NotRecorded { ns }) = self;
        let by = seconds(i64::try_from(*ns).unwrap_or(i64::MAX));
        match self {
            Self::AgedOut { .. } => {
                write!(
                    f,
                    "aged out: its window ends {by} before what the ring still has"
                )
            }
            Self::NotRecorded { .. } => {
                write!(
                    f,
                    "not recorded: its window ends {by} before the recording began"
                )
            }
        }
    }
}

/// What a ring has, in ring time, ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// When the recording began.
    pub(crate) begun_ns: i64,
    /// The oldest packet that is there; `None`: there is none.
    pub(crate) oldest_ns: Option<i64>,
    /// The newest one that was overwritten; `None`: none was.
    pub(crate) evicted_ns: Option<i64>,
}

impl Held {
    /// Why nothing until `end_ns` is there. `None`: something may be, or nothing came then.
    pub(crate) fn gone(&self, end_ns: i64) -> Option<Gone> {
        if self.oldest_ns.is_some_and(|oldest_ns| oldest_ns <= end_ns) {
            return None;
        }
        if end_ns < self.begun_ns {
            let ns = self.begun_ns.abs_diff(end_ns);
            return Some(Gone::NotRecorded { ns });
        }
        let evicted_ns = self.evicted_ns.filter(|evicted_ns| end_ns <= *evicted_ns)?;
        let ns = self.oldest_ns.unwrap_or(evicted_ns).abs_diff(end_ns);
        Some(Gone::AgedOut { ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_from_what_never_came() {
        let held = |oldest_ns, evicted_ns| Held {
            begun_ns: 100,
            oldest_ns,
            evicted_ns,
        };
        let before = Some(Gone::NotRecorded { ns: 10 });
        for held in [
            held(None, None),
            held(Some(120), None),
            held(Some(300), Some(200)),
        ] {
            assert_eq!(held.gone(90), before);
        }
        // Of a clock of its own, as it seems.
        assert_eq!(held(Some(80), None).gone(90), None);
        // A link that was silent.
        assert_eq!(held(None, None).gone(100), None);
        assert_eq!(held(Some(300), None).gone(150), None);
        let gone = |end_ns| held(Some(300), Some(200)).gone(end_ns);
        assert_eq!(gone(200), Some(Gone::AgedOut { ns: 100 }));
        assert_eq!((gone(201), gone(300)), (None, None));
        // Not all that is older was overwritten.
        assert_eq!(held(Some(180), Some(200)).gone(190), None);
    }
}
