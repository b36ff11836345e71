//! The Toeplitz hash.

/// Bytes of a key of ordinary NICs: enough for two IPv6 addresses and ports.
pub const KEY_BYTES: usize = 40;

/// The key of Microsoft's specification, and of the drivers that copied it.
pub const MICROSOFT_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Woo and Park's key, 0x6d5a over and over: both directions of a conversation hash alike.
pub const SYMMETRIC_KEY: [u8; KEY_BYTES] = {
    let mut key = [0x6d; KEY_BYTES];
    let mut index = 1;
    while index < KEY_BYTES {
        key[index] = 0x5a;
        index += 2;
    }
    key
};

/// What input bit `bit` (0: the first byte's highest) adds to the hash: the 32 bits of the key that start there.
pub(super) fn window(key: &[u8], bit: usize) -> u32 {
    let (first, shift) = (bit / 8, bit % 8);
    let byte = |index: usize| u64::from(key.get(first + index).copied().unwrap_or(0));
    let five = (0..5).fold(0, |bits, index| bits << 8 | byte(index));
    let [.., a, b, c, d] = (five >> (8 - shift)).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;

    /// The hash of `input` under `key`. Bits behind the end of the key count as 0: a key should have 4 bytes more than the input.
    pub(crate) fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
        let mut hash = 0;
        for (byte_index, byte) in input.iter().enumerate() {
            for bit in 0..8 {
                if byte & (0x80 >> bit) != 0 {
                    hash ^= window(key, byte_index * 8 + bit);
                }
            }
        }
        hash
    }

    /// The hash of a packet by its addresses and, if `with_ports`, its ports. `None` if the addresses are of two families.
    pub(crate) fn hash_addresses(
        key: &[u8],
        source: SocketAddr,
        destination: SocketAddr,
        with_ports: bool,
    ) -> Option<u32> {
        let mut input = [0; 36];
        let addresses = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                input[..4].copy_from_slice(&source.octets());
                input[4..8].copy_from_slice(&destination.octets());
                8
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                input[..16].copy_from_slice(&source.octets());
                input[16..32].copy_from_slice(&destination.octets());
                32
            }
            _ => return None,
        };
        input[addresses..addresses + 2].copy_from_slice(&source.port().to_be_bytes());
        input[addresses + 2..addresses + 4].copy_from_slice(&destination.port().to_be_bytes());
        let length = if with_ports { addresses + 4 } else { addresses };
        Some(toeplitz(key, &input[..length]))
    }

    /// Destination, source, hash of the addresses, hash with ports: Microsoft's "Verifying the RSS Hash Calculation".
    const VECTORS: [(&str, &str, u32, u32); 8] = [
        (
            "161.142.100.80:1766",
            "66.9.149.187:2794",
            0x323e_8fc2,
            0x51cc_c178,
        ),
        (
            "65.69.140.83:4739",
            "199.92.111.2:14230",
            0xd718_262a,
            0xc626_b0ea,
        ),
        (
            "12.22.207.184:38024",
            "24.19.198.95:12898",
            0xd2d0_a5de,
            0x5c2b_394a,
        ),
        (
            "209.142.163.6:2217",
            "38.27.205.30:48228",
            0x8298_9176,
            0xafc7_327f,
        ),
        (
            "202.188.127.2:1303",
            "153.39.163.191:44251",
            0x5d18_09c5,
            0x10e8_28a2,
        ),
        (
            "[3ffe:2501:200:3::1]:1766",
            "[3ffe:2501:200:1fff::7]:2794",
            0x2cc1_8cd5,
            0x4020_7d3d,
        ),
        (
            "[ff02::1]:4739",
            "[3ffe:501:8::260:97ff:fe40:efab]:14230",
            0x0f0c_461c,
            0xdde5_1bbf,
        ),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    #[test]
    fn the_published_vectors_hold() {
        for (destination, source, addresses, with_ports) in VECTORS {
            let (destination, source) = (destination.parse().unwrap(), source.parse().unwrap());
            let hash = |with_ports| hash_addresses(&MICROSOFT_KEY, source, destination, with_ports);
            assert_eq!(hash(false), Some(addresses), "{source}");
            assert_eq!(hash(true), Some(with_ports), "{source}");
            let back = hash_addresses(&MICROSOFT_KEY, destination, source, true);
            assert_ne!(back, Some(with_ports), "this key is not symmetric");
        }
    }

    #[test]
    fn the_symmetric_key_is_symmetric() {
        for (destination, source, ..) in VECTORS {
            let (destination, source) = (destination.parse().unwrap(), source.parse().unwrap());
            for with_ports in [false, true] {
                let hash = |a, b| hash_addresses(&SYMMETRIC_KEY, a, b, with_ports);
                assert_eq!(hash(source, destination), hash(destination, source));
            }
        }
    }

    #[test]
    fn families_do_not_mix() {
        let (four, six) = ("1.2.3.4:5".parse().unwrap(), "[::1]:5".parse().unwrap());
        assert_eq!(hash_addresses(&SYMMETRIC_KEY, four, six, true), None);
    }

    #[test]
    fn a_key_ends_with_zeros() {
        assert_eq!(window(&[0xff], 4), 0xf000_0000);
        assert_eq!(window(&[0xff], 8), 0);
        assert_eq!(window(&MICROSOFT_KEY, 0), 0x6d5a_56da);
        assert_eq!(window(&MICROSOFT_KEY, 1), 0xdab4_adb4);
    }
}
