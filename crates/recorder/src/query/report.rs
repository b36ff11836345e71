//! The report of an answer.

use std::fmt;

use serde::{Serialize, Serializer};

use super::PacketId;
use crate::{Missing, Verdict, control::time::seconds, dump::report::packets};

/// The result of a query. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueryReport {
    /// Start of the window: as requested, or the time since which the ring is complete. If a limit
    /// cut off older packets (`newest`), the stamp of the first packet. `null`: the ring is empty.
    pub from: Option<String>,
    /// End of the window: as requested, or the latest time up to which the ring is sure to be
    /// complete. If a limit ended the answer, the stamp of the last packet.
    pub to: Option<String>,
    /// Packets in the answer.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub bytes: u64,
    /// Packets of the window that were compared with the query, including packets of buckets that
    /// the index ruled out. For a token with a filter, only packets in the answer.
    pub inspected: u64,
    /// Whether packets are missing: see [`Verdict`]. Never `failed`.
    pub verdict: Verdict,
    /// Missing packets: one entry for each cause; for losses before the ring, one entry for each
    /// source and cause.
    ///
    /// - `evicted`: overwritten, also because a follow was too slow.
    /// - `unpublished`: not published by a recorder that was killed or still runs.
    /// - `damaged`: the region contradicts itself.
    /// - `interface-limit`: packets of interfaces that the region does not list.
    /// - `restamped`: in the answer with a stamp of 1970, because pcapng has no earlier time.
    /// - `truncated`: packets in the answer from dumps of other recordings, with fewer bytes than
    ///   the query and the present snap length of their interface allow.
    /// - `not-recorded`: packets from the time of other recordings, of which only dumps are left.
    pub missing: Vec<Missing>,
    /// The reasons why the answer covers less than its window, without a loss. `start`: the window
    /// begins before the recording. `limit`: the answer reached a limit. `cancelled`: the answer
    /// was cancelled. `end`: the recording ended, in a follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clipped: Vec<&'static str>,
    /// The reason why the answer has no packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<Empty>,
    /// Time up to which `missing` has all losses before the ring: in the NIC, in the kernel, or
    /// because no bucket was free. `null`: unknown.
    pub losses_known_to: Option<String>,
    /// Packets from dumps, of the time that left the ring. Absent if no dump was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dumps: Option<AnswerDumps>,
    /// The use of the index. `None`: the index was not used, or the client sees only a part of the
    /// packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexUse>,
    /// Remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// For each producer, the ID of its last packet in the answer that is from the ring. A query
    /// with these IDs as `after` continues after this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub after: Vec<PacketId>,
}

/// Packets from dumps in an answer whose window begins before the ring.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnswerDumps {
    /// Dumps that were needed and whose file was opened, including files that end with an error.
    pub read: u64,
    /// Dumps that could not be used completely: for example deleted or damaged dumps, or dumps
    /// without packet IDs that overlap with other dumps.
    pub failed: u64,
    /// Packets of the answer that are from dumps.
    pub packets: u64,
    /// The first 64 dumps, by the start of their windows. Empty for tokens with a filter or a snap
    /// length, which get only the counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<DumpAnswer>,
    /// The first 64 time ranges that left the ring and that no dump is sure to cover completely:
    /// start and end, RFC 3339. Empty for tokens with a filter or a snap length.
    pub uncovered: Vec<[String; 2]>,
    /// The reason if the dumps could not be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<String>,
}

/// Packets of one dump in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DumpAnswer {
    /// The dump's ID, as in [`StoredDump::id`](crate::StoredDump::id).
    pub id: String,
    /// The dump's captures, without a directory.
    pub files: Vec<String>,
    /// Start of the dump's window, RFC 3339.
    pub from: String,
    /// End of the dump's window, RFC 3339.
    pub to: String,
    /// Packets of the answer that are from this dump. If several dumps have a packet, only one of
    /// the dumps counts the packet.
    pub packets: u64,
    /// The dump is of this recording, was read without an error, and its filter matches all packets
    /// that the query asks for, in at least one time range. The losses in the dump's own verdict
    /// still apply.
    pub covers: bool,
    /// The dump is one of the last 10,000 dumps that this recorder wrote since its start. For other
    /// dumps the losses are unknown.
    pub is_of_this_recording: bool,
    /// The reason why the dump is not in the answer, or not completely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Use of the index for closed buckets of a window. A query for the newest packets may read a
/// bucket twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexUse {
    /// Buckets that were not read: their filters show that they have no matching packet.
    pub ruled_out: u64,
    /// Buckets that had no filter yet: the query reads such a bucket, and tries to make a filter
    /// for the next query.
    pub made: u64,
    /// Buckets that were read because they may have a matching packet, or because only a part of
    /// the bucket is in the window.
    pub read: u64,
    /// Buckets that were read because their filter would have more than 10 % false positives, or
    /// because the index cannot read all of their packets.
    pub useless: u64,
}

