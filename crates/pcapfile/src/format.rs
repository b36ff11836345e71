//! The properties of a capture file.

use retroscope_packet::LinkType;

/// Maximum captured length that libpcap accepts for most link types, and its value for a snap
/// length of 0: `MAXIMUM_SNAPLEN`.
pub(crate) const SNAPLEN_MAX: u32 = 262_144;

/// First bytes of a pcap file with stamps in microseconds.
pub(crate) const MAGIC_MICRO: u32 = 0xa1b2_c3d4;
/// First bytes of a pcap file with stamps in nanoseconds.
pub(crate) const MAGIC_NANO: u32 = 0xa1b2_3c4d;

/// Upper 6 bits of the pcap link type field, mainly about the frame check sequence.
pub(crate) const LINK_TYPE_EXTRA: u32 = 0xfc00_0000;

/// The encoding of a capture file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileFormat {
    /// Byte order of a pcap file, or of the first section of a pcapng file.
    pub byte_order: ByteOrder,
    /// The compression of the file.
    pub compression: Option<Compression>,
    /// The options in the header of a pcap file, as [`PcapWriter::new`](crate::PcapWriter::new)
    /// takes these options. `None` for pcapng, where each interface has its options.
    pub pcap: Option<PcapOptions>,
}

/// The options in the header of a pcap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcapOptions {
    /// Link-layer header type of all packets.
    pub link_type: LinkType,
    /// Bits to set in the upper 6 bits of the link type field (`0xfc00_0000`), as read from a file
    /// ([`FileFormat::pcap`]). Other bits are ignored.
    pub link_type_extra: u32,
    /// Maximum captured length of a packet. 0 means no limit; readers then use the maximum of the
    /// link type, usually 262,144.
    pub snaplen: u32,
    /// Resolution of the time stamps.
    pub resolution: Resolution,
    /// Byte order of the file.
    pub byte_order: ByteOrder,
}

impl PcapOptions {
    /// Nanoseconds, little-endian, a snap length of 262,144.
    #[must_use]
    pub fn new(link_type: LinkType) -> Self {
        Self {
            link_type,
            link_type_extra: 0,
            snaplen: SNAPLEN_MAX,
            resolution: Resolution::Nano,
            byte_order: ByteOrder::Little,
        }
    }
}

/// Resolution of a pcap file's time stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolution {
    /// Microseconds.
    Micro,
    /// Nanoseconds.
    #[default]
    Nano,
}

impl Resolution {
    /// Nanoseconds in one unit: 1000 or 1.
    #[must_use]
    pub fn ns(self) -> u32 {
        match self {
            Self::Micro => 1000,
            Self::Nano => 1,
        }
    }
}

/// Compression formats that [`CaptureReader`](crate::CaptureReader) decompresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
}

/// An interface of a capture file. A pcap file has exactly one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInterface {
    /// `if_name`, for example `eth0`, or empty. The reader truncates it at
    /// [`TEXT_BYTES_MAX`](crate::TEXT_BYTES_MAX); the writer accepts at most 65,535 bytes.
    pub name: String,
    /// `if_description`, with the limits of `name`.
    pub description: String,
    /// Link-layer header type of the interface's packets.
    pub link_type: LinkType,
    /// Maximum captured length of a packet. 0: no limit given.
    pub snaplen: u32,
    /// Unit of the time stamps in whole ns, at least 1. Finer stamps are rounded down to ns. The
    /// writer uses microseconds if they represent such stamps exactly, otherwise nanoseconds.
    pub resolution_ns: u64,
}

impl FileInterface {
    /// An interface without texts and snap length, with stamps in nanoseconds.
    #[must_use]
    pub fn new(link_type: LinkType) -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            link_type,
            snaplen: 0,
            resolution_ns: 1,
        }
    }
}

/// Byte order of the numbers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ByteOrder {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// Converts the bytes of a number from little-endian order to this order, or back.
    #[inline]
    pub(crate) fn bytes<const N: usize>(self, mut bytes: [u8; N]) -> [u8; N] {
        if self == Self::Big {
            bytes.reverse();
        }
        bytes
    }

    /// The bytes at `at`, in little-endian order. Panics unless `at + N <= bytes.len()`.
    #[inline]
    fn at<const N: usize>(self, bytes: &[u8], at: usize) -> [u8; N] {
        let mut number = [0; N];
        number.copy_from_slice(&bytes[at..at + N]);
        self.bytes(number)
    }

    /// The number at `at`. Panics unless `at + 2 <= bytes.len()`.
    #[inline]
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(self.at(bytes, at))
    }

    /// The number at `at`. Panics unless `at + 4 <= bytes.len()`.
    #[inline]
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(self.at(bytes, at))
    }

    /// The number at `at`. Panics unless `at + 8 <= bytes.len()`.
    #[inline]
    pub(crate) fn i64(self, bytes: &[u8], at: usize) -> i64 {
        i64::from_le_bytes(self.at(bytes, at))
    }
}

/// Maximum captured length that libpcap accepts for a link type (`max_snaplen_for_dlt`). In a pcap
/// file, a larger length is damage.
pub(crate) fn captured_len_max(link_type: LinkType) -> u32 {
    match link_type.0 {
        // DBUS
        231 => 128 << 20,
        // USBPCAP
        249 => 1 << 20,
        // EBHSCR
        279 => 8 << 20,
        _ => SNAPLEN_MAX,
    }
}

/// The effective snap length of a file that contains `snaplen`. 0 and values above `i32::MAX` mean
/// the maximum of the link type (`pcap_adjust_snapshot`).
pub(crate) fn effective_snaplen(snaplen: u32, link_type: LinkType) -> u32 {
    if snaplen == 0 || snaplen > i32::MAX.cast_unsigned() {
        captured_len_max(link_type)
    } else {
        snaplen
    }
}
