use std::net::{IpAddr, SocketAddr};

use super::*;
use crate::af_packet::rss_settings;

/// The key of Microsoft's specification, which many drivers copied.
const MICROSOFT_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

fn symmetric() -> [u8; KEY_BYTES] {
    symmetric_key(0).try_into().unwrap()
}

#[test]
fn the_key_is_symmetric_in_any_length() {
    for bytes in [0, 40, 52] {
        let key = symmetric_key(bytes);
        assert_eq!(key.len(), if bytes == 0 { 40 } else { bytes });
        assert!(key.chunks(2).all(|two| two == [0x6d, 0x5a]));
    }
}

/// The hash of `input` under `key`. Bits after the end of the key count as 0.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
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

/// The hash of a packet by its addresses and, if `with_ports`, its ports.
fn hash_addresses(
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

/// Destination, source, hash of the addresses, and hash of the addresses and ports. The values are
/// from Microsoft's "Verifying the RSS Hash Calculation".
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
            let hash = |a, b| hash_addresses(&symmetric(), a, b, with_ports);
            assert_eq!(hash(source, destination), hash(destination, source));
        }
    }
}

#[test]
fn families_do_not_mix() {
    let (four, six) = ("1.2.3.4:5".parse().unwrap(), "[::1]:5".parse().unwrap());
    assert_eq!(hash_addresses(&symmetric(), four, six, true), None);
}

#[test]
fn a_key_ends_with_zeros() {
    assert_eq!(window(&[0xff], 4), 0xf000_0000);
    assert_eq!(window(&[0xff], 8), 0);
    assert_eq!(window(&MICROSOFT_KEY, 0), 0x6d5a_56da);
    assert_eq!(window(&MICROSOFT_KEY, 1), 0xdab4_adb4);
}

const ADDRESSES: u64 = SOURCE | DESTINATION;

fn settings(key: &[u8], entries: u32, queues: u32, fields: u64) -> RssSettings {
    RssSettings {
        function: TOEPLITZ,
        key: key.to_vec(),
        symmetric_input: false,
        table: (0..entries).map(|entry| entry % queues).collect(),
        fields: FlowKind::ALL.map(|kind| (kind, fields)).to_vec(),
    }
}

/// Repeatable numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn address(&mut self, kind: FlowKind) -> SocketAddr {
        let [a, b, c, d, port @ ..] = self.next().to_be_bytes();
        let ip = if kind.address_bits() == 32 {
            IpAddr::from([a, b, c, d])
        } else {
            IpAddr::from((u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes())
        };
        SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]]))
    }
}

/// The number of conversations out of 400 whose directions reach different queues, by hashing.
fn simulate(settings: &RssSettings, kind: FlowKind) -> usize {
    let mut random = Random(7);
    let with_ports = settings.fields[0].1 & SOURCE_PORT != 0;
    let queue = |a, b| {
        let hash = hash_addresses(&settings.key, a, b, with_ports).unwrap() as usize;
        settings.table[hash % settings.table.len()]
    };
    (0..400)
        .filter(|_| {
            let (a, b) = (random.address(kind), random.address(kind));
            queue(a, b) != queue(b, a)
        })
        .count()
}

#[test]
fn the_decision_is_what_a_simulation_finds() {
    // This key is symmetric for IPv4 addresses only: its first 96 bits repeat after 32 bits.
    let mut v4_only = [0; KEY_BYTES];
    for (index, byte) in v4_only.iter_mut().enumerate() {
        *byte = [0xb1, 0x7e, 0x25, 0xc9][index % 4];
    }
    v4_only[12..].copy_from_slice(&MICROSOFT_KEY[12..]);
    let mut random = Random(11);
    let mut keys = vec![MICROSOFT_KEY, symmetric(), v4_only, [0; KEY_BYTES]];
    for _ in 0..20 {
        let mut key = [0; KEY_BYTES];
        for byte in &mut key {
            *byte = random.next().to_be_bytes()[0];
        }
        keys.push(key);
    }
    let (mut split, mut whole) = (0, 0);
    for key in keys {
        for fields in [ADDRESSES_AND_PORTS, ADDRESSES] {
            for (entries, queues) in [(128, 4), (100, 3), (128, 1)] {
                let settings = settings(&key, entries, queues, fields);
                for kind in FlowKind::ALL {
                    let found = simulate(&settings, kind);
                    let expected = (found > 0).then_some(Split::Key);
                    assert_eq!(
                        settings.splits(kind),
                        expected,
                        "{key:x?} {fields:?} {kind:?}"
                    );
                    *if found > 0 { &mut split } else { &mut whole } += 1;
                }
            }
        }
    }
    assert!(split > 100 && whole > 50, "{split} {whole}");
}

#[test]
fn what_no_table_entry_depends_on_does_not_matter() {
    let settings = settings(&symmetric(), 128, 4, ADDRESSES_AND_PORTS);
    // The changed bit of the key affects only the highest bit of the hash. A table of 128 entries
    // uses the lowest 7 bits.
    let mut key = symmetric();
    key[0] ^= 0x80;
    let settings = RssSettings {
        key: key.to_vec(),
        ..settings
    };
    assert_eq!(settings.splits(FlowKind::Tcp4), None);
    let whole_hash = RssSettings {
        table: Vec::new(),
        ..settings
    };
    assert_eq!(whole_hash.splits(FlowKind::Tcp4), Some(Split::Key));
}

#[test]
fn settings_that_decide_alone() {
    let one_sided = ADDRESSES_AND_PORTS & !DESTINATION;
    let settings_of = |fields| settings(&symmetric(), 128, 4, fields);
    assert_eq!(
        settings_of(one_sided).splits(FlowKind::Udp4),
        Some(Split::Fields)
    );
    assert_eq!(settings_of(0).splits(FlowKind::Udp4), None);
    // RXH_VLAN, whose position in the input is the driver's own choice.
    assert_eq!(
        settings_of(ADDRESSES_AND_PORTS | 1 << 2).splits(FlowKind::Udp4),
        Some(Split::Unknown)
    );
    let mut other = settings(&MICROSOFT_KEY, 128, 4, ADDRESSES_AND_PORTS);
    other.symmetric_input = true;
    assert_eq!(other.splits(FlowKind::Tcp6), None);
    other.symmetric_input = false;
    other.function = 2;
    assert_eq!(
        other.splits(FlowKind::Tcp6),
        Some(Split::Unknown),
        "cannot be told"
    );
    other.fields.clear();
    assert_eq!(other.splits(FlowKind::Tcp6), Some(Split::Unknown));
    other.table = vec![3; 128];
    assert_eq!(other.splits(FlowKind::Tcp6), None, "one queue");
}

#[test]
fn the_loopback_interface_has_no_hash() {
    let error = rss_settings("lo").unwrap_err();
    assert!(
        matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)),
        "{error}"
    );
    let error = rss_settings("no-such-if").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}
