//! The inner queue: packets one after another, and a vector of references to the packets (thesis,
//! sections 5.2, 6.1, 6.2).

use super::ticks::Hold;
use crate::contest::Tally;

/// Bytes of a header (figure 6.1): stamp and VLAN in the first eight, the captured length in the
/// next two. The frame begins at byte 10, so that the data after 14 bytes of Ethernet is aligned.
/// The record is sized as if the frame began after 16 bytes.
const HEADER_BYTES: usize = 16;
/// Offset of the frame in a record.
const FRAME_AT: usize = 10;
/// Records begin on a multiple of this (section 6.2: optional padding).
const ALIGNMENT: usize = 8;
/// The stamp has 48 bits, as in figure 5 of the paper; the VLAN identifier after the stamp is 0
/// here.
const TIME_MASK: u64 = (1 << 48) - 1;

/// An inner queue over its part of the memory. The thread that fills or reads the storage holds the
/// mutex of the storage.
#[derive(Debug)]
pub(super) struct Storage<'m> {
    memory: &'m mut [u8],
    used: usize,
    /// Offset of each header. The thesis keeps pointers; offsets are as large and need no unsafe
    /// code.
    offsets: &'m mut Vec<usize>,
    /// When the outer queue handed the storage out, and the maximum hold time.
    hold: Hold,
}

impl<'m> Storage<'m> {
    /// A storage over a part of the memory that begins on a multiple of 8. `offsets` is a new
    /// vector or, from the second run on, the vector of an earlier storage, whose pages exist
    /// already. The vector reserves references for all possible 64-byte packets ("some space is
    /// reserved at initialization time"), so that it does not grow while such packets are stored.
    pub(super) fn new(memory: &'m mut [u8], offsets: &'m mut Vec<usize>) -> Self {
        offsets.clear();
        offsets.reserve(memory.len() / (HEADER_BYTES + 64));
        Self {
            memory,
            used: 0,
            offsets,
            hold: Hold::new(),
        }
    }

    /// Stamp and frame of all packets, in order.
    fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.offsets.iter().map(|&offset| {
            let record = self.memory[offset..].split_first_chunk();
            let (stamp, rest) = record.expect("a whole header was stored here");
            let (captured, frame) = rest.split_first_chunk().expect("as above");
            let captured = usize::from(u16::from_le_bytes(*captured));
            (u64::from_le_bytes(*stamp) & TIME_MASK, &frame[..captured])
        })
    }

    /// Empties the storage, in constant time (section 5.2), and notes the time at which it was
    /// handed out.
    pub(super) fn give_out(&mut self) {
        self.used = 0;
        self.offsets.clear();
        self.hold.begin();
    }

    /// Whether the storage was held longer than the maximum hold time (section 6.2.1). Reads the
    /// clock: 28 % of the time of a store (section 7.2).
    #[inline(always)]
    pub(super) fn is_overdue(&self) -> bool {
        self.hold.is_over()
    }

    /// Appends a packet. `false`: the packet does not fit, or has more than 65,535 bytes.
    ///
    /// The caller chooses `time`, below 2^48: larger values lose their upper bits.
    #[inline(always)]
    pub(super) fn append(&mut self, time: u64, frame: &[u8]) -> bool {
        let Ok(captured) = u16::try_from(frame.len()) else {
            return false;
        };
        let record_bytes = (HEADER_BYTES + frame.len()).next_multiple_of(ALIGNMENT);
        let Some(record) = self.memory.get_mut(self.used..self.used + record_bytes) else {
            return false;
        };
        record[..8].copy_from_slice(&(time & TIME_MASK).to_le_bytes());
        record[8..FRAME_AT].copy_from_slice(&captured.to_le_bytes());
        record[FRAME_AT..FRAME_AT + frame.len()].copy_from_slice(frame);
        self.offsets.push(self.used);
        self.used += record_bytes;
        true
    }

    /// The stamps of all packets.
    pub(super) fn times(&self) -> impl Iterator<Item = u64> {
        self.iter().map(|(time, _)| time)
    }

    /// Counts every packet by its header.
    pub(super) fn tally(&self, seen: &mut Tally) {
        for (time, frame) in self.iter() {
            seen.add(time, frame.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(memory: &mut [u8]) -> Storage<'_> {
        let mut storage = Storage::new(memory, Box::leak(Box::default()));
        storage.give_out();
        storage
    }

    #[test]
    fn packets_of_all_lengths_come_back() {
        let mut memory = vec![0; 1 << 16];
        let shift = memory.as_ptr().align_offset(8);
        let mut storage = storage(&mut memory[shift..]);
        for length in 0..200_u8 {
            let frame = vec![length; usize::from(length)];
            assert!(storage.append(TIME_MASK - u64::from(length), &frame));
        }
        assert_eq!(storage.iter().count(), 200);
        for (length, (time, frame)) in (0..200_u8).zip(storage.iter()) {
            assert_eq!(time, TIME_MASK - u64::from(length));
            assert_eq!(frame, vec![length; usize::from(length)]);
            // Section 6.1: after 14 bytes of Ethernet, the network header is on a multiple of 8.
            assert!(length < 14 || frame[14..].as_ptr().align_offset(8) == 0);
        }
    }

    #[test]
    fn what_does_not_fit_is_denied_and_leaves_no_trace() {
        let mut memory = vec![0; 200];
        let mut storage = storage(&mut memory);
        assert!(storage.append(1, &[1; 64]) && storage.append(2, &[2; 64]));
        assert!(!storage.append(3, &[3; 64]));
        assert!(storage.append(4, &[4; 20]), "40 bytes are left, 36 padded");
        assert!(!storage.append(5, &[0; 70_000]));
        assert_eq!(storage.iter().count(), 3);
        storage.give_out();
        assert_eq!(storage.iter().count(), 0);
    }

    #[test]
    fn a_storage_held_too_long_is_overdue() {
        let mut memory = vec![0; 4096];
        let mut storage = storage(&mut memory);
        assert!(!storage.is_overdue());
        storage.hold.ticks = 0;
        while !storage.is_overdue() {}
    }
}
