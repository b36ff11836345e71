//! Instructions that compute: loads, arithmetic, moves.

use cranelift_codegen::ir::{
    InstBuilder, MemFlagsData, Value,
    condcodes::IntCC,
    immediates::Offset32,
    types::{I16, I32, I64},
};
use cranelift_frontend::FunctionBuilder;

use retroscope_bpf::{
    ANCILLARY, ANCILLARY_INTERFACE, ANCILLARY_PACKET_TYPE, Instruction, load_bytes, op,
};

use super::{
    known::{Base, Bytes, Content, Known, Place},
    plan,
    translate::Translator,
};
use crate::{
    frame::{PackedAux, layout},
    interpreter::arithmetic,
};

/// Longest IPv4 header in bytes: what [`Content::HeaderLen`] is at most.
const HEADER_BYTES_MAX: u64 = 60;

/// Flags of every load: it cannot fault, and stays where the translator puts it, behind its check.
pub(super) fn load_flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// Loads 1, 2 or 4 bytes, the first byte lowest.
pub(super) fn load_raw(
    builder: &mut FunctionBuilder<'_>,
    base: Value,
    offset: Offset32,
    bytes: u32,
) -> Value {
    let ins = builder.ins();
    match bytes {
        1 => ins.uload8(I32, load_flags(), base, offset),
        2 => ins.uload16(I32, load_flags(), base, offset),
        _ => ins.load(I32, load_flags(), base, offset),
    }
}

/// The address of byte `offset` behind `base`, as base and offset of a load.
fn displacement(offset: u32) -> Option<Offset32> {
    i32::try_from(offset).ok().map(Offset32::new)
}

impl Translator<'_, '_> {
    /// Translates an instruction that is neither return nor jump; `None` if a run ends here in any case.
    pub(super) fn operate(&mut self, index: usize, mut known: Known) -> Option<Known> {
        let instruction = self.program.instructions[index];
        let k = instruction.k;
        match instruction.code {
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS
                if self.program.ancillary && k >= ANCILLARY =>
            {
                self.load_ancillary(k, &mut known)?;
            }
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => {
                let there = self.load(index, k, &mut known);
                self.set_a(&mut known, there);
            }
            op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => {
                let there = self.load_behind_x(index, &instruction, &mut known)?;
                self.set_a(&mut known, there);
            }
            op::LDX_B_MSH => {
                let len = match self.load(index, k, &mut known) {
                    Content::Constant(byte) => Content::Constant((byte & 0x0f) << 2),
                    Content::Bytes(byte) => Content::HeaderLen(byte.raw),
                    other => other, // cannot be: a load is one of these
                };
                self.set_x(&mut known, len);
            }
            op::LD_LEN => {
                let len = self.wire_len();
                self.set_a(&mut known, Content::Value(len));
            }
            op::LDX_LEN => {
                let len = self.wire_len();
                self.set_x(&mut known, Content::Value(len));
            }
            op::LD_IMM => self.set_a(&mut known, Content::Constant(k)),
            op::LDX_IMM => self.set_x(&mut known, Content::Constant(k)),
            op::LD_MEM => {
                let word = self.builder.use_var(self.word(k));
                self.set_a(&mut known, Content::Value(word));
            }
            op::LDX_MEM => {
                let word = self.builder.use_var(self.word(k));
                self.set_x(&mut known, Content::Value(word));
            }
            op::ST => {
                let a = self.a(&mut known);
                self.builder.def_var(self.word(k), a);
            }
            op::STX => {
                let x = self.x(&mut known);
                self.builder.def_var(self.word(k), x);
            }
            op::TAX => {
                self.a(&mut known);
                let a = known.a;
                self.set_x(&mut known, a);
            }
            op::TXA => {
                self.x(&mut known);
                let x = known.x;
                self.set_a(&mut known, x);
            }
            op::NEG => {
                let a = self.a(&mut known);
                let negative = self.builder.ins().ineg(a);
                self.set_a(&mut known, Content::Value(negative));
            }
            code => {
                let operand = if code & 0x08 == 0 {
                    Content::Constant(k)
                } else {
                    self.x(&mut known);
                    known.x
                };
                self.arithmetic(code, operand, &mut known)?;
            }
        }
        Some(known)
    }

