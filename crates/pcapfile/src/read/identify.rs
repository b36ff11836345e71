//! Naming a file that is no capture, so that the error helps.

/// Starts of files that people take for captures, and what to call them.
const KNOWN: [(&[u8], &str); 17] = [
    (b"snoop\0\0\0", "a snoop capture (convert it with editcap)"),
    (
        b"GMBU",
        "a Microsoft Network Monitor capture (convert it with editcap)",
    ),
    (
        b"RTSS",
        "a Microsoft Network Monitor capture (convert it with editcap)",
    ),
    (
        b"TRSNIFF data",
        "a Sniffer capture (convert it with editcap)",
    ),
    (
        &[0x54, 0x52, 0x00, 0x64],
        "a Network Instruments capture (convert it with editcap)",
    ),
    (
        &[0xa1, 0xb2, 0x34, 0xcd],
        "a capture in a modified pcap format that is not supported",
    ),
    (
        &[0xcd, 0x34, 0xb2, 0xa1],
        "a capture in a modified pcap format that is not supported",
    ),
    (
        &[0x1f, 0x8b],
        "gzip data inside compressed data (unpack it first)",
    ),
    (
        &[0x28, 0xb5, 0x2f, 0xfd],
        "zstd data inside compressed data (unpack it first)",
    ),
    (
        &[0xfd, b'7', b'z', b'X', b'Z', 0],
        "an xz file (unpack it first)",
    ),
    (b"BZh", "a bzip2 file (unpack it first)"),
    (&[0x04, 0x22, 0x4d, 0x18], "an lz4 file (unpack it first)"),
    (b"PK\x03\x04", "a zip archive (unpack it first)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it first)"),
    (b"\x7fELF", "an ELF program"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
];

/// Bytes that are judged: how many there are beyond depends on how much came in at once.
const JUDGED_BYTES: usize = 24;

/// What a file that starts with `head` is; the head is at least 24 bytes or the whole file, and the first 24 are judged.
pub(super) fn identify(head: &[u8]) -> String {
    let head = &head[..head.len().min(JUDGED_BYTES)];
    if head.is_empty() {
        return "an empty file".into();
    }
    if let Some((_, name)) = KNOWN.iter().find(|(start, _)| head.starts_with(start)) {
        return (*name).into();
    }
    if head
        .iter()
        .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
    {
        return "a text file".into();
    }
    let start: Vec<String> = head
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "an unknown format that starts with the bytes {}",
        start.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_it_knows() {
        assert_eq!(identify(b""), "an empty file");
        assert_eq!(identify(b"hello, world\n"), "a text file");
        assert_eq!(identify(b"24 bytes of text, then: \xff\0"), "a text file");
        assert!(identify(b"snoop\0\0\0\0\0\0\x02").contains("snoop"));
        assert_eq!(
            identify(&[1, 2, 0xfe, 255, 9]),
            "an unknown format that starts with the bytes 01 02 fe ff"
        );
        assert_eq!(
            identify(&[0]),
            "an unknown format that starts with the bytes 00"
        );
    }
}
