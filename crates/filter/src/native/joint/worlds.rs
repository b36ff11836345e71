//! The programs of a set one after the other, on packets of which more and more is known.
//!
//! Between two programs packets are divided into *worlds* by what the earlier programs found out and later ones ask again:
//! whether it is IPv4, TCP, a first fragment. In a world the next program is left with the questions that are open there,
//! often a single one. What no later program asks is forgotten, so worlds meet again; where there would be too many, the
//! facts that help least are forgotten too.

use std::collections::HashMap;

use super::{
    asked::Asked,
    condition::{Condition, ConditionId},
    decision::{Decisions, Node, NodeId, open},
    facts::Facts,
    graph::{Block, BlockId, Joined, Target, Way},
};

/// Worlds between two programs at most, and how few are tried where that takes too long. 32 was not measured: it lies between
/// two that were. Of 12, 24, 48 and 96 none was better or worse by more than a run differs from the next (64 filters, 20 to 28 ns
/// a packet), but 96 made twice the code.
const WORLDS_MAX: [usize; 4] = [32, 16, 4, 1];
/// Blocks of one function at most, else there are fewer worlds: some 10 µs of compile time each.
pub(super) const BLOCKS_MAX: usize = 2500;
/// Open questions of a program that are answered without a jump at most: a wrong guess of the processor costs more.
const AT_ONCE_MAX: usize = 4;
/// Captured bytes of nearly all packets: the shortest frame of Ethernet without its check sequence.
const USUAL_BYTES: u64 = 60;
/// What is left of these behind the shortest header of IPv4: most offsets are the length of one.
const USUAL_BEHIND: u64 = USUAL_BYTES - 20;
/// Blocks of one program in one world, for each of its nodes, at most; else it is translated without what its own questions
/// tell about each other.
const BLOCKS_A_NODE: usize = 2;
/// Steps of each of these tries at most, one of them some 10 ns.
pub(super) const STEPS_MAX: usize = 1_000_000;
/// Steps that a copy of some facts and a look for them in a map take, and one for each 64 conditions.
const FACTS_STEPS: usize = 10;

/// A program: where its run starts, and what it adds to the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) root: NodeId,
    pub(super) bits: u64,
}

/// Joins programs, with fewer worlds where it would take more than `steps_max` steps or too many blocks. Where that does not
/// help either, it joins as many as it can, from the first on.
pub(super) fn join(decisions: &Decisions, rules: &[Rule], steps_max: usize) -> Joined {
    let asked = Asked::new(decisions, rules);
    let mut implied = HashMap::new();
    let mut tried = WORLDS_MAX.into_iter();
    loop {
        let worlds_max = tried.next().unwrap_or(1);
        let joiner = Joiner {
            decisions,
            asked: &asked,
            rules,
            worlds_max,
            is_last: tried.len() == 0,
            blocks: Vec::new(),
            implied: &mut implied,
            steps_left: steps_max,
        };
        if let Some(joined) = joiner.join() {
            return joined;
        }
    }
}

struct Joiner<'j> {
    decisions: &'j Decisions,
    asked: &'j Asked,
    rules: &'j [Rule],
    worlds_max: usize,
    /// Whether nothing else is tried after this.
    is_last: bool,
    blocks: Vec<Block>,
    /// What an answer says of all conditions.
    implied: &'j mut HashMap<(ConditionId, bool), Facts>,
    steps_left: usize,
}

/// One program in one world.
struct Place<'w> {
    program: usize,
    /// Blocks made so far, by what they begin with.
    known: HashMap<(NodeId, Facts), Way>,
    /// Worlds behind it.
    worlds: &'w mut Worlds,
    /// Whether answers are forgotten at once.
    is_blind: bool,
    blocks_max: usize,
}

/// Worlds by what is known in them.
#[derive(Default)]
struct Worlds {
    all: Vec<Facts>,
    numbers: HashMap<Facts, usize>,
}

