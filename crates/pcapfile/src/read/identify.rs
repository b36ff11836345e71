//! Identifies files that are neither pcap nor pcapng, for a helpful error.

type Starts = &'static [(&'static [u8], &'static str)];

/// First bytes and names of other file formats, grouped by the advice for the user.
const KNOWN: [(&str, Starts); 3] = [
    (
        " (convert it with editcap)",
        &[
            (b"snoop\0\0\0", "a snoop capture"),
            (b"GMBU", "a Microsoft Network Monitor capture"),
            (b"RTSS", "a Microsoft Network Monitor capture"),
            (b"TRSNIFF data", "a Sniffer capture"),
            (b"TR\0\x64", "a Network Instruments capture"),
        ],
    ),
    (
        " (unpack it first)",
        &[
            (&[0x1f, 0x8b], "gzip data inside compressed data"),
            (b"\x28\xb5\x2f\xfd", "zstd data inside compressed data"),
            (b"\xfd7zXZ\0", "an xz file"),
            (b"BZh", "a bzip2 file"),
            (b"\x04\x22\x4d\x18", "an lz4 file"),
            (b"PK\x03\x04", "a zip archive"),
            (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        ],
    ),
    (
        "",
        &[
            (b"\xa1\xb2\x34\xcd", MODIFIED),
            (b"\xcd\x34\xb2\xa1", MODIFIED),
            (b"\x7fELF", "an ELF program"),
            (b"%PDF", "a PDF document"),
            (b"\x89PNG", "a PNG image"),
        ],
    ),
];

const MODIFIED: &str = "a capture in a modified pcap format that is not supported";

/// Number of bytes that are compared. How many further bytes are available depends on the first
/// read, so they do not count.
const JUDGED_BYTES: usize = 24;

/// A name for the format of a file that starts with `head`. `head` has at least 24 bytes or is the
/// whole file; the first 24 bytes are compared.
pub(super) fn identify(head: &[u8]) -> String {
    let head = &head[..head.len().min(JUDGED_BYTES)];
    if head.is_empty() {
        return "an empty file".into();
    }
    for (advice, kinds) in KNOWN {
        if let Some((_, name)) = kinds.iter().find(|(start, _)| head.starts_with(start)) {
            return format!("{name}{advice}");
        }
    }
    if head
        .iter()
        .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
    {
        return "a text file".into();
    }
    let start = head.iter().take(4).map(|byte| format!("{byte:02x}"));
    let start: Vec<_> = start.collect();
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
        for (head, name) in [
            (&b""[..], "empty"),
            (b"hello, world\n", "text"),
            (b"24 bytes of text, then: \xff\0", "text"),
            (b"snoop\0\0\0\0\0\0\x02", "snoop"),
            (b"snoop\0\0\0\0\0\0\x02", "editcap"),
            (b"\x28\xb5\x2f\xfd..", "zstd"),
            (b"\x7fELF\x02", "ELF"),
            (b"\xcd\x34\xb2\xa1", MODIFIED),
            (&[1, 2, 0xfe, 255, 9], " 01 02 fe ff"),
            (&[0], " 00"),
        ] {
            let said = identify(head);
            assert!(said.contains(name), "{said:?} does not name {name:?}");
        }
    }
}
