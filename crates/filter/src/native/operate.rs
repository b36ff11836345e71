//! Translates instructions that compute: loads, arithmetic, moves.

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
    known::{KnownState, LoadBase, PacketLoad, RawBytes, RegisterContent},
    need,
    translate::Translator,
};
use crate::{
    frame::{PackedAux, layout},
    interpreter::arithmetic,
};

/// Longest IPv4 header in bytes: the maximum of [`RegisterContent::HeaderLen`].
const HEADER_BYTES_MAX: u64 = 60;

/// Flags of every load and store. The access cannot fault, and stays after the check of the
/// captured bytes.
pub(super) fn load_flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// Loads 1, 2 or 4 bytes; the first byte becomes the lowest.
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

impl Translator<'_, '_> {
    /// Translates an instruction that is neither return nor jump. `None` if the run always ends
    /// here.
    pub(super) fn operate(&mut self, index: usize, mut known: KnownState) -> Option<KnownState> {
        let instruction = self.program.instructions[index];
        let k = instruction.k;
        let content = match instruction.code {
            op::ST | op::STX => {
                let value = match instruction.code {
                    op::ST => self.a(&mut known),
                    _ => self.x(&mut known),
                };
                self.builder.def_var(self.word(k), value);
                return Some(known);
            }
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS
                if self.program.ancillary && k >= ANCILLARY =>
            {
                self.load_ancillary(k)?
            }
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => self.load(index, k, &mut known),
            op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => {
                self.load_after_x(index, &instruction, &mut known)?
            }
            op::LDX_B_MSH => match self.load(index, k, &mut known) {
                RegisterContent::Constant(byte) => RegisterContent::Constant((byte & 0x0f) << 2),
                RegisterContent::Bytes(byte) => RegisterContent::HeaderLen(byte.raw),
                other => other, // cannot be: a load is one of these
            },
            op::LD_LEN | op::LDX_LEN => RegisterContent::Value(self.wire_len()),
            op::LD_IMM | op::LDX_IMM => RegisterContent::Constant(k),
            op::LD_MEM | op::LDX_MEM => RegisterContent::Value(self.builder.use_var(self.word(k))),
            op::TAX => {
                self.a(&mut known);
                known.a
            }
            op::TXA => {
                self.x(&mut known);
                known.x
            }
            op::NEG => {
                let a = self.a(&mut known);
                RegisterContent::Value(self.ins().ineg(a))
            }
            code => {
                let operand = self.operand(&instruction, &mut known);
                self.arithmetic(code, operand, &mut known)?
            }
        };
        match instruction.code {
            op::LDX_B_MSH | op::LDX_LEN | op::LDX_IMM | op::LDX_MEM | op::TAX => {
                self.set_x(&mut known, content);
            }
            _ => self.set_a(&mut known, content),
        }
        Some(known)
    }

    /// The operand of arithmetic and comparisons: the constant, or `X`.
    pub(super) fn operand(
        &mut self,
        instruction: &Instruction,
        known: &mut KnownState,
    ) -> RegisterContent {
        if instruction.code & op::SOURCE_X == 0 {
            return RegisterContent::Constant(instruction.k);
        }
        self.x(known);
        known.x
    }

    /// Loads as many bytes at `offset` as instruction `index` loads.
    fn load(&mut self, index: usize, offset: u32, known: &mut KnownState) -> RegisterContent {
        let bytes = load_bytes(self.program.instructions[index].code);
        let load = PacketLoad::at(offset, bytes);
        if let Some(content) = self.facts.load(load) {
            return content;
        }
        self.check(index, u64::from(offset) + u64::from(bytes), known);
        self.read(load, self.packet.data, known)
    }

    /// Rejects the packet if it has fewer captured bytes than `end`, which instruction `index`
    /// needs. A new check includes what any accepted packet needs from there on.
    fn check(&mut self, index: usize, end: u64, known: &mut KnownState) {
        if known.captured.max(self.facts.captured) >= end {
            return;
        }
        let end = end.max(self.program.outline.needs[index].captured);
        let needed = self.ins().iconst(I64, end.cast_signed());
        self.reject_if_shorter(needed);
        known.captured = end;
    }

    fn reject_if_shorter(&mut self, end: Value) {
        let captured = self.packet.captured;
        let is_short = self.ins().icmp(IntCC::UnsignedLessThan, captured, end);
        self.reject_if(is_short);
    }

    fn load_after_x(
        &mut self,
        index: usize,
        instruction: &Instruction,
        known: &mut KnownState,
    ) -> Option<RegisterContent> {
        if let RegisterContent::Constant(x) = known.x {
            let Some(offset) = x.checked_add(instruction.k) else {
                self.exit(0);
                return None;
            };
            return Some(self.load(index, offset, known));
        }
        let x = self.x(known);
        let x = self.ins().uextend(I64, x);
        self.check_after_x(index, x, known);
        let load = PacketLoad {
            base: LoadBase::X,
            offset: instruction.k,
            bytes: load_bytes(instruction.code),
        };
        let base = self.builder.ins().iadd(self.packet.data, x);
        Some(self.read(load, base, known))
    }

