//! The look-ups that nearly every packet needs, of 64 packets at a time.
//!
//! A packet alone would wait for its header, then for a line of a table, then for the next, and its branches (TCP or UDP,
//! found or not) are a toss. So each step is done for all packets before the next begins: the processor waits for many
//! lines at once, and what is found is collected without a branch.

use crate::Frame;

use super::{
    index::Index,
    key::{Key, Shape, has, kind, traits},
    sought::{Flow4Key, prefix_key, tag},
    table::{Slot, Table},
};

/// Packets of one batch at most.
pub(super) const MANY: usize = 64;

/// An entry found for a packet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    /// A rule, or a group of entries.
    pub(super) value: u32,
    pub(super) is_group: bool,
    /// It is a rule, and it matches: there is nothing left to decide.
    pub(super) is_sure: bool,
    /// The packet's traits, with the side that was looked up.
    pub(super) traits: u16,
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
    pub(super) traits: u16,
    pub(super) way: u8,
    pub(super) frame: u8,
}

impl<K: Copy> Probe<K> {
    /// What is found, and whether anything is that takes such a packet.
    #[inline(always)]
    pub(super) fn look_up<S: Slot<Key = K>>(&self, table: &Table<S>) -> (Found, bool) {
        let (slot, is_found) = table.get(self.key, self.hash);
        let (value, is_group) = slot.parts();
        let found = Found {
            value,
            is_group,
            is_sure: false,
            traits: self.traits,
            way: self.way,
            frame: self.frame,
        };
        let takes = is_found & (is_group | slot.takes(self.traits, self.way));
        (found, takes)
    }
}

/// An address or a port, and the prefix lengths to look it up with.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    /// The address; a port in the upper half.
    value: u32,
    lengths: u32,
    traits: u16,
    tag: u8,
    frame: u8,
}

/// Memory for the steps, used again for each batch.
#[derive(Debug)]
pub(super) struct SearchMemory {
    keys: [Key; MANY],
    flows: [Probe<Flow4Key>; MANY],
    /// Both addresses, then both ports of each packet at most.
    spans: [Span; 4 * MANY],
    /// Only the first that [`Self::prefixes`] counts.
    probes: Vec<Probe<u64>>,
    /// What was found; only the first `count`.
    found: Vec<Found>,
    count: usize,
    /// Room for [`Self::sort`].
    sorted: Vec<Found>,
}

impl Default for SearchMemory {
    fn default() -> Self {
        Self {
            keys: [Key::default(); MANY],
            flows: [Probe::default(); MANY],
            spans: [Span::default(); 4 * MANY],
            probes: Vec::new(),
            found: Vec::new(),
            count: 0,
            sorted: Vec::new(),
        }
    }
}

/// Appends where `is_one`, without a branch: the place is written in any case, so there must be one.
#[inline]
fn append<T>(list: &mut [T], count: &mut usize, value: T, is_one: bool) {
    list[*count] = value;
    *count += usize::from(is_one);
}

/// Makes some searches: what they wait for in memory, they wait for together.
#[inline]
fn search<S: Slot>(
    table: &Table<S>,
    probes: &[Probe<S::Key>],
    found: &mut Vec<Found>,
    count: &mut usize,
) {
    let touch = |all, probe: &Probe<S::Key>| all ^ table.touch(probe.hash);
    std::hint::black_box(probes.iter().fold(false, touch));
    let most = *count + probes.len() + 1;
    if found.len() < most {
        found.resize(most, Found::default());
    }
    for probe in probes {
        let (one, takes) = probe.look_up(table);
        append(found, count, one, takes);
    }
}

