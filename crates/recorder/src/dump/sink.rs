//! What a dump is written into: a file today. Packets come to it in order, from a worker of the [pool](super::pool) or, from files, from
//! the dumper itself.

use std::{collections::BTreeMap, fmt, io, path::PathBuf, sync::Arc};

use retroscope_alert::Alert;

use super::{
    encode::InterfaceTotals,
    output::Written,
    packet::PacketMeta,
    report::{UNKNOWN, packets},
    sidecar::Sidecar,
    spaced::Spaced,
    store::StoredFile,
};
use crate::{control::time::rfc3339, intake::interfaces::Interface};

/// See the module. All but [`Self::held`] and [`Self::close_files`] may take as long as a disk or a network does. After an error nothing more
/// is written into it.
pub(super) trait Sink: fmt::Debug + Send {
    /// Describes an interface, before the first of its packets. One that is described before the sink is created stands in it without a
    /// packet.
    fn interface(&mut self, id: u16, interface: &Arc<Interface>);

    /// Makes what is written to. Called once, before packets.
    ///
    /// # Errors
    /// As of the others: what the system said, in words for the user.
    fn create(&mut self) -> io::Result<()>;

    /// Takes a packet. `aside`: older ones may follow, and it waits for the end to be sorted in.
    fn packet(&mut self, meta: &PacketMeta, data: &[u8], aside: bool) -> io::Result<()>;

    /// Takes packets that lie in a block of a pcapng file. Returned is how many bytes of the file are before them, if it is one.
    fn spaced(&mut self, spaced: Spaced) -> io::Result<u64> {
        for (meta, data) in spaced.packets() {
            self.packet(meta, data, false)?;
        }
        Ok(0)
    }

    /// Something is missing between the packets before and those after this call.
    fn gap(&mut self, gap: &Gap);

    /// Packets that it has with the stamp of an alert, and are the alerted ones, are to be marked in the end, where the format can.
    fn mark(&mut self, _: &Arc<Alert>) {}

    /// Hands what it took to where others see it.
    fn flush(&mut self) -> io::Result<()>;

    /// Completes it and makes it last. Then only [`Self::compress`], [`Self::amend`] and
    /// [`Self::sidecar`] are called.
    fn finish(&mut self, end: &End) -> io::Result<()>;

    /// Makes compressed copies of the complete files. After success ([`Held::replaced`]), the next
    /// [`Self::sidecar`] removes the plain files. May take hours.
    fn compress(&mut self);

    /// Changes the verdict of what is complete.
    fn amend(&mut self, verdict: &str) -> io::Result<()>;

    /// Puts this beside it, with what it knows of its own files, in the place of the last one if there was one. False: there is no place for it.
    fn sidecar(&mut self, sidecar: &Sidecar) -> io::Result<bool>;

    /// What it holds now.
    fn held(&self) -> Held;

    /// How many descriptors it has open.
    fn open_files(&self) -> usize;

    /// Gives them back; it opens them again when it needs them.
    fn close_files(&mut self);
}

/// What a sink holds.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// Packets that are wholly there, whatever happens next.
    pub(super) safe: Written,
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
pub(super) struct End {
    /// The verdict's line.
    pub(super) verdict: String,
    /// By ring-wide identifier, of all interfaces that may be described.
    pub(super) totals: BTreeMap<u16, InterfaceTotals>,
}

/// Packets of a window that were overwritten in the ring while the dump was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    /// Before the dump's filter; `None`: unknown.
    pub(super) packets: Option<u64>,
    /// Stamps of the first and the last of them as well as they are known, ns since the epoch.
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
}

impl Gap {
    /// Both.
    pub(super) fn with(self, other: Self) -> Self {
        let packets = self.packets.zip(other.packets);
        Self {
            packets: packets.map(|(one, two)| one + two),
            from_ns: self.from_ns.min(other.from_ns),
            to_ns: self.to_ns.max(other.to_ns),
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packets = self.packets.map_or(UNKNOWN.to_owned(), packets);
        let (from, to) = (rfc3339(self.from_ns), rfc3339(self.to_ns));
        write!(
            f,
            "retroscope: {packets} overwritten before they were written, from {from} to {to}"
        )
    }
}
