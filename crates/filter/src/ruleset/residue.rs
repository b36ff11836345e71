//! Rules that look-ups do not find: their programs see every packet of a link type, together.
//!
//! Up to 64 programs are put into a *unit* and compiled as one function, beside the data path. A change of the rules costs a
//! list: a rule that goes is masked out of its unit, one that comes makes the smallest unit a larger one. Until there is code
//! for that, the unit before answers, and new rules run by themselves. So a burst of changes leaves one unit to compile, and
//! those in between are given up before their turn comes.

use std::sync::Arc;

use retroscope_packet::LinkType;

use crate::{Frame, Joint, Program};

use super::{batch::Batch, explain::Together};

/// Programs that are put together at least.
const TOGETHER_MIN: usize = 2;

/// Rules whose programs see every packet of a link type.
#[derive(Debug, Clone)]
pub(super) struct Residue {
    pub(super) link_type: LinkType,
    units: Vec<Arc<Unit>>,
    /// Those that could be in a unit, but are too few or too new.
    loose: Vec<(u32, Program)>,
    /// Those that cannot be joined.
    alone: Vec<(u32, Program)>,
    /// Whether [`Self::arrange`] has something to do.
    is_changed: bool,
}

/// Rules that are asked together.
#[derive(Debug, Clone)]
struct Unit {
    joint: Joint,
    /// Of each bit.
    rules: Arc<[u32]>,
    /// Those that were not taken out.
    live: u64,
    /// What answers as long as there is no code.
    before: Option<Before>,
}

/// The unit that another one takes the place of.
#[derive(Debug, Clone)]
struct Before {
    joint: Joint,
    rules: Arc<[u32]>,
    live: u64,
    /// Rules of the new unit that it does not know.
    fresh: u64,
}

