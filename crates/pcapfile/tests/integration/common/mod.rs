//! Captures that several tests write and read.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "shared by tests that each use a part"
)]

use std::io::{Read, Write};

use retroscope_pcapfile::{
    ByteOrder, CaptureReader, FileInterface, InterfaceStatistics, LinkType, PacketOptions,
    PcapNgWriter, PcapOptions, PcapWriter, ReadError, Resolution, SectionOptions,
};

/// A record that owns its data, for comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) time_ns: i64,
    pub(crate) wire_len: u32,
    pub(crate) interface: u16,
    pub(crate) flags: Option<u32>,
    pub(crate) data: Vec<u8>,
}

/// Ten packets with times to the nanosecond, of 60 to 69 bytes, so that every padding to four bytes
/// occurs. The packet at index 3 is truncated, with 1514 bytes on the wire.
pub(crate) fn packets(interfaces: u16) -> Vec<Packet> {
    (0..10_u16)
        .map(|index| Packet {
            time_ns: 1_700_000_000_123_456_789 + i64::from(index) * 1_000_000_007,
            wire_len: if index == 3 {
                1514
            } else {
                60 + u32::from(index)
            },
            interface: index % interfaces,
            flags: (index % 3 > 0).then(|| u32::from(index % 3)),
            data: (0..60 + index)
                .map(|byte| (byte * 7 + index).to_le_bytes()[0])
                .collect(),
        })
        .collect()
}

/// The packets as a pcap file keeps them: times rounded down to the resolution, no flags.
pub(crate) fn as_pcap(packets: &[Packet], resolution: Resolution) -> Vec<Packet> {
    let unit = i64::from(resolution.ns());
    packets
        .iter()
        .map(|packet| Packet {
            time_ns: packet.time_ns / unit * unit,
            flags: None,
            ..packet.clone()
        })
        .collect()
}

pub(crate) fn pcap(packets: &[Packet], byte_order: ByteOrder, resolution: Resolution) -> Vec<u8> {
    let options = PcapOptions {
        byte_order,
        resolution,
        ..PcapOptions::new(LinkType::ETHERNET)
    };
    let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
    for packet in packets {
        writer
            .record(packet.time_ns, packet.wire_len, &packet.data)
            .unwrap();
    }
    writer.finish().unwrap()
}

/// A pcapng file of one section, with all options that [`SectionOptions`] has.
pub(crate) fn pcapng(packets: &[Packet], byte_order: ByteOrder) -> Vec<u8> {
    let section = SectionOptions {
        os: "none".into(),
        application: "a test".into(),
        comments: vec!["one".into(), "zwei, drei".into()],
        byte_order,
    };
    let mut writer = PcapNgWriter::new(Vec::new(), &section).unwrap();
    let mut known = 0;
    for (index, packet) in packets.iter().enumerate() {
        while known <= packet.interface {
            let options = FileInterface {
                name: format!("eth{known}"),
                description: "the one in the middle".into(),
                snaplen: 65_535,
                ..FileInterface::new(LinkType::ETHERNET)
            };
            assert_eq!(writer.add_interface(&options).unwrap(), u32::from(known));
            known += 1;
        }
        let comments = ["the trigger", "twice"];
        let options = PacketOptions {
            flags: packet.flags,
            dropped: (index % 3 == 1).then_some(7),
            id: (index % 3 == 2).then_some(u64::MAX),
            comments: if index == 2 { &comments } else { &[] },
        };
        writer
            .packet(
                u32::from(packet.interface),
                packet.time_ns,
                packet.wire_len,
                &packet.data,
                &options,
            )
            .unwrap();
    }
    for interface in 0..known {
        writer
            .statistics(u32::from(interface), &statistics(packets), &[])
            .unwrap();
    }
    writer.finish().unwrap()
}

pub(crate) fn statistics(packets: &[Packet]) -> InterfaceStatistics {
    InterfaceStatistics {
        time_ns: packets.last().map_or(0, |packet| packet.time_ns),
        start_ns: packets.first().map(|packet| packet.time_ns),
        end_ns: packets.last().map(|packet| packet.time_ns),
        received: Some(1_000),
        dropped: Some(3),
        os_dropped: Some(2),
        delivered: Some(890),
    }
}

/// A file of each format, byte order and pcap resolution that the writers write: its name, its
/// bytes and the packets that a reader must return.
pub(crate) fn every_encoding() -> Vec<(String, Vec<u8>, Vec<Packet>)> {
    let mut encodings = Vec::new();
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for resolution in [Resolution::Micro, Resolution::Nano] {
            let packets = packets(1);
            let file = pcap(&packets, order, resolution);
            encodings.push((
                format!("pcap {order:?} {resolution:?}"),
                file,
                as_pcap(&packets, resolution),
            ));
        }
        let packets = packets(3);
        encodings.push((
            format!("pcapng {order:?}"),
            pcapng(&packets, order),
            packets,
        ));
    }
    encodings
}

/// Reads to the end. Returns the packets, and the result at the end.
pub(crate) fn read_all(file: impl Read) -> (Vec<Packet>, Result<(), ReadError>) {
    let mut packets = Vec::new();
    let mut reader = match CaptureReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (packets, Err(error)),
    };
    let end = loop {
        match reader.next() {
            Ok(Some(record)) => packets.push(Packet {
                time_ns: record.meta.time_ns,
                wire_len: record.meta.wire_len,
                interface: record.meta.interface,
                flags: record.meta.flags,
                data: record.data.to_vec(),
            }),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert_eq!(reader.records_read(), packets.len() as u64);
    assert!(
        matches!(reader.next(), Ok(None)),
        "an ended reader stays ended"
    );
    (packets, end)
}

/// Offset in the capture data at which an error occurred, if the error has an offset.
pub(crate) fn place(error: &ReadError) -> Option<u64> {
    match *error {
        ReadError::Io { offset, .. } | ReadError::Faulty { offset, .. } => Some(offset),
        _ => None,
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
