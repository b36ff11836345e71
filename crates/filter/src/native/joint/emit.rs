//! From the graph of blocks to Cranelift's intermediate code, in a loop over packets.

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::{
    self, BlockArg, InstBuilder, Value as Ssa,
    condcodes::IntCC,
    immediates::Offset32,
    types::{I16, I32, I64},
};
use cranelift_frontend::FunctionBuilder;

use super::{
    condition::{Condition, ConditionId},
    decision::{Decisions, Node, NodeId, open},
    facts::Facts,
    graph::{Block, BlockId, Joined, Way},
    value::{Load, Value, ValueId},
};
use crate::{
    frame::layout,
    instruction::op,
    native::{emit::packet, operate::load_flags, translate::Packet},
};

/// Writes the function: first frame, number of frames, first of as many words for the results. It gives all bits of these.
pub(super) fn many(builder: &mut FunctionBuilder<'_>, decisions: &Decisions, joined: &Joined) {
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let params = builder.block_params(entry);
    let (frames, count, results) = (params[0], params[1], params[2]);
    let zero = builder.ins().iconst(I64, 0);

    // The next packet: its frame, where its result goes, and the bits of all results so far.
    let next = builder.create_block();
    let frame = builder.append_block_param(next, I64);
    let place = builder.append_block_param(next, I64);
    let any = builder.append_block_param(next, I64);
    let (advance, end) = (builder.create_block(), builder.create_block());
    let result = builder.append_block_param(advance, I64);
    let all = builder.append_block_param(end, I64);

    let frame_bytes = builder.ins().iconst(I64, i64::from(layout::BYTES));
    let word_bytes = builder.ins().iconst(I64, 8);
    let all_bytes = builder.ins().imul(count, frame_bytes);
    let behind = builder.ins().iadd(frames, all_bytes);
    let start = [frames, results, zero].map(BlockArg::Value);
    builder
        .ins()
        .brif(count, next, &start, end, &[BlockArg::Value(zero)]);

    builder.switch_to_block(next);
    let packet = packet(builder, frame);
    let mut emitter = Emitter {
        decisions,
        joined,
        packet,
        advance,
        builder,
        places: HashMap::new(),
    };
    emitter.all(zero);

    builder.switch_to_block(advance);
    builder.ins().store(load_flags(), result, place, 0);
    let any = builder.ins().bor(any, result);
    let frame = builder.ins().iadd(frame, frame_bytes);
    let place = builder.ins().iadd(place, word_bytes);
    let is_left = builder.ins().icmp(IntCC::UnsignedLessThan, frame, behind);
    let on = [frame, place, any].map(BlockArg::Value);
    builder
        .ins()
        .brif(is_left, next, &on, end, &[BlockArg::Value(any)]);

    builder.switch_to_block(end);
    builder.ins().return_(&[all]);
}

/// What was computed on every way to some place.
#[derive(Debug, Clone, Default)]
struct Had {
    /// Loads as the processor made them, with the first byte lowest.
    raw: HashMap<ValueId, Ssa>,
    numbers: HashMap<ValueId, Ssa>,
}

impl Had {
    /// Keeps what `other` has too: two ways meet.
    fn meet(&mut self, other: &Self) {
        self.raw
            .retain(|id, value| other.raw.get(id) == Some(value));
        self.numbers
            .retain(|id, value| other.numbers.get(id) == Some(value));
    }
}

/// A block on its way into the function.
struct Place {
    block: ir::Block,
    /// The result so far, a parameter.
    result: Ssa,
    had: Option<Had>,
}

struct Emitter<'e, 'f> {
    decisions: &'e Decisions,
    joined: &'e Joined,
    packet: Packet,
    /// Takes the result.
    advance: ir::Block,
    builder: &'e mut FunctionBuilder<'f>,
    places: HashMap<BlockId, Place>,
}

impl Emitter<'_, '_> {
    /// Writes all blocks, from the builder's place on.
    fn all(&mut self, zero: Ssa) {
        let (bits, start) = self.joined.start();
        let result = self.with_bits(zero, bits);
        let to = self.target(start, &Had::default());
        self.builder.ins().jump(to, &[BlockArg::Value(result)]);
        for id in self.in_order(start) {
            self.block(id);
        }
    }