impl Worlds {
    fn number(&mut self, facts: Facts) -> usize {
        let next = self.all.len();
        *self.numbers.entry(facts).or_insert_with_key(|facts| {
            self.all.push(facts.clone());
            next
        })
    }

    /// Takes all behind the first `count` out.
    fn shrink(&mut self, count: usize) {
        for facts in self.all.drain(count..) {
            self.numbers.remove(&facts);
        }
    }
}

/// There are more blocks than there may be.
struct TooMany;

impl Joiner<'_> {
    /// Joins the programs. Where there are too few steps or too many blocks, `None`; the last time the programs so far.
    fn join(mut self) -> Option<Joined> {
        let mut here = Worlds::default();
        let start = self.start(&mut here);
        let mut worlds = Vec::with_capacity(self.rules.len());
        let mut bits = 0;
        for (program, rule) in self.rules.iter().enumerate() {
            let blocks_before = self.blocks.len();
            let (became, few) = self.fewer(&here, program);
            let nodes = self.nodes(rule.root);
            let mut next = Worlds::default();
            let mut ways = Vec::with_capacity(few.len());
            for mut facts in few {
                if self.is_over() {
                    break;
                }
                self.conclude(program, &mut facts);
                ways.push(self.program((program, nodes), &facts, &mut next));
            }
            if self.is_over() {
                if !self.is_last {
                    return None;
                }
                // Here it ends, whichever world it is.
                self.blocks.truncate(blocks_before);
                let end = Way {
                    bits: 0,
                    to: Target::End,
                };
                worlds.push((vec![0; here.all.len()], vec![end]));
                break;
            }
            bits |= rule.bits;
            worlds.push((became, ways));
            here = next;
        }
        Some(Joined {
            blocks: self.blocks,
            worlds,
            start,
            bits,
        })
    }

    /// Whether there are too few steps or too many blocks.
    fn is_over(&self) -> bool {
        self.steps_left == 0 || self.blocks.len() > BLOCKS_MAX
    }

    /// Counts a look at some facts, some times.
    fn pay(&mut self, times: usize) {
        let steps = times * (FACTS_STEPS + self.asked.conditions / 64);
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    /// In front of all programs: where a packet is as long as most are, their checks of that are one.
    fn start(&mut self, worlds: &mut Worlds) -> Way {
        let nothing = Facts::none(self.asked.conditions);
        let mut to = |facts| Way {
            bits: 0,
            to: Target::World {
                program: 0,
                world: worlds.number(facts),
            },
        };
        let conditions = &self.decisions.conditions;
        let lengths = conditions.ids().filter_map(|id| match conditions.get(id) {
            Condition::Captured { behind: None, end } => Some((end, id)),
            _ => None,
        });
        let Some((_, longest)) = lengths.filter(|(end, _)| *end <= USUAL_BYTES).max() else {
            return to(nothing);
        };
        let mut way = |answer| {
            let mut facts = nothing.clone();
            facts.learn(self.implied(longest, answer));
            to(facts)
        };
        let (yes, no) = (way(true), way(false));
        self.blocks.push(Block::Test {
            condition: longest,
            yes,
            no,
        });
        Way {
            bits: 0,
            to: Target::Block(BlockId(0)),
        }
    }

    /// Adds what follows from facts for a program, in front of it: between programs only that was kept which is asked several
    /// times.
    fn conclude(&mut self, program: usize, facts: &mut Facts) {
        self.steps_left = self.steps_left.saturating_sub(self.asked.conditions / 8);
        let root = self.rules[program].root;
        let known: Vec<(ConditionId, bool)> = self
            .decisions
            .conditions
            .ids()
            .filter_map(|id| Some((id, facts.get(id)?)))
            .collect();
        self.pay(known.len());
        for (id, answer) in known {
            facts.learn(self.implied(id, answer));
        }
        let mut asked = self.asked.reach[root.0 as usize].clone();
        asked.join(&self.asked.later[program].0);
        facts.keep(&asked);
    }

    /// The worlds in front of a program, as few as there may be: for each which of these it is, and these.
    fn fewer(&mut self, worlds: &Worlds, program: usize) -> (Vec<usize>, Vec<Facts>) {
        let (asked, counts) = &self.asked.later[program];
        let mut by_use: Vec<ConditionId> = self.decisions.conditions.ids().collect();
        by_use.retain(|id| worlds.all.iter().any(|facts| facts.known().has(*id)));
        by_use.sort_by_key(|id| (std::cmp::Reverse(counts[id.0 as usize]), *id));
        let knowing = |count: usize| {
            let mut kept = asked.clone();
            by_use[count..].iter().for_each(|id| kept.take(*id));
            let mut few = Worlds::default();
            let became = worlds.all.iter().map(|facts| {
                let mut facts = facts.clone();
                facts.keep(&kept);
                few.number(facts)
            });
            let became: Vec<usize> = became.collect();
            (became, few.all)
        };
        let mut best = knowing(by_use.len());
        let mut rounds = 2;
        if best.1.len() > self.worlds_max {
            // With each fact that is forgotten there are as many worlds or fewer; without any there is one.
            best = knowing(0);
            let (mut enough, mut too_many) = (0, by_use.len());
            while too_many - enough > 1 {
                let count = enough.midpoint(too_many);
                let found = knowing(count);
                rounds += 1;
                if found.1.len() <= self.worlds_max {
                    (enough, best) = (count, found);
                } else {
                    too_many = count;
                }
            }
        }
        self.pay(rounds * worlds.all.len());
        best
    }

    /// A program of some nodes in a world.
    fn program(
        &mut self,
        (program, nodes): (usize, usize),
        facts: &Facts,
        worlds: &mut Worlds,
    ) -> Way {
        let root = self.rules[program].root;
        let (before, worlds_before) = (self.blocks.len(), worlds.all.len());
        let mut place = Place {
            program,
            known: HashMap::new(),
            worlds,
            is_blind: false,
            blocks_max: before + 16 + BLOCKS_A_NODE * nodes,
        };
        if let Ok(way) = self.go(&mut place, root, facts) {
            return way;
        }
        self.blocks.truncate(before);
        place.worlds.shrink(worlds_before);
        // No more blocks than nodes then.
        let mut place = Place {
            known: HashMap::new(),
            is_blind: true,
            blocks_max: usize::MAX,
            ..place
        };
        match self.go(&mut place, root, facts) {
            Ok(way) => way,
            Err(TooMany) => self.end(&mut place, false, facts), // cannot be: there is no limit
        }
    }

    /// How many nodes a node leads to, itself among them.
    fn nodes(&self, root: NodeId) -> usize {
        let (mut seen, mut left) = (std::collections::HashSet::new(), vec![root]);
        while let Some(node) = left.pop() {
            if !seen.insert(node) {
                continue;
            }
            if let Node::Test { yes, no, .. } = self.decisions.get(node) {
                left.extend([yes, no]);
            }
        }
        seen.len()
    }

    /// The way from a node on.
    fn go(&mut self, place: &mut Place<'_>, node: NodeId, facts: &Facts) -> Result<Way, TooMany> {
        self.pay(2);
        let node = open(self.decisions, node, facts);
        let Node::Test { condition, yes, no } = self.decisions.get(node) else {
            let accepts = self.decisions.get(node) == Node::Verdict(true);
            return Ok(self.end(place, accepts, facts));
        };
        let mut facts = facts.clone();
        let mut asked = self.asked.reach[node.0 as usize].clone();
        asked.join(&self.asked.later[place.program + 1].0);
        facts.keep(&asked);
        let key = (node, facts);
        if let Some(way) = place.known.get(&key) {
            return Ok(*way);
        }
        let facts = &key.1;
        if self.decisions.conditions.is_length(condition) {
            self.steps_left = self.steps_left.saturating_sub(self.asked.conditions / 8);
        }
        let (condition, again) = match self.longer(place.program, condition, facts) {
            Some(longer) if !place.is_blind => (longer, true),
            _ => (condition, false),
        };
        let (yes, no) = if again { (node, node) } else { (yes, no) };
        let block = if self
            .open_questions(place.program, node, facts, AT_ONCE_MAX)
            .is_some()
        {
            Block::Sum {
                node,
                facts: facts.clone(),
                bits: self.rules[place.program].bits,
                on: self.end(place, false, facts),
            }
        } else {
            let mut way = |next, answer| {
                let mut facts = facts.clone();
                if !place.is_blind {
                    facts.learn(self.implied(condition, answer));
                }
                self.go(place, next, &facts)
            };
            let (yes, no) = (way(yes, true)?, way(no, false)?);
            Block::Test { condition, yes, no }
        };
        if self.blocks.len() >= place.blocks_max {
            return Err(TooMany);
        }
        let id = BlockId(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX));
        self.blocks.push(block);
        let way = Way {
            bits: 0,
            to: Target::Block(id),
        };
        place.known.insert(key, way);
        Ok(way)
    }

    /// A length that later programs ask for behind the same offset and most packets have, where it says more than a condition:
    /// asked first, it settles that one and others for nearly all.
    fn longer(&self, program: usize, condition: ConditionId, facts: &Facts) -> Option<ConditionId> {
        let conditions = &self.decisions.conditions;
        let Condition::Captured {
            behind: Some(offset),
            end: its_end,
        } = conditions.get(condition)
        else {
            return None;
        };
        let asked = &self.asked.later[program + 1].0;
        let lengths = conditions.ids().filter_map(|id| match conditions.get(id) {
            Condition::Captured {
                behind: Some(behind),
                end,
            } if behind == offset => Some((end, id)),
            _ => None,
        });
        let longer: Vec<_> = lengths.filter(|(end, _)| *end > its_end).collect();
        if longer.iter().any(|(_, id)| facts.get(*id) == Some(false)) {
            return None; // an unusual packet
        }
        let usual = longer
            .into_iter()
            .filter(|(end, id)| *end <= USUAL_BEHIND && asked.has(*id) && facts.get(*id).is_none());
        usual.max().map(|(_, id)| id)
    }

    /// How many questions are open from a node on, if all of them may be asked whatever the answers are, no later program
    /// wants to know an answer, and there are no more than `most`.
    fn open_questions(
        &self,
        program: usize,
        node: NodeId,
        facts: &Facts,
        most: usize,
    ) -> Option<usize> {
        let node = open(self.decisions, node, facts);
        let Node::Test { condition, yes, no } = self.decisions.get(node) else {
            return Some(0);
        };
        let is_asked_later = self.asked.later[program + 1].0.has(condition);
        if most == 0 || is_asked_later || self.decisions.conditions.is_length(condition) {
            return None;
        }
        let yes = self.open_questions(program, yes, facts, most - 1)?;
        let no = self.open_questions(program, no, facts, most - 1 - yes)?;
        Some(1 + yes + no)
    }

    /// The end of a program.
    fn end(&self, place: &mut Place<'_>, accepts: bool, facts: &Facts) -> Way {
        let next = place.program + 1;
        let to = if next == self.rules.len() {
            Target::End
        } else {
            let mut facts = facts.clone();
            facts.keep(&self.asked.later[next].0);
            Target::World {
                program: next,
                world: place.worlds.number(facts),
            }
        };
        let bits = if accepts {
            self.rules[place.program].bits
        } else {
            0
        };
        Way { bits, to }
    }

    /// What an answer tells.
    fn implied(&mut self, condition: ConditionId, answer: bool) -> &Facts {
        let Decisions {
            values, conditions, ..
        } = self.decisions;
        let count = self.asked.conditions;
        self.implied.entry((condition, answer)).or_insert_with(|| {
            self.steps_left = self.steps_left.saturating_sub(count);
            let mut facts = Facts::none(count);
            for other in conditions.ids() {
                if let Some(says) = conditions.implied(values, (condition, answer), other) {
                    facts.set(other, says);
                }
            }
            facts
        })
    }
}
