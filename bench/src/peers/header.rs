//! What stands before each packet: the same 16 bytes in every use of a peer.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;

/// Time and lengths of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// The packet's stamp.
    pub time_ns: u64,
    /// Bytes stored.
    pub captured: u32,
    /// Bytes on the wire, `>= captured`.
    pub wire: u32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    /// Of a whole packet of `bytes` bytes (a load's are at most 9000).
    #[inline]
    pub fn whole(time_ns: u64, bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            time_ns,
            captured: bytes,
            wire: bytes,
        }
    }

    /// The header as it lies in memory.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let lengths = u64::from(self.captured) | u64::from(self.wire) << 32;
        (u128::from(self.time_ns) | u128::from(lengths) << 64).to_le_bytes()
    }

    /// The header that lies in `bytes`.
    #[inline]
    pub fn from_bytes(bytes: [u8; HEADER_BYTES]) -> Self {
        let all = u128::from_le_bytes(bytes);
        let word =
            |shift: u32| u32::try_from(all >> shift & u128::from(u32::MAX)).unwrap_or_default();
        Self {
            time_ns: u64::from(word(0)) | u64::from(word(32)) << 32,
            captured: word(64),
            wire: word(96),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_bytes() {
        let header = Header {
            time_ns: 0x0102_0304_0506_0708,
            captured: 0x1112_1314,
            wire: 0x2122_2324,
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes[..8], header.time_ns.to_le_bytes());
        assert_eq!(bytes[8..12], header.captured.to_le_bytes());
        assert_eq!(bytes[12..], header.wire.to_le_bytes());
        assert_eq!(Header::from_bytes(bytes), header);
    }
}
