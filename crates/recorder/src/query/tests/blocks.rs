//! Parses the blocks of an answer, with options that
//! [`CaptureReader`](retroscope_pcapfile::CaptureReader) ignores. Numbers are from the pcapng
//! draft.

use crate::PacketId;

/// A pcapng block in little-endian order.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) kind: u32,
    body: Vec<u8>,
}

pub(super) const INTERFACE: u32 = 1;
pub(super) const STATISTICS: u32 = 5;
pub(super) const PACKET: u32 = 6;

pub(super) fn blocks(bytes: &[u8]) -> Vec<Block> {
    blocks_and_rest(bytes).0
}

/// All whole blocks, and the bytes after the last block.
pub(super) fn blocks_and_rest(mut bytes: &[u8]) -> (Vec<Block>, &[u8]) {
    let mut blocks = Vec::new();
    while let Some(length) = bytes.get(4..8) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let Some(block) = bytes.get(..length) else {
            break;
        };
        assert_eq!(block[length - 4..], block[4..8]);
        blocks.push(Block {
            kind: u32::from_le_bytes(block[..4].try_into().unwrap()),
            body: block[8..length - 4].to_vec(),
        });
        bytes = &bytes[length..];
    }
    (blocks, bytes)
}

pub(super) fn packets(bytes: &[u8]) -> Vec<Block> {
    let blocks = blocks(bytes).into_iter();
    blocks.filter(|block| block.kind == PACKET).collect()
}

impl Block {
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    pub(super) fn interface(&self) -> u32 {
        self.word(0)
    }

    /// Time of a packet or of statistics, ns.
    pub(super) fn time_ns(&self) -> i64 {
        (i64::from(self.word(4)) << 32) + i64::from(self.word(8))
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.body[20..20 + self.word(12) as usize]
    }

    pub(super) fn wire_len(&self) -> u32 {
        self.word(16)
    }

    fn options(&self) -> Vec<(u16, Vec<u8>)> {
        let mut at = match self.kind {
            PACKET => 20 + (self.word(12) as usize).next_multiple_of(4),
            STATISTICS => 12,
            _ => 8,
        };
        let mut options = Vec::new();
        while at + 4 <= self.body.len() {
            let half = |at: usize| u16::from_le_bytes(self.body[at..at + 2].try_into().unwrap());
            let (code, length) = (half(at), usize::from(half(at + 2)));
            if code == 0 {
                break;
            }
            options.push((code, self.body[at + 4..at + 4 + length].to_vec()));
            at += 4 + length.next_multiple_of(4);
        }
        options
    }

    /// The option with this code, whose value is a number of 64 bits.
    pub(super) fn number(&self, wanted: u16) -> Option<u64> {
        let mut options = self.options().into_iter();
        let (_, value) = options.find(|(code, _)| *code == wanted)?;
        Some(u64::from_le_bytes(value.try_into().unwrap()))
    }

    pub(super) fn comments(&self) -> Vec<String> {
        let options = self.options().into_iter();
        let comments = options.filter(|(code, _)| *code == 1);
        comments
            .map(|(_, value)| String::from_utf8(value).unwrap())
            .collect()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.number(4).unwrap_or(0)
    }

    pub(super) fn id(&self) -> PacketId {
        PacketId(self.number(5).unwrap())
    }
}
