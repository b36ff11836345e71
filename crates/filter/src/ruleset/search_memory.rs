//! Working memory and results of the look-ups for up to 64 packets at a time.

use crate::FilterFrame;

use super::{
    key::{HeaderKey, LinkHeaderKind},
    look_up_key::Flow4Key,
    table::{LookUpTable, TableSlot},
};

pub(super) const MANY: usize = 64;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FoundEntry {
    /// Number of a rule, or of a group of entries.
    pub(super) value: u32,
    pub(super) is_group: bool,
    /// Whether `value` is a rule that certainly matches.
    pub(super) is_certain: bool,
    /// The packet's flags, with the side of the look-up.
    pub(super) frame_flags: u16,
    /// The orientation of an IPv4 flow (see [`Flow4Key::new`]), else 0.
    pub(super) orientation: u8,
    pub(super) frame: u8,
}

/// One search in a table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probe<K> {
    pub(super) key: K,
    pub(super) hash: u64,
    pub(super) frame_flags: u16,
    pub(super) orientation: u8,
    pub(super) frame: u8,
}

impl<K: Copy> Probe<K> {
    /// The entry under the key, and whether the entry counts: a group, or a single entry that
    /// accepts the packet. Without an entry the first value has no meaning.
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
            is_certain: false,
            frame_flags: self.frame_flags,
            orientation: self.orientation,
            frame: self.frame,
        };
        let accepts = is_found & (is_group | slot.accepts(self.frame_flags, self.orientation));
        (found, accepts)
    }
}

/// An address or a port, and the prefix lengths to look up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PrefixSpan {
    /// The address, or a port in the upper half.
    pub(super) value: u32,
    pub(super) lengths: u32,
    pub(super) frame_flags: u16,
    pub(super) tag: u8,
    pub(super) frame: u8,
}

#[derive(Debug)]
pub(super) struct SearchMemory {
    pub(super) keys: [HeaderKey; MANY],
    pub(super) flows: [Probe<Flow4Key>; MANY],
    /// At most both addresses and both ports of each packet.
    pub(super) spans: [PrefixSpan; 4 * MANY],
    pub(super) probes: Vec<Probe<u64>>,
    /// Found entries; only the first `count` are valid.
    pub(super) found: Vec<FoundEntry>,
    pub(super) count: usize,
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
    pub(super) fn read(&mut self, link_header: LinkHeaderKind, frames: &[FilterFrame<'_>]) {
        for (key, frame) in self.keys.iter_mut().zip(frames) {
            key.read(link_header, frame.data());
        }
    }

    /// Sorts the found entries by frame.
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

    pub(super) fn push(&mut self, found: FoundEntry) {
        if self.found.len() == self.count {
            self.found.push(found);
        } else {
            self.found[self.count] = found;
        }
        self.count += 1;
    }

    /// Adds a rule that certainly matches `frame`, which is below [`MANY`].
    #[inline]
    pub(super) fn push_rule(&mut self, rule: u32, frame: usize) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let frame = frame as u8;
        self.push(FoundEntry {
            value: rule,
            is_certain: true,
            frame,
            ..FoundEntry::default()
        });
    }
}
