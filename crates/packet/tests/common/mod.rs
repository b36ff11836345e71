//! Reads the frames of the shared captures: just enough of pcap and pcapng for these tests.

use std::path::{Path, PathBuf};

use retroscope_packet::LinkType;

/// One record of a capture.
pub(crate) struct Record {
    pub(crate) link_type: LinkType,
    pub(crate) data: Vec<u8>,
    pub(crate) wire_len: u32,
}

/// The folder `shared` next to the checkout, with captures. `None`, with a note on stderr, if there
/// is no such folder.
pub(crate) fn shared() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if shared.is_dir() {
        return Some(shared);
    }
    eprintln!(
        "SKIP: no captures at {}: nothing was tested",
        shared.display()
    );
    None
}

/// The rows of a table with one header line.
pub(crate) fn table(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .skip(1)
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// All `.pcap`, `.pcapng` and `.cap` files in a folder and below, in order of path.
pub(crate) fn captures(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|ext| ext == "pcap" || ext == "pcapng" || ext == "cap")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The records before the end of the file or the first damage. Of pcapng files only Enhanced Packet
/// Blocks.
pub(crate) fn read(path: &Path) -> Vec<Record> {
    let file = std::fs::read(path).unwrap();
    let mut records = Vec::new();
    if file.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        read_pcapng(&file, &mut records);
    } else {
        read_pcap(&file, &mut records);
    }
    records
}

/// A 32-bit number in the file's byte order. `None` beyond the end of the file.
fn u32_at(file: &[u8], at: usize, big: bool) -> Option<u32> {
    let bytes = *file.get(at..)?.first_chunk()?;
    Some(if big {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    })
}

/// The link type in the low 16 bits of a header field.
fn link_type(field: u32) -> LinkType {
    LinkType(u16::try_from(field & 0xffff).unwrap())
}

fn read_pcap(file: &[u8], records: &mut Vec<Record>) -> Option<()> {
    let big = match file.get(..4)? {
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => true,
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => false,
        _ => return None,
    };
    let link_type = link_type(u32_at(file, 20, big)?);
    let mut at = 24;
    loop {
        let captured = u32_at(file, at + 8, big)? as usize;
        let wire_len = u32_at(file, at + 12, big)?;
        let data = file.get(at + 16..at.checked_add(16 + captured)?)?.to_vec();
        records.push(Record {
            link_type,
            data,
            wire_len,
        });
        at += 16 + captured;
    }
}

fn read_pcapng(file: &[u8], records: &mut Vec<Record>) -> Option<()> {
    let (mut at, mut big, mut interfaces) = (0, false, Vec::new());
    loop {
        if file.get(at..at + 4)? == [0x0a, 0x0d, 0x0d, 0x0a] {
            big = file.get(at + 8)? == &0x1a;
            interfaces.clear();
        }
        let (kind, len) = (u32_at(file, at, big)?, u32_at(file, at + 4, big)? as usize);
        let block = file.get(at..at.checked_add(len)?)?;
        match kind {
            1 => interfaces.push(link_type(
                u32_at(block, 8, big)? >> if big { 16 } else { 0 },
            )),
            6 => {
                let link_type = *interfaces.get(u32_at(block, 8, big)? as usize)?;
                let captured = u32_at(block, 20, big)? as usize;
                let data = block.get(28..28 + captured)?.to_vec();
                records.push(Record {
                    link_type,
                    data,
                    wire_len: u32_at(block, 24, big)?,
                });
            }
            _ => {}
        }
        at += len.max(12);
    }
}
