//! The reader reads what the writers wrote. Also tests the errors of the writers.

use std::{
    fs,
    io::{self, Read, Write},
};

use crate::common::{every_encoding, gzip, packets, pcapng, read_all, zstd};
use retroscope_pcapfile::{
    ByteOrder, CaptureReader, Compression, FileInterface, LinkType, PacketOptions, PcapNgWriter,
    PcapOptions, PcapWriter, Resolution, SectionOptions, WriteError, scan_link_types,
};

/// A stream that returns one byte a call, and an interruption before each byte.
struct Trickle<'b>(&'b [u8], bool);

impl Read for Trickle<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let Some((first, rest)) = self.0.split_first() else {
            return Ok(0);
        };
        self.0 = rest;
        bytes[0] = *first;
        Ok(1)
    }
}

#[test]
fn every_encoding_comes_back() {
    for (name, file, packets) in every_encoding() {
        let compressed = [file.clone(), gzip(&file), zstd(&file)];
        for (file, compression) in
            compressed
                .iter()
                .zip([None, Some(Compression::Gzip), Some(Compression::Zstd)])
        {
            assert_eq!(
                CaptureReader::new(&file[..]).unwrap().format().compression,
                compression,
                "{name}"
            );
            let (read, end) = read_all(&file[..]);
            assert!(end.is_ok(), "{name} {compression:?}: {end:?}");
            assert_eq!(read, packets, "{name} {compression:?}");
            let (read, end) = read_all(Trickle(file, false));
            assert!(end.is_ok(), "{name} {compression:?}: {end:?}");
            assert_eq!(read, packets, "{name} {compression:?} in single bytes");
        }
    }
}

#[test]
fn formats_and_interfaces_come_back() {
    let options = PcapOptions {
        link_type_extra: 0x3400_0000,
        snaplen: 96,
        resolution: Resolution::Micro,
        byte_order: ByteOrder::Big,
        ..PcapOptions::new(LinkType::LINUX_SLL2)
    };
    let file = PcapWriter::new(Vec::new(), options)
        .unwrap()
        .finish()
        .unwrap();
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    let format = reader.format();
    assert_eq!((format.pcap, format.compression), (Some(options), None));
    let interface = &reader.interfaces()[0];
    assert_eq!(
        (
            interface.link_type,
            interface.snaplen,
            interface.resolution_ns
        ),
        (LinkType::LINUX_SLL2, 96, 1_000)
    );
    assert_eq!(reader.fill().unwrap(), 0);

    let file = pcapng(&packets(2), ByteOrder::Big);
    let reader = CaptureReader::new(&file[..]).unwrap();
    assert_eq!(
        (reader.format().pcap, reader.format().byte_order),
        (None, ByteOrder::Big)
    );
    let [first, second] = reader.interfaces() else {
        panic!("{:?}", reader.interfaces())
    };
    assert_eq!(
        (first.name.as_str(), second.name.as_str()),
        ("eth0", "eth1")
    );
    assert_eq!(
        (first.description.as_str(), first.snaplen),
        ("the one in the middle", 65_535)
    );
    assert_eq!(
        (first.resolution_ns, first.link_type),
        (1, LinkType::ETHERNET)
    );
}

