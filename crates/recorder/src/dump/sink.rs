//! Messages between the dumper and the writing threads about a dump's files.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use super::{encode::InterfaceTotals, output::WrittenTotals, report::packets, store::StoredFile};
use crate::control::time::rfc3339;

/// The contents of a sink's files.
#[derive(Debug, Clone, Default)]
pub(super) struct SinkContents {
    /// Packets that are wholly in incomplete files. 0 after the files are complete.
    pub(super) safe: WrittenTotals,
    /// Paths of the files, with `.part` names until the files are complete. Before any file exists,
    /// the planned path of the first file.
    pub(super) locations: Vec<PathBuf>,
    pub(super) id: String,
    /// The sidecar's list of the captures.
    pub(super) files: Vec<StoredFile>,
    /// The plain captures that compressed captures replace.
    pub(super) replaced: Vec<StoredFile>,
    /// Ring-wide identifiers of the files' interfaces, in the order of their interface blocks.
    pub(super) interfaces: Vec<u16>,
    /// A note for the user.
    pub(super) note: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct SinkEnd {
    pub(super) verdict: String,
    /// Counters by ring-wide identifier of the interface.
    pub(super) totals: BTreeMap<u16, InterfaceTotals>,
}

/// Packets of a window that the dump lacks, because the ring overwrote them or needed their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketGap {
    /// `None`: unknown. Overwritten packets are counted before the dump's filter.
    pub(super) packets: Option<u64>,
    /// `false`: `packets` is an upper bound.
    pub(super) is_exact: bool,
    /// Stamp of the first lost packet, or a lower bound, ns since the epoch.
    pub(super) from_ns: i64,
    /// Stamp of the last lost packet, or an upper bound, ns since the epoch.
    pub(super) to_ns: i64,
}

impl PacketGap {
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
        let packets = packets.unwrap_or("an unknown number of packets".to_owned());
        let (from, to) = (rfc3339(self.from_ns), rfc3339(self.to_ns));
        write!(
            f,
            "retroscope: {packets} overwritten before they were written, from {from} to {to}"
        )
    }
}
