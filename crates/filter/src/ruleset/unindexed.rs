//! Rules that look-ups cannot find on a link type. Their programs run on every packet of the link
//! type.
//!
//! `UnindexedRules` puts up to 64 programs into a *unit*, from which the compiler's thread makes
//! one function. A removed rule is masked out of its unit. Among the units with room, new rules
//! fill the unit with the fewest rules, then new units. Each unit with new rules needs a new
//! function. The programs of a unit run one by one until the unit has code. During a burst of
//! changes `UnindexedRules` gives up the units in between, which the compiler then skips.

use std::sync::Arc;

use retroscope_packet::LinkType;

use crate::{FilterFrame, FusedPrograms, Program, evaluation::ones, native::has_room};

use super::search_memory::SearchMemory;

#[derive(Debug, Clone)]
pub(super) struct UnindexedRules {
    pub(super) link_type: LinkType,
    units: Vec<Unit>,
    /// New rules, which [`Self::arrange`] moves to units.
    loose: Vec<(u32, Program)>,
    pub(super) is_changed: bool,
}

/// Rules whose programs run together.
#[derive(Debug, Clone)]
struct Unit {
    fused: FusedPrograms,
    /// Number of the rule for each bit.
    rules: Arc<[u32]>,
    /// Bits of the rules that were not removed.
    live: u64,
}

