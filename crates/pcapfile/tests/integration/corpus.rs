//! Compares every capture of the corpus with the counts of tcpdump 4.99.3 and capinfos 4.0.17 in
//! its manifest.
use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::place;
use retroscope_pcapfile::{CaptureReader, ReadError};

/// Error texts of libpcap for sound files, and of tcpdump for link types without a name. The reader
/// must read a file with one of these errors to its end, with as many packets as capinfos reports.
/// If capinfos fails too, the reader must find at least one packet.
const SOUND: [&str; 4] = [
    "different from the type of the first interface",
    "different from the snapshot length of the first interface",
    "has no Interface Description Blocks",
    "unknown data link type 9999",
];

fn shared() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if shared.join("traces/MANIFEST.tsv").exists() {
        return Some(shared);
    }
    eprintln!("SKIP: no corpus of captures at {}", shared.display());
    None
}

/// Reads to the end. Returns the number of records, and the result at the end.
fn read_all(path: &Path) -> (u64, Result<(), ReadError>) {
    let mut reader = match CaptureReader::open(path) {
        Ok(reader) => reader,
        Err(error) => return (0, Err(error)),
    };
    let mut count = 0;
    let end = loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert_eq!(record.data.len(), record.meta.captured_len as usize);
                count += 1;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert_eq!(count, reader.records_read());
    assert!(
        reader.next().unwrap().is_none(),
        "an ended reader stays ended"
    );
    (count, end)
}

#[test]
fn every_capture_reads_as_expected() {
    let Some(shared) = shared() else { return };
    let manifest = fs::read_to_string(shared.join("traces/MANIFEST.tsv")).unwrap();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for row in manifest.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (file, packets, capinfos, status) = (columns[0], columns[7], columns[8], columns[11]);
        rows += 1;
        let path = shared.join(file);
        let (count, end) = read_all(&path);
        let sound = status == "ok" || SOUND.iter().any(|text| status.contains(text));
        let expected = if status == "ok" { packets } else { capinfos };
        let good = if sound {
            end.is_ok() && (expected.parse() == Ok(count) || (expected == "error" && count > 0))
        } else {
            let bytes = fs::metadata(&path).unwrap().len();
            let placed = match &end {
                Err(error @ ReadError::NotACapture { .. }) => error.is_damage(),
                Err(error) => {
                    error.is_damage() && place(error).is_some_and(|offset| offset <= bytes)
                }
                Ok(()) => false,
            };
            placed && packets.parse() == Ok(count)
        };
        if !good {
            wrong.push(format!(
                "{file}: {count} packets, {end:?}; expected {packets}/{capinfos}, {status}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 300, "the manifest has {rows} rows");
}
