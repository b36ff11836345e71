//! pcapng: sections of blocks. Each block has its length at both ends.
//!
//! The parser refuses much of what libpcap 1.10 refuses. Unlike libpcap, the parser accepts files
//! without an interface, interfaces that differ in link type or snap length, and sections that
//! differ in byte order.

use retroscope_packet::LinkType;

use super::{
    ParseFault, ParsedItem,
    record::RecordMeta,
    texts::{KeptTexts, TextAllowance},
};
use crate::{
    ByteOrder, FileInterface,
    block::{
        self, BLOCK_BYTES_MIN, BLOCK_HEADER_BYTES, BYTE_ORDER_MAGIC, ENHANCED_PACKET,
        INTERFACE_DESCRIPTION, PACKET_OBSOLETE, SECTION_HEADER, SIMPLE_PACKET, option,
    },
    format::{captured_len_max, effective_snaplen},
    time::TimeScale,
};

/// Bytes of block header, byte-order magic, version, section length and trailer.
const SECTION_HEADER_BYTES_MIN: u32 = 28;
/// Space for the options of a packet block, for link types whose packets may exceed 16 MiB.
const PACKET_OPTION_BYTES: u32 = 131_072;

/// The parser of one file.
#[derive(Debug)]
pub(super) struct PcapNgParser {
    /// The byte order of the current section.
    byte_order: ByteOrder,
    /// Index of the current section's first interface among all interfaces.
    first_interface: u16,
    /// The decoder of each interface of the current section.
    decoders: Vec<Decoder>,
    /// Larger blocks are damage. The limit grows with the link types of the interfaces.
    block_bytes_max: u32,
    /// The link types of all interfaces, without duplicates.
    link_types: Vec<LinkType>,
    /// The kept names and descriptions of the interfaces.
    pub(super) texts: KeptTexts,
}

/// The facts that decode an interface's packets.
#[derive(Debug, Clone, Copy)]
struct Decoder {
    scale: TimeScale,
    /// Longer packets are damage.
    snaplen: u32,
}

impl PcapNgParser {
    /// A parser before the first section header.
    pub(super) fn new(texts: TextAllowance) -> Self {
        Self {
            byte_order: ByteOrder::Little,
            first_interface: 0,
            decoders: Vec::new(),
            block_bytes_max: block::BLOCK_BYTES_MAX,
            link_types: Vec::new(),
            texts: KeptTexts::new(texts),
        }
    }

    /// Parses the block at the start of `bytes`. A new interface is added to `interfaces`.
    #[inline]
    pub(super) fn parse(
        &mut self,
        bytes: &[u8],
        interfaces: &mut Vec<FileInterface>,
    ) -> Result<ParsedItem, ParseFault> {
        if bytes.len() < BLOCK_BYTES_MIN as usize {
            return Ok(ParsedItem::Short {
                need: BLOCK_BYTES_MIN as usize,
                what: "a block header",
            });
        }
        let block_type = self.byte_order.u32(bytes, 0);
        let order = if block_type == SECTION_HEADER {
            section_byte_order(bytes)?
        } else {
            self.byte_order
        };
        let length = order.u32(bytes, 4);
        self.check_length(length)?;
        let size = length as usize;
        if bytes.len() < size {
            return Ok(ParsedItem::Short {
                need: size,
                what: "a block",
            });
        }
        let trailer = order.u32(bytes, size - 4);
        if trailer != length {
            return Err(ParseFault::damage(format!(
                "a block gives its length as {length} at its start and {trailer} at its end"
            )));
        }
        let body = &bytes[BLOCK_HEADER_BYTES..size - 4];
        let mut meta = match block_type {
            ENHANCED_PACKET => self.timed_packet(body, true)?,
            SIMPLE_PACKET => self.simple_packet(body)?,
            PACKET_OBSOLETE => self.timed_packet(body, false)?,
            SECTION_HEADER => {
                self.section_header(bytes, order, length, interfaces.len())?;
                return Ok(ParsedItem::Other { size });
            }
            INTERFACE_DESCRIPTION => {
                let interface = self.interface_description(body, interfaces.len())?;
                interfaces.push(interface);
                return Ok(ParsedItem::Other { size });
            }
            _ => return Ok(ParsedItem::Other { size }),
        };
        meta.offset += BLOCK_HEADER_BYTES;
        Ok(ParsedItem::Record { meta, size })
    }

