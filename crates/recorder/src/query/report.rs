//! What an answer says of itself.

use std::fmt;

use serde::{Serialize, Serializer};

use super::PacketId;
use crate::{Missing, Verdict, control::time::seconds, dump::report::packets};

/// What a query found. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueryReport {
    /// Start of the window: as asked, else the time since which all is there. `null`: the ring is empty.
    pub from: Option<String>,
    /// End of the window: as asked, else the latest time up to which the ring is sure to have all. Where a limit ended the answer, its
    /// last packet; the newest packets of a limited number begin with their first.
    pub to: Option<String>,
    /// Packets in the answer.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub bytes: u64,
    /// Packets of the window that were asked whether they match, those of buckets among them that the index ruled out. Where
    /// a part of packets is asked for, those in the answer only.
    pub inspected: u64,
    /// See [`Verdict`]; never `failed`.
    pub verdict: Verdict,
    /// What is missing, one entry a cause, or source and cause for what was lost before the ring: `evicted` (also what a follow was too slow
    /// for), `unpublished` (a recorder that was killed, or goes on, had not shown it), `damaged` (the
    /// region contradicts itself), `interface-limit` (of interfaces that the region does not list), `restamped` (in the answer as of 1970:
    /// pcapng has no earlier time), `truncated` (in the answer with fewer bytes than their interface gives now, of dumps of other recordings),
    /// `restart` (the time in which no recorder ran, of answers that go back further than this recording), `not-recorded` (of the time of other recordings, of which only dumps are left).
    pub missing: Vec<Missing>,
    /// What ended the answer before its window does, without losing anything: `limit`, `cancelled`, `end` (of the recording, in a follow).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clipped: Vec<&'static str>,
    /// Why there is no packet in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<Empty>,
    /// Up to when `missing` has what was lost before the ring: in the NIC, in the kernel, for want of a free bucket. `null`: it does not tell.
    pub losses_known_to: Option<String>,
    /// What dumps gave of the time that has left the ring; absent where no dump was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dumps: Option<FromDumps>,
    /// What the index did; `None`: it was not asked, or who asks sees a part of the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexUse>,
    /// Remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The last packet of each producer in the answer: with these as `after` another one goes on behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub after: Vec<PacketId>,
}

/// What dumps gave to an answer whose window begins before the ring.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FromDumps {
    /// Dumps that were looked into.
    pub read: u64,
    /// Those that are not in the answer as they should be: deleted, damaged, or unreadable.
    pub failed: u64,
    /// Packets of the answer that are from dumps.
    pub packets: u64,
    /// The first 64 dumps, by the start of their windows. None for who may not ask for dumps: tokens with a filter or a snap length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<DumpAnswer>,
    /// The first 64 stretches that have left the ring and that no dump is sure to have all of: start and end, RFC 3339. None for the same.
    pub uncovered: Vec<[String; 2]>,
    /// Why there is no list of dumps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<String>,
}

/// What a dump gave to an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DumpAnswer {
    /// See [`StoredDump::id`](crate::StoredDump::id).
    pub id: String,
    /// Its captures, without a directory.
    pub files: Vec<String>,
    /// Start of its window, RFC 3339.
    pub from: String,
    /// End of its window.
    pub to: String,
    /// Packets of the answer that are from it; of those that several dumps have, one of them gave each.
    pub packets: u64,
    /// It takes all that the query asks for, and has all of its window but what its own verdict names.
    pub covers: bool,
    /// This recorder wrote it since its start; of other recordings nobody knows what their dumps lack.
    pub is_of_this_recording: bool,
    /// Why it is not in the answer, or not all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of closed buckets of a window by the index. They may be read twice for the newest packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexUse {
    /// Buckets that were not read: their filters show that they have no such packet.
    pub ruled_out: u64,
    /// Buckets that were read, and of which a filter was made for the next query.
    pub made: u64,
    /// Buckets that were read because they may have such a packet, or because only a part of the
    /// bucket is in the window.
    pub read: u64,
    /// Buckets that were read because their filter would have more than 10 % false positives, or
    /// because the index cannot read all of their packets.
    pub useless: u64,
}

/// Why an answer, or a dump that a trigger asks for, would have no packets. The text is a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "why", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Empty {
    /// The ring has none of the interfaces that were named.
    NoInterface {
        /// Those that it has.
        interfaces: Vec<String>,
    },
    /// Nothing was recorded at all yet.
    NothingRecorded,
    /// The window begins later than the recorder knows of.
    NotYet {
        /// How much later, ns.
        #[serde(rename = "seconds", serialize_with = "as_seconds")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        ns: u64,
    },
    /// The window ends before the oldest packet in the ring.
    AgedOut {
        /// How long before, ns.
        #[serde(rename = "seconds", serialize_with = "as_seconds")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        ns: u64,
    },
    /// The window ends before the recording began. Only triggers have this reason.
    NotRecorded {
        /// How long before, ns.
        #[serde(rename = "seconds", serialize_with = "as_seconds")]
        #[cfg_attr(feature = "openapi", schema(value_type = f64))]
        ns: u64,
    },
    /// All packets of the window were looked at.
    NothingMatched {
        /// How many there were.
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

/// `; 12 packets from 2 dumps, 1 of them not read whole`; nothing, where there was none.
impl fmt::Display for FromDumps {
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
    /// The verdict with its reasons: `incomplete: up to 12 packets evicted; losses before the ring unknown`.
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
        let clipped = match self.clipped.as_slice() {
            [] => String::new(),
            by => format!(" (ended by: {})", by.join(", ")),
        };
        let dumps = self.dumps.as_ref().map(FromDumps::to_string);
        let dumps = dumps.unwrap_or_default();
        format!("{verdict}{separator}{missing}{losses}{empty}{dumps}{clipped}")
    }

    /// The report as a comment of a file, which has room for 65,535 bytes: without remarks where they are too long, and where that is not
    /// enough only with its sums.
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