/// The reason why an answer, or a dump that a trigger asks for, would have no packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "why", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Empty {
    /// The ring has no interface with a requested name.
    NoInterface {
        /// The interfaces of the ring.
        interfaces: Vec<String>,
    },
    /// Nothing was recorded yet.
    NothingRecorded,
    /// The window begins after the latest time that the recorder knows.
    NotYet {
        /// Time from the latest known time to the start of the window: ns, in JSON seconds.
        #[serde(rename = "seconds", serialize_with = "as_seconds")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        ns: u64,
    },
    /// The window ends before the oldest packet in the ring.
    AgedOut {
        /// Time from the end of the window to the oldest packet: ns, in JSON seconds.
        #[serde(rename = "seconds", serialize_with = "as_seconds")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        ns: u64,
    },
    /// The window ends before the recording began. Only triggers have this reason.
    NotRecorded {
        /// Time from the end of the window to the start of the recording: ns, in JSON seconds.
        #[serde(rename = "seconds", serialize_with = "as_seconds")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        ns: u64,
    },
    /// No inspected packet of the window matched.
    NothingMatched {
        /// Number of inspected packets; 0 for a token with a filter.
        of: u64,
    },
}

impl fmt::Display for Empty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |ns: &u64| seconds(i64::try_from(*ns).unwrap_or(i64::MAX));
        match self {
            Self::NoInterface { interfaces } if interfaces.is_empty() => {
                f.write_str("no such interface: there is none yet")
            }
            Self::NoInterface { interfaces } => {
                write!(f, "no such interface: there is {}", interfaces.join(", "))
            }
            Self::NothingRecorded => f.write_str("nothing was recorded yet"),
            Self::NotYet { ns } => write!(f, "not yet: it begins in {}", span(ns)),
            Self::AgedOut { ns } => write!(
                f,
                "aged out: its window ends {} before the oldest packet in the ring",
                span(ns)
            ),
            Self::NotRecorded { ns } => write!(
                f,
                "not recorded: its window ends {} before the recording began",
                span(ns)
            ),
            Self::NothingMatched { of: 0 } => f.write_str("no such packet at that time"),
            Self::NothingMatched { of } => write!(f, "nothing matched of {of} packets"),
        }
    }
}

fn as_seconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e9)
}

/// For example `; 12 packets from 2 dumps, 1 not read whole`. Empty without dumps, unless the dumps
/// could not be listed.
impl fmt::Display for AnswerDumps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.unlisted {
            write!(f, "; dumps not looked into: {why}")?;
        }
        if self.read + self.failed == 0 {
            return Ok(());
        }
        let plural = if self.read == 1 { "" } else { "s" };
        let (packets, read) = (packets(self.packets), self.read);
        write!(f, "; {packets} from {read} dump{plural}")?;
        match self.failed {
            0 => Ok(()),
            failed => write!(f, ", {failed} not read whole"),
        }
    }
}

impl QueryReport {
    /// The verdict with its reasons: `incomplete: up to 12 packets missing (evicted); losses before
    /// the ring unknown`.
    #[must_use]
    pub fn reasons(&self) -> String {
        let missing: Vec<String> = self.missing.iter().map(Missing::to_string).collect();
        let separator = if missing.is_empty() { "" } else { ": " };
        let verdict = self.verdict.as_str();
        let missing = missing.join(", ");
        let losses = match &self.losses_known_to {
            None => "; losses before the ring unknown".to_owned(),
            known if *known == self.to => String::new(),
            Some(known) => format!("; losses before the ring unknown after {known}"),
        };
        let empty = self.empty.as_ref();
        let empty = empty.map_or(String::new(), |why| format!("; {why}"));
        let (started, ended): (Vec<_>, Vec<_>) =
            self.clipped.iter().copied().partition(|by| *by == "start");
        let mut clipped = String::new();
        if !started.is_empty() {
            clipped.push_str(" (window clipped by the start of the recording)");
        }
        if !ended.is_empty() {
            clipped.push_str(&format!(" (ended by: {})", ended.join(", ")));
        }
        let dumps = self.dumps.as_ref().map(AnswerDumps::to_string);
        let dumps = dumps.unwrap_or_default();
        format!("{verdict}{separator}{missing}{losses}{empty}{dumps}{clipped}")
    }

    /// The report as a pcapng comment, which has at most 65,535 bytes. A report of more than 60,000
    /// bytes is shortened.
    pub(super) fn comment(&self) -> String {
        const ROOM: usize = 60_000;
        let json = |report: &Self| serde_json::to_string(report).unwrap_or_default();
        let whole = json(self);
        if whole.len() <= ROOM {
            return whole;
        }
        let mut short = Self {
            notes: vec!["remarks left out: there are too many".to_owned()],
            ..self.clone()
        };
        short.missing.truncate(64);
        short.dumps.iter_mut().for_each(|it| it.dumps.clear());
        short.after.truncate(256);
        let short = json(&short);
        if short.len() <= ROOM {
            return short;
        }
        json(&Self {
            missing: Vec::new(),
            empty: None,
            dumps: None,
            notes: vec!["details left out: there are too many".to_owned()],
            after: Vec::new(),
            ..self.clone()
        })
    }
}
