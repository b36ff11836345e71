//! Writes a pcapng stream in whole blocks, so that the file is readable wherever the stream breaks
//! off.

use std::io::{self, Write};

/// Bytes of a block's type and length: draft-ietf-opsawg-pcapng, section 3.1.
const HEAD_BYTES: usize = 8;
/// Types of the section header block and of the interface statistics block.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const STATISTICS: u32 = 5;
/// Byte-order magic of a section header, in the byte order of the writer.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Length of the longest accepted block in bytes. A longer block is an error.
const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Passes whole blocks on and buffers the start of the next block.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pending: Vec<u8>,
    is_big_endian: bool,
    /// The last interface statistics block.
    statistics: Vec<u8>,
}

impl Blocks {
    /// Appends data and writes all whole blocks.
    ///
    /// # Errors
    /// The errors of `out`, or data that is no pcapng or has a longer block than accepted.
    pub(super) fn push(&mut self, data: &[u8], out: &mut impl Write) -> io::Result<()> {
        self.pending.extend_from_slice(data);
        let mut whole = 0;
        while let Some(len) = self.next_block(whole)? {
            let block = &self.pending[whole..whole + len];
            if self.u32_of(block, 0) == STATISTICS {
                self.statistics = block.to_vec();
            }
            whole += len;
        }
        out.write_all(&self.pending[..whole])?;
        self.pending.drain(..whole);
        Ok(())
    }

    /// Length of the block that begins at `at`, if the block is whole.
    fn next_block(&mut self, at: usize) -> io::Result<Option<usize>> {
        let rest = &self.pending[at..];
        let is_section = rest.starts_with(&SECTION_HEADER.to_be_bytes());
        if rest.len() < HEAD_BYTES + if is_section { 4 } else { 0 } {
            return Ok(None);
        }
        if is_section {
            self.is_big_endian = rest[HEAD_BYTES..].starts_with(&BYTE_ORDER.to_be_bytes());
        }
        let len = self.u32_of(&self.pending[at..], 4) as usize;
        if !(HEAD_BYTES + 4..=BLOCK_BYTES_MAX).contains(&len) || !len.is_multiple_of(4) {
            let why = "what is sent is no pcapng";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok((self.pending.len() - at >= len).then_some(len))
    }

    fn u32_of(&self, bytes: &[u8], at: usize) -> u32 {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        let word = word.unwrap_or_default();
        if self.is_big_endian {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    }

    /// The verdict so far: the JSON object in the comment of the last interface statistics block.
    pub(super) fn verdict_so_far(&self) -> Option<serde_json::Value> {
        // Skip type, length, interface and time. The last four bytes repeat the length.
        let end = self.statistics.len().checked_sub(4)?;
        let mut options = self.statistics.get(20..end)?;
        loop {
            let head = self.u32_of(options, 0);
            // An option begins with two 16-bit fields in the stream's byte order: code and length.
            let (code, len) = if self.is_big_endian {
                (head >> 16, head & 0xffff)
            } else {
                (head & 0xffff, head >> 16)
            };
            let value = options.get(4..4 + len as usize)?;
            if code == 1 {
                return serde_json::from_slice(value).ok();
            }
            options = options.get(4 + len.next_multiple_of(4) as usize..)?;
            if options.is_empty() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8], big: bool) -> Vec<u8> {
        let word = |word: u32| {
            if big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            }
        };
        let len = word(u32::try_from(body.len() + 12).unwrap());
        [&word(kind)[..], &len, body, &len].concat()
    }

    fn stream(big: bool) -> Vec<u8> {
        let word = |word: u32| {
            if big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            }
        };
        let half = |half: u16| {
            if big {
                half.to_be_bytes()
            } else {
                half.to_le_bytes()
            }
        };
        let comment = br#"{"a":1}"#;
        let options = [
            &half(2)[..],
            &half(8),
            &[7; 8],
            &half(1),
            &half(7),
            comment,
            &[0],
            &half(0),
            &half(0),
        ];
        let statistics = [&[0; 12][..], &options.concat()].concat();
        let all = [
            block(
                SECTION_HEADER,
                &[&word(BYTE_ORDER)[..], &[1; 12]].concat(),
                big,
            ),
            block(6, &[9; 40], big),
            block(STATISTICS, &statistics, big),
        ];
        all.concat()
    }

    #[test]
    fn only_whole_blocks_are_written_wherever_the_stream_is_cut() {
        for big in [false, true] {
            let stream = stream(big);
            for cut in 0..=stream.len() {
                let (mut blocks, mut out) = (Blocks::default(), Vec::new());
                blocks.push(&stream[..cut], &mut out).unwrap();
                let ends = [0, 28, 28 + 52, stream.len()];
                let last = ends.iter().rfind(|end| **end <= cut).unwrap();
                assert_eq!(out.len(), *last, "cut at {cut}");
                blocks.push(&stream[cut..], &mut out).unwrap();
                assert_eq!(out, stream);
                assert_eq!(blocks.verdict_so_far().unwrap()["a"], 1);
            }
        }
    }

    #[test]
    fn what_is_no_pcapng_is_refused() {
        for wrong in [&b"<html><body>no</body></html>"[..], &[0; 32], &[0xff; 32]] {
            let refused = Blocks::default().push(wrong, &mut io::sink());
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let mut cut = Blocks::default();
        cut.push(&block(STATISTICS, &[0; 8], false), &mut io::sink())
            .unwrap();
        assert_eq!(cut.verdict_so_far(), None);
    }
}
