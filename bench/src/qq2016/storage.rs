//! The inner queue: packets one behind the other, and a vector of references to them (thesis, sections 5.2, 6.1, 6.2).

use super::{queue::Inner, ticks};

/// Bytes of a header (figure 6.1): stamp and VLAN in the first eight, the captured length in the next two; the frame begins in the
/// tenth byte, so that what follows 14 bytes of Ethernet is aligned. The record is sized as if the frame came after
/// 16 bytes.
pub const HEADER_BYTES: usize = 16;
/// Where the frame begins in a record.
const FRAME_AT: usize = 10;
/// Records begin on a multiple of this (section 6.2: optional padding).
const ALIGNMENT: usize = 8;
/// The stamp has 48 bits, the VLAN identifier 12, as in figure 5 of the paper.
const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// An inner queue over its part of the memory. Filled by one task at a time, which has its mutex.
#[derive(Debug)]
pub struct Storage<'m> {
    memory: &'m mut [u8],
    used: usize,
    /// Where each header is. The thesis keeps pointers; positions are as large and need no unsafe code.
    offsets: Vec<usize>,
    /// When the outer queue gave it out, in ticks.
    given_out: u64,
    hold_ticks: u64,
}

/// A stored packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored<'s> {
    /// The user's stamp, 48 bits.
    pub time: u64,
    /// The VLAN identifier that the NIC took out; 0: none.
    pub vlan: u16,
    /// The frame.
    pub frame: &'s [u8],
}

/// Why a packet was not stored. Either way the storage is to be given back and another one acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// It does not fit.
    Full,
    /// The storage was held longer than the maximum hold time (section 6.2.1).
    Held,
}

impl<'m> Storage<'m> {
    /// Over a part of the memory that begins on a multiple of 8. `offsets` gets room now for as many references as there can be
    /// 64-byte packets ("some space is reserved at initialization time"), so that it does not grow while it is filled.
    pub(super) fn new(memory: &'m mut [u8], mut offsets: Vec<usize>, hold_ticks: u64) -> Self {
        offsets.clear();
        offsets.reserve(memory.len() / (HEADER_BYTES + 64));
        Self {
            memory,
            used: 0,
            offsets,
            given_out: 0,
            hold_ticks,
        }
    }

    /// The vector of references, whose pages a later queue can use again.
    pub(super) fn into_offsets(self) -> Vec<usize> {
        self.offsets
    }

    /// Appends a packet, if the hold time allows. Reads the clock (section 6.2.1; 28 % of the time, section 7.2).
    ///
    /// `time` is the user's, below 2^48 (larger ones lose their upper bits); frames have at most 65,535 bytes.
    ///
    /// # Errors
    /// [`Denied`].
    #[inline(always)]
    pub fn store(&mut self, time: u64, vlan: u16, frame: &[u8]) -> Result<(), Denied> {
        if ticks::now().saturating_sub(self.given_out) > self.hold_ticks {
            return Err(Denied::Held);
        }
        self.append(time, vlan, frame)
    }

    /// What `store` does behind the check of the hold time.
    #[inline(always)]
    pub(crate) fn append(&mut self, time: u64, vlan: u16, frame: &[u8]) -> Result<(), Denied> {
        let Ok(captured) = u16::try_from(frame.len()) else {
            return Err(Denied::Full);
        };
        let record_bytes = (HEADER_BYTES + frame.len()).next_multiple_of(ALIGNMENT);
        let Some(record) = self.memory.get_mut(self.used..self.used + record_bytes) else {
            return Err(Denied::Full);
        };
        let stamp = time & TIME_MASK | u64::from(vlan) << TIME_BITS;
        record[..8].copy_from_slice(&stamp.to_le_bytes());
        record[8..FRAME_AT].copy_from_slice(&captured.to_le_bytes());
        record[FRAME_AT..FRAME_AT + frame.len()].copy_from_slice(frame);
        self.offsets.push(self.used);
        self.used += record_bytes;
        Ok(())
    }