    /// The blocks that can be reached, each behind all that lead to it.
    fn in_order(&self, start: Option<BlockId>) -> Vec<BlockId> {
        let ways = |id: BlockId| -> [Option<BlockId>; 2] {
            match self.joined.get(id) {
                Block::Test { yes, no, .. } => [yes, no].map(|way| self.joined.end_of(*way).1),
                Block::Sum { on, .. } => [self.joined.end_of(*on).1, None],
            }
        };
        // Depth first; a block is done when all behind it are.
        let (mut seen, mut done) = (HashSet::new(), Vec::new());
        let mut left: Vec<(BlockId, bool)> = start.into_iter().map(|id| (id, false)).collect();
        while let Some((id, is_done)) = left.pop() {
            if is_done {
                done.push(id);
            } else if seen.insert(id) {
                left.push((id, true));
                left.extend(ways(id).into_iter().flatten().map(|next| (next, false)));
            }
        }
        done.reverse();
        done
    }

    fn block(&mut self, id: BlockId) {
        let Some(place) = self.places.get_mut(&id) else {
            return; // cannot be: a way led here
        };
        let (block, result) = (place.block, place.result);
        let mut had = place.had.take().unwrap_or_default();
        self.builder.switch_to_block(block);
        match self.joined.get(id) {
            Block::Test { condition, yes, no } => {
                let holds = self.condition(*condition, &mut had);
                let (yes, yes_result) = self.way(*yes, result, &had);
                let (no, no_result) = self.way(*no, result, &had);
                self.builder.ins().brif(
                    holds,
                    yes,
                    &[BlockArg::Value(yes_result)],
                    no,
                    &[BlockArg::Value(no_result)],
                );
            }
            Block::Sum {
                node,
                facts,
                bits,
                on,
            } => {
                let result = match self.verdict(*node, facts, &mut had) {
                    Verdict::Always(true) => self.with_bits(result, *bits),
                    Verdict::Always(false) => result,
                    Verdict::If(holds) => {
                        let bits = self.bits_if(holds, *bits);
                        self.builder.ins().bor(result, bits)
                    }
                };
                let (to, result) = self.way(*on, result, &had);
                self.builder.ins().jump(to, &[BlockArg::Value(result)]);
            }
        }
    }

    /// Where a way leads, and the result there.
    fn way(&mut self, way: Way, result: Ssa, had: &Had) -> (ir::Block, Ssa) {
        let (bits, to) = self.joined.end_of(way);
        let result = self.with_bits(result, bits);
        (self.target(to, had), result)
    }

    fn target(&mut self, to: Option<BlockId>, had: &Had) -> ir::Block {
        let Some(id) = to else {
            return self.advance;
        };
        if let Some(place) = self.places.get_mut(&id) {
            if let Some(before) = &mut place.had {
                before.meet(had);
            }
            return place.block;
        }
        let block = self.builder.create_block();
        let result = self.builder.append_block_param(block, I64);
        let place = Place {
            block,
            result,
            had: Some(had.clone()),
        };
        self.places.insert(id, place);
        block
    }

    fn with_bits(&mut self, result: Ssa, bits: u64) -> Ssa {
        if bits == 0 {
            return result;
        }
        let bits = self.builder.ins().iconst(I64, bits.cast_signed());
        self.builder.ins().bor(result, bits)
    }

    /// `bits` where a condition (1 or 0, of 8 bits) holds, else 0.
    fn bits_if(&mut self, holds: Ssa, bits: u64) -> Ssa {
        let one = self.builder.ins().uextend(I64, holds);
        if bits.is_power_of_two() {
            let distance = i64::from(bits.trailing_zeros());
            let distance = self.builder.ins().iconst(I64, distance);
            return self.builder.ins().ishl(one, distance);
        }
        let all = self.builder.ins().ineg(one);
        let bits = self.builder.ins().iconst(I64, bits.cast_signed());
        self.builder.ins().band(all, bits)
    }