impl Residue {
    pub(super) fn new(link_type: LinkType) -> Self {
        Self {
            link_type,
            units: Vec::new(),
            loose: Vec::new(),
            alone: Vec::new(),
            is_changed: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty() && self.loose.is_empty() && self.alone.is_empty()
    }

    /// Whether [`Self::arrange`] has something to do.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Whether a rule is here.
    pub(super) fn has(&self, rule: u32) -> bool {
        let mut single = self.alone.iter().chain(&self.loose);
        single.any(|(one, _)| *one == rule) || self.unit_of(rule).is_some()
    }

    /// Adds a rule.
    pub(super) fn add(&mut self, rule: u32, program: Program) {
        if program.joins() {
            self.loose.push((rule, program));
            self.is_changed = true;
        } else {
            self.alone.push((rule, program));
        }
    }

    /// Takes a rule out, if it is there.
    pub(super) fn remove(&mut self, rule: u32) {
        self.alone.retain(|(one, _)| *one != rule);
        self.loose.retain(|(one, _)| *one != rule);
        for unit in &mut self.units {
            if unit.live_rules().any(|(_, one)| one == rule) {
                let unit = Arc::make_mut(unit);
                unit.live &= without(&unit.rules, rule);
                if let Some(before) = &mut unit.before {
                    before.live &= without(&before.rules, rule);
                }
                self.is_changed = true;
            }
        }
    }

    /// Puts rules together anew where that is worth it, before readers see what has changed. Gives the new ones, for whoever
    /// compiles them.
    pub(super) fn arrange(&mut self) -> Vec<Joint> {
        self.is_changed = false;
        let mut new = Vec::new();
        // Units that mostly run for nobody.
        let units = std::mem::take(&mut self.units).into_iter();
        let (kept, sparse): (Vec<_>, Vec<_>) =
            units.partition(|unit| unit.live.count_ones() as usize * 2 > unit.rules.len());
        self.units = kept;
        for unit in &mut self.units {
            if unit.before.is_some() && unit.joint.native().is_some() {
                Arc::make_mut(unit).before = None;
            }
        }
        for unit in sparse {
            self.loose.extend(unit.members());
            unit.joint.give_up();
        }
        let smallest = (0..self.units.len()).min_by_key(|at| self.units[*at].live.count_ones());
        if let Some(at) = smallest
            && !self.loose.is_empty()
        {
            let room = Joint::MANY - self.units[at].live.count_ones() as usize;
            let fresh = self.loose.split_off(self.loose.len().saturating_sub(room));
            if !fresh.is_empty() {
                self.units[at] = Arc::new(self.units[at].with(fresh));
                new.push(self.units[at].joint.clone());
            }
        }
        while self.loose.len() >= TOGETHER_MIN {
            let rest = self.loose.split_off(self.loose.len().min(Joint::MANY));
            let members = std::mem::replace(&mut self.loose, rest);
            let unit = Unit::new(members, None);
            new.push(unit.joint.clone());
            self.units.push(Arc::new(unit));
        }
        new
    }

    /// The rules that a rule runs together with.
    pub(super) fn together(&self, rule: u32) -> Option<Together> {
        self.unit_of(rule).map(|unit| Together {
            link_type: self.link_type,
            rules: unit.live.count_ones() as usize,
            native: unit.joint.native(),
        })
    }

    fn unit_of(&self, rule: u32) -> Option<&Unit> {
        let has = |unit: &&Arc<Unit>| unit.live_rules().any(|(_, one)| one == rule);
        self.units.iter().find(has).map(|unit| &**unit)
    }

    /// Finds the rules that match some frames.
    pub(super) fn find(
        &self,
        frames: &[Frame<'_>],
        results: &mut [u64; Joint::MANY],
        batch: &mut Batch,
    ) {
        for (rule, program) in self.alone.iter().chain(&self.loose) {
            let mut kept = program.run_many(frames);
            while kept != 0 {
                batch.push_rule(*rule, kept.trailing_zeros() as usize);
                kept &= kept - 1;
            }
        }
        for unit in &self.units {
            unit.find(frames, results, batch);
        }
    }
}

impl Unit {
    fn new(members: Vec<(u32, Program)>, before: Option<Before>) -> Self {
        let (rules, programs): (Vec<u32>, Vec<Program>) = members.into_iter().unzip();
        let joint = Joint::new(programs);
        Self {
            live: joint.all(),
            joint,
            rules: rules.into(),
            before,
        }
    }

    /// Bits and rules that were not taken out.
    fn live_rules(&self) -> impl Iterator<Item = (usize, u32)> {
        let rules = self.rules.iter().copied().enumerate();
        rules.filter(|(bit, _)| self.live >> bit & 1 == 1)
    }

    /// Rules that were not taken out, with their programs.
    fn members(&self) -> Vec<(u32, Program)> {
        self.live_rules()
            .map(|(bit, rule)| (rule, self.joint.programs()[bit].clone()))
            .collect()
    }

    /// A unit of its rules and others, which takes its place.
    fn with(&self, fresh: Vec<(u32, Program)>) -> Self {
        let mut members = self.members();
        let known = members.len();
        members.extend(fresh);
        let mut unit = Self::new(members, None);
        let bits = |from: usize| u64::MAX.unbounded_shl(u32::try_from(from).unwrap_or(u32::MAX));
        let (fresh, all) = (bits(known), unit.live);
        if self.joint.native().is_some() {
            unit.before = Some(Before {
                joint: self.joint.clone(),
                rules: Arc::clone(&self.rules),
                live: self.live,
                fresh: fresh & all,
            });
        } else {
            self.joint.give_up();
            // Its bits are those of this unit: who went out since is in neither.
            unit.before = self.before.clone().map(|mut before| {
                before.fresh = self
                    .live_rules()
                    .enumerate()
                    .filter(|(_, (bit, _))| before.fresh >> bit & 1 == 1)
                    .fold(fresh & all, |set, (bit, _)| set | 1 << bit);
                before
            });
        }
        unit
    }

    fn find(&self, frames: &[Frame<'_>], results: &mut [u64; Joint::MANY], batch: &mut Batch) {
        match &self.before {
            Some(before) if self.joint.native().is_none() => {
                before.joint.run_some(before.live, frames, results);
                push(&before.rules, before.live, frames.len(), results, batch);
                let fresh = before.fresh & self.live;
                self.joint.run_each(fresh, frames, results);
                push(&self.rules, fresh, frames.len(), results, batch);
            }
            _ => {
                let any = self.joint.run_some(self.live, frames, results);
                if any & self.live != 0 {
                    push(&self.rules, self.live, frames.len(), results, batch);
                }
            }
        }
    }
}

/// All bits but that of a rule.
fn without(rules: &[u32], rule: u32) -> u64 {
    let bit = rules.iter().position(|one| *one == rule);
    bit.map_or(u64::MAX, |bit| !(1 << bit))
}

/// Tells a batch which of some rules match the first `count` frames.
#[inline]
fn push(rules: &[u32], of: u64, count: usize, results: &[u64; Joint::MANY], batch: &mut Batch) {
    for (frame, result) in results[..count].iter().enumerate() {
        let mut left = result & of;
        while left != 0 {
            batch.push_rule(rules[left.trailing_zeros() as usize], frame);
            left &= left - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Aux, Instruction, instruction::op};

    /// Keeps packets whose first byte has one of some bits.
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

    /// Asks the kernel, so it cannot be joined; keeps all packets.
    fn lonely() -> Program {
        let load = Instruction {
            code: op::LD_W_ABS,
            ..Instruction::ret(crate::instruction::ANCILLARY_INTERFACE)
        };
        Program::new(vec![load, Instruction::ret(1)], true).expect("valid")
    }

    /// The rules that match each of 64 packets, whose first bytes are their numbers.
    fn found(residue: &Residue) -> Vec<Vec<u32>> {
        let bytes: Vec<u8> = (0..64).collect();
        let aux = Aux {
            ifindex: Some(1),
            ..Aux::default()
        };
        let frames: Vec<Frame<'_>> = bytes
            .chunks(1)
            .map(|byte| Frame::new(byte, 1, aux))
            .collect();
        let mut batch = Batch::default();
        residue.find(&frames, &mut [0; Joint::MANY], &mut batch);
        let mut rules = vec![Vec::new(); frames.len()];
        for found in batch.found() {
            assert!(found.is_sure);
            rules[usize::from(found.frame)].push(found.value);
        }
        rules.iter_mut().for_each(|rules| rules.sort_unstable());
        rules
    }

    /// The same, from what the rules are.
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
            let mut residue = Residue::new(LinkType::ETHERNET);
            let mut rules = BTreeMap::new();
            let mut waiting: Vec<Joint> = Vec::new();
            for _ in 0..60 {
                for _ in 0..random.usize(1..5) * random.usize(1..8) {
                    let rule = random.u32(..150);
                    if rules.remove(&rule).is_some() {
                        assert!(residue.has(rule));
                        residue.remove(rule);
                    } else if random.u8(..9) == 0 {
                        rules.insert(rule, u32::MAX);
                        residue.add(rule, lonely());
                    } else {
                        let bits = random.u32(..64);
                        rules.insert(rule, bits);
                        residue.add(rule, program(bits));
                    }
                    assert_eq!(residue.has(rule), rules.contains_key(&rule));
                }
                waiting.extend(residue.arrange());
                assert_eq!(found(&residue), expected(&rules), "seed {seed}");
                // The compiler comes to some of them.
                while random.u8(..3) == 0 && !waiting.is_empty() {
                    let last = waiting.len() - 1;
                    let place = if random.bool() {
                        last
                    } else {
                        random.usize(..=last)
                    };
                    let joint = waiting.swap_remove(place);
                    if joint.is_given_up() {
                        given_up += 1;
                    } else {
                        joint.make_native().expect("x86-64 Linux");
                        compiled += 1;
                    }
                    assert_eq!(found(&residue), expected(&rules), "seed {seed}");
                }
            }
            for rule in rules.keys() {
                residue.remove(*rule);
            }
            residue.arrange();
            assert!(residue.is_empty());
        }
        assert!(given_up > 100 && compiled > 100, "{given_up} {compiled}");
    }

    #[test]
    fn a_burst_of_changes_leaves_one_unit_to_compile() {
        let mut residue = Residue::new(LinkType::ETHERNET);
        let mut joints = Vec::new();
        for rule in 0..64 {
            residue.add(rule, program(rule));
            joints.extend(residue.arrange());
        }
        joints.retain(|joint| !joint.is_given_up());
        assert_eq!(joints.len(), 1);
        assert_eq!(joints[0].programs().len(), 64);
    }

    #[test]
    fn the_unit_before_answers_until_there_is_code_and_is_let_go_then() {
        let mut residue = Residue::new(LinkType::ETHERNET);
        let mut rules: BTreeMap<u32, u32> = (0..4).map(|rule| (rule, 1 << rule)).collect();
        for (rule, bits) in &rules {
            residue.add(*rule, program(*bits));
        }
        let [old] = residue.arrange().try_into().expect("one unit");
        old.make_native().expect("x86-64 Linux");
        rules.insert(9, 0x30);
        residue.add(9, program(0x30));
        let [new] = residue.arrange().try_into().expect("one unit");
        assert!(!old.is_given_up(), "its code is in use");
        assert_eq!(found(&residue), expected(&rules));
        new.make_native().expect("x86-64 Linux");
        drop(new);
        residue.arrange();
        assert!(old.is_given_up(), "nobody else has it");
        assert_eq!(found(&residue), expected(&rules));
        let joined = residue.unit_of(9).map(|unit| unit.joint.joined());
        assert_eq!(joined, Some(0b1_1111));
    }
}