    /// Whether the hold time is over: what a task asks that has nothing to store.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        ticks::now().saturating_sub(self.given_out) > self.hold_ticks
    }

    /// Packets in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Any packet, in constant time.
    ///
    /// # Panics
    /// Unless `index < len()`.
    #[must_use]
    #[inline(always)]
    pub fn packet(&self, index: usize) -> Stored<'_> {
        self.at(self.offsets[index])
    }

    /// All packets, in order.
    pub fn iter(&self) -> impl Iterator<Item = Stored<'_>> {
        self.offsets.iter().map(|&offset| self.at(offset))
    }

    #[inline(always)]
    fn at(&self, offset: usize) -> Stored<'_> {
        let record = &self.memory[offset..];
        let (stamp, rest) = record
            .split_first_chunk()
            .expect("a whole header was stored here");
        let (captured, frame) = rest.split_first_chunk().expect("as above");
        let stamp = u64::from_le_bytes(*stamp);
        let captured = usize::from(u16::from_le_bytes(*captured));
        let [low, high, ..] = (stamp >> TIME_BITS).to_le_bytes();
        Stored {
            time: stamp & TIME_MASK,
            vlan: u16::from_le_bytes([low, high]),
            frame: &frame[..captured],
        }
    }

    /// Takes back the last packet.
    pub fn pop_back(&mut self) {
        if let Some(offset) = self.offsets.pop() {
            self.used = offset;
        }
    }
}

impl Inner for Storage<'_> {
    fn give_out(&mut self) {
        self.used = 0;
        self.offsets.clear();
        self.given_out = ticks::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_all_lengths_come_back() {
        let mut memory = vec![0; 1 << 16];
        let mut storage = Storage::new(&mut memory, Vec::new(), u64::MAX);
        storage.give_out();
        for length in 0..200_u16 {
            let frame = vec![length.to_le_bytes()[0]; usize::from(length)];
            storage
                .store(TIME_MASK - u64::from(length), length, &frame)
                .unwrap();
        }
        assert_eq!(storage.len(), 200);
        for (length, stored) in (0..200_u16).zip(storage.iter()) {
            assert_eq!(stored.time, TIME_MASK - u64::from(length));
            assert_eq!(stored.vlan, length);
            assert_eq!(
                stored.frame,
                vec![length.to_le_bytes()[0]; usize::from(length)]
            );
            assert_eq!(stored, storage.packet(usize::from(length)));
        }
    }

    /// Section 6.1: after 14 bytes of Ethernet, the network header lies on a multiple of 8.
    #[test]
    fn the_network_header_is_aligned() {
        let mut memory = vec![0; 4096];
        let shift = memory.as_ptr().align_offset(8);
        let mut storage = Storage::new(&mut memory[shift..], Vec::new(), u64::MAX);
        storage.give_out();
        for length in [60, 61, 64, 67] {
            storage.store(0, 0, &vec![0; length]).unwrap();
        }
        for stored in storage.iter() {
            assert_eq!(stored.frame[14..].as_ptr().align_offset(8), 0);
        }
    }

    #[test]
    fn what_does_not_fit_is_denied_and_leaves_no_trace() {
        let mut memory = vec![0; 200];
        let mut storage = Storage::new(&mut memory, Vec::new(), u64::MAX);
        storage.give_out();
        assert_eq!(storage.store(1, 0, &[1; 64]), Ok(()));
        assert_eq!(storage.store(2, 0, &[2; 64]), Ok(()));
        assert_eq!(storage.store(3, 0, &[3; 64]), Err(Denied::Full));
        assert_eq!(
            storage.store(4, 0, &[4; 20]),
            Ok(()),
            "40 bytes are left, 36 padded"
        );
        assert_eq!(storage.len(), 3);
        assert_eq!(storage.store(5, 0, &[0; 70_000]), Err(Denied::Full));
        storage.pop_back();
        assert_eq!(storage.len(), 2);
        assert_eq!(storage.packet(1).frame, [2; 64]);
        storage.give_out();
        assert!(storage.is_empty());
    }

    #[test]
    fn a_storage_held_too_long_denies() {
        let mut memory = vec![0; 4096];
        let mut storage = Storage::new(&mut memory, Vec::new(), 0);
        storage.give_out();
        while !storage.is_overdue() {}
        assert_eq!(storage.store(1, 0, &[0; 64]), Err(Denied::Held));
        assert!(storage.is_empty());
    }
}
