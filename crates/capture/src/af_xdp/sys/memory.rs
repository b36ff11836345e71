//! Memory that this process shares with the kernel: packets and counters.
#![expect(unsafe_code, reason = "memory shared with the kernel")]

use std::{
    io,
    os::fd::AsFd,
    slice,
    sync::atomic::{AtomicU64, Ordering},
};

use memmap2::MmapRaw;

use crate::sys::{map_shared, map_zeros};

/// Packet memory: chunks that the kernel fills or sends, then private room to join the chunks of a
/// packet.
#[derive(Debug)]
pub(crate) struct Umem {
    mapping: MmapRaw,
    /// Bytes that the kernel may use.
    chunk_bytes: usize,
}

impl Umem {
    /// Allocates `chunk_bytes` for the kernel and then `own_bytes`, both multiples of the page
    /// size.
    pub(crate) fn new(chunk_bytes: usize, own_bytes: usize) -> io::Result<Self> {
        let bytes = chunk_bytes.checked_add(own_bytes);
        let mapping = map_zeros(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Self {
            mapping,
            chunk_bytes,
        })
    }

    /// Address and length of the kernel's part.
    pub(super) fn registered(&self) -> (u64, u64) {
        (self.mapping.as_mut_ptr() as u64, self.chunk_bytes as u64)
    }

    /// Offset of the private room.
    pub(crate) fn own_at(&self) -> usize {
        self.chunk_bytes
    }

    /// The whole memory. Read no chunk before the receive ring has handed the chunk over, or after
    /// the fill ring has it again.
    pub(crate) fn memory(&self) -> &[u8] {
        // SAFETY: the mapping has this length and is initialised, and this process writes to it
        // through `&mut self` only. The kernel writes to chunks in the fill ring of a bound socket,
        // of which there is one at a time. Those chunks belong to the kernel and callers read none
        // of them, so no byte that is read changes while it is borrowed. (The slice also covers the
        // other chunks, because a burst lends one slice for all of its frames. They are plain
        // bytes, for which every value is valid.)
        unsafe { slice::from_raw_parts(self.mapping.as_mut_ptr(), self.mapping.len()) }
    }

    /// Writes a frame into a chunk that the kernel has returned or never had. Panics unless the
    /// range is in the kernel's part.
    pub(crate) fn write(&mut self, at: usize, frame: &[u8]) {
        assert!(
            at.checked_add(frame.len())
                .is_some_and(|end| end <= self.chunk_bytes)
        );
        let to = self.mapping.as_mut_ptr().wrapping_add(at);
        // SAFETY: the range is in the mapping, as asserted. `frame` is elsewhere, because
        // `&mut self` excludes borrows of `memory`. The kernel has returned the chunk, so it does
        // not read it.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len()) };
    }

    /// Copies bytes of a handed-over chunk to the room after the chunks. Panics unless both ranges
    /// are in their parts.
    pub(crate) fn gather(&mut self, from: usize, length: usize, to: usize) {
        assert!(
            from.checked_add(length)
                .is_some_and(|end| end <= self.chunk_bytes)
        );
        assert!(to >= self.chunk_bytes);
        assert!(
            to.checked_add(length)
                .is_some_and(|end| end <= self.mapping.len())
        );
        let start = self.mapping.as_mut_ptr();
        let (from, to) = (start.wrapping_add(from), start.wrapping_add(to));
        // SAFETY: both ranges are in the mapping and do not overlap, as asserted. The chunk was
        // handed over, so the kernel does not write to it, and the kernel never writes after the
        // chunks. `&mut self` excludes borrows of `memory`.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    }
}

/// Counters and switches of the program: a mapped array of lines of [`LINE_WORDS`] words (128
/// bytes).
#[derive(Debug)]
pub(crate) struct CounterLines {
    mapping: MmapRaw,
    lines: u32,
}

pub(crate) const LINE_WORDS: usize = 16;

impl CounterLines {
    pub(crate) fn new(array: impl AsFd, lines: u32) -> io::Result<Self> {
        let bytes = (lines as usize * LINE_WORDS * 8).next_multiple_of(4096);
        let mapping = map_shared(array, bytes, 0)?;
        Ok(Self { mapping, lines })
    }

    /// Reads a word. Panics unless the word exists.
    pub(crate) fn get(&self, line: u32, word: usize) -> u64 {
        // Relaxed: counters; no other read depends on their values.
        self.word(line, word).load(Ordering::Relaxed)
    }

    /// Sets a word that the program only reads. Panics unless the word exists.
    pub(crate) fn set(&self, line: u32, word: usize, value: u64) {
        // Relaxed: a switch that the program reads for each packet.
        self.word(line, word).store(value, Ordering::Relaxed);
    }

    fn word(&self, line: u32, word: usize) -> &AtomicU64 {
        assert!(line < self.lines && word < LINE_WORDS);
        let start: *mut u64 = self.mapping.as_mut_ptr().cast();
        let word = start.wrapping_add(line as usize * LINE_WORDS + word);
        // SAFETY: the word is in the mapping, as asserted, is aligned because mappings are, and is
        // only accessed atomically, by the program too.
        unsafe { AtomicU64::from_ptr(word) }
    }
}
