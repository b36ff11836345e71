//! Writes the answer as pcapng that may be read at the same time.
//!
//! Programs that read a pipe (tcpdump, tshark, capinfos) miscount custom blocks and a second
//! section. So the verdict becomes a comment of the last packet, if that packet still waits here
//! when the answer ends.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{FileInterface, InterfaceStatistics, PacketOptions, PcapNgWriter};
use retroscope_ring::InterfaceEntry;

use super::{Recording, merge::MatchedPacket};
use crate::{
    dump::encode::{SNAPLEN, comment, plain, section},
    intake::InterfaceCounts,
};

/// The pcapng output of an answer.
#[derive(Debug)]
pub(super) struct AnswerStream<W: io::Write> {
    writer: PcapNgWriter<W>,
    recording: Recording,
    snaplen: u32,
    /// By number in the answer: number in the file, and packets.
    interfaces: BTreeMap<u16, (u32, u64)>,
    last: Option<(u32, MatchedPacket, Vec<u8>)>,
    is_flushed: bool,
}

/// Values that the statistics of all interfaces share.
#[derive(Debug)]
pub(super) struct AnswerStatistics<'a> {
    /// The report as JSON.
    pub(super) report: &'a str,
    /// Time at which the recording began, ns since the epoch.
    pub(super) start_ns: Option<i64>,
    /// Start and end of the window, ns.
    pub(super) span_ns: (Option<i64>, Option<i64>),
}

impl<W: io::Write> AnswerStream<W> {
    /// Writes the file's section header at once, before any packet.
    pub(super) fn new(
        out: W,
        headline: &str,
        snaplen: Option<u32>,
        recording: Recording,
    ) -> io::Result<Self> {
        let mut stream = Self {
            writer: PcapNgWriter::new(out, &section(headline, [comment(recording)]))
                .map_err(plain)?,
            recording,
            snaplen: snaplen.unwrap_or(SNAPLEN).min(SNAPLEN),
            interfaces: BTreeMap::new(),
            last: None,
            is_flushed: false,
        };
        stream.flush()?;
        Ok(stream)
    }

    /// Writes the packet that waits, and lets this packet wait.
    pub(super) fn packet(
        &mut self,
        entry: &InterfaceEntry,
        packet: &MatchedPacket,
        data: &[u8],
    ) -> io::Result<()> {
        let mut memory = self.write_last(&[])?;
        memory.clear();
        memory.extend_from_slice(data);
        let (index, packets) = self.interface(packet.interface, entry)?;
        *packets += 1;
        self.last = Some((*index, packet.clone(), memory));
        Ok(())
    }

    /// Adds the blocks of those interfaces that have no block yet.
    pub(super) fn interfaces<'e>(
        &mut self,
        entries: impl Iterator<Item = (u16, &'e InterfaceEntry)>,
    ) -> io::Result<()> {
        for (number, entry) in entries {
            self.interface(number, entry)?;
        }
        Ok(())
    }

    /// Writes the packet that waits, with this verdict as a comment.
    pub(super) fn let_go(&mut self, verdict: Option<&str>) -> io::Result<()> {
        self.write_last(verdict.as_slice()).map(drop)
    }

    pub(super) fn holds_back(&self) -> bool {
        self.last.is_some()
    }

    /// Writes statistics of each interface that has a block.
    pub(super) fn statistics(
        &mut self,
        all: &AnswerStatistics<'_>,
        counts: impl Fn(u16) -> InterfaceCounts,
    ) -> io::Result<()> {
        let numbered = self.interfaces.iter();
        let mut interfaces: Vec<_> = numbered
            .map(|(number, (index, packets))| (*index, *number, *packets))
            .collect();
        interfaces.sort_unstable();
        let (from_ns, to_ns) = all.span_ns;
        for (index, number, packets) in interfaces {
            let counts = counts(number);
            let since_start = counts.received.and(all.start_ns);
            let statistics = InterfaceStatistics {
                time_ns: to_ns.or(from_ns).unwrap_or(0),
                start_ns: since_start.or(from_ns),
                end_ns: to_ns,
                received: counts.received,
                dropped: counts.dropped,
                os_dropped: counts.os_dropped,
                delivered: Some(packets),
            };
            self.is_flushed = false;
            self.writer
                .statistics(index, &statistics, &[all.report])
                .map_err(plain)?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.is_flushed {
            self.writer.inner_mut().flush()?;
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Writes the waiting packet, and returns its memory for reuse.
    fn write_last(&mut self, comments: &[&str]) -> io::Result<Vec<u8>> {
        let Some((index, packet, data)) = self.last.take() else {
            return Ok(Vec::new());
        };
        let id = packet.id(self.recording);
        let options = PacketOptions {
            flags: (packet.direction != 0).then(|| u32::from(packet.direction)),
            dropped: (packet.dropped > 0).then_some(packet.dropped),
            id: id.map(|id| id.0),
            comments,
        };
        self.is_flushed = false;
        self.writer
            .packet(index, packet.stamp_ns, packet.wire_len, &data, &options)
            .map_err(plain)?;
        Ok(data)
    }

    fn interface(&mut self, number: u16, entry: &InterfaceEntry) -> io::Result<&mut (u32, u64)> {
        match self.interfaces.entry(number) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let block = FileInterface {
                    name: entry.name.clone(),
                    snaplen: self.snaplen,
                    ..FileInterface::new(LinkType(entry.link_type))
                };
                self.is_flushed = false;
                let index = self.writer.add_interface(&block).map_err(plain)?;
                Ok(place.insert((index, 0)))
            }
        }
    }
}