    /// Bytes from `offset` on, as many as instruction `index` loads.
    fn load(&mut self, index: usize, offset: u32, known: &mut Known) -> Content {
        let bytes = load_bytes(self.program.instructions[index].code);
        let place = Place {
            base: Base::Start,
            offset,
            bytes,
        };
        if let Some(content) = self.facts.load(place) {
            return content;
        }
        self.check(index, u64::from(offset) + u64::from(bytes), known);
        let raw = self.read(place, self.packet.data, known);
        Content::Bytes(Bytes::whole(raw, bytes))
    }

    /// Ends the run where fewer than `end` bytes were captured: those that instruction `index` needs, and what any accepted
    /// packet needs after it.
    fn check(&mut self, index: usize, end: u64, known: &mut Known) {
        if known.captured.max(self.facts.captured) >= end {
            return;
        }
        let end = end.max(self.program.plan.need(index).captured);
        let needed = self.builder.ins().iconst(I64, end.cast_signed());
        let is_short =
            self.builder
                .ins()
                .icmp(IntCC::UnsignedLessThan, self.packet.captured, needed);
        self.reject_if(is_short);
        known.captured = end;
    }

    fn load_behind_x(
        &mut self,
        index: usize,
        instruction: &Instruction,
        known: &mut Known,
    ) -> Option<Content> {
        if let Content::Constant(x) = known.x {
            let Some(offset) = x.checked_add(instruction.k) else {
                self.exit(0);
                return None;
            };
            return Some(self.load(index, offset, known));
        }
        let x = self.x(known);
        let x = self.builder.ins().uextend(I64, x);
        self.check_behind_x(index, x, known);
        let place = Place {
            base: Base::X,
            offset: instruction.k,
            bytes: load_bytes(instruction.code),
        };
        let base = self.builder.ins().iadd(self.packet.data, x);
        let raw = self.read(place, base, known);
        Some(Content::Bytes(Bytes::whole(raw, place.bytes)))
    }

    /// As [`Self::check`], for what lies behind the offset `x` of 64 bits. The sum does not wrap there, and no packet is as
    /// long as one that would wrap in 32 bits.
    fn check_behind_x(&mut self, index: usize, x: Value, known: &mut Known) {
        let own_end = plan::end(&self.program.instructions[index]);
        if known.behind_x >= own_end {
            return;
        }
        let end = own_end.max(self.program.plan.need(index).behind_x);
        known.behind_x = end;
        if matches!(known.x, Content::HeaderLen(_)) && known.captured >= HEADER_BYTES_MAX + end {
            return;
        }
        let end = self.builder.ins().iconst(I64, end.cast_signed());
        let end = self.builder.ins().iadd(x, end);
        let is_short = self
            .builder
            .ins()
            .icmp(IntCC::UnsignedLessThan, self.packet.captured, end);
        self.reject_if(is_short);
    }

    /// Reads bytes that were checked, or takes them from an earlier load.
    fn read(&mut self, place: Place, base: Value, known: &mut Known) -> Value {
        if let Some(value) = known.load(place) {
            return value;
        }
        let (base, offset) = match displacement(place.offset) {
            Some(offset) => (base, offset),
            None => {
                let offset = self.builder.ins().iconst(I64, i64::from(place.offset));
                let base = self.builder.ins().iadd(base, offset);
                (base, Offset32::new(0))
            }
        };
        let value = load_raw(self.builder, base, offset, place.bytes);
        known.remember(place, value);
        value
    }

    /// Bytes as the number that they are, most significant first.
    pub(super) fn turned_around(&mut self, bytes: Bytes) -> Value {
        let number = match bytes.bytes {
            1 => bytes.raw,
            2 => {
                let half = self.builder.ins().ireduce(I16, bytes.raw);
                let half = self.builder.ins().bswap(half);
                self.builder.ins().uextend(I32, half)
            }
            _ => self.builder.ins().bswap(bytes.raw),
        };
        if bytes.is_whole() {
            return number;
        }
        let mask = self.number(bytes.mask);
        self.builder.ins().band(number, mask)
    }

