//! Bounds the memory for the names and descriptions of a file's interfaces.
//!
//! A capture file may describe 65,536 interfaces with options of 64 KiB each, and compress to
//! almost nothing. The names and descriptions of interfaces are mostly for people. So each text is
//! truncated, and the sum of the texts that readers keep is bounded.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Maximum length of the name and of the description of an interface, bytes. A longer text is cut
/// between characters, and ends in `…`.
pub const TEXT_BYTES_MAX: usize = 256;
/// Maximum length of all kept names and descriptions together, bytes, for all readers that share an
/// allowance.
pub const TEXTS_BYTES_MAX: usize = 8 << 20;

/// The memory that readers may use for the names and descriptions of interfaces. Clones share the
/// allowance: a program that reads several files at once can bound the texts of all readers
/// together. A reader returns its part when it is dropped.
#[derive(Debug, Clone)]
pub struct TextAllowance(Arc<AtomicUsize>);

impl Default for TextAllowance {
    /// An allowance of [`TEXTS_BYTES_MAX`].
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(TEXTS_BYTES_MAX)))
    }
}

/// The texts of one reader.
#[derive(Debug)]
pub(super) struct KeptTexts {
    allowance: TextAllowance,
    /// Bytes taken from the allowance.
    taken: usize,
    /// Some text was truncated or dropped.
    pub(super) are_cut: bool,
}

impl KeptTexts {
    pub(super) fn new(allowance: TextAllowance) -> Self {
        Self {
            allowance,
            taken: 0,
            are_cut: false,
        }
    }

    /// The kept part of a text option. The option is UTF-8 if the file respects the format;
    /// sometimes it ends with a needless zero. Empty if the allowance has too few bytes left.
    pub(super) fn keep(&mut self, value: &[u8]) -> String {
        const MARK: &str = "…";
        // A character has at most 4 bytes, and U+FFFD is no shorter than the bytes that it
        // replaces. So a character that this slice divides ends after [`TEXT_BYTES_MAX`].
        let start = String::from_utf8_lossy(&value[..value.len().min(TEXT_BYTES_MAX + 4)]);
        let mut text = start.trim_end_matches('\0').to_owned();
        if text.len() > TEXT_BYTES_MAX
            || value.len() > TEXT_BYTES_MAX + 4 && !is_padding(&value[TEXT_BYTES_MAX..])
        {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX - MARK.len()));
            text.push_str(MARK);
            self.are_cut = true;
        }
        if !self.take(text.len()) {
            text.clear();
            self.are_cut = true;
        }
        text.shrink_to_fit();
        text
    }

    fn take(&mut self, bytes: usize) -> bool {
        // Relaxed: no other data depends on this number.
        let left = &self.allowance.0;
        let taken = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        self.taken += if taken.is_ok() { bytes } else { 0 };
        taken.is_ok()
    }
}

impl Drop for KeptTexts {
    fn drop(&mut self) {
        self.allowance.0.fetch_add(self.taken, Relaxed);
    }
}

fn is_padding(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(value: &[u8]) -> (String, bool) {
        let mut texts = KeptTexts::new(TextAllowance::default());
        let text = texts.keep(value);
        (text, texts.are_cut)
    }

    #[test]
    fn short_texts_are_kept_whole() {
        let whole = "x".repeat(TEXT_BYTES_MAX);
        for text in ["", "eth0", "größer", &whole] {
            assert_eq!(kept(text.as_bytes()), (text.to_owned(), false));
            let padded = [text.as_bytes(), &[0; 700]].concat();
            assert_eq!(kept(&padded), (text.to_owned(), false), "padded");
        }
        assert_eq!(kept(b"a\xffb"), ("a\u{fffd}b".to_owned(), false));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        for (character, bytes) in [("x", 1), ("ü", 2), ("€", 3), ("𝄞", 4)] {
            for count in [257_usize.div_ceil(bytes), 300, 20_000] {
                for shift in 0..4 {
                    let text = format!("{}{}", "y".repeat(shift), character.repeat(count));
                    let (kept, is_cut) = kept(text.as_bytes());
                    assert!(is_cut, "{character} {count} {shift}");
                    let start = kept.strip_suffix('…').expect("a mark");
                    assert!(text.starts_with(start), "{kept}");
                    assert!((TEXT_BYTES_MAX - 6..=TEXT_BYTES_MAX).contains(&kept.len()));
                }
            }
        }
        let (text, is_cut) = kept(&[0xff; 65_535]);
        assert!(is_cut && text.len() <= TEXT_BYTES_MAX);
    }

    #[test]
    fn the_sum_over_all_readers_is_bounded_and_given_back() {
        let allowance = TextAllowance::default();
        let [mut first, mut second] = [allowance.clone(), allowance].map(KeptTexts::new);
        let text = [b'x'; 256];
        for _ in 0..TEXTS_BYTES_MAX / text.len() - 1 {
            assert_eq!(first.keep(&text).len(), 256);
        }
        assert_eq!(second.keep(&text[..255]).len(), 255);
        assert!(!first.are_cut && !second.are_cut);
        assert_eq!(
            (first.keep(b"ab"), first.keep(b"c")),
            (String::new(), "c".to_owned())
        );
        assert!(first.are_cut);
        drop(first);
        assert_eq!(second.keep(&text).len(), 256);
        assert!(!second.are_cut);
    }
}
