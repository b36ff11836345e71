//! The tables of all rules. The versions of the writer and of the readers share unchanged parts.

use std::{collections::BTreeMap, sync::Arc};

use retroscope_packet::LinkType;

use crate::{FilterMode, Program};

use super::{
    atom::Expr,
    chunked::{Chunked, NumberPool},
    key::{TagView, frame_flags},
    look_up_key::{Flow4Slot, LookUpKey, SmallSlot, TableKey, tag, tag_of},
    look_ups::{Remainder, RulePart},
    masks::{MaskCounts, Masks},
    table::{LookUpTable, Seeds, TableSlot},
    unindexed::UnindexedRules,
};

/// Work that remains for a rule that a look-up found.
pub(super) mod flags {
    /// The caller must evaluate the filter.
    pub(in crate::ruleset) const ASK: u8 = 1;
    /// The whole expression must be evaluated for every found packet.
    pub(in crate::ruleset) const PARTIAL: u8 = 2;
    /// The whole expression must be evaluated for short frames: the result of `or`, `not` and
    /// `ether host` with loads beyond the captured bytes depends on the order.
    pub(in crate::ruleset) const ORDERED: u8 = 4;
    /// The expression tests hardware addresses or tags, so look-ups decide only on Ethernet.
    pub(in crate::ruleset) const ETHERNET: u8 = 8;
}

#[derive(Debug, Clone, Default)]
pub(super) struct RuleInfo {
    pub(super) id: u64,
    pub(super) flags: u8,
    /// The whole rule, if [`flags`] require the whole rule.
    pub(super) body: Option<Arc<FullRule>>,
}

#[derive(Debug)]
pub(super) struct FullRule {
    pub(super) expr: Expr,
    pub(super) view: TagView,
    /// Programs by link type, if needed there or known before.
    pub(super) programs: Vec<(LinkType, Program)>,
    /// Whether a part of the expression is opaque, so that the rule needs its program or the
    /// caller.
    pub(super) is_opaque: bool,
}

impl FullRule {
    pub(super) fn program(&self, link_type: LinkType) -> Option<&Program> {
        let mut programs = self.programs.iter();
        programs
            .find(|(of, _)| *of == link_type)
            .map(|(_, program)| program)
    }
}

/// An entry under a key: a rule, and further conditions on the frame.
#[derive(Debug, Clone)]
pub(super) struct IndexedRule {
    pub(super) rule: u32,
    pub(super) need: u16,
    pub(super) orientations: u8,
    pub(super) remainder: Option<Arc<Remainder>>,
}

/// One version of the tables. A clone copies about a thousand pointers, and one more for every 256
/// rules or groups.
#[derive(Debug, Clone)]
pub(super) struct RuleIndex {
    pub(super) mode: FilterMode,
    pub(super) seeds: Seeds,
    pub(super) flows: LookUpTable<Flow4Slot>,
    pub(super) small: LookUpTable<SmallSlot>,
    pub(super) addresses: Masks,
    pub(super) ports: Masks,
    groups: Chunked<Arc<Vec<IndexedRule>>>,
    pub(super) rules: Chunked<RuleInfo>,
    /// Number of keys with each [`tag`].
    present: [u32; tag::COUNT],
    v6_lengths: Vec<u8>,
    /// Number of rules with a look-up for `$flow` or `$communityId`. For these rules, frames whose
    /// flow may not be at libpcap's fixed offsets are parsed.
    pub(super) parsed_rules: u32,
    pub(super) unindexed: Arc<Vec<UnindexedRules>>,
    /// Rules whose filter the caller evaluates for every packet.
    pub(super) asked_always: Arc<Vec<u32>>,
    /// Rules whose filter the caller evaluates for every packet of a link type without look-ups.
    pub(super) asked_elsewhere: Arc<Vec<u32>>,
}

