//! Checks that reading any bytes gives records and an end or an error, the same whatever the size
//! of each read. For a damaged compressed file, the number of records before the damage and the
//! error may differ.

use std::io::{self, Read};

use retroscope_packet::{parse, summary};
use retroscope_pcapfile::{CaptureReader, ReadError, RecordMeta};

/// Maximum number of records that are read, because compressed bytes can contain very many.
const RECORDS_MAX: usize = 2000;

/// First bytes of compressed files: gzip, and zstd without a skippable frame in front.
const COMPRESSED: [&[u8]; 2] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd"];

/// Input: the file.
pub fn captures(data: &[u8]) {
    let (records, end) = read(data);
    let is_compressed = COMPRESSED.iter().any(|magic| data.starts_with(magic));
    for step in [1, 7] {
        let (in_pieces, other_end) = read(Pieces { data, step });
        if is_compressed && end.is_some() {
            // The number of records before the damage depends on the size of each read.
            let common = records.len().min(in_pieces.len());
            assert_eq!(
                in_pieces[..common],
                records[..common],
                "{step} bytes at a time"
            );
            assert!(other_end.is_some(), "{step} bytes at a time: no {end:?}");
        } else {
            assert_eq!(
                (&in_pieces, &other_end),
                (&records, &end),
                "{step} bytes at a time"
            );
        }
    }
}

/// The result of reading a file: the records, and the error at the end.
type ReaderOutput = (Vec<(RecordMeta, Vec<u8>)>, Option<String>);

fn read(stream: impl Read) -> ReaderOutput {
    let mut records = Vec::new();
    let mut reader = match CaptureReader::new(stream) {
        Ok(reader) => reader,
        Err(error) => return (records, Some(shown(&error))),
    };
    while records.len() < RECORDS_MAX {
        let (mut meta, data) = match reader.next() {
            Ok(Some(record)) => (record.meta, record.data.to_vec()),
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(shown(&error))),
        };
        assert_eq!(data.len(), meta.captured_len as usize);
        let interface = &reader.interfaces()[usize::from(meta.interface)];
        let parsed = parse(interface.link_type, &data);
        assert!(
            parsed
                .payload(&data)
                .is_none_or(|payload| payload.len() <= data.len())
        );
        let line = summary(interface.link_type, &data, meta.wire_len).to_string();
        assert!(line.contains(" len "), "{line}");
        // The offset in the reader's memory depends on the size of each read.
        meta.offset = 0;
        records.push((meta, data));
    }
    (records, None)
}

fn shown(error: &ReadError) -> String {
    let text = error.to_string();
    assert!(!text.is_empty());
    text
}

/// A stream that returns at most `step` bytes at a time.
struct Pieces<'d> {
    data: &'d [u8],
    step: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.step.min(buffer.len());
        self.data.read(&mut buffer[..len])
    }
}