#[test]
fn members_and_frames_join() {
    let packets = packets(3);
    let file = pcapng(&packets, ByteOrder::Little);
    let (front, back) = file.split_at(file.len() / 3);
    for compress in [gzip, zstd] {
        let (read, end) = read_all(&[compress(front), compress(&[]), compress(back)].concat()[..]);
        assert!(end.is_ok(), "{end:?}");
        assert_eq!(read, packets);
    }
    // A skippable zstd frame with four bytes of content, before the frame with the data.
    let skippable = [0x5a, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
    let (read, end) = read_all(&[&skippable[..], &zstd(&file)].concat()[..]);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(read, packets);
}

#[test]
fn sections_differ_in_byte_order_and_keep_their_interfaces() {
    let mut expected = packets(2);
    let mut file = pcapng(&expected, ByteOrder::Little);
    file.extend(pcapng(&packets(3), ByteOrder::Big));
    for packet in packets(3) {
        expected.push(crate::common::Packet {
            interface: packet.interface + 2,
            ..packet
        });
    }
    let (read, end) = read_all(&file[..]);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(read, expected);
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    while reader.fill().unwrap() > 0 {}
    assert_eq!(reader.interfaces().len(), 5);
    assert_eq!(reader.offset(), file.len() as u64);
}

#[test]
fn times_before_1970_are_clamped_and_told() {
    let times = [0, -1, i64::MIN, 1_700_000_000_123_456_789];
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    let interface = writer
        .add_interface(&FileInterface::new(LinkType::RAW))
        .unwrap();
    for time in times {
        writer
            .packet(interface, time, 0, &[], &PacketOptions::default())
            .unwrap();
    }
    assert_eq!(writer.times_clamped(), 2);
    let (read, end) = read_all(&writer.finish().unwrap()[..]);
    assert!(end.is_ok(), "{end:?}");
    assert!(
        read.iter()
            .map(|packet| packet.time_ns)
            .eq(times.map(|time| time.max(0)))
    );
}

#[test]
fn microsecond_interfaces_round_down() {
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    let options = FileInterface {
        resolution_ns: 1000,
        ..FileInterface::new(LinkType::RAW)
    };
    let interface = writer.add_interface(&options).unwrap();
    for time in [1_999, 5_000_000_999] {
        writer
            .packet(interface, time, 0, &[], &PacketOptions::default())
            .unwrap();
    }
    let (read, end) = read_all(&writer.finish().unwrap()[..]);
    assert!(end.is_ok(), "{end:?}");
    let read: Vec<i64> = read.iter().map(|packet| packet.time_ns).collect();
    assert_eq!(read, [1_000, 5_000_000_000]);
}

#[test]
fn a_long_file_comes_in_bursts() {
    let options = PcapOptions::new(LinkType::ETHERNET);
    let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
    let sizes: Vec<usize> = (0..3_000)
        .map(|index| [0, 60, 1514, 262_144][if index % 400 == 399 { 3 } else { index % 3 }])
        .collect();
    let bytes = vec![0x5a; 262_144];
    for (index, size) in sizes.iter().enumerate() {
        writer.record(index as i64, 0, &bytes[..*size]).unwrap();
    }
    let file = writer.finish().unwrap();
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    assert!(
        reader.records().is_empty(),
        "nothing is lent before the first fill"
    );
    let mut index = 0;
    loop {
        let count = reader.fill().unwrap();
        assert_eq!(count, reader.records().len());
        assert!(count <= 256);
        if count == 0 {
            break;
        }
        for meta in reader.records() {
            let data = &reader.memory()[meta.offset..meta.offset + meta.captured_len as usize];
            assert_eq!((meta.time_ns, data.len()), (index as i64, sizes[index]));
            assert!(data.iter().all(|byte| *byte == 0x5a));
            index += 1;
        }
    }
    assert_eq!(
        (index, reader.records_read()),
        (sizes.len(), sizes.len() as u64)
    );
}

#[test]
fn next_goes_on_with_the_burst_that_fill_lent() {
    let packets = packets(1);
    let file = crate::common::pcap(&packets, ByteOrder::Little, Resolution::Nano);
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    assert_eq!(reader.fill().unwrap(), packets.len());
    for packet in &packets {
        assert_eq!(reader.next().unwrap().unwrap().data, packet.data);
    }
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn link_types_are_found_to_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("types.pcapng");
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    for link_type in [
        LinkType::RAW,
        LinkType::ETHERNET,
        LinkType::RAW,
        LinkType::LOOP,
    ] {
        let interface = writer
            .add_interface(&FileInterface::new(link_type))
            .unwrap();
        for _ in 0..300 {
            writer
                .packet(interface, 0, 4, &[1, 2, 3, 4], &PacketOptions::default())
                .unwrap();
        }
    }
    let mut file = writer.finish().unwrap();
    let expected = [LinkType::RAW, LinkType::ETHERNET, LinkType::LOOP];
    fs::write(&path, &file).unwrap();
    assert_eq!(scan_link_types(&path).unwrap(), expected);
    file.extend([1, 2, 3]);
    fs::write(&path, &file).unwrap();
    assert_eq!(
        scan_link_types(&path).unwrap(),
        expected,
        "damage behind the interfaces is the reader's to report"
    );
    fs::write(&path, b"").unwrap();
    assert!(scan_link_types(&path).is_err());
}

/// A stream that accepts `room` bytes, at most 7 a call, and then fails.
struct Full {
    room: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(7).min(self.room);
        if count == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_once_and_ends_the_writer() {
    let mut writer = PcapWriter::new(
        Full { room: 24 + 76 + 50 },
        PcapOptions::new(LinkType::ETHERNET),
    )
    .unwrap();
    writer.record(0, 60, &[0; 60]).unwrap();
    let failed = writer.record(0, 60, &[0; 60]);
    assert!(
        matches!(&failed, Err(WriteError::Io { written: 100, error }) if error.kind() == io::ErrorKind::StorageFull),
        "{failed:?}"
    );
    assert!(matches!(
        writer.record(0, 60, &[0; 60]),
        Err(WriteError::Failed)
    ));
    assert!(matches!(writer.finish(), Err(WriteError::Failed)));

    let none = PcapNgWriter::new(Full { room: 27 }, &SectionOptions::default());
    assert!(matches!(none, Err(WriteError::Io { written: 0, .. })));
    let mut writer = PcapNgWriter::new(Full { room: 28 }, &SectionOptions::default()).unwrap();
    let failed = writer.add_interface(&FileInterface::new(LinkType::ETHERNET));
    assert!(matches!(failed, Err(WriteError::Io { written: 28, .. })));
    assert!(matches!(
        writer.packet(0, 0, 0, &[], &PacketOptions::default()),
        Err(WriteError::UnknownInterface {
            interface: 0,
            count: 0
        })
    ));
}

#[test]
fn misuse_writes_nothing() {
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    let options = FileInterface {
        snaplen: 64,
        ..FileInterface::new(LinkType::ETHERNET)
    };
    let interface = writer.add_interface(&options).unwrap();
    let before = writer.inner_mut().len();
    let long = "x".repeat(65_536);
    let comments = [long.as_str()];
    let too_long = PacketOptions {
        comments: &comments,
        ..Default::default()
    };
    let many = vec![&long[1..]; 300];
    let too_many = PacketOptions {
        comments: &many,
        ..Default::default()
    };
    assert!(matches!(
        writer.packet(interface, 0, 65, &[0; 65], &PacketOptions::default()),
        Err(WriteError::TooLong { limit: 64, .. })
    ));
    assert!(matches!(
        writer.packet(interface, 0, 1, &[0], &too_long),
        Err(WriteError::TooLong { bytes: 65_536, .. })
    ));
    assert!(matches!(
        writer.packet(interface, 0, 1, &[0], &too_many),
        Err(WriteError::TooLong {
            what: "a block",
            ..
        })
    ));
    assert!(matches!(
        writer.packet(1, 0, 0, &[], &PacketOptions::default()),
        Err(WriteError::UnknownInterface {
            interface: 1,
            count: 1
        })
    ));
    assert_eq!(writer.inner_mut().len(), before);
    writer
        .packet(interface, 0, 65, &[0; 64], &PacketOptions::default())
        .unwrap();
    let (read, end) = read_all(&writer.finish().unwrap()[..]);
    assert!(end.is_ok());
    assert_eq!(read.len(), 1);
}
