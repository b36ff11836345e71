//! Look-ups that nearly every packet needs, for up to 64 packets at a time.
//!
//! A single packet would wait for its header, then for one table line after the other, and its
//! branches (TCP or UDP, found or not) are unpredictable. So each step runs for all packets before
//! the next step begins, and results are collected without a branch.

use crate::FilterFrame;

use super::{
    index::RuleIndex,
    key::{frame_flags, has, kind},
    look_up_key::{Flow4Key, prefix_key, tag},
    search_memory::{FoundEntry, PrefixSpan, Probe, SearchMemory},
    table::{LookUpTable, TableSlot},
};

/// Appends `value` if `is_one`, without a branch. Writes the next place in any case, so that place
/// must exist.
#[inline]
fn append<T>(list: &mut [T], count: &mut usize, value: T, is_one: bool) {
    list[*count] = value;
    *count += usize::from(is_one);
}

/// Appends groups, and single entries that accept the packet, to `found`. The memory accesses of
/// the probes overlap.
#[inline]
fn search<S: TableSlot>(
    table: &LookUpTable<S>,
    probes: &[Probe<S::Key>],
    found: &mut Vec<FoundEntry>,
    count: &mut usize,
) {
    let touch = |all, probe: &Probe<S::Key>| all ^ table.touch(probe.hash);
    std::hint::black_box(probes.iter().fold(false, touch));
    let most = *count + probes.len() + 1;
    if found.len() < most {
        found.resize(most, FoundEntry::default());
    }
    for probe in probes {
        let (one, accepts) = probe.look_up(table);
        append(found, count, one, accepts);
    }
}

impl SearchMemory {
    /// Looks up the IPv4 flows of the first `count` frames.
    pub(super) fn flows(&mut self, index: &RuleIndex, count: usize) {
        let mut probes = 0;
        for (frame, key) in (0..).zip(&self.keys[..count]) {
            let ports = (key.src_port, key.dst_port);
            let (flow, orientation) = Flow4Key::new(key.frame_flags, key.src, key.dst, ports);
            let probe = Probe {
                hash: index.flows.hash(flow),
                key: flow,
                frame_flags: key.frame_flags,
                orientation,
                frame,
            };
            let is_flow = (key.kind == kind::V4) & key.has(has::FLOW);
            append(&mut self.flows, &mut probes, probe, is_flow);
        }
        let probes = &self.flows[..probes];
        search(&index.flows, probes, &mut self.found, &mut self.count);
    }

    /// Looks up the IPv4 addresses and ports of the first `count` frames.
    pub(super) fn prefixes(&mut self, index: &RuleIndex, count: usize) {
        let spans = self.spans_of(index, count);
        let spans = &self.spans[..spans];
        let lengths = |sum, span: &PrefixSpan| sum + span.lengths.count_ones() as usize;
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
                    frame_flags: span.frame_flags,
                    orientation: 0,
                    frame: span.frame,
                };
                let may_be = index.small.may_have(probe.hash);
                append(&mut self.probes, &mut probes, probe, may_be);
            }
        }
        let probes = &self.probes[..probes];
        search(&index.small, probes, &mut self.found, &mut self.count);
    }

    /// Collects the addresses and ports that any rule may look up. Returns their number.
    fn spans_of(&mut self, index: &RuleIndex, count: usize) -> usize {
        let (has_addresses, has_ports) = (index.has(tag::V4), index.has(tag::PORT));
        let mut spans = 0;
        for (frame, key) in (0..).zip(&self.keys[..count]) {
            let sides = [(frame_flags::SRC, 0), (frame_flags::DST, 1)];
            for (side, bit) in sides.into_iter().filter(|_| has_addresses) {
                let value = [key.src, key.dst][bit];
                let lengths = index.addresses.lengths((value >> 16) as u16);
                let span = PrefixSpan {
                    value,
                    lengths,
                    frame_flags: key.frame_flags | side,
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
                let span = PrefixSpan {
                    value: u32::from(port) << 16,
                    lengths,
                    frame_flags: key.frame_flags | side,
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

/// Loads the first and the last byte of the headers: see [`super::table::LookUpTable::touch`].
pub(super) fn touch(frames: &[FilterFrame<'_>]) {
    /// Bytes of Ethernet, IPv4 and ports.
    const HEADERS: usize = 38;
    let touch = |all: u8, frame: &FilterFrame<'_>| {
        let data = frame.data();
        let last = data.len().min(HEADERS).saturating_sub(1);
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        all ^ byte(0) ^ byte(last)
    };
    std::hint::black_box(frames.iter().fold(0, touch));
}