    /// Like [`Self::check`], for bytes after the 64-bit offset `x`. A sum that would wrap in 32
    /// bits exceeds the length of any packet.
    fn check_after_x(&mut self, index: usize, x: Value, known: &mut KnownState) {
        let own_end = need::end(&self.program.instructions[index]);
        if known.after_x >= own_end {
            return;
        }
        let end = own_end.max(self.program.outline.needs[index].after_x);
        known.after_x = end;
        if matches!(known.x, RegisterContent::HeaderLen(_))
            && known.captured >= HEADER_BYTES_MAX + end
        {
            return;
        }
        let end = self.ins().iadd_imm_u(x, end.cast_signed());
        self.reject_if_shorter(end);
    }

    /// Loads bytes whose presence was checked, or reuses an earlier load.
    fn read(&mut self, load: PacketLoad, base: Value, known: &mut KnownState) -> RegisterContent {
        let whole = |raw| RegisterContent::Bytes(RawBytes::whole(raw, load.bytes));
        if let Some(raw) = known.load(load) {
            return whole(raw);
        }
        let (base, offset) = match i32::try_from(load.offset) {
            Ok(offset) => (base, offset.into()),
            Err(_) => {
                let base = self.ins().iadd_imm_u(base, i64::from(load.offset));
                (base, Offset32::new(0))
            }
        };
        let raw = load_raw(self.builder, base, offset, load.bytes);
        known.remember(load, raw);
        whole(raw)
    }

    /// Bytes as a number, first byte highest.
    pub(super) fn byte_swapped(&mut self, bytes: RawBytes) -> Value {
        let number = match bytes.bytes {
            1 => bytes.raw,
            2 => {
                let half = self.ins().ireduce(I16, bytes.raw);
                let half = self.ins().bswap(half);
                self.ins().uextend(I32, half)
            }
            _ => self.ins().bswap(bytes.raw),
        };
        if bytes.mask == bytes.largest() {
            return number;
        }
        self.ins().band_imm_u(number, i64::from(bytes.mask))
    }

    fn wire_len(&mut self) -> Value {
        let (flags, frame) = (load_flags(), self.packet.frame);
        self.ins().load(I32, flags, frame, layout::WIRE_LEN)
    }

    /// Loads ancillary data. `None` if there is none at the offset `k`; the run then ends here.
    fn load_ancillary(&mut self, k: u32) -> Option<RegisterContent> {
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
        let (flags, frame) = (load_flags(), self.packet.frame);
        let aux = self.ins().load(I64, flags, frame, layout::AUX);
        let has = self.ins().band_imm_u(aux, bit.cast_signed());
        let is_unknown = self.ins().icmp_imm_u(IntCC::Equal, has, 0);
        self.reject_if(is_unknown);
        let value = self.ins().ushr_imm_u(aux, i64::from(shift));
        let value = self.ins().ireduce(I32, value);
        let value = self.ins().band_imm_u(value, i64::from(mask));
        Some(RegisterContent::Value(value))
    }

    /// Applies an operation to `A`. `None` for a division of constants by 0; the run then ends
    /// here.
    fn arithmetic(
        &mut self,
        code: u16,
        operand: RegisterContent,
        known: &mut KnownState,
    ) -> Option<RegisterContent> {
        Some(match (known.a, operand) {
            (RegisterContent::Constant(a), RegisterContent::Constant(operand)) => {
                let Some(result) = arithmetic(code, a, operand) else {
                    self.exit(0);
                    return None;
                };
                RegisterContent::Constant(result)
            }
            (RegisterContent::Bytes(bytes), RegisterContent::Constant(mask))
                if matches!(code, op::AND_K | op::AND_X) =>
            {
                RegisterContent::Bytes(bytes.masked(mask))
            }
            _ => RegisterContent::Value(self.compute(code, operand, known)),
        })
    }

    fn compute(&mut self, code: u16, operand: RegisterContent, known: &mut KnownState) -> Value {
        let a = self.a(known);
        let b = match operand {
            RegisterContent::Constant(number) => self.number(number),
            _ => self.x(known),
        };
        match code & !op::SOURCE_X {
            op::DIV_K | op::MOD_K => self.divide(code, a, b, operand),
            op::LSH_K | op::RSH_K => self.shift(code, a, b),
            op::ADD_K => self.ins().iadd(a, b),
            op::SUB_K => self.ins().isub(a, b),
            op::MUL_K => self.ins().imul(a, b),
            op::AND_K => self.ins().band(a, b),
            op::OR_K => self.ins().bor(a, b),
            // Checked instructions contain no other operation.
            _ => self.ins().bxor(a, b),
        }
    }

    fn divide(&mut self, code: u16, a: Value, b: Value, operand: RegisterContent) -> Value {
        if !matches!(operand, RegisterContent::Constant(1..)) {
            let is_zero = self.ins().icmp_imm_u(IntCC::Equal, b, 0);
            self.reject_if(is_zero);
        }
        match code {
            op::DIV_K | op::DIV_X => self.ins().udiv(a, b),
            _ => self.ins().urem(a, b),
        }
    }

    /// The processor takes the distance of a shift modulo 32. In a program a distance of 32 or more
    /// gives 0.
    fn shift(&mut self, code: u16, a: Value, b: Value) -> Value {
        let shifted = match code {
            op::LSH_K | op::LSH_X => self.ins().ishl(a, b),
            _ => self.ins().ushr(a, b),
        };
        let zero = self.number(0);
        let is_inside = self.ins().icmp_imm_u(IntCC::UnsignedLessThan, b, 32);
        self.ins().select(is_inside, shifted, zero)
    }
}
