//! The answer as pcapng that may be read while it comes.
//!
//! Readers that take a pipe (tcpdump, tshark, capinfos) count neither custom blocks nor a second section right, so the verdict is a comment:
//! of the last packet, which waits here until it is known to be the last, and of each interface's statistics at the end.

use std::io;

use retroscope_packet::LinkType;
use retroscope_pcapfile::{Interface, InterfaceStatistics, PacketOptions, PcapNgWriter};
use retroscope_ring::InterfaceEntry;

use super::merge::Found;
use crate::dump::encode::{SNAPLEN, plain, section};

/// See the module.
#[derive(Debug)]
pub(super) struct Stream<W: io::Write> {
    writer: PcapNgWriter<W>,
    /// By number in the ring, the number in the file and the packets.
    interfaces: Vec<Option<(u32, u64)>>,
    last: Option<(u32, Found, Vec<u8>)>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Packets from before 1970, which pcapng cannot tell.
    pub(super) restamped: u64,
}

impl<W: io::Write> Stream<W> {
    pub(super) fn new(out: W, headline: &str) -> io::Result<Self> {
        Ok(Self {
            writer: PcapNgWriter::new(out, &section(headline, None)).map_err(plain)?,
            interfaces: Vec::new(),
            last: None,
            packets: 0,
            bytes: 0,
            restamped: 0,
        })
    }

    /// Adds a packet of an interface of the ring.
    pub(super) fn packet(
        &mut self,
        entry: &InterfaceEntry,
        packet: &Found,
        data: &[u8],
    ) -> io::Result<()> {
        let mut memory = self.write_last(&[])?;
        memory.clear();
        memory.extend_from_slice(data);
        let (index, packets) = self.interface(packet.interface, entry)?;
        *packets += 1;
        self.last = Some((*index, packet.clone(), memory));
        self.packets += 1;
        self.bytes += data.len() as u64;
        self.restamped += u64::from(packet.stamp_ns < 0);
        Ok(())
    }

    /// Writes what is left, with the verdict. `span` is the window that was asked for, ns.
    pub(super) fn finish(
        mut self,
        verdict: &str,
        entries: &[InterfaceEntry],
        span: (Option<i64>, Option<i64>),
    ) -> io::Result<()> {
        self.write_last(&[verdict])?;
        if self.packets == 0 {
            for (number, entry) in (0..).zip(entries) {
                self.interface(number, entry)?;
            }
        }
        let mut interfaces: Vec<(u32, u64)> = self.interfaces.into_iter().flatten().collect();
        interfaces.sort_unstable();
        for (index, packets) in interfaces {
            let statistics = InterfaceStatistics {
                time_ns: span.1.or(span.0).unwrap_or(0),
                start_ns: span.0,
                end_ns: span.1,
                delivered: Some(packets),
                ..InterfaceStatistics::default()
            };
            self.writer
                .statistics(index, &statistics, &[verdict])
                .map_err(plain)?;
        }
        self.writer.finish().map(drop).map_err(plain)
    }

    /// Writes the packet that waits, and gives its memory back.
    fn write_last(&mut self, comments: &[&str]) -> io::Result<Vec<u8>> {
        let Some((index, packet, data)) = self.last.take() else {
            return Ok(Vec::new());
        };
        let options = PacketOptions {
            flags: (packet.direction != 0).then(|| u32::from(packet.direction)),
            comments,
        };
        self.writer
            .packet(index, packet.stamp_ns, packet.wire_len, &data, &options)
            .map_err(plain)?;
        Ok(data)
    }

    fn interface(&mut self, number: u16, entry: &InterfaceEntry) -> io::Result<&mut (u32, u64)> {
        let number = usize::from(number);
        if number >= self.interfaces.len() {
            self.interfaces.resize(number + 1, None);
        }
        match &mut self.interfaces[number] {
            Some(known) => Ok(known),
            place => {
                let block = Interface {
                    name: entry.name.clone(),
                    snaplen: SNAPLEN,
                    ..Interface::new(LinkType(entry.link_type))
                };
                let index = self.writer.add_interface(&block).map_err(plain)?;
                Ok(place.insert((index, 0)))
            }
        }
    }
}
