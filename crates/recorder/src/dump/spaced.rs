//! Packets on their way to a pcapng file, copied into a block of it at once, each with room for what stands before and behind it there. Who writes the
//! file fills that in and copies nothing.
//!
//! So a packet of a large dump is copied once instead of twice. Whether they lie as their place in the file does, so that they can be written [directly](super::direct), is a guess until then.

use std::io;

use super::{
    behind::{BLOCK_BYTES, Block, LentBlock},
    encode::room_around,
    packet::PacketMeta,
};

/// See the module. The packets have no comments.
#[derive(Debug)]
pub(super) struct Spaced {
    block: LentBlock,
    packets: Vec<(PacketMeta, usize)>,
}

impl Spaced {
    /// None so far.
    pub(super) fn new(block: LentBlock) -> Self {
        Self {
            block,
            packets: Vec::new(),
        }
    }

    /// Whether a packet can lie in it.
    pub(super) fn takes(&self, meta: &PacketMeta, data: &[u8]) -> bool {
        let (before, behind) = room_around(meta, data.len());
        !meta.is_trigger && self.block.room() >= before + data.len() + behind
    }

    /// Adds a packet that it [takes](Self::takes).
    pub(super) fn push(&mut self, meta: &PacketMeta, data: &[u8]) {
        let (before, behind) = room_around(meta, data.len());
        let from = self.block.len() + before;
        self.block.leave(before + data.len() + behind);
        self.block.bytes_mut()[from..][..data.len()].copy_from_slice(data);
        self.packets.push((*meta, data.len()));
    }

    /// Whether it is as large as a block of a file is.
    pub(super) fn is_full(&self) -> bool {
        self.block.len() >= BLOCK_BYTES
    }

    /// All bytes, with the room around packets.
    pub(super) fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }

    pub(super) fn metas(&self) -> impl Iterator<Item = &PacketMeta> {
        self.packets.iter().map(|(meta, _)| meta)
    }

    /// The packets, to be written one by one.
    pub(super) fn packets(&self) -> impl Iterator<Item = (&PacketMeta, &[u8])> {
        let mut rest = self.bytes();
        self.packets.iter().map(move |(meta, bytes)| {
            let (before, behind) = room_around(meta, *bytes);
            let (data, next) = rest[before..].split_at(*bytes);
            rest = &next[behind..];
            (meta, data)
        })
    }

    /// Has the room around each packet filled in, and returns the block.
    pub(super) fn fill(
        mut self,
        mut fill: impl FnMut(&PacketMeta, &mut [u8], &[u8], &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Block> {
        let mut rest = self.block.bytes_mut();
        for (meta, bytes) in &self.packets {
            let (before, behind) = room_around(meta, *bytes);
            let (head, next) = rest.split_at_mut(before);
            let (data, next) = next.split_at_mut(*bytes);
            let (tail, next) = next.split_at_mut(behind);
            fill(meta, head, data, tail)?;
            rest = next;
        }
        Ok(self.block.take())
    }
}