/// Counters that only the writer needs.
#[derive(Debug, Default)]
pub(super) struct RefCounts {
    groups: NumberPool,
    addresses: MaskCounts,
    ports: MaskCounts,
    /// Keys with each IPv6 prefix length.
    v6_lengths: BTreeMap<u8, u32>,
}

impl RuleIndex {
    pub(super) fn new(mode: FilterMode, seeds: Seeds) -> Self {
        Self {
            mode,
            seeds,
            flows: LookUpTable::new(seeds),
            small: LookUpTable::new(seeds),
            addresses: Masks::new(),
            ports: Masks::new(),
            groups: Chunked::new(),
            rules: Chunked::new(),
            present: [0; tag::COUNT],
            v6_lengths: Vec::new(),
            parsed_rules: 0,
            unindexed: Arc::default(),
            asked_always: Arc::default(),
            asked_elsewhere: Arc::default(),
        }
    }

    #[inline]
    pub(super) fn has(&self, tag: u8) -> bool {
        self.present[usize::from(tag)] != 0
    }

    pub(super) fn has_any(&self) -> bool {
        self.parsed_rules != 0 || self.present != [0; tag::COUNT]
    }

    /// Whether any rule has look-ups other than IPv4 flows, IPv4 addresses and ports.
    pub(super) fn has_more(&self) -> bool {
        let is_more = |tag: usize| tag > usize::from(tag::PORT) && self.present[tag] != 0;
        self.parsed_rules != 0 || (0..tag::COUNT).any(is_more)
    }

    pub(super) fn v6_lengths(&self) -> impl Iterator<Item = u8> {
        self.v6_lengths.iter().copied()
    }

    #[inline]
    pub(super) fn group(&self, group: u32) -> &[IndexedRule] {
        self.groups.get(group).map_or(&[], |group| group.as_slice())
    }

    /// Number of entries under the first table key of a look-up key.
    pub(super) fn entries_under(&self, look_up: &LookUpKey) -> usize {
        let Some(key) = look_up.keys(self.seeds).first().copied() else {
            return 0;
        };
        match self.filed(key) {
            Some(Err(group)) => self.group(group).len(),
            one => usize::from(one.is_some()),
        }
    }

    pub(super) fn add(&mut self, ref_counts: &mut RefCounts, rule: u32, part: &RulePart) {
        for key in part.look_up.keys(self.seeds) {
            let entry = IndexedRule {
                rule,
                need: part.need,
                orientations: part.orientations,
                remainder: part.remainder.clone(),
            };
            self.change(ref_counts, key, |entries| entries.push(entry));
        }
    }

    pub(super) fn remove(&mut self, ref_counts: &mut RefCounts, rule: u32, look_up: &LookUpKey) {
        for key in look_up.keys(self.seeds) {
            self.change(ref_counts, key, |entries| {
                entries.retain(|entry| entry.rule != rule)
            });
        }
    }

    fn change(
        &mut self,
        ref_counts: &mut RefCounts,
        key: TableKey,
        change: impl FnOnce(&mut Vec<IndexedRule>),
    ) {
        let filed = self.filed(key);
        let is_there = filed.is_some();
        let entries = match filed {
            Some(Err(group)) => {
                let entries = Arc::make_mut(self.groups.get_mut(group));
                let before = entries.len();
                change(entries);
                if entries.len() > 1 || entries.len() == before {
                    return;
                }
                ref_counts.groups.give_back(group);
                std::mem::take(entries)
            }
            one => {
                let mut entries = Vec::from_iter(one.and_then(Result::ok));
                change(&mut entries);
                if entries.len() == usize::from(is_there) {
                    return;
                }
                merged(entries)
            }
        };
        if is_there == entries.is_empty() {
            self.count(ref_counts, key, !is_there);
        }
        self.file(ref_counts, key, entries);
    }