    /// What the questions from a node on say, all of them asked.
    fn verdict(&mut self, node: NodeId, facts: &Facts, had: &mut Had) -> Verdict {
        let node = open(self.decisions, node, facts);
        let (condition, yes, no) = match self.decisions.get(node) {
            Node::Verdict(verdict) => return Verdict::Always(verdict),
            Node::Test { condition, yes, no } => (condition, yes, no),
        };
        let holds = self.condition(condition, had);
        let yes = self.verdict(yes, facts, had);
        let no = self.verdict(no, facts, had);
        let ins = self.builder.ins();
        Verdict::If(match (yes, no) {
            (Verdict::Always(yes), Verdict::Always(no)) if yes == no => {
                return Verdict::Always(yes);
            }
            (Verdict::Always(true), Verdict::Always(_)) => holds,
            (Verdict::Always(false), Verdict::Always(_)) => self.not(holds),
            (Verdict::Always(true), Verdict::If(no)) => ins.bor(holds, no),
            (Verdict::If(yes), Verdict::Always(false)) => ins.band(holds, yes),
            (Verdict::Always(false), Verdict::If(no)) => ins.band_not(no, holds),
            (Verdict::If(yes), Verdict::Always(true)) => {
                let not = self.not(holds);
                self.builder.ins().bor(not, yes)
            }
            (Verdict::If(yes), Verdict::If(no)) => ins.select(holds, yes, no),
        })
    }

    fn not(&mut self, holds: Ssa) -> Ssa {
        let zero = self.builder.ins().iconst(ir::types::I8, 0);
        self.builder.ins().icmp(IntCC::Equal, holds, zero)
    }

    /// Whether a condition holds: 1 or 0, of 8 bits.
    fn condition(&mut self, id: ConditionId, had: &mut Had) -> Ssa {
        match self.decisions.conditions.get(id) {
            Condition::Captured { behind, end } => {
                let end = self.builder.ins().iconst(I64, end.cast_signed());
                let end = match behind {
                    None => end,
                    Some(offset) => {
                        // The sum does not wrap, and no packet is as long as one that would wrap in 32 bits.
                        let offset = self.number(offset, had);
                        let offset = self.builder.ins().uextend(I64, offset);
                        self.builder.ins().iadd(offset, end)
                    }
                };
                let captured = self.packet.captured;
                let at_least = IntCC::UnsignedGreaterThanOrEqual;
                self.builder.ins().icmp(at_least, captured, end)
            }
            Condition::Compared { code, left, right } => {
                let (left, right) = match self.unturned((code, left, right), had) {
                    Some(both) => both,
                    None => (self.number(left, had), self.number(right, had)),
                };
                let (left, right, how) = match code {
                    op::JEQ_K => (left, right, IntCC::Equal),
                    op::JGT_K => (left, right, IntCC::UnsignedGreaterThan),
                    op::JGE_K => (left, right, IntCC::UnsignedGreaterThanOrEqual),
                    // What remains is whether they have a bit in common.
                    _ => {
                        let common = self.builder.ins().band(left, right);
                        (common, self.constant(0), IntCC::NotEqual)
                    }
                };
                self.builder.ins().icmp(how, left, right)
            }
        }
    }

    /// Both sides of a comparison of bytes with a constant as the bytes stand in memory: the constant is turned around here,
    /// not the bytes of every packet. `None` where the order of numbers counts, and for other values.
    fn unturned(
        &mut self,
        (code, left, right): (u16, ValueId, ValueId),
        had: &mut Had,
    ) -> Option<(Ssa, Ssa)> {
        let values = &self.decisions.values;
        if code != op::JEQ_K && code != op::JSET_K {
            return None;
        }
        let number = values.constant_of(right)?;
        let (id, mask) = values.unmasked(left, u32::MAX);
        let Value::Load(load) = values.get(id) else {
            return None;
        };
        let mut raw = self.raw(id, load, had);
        if mask != load.largest() {
            let mask = self.constant(load.turned(mask));
            raw = self.builder.ins().band(raw, mask);
        }
        Some((raw, self.constant(load.turned(number))))
    }

