//! Files with very many interfaces or a huge block, and endless streams of blocks. The kept names
//! must stay bounded, and with `poll` the caller decides how long to read.

use std::{
    io::{self, Read},
    time::{Duration, Instant},
};

use crate::common::{gzip, zstd};
use retroscope_pcapfile::{CaptureReader, ReadError, TEXT_BYTES_MAX, TEXTS_BYTES_MAX};

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let body = [body, &vec![0; body.len().next_multiple_of(4) - body.len()]].concat();
    let length = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
    [&kind.to_le_bytes()[..], &length, &body, &length].concat()
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
    let length = u16::try_from(value.len()).unwrap().to_le_bytes();
    [&code.to_le_bytes()[..], &length, value, &padding].concat()
}

fn section() -> Vec<u8> {
    let words = [0x1a2b_3c4d, 1, u32::MAX, u32::MAX];
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    block(0x0a0d_0d0a, &body)
}

fn interface(link_type: u16, name: &[u8], description: &[u8]) -> Vec<u8> {
    let link_type = u32::from(link_type).to_le_bytes();
    let options = [option(2, name), option(3, description)].concat();
    block(1, &[&link_type[..], &[0; 4], &options, &[0; 4]].concat())
}

fn packet() -> Vec<u8> {
    block(
        6,
        &[&[0; 12][..], &[4, 0, 0, 0, 4, 0, 0, 0], &[7; 4]].concat(),
    )
}

/// A block of an unknown type, with a body of this number of zero bytes.
fn unknown(bytes: usize) -> Vec<u8> {
    block(0x0bad_cafe, &vec![0; bytes])
}

#[test]
fn names_are_cut_and_their_sum_is_bounded() {
    let name = "ü".repeat(30_000);
    let mut file = section();
    for _ in 0..40_000 {
        file.extend(interface(1, &name.as_bytes()[..2000], b"a description"));
    }
    file.extend(interface(1, name.as_bytes(), b""));
    file.extend(packet());
    let file = gzip(&file);
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    while reader.fill().unwrap() > 0 {}
    assert_eq!(
        (reader.interfaces().len(), reader.records_read()),
        (40_001, 1)
    );
    assert!(reader.are_texts_cut());
    let first = &reader.interfaces()[0];
    assert_eq!(first.name.len(), TEXT_BYTES_MAX - 1, "between characters");
    assert!(first.name.starts_with("üü") && first.name.ends_with("ü…"));
    assert_eq!(first.description, "a description");
    let kept = |interface: &retroscope_pcapfile::FileInterface| {
        assert!(interface.name.capacity() <= TEXT_BYTES_MAX);
        interface.name.len() + interface.description.len()
    };
    let all: usize = reader.interfaces().iter().map(kept).sum();
    assert!(
        (TEXTS_BYTES_MAX - 2 * TEXT_BYTES_MAX..=TEXTS_BYTES_MAX).contains(&all),
        "{all}"
    );

    let short = [section(), interface(1, b"eth0", b"the first"), packet()].concat();
    let mut reader = CaptureReader::new(&short[..]).unwrap();
    while reader.fill().unwrap() > 0 {}
    assert!(!reader.are_texts_cut());
    assert_eq!(reader.interfaces()[0].name, "eth0");
}

#[test]
fn sections_do_not_start_the_count_of_link_types_again() {
    let mut file = Vec::new();
    for link_type in 0..64 {
        file.extend([section(), interface(link_type, b"", b""), packet()].concat());
    }
    // After 64 link types, one of them may appear again, but a 65th link type is an error.
    file.extend([section(), interface(0, b"", b""), packet()].concat());
    file.extend([interface(64, b"", b""), packet()].concat());
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    let mut records = 0;
    let error = loop {
        match reader.fill() {
            Ok(0) => panic!("65 link types were read"),
            Ok(count) => records += count,
            Err(error) => break error,
        }
    };
    assert_eq!(records, 65);
    assert!(
        matches!(&error, ReadError::Faulty { message, .. } if message.contains("64")),
        "{error}"
    );
}

/// An endless stream: `start` once, then `again` repeatedly.
struct Endless {
    start: Vec<u8>,
    again: Vec<u8>,
    given: usize,
    reads: u64,
}

impl Endless {
    fn new(start: Vec<u8>, again: Vec<u8>) -> Self {
        Self {
            start,
            again,
            given: 0,
            reads: 0,
        }
    }
}

impl Read for &mut Endless {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        for byte in &mut *room {
            let behind = |given: usize| given % self.again.len();
            *byte = match self.given.checked_sub(self.start.len()) {
                None => self.start[self.given],
                Some(given) => self.again[behind(given)],
            };
            self.given += 1;
        }
        Ok(room.len())
    }
}

#[test]
fn a_stream_without_end_or_packets_is_read_in_steps() {
    let start = [section(), interface(1, b"eth0", b"")].concat();
    for again in [unknown(0), unknown(70_000), block(5, &[0; 12]), section()] {
        let mut stream = Endless::new(start.clone(), again);
        let mut reader = CaptureReader::new(&mut stream).unwrap();
        assert_eq!(reader.interfaces().len(), 1);
        let before = reader.offset();
        for _ in 0..100 {
            assert_eq!(reader.poll().unwrap(), None);
        }
        let stepped = reader.offset() - before;
        assert!((1 << 20..=26 << 20).contains(&stepped), "{stepped}");
        drop(reader);
        assert!(stream.reads <= 100 + 20, "{}", stream.reads);
    }
}

#[test]
fn compressed_blocks_without_packets_come_in_steps_too() {
    let mut file = [section(), interface(1, b"eth0", b"")].concat();
    file.extend(unknown(0).repeat(2 << 20));
    file.extend(packet());
    for file in [gzip(&file), zstd(&file)] {
        let mut reader = CaptureReader::new(&file[..]).unwrap();
        let (mut steps, mut count) = (0, None);
        while count.is_none() {
            let before = reader.offset();
            count = reader.poll().unwrap();
            assert!(reader.offset() - before <= 512 << 10);
            steps += 1;
        }
        assert_eq!(count, Some(1));
        assert!(steps >= 90, "{steps}");
        assert_eq!(reader.poll().unwrap(), Some(0));
    }
}

/// A stream that returns one byte in each read.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let count = room.len().min(1);
        self.0.read(&mut room[..count])
    }
}

/// The reader must not move the bytes of an incomplete large block for each new byte. It would then
/// move terabytes in total.
#[test]
fn a_large_block_that_trickles_takes_no_more_than_its_bytes() {
    let file = [
        section(),
        interface(1, b"", b""),
        unknown(8 << 20),
        packet(),
    ]
    .concat();
    let start = Instant::now();
    let mut reader = CaptureReader::new(Trickle(&file)).unwrap();
    assert_eq!(reader.fill().unwrap(), 1);
    assert!(start.elapsed() < Duration::from_secs(60));
}
