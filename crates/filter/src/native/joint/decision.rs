//! A program as questions: its run on any packet, followed by hand.
//!
//! What the registers hold is a value of the packet at every instruction of a way, so a conditional jump is a condition on
//! values, and a load is preceded by the condition that its bytes were captured. What remains of a program is a graph of
//! conditions that ends in a verdict. Programs that ask the same share the nodes, and one that only says the same in other
//! words is the same node.

use std::collections::HashMap;

use super::{
    condition::{Condition, ConditionId, Conditions, Question},
    facts::Facts,
    value::{Load, Value, ValueId, Values},
};
use crate::{
    instruction::{ANCILLARY, Instruction, MEMORY_WORDS, load_bytes, op},
    native::plan::Plan,
};

/// Longest program that is followed, in instructions.
const INSTRUCTIONS_MAX: usize = 256;
/// Instructions that one program is followed through at most, again in each state of the registers. Programs that libpcap
/// makes need a few more than they have; those with more ways than that are better off alone.
const STEPS_MAX: usize = 2048;
/// Operations that one value takes at most ([`Values::operations`]): what is computed from the same value twice, again and
/// again, is short as a program and endless as an expression.
const OPERATIONS_MAX: u32 = 32;

/// A node of [`Decisions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u32);

impl NodeId {
    const REJECT: Self = Self(0);
    const ACCEPT: Self = Self(1);

    fn verdict(accepts: bool) -> Self {
        if accepts { Self::ACCEPT } else { Self::REJECT }
    }
}

/// What is left of a program's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// It is over.
    Verdict(bool),
    /// A condition decides how it goes on.
    Test {
        condition: ConditionId,
        yes: NodeId,
        no: NodeId,
    },
}

/// The programs of a set. A node's number is above those of the nodes that it leads to.
#[derive(Debug)]
pub(super) struct Decisions {
    pub(super) values: Values,
    pub(super) conditions: Conditions,
    nodes: Vec<Node>,
    known: HashMap<Node, NodeId>,
}

/// How long [`Decisions`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lens {
    pub(super) nodes: usize,
    pub(super) conditions: usize,
}

impl Lens {
    /// The larger of both.
    pub(super) fn most(self) -> usize {
        self.nodes.max(self.conditions)
    }

    /// How much longer than that it is.
    pub(super) fn beyond(self, before: Self) -> Self {
        Self {
            nodes: self.nodes - before.nodes,
            conditions: self.conditions - before.conditions,
        }
    }
}

/// The program has more ways than are followed, or does what is not followed: loops, ancillary data, divisors that may be 0, long
/// arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotFollowed;

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    at: usize,
    a: ValueId,
    x: ValueId,
    memory: [ValueId; MEMORY_WORDS],
}

/// One program being followed.
struct Run<'d> {
    decisions: &'d mut Decisions,
    instructions: &'d [Instruction],
    plan: &'d Plan,
    seen: HashMap<State, NodeId>,
    /// Instructions that may still be gone through.
    left: usize,
}

impl Decisions {
    pub(super) fn new() -> Self {
        let verdicts = [false, true].map(Node::Verdict);
        let known = verdicts.into_iter().zip([NodeId::REJECT, NodeId::ACCEPT]);
        Self {
            values: Values::default(),
            conditions: Conditions::default(),
            nodes: verdicts.into(),
            known: known.collect(),
        }
    }

    pub(super) fn get(&self, id: NodeId) -> Node {
        self.nodes[id.0 as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes and conditions, for [`Self::shrink`].
    pub(super) fn lens(&self) -> Lens {
        Lens {
            nodes: self.nodes.len(),
            conditions: self.conditions.len(),
        }
    }

    /// Takes out what came since it was as long as that: a program that is not taken leaves only values behind, which cost
    /// nothing where nobody asks about them.
    pub(super) fn shrink(&mut self, to: Lens) {
        for node in self.nodes.drain(to.nodes..) {
            self.known.remove(&node);
        }
        self.conditions.shrink(to.conditions);
    }

    /// Whether this kind of program is followed, as far as a look at it tells. Cheap.
    pub(super) fn may_follow(instructions: &[Instruction], ancillary: bool) -> bool {
        let is_simple = |(index, instruction): (usize, &Instruction)| match instruction.code {
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => !ancillary || instruction.k < ANCILLARY,
            op::JA => instruction
                .targets(index)
                .is_some_and(|(target, _)| target > index),
            _ => true,
        };
        instructions.len() <= INSTRUCTIONS_MAX && instructions.iter().enumerate().all(is_simple)
    }

    /// Follows checked instructions; gives the node of their start.
    ///
    /// # Errors
    /// [`NotFollowed`]
    pub(super) fn follow(
        &mut self,
        instructions: &[Instruction],
        ancillary: bool,
    ) -> Result<NodeId, NotFollowed> {
        if !Self::may_follow(instructions, ancillary) {
            return Err(NotFollowed);
        }
        let zero = self.values.constant(0);
        let mut run = Run {
            decisions: self,
            instructions,
            plan: &Plan::new(instructions, ancillary),
            seen: HashMap::new(),
            left: STEPS_MAX,
        };
        run.from(State {
            at: 0,
            a: zero,
            x: zero,
            memory: [zero; MEMORY_WORDS],
        })
    }

    fn add(&mut self, node: Node) -> NodeId {
        if let Node::Test { yes, no, .. } = node
            && yes == no
        {
            return yes;
        }
        let next = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        *self.known.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            next
        })
    }

