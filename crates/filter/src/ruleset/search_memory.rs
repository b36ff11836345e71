//! What the look-ups of 64 packets at a time work in, and what they find.

use crate::FilterFrame;

use super::{
    key::{HeaderKey, LinkHeaderKind},
    look_up_key::Flow4Key,
    table::{LookUpTable, TableSlot},
};

/// Packets of one batch at most.
pub(super) const MANY: usize = 64;

/// An entry found for a packet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FoundEntry {
    /// A rule, or a group of entries.
    pub(super) value: u32,
    pub(super) is_group: bool,
    /// `value` is a rule, and it matches: there is nothing left to decide.
    pub(super) is_sure: bool,
    /// The packet's traits, with the side that was looked up.
    pub(super) frame_flags: u16,
    /// The way of a flow over IPv4, else none.
    pub(super) way: u8,
    /// Number of the packet.
    pub(super) frame: u8,
}

/// A search in a table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probe<K> {
    pub(super) key: K,
    pub(super) hash: u64,
    pub(super) frame_flags: u16,
    pub(super) way: u8,
    pub(super) frame: u8,
}

impl<K: Copy> Probe<K> {
    /// What is found, and whether anything is that takes such a packet.
    #[inline(always)]
    pub(super) fn look_up<S: TableSlot<Key = K>>(
        &self,
        table: &LookUpTable<S>,
    ) -> (FoundEntry, bool) {
        let (slot, is_found) = table.get(self.key, self.hash);
        let (value, is_group) = slot.parts();
        let found = FoundEntry {
            value,
            is_group,
            is_sure: false,
            frame_flags: self.frame_flags,
            way: self.way,
            frame: self.frame,
        };
        let takes = is_found & (is_group | slot.takes(self.frame_flags, self.way));
        (found, takes)
    }
}

/// An address or a port, and the prefix lengths to look it up with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PrefixSpan {
    /// The address; a port in the upper half.
    pub(super) value: u32,
    pub(super) lengths: u32,
    pub(super) frame_flags: u16,
    pub(super) tag: u8,
    pub(super) frame: u8,
}

/// Memory for the steps, used again for each batch.
#[derive(Debug)]
pub(super) struct SearchMemory {
    pub(super) keys: [HeaderKey; MANY],
    pub(super) flows: [Probe<Flow4Key>; MANY],
    /// Both addresses, then both ports of each packet at most.
    pub(super) spans: [PrefixSpan; 4 * MANY],
    /// Only the first that [`Self::prefixes`] counts.
    pub(super) probes: Vec<Probe<u64>>,
    /// What was found; only the first `count`.
    pub(super) found: Vec<FoundEntry>,
    pub(super) count: usize,
    /// Room for [`Self::sort`].
    sorted: Vec<FoundEntry>,
}

impl Default for SearchMemory {
    fn default() -> Self {
        Self {
            keys: [HeaderKey::default(); MANY],
            flows: [Probe::default(); MANY],
            spans: [PrefixSpan::default(); 4 * MANY],
            probes: Vec::new(),
            found: Vec::new(),
            count: 0,
            sorted: Vec::new(),
        }
    }
}

impl SearchMemory {
    /// Reads the headers of at most [`MANY`] frames.
    pub(super) fn read(&mut self, link_header: LinkHeaderKind, frames: &[FilterFrame<'_>]) {
        for (key, frame) in self.keys.iter_mut().zip(frames) {
            key.read(link_header, frame.data());
        }
    }

    /// Puts what was found into the order of frames.
    pub(super) fn sort(&mut self) {
        let found = &self.found[..self.count];
        if found.is_sorted_by_key(|found| found.frame) {
            return;
        }
        let mut starts = [0_usize; MANY + 1];
        for one in found {
            starts[usize::from(one.frame) + 1] += 1;
        }
        for frame in 0..MANY {
            starts[frame + 1] += starts[frame];
        }
        self.sorted
            .resize(self.count.max(self.sorted.len()), FoundEntry::default());
        for one in found {
            let place = &mut starts[usize::from(one.frame)];
            self.sorted[*place] = *one;
            *place += 1;
        }
        std::mem::swap(&mut self.found, &mut self.sorted);
    }

    /// Adds something found in another way.
    pub(super) fn push(&mut self, found: FoundEntry) {
        if self.found.len() == self.count {
            self.found.push(found);
        } else {
            self.found[self.count] = found;
        }
        self.count += 1;
    }

    /// Adds a rule that is known to match a frame below [`MANY`].
    #[inline]
    pub(super) fn push_rule(&mut self, rule: u32, frame: usize) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let frame = frame as u8;
        self.push(FoundEntry {
            value: rule,
            is_sure: true,
            frame,
            ..FoundEntry::default()
        });
    }
}
