//! Decides which of the found entries are rules that match.

use retroscope_packet::LinkType;

use crate::FilterFrame;

use super::{
    Matches,
    atom::AtomInput,
    index::{RuleIndex, RuleInfo, flags},
    key::has,
    search_memory::{FoundEntry, SearchMemory},
};

pub(super) struct Collector<'c> {
    pub(super) index: &'c RuleIndex,
    pub(super) link_type: LinkType,
    pub(super) interface: u16,
    /// Headers of the frames, and found entries in the order of frames.
    pub(super) memory: &'c SearchMemory,
    pub(super) frames: &'c [FilterFrame<'c>],
}

impl Collector<'_> {
    /// Adds every rule that matches, or whose filter the caller must evaluate, to `matches`.
    /// `is_unread`: look-ups cannot read the headers of the frames' link type.
    pub(super) fn collect(&self, is_unread: bool, matches: &mut Matches) {
        let always = self.index.asked_always.iter();
        let elsewhere = self.index.asked_elsewhere.iter().filter(|_| is_unread);
        let asked = always.chain(elsewhere);
        let mut found = &self.memory.found[..self.memory.count];
        if asked.clone().next().is_none() {
            while let Some(first) = found.first() {
                let number = usize::from(first.frame);
                found = self.frame(number, found, matches);
                matches.end();
            }
            return;
        }
        for number in 0..self.frames.len() {
            found = self.frame(number, found, matches);
            for rule in asked.clone() {
                self.add(number, *rule, true, matches);
            }
            matches.end();
        }
    }

    fn add(&self, number: usize, rule: u32, ask: bool, matches: &mut Matches) {
        if let Some(info) = self.index.rules.get(rule) {
            matches.add(number, info.id, ask);
        }
    }

    /// Handles the entries of one frame. Returns the entries of the following frames.
    #[inline]
    fn frame<'f>(
        &self,
        number: usize,
        mut found: &'f [FoundEntry],
        matches: &mut Matches,
    ) -> &'f [FoundEntry] {
        while let Some((first, behind)) = found.split_first()
            && usize::from(first.frame) == number
        {
            found = behind;
            if first.is_certain {
                self.add(number, first.value, false, matches);
            } else if first.is_group {
                self.group(number, first, matches);
            } else {
                self.rule(number, first.value, matches);
            }
        }
        found
    }

    #[inline(never)]
    fn group(&self, number: usize, found: &FoundEntry, matches: &mut Matches) {
        let input = self.input(number);
        for entry in self.index.group(found.value) {
            if found.frame_flags & !entry.need == 0
                && found.orientation & !entry.orientations == 0
                && entry
                    .remainder
                    .as_ref()
                    .is_none_or(|remainder| remainder.holds(&input))
            {
                self.rule(number, entry.rule, matches);
            }
        }
    }

    #[inline]
    fn rule(&self, number: usize, rule: u32, matches: &mut Matches) {
        let Some(info) = self.index.rules.get(rule) else {
            return;
        };
        if info.flags == 0 {
            matches.add(number, info.id, false);
        } else if let Some(ask) = self.decide(number, info) {
            matches.add(number, info.id, ask);
        }
    }

    /// `Some(false)` if a found rule matches, `Some(true)` if the caller must evaluate the filter.
    /// `None` if the rule does not match, or if its program decides for the whole link type.
    #[inline(never)]
    fn decide(&self, number: usize, info: &RuleInfo) -> Option<bool> {
        let is_set = |flag| info.flags & flag != 0;
        if is_set(flags::ASK) {
            return Some(true);
        }
        if is_set(flags::ETHERNET) && self.link_type != LinkType::ETHERNET {
            return None;
        }
        let is_open = is_set(flags::PARTIAL)
            || (is_set(flags::ORDERED) && self.memory.keys[number].has(has::SHORT));
        let Some(body) = info.body.as_ref().filter(|_| is_open) else {
            return Some(false);
        };
        let frame = &self.frames[number];
        let matches = match body.program(self.link_type) {
            Some(program) => program.keeps(frame),
            None if body.is_opaque => false,
            None => body.expr.holds(body.view, &self.input(number)) == Some(true),
        };
        matches.then_some(false)
    }

    fn input(&self, number: usize) -> AtomInput<'_> {
        AtomInput {
            key: &self.memory.keys[number],
            data: self.frames[number].data(),
            interface: self.interface,
        }
    }
}
