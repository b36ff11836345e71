//! Truncated, changed and absurd files. The reader must not panic, and must return the records
//! before the damage. If an error has an offset, the offset must be plausible.

use std::io::{self, Read};

use crate::common::{Packet, every_encoding, gzip, packets, pcap, pcapng, place, read_all, zstd};
use retroscope_pcapfile::{
    Blame, ByteOrder, LinkType, PcapOptions, PcapWriter, ReadError, Resolution,
};

/// The end of each block (pcapng), or of the file header and each record (pcap), of a file from
/// `every_encoding`, and whether that block or record is a packet. A naive parser, for sound files
/// only.
fn ends(file: &[u8]) -> Vec<(usize, bool)> {
    let ng = file[0] == 0x0a;
    let big = if ng { file[8] == 0x1a } else { file[0] == 0xa1 };
    let word = |at: usize| {
        let bytes = file[at..at + 4].try_into().unwrap();
        (if big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }) as usize
    };
    let mut ends = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let packet = if ng { word(at) == 6 } else { at > 0 };
        at += match (ng, at) {
            (true, _) => word(at + 4),
            (false, 0) => 24,
            (false, _) => 16 + word(at + 8),
        };
        ends.push((at, packet));
    }
    assert_eq!(at, file.len());
    ends
}

/// Number of packets that end at or before `place`.
fn packets_before(ends: &[(usize, bool)], place: usize) -> usize {
    ends.iter()
        .filter(|(end, packet)| *packet && *end <= place)
        .count()
}

#[test]
fn cut_at_every_byte() {
    for (name, file, packets) in every_encoding() {
        let ends = ends(&file);
        for cut in 0..file.len() {
            let (read, end) = read_all(&file[..cut]);
            let whole = packets_before(&ends, cut);
            assert_eq!(read, packets[..whole], "{name} cut at {cut}");
            if ends.iter().any(|(end, _)| *end == cut) {
                assert!(end.is_ok(), "{name} cut at {cut}: {end:?}");
                continue;
            }
            let error = end.expect_err("a cut file is not sound");
            assert!(error.is_damage(), "{name} cut at {cut}: {error}");
            let begin = ends
                .iter()
                .map(|(end, _)| *end)
                .filter(|end| *end <= cut)
                .max()
                .unwrap_or(0);
            match error {
                ReadError::NotACapture { .. } => assert!(cut < 4, "{name} cut at {cut}: {error}"),
                ReadError::Faulty {
                    blame: Blame::Damaged,
                    offset,
                    ref message,
                    ..
                } => {
                    assert_eq!(offset, begin as u64, "{name} cut at {cut}");
                    assert!(
                        message.contains(&format!("{} of", cut - begin)),
                        "{message}"
                    );
                }
                _ => panic!("{name} cut at {cut}: {error}"),
            }
        }
    }
}