    fn wire_len(&mut self) -> Value {
        let frame = self.packet.frame;
        self.builder
            .ins()
            .load(I32, load_flags(), frame, layout::WIRE_LEN)
    }

    /// Ancillary data; `None` if there is none of this kind.
    fn load_ancillary(&mut self, k: u32, known: &mut Known) -> Option<()> {
        let (bit, shift, mask) = match k {
            ANCILLARY_PACKET_TYPE => (
                PackedAux::HAS_TYPE,
                PackedAux::TYPE_SHIFT,
                PackedAux::TYPE_MASK,
            ),
            ANCILLARY_INTERFACE => (PackedAux::HAS_INTERFACE, 0, u32::MAX),
            _ => {
                self.exit(0);
                return None;
            }
        };
        let frame = self.packet.frame;
        let aux = self
            .builder
            .ins()
            .load(I64, load_flags(), frame, layout::AUX);
        let bit = self.builder.ins().iconst(I64, bit.cast_signed());
        let has = self.builder.ins().band(aux, bit);
        let zero = self.builder.ins().iconst(I64, 0);
        let is_unknown = self.builder.ins().icmp(IntCC::Equal, has, zero);
        self.reject_if(is_unknown);
        let shift = self.builder.ins().iconst(I64, i64::from(shift));
        let value = self.builder.ins().ushr(aux, shift);
        let value = self.builder.ins().ireduce(I32, value);
        let mask = self.number(mask);
        let value = self.builder.ins().band(value, mask);
        self.set_a(known, Content::Value(value));
        Some(())
    }

    /// `A` under an operation; `None` if that divides by a constant 0.
    fn arithmetic(&mut self, code: u16, operand: Content, known: &mut Known) -> Option<()> {
        let content = match (known.a, operand) {
            (Content::Constant(a), Content::Constant(operand)) => {
                let Some(result) = arithmetic(code, a, operand) else {
                    self.exit(0);
                    return None;
                };
                Content::Constant(result)
            }
            (Content::Bytes(bytes), Content::Constant(mask))
                if matches!(code, op::AND_K | op::AND_X) =>
            {
                Content::Bytes(bytes.masked(mask))
            }
            _ => Content::Value(self.compute(code, operand, known)),
        };
        self.set_a(known, content);
        Some(())
    }

    fn compute(&mut self, code: u16, operand: Content, known: &mut Known) -> Value {
        let a = self.a(known);
        let b = match operand {
            Content::Constant(number) => self.number(number),
            _ => self.x(known),
        };
        match code {
            op::DIV_K | op::DIV_X | op::MOD_K | op::MOD_X => self.divide(code, a, b, operand),
            op::LSH_K | op::LSH_X | op::RSH_K | op::RSH_X => self.shift(code, a, b),
            op::ADD_K | op::ADD_X => self.builder.ins().iadd(a, b),
            op::SUB_K | op::SUB_X => self.builder.ins().isub(a, b),
            op::MUL_K | op::MUL_X => self.builder.ins().imul(a, b),
            op::AND_K | op::AND_X => self.builder.ins().band(a, b),
            op::OR_K | op::OR_X => self.builder.ins().bor(a, b),
            // Checked instructions know nothing else.
            _ => self.builder.ins().bxor(a, b),
        }
    }

    fn divide(&mut self, code: u16, a: Value, b: Value, operand: Content) -> Value {
        let zero = self.number(0);
        if !matches!(operand, Content::Constant(1..)) {
            let is_zero = self.builder.ins().icmp(IntCC::Equal, b, zero);
            self.reject_if(is_zero);
        }
        match code {
            op::DIV_K | op::DIV_X => self.builder.ins().udiv(a, b),
            _ => self.builder.ins().urem(a, b),
        }
    }

    /// The processor takes a distance modulo 32, the program does not.
    fn shift(&mut self, code: u16, a: Value, b: Value) -> Value {
        let shifted = match code {
            op::LSH_K | op::LSH_X => self.builder.ins().ishl(a, b),
            _ => self.builder.ins().ushr(a, b),
        };
        let (width, zero) = (self.number(32), self.number(0));
        let is_inside = self.builder.ins().icmp(IntCC::UnsignedLessThan, b, width);
        self.builder.ins().select(is_inside, shifted, zero)
    }
}