    fn check_length(&self, length: u32) -> Result<(), ParseFault> {
        let wrong = if length < BLOCK_BYTES_MIN {
            format!("a block claims a length of {length}, less than {BLOCK_BYTES_MIN}")
        } else if !length.is_multiple_of(4) {
            format!("a block claims a length of {length}, not a multiple of 4")
        } else if length > self.block_bytes_max {
            format!(
                "a block claims a length of {length}, more than {}",
                self.block_bytes_max
            )
        } else {
            return Ok(());
        };
        Err(ParseFault::damage(wrong))
    }

    fn section_header(
        &mut self,
        block: &[u8],
        order: ByteOrder,
        length: u32,
        interfaces_before: usize,
    ) -> Result<(), ParseFault> {
        if length < SECTION_HEADER_BYTES_MIN {
            return Err(ParseFault::damage(format!(
                "a section header block of {length} bytes is too short"
            )));
        }
        let (major, minor) = (order.u16(block, 12), order.u16(block, 14));
        if major != 1 || !matches!(minor, 0 | 2) {
            return Err(ParseFault::unsupported(
                12,
                format!("pcapng version {major}.{minor} is not 1.0"),
            ));
        }
        self.byte_order = order;
        self.decoders.clear();
        // A section that follows the maximum number of interfaces cannot add interfaces, so no
        // packet gets this index.
        self.first_interface = u16::try_from(interfaces_before).unwrap_or(u16::MAX);
        Ok(())
    }

    fn interface_description(
        &mut self,
        body: &[u8],
        interfaces_before: usize,
    ) -> Result<FileInterface, ParseFault> {
        let order = self.byte_order;
        if body.len() < 8 {
            return Err(ParseFault::damage(
                "an interface description block is too short",
            ));
        }
        if interfaces_before >= block::INTERFACES_MAX {
            return Err(ParseFault::unsupported(
                0,
                format!("more than {} interfaces", block::INTERFACES_MAX),
            ));
        }
        let link_type = LinkType(order.u16(body, 0));
        if !self.link_types.contains(&link_type) {
            if self.link_types.len() == block::LINK_TYPES_MAX {
                return Err(ParseFault::unsupported(
                    0,
                    format!(
                        "interfaces of more than {} link types",
                        block::LINK_TYPES_MAX
                    ),
                ));
            }
            self.link_types.push(link_type);
        }
        let snaplen = order.u32(body, 4);
        let (mut name, mut description) = (&[][..], &[][..]);
        let (mut tsresol, mut tsoffset) = (None, None);
        for option in (OptionIter {
            bytes: &body[8..],
            order,
        }) {
            let (code, value) = option.map_err(|()| {
                ParseFault::damage("an option of an interface description block is cut short")
            })?;
            match (code, value.len()) {
                (option::IF_NAME, _) => name = value,
                (option::IF_DESCRIPTION, _) => description = value,
                (option::IF_TSRESOL, 1) if tsresol.is_none() => tsresol = Some(value[0]),
                (option::IF_TSOFFSET, 8) if tsoffset.is_none() => {
                    tsoffset = Some(order.i64(value, 0))
                }
                (option::IF_TSRESOL | option::IF_TSOFFSET, length) => {
                    return Err(ParseFault::damage(format!(
                        "an interface description block has option {code} twice or with a length of {length}"
                    )));
                }
                _ => {}
            }
        }
        let tsresol = tsresol.unwrap_or(6);
        let per_second = TimeScale::units_per_second(tsresol).ok_or_else(|| {
            ParseFault::damage(format!(
                "the time resolution {tsresol:#04x} of an interface is too fine"
            ))
        })?;
        let scale = TimeScale::new(per_second, tsoffset.unwrap_or(0));
        self.decoders.push(Decoder {
            scale,
            snaplen: effective_snaplen(snaplen, link_type),
        });
        let packet_block = captured_len_max(link_type) + PACKET_OPTION_BYTES + 32;
        self.block_bytes_max = self.block_bytes_max.max(packet_block);
        Ok(FileInterface {
            name: self.texts.keep(name),
            description: self.texts.keep(description),
            link_type,
            snaplen,
            resolution_ns: scale.resolution_ns(),
        })
    }

    fn decoder(&self, interface: u32) -> Result<(Decoder, u16), ParseFault> {
        let decoder = self.decoders.get(interface as usize);
        let index = u16::try_from(interface)
            .ok()
            .and_then(|index| self.first_interface.checked_add(index));
        decoder.copied().zip(index).ok_or_else(|| {
            let known = self.decoders.len();
            ParseFault::damage(format!("a packet is from interface {interface}, but its section has described {known} interfaces so far"))
        })
    }