    fn count(&mut self, ref_counts: &mut RefCounts, key: TableKey, is_new: bool) {
        let add = |count: &mut u32| {
            *count = if is_new { *count + 1 } else { *count - 1 };
        };
        let TableKey::Small(key) = key else {
            return add(&mut self.present[usize::from(tag::FLOW4)]);
        };
        let tag = tag_of(key);
        add(&mut self.present[usize::from(tag)]);
        let [_, bits_v6, _, bits, a, b, _, _] = key.to_be_bytes();
        let (masks, counts) = match tag {
            tag::V6 => {
                add(ref_counts.v6_lengths.entry(bits_v6).or_default());
                ref_counts.v6_lengths.retain(|_, count| *count != 0);
                self.v6_lengths = ref_counts.v6_lengths.keys().copied().collect();
                return;
            }
            tag::V4 => (&mut self.addresses, &mut ref_counts.addresses),
            tag::PORT => (&mut self.ports, &mut ref_counts.ports),
            _ => return,
        };
        masks.note(counts, u16::from_be_bytes([a, b]), bits, is_new);
    }

    /// The only entry under a key, or `Err` with the index of the key's group.
    fn filed(&self, key: TableKey) -> Option<Result<IndexedRule, u32>> {
        fn filed<S: TableSlot>(
            table: &LookUpTable<S>,
            key: S::Key,
        ) -> Option<Result<IndexedRule, u32>> {
            let slot = table.find(key)?;
            let (rule, is_group) = slot.parts();
            let (need, orientations) = slot.need();
            let entry = IndexedRule {
                rule,
                need,
                orientations,
                remainder: None,
            };
            Some(if is_group { Err(rule) } else { Ok(entry) })
        }
        match key {
            TableKey::Flow(key) => filed(&self.flows, key),
            TableKey::Small(key) => filed(&self.small, key),
        }
    }

    /// Replaces the entries under a key. The key's old group must be given back before.
    fn file(&mut self, ref_counts: &mut RefCounts, key: TableKey, entries: Vec<IndexedRule>) {
        match key {
            TableKey::Flow(key) => self.flows.remove(key),
            TableKey::Small(key) => self.small.remove(key),
        }
        match (key, entries.as_slice()) {
            (_, []) => {}
            (TableKey::Flow(key), [one]) if is_simple_flow(one) => {
                let slot = Flow4Slot::one(key, one.rule, one.need, one.orientations);
                self.flows.insert(slot);
            }
            (TableKey::Small(key), [one]) if one.remainder.is_none() => {
                self.small.insert(SmallSlot::one(key, one.rule, one.need));
            }
            _ => {
                let group = ref_counts.groups.take();
                *self.groups.get_mut(group) = Arc::new(entries);
                match key {
                    TableKey::Flow(key) => self.flows.insert(Flow4Slot::group(key, group)),
                    TableKey::Small(key) => self.small.insert(SmallSlot::group(key, group)),
                }
            }
        }
    }

    /// Bytes of memory of the tables, without the entries in groups, expressions and programs.
    pub(super) fn bytes(&self) -> usize {
        self.flows.bytes()
            + self.small.bytes()
            + self.addresses.bytes()
            + self.ports.bytes()
            + self.groups.bytes()
            + self.rules.bytes()
    }
}

/// Merges two entries of one rule that differ only in their orientations.
fn merged(mut entries: Vec<IndexedRule>) -> Vec<IndexedRule> {
    if let [one, other] = entries.as_mut_slice()
        && one.rule == other.rule
        && one.need == other.need
        && one.remainder.is_none()
        && other.remainder.is_none()
    {
        one.orientations |= other.orientations;
        entries.truncate(1);
    }
    entries
}

/// Whether an entry fits into a [`Flow4Slot`].
fn is_simple_flow(entry: &IndexedRule) -> bool {
    let views = frame_flags::PLAIN | frame_flags::TAGGED;
    entry.remainder.is_none()
        && entry.need | views == frame_flags::ALL
        && entry.rule <= Flow4Slot::VALUE_MAX
}