    fn test(&mut self, asked: Question, yes: NodeId, no: NodeId) -> NodeId {
        match asked {
            Question::Always(true) => yes,
            Question::Always(false) => no,
            Question::If(condition) => self.add(Node::Test { condition, yes, no }),
            Question::Unless(condition) => self.add(Node::Test {
                condition,
                yes: no,
                no: yes,
            }),
        }
    }
}

/// The first node from `node` on whose answer is not known.
pub(super) fn open(decisions: &Decisions, mut node: NodeId, facts: &Facts) -> NodeId {
    while let Node::Test { condition, yes, no } = decisions.get(node)
        && let Some(answer) = facts.get(condition)
    {
        node = if answer { yes } else { no };
    }
    node
}

impl Run<'_> {
    /// What remains of the run from here on.
    fn from(&mut self, state: State) -> Result<NodeId, NotFollowed> {
        if let Some(known) = self.seen.get(&state) {
            return Ok(*known);
        }
        let node = self.walk(state.clone())?;
        self.seen.insert(state, node);
        Ok(node)
    }

    /// Goes on to the next condition, and from there both ways.
    fn walk(&mut self, mut state: State) -> Result<NodeId, NotFollowed> {
        loop {
            self.left = self.left.checked_sub(1).ok_or(NotFollowed)?;
            let index = state.at;
            let instruction = self.instructions[index];
            if self.plan.need(index).is_never() {
                return Ok(NodeId::REJECT);
            }
            state.at += 1;
            match instruction.code {
                op::RET_K => return Ok(NodeId::verdict(instruction.k != 0)),
                op::RET_A => {
                    let asked = self.is_not_zero(state.a);
                    return Ok(self.decisions.test(asked, NodeId::ACCEPT, NodeId::REJECT));
                }
                op::JA => {
                    let target = instruction.targets(index);
                    state.at = target.ok_or(NotFollowed)?.0;
                }
                _ if instruction.is_conditional() => {
                    let (if_true, if_false) = instruction.targets(index).ok_or(NotFollowed)?;
                    let asked = self.asked(&instruction, &state);
                    let mut to = |at| {
                        self.from(State {
                            at,
                            ..state.clone()
                        })
                    };
                    return match asked {
                        Question::Always(true) => to(if_true),
                        Question::Always(false) => to(if_false),
                        _ => {
                            let (yes, no) = (to(if_true)?, to(if_false)?);
                            Ok(self.decisions.test(asked, yes, no))
                        }
                    };
                }
                code if load_bytes(code) != 0 => {
                    return self.load(index, &instruction, state);
                }
                _ => {
                    if !self.compute(&instruction, &mut state)? {
                        return Ok(NodeId::REJECT);
                    }
                }
            }
        }
    }

    /// A load: the bytes are there and the run goes on, or it ends.
    fn load(
        &mut self,
        index: usize,
        instruction: &Instruction,
        mut state: State,
    ) -> Result<NodeId, NotFollowed> {
        let is_indirect = matches!(instruction.code, op::LD_W_IND | op::LD_H_IND | op::LD_B_IND);
        let x = self.decisions.values.constant_of(state.x);
        let (behind, offset) = match (is_indirect, x) {
            (false, _) => (None, instruction.k),
            (true, None) => (Some(state.x), instruction.k),
            (true, Some(x)) => match x.checked_add(instruction.k) {
                Some(offset) => (None, offset),
                None => return Ok(NodeId::REJECT),
            },
        };
        let bytes = load_bytes(instruction.code);
        let need = self.plan.need(index);
        // As far as every accepted packet goes from here: one check for all of that.
        let need = match behind {
            Some(_) => need.behind_x,
            None => need.captured,
        };
        let end = (u64::from(offset) + u64::from(bytes)).max(need);
        let values = &mut self.decisions.values;
        let load = values.add(Value::Load(Load {
            behind,
            offset,
            bytes,
        }));
        let number = if instruction.code == op::LDX_B_MSH {
            state.x = values.add(Value::HeaderLen(load));
            state.x
        } else {
            state.a = load;
            load
        };
        if values.operations(number) > OPERATIONS_MAX {
            return Err(NotFollowed);
        }
        let captured = self
            .decisions
            .conditions
            .add(Condition::Captured { behind, end });
        let on = self.from(state)?;
        Ok(self
            .decisions
            .test(Question::If(captured), on, NodeId::REJECT))
    }

    fn is_not_zero(&mut self, value: ValueId) -> Question {
        let Decisions {
            values, conditions, ..
        } = &mut *self.decisions;
        let all = values.constant(u32::MAX);
        conditions.compared(values, op::JSET_K, value, all)
    }

    fn asked(&mut self, instruction: &Instruction, state: &State) -> Question {
        let Decisions {
            values, conditions, ..
        } = &mut *self.decisions;
        let (code, operand) = match instruction.code {
            op::JEQ_X => (op::JEQ_K, None),
            op::JGT_X => (op::JGT_K, None),
            op::JGE_X => (op::JGE_K, None),
            op::JSET_X => (op::JSET_K, None),
            code => (code, Some(instruction.k)),
        };
        let operand = match operand {
            Some(k) => values.constant(k),
            None => state.x,
        };
        conditions.compared(values, code, state.a, operand)
    }

    /// An instruction that neither loads nor jumps; whether the run goes on behind it.
    fn compute(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
    ) -> Result<bool, NotFollowed> {
        let values = &mut self.decisions.values;
        let k = instruction.k;
        let word = k as usize % MEMORY_WORDS;
        match instruction.code {
            op::LD_LEN => state.a = values.add(Value::WireLen),
            op::LDX_LEN => state.x = values.add(Value::WireLen),
            op::LD_IMM => state.a = values.constant(k),
            op::LDX_IMM => state.x = values.constant(k),
            op::LD_MEM => state.a = state.memory[word],
            op::LDX_MEM => state.x = state.memory[word],
            op::ST => state.memory[word] = state.a,
            op::STX => state.memory[word] = state.x,
            op::TAX => state.x = state.a,
            op::TXA => state.a = state.x,
            op::NEG => {
                state.a = match values.constant_of(state.a) {
                    Some(number) => values.constant(number.wrapping_neg()),
                    None => values.add(Value::Negative(state.a)),
                };
            }
            code => {
                // The bit that says that the operand is `X`.
                let operand = if code & 0x08 == 0 {
                    values.constant(k)
                } else {
                    state.x
                };
                let code = code & !0x08;
                if matches!(code, op::DIV_K | op::MOD_K) {
                    match values.constant_of(operand) {
                        Some(0) => return Ok(false),
                        Some(_) => {}
                        None => return Err(NotFollowed),
                    }
                }
                let Some(value) = values.combine(code, state.a, operand) else {
                    return Ok(false);
                };
                state.a = value;
            }
        }
        if values.operations(state.a) > OPERATIONS_MAX {
            return Err(NotFollowed);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use retroscope_packet::LinkType;

    use super::*;
    use crate::{LinkContext, Mode, compile};

    fn follow(decisions: &mut Decisions, text: &str, optimize: bool) -> NodeId {
        let link = LinkContext {
            link_type: LinkType::ETHERNET,
            snaplen: 65_535,
            mode: Mode::Savefile,
            optimize,
        };
        let program = compile(text, link).expect("it is right");
        let followed = decisions.follow(program.instructions(), false);
        followed.expect("it is short")
    }

    #[test]
    fn the_same_in_other_words_is_the_same_node() {
        let mut decisions = Decisions::new();
        let pairs = [
            ("tcp[13] & 2 != 0", "tcp[tcpflags] & tcp-syn = tcp-syn"),
            ("ip[8] >= 6", "ip[8] > 5"),
            ("not not tcp", "tcp"),
        ];
        for (one, other) in pairs {
            let node = follow(&mut decisions, one, true);
            assert_eq!(node, follow(&mut decisions, other, true), "{one}, {other}");
        }
        assert_ne!(
            follow(&mut decisions, "ip[8] > 5", true),
            follow(&mut decisions, "ip[8] > 6", true)
        );
    }

    #[test]
    fn loops_and_open_divisors_are_not_followed() {
        let mut decisions = Decisions::new();
        for text in ["ip6 protochain 17", "ip[8] / ip[9] = 3"] {
            let link = LinkContext {
                link_type: LinkType::ETHERNET,
                snaplen: 65_535,
                mode: Mode::Savefile,
                optimize: true,
            };
            let program = compile(text, link).expect("it is right");
            let followed = decisions.follow(program.instructions(), false);
            assert_eq!(followed, Err(NotFollowed), "{text}");
        }
        let verdict = decisions.follow(&[Instruction::ret(0)], false);
        assert_eq!(verdict, Ok(NodeId::REJECT));
    }
}
