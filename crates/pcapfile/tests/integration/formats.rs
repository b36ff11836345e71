//! Variants of pcap and pcapng, mostly variants that the writers of this crate do not write.

use crate::common::{Packet, gzip, read_all};
use retroscope_pcapfile::{CaptureReader, LinkType, Resolution};

fn le16(number: u16) -> [u8; 2] {
    number.to_le_bytes()
}

fn le32(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// A little-endian pcap header.
fn pcap(magic: u32, version: (u16, u16), snaplen: u32, network: u32) -> Vec<u8> {
    [
        &le32(magic)[..],
        &le16(version.0),
        &le16(version.1),
        &[0; 8],
        &le32(snaplen),
        &le32(network),
    ]
    .concat()
}

/// A record header and its data.
fn record(words: [u32; 4], data: &[u8]) -> Vec<u8> {
    words
        .iter()
        .flat_map(|word| le32(*word))
        .chain(data.iter().copied())
        .collect()
}

fn block(block_type: u32, body: &[u8]) -> Vec<u8> {
    let padding = &[0; 3][..body.len().next_multiple_of(4) - body.len()];
    let length = u32::try_from(12 + body.len() + padding.len()).unwrap();
    [
        &le32(block_type)[..],
        &le32(length),
        body,
        padding,
        &le32(length),
    ]
    .concat()
}

fn section() -> Vec<u8> {
    block(
        0x0a0d_0d0a,
        &[&le32(0x1a2b_3c4d)[..], &le16(1), &le16(0), &[0xff; 8]].concat(),
    )
}

fn interface(link_type: u16, snaplen: u32, options: &[u8]) -> Vec<u8> {
    block(
        1,
        &[&le16(link_type)[..], &[0; 2], &le32(snaplen), options].concat(),
    )
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let padding = &[0; 3][..value.len().next_multiple_of(4) - value.len()];
    [
        &le16(code)[..],
        &le16(u16::try_from(value.len()).unwrap()),
        value,
        padding,
    ]
    .concat()
}

fn enhanced(interface: u32, time: u64, lengths: (u32, u32), data: &[u8]) -> Vec<u8> {
    let [low, high] =
        [time & 0xffff_ffff, time >> 32].map(|half| le32(u32::try_from(half).unwrap()));
    block(
        6,
        &[
            &le32(interface)[..],
            &high,
            &low,
            &le32(lengths.0),
            &le32(lengths.1),
            data,
        ]
        .concat(),
    )
}

fn sound(file: &[u8]) -> Vec<Packet> {
    let (packets, end) = read_all(file);
    assert!(end.is_ok(), "{end:?}");
    packets
}

fn error(file: &[u8]) -> String {
    read_all(file).1.unwrap_err().to_string()
}

#[test]
fn old_versions_swap_the_lengths() {
    let magic = 0xa1b2_c3d4;
    for (version, words) in [
        ((2, 4), [1, 2, 3, 9]),
        ((2, 3), [1, 2, 3, 9]),
        ((2, 3), [1, 2, 9, 3]),
        ((2, 2), [1, 2, 9, 3]),
        ((543, 0), [1, 2, 9, 3]),
    ] {
        let file = [pcap(magic, version, 96, 1), record(words, &[7, 7, 7])].concat();
        let [packet] = &sound(&file)[..] else {
            panic!("{version:?}")
        };
        assert_eq!(
            (packet.time_ns, packet.wire_len, &packet.data[..]),
            (1_000_002_000, 9, &[7, 7, 7][..]),
            "{version:?}"
        );
    }
}

#[test]
fn the_modified_format_has_longer_record_headers() {
    let mut file = pcap(0xa1b2_cd34, (2, 4), 4, 1);
    for _ in 0..2 {
        file.extend(record([5, 6, 20, 20], &[0xee; 8]));
        file.extend([9; 20]);
    }
    let packets = sound(&file);
    assert_eq!(packets.len(), 2);
    // The reader keeps 18 bytes of each packet: the snap length of 4, and 14 more. The program that
    // wrote such a file may have added an Ethernet header of 14 bytes after the truncation.
    assert_eq!(
        (packets[1].time_ns, &packets[1].data[..]),
        (5_000_006_000, &[9; 18][..])
    );
}

#[test]
fn records_longer_than_the_snap_length_are_cut() {
    let file = [
        pcap(0xa1b2_3c4d, (2, 4), 4, 1),
        record([0, 1, 6, 8], &[1, 2, 3, 4, 5, 6]),
        record([0, 2, 1, 1], &[9]),
    ]
    .concat();
    let packets = sound(&file);
    assert_eq!(
        (&packets[0].data[..], packets[0].wire_len),
        (&[1, 2, 3, 4][..], 8)
    );
    assert_eq!((packets[1].time_ns, &packets[1].data[..]), (2, &[9][..]));

    let long = vec![3; 262_144];
    for snaplen in [0, 262_144, u32::MAX] {
        let file = [
            pcap(0xa1b2_c3d4, (2, 4), snaplen, 1),
            record([0, 0, 262_144, 262_144], &long),
        ]
        .concat();
        assert_eq!(sound(&file)[0].data, long, "snap length {snaplen}");
    }
}

#[test]
fn times_beyond_their_fields_and_beyond_64_bits() {
    let file = [
        pcap(0xa1b2_c3d4, (2, 4), 0, 101),
        record([u32::MAX, u32::MAX, 0, 0], &[]),
        record([0x8000_0000, 999_999, 0, 0], &[]),
    ]
    .concat();
    let packets = sound(&file);
    assert_eq!(
        packets[0].time_ns,
        4_294_967_295_000_000_000 + 4_294_967_295_000
    );
    assert_eq!(packets[1].time_ns, 2_147_483_648_999_999_000);

    let options = option(14, &i64::MAX.to_le_bytes());
    let file = [
        section(),
        interface(1, 0, &options),
        enhanced(0, u64::MAX, (0, 0), &[]),
    ]
    .concat();
    assert_eq!(sound(&file)[0].time_ns, i64::MAX);
}

#[test]
fn time_resolutions_and_offsets_belong_to_their_interface() {
    let interfaces = [
        interface(1, 0, &[]),
        interface(1, 0, &option(9, &[3])),
        interface(1, 0, &option(9, &[0x80 | 20])),
        interface(1, 0, &option(9, &[12])),
        interface(
            1,
            0,
            &[
                option(14, &(-5_i64).to_le_bytes()),
                option(9, &[9]),
                option(0, &[]),
            ]
            .concat(),
        ),
    ];
    let mut file = [section(), interfaces.concat()].concat();
    for index in 0..5 {
        file.extend(enhanced(index, (5 << 20) + (1 << 19), (0, 0), &[]));
    }
    let times: Vec<i64> = sound(&file).iter().map(|packet| packet.time_ns).collect();
    let units = (5 << 20) + (1 << 19);
    assert_eq!(
        times,
        [
            units * 1_000,
            units * 1_000_000,
            5_500_000_000,
            units / 1_000,
            units - 5_000_000_000
        ]
    );
    let reader = CaptureReader::new(&file[..]).unwrap();
    let resolutions: Vec<u64> = reader
        .interfaces()
        .iter()
        .map(|interface| interface.resolution_ns)
        .collect();
    assert_eq!(resolutions, [1_000, 1_000_000, 953, 1, 1]);

    for (options, value) in [
        (option(9, &[20]), "0x14"),
        (option(9, &[0x80 | 64]), "0xc0"),
        (option(9, &[6, 6]), "option 9"),
        ([option(9, &[6]), option(9, &[6])].concat(), "option 9"),
        (option(14, &[0; 4]), "option 14"),
        (vec![2, 0, 200, 0], "option"),
    ] {
        let said = error(&[section(), interface(1, 0, &options)].concat());
        assert!(said.contains(value), "{said:?} does not name {value:?}");
    }
}

#[test]
fn simple_and_obsolete_packet_blocks() {
    let simple = |length: u32, data: &[u8]| block(3, &[&le32(length)[..], data].concat());
    let obsolete = block(
        2,
        &[
            &le16(1)[..],
            &le16(99),
            &le32(0),
            &le32(7),
            &le32(3),
            &le32(5),
            &[1, 2, 3, 0],
            &option(2, &[2, 0, 0, 0]),
        ]
        .concat(),
    );
    let file = [
        section(),
        interface(1, 4, &[]),
        interface(101, 0, &[]),
        simple(3, &[5, 6, 7]),
        simple(9, &[1, 2, 3, 4]),
        obsolete,
    ]
    .concat();
    let packet = |interface, time_ns, wire_len, flags, data: &[u8]| Packet {
        time_ns,
        wire_len,
        interface,
        flags,
        data: data.to_vec(),
    };
    assert_eq!(
        sound(&file),
        [
            packet(0, 0, 3, None, &[5, 6, 7]),
            packet(0, 0, 9, None, &[1, 2, 3, 4]),
            packet(1, 7_000, 5, Some(2), &[1, 2, 3])
        ]
    );
    let claims_9 = [section(), interface(1, 0, &[]), simple(9, &[1, 2, 3, 4])].concat();
    assert!(error(&claims_9).contains("9"));
    assert!(error(&[section(), simple(0, &[])].concat()).contains("interface 0"));
}

#[test]
fn what_is_not_a_packet_is_stepped_over() {
    let unknown = block(0x8000_0bad, &vec![0x5a; 1 << 20]);
    let file = [
        section(),
        unknown.clone(),
        interface(1, 0, &[]),
        unknown.clone(),
        enhanced(0, 1, (2, 2), &[8, 9]),
        unknown,
    ]
    .concat();
    assert_eq!(sound(&file)[0].data, [8, 9]);
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    assert_eq!(reader.interfaces().len(), 1);
    while reader.fill().unwrap() > 0 {}
    assert_eq!(reader.offset(), file.len() as u64);
}

#[test]
fn odd_packet_options_leave_the_packet_alone() {
    for options in [
        vec![2, 0, 4, 0],
        vec![2, 0, 2, 0, 1, 0, 0, 0],
        vec![9, 9, 0xff, 0xff],
        vec![1],
    ] {
        let file = [
            section(),
            interface(1, 0, &[]),
            enhanced(0, 1, (4, 4), &[&[1, 2, 3, 4][..], &options].concat()),
        ]
        .concat();
        let [packet] = &sound(&file)[..] else {
            panic!()
        };
        assert_eq!((packet.flags, &packet.data[..]), (None, &[1, 2, 3, 4][..]));
    }
}

#[test]
fn a_section_without_interfaces_has_no_packets() {
    let file = section();
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    assert!(reader.interfaces().is_empty());
    assert_eq!((reader.format().pcap, reader.fill().unwrap()), (None, 0));
    // A packet may not refer to an interface of the previous section.
    let file = [
        section(),
        interface(1, 0, &[]),
        section(),
        enhanced(0, 0, (0, 0), &[]),
    ]
    .concat();
    assert!(error(&file).contains("interface 0"));
}

#[test]
fn interfaces_fill_their_index_and_no_more() {
    let mut file = section();
    for _ in 0..1 << 16 {
        file.extend(interface(1, 0, &[]));
    }
    file.extend(enhanced(65_535, 0, (1, 1), &[4]));
    assert_eq!(sound(&file)[0].interface, 65_535);
    let more = [&file[..], &interface(1, 0, &[])].concat();
    assert!(error(&more).contains("65536"));
    // A new section has no interface, also after a section with the maximum number of interfaces.
    let more = [&file[..], &section(), &enhanced(0, 0, (0, 0), &[])].concat();
    assert!(error(&more).contains("interface 0"));
}

#[test]
fn texts_are_taken_as_they_are() {
    let options = [
        option(2, b"eth\xff0\0\0"),
        option(3, "naïve".as_bytes()),
        option(0, &[]),
        option(2, b"behind the end"),
    ]
    .concat();
    let reader_file = [section(), interface(276, 77, &options)].concat();
    let reader = CaptureReader::new(&reader_file[..]).unwrap();
    let interface = &reader.interfaces()[0];
    assert_eq!(
        (interface.name.as_str(), interface.description.as_str()),
        ("eth\u{fffd}0", "naïve")
    );
    assert_eq!(
        (interface.link_type, interface.snaplen),
        (LinkType::LINUX_SLL2, 77)
    );
}

#[test]
fn large_packets_where_the_link_type_has_them() {
    // Link type 231 (D-Bus) permits packets of 20 MiB, Ethernet does not.
    let data = vec![1; 20 << 20];
    let length = u32::try_from(data.len()).unwrap();
    let file = [
        pcap(0xa1b2_c3d4, (2, 4), 0, 231),
        record([0, 0, length, length], &data),
    ]
    .concat();
    assert_eq!(sound(&gzip(&file))[0].data.len(), data.len());
    let file = [
        section(),
        interface(231, 0, &[]),
        enhanced(0, 0, (length, length), &data),
    ]
    .concat();
    assert_eq!(sound(&file)[0].data.len(), data.len());
    let file = [
        section(),
        interface(1, 0, &[]),
        enhanced(0, 0, (length, length), &data),
    ]
    .concat();
    assert!(error(&file).contains("16777216"));
    assert_eq!(
        CaptureReader::new(&pcap(0xa1b2_3c4d, (2, 4), 0, 1)[..])
            .unwrap()
            .format()
            .pcap
            .unwrap()
            .resolution,
        Resolution::Nano
    );
}
