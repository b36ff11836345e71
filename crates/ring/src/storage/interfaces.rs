//! One interface in the region's append-only table.
//!
//! ```text
//! byte 0..2    link type
//!      2       time domain
//!      3       bits 0..7 bytes of the name that are kept, 0..=54; bit 7 the name was longer
//!      4..8    snap length
//!      8..10   clock: one clock stamps the frames of all interfaces with the same number
//!     10..64   name, UTF-8, truncated between characters, padded with zeros
//! ```
//!
//! A slot is written once, before it is counted. Linux interface names have at most 15 bytes; names
//! in a capture file can be longer.

use crate::{
    InterfaceEntry,
    sync::{AtomicU64, Ordering},
};

const WORDS: usize = 8;
const NAME_BYTES: usize = 54;
const NAME_AT: usize = 10;
const NAME_CUT: u8 = 0x80;

/// A slot for an interface, as stored in the region.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct InterfaceSlot([AtomicU64; WORDS]);

impl InterfaceSlot {
    /// Writes an entry into a slot that is not counted yet.
    pub(super) fn write(&self, entry: &InterfaceEntry) {
        for (word, value) in self.0.iter().zip(encode(entry)) {
            word.store(value, Ordering::Relaxed); // ordered by `RegionState::interfaces`
        }
    }
}

fn encode(entry: &InterfaceEntry) -> [u64; WORDS] {
    let kept = &entry.name[..entry.name.floor_char_boundary(NAME_BYTES)];
    let mut bytes = [0; WORDS * 8];
    bytes[0..2].copy_from_slice(&entry.link_type.to_ne_bytes());
    bytes[2] = entry.time_domain;
    bytes[3] = u8::try_from(kept.len()).expect("at most NAME_BYTES");
    if kept.len() < entry.name.len() {
        bytes[3] |= NAME_CUT;
    }
    bytes[4..8].copy_from_slice(&entry.snaplen.to_ne_bytes());
    bytes[8..10].copy_from_slice(&entry.clock.to_ne_bytes());
    bytes[NAME_AT..NAME_AT + kept.len()].copy_from_slice(kept.as_bytes());
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// Decodes a slot's words, whatever their value. A truncated name ends in `…`.
#[cfg(not(loom))]
pub(crate) fn decode(words: &[u64; WORDS]) -> InterfaceEntry {
    let mut bytes = [0; WORDS * 8];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    let kept = usize::from(bytes[3] & !NAME_CUT).min(NAME_BYTES);
    let mut name = String::from_utf8_lossy(&bytes[NAME_AT..NAME_AT + kept]).into_owned();
    if bytes[3] & NAME_CUT != 0 {
        name.push('…');
    }
    InterfaceEntry {
        name,
        link_type: u16::from_ne_bytes([bytes[0], bytes[1]]),
        snaplen: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        time_domain: bytes[2],
        clock: u16::from_ne_bytes([bytes[8], bytes[9]]),
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> InterfaceEntry {
        InterfaceEntry {
            name: name.to_owned(),
            link_type: 0x0102,
            snaplen: 0x0304_0506,
            time_domain: 7,
            clock: 0x0809,
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        if cfg!(target_endian = "little") {
            let words = encode(&entry("eth0"));
            assert_eq!(words[0], 0x0304_0506_0407_0102);
            assert_eq!(words[1], u64::from_le_bytes(*b"\x09\x08eth0\0\0"));
            assert_eq!(words[2..], [0; 6]);
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for name in ["", "eth0", &"x".repeat(54)] {
            assert_eq!(decode(&encode(&entry(name))), entry(name));
        }
        let long = format!("{}ü and more", "x".repeat(53));
        let cut = format!("{}…", "x".repeat(53));
        assert_eq!(
            decode(&encode(&entry(&long))).name,
            cut,
            "no half character"
        );
    }

    #[test]
    fn anything_can_be_read() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let entry = decode(&std::array::from_fn(|_| random.u64(..)));
            assert!(entry.name.chars().count() <= NAME_BYTES + 1);
        }
        let bad = decode(&[0xff00_0000 | (200 << 24), u64::MAX, 0, 0, 0, 0, 0, 0]);
        assert!(bad.name.contains('\u{fffd}'));
    }
}