    fn constant(&mut self, number: u32) -> Ssa {
        self.builder.ins().iconst(I32, i64::from(number))
    }

    /// A value as a number of 32 bits.
    fn number(&mut self, id: ValueId, had: &mut Had) -> Ssa {
        if let Some(number) = had.numbers.get(&id) {
            return *number;
        }
        let number = match self.decisions.values.get(id) {
            Value::Constant(number) => return self.constant(number),
            Value::WireLen => {
                let frame = self.packet.frame;
                self.builder
                    .ins()
                    .load(I32, load_flags(), frame, layout::WIRE_LEN)
            }
            Value::Load(load) => {
                let raw = self.raw(id, load, had);
                self.turned_around(load, raw)
            }
            Value::HeaderLen(byte) => {
                let byte = self.number(byte, had);
                let (lower, two) = (self.constant(0x0f), self.constant(2));
                let words = self.builder.ins().band(byte, lower);
                self.builder.ins().ishl(words, two)
            }
            Value::Negative(value) => {
                let value = self.number(value, had);
                self.builder.ins().ineg(value)
            }
            Value::Combined { code, left, right } => {
                let (left, right) = (self.number(left, had), self.number(right, had));
                self.combined(code, left, right)
            }
        };
        had.numbers.insert(id, number);
        number
    }

    fn combined(&mut self, code: u16, left: Ssa, right: Ssa) -> Ssa {
        let ins = self.builder.ins();
        match code {
            op::ADD_K => ins.iadd(left, right),
            op::SUB_K => ins.isub(left, right),
            op::MUL_K => ins.imul(left, right),
            op::DIV_K => ins.udiv(left, right),
            op::MOD_K => ins.urem(left, right),
            op::AND_K => ins.band(left, right),
            op::OR_K => ins.bor(left, right),
            op::LSH_K | op::RSH_K => self.shifted(code, left, right),
            // Checked instructions know nothing else.
            _ => ins.bxor(left, right),
        }
    }

    /// The processor takes a distance modulo 32, the program does not.
    fn shifted(&mut self, code: u16, left: Ssa, right: Ssa) -> Ssa {
        let shifted = match code {
            op::LSH_K => self.builder.ins().ishl(left, right),
            _ => self.builder.ins().ushr(left, right),
        };
        let (width, zero) = (self.constant(32), self.constant(0));
        let less = IntCC::UnsignedLessThan;
        let is_inside = self.builder.ins().icmp(less, right, width);
        self.builder.ins().select(is_inside, shifted, zero)
    }

    /// Bytes as they stand in memory, which were checked.
    fn raw(&mut self, id: ValueId, load: Load, had: &mut Had) -> Ssa {
        if let Some(raw) = had.raw.get(&id) {
            return *raw;
        }
        let mut base = self.packet.data;
        if let Some(behind) = load.behind {
            let behind = self.number(behind, had);
            let behind = self.builder.ins().uextend(I64, behind);
            base = self.builder.ins().iadd(base, behind);
        }
        let offset = match i32::try_from(load.offset) {
            Ok(offset) => Offset32::new(offset),
            Err(_) => {
                let offset = self.builder.ins().iconst(I64, i64::from(load.offset));
                base = self.builder.ins().iadd(base, offset);
                Offset32::new(0)
            }
        };
        let ins = self.builder.ins();
        let raw = match load.bytes {
            1 => ins.uload8(I32, load_flags(), base, offset),
            2 => ins.uload16(I32, load_flags(), base, offset),
            _ => ins.load(I32, load_flags(), base, offset),
        };
        had.raw.insert(id, raw);
        raw
    }

    /// Bytes as the number that they are, most significant first.
    fn turned_around(&mut self, load: Load, raw: Ssa) -> Ssa {
        match load.bytes {
            1 => raw,
            2 => {
                let half = self.builder.ins().ireduce(I16, raw);
                let half = self.builder.ins().bswap(half);
                self.builder.ins().uextend(I32, half)
            }
            _ => self.builder.ins().bswap(raw),
        }
    }
}

/// What the questions of a program say.
enum Verdict {
    Always(bool),
    /// 1 or 0, of 8 bits.
    If(Ssa),
}