impl UnindexedRules {
    pub(super) fn new(link_type: LinkType) -> Self {
        Self {
            link_type,
            units: Vec::new(),
            loose: Vec::new(),
            is_changed: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty() && self.loose.is_empty()
    }

    pub(super) fn has(&self, rule: u32) -> bool {
        self.loose.iter().any(|(one, _)| *one == rule)
            || self.units.iter().any(|unit| unit.bit(rule) != 0)
    }

    pub(super) fn add(&mut self, rule: u32, program: Program) {
        self.is_changed = true;
        self.loose.push((rule, program));
    }

    pub(super) fn remove(&mut self, rule: u32) {
        self.loose.retain(|(one, _)| *one != rule);
        for unit in &mut self.units {
            let bit = unit.bit(rule);
            unit.live &= !bit;
            self.is_changed |= bit != 0;
        }
    }

    /// Dissolves units of which at most half of the rules remain, and moves their rules and new
    /// rules to units, before readers see the changes. Returns the programs of each unit that got
    /// rules, if there are at least two, to be compiled together.
    pub(super) fn arrange(&mut self) -> Vec<FusedPrograms> {
        self.is_changed = false;
        let mut new = Vec::new();
        let mut loose = std::mem::take(&mut self.loose);
        self.units.retain(|unit| {
            let is_mostly_live = unit.live.count_ones() as usize * 2 > unit.rules.len();
            if !is_mostly_live {
                loose.extend(unit.members());
                unit.fused.give_up();
            }
            is_mostly_live
        });
        // Rules are taken from the end of the list, so programs that are too long to share a
        // function are taken last.
        loose.sort_by_key(|(_, program)| program.can_fuse());
        let units = self.units.iter_mut();
        let open = units.filter(|unit| has_room(unit.fused.programs().iter()));
        if let Some(unit) = open.min_by_key(|unit| unit.live.count_ones()) {
            let mut members = unit.members();
            let known = members.len();
            fill(&mut members, &mut loose);
            if members.len() > known {
                unit.fused.give_up();
                *unit = Unit::new(self.link_type, members);
                new.push(unit.fused.clone());
            }
        }
        while let Some(first) = loose.pop() {
            let mut members = vec![first];
            fill(&mut members, &mut loose);
            let unit = Unit::new(self.link_type, members);
            new.push(unit.fused.clone());
            self.units.push(unit);
        }
        // A program that is alone is compiled as a single program.
        new.retain(|fused| fused.programs().len() > 1);
        new
    }

    pub(super) fn find(
        &self,
        frames: &[FilterFrame<'_>],
        results: &mut [u64; FusedPrograms::MANY],
        memory: &mut SearchMemory,
    ) {
        for unit in &self.units {
            unit.find(frames, results, memory);
        }
    }
}

/// Moves rules from the end of `loose` to `members` while one function has room for the programs.
fn fill(members: &mut Vec<(u32, Program)>, loose: &mut Vec<(u32, Program)>) {
    let has_room_for = |members: &[(u32, Program)], more: &Program| {
        let programs = members.iter().map(|(_, program)| program);
        has_room(programs.chain([more]))
    };
    while let Some(one) = loose.pop_if(|(_, program)| has_room_for(members, program)) {
        members.push(one);
    }
}

impl Unit {
    fn new(link_type: LinkType, members: Vec<(u32, Program)>) -> Self {
        let (rules, programs): (Vec<u32>, Vec<Program>) = members.into_iter().unzip();
        let fused = FusedPrograms::new(link_type, programs);
        Self {
            live: fused.all(),
            fused,
            rules: rules.into(),
        }
    }

    /// The bit of a rule, or 0 if the rule is not in the unit or was removed.
    fn bit(&self, rule: u32) -> u64 {
        let bit = self.rules.iter().position(|one| *one == rule);
        bit.map_or(0, |bit| 1 << bit & self.live)
    }

    fn members(&self) -> Vec<(u32, Program)> {
        let all = self
            .rules
            .iter()
            .copied()
            .zip(self.fused.programs().iter().cloned());
        let is_live = |bit: usize| self.live >> bit & 1 == 1;
        let live = all.enumerate().filter(|(bit, _)| is_live(*bit));
        live.map(|(_, member)| member).collect()
    }

    fn find(
        &self,
        frames: &[FilterFrame<'_>],
        results: &mut [u64; FusedPrograms::MANY],
        memory: &mut SearchMemory,
    ) {
        let any = self.fused.run_some(self.live, frames, results);
        if any & self.live == 0 {
            return;
        }
        for (frame, result) in results[..frames.len()].iter().enumerate() {
            for bit in ones(result & self.live) {
                memory.push_rule(self.rules[bit], frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use retroscope_bpf::op;

    use super::*;
    use crate::{Aux, Instruction};

    /// A program that matches packets whose first byte has any of these bits.
    fn program(bits: u32) -> Program {
        let plain = |code, k| Instruction {
            jump_true: 0,
            jump_false: 1,
            ..Instruction {
                code,
                ..Instruction::ret(k)
            }
        };
        let instructions = vec![
            plain(op::LD_B_ABS, 0),
            plain(op::JSET_K, bits),
            Instruction::ret(1),
            Instruction::ret(0),
        ];
        Program::new(instructions, false).expect("valid")
    }

    /// A program that matches all packets, too long to share a function.
    fn lonely() -> Program {
        Program::new(vec![Instruction::ret(1); 300], false).expect("valid")
    }

    /// The rules that match each of 64 packets. The first byte of a packet is its number.
    fn found(unindexed: &UnindexedRules) -> Vec<Vec<u32>> {
        let bytes: Vec<u8> = (0..64).collect();
        let frames: Vec<FilterFrame<'_>> = bytes
            .chunks(1)
            .map(|byte| FilterFrame::new(byte, 1, Aux::default()))
            .collect();
        let mut memory = SearchMemory::default();
        unindexed.find(&frames, &mut [0; FusedPrograms::MANY], &mut memory);
        let mut rules = vec![Vec::new(); frames.len()];
        for found in &memory.found[..memory.count] {
            assert!(found.is_certain);
            rules[usize::from(found.frame)].push(found.value);
        }
        rules.iter_mut().for_each(|rules| rules.sort_unstable());
        rules
    }

    /// The expected rules for each packet of `found`. `rules` maps each rule to its bits;
    /// `u32::MAX` matches every packet.
    fn expected(rules: &BTreeMap<u32, u32>) -> Vec<Vec<u32>> {
        let of = |byte: u32| {
            let its = rules
                .iter()
                .filter(|(_, bits)| byte & **bits != 0 || **bits == u32::MAX);
            its.map(|(rule, _)| *rule).collect()
        };
        (0..64).map(of).collect()
    }

    #[test]
    fn whatever_comes_and_goes_all_rules_answer() {
        let (mut given_up, mut compiled) = (0, 0);
        for seed in 0..30 {
            let random = &mut fastrand::Rng::with_seed(seed);
            let mut unindexed = UnindexedRules::new(LinkType::ETHERNET);
            let mut rules = BTreeMap::new();
            let mut waiting: Vec<FusedPrograms> = Vec::new();
            for _ in 0..60 {
                for _ in 0..random.usize(1..5) * random.usize(1..8) {
                    let rule = random.u32(..150);
                    if rules.remove(&rule).is_some() {
                        assert!(unindexed.has(rule));
                        unindexed.remove(rule);
                    } else if random.u8(..9) == 0 {
                        rules.insert(rule, u32::MAX);
                        unindexed.add(rule, lonely());
                    } else {
                        let bits = random.u32(..64);
                        rules.insert(rule, bits);
                        unindexed.add(rule, program(bits));
                    }
                    assert_eq!(unindexed.has(rule), rules.contains_key(&rule));
                }
                waiting.extend(unindexed.arrange());
                assert_eq!(found(&unindexed), expected(&rules), "seed {seed}");
                while random.u8(..3) == 0 && !waiting.is_empty() {
                    let last = waiting.len() - 1;
                    let place = if random.bool() {
                        last
                    } else {
                        random.usize(..=last)
                    };
                    let fused = waiting.swap_remove(place);
                    if fused.is_given_up() {
                        given_up += 1;
                    } else {
                        fused.make_native().expect("x86-64 Linux");
                        compiled += 1;
                    }
                    assert_eq!(found(&unindexed), expected(&rules), "seed {seed}");
                }
            }
            for rule in rules.keys() {
                unindexed.remove(*rule);
            }
            unindexed.arrange();
            assert!(unindexed.is_empty());
        }
        assert!(given_up > 100 && compiled > 100, "{given_up} {compiled}");
    }

    #[test]
    fn a_burst_of_changes_leaves_one_unit_to_compile() {
        let mut unindexed = UnindexedRules::new(LinkType::ETHERNET);
        let mut fused = Vec::new();
        for rule in 0..64 {
            unindexed.add(rule, program(rule));
            fused.extend(unindexed.arrange());
        }
        fused.retain(|fused| !fused.is_given_up());
        assert_eq!(fused.len(), 1);
        assert_eq!(fused[0].programs().len(), 64);
    }
}
