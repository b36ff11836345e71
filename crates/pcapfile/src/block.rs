//! Numbers of pcapng for the reader and the writer.
//!
//! Block types and option codes are from
//! [draft-ietf-opsawg-pcapng](https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcapng/),
//! sections 3.1, 3.5, 4 and appendix A.

/// Type of a section header block; reads the same in both byte orders.
pub(crate) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// Type of an interface description block.
pub(crate) const INTERFACE_DESCRIPTION: u32 = 1;
/// Type of the obsolete packet block, which the enhanced packet block replaced.
pub(crate) const PACKET_OBSOLETE: u32 = 2;
/// Type of a simple packet block: its packet has no time, and belongs to the section's first
/// interface.
pub(crate) const SIMPLE_PACKET: u32 = 3;
/// Type of an interface statistics block.
pub(crate) const INTERFACE_STATISTICS: u32 = 5;
/// Type of an enhanced packet block.
pub(crate) const ENHANCED_PACKET: u32 = 6;

/// Third word of a section header block.
pub(crate) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Bytes of block type and length before a block's body.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;
/// Minimum length of a block, bytes: type, length, length.
pub(crate) const BLOCK_BYTES_MIN: u32 = 12;
/// Maximum length of a block, bytes, as in libpcap. The reader accepts longer blocks after an
/// interface whose link type has longer packets (D-Bus).
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// Maximum number of interfaces in a file, because `RecordMeta::interface` has 16 bits.
pub(crate) const INTERFACES_MAX: usize = 1 << 16;
/// Maximum number of link types that the reader accepts in a file, because filters are compiled for
/// each link type.
pub(crate) const LINK_TYPES_MAX: usize = 64;

/// Option codes. Codes below 2 are common to all blocks. The others belong to the block in their
/// name.
pub(crate) mod option {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMMENT: u16 = 1;

    pub(crate) const SHB_OS: u16 = 3;
    pub(crate) const SHB_USERAPPL: u16 = 4;

    pub(crate) const IF_NAME: u16 = 2;
    pub(crate) const IF_DESCRIPTION: u16 = 3;
    pub(crate) const IF_TSRESOL: u16 = 9;
    pub(crate) const IF_TSOFFSET: u16 = 14;

    /// Also `pack_flags` of the obsolete packet block.
    pub(crate) const PACKET_FLAGS: u16 = 2;
    pub(crate) const PACKET_DROPCOUNT: u16 = 4;
    pub(crate) const PACKET_ID: u16 = 5;

    pub(crate) const ISB_STARTTIME: u16 = 2;
    pub(crate) const ISB_ENDTIME: u16 = 3;
    pub(crate) const ISB_IFRECV: u16 = 4;
    pub(crate) const ISB_IFDROP: u16 = 5;
    pub(crate) const ISB_OSDROP: u16 = 7;
    pub(crate) const ISB_USRDELIV: u16 = 8;
}