    /// Parses an enhanced packet block or an obsolete packet block. The fields before the options
    /// differ only in the first 4 bytes of the body.
    #[inline]
    fn timed_packet(&self, body: &[u8], is_enhanced: bool) -> Result<RecordMeta, ParseFault> {
        if body.len() < 20 {
            let what = if is_enhanced { "an enhanced" } else { "a" };
            return Err(ParseFault::damage(format!(
                "{what} packet block is too short"
            )));
        }
        let interface = match is_enhanced {
            true => self.byte_order.u32(body, 0),
            false => u32::from(self.byte_order.u16(body, 0)),
        };
        let order = self.byte_order;
        let (decoder, interface) = self.decoder(interface)?;
        let time = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
        let (captured_len, wire_len) = (order.u32(body, 12), order.u32(body, 16));
        check_captured(captured_len, decoder.snaplen, body.len() - 20)?;
        let options = body
            .get(20 + (captured_len as usize).next_multiple_of(4)..)
            .unwrap_or_default();
        let (flags, id) = flags_and_id(options, order);
        Ok(RecordMeta {
            time_ns: decoder.scale.ns(time),
            offset: 20,
            captured_len,
            wire_len,
            interface,
            flags,
            id: id.filter(|_| is_enhanced),
        })
    }

    /// Parses a packet without time. The packet gets the time of the epoch. libpcap adds
    /// `if_tsoffset`.
    fn simple_packet(&self, body: &[u8]) -> Result<RecordMeta, ParseFault> {
        if body.len() < 4 {
            return Err(ParseFault::damage("a simple packet block is too short"));
        }
        let (decoder, interface) = self.decoder(0)?;
        let wire_len = self.byte_order.u32(body, 0);
        let captured_len = wire_len.min(decoder.snaplen);
        check_captured(captured_len, decoder.snaplen, body.len() - 4)?;
        Ok(RecordMeta {
            time_ns: 0,
            offset: 4,
            captured_len,
            wire_len,
            interface,
            flags: None,
            id: None,
        })
    }
}

/// The byte order of a section whose header block starts with `bytes`, at least 12 bytes.
pub(super) fn section_byte_order(bytes: &[u8]) -> Result<ByteOrder, ParseFault> {
    [ByteOrder::Little, ByteOrder::Big]
        .into_iter()
        .find(|order| order.u32(bytes, 8) == BYTE_ORDER_MAGIC)
        .ok_or_else(|| {
            let magic = ByteOrder::Big.u32(bytes, 8);
            ParseFault {
                at: 8,
                ..ParseFault::damage(format!(
                    "{magic:#010x} is not the byte-order magic of a pcapng section"
                ))
            }
        })
}

#[inline]
fn check_captured(captured_len: u32, snaplen: u32, room: usize) -> Result<(), ParseFault> {
    let wrong = if captured_len > snaplen {
        format!(
            "a packet claims {captured_len} captured bytes, the snap length of its interface is {snaplen}"
        )
    } else if captured_len as usize > room {
        format!("a packet claims {captured_len} captured bytes, its block has room for {room}")
    } else {
        return Ok(());
    };
    Err(ParseFault::damage(wrong))
}

/// The flags and the ID among a packet's options. If an option occurs several times, its first
/// value of the right length counts. An option that is truncated ends the search without an error,
/// because the packet itself is sound.
fn flags_and_id(bytes: &[u8], order: ByteOrder) -> (Option<u32>, Option<u64>) {
    let (mut flags, mut id) = (None, None);
    for (code, value) in (OptionIter { bytes, order }).map_while(Result::ok) {
        match (code, value.len()) {
            (option::PACKET_FLAGS, 4) => flags = flags.or(Some(order.u32(value, 0))),
            (option::PACKET_ID, 8) => id = id.or(Some(order.i64(value, 0).cast_unsigned())),
            _ => {}
        }
    }
    (flags, id)
}

/// The options at the end of a block, up to the end mark. `Err` if an option is truncated; the
/// iterator then ends.
struct OptionIter<'b> {
    bytes: &'b [u8],
    order: ByteOrder,
}

impl<'b> Iterator for OptionIter<'b> {
    type Item = Result<(u16, &'b [u8]), ()>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() < 4 {
            return Some(Err(()));
        }
        let (code, length) = (
            self.order.u16(bytes, 0),
            usize::from(self.order.u16(bytes, 2)),
        );
        if code == option::END {
            return None;
        }
        let Some(rest) = bytes.get(4 + length.next_multiple_of(4)..) else {
            return Some(Err(()));
        };
        self.bytes = rest;
        Some(Ok((code, &bytes[4..4 + length])))
    }
}
