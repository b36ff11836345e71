//! Messages between the dumper and the writing threads about a dump's files.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use super::{
    encode::InterfaceTotals,
    output::WrittenTotals,
    report::{UNKNOWN, packets},
    store::StoredFile,
};
use crate::control::time::rfc3339;

/// What a sink holds.
#[derive(Debug, Clone, Default)]
pub(super) struct SinkContents {
    /// Packets that are wholly there, whatever happens next.
    pub(super) safe: WrittenTotals,
    /// Where they are: paths, under their `.part` names as long as it is not complete. At least one.
    pub(super) locations: Vec<PathBuf>,
    /// What it is called among the dumps.
    pub(super) id: String,
    /// Its captures, as its sidecar lists them.
    pub(super) files: Vec<StoredFile>,
    /// The plain captures that compressed ones replace, as the sidecar listed them.
    pub(super) replaced: Vec<StoredFile>,
    /// Ring-wide identifiers of the interfaces that are described in it, in their order.
    pub(super) interfaces: Vec<u16>,
    /// What its user should know.
    pub(super) note: Option<String>,
}

/// The end of a dump.
#[derive(Debug, Clone, Default)]
pub(super) struct SinkEnd {
    /// The verdict's line.
    pub(super) verdict: String,
    /// By ring-wide identifier, of all interfaces that may be described.
    pub(super) totals: BTreeMap<u16, InterfaceTotals>,
}

/// Packets of a window that were overwritten in the ring while the dump was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketGap {
    /// Before the dump's filter; `None`: unknown.
    pub(super) packets: Option<u64>,
    /// `false`: `packets` is an upper bound.
    pub(super) is_exact: bool,
    /// Stamps of the first and the last of them as well as they are known, ns since the epoch.
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
}

impl PacketGap {
    /// Both.
    pub(super) fn with(self, other: Self) -> Self {
        let packets = self.packets.zip(other.packets);
        Self {
            packets: packets.map(|(one, two)| one + two),
            is_exact: self.is_exact && other.is_exact,
            from_ns: self.from_ns.min(other.from_ns),
            to_ns: self.to_ns.max(other.to_ns),
        }
    }
}

impl fmt::Display for PacketGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up_to = if self.is_exact { "" } else { "up to " };
        let packets = self
            .packets
            .map(|count| format!("{up_to}{}", packets(count)));
        let packets = packets.unwrap_or(UNKNOWN.to_owned());
        let (from, to) = (rfc3339(self.from_ns), rfc3339(self.to_ns));
        write!(
            f,
            "retroscope: {packets} overwritten before they were written, from {from} to {to}"
        )
    }
}
