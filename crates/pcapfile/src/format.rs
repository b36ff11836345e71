//! What a capture file says about itself.

use retroscope_packet::LinkType;

/// The bytes of a packet that libpcap is willing to take, and the value it puts for a snap length of 0: `MAXIMUM_SNAPLEN`.
pub(crate) const SNAPLEN_MAX: u32 = 262_144;

/// Starts a pcap file with stamps in microseconds.
pub(crate) const MAGIC_MICRO: u32 = 0xa1b2_c3d4;
/// Starts a pcap file with stamps in nanoseconds.
pub(crate) const MAGIC_NANO: u32 = 0xa1b2_3c4d;

/// Bits of the pcap link type field that tell of the frame check sequence.
pub(crate) const LINK_TYPE_EXTRA: u32 = 0xfc00_0000;

/// How a capture file is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileFormat {
    /// Byte order of a pcap file, or of the first section of a pcapng file.
    pub byte_order: ByteOrder,
    /// The compression around it.
    pub compression: Option<Compression>,
    /// What the header of a pcap file says, as it takes to write such a file; `None`: it is pcapng, where interfaces say as much.
    pub pcap: Option<PcapOptions>,
}

/// What the header of a pcap file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcapOptions {
    /// Link-layer header type of all packets.
    pub link_type: LinkType,
    /// Bits to set in the upper 6 bits of the link type field (`0xfc00_0000`), as they were read
    /// ([`FileFormat::pcap`]); other bits are left out.
    pub link_type_extra: u32,
    /// Bytes kept of each packet at most; 0 means no limit, and readers then take 262,144.
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

/// Compression formats that [`CaptureReader`](crate::CaptureReader) sees through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
}

/// One interface of a capture file; a pcap file has exactly one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInterface {
    /// `if_name`, as `eth0`, or empty. On reading cut at [`TEXT_BYTES_MAX`](crate::TEXT_BYTES_MAX); at most 65,535 bytes are written.
    pub name: String,
    /// `if_description`, likewise.
    pub description: String,
    /// Link-layer header type of its packets.
    pub link_type: LinkType,
    /// Bytes kept of each packet at most; 0: no limit given.
    pub snaplen: u32,
    /// Unit of its time stamps in ns, at least 1 (also for finer ones, whose stamps are rounded down to ns). What is written is microseconds
    /// where they hold such stamps exactly, else nanoseconds.
    pub resolution_ns: u64,
}

impl FileInterface {
    /// No texts, no snap length, nanoseconds.
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
    /// The bytes of a number in this order, given those in little-endian order; or the other way round.
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

/// The largest captured length that libpcap believes for a link type; more is damage (`max_snaplen_for_dlt`).
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

/// The snap length that holds where a file says `snaplen`: 0 and values above `i32::MAX` mean the most that the link
/// type allows (`pcap_adjust_snapshot`).
pub(crate) fn effective_snaplen(snaplen: u32, link_type: LinkType) -> u32 {
    if snaplen == 0 || snaplen > i32::MAX.cast_unsigned() {
        captured_len_max(link_type)
    } else {
        snaplen
    }
}
