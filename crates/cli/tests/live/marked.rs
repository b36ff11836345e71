//! Reads the packets of a dump, and whether the comment `retroscope: trigger packet` marks a
//! packet.

use std::{fs, path::Path};

/// A packet of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dumped {
    pub(crate) time_us: i64,
    pub(crate) data: Vec<u8>,
    pub(crate) is_marked: bool,
}

/// Parses the packets of our pcapng file by the block format, because our reader does not report
/// packet comments.
pub(crate) fn packets(path: &Path) -> Vec<Dumped> {
    let bytes = fs::read(path).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut all) = (0, Vec::new());
    while at < bytes.len() {
        let (kind, len) = (number(at), number(at + 4) as usize);
        if kind == 6 {
            let captured = number(at + 20) as usize;
            let time_ns = u64::from(number(at + 12)) << 32 | u64::from(number(at + 16));
            let options = &bytes[at + 28 + captured.next_multiple_of(4)..at + len - 4];
            let mark = b"retroscope: trigger packet";
            all.push(Dumped {
                time_us: i64::try_from(time_ns / 1000).unwrap(),
                data: bytes[at + 28..at + 28 + captured].to_vec(),
                is_marked: options.windows(mark.len()).any(|it| it == mark),
            });
        }
        at += len;
    }
    all
}
