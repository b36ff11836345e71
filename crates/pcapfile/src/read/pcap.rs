//! The classic format: a 24-byte header, then records, usually with 16-byte headers.
//!
//! The parser follows libpcap 1.10 with two exceptions. Seconds and their fractions are unsigned,
//! as in the format's description. libpcap treats both as signed, so its times end in 2038.
//! Reserved bits in the link type field are refused, as in newer versions of libpcap.

use retroscope_packet::LinkType;

use super::{ParseFault, ParsedItem, record::RecordMeta};
use crate::{
    ByteOrder, FileFormat, FileInterface, PcapOptions, Resolution,
    format::{LINK_TYPE_EXTRA, MAGIC_MICRO, MAGIC_NANO, captured_len_max, effective_snaplen},
};

/// Bytes of the file header.
pub(super) const FILE_HEADER_BYTES: usize = 24;

/// Bytes of a record header.
const RECORD_HEADER_BYTES: usize = 16;

/// Bytes of a record header in a file with [`MAGIC_MODIFIED`]: interface index, protocol and packet
/// type follow the usual 16 bytes.
const RECORD_HEADER_MODIFIED_BYTES: usize = 24;

/// First bytes of files from Alexey Kuznetzov's patched libpcap, which old Red Hat systems had.
const MAGIC_MODIFIED: u32 = 0xa1b2_cd34;

/// Bits of the link type field that must be zero.
const LINK_TYPE_RESERVED: u32 = 0x03ff_0000;

/// The order of the two lengths of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LengthOrder {
    /// First the captured length, then the length on the wire.
    CapturedFirst,
    /// First the length on the wire: versions before 2.3, and 543.0 of DG/UX.
    WireFirst,
    /// Any order; the smaller number is the captured length: version 2.3.
    Smaller,
}

/// The parser of one file, made from its header.
#[derive(Debug)]
pub(super) struct PcapParser {
    byte_order: ByteOrder,
    resolution: Resolution,
    record_header_bytes: usize,
    lengths: LengthOrder,
    /// Longer records are truncated to this length.
    snaplen: u32,
    /// Longer records are damage.
    captured_len_max: u32,
}

/// The byte order of a file that starts with `magic`, if it is a pcap file.
pub(super) fn recognise(magic: &[u8]) -> Option<ByteOrder> {
    [ByteOrder::Little, ByteOrder::Big]
        .into_iter()
        .find(|order| {
            matches!(
                order.u32(magic, 0),
                MAGIC_MICRO | MAGIC_NANO | MAGIC_MODIFIED
            )
        })
}

impl PcapParser {
    /// Parses the file header, whose magic number was recognised. Panics unless the header is
    /// complete.
    pub(super) fn new(
        header: &[u8],
        byte_order: ByteOrder,
    ) -> Result<(Self, FileFormat, FileInterface), ParseFault> {
        let magic = byte_order.u32(header, 0);
        let (major, minor) = (byte_order.u16(header, 4), byte_order.u16(header, 6));
        let lengths = match (major, minor) {
            (2, 4) => LengthOrder::CapturedFirst,
            (2, 3) => LengthOrder::Smaller,
            (2, 0..=2) | (543, 0) => LengthOrder::WireFirst,
            _ => {
                return Err(ParseFault::unsupported(
                    4,
                    format!("pcap version {major}.{minor} is not one of 2.0 to 2.4"),
                ));
            }
        };
        let snaplen = byte_order.u32(header, 16);
        let network = byte_order.u32(header, 20);
        if network & LINK_TYPE_RESERVED != 0 {
            return Err(ParseFault::unsupported(
                20,
                format!("the link type field {network:#010x} has reserved bits set"),
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the other bits are the extra ones, kept beside it"
        )]
        let link_type = LinkType(network as u16);
        let resolution = if magic == MAGIC_NANO {
            Resolution::Nano
        } else {
            Resolution::Micro
        };
        let modified = magic == MAGIC_MODIFIED;
        // The patched libpcap may add an Ethernet header of 14 bytes to a packet after it truncates
        // the packet to the snap length.
        let header_added = if modified && link_type == LinkType::ETHERNET {
            14
        } else {
            0
        };
        let parser = Self {
            byte_order,
            resolution,
            record_header_bytes: if modified {
                RECORD_HEADER_MODIFIED_BYTES
            } else {
                RECORD_HEADER_BYTES
            },
            lengths,
            snaplen: effective_snaplen(snaplen, link_type) + header_added,
            captured_len_max: captured_len_max(link_type),
        };
        let format = FileFormat {
            byte_order,
            compression: None,
            pcap: Some(PcapOptions {
                link_type,
                link_type_extra: network & LINK_TYPE_EXTRA,
                snaplen,
                resolution,
                byte_order,
            }),
        };
        let interface = FileInterface {
            snaplen,
            resolution_ns: u64::from(resolution.ns()),
            ..FileInterface::new(link_type)
        };
        Ok((parser, format, interface))
    }

    /// Parses the record at the start of `bytes`.
    #[inline]
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<ParsedItem, ParseFault> {
        if bytes.len() < self.record_header_bytes {
            return Ok(ParsedItem::Short {
                need: self.record_header_bytes,
                what: "a record header",
            });
        }
        let header = &bytes[..RECORD_HEADER_BYTES];
        let (seconds, fraction) = (
            self.byte_order.u32(header, 0),
            self.byte_order.u32(header, 4),
        );
        let (first, second) = (
            self.byte_order.u32(header, 8),
            self.byte_order.u32(header, 12),
        );
        let (stored_len, wire_len) = match self.lengths {
            LengthOrder::CapturedFirst => (first, second),
            LengthOrder::WireFirst => (second, first),
            LengthOrder::Smaller => (first.min(second), first.max(second)),
        };
        if stored_len > self.captured_len_max {
            return Err(ParseFault::damage(format!(
                "a record claims {stored_len} captured bytes, {} is the most for its link type",
                self.captured_len_max
            )));
        }
        let size = self.record_header_bytes + stored_len as usize;
        if bytes.len() < size {
            return Ok(ParsedItem::Short {
                need: size,
                what: "a record",
            });
        }
        // At most 2^32 * 10^9 + 2^32 * 1000 < 2^63.
        let time_ns = i64::from(seconds) * 1_000_000_000
            + i64::from(fraction) * i64::from(self.resolution.ns());
        let meta = RecordMeta {
            id: None,
            time_ns,
            offset: self.record_header_bytes,
            captured_len: stored_len.min(self.snaplen),
            wire_len,
            interface: 0,
            flags: None,
        };
        Ok(ParsedItem::Record { meta, size })
    }
}