#[test]
fn compressed_files_cut_at_every_byte() {
    for (name, file, packets) in every_encoding() {
        for (compressed, inside) in [(gzip(&file), "inside gzip"), (zstd(&file), "inside zstd")] {
            for cut in 0..compressed.len() {
                let (read, end) = read_all(&compressed[..cut]);
                assert!(packets.starts_with(&read), "{name} {inside} cut at {cut}");
                let error = end.expect_err("a cut file is not sound");
                assert!(error.is_damage(), "{name} {inside} cut at {cut}: {error}");
                assert!(
                    cut < 4 || error.to_string().contains(inside),
                    "{name} cut at {cut}: {error}"
                );
                assert!(
                    place(&error).is_none_or(|offset| offset <= file.len() as u64),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn what_came_out_before_a_compressed_cut_counts() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
    for _ in 0..2_000 {
        let data: Vec<u8> = (0..1_000).map(|_| random.u8(..)).collect();
        writer.record(0, 1_000, &data).unwrap();
    }
    let file = writer.finish().unwrap();
    for compressed in [gzip(&file), zstd(&file)] {
        let (read, end) = read_all(&compressed[..compressed.len() / 2]);
        // The data does not compress, so about half of the data can be decompressed, except the
        // incomplete last block of at most 128 KiB.
        assert!(
            (850..=1_000).contains(&read.len()),
            "{} packets",
            read.len()
        );
        let error = end.unwrap_err();
        assert!(error.to_string().contains("ends early"), "{error}");
        assert!(
            place(&error)
                .unwrap()
                .abs_diff(read.len() as u64 * 1_016 + 24)
                < 1_100,
            "{error}"
        );
    }
}

#[test]
fn checksums_of_compressed_files_are_checked() {
    let packets = packets(1);
    let file = pcap(&packets, ByteOrder::Little, Resolution::Nano);
    let mut wrong_gzip = gzip(&file);
    let checksum = wrong_gzip.len() - 8;
    wrong_gzip[checksum] ^= 1;
    let mut wrong_zstd = zstd(&file);
    *wrong_zstd.last_mut().unwrap() ^= 1;
    for wrong in [wrong_gzip, wrong_zstd] {
        let (_, end) = read_all(&wrong[..]);
        let error = end.unwrap_err();
        assert!(
            matches!(
                error,
                ReadError::Faulty {
                    blame: Blame::Damaged,
                    compression: Some(_),
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn random_changes() {
    let seed = fastrand::u64(..);
    eprintln!("random_changes: seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let encodings = every_encoding();
    let all_ends: Vec<_> = encodings.iter().map(|(_, file, _)| ends(file)).collect();
    for round in 0..if cfg!(debug_assertions) {
        3_000
    } else {
        30_000
    } {
        let index = random.usize(..encodings.len());
        let (name, file, packets) = &encodings[index];
        let mut changed = file.clone();
        let mut first = file.len();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..file.len());
            first = first.min(at);
            // Small and huge numbers break more than average numbers.
            let any = random.u8(..);
            changed[at] = *random
                .choice(&[0, 1, 2, 4, 0x0a, 0x7f, 0x80, 0xff, any])
                .unwrap();
        }
        let context = format!("{name}, seed {seed}, round {round}");
        let (read, end) = read_all(&changed[..]);
        // A changed interface changes the times and limits of packets, but of no packet before the
        // change.
        let sound = packets_before(&all_ends[index], first);
        assert!(
            read.len() >= sound,
            "{context}: {} packets, {sound} are sound; {end:?}",
            read.len()
        );
        assert_eq!(read[..sound], packets[..sound], "{context}");
        if let Err(error) = end {
            assert!(error.is_damage(), "{context}: {error}");
            assert!(
                place(&error).is_none_or(|offset| offset <= file.len() as u64),
                "{context}: {error}"
            );
        }
        let mut compressed = if random.bool() {
            gzip(file)
        } else {
            zstd(file)
        };
        let at = random.usize(..compressed.len());
        compressed[at] ^= 1 << random.u8(..8);
        match read_all(&compressed[..]) {
            (read, Ok(())) => assert_eq!(read, *packets, "{context}: undetected change at {at}"),
            (_, Err(error)) => assert!(error.is_damage(), "{context}: {error}"),
        }
    }
}

#[test]
fn random_bytes_after_a_header() {
    let seed = fastrand::u64(..);
    eprintln!("random_bytes_after_a_header: seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (name, file, _) in every_encoding() {
        let header = ends(&file)[0].0;
        for _ in 0..200 {
            let mut bytes = file[..header].to_vec();
            let mask = *random.choice(&[0xff, 0x0f, 0x03, 0x01]).unwrap();
            bytes.extend((0..random.usize(1..2_000)).map(|_| random.u8(..) & mask));
            let (_, end) = read_all(&bytes[..]);
            if let Err(error) = end {
                assert!(
                    place(&error).is_some_and(|offset| offset <= bytes.len() as u64),
                    "{name}, seed {seed}: {error}"
                );
            }
        }
    }
}

/// A stream that fails after its bytes.
struct Failing<'b>(&'b [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.0.read(bytes)? {
            0 => Err(io::Error::other("the cable was pulled")),
            count => Ok(count),
        }
    }
}

#[test]
fn a_failing_stream_is_not_the_files_fault() {
    let packets = packets(1);
    let file = pcap(&packets, ByteOrder::Little, Resolution::Nano);
    let whole = file.len() - 16 - packets[9].data.len();
    for (bytes, compressed) in [
        (file[..whole + 3].to_vec(), false),
        (gzip(&file), true),
        (zstd(&file), true),
    ] {
        let cut = if compressed {
            bytes.len() - 2
        } else {
            bytes.len()
        };
        let (read, end) = read_all(Failing(&bytes[..cut]));
        let error = end.unwrap_err();
        let is_ours = |error: &io::Error| error.kind() == io::ErrorKind::Other;
        assert!(
            matches!(&error, ReadError::Io { error, .. } if is_ours(error)),
            "{error}"
        );
        assert!(!error.is_damage());
        if !compressed {
            assert_eq!((read.len(), place(&error)), (9, Some(whole as u64 + 3)));
        }
    }
}

#[test]
fn every_fault_has_its_place_and_its_values() {
    let packets: Vec<Packet> = packets(1);
    let pcap = pcap(&packets, ByteOrder::Little, Resolution::Micro);
    let ng = pcapng(&packets, ByteOrder::Little);
    let ng_ends = ends(&ng);
    let (section, interface) = (ng_ends[0].0, ng_ends[1].0);
    let with = |file: &[u8], at: usize, bytes: &[u8]| {
        let mut file = file.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    for file in [
        vec![],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"snoop\0\0\0\0\0\0\x02\0\0\0\x04".to_vec(),
        gzip(&gzip(&pcap)),
        gzip(b""),
    ] {
        let error = read_all(&file[..]).1.unwrap_err();
        assert!(matches!(error, ReadError::NotACapture { .. }), "{error}");
    }
    let (damaged, unsupported) = (Blame::Damaged, Blame::Unsupported);
    // The file, the position and the new bytes of a change, then the error's blame and offset, and
    // the values in its message.
    let cases = [
        (&pcap[..], 4, &[1, 0][..], unsupported, 4, &["1.4"][..]),
        (&pcap, 22, &[0x30], unsupported, 20, &["0x00300001"]),
        (&pcap, 24 + 8, &[1, 0, 4, 0], damaged, 24, &["262145"]),
        (&ng, 8, &[9], damaged, 8, &["0x093c2b1a"]),
        (&ng, 12, &[2], unsupported, 12, &["2.0"]),
        (&ng, section - 4, &[0], damaged, 0, &["length"]),
        (&ng, section + 4, &[8, 0], damaged, section, &["8", "12"]),
        (&ng, interface + 4, &[93], damaged, interface, &["93"]),
        (
            &ng,
            interface + 7,
            &[0xff],
            damaged,
            interface,
            &["16777216"],
        ),
        (
            &ng,
            interface + 8,
            &[7],
            damaged,
            interface,
            &["interface 7"],
        ),
        (
            &ng,
            interface + 20,
            &[0xff, 0xff],
            damaged,
            interface,
            &["65535"],
        ),
        (
            &ng,
            interface + 20,
            &[0, 0, 1],
            damaged,
            interface,
            &["65536", "65535"],
        ),
        (&ng, section, &[6], damaged, section, &["interface 1"]),
        (
            &ng,
            section + 18,
            &[0xff, 0xff],
            damaged,
            section,
            &["option"],
        ),
    ];
    for (file, at, bytes, expected, place, values) in cases {
        match read_all(&with(file, at, bytes)[..]).1.unwrap_err() {
            ReadError::Faulty {
                blame,
                offset,
                message,
                ..
            } => {
                assert_eq!((blame, offset), (expected, place as u64), "{message}");
                let names = |value: &&str| message.contains(value);
                assert!(values.iter().all(names), "{message:?} without {values:?}");
            }
            error => panic!("{error}"),
        }
    }
}