impl SearchMemory {
    /// Reads the headers of at most [`MANY`] frames.
    pub(super) fn read(&mut self, shape: Shape, frames: &[Frame<'_>]) {
        for (key, frame) in self.keys.iter_mut().zip(frames) {
            key.read(shape, frame.data());
        }
    }

    /// Forgets what was found.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// The headers of a frame that was read.
    pub(super) fn key(&self, frame: usize) -> &Key {
        &self.keys[frame]
    }

    /// What was found, in no order.
    pub(super) fn found(&self) -> &[Found] {
        &self.found[..self.count]
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
            .resize(self.count.max(self.sorted.len()), Found::default());
        for one in found {
            let place = &mut starts[usize::from(one.frame)];
            self.sorted[*place] = *one;
            *place += 1;
        }
        std::mem::swap(&mut self.found, &mut self.sorted);
    }

    /// Adds something found in another way.
    pub(super) fn push(&mut self, found: Found) {
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
        self.push(Found {
            value: rule,
            is_sure: true,
            frame,
            ..Found::default()
        });
    }

    /// Looks up flows over IPv4, of the first `count` frames.
    pub(super) fn flows(&mut self, index: &Index, count: usize) {
        let mut probes = 0;
        for (frame, key) in (0..).zip(&self.keys[..count]) {
            let ports = (key.src_port, key.dst_port);
            let (flow, way) = Flow4Key::new(key.traits, key.src, key.dst, ports);
            let probe = Probe {
                hash: index.flows.hash(flow),
                key: flow,
                traits: key.traits,
                way,
                frame,
            };
            let is_flow = (key.kind == kind::V4) & key.has(has::FLOW);
            append(&mut self.flows, &mut probes, probe, is_flow);
        }
        let probes = &self.flows[..probes];
        search(&index.flows, probes, &mut self.found, &mut self.count);
    }

    /// Looks up IPv4 addresses and ports, of the first `count` frames.
    pub(super) fn prefixes(&mut self, index: &Index, count: usize) {
        let spans = self.spans_of(index, count);
        let spans = &self.spans[..spans];
        let lengths = |sum, span: &Span| sum + span.lengths.count_ones() as usize;
        let most = spans.iter().fold(0, lengths) + 1;
        if self.probes.len() < most {
            self.probes.resize(most, Probe::default());
        }
        let mut probes = 0;
        for span in spans {
            let mut lengths = span.lengths;
            while lengths != 0 {
                #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
                let bits = lengths.trailing_zeros() as u8 + 1;
                lengths &= lengths - 1;
                let key = prefix_key(span.tag, span.value, bits);
                let probe = Probe {
                    key,
                    hash: index.small.hash(key),
                    traits: span.traits,
                    way: 0,
                    frame: span.frame,
                };
                let may_be = index.small.may_have(probe.hash);
                append(&mut self.probes, &mut probes, probe, may_be);
            }
        }
        let probes = &self.probes[..probes];
        search(&index.small, probes, &mut self.found, &mut self.count);
    }

    /// The addresses and ports that any rule may look for; gives how many.
    fn spans_of(&mut self, index: &Index, count: usize) -> usize {
        let (has_addresses, has_ports) = (index.has(tag::V4), index.has(tag::PORT));
        let mut spans = 0;
        for (frame, key) in (0..).zip(&self.keys[..count]) {
            let sides = [(traits::SRC, 0), (traits::DST, 1)];
            for (side, bit) in sides.into_iter().filter(|_| has_addresses) {
                let value = [key.src, key.dst][bit];
                let lengths = index.addresses.lengths((value >> 16) as u16);
                let span = Span {
                    value,
                    lengths,
                    traits: key.traits | side,
                    tag: tag::V4,
                    frame,
                };
                let is_v4 = key.kind & (kind::V4 | kind::ARP | kind::RARP) != 0;
                let is_one = is_v4 & key.has([has::SRC, has::DST][bit]) & (lengths != 0);
                append(&mut self.spans, &mut spans, span, is_one);
            }
            for (side, bit) in sides.into_iter().filter(|_| has_ports) {
                let port = [key.src_port, key.dst_port][bit];
                let lengths = index.ports.lengths(port);
                let span = Span {
                    value: u32::from(port) << 16,
                    lengths,
                    traits: key.traits | side,
                    tag: tag::PORT,
                    frame,
                };
                let is_one = key.has([has::SRC_PORT, has::DST_PORT][bit]) & (lengths != 0);
                append(&mut self.spans, &mut spans, span, is_one);
            }
        }
        spans
    }
}

/// Loads the first and the last byte of the headers that are read next; see [`super::table::Table::touch`].
pub(super) fn touch(frames: &[Frame<'_>]) {
    /// Of Ethernet, IPv4 and ports.
    const HEADERS: usize = 38;
    let touch = |all: u8, frame: &Frame<'_>| {
        let data = frame.data();
        let last = data.len().min(HEADERS).saturating_sub(1);
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        all ^ byte(0) ^ byte(last)
    };
    std::hint::black_box(frames.iter().fold(0, touch));
}
