//! Many programs as one function. For each packet the function writes a word with a bit for each
//! program that keeps the packet.
//!
//! The programs of a set repeat the same tests: is it IPv4, is it TCP, how long is the header? For
//! three or more programs and a link type of [`LinkLayout`], the function makes these tests once.
//! It then jumps to a copy of all programs for the packet's *class*: TCP, UDP or anything else,
//! over IPv4 (without options and later fragments) or over IPv6.
//!
//! In the copy for a class the header values of the class are constants, so comparisons with these
//! values fold away. Packets without a class go to a copy without such constants.

use std::time::Instant;

use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, Value, condcodes::IntCC, types::I64};
use cranelift_frontend::FunctionBuilder;
use retroscope_packet::LinkType;

use crate::link::LinkLayout;

use super::{
    NativeError,
    code::MachineCode,
    constants::ConstantSet,
    emit::{FusedFunction, each_packet, function, params, with_program},
    known::{ClassFacts, PacketLoad, RawBytes, RegisterContent},
    operate::{load_flags, load_raw},
    translate::{BpfRegisters, PacketValues, TranslatedProgram},
};

/// Maximum length of one program in instructions. Longer programs are mostly lists, which run
/// faster alone.
pub(crate) const EACH_MAX: usize = 256;
/// Maximum number of instructions of all programs together. Each is compiled up to seven times.
pub(super) const ALL_MAX: usize = 2048;

/// Minimum number of programs for separate copies. With fewer, finding the class costs as much as
/// it saves.
const CLASSES_MIN: usize = 3;

/// Protocols with separate classes, and the minimum length of their headers.
const PROTOCOLS: [(u32, u32); 2] = [(6, 20), (17, 8)];

struct HeaderFamily {
    ether_type: u32,
    /// First byte of most headers. For IPv4 the comparison also excludes options. IPv6's is
    /// compared only if no EtherType shows the family.
    first: u32,
    /// Offset of the next protocol's number in the header.
    protocol_at: u32,
    header_bytes: u32,
    /// Offset of the fragment offset in the header.
    fragment_at: Option<u32>,
}

const FAMILIES: [HeaderFamily; 2] = [
    HeaderFamily {
        ether_type: 0x0800,
        first: 0x45,
        protocol_at: 9,
        header_bytes: 20,
        fragment_at: Some(6),
    },
    HeaderFamily {
        ether_type: 0x86dd,
        first: 0x60,
        protocol_at: 6,
        header_bytes: 40,
        fragment_at: None,
    },
];

pub(crate) fn has_room<'p>(programs: impl Iterator<Item = &'p crate::Program>) -> bool {
    let lens: Vec<usize> = programs
        .map(|program| program.instructions().len())
        .collect();
    lens.len() <= crate::Program::MANY
        && lens.iter().sum::<usize>() <= ALL_MAX
        && lens.iter().all(|len| *len <= EACH_MAX)
}

/// Compiles programs for packets of a link type.
///
/// # Errors
/// [`NativeError`], also if the programs are too long.
pub(crate) fn compile_fused(
    link_type: LinkType,
    programs: &[crate::Program],
) -> Result<MachineCode<FusedFunction>, NativeError> {
    let start = Instant::now();
    if !has_room(programs.iter()) {
        let programs = programs.len();
        return Err(NativeError::NotFused { programs });
    }
    let programs = programs.iter();
    let programs =
        programs.map(|program| TranslatedProgram::new(program.instructions(), program.is_live()));
    let programs: Vec<TranslatedProgram<'_>> = programs.collect();
    // `FusedFunction` takes three words.
    let compiled = function(3, |builder, tables| {
        many(builder, link_type, &programs, tables)
    })?;
    MachineCode::new(compiled, start)
}

fn many(
    builder: &mut FunctionBuilder<'_>,
    link_type: LinkType,
    programs: &[TranslatedProgram<'_>],
    tables: &mut Vec<ConstantSet>,
) {
    let [frames, count, results] = params(builder);
    let registers = BpfRegisters::new(builder);
    let zero = builder.ins().iconst(I64, 0);
    let state = [results, zero];
    let [_, any] = each_packet(builder, (frames, count), state, |builder, packet, state| {
        let [place, any] = state;
        let done = builder.create_block();
        let result = builder.append_block_param(done, I64);
        let mut classes = ClassCopies {
            builder,
            registers,
            packet,
            programs,
            tables,
            done,
        };
        classes.all(link_type);
        builder.switch_to_block(done);
        builder.ins().store(load_flags(), result, place, 0);
        let any = builder.ins().bor(any, result);
        [builder.ins().iadd_imm_u(place, 8), any]
    });
    builder.ins().return_(&[any]);
}

/// Writes the copies of all programs.
struct ClassCopies<'c, 'f> {
    builder: &'c mut FunctionBuilder<'f>,
    registers: BpfRegisters,
    packet: PacketValues,
    programs: &'c [TranslatedProgram<'c>],
    tables: &'c mut Vec<ConstantSet>,
    /// Block after the programs, with the result as parameter.
    done: Block,
}

impl ClassCopies<'_, '_> {
    /// Writes the tests for the packet's class, if there are classes, and the copies.
    fn all(&mut self, link_type: LinkType) {
        let layout = LinkLayout::of(link_type).filter(|_| self.programs.len() >= CLASSES_MIN);
        let (type_at, network) = match layout {
            Some(LinkLayout::EtherType { at, bytes }) => (Some(at.into()), bytes.into()),
            Some(_) => (None, 0),
            None => return self.copy(&ClassFacts::default()),
        };
        let no_class = self.builder.create_block();
        for family in &FAMILIES {
            let other_family = self.builder.create_block();
            let mut facts = ClassFacts::default();
            self.need(&mut facts, network + family.header_bytes, other_family);
            if let Some(at) = type_at {
                self.need_number(&mut facts, (at, 2), family.ether_type, other_family);
            }
            if type_at.is_none() || family.fragment_at.is_some() {
                self.need_number(&mut facts, (network, 1), family.first, other_family);
            }
            if let Some(at) = family.fragment_at {
                self.need_no_later_fragment(&mut facts, network + at, no_class);
            }
            self.protocols(&facts, network, family);
            self.builder.switch_to_block(other_family);
        }
        self.builder.ins().jump(no_class, &[]);
        self.builder.switch_to_block(no_class);
        self.copy(&ClassFacts::default());
    }

    fn protocols(&mut self, facts: &ClassFacts, network: u32, family: &HeaderFamily) {
        for (number, header_bytes) in PROTOCOLS {
            let other = self.builder.create_block();
            let mut facts = facts.clone();
            let place = (network + family.protocol_at, 1);
            self.need_number(&mut facts, place, number, other);
            let end = network + family.header_bytes + header_bytes;
            self.need(&mut facts, end, other);
            self.copy(&facts);
            self.builder.switch_to_block(other);
        }
        self.copy(facts);
    }

    /// Writes a test: packets with fewer than `bytes` captured bytes go to `otherwise`.
    fn need(&mut self, facts: &mut ClassFacts, bytes: u32, otherwise: Block) {
        facts.captured = u64::from(bytes);
        let is_enough = IntCC::UnsignedGreaterThanOrEqual;
        self.go_on_if(is_enough, self.packet.captured, bytes, otherwise);
    }

    /// Writes a test: packets without `number` at a place (offset and bytes) go to `otherwise`. The
    /// place is inside the captured bytes.
    fn need_number(
        &mut self,
        facts: &mut ClassFacts,
        (offset, bytes): (u32, u32),
        number: u32,
        otherwise: Block,
    ) {
        let there = self.read(offset, bytes);
        self.go_on_if(IntCC::Equal, there.raw, there.swapped(number), otherwise);
        facts.loads.push((
            PacketLoad::at(offset, bytes),
            RegisterContent::Constant(number),
        ));
    }

    /// Writes a test: later fragments go to `otherwise`. `offset` is the place of IPv4's flags and
    /// fragment offset.
    fn need_no_later_fragment(&mut self, facts: &mut ClassFacts, offset: u32, otherwise: Block) {
        const FRAGMENT_OFFSET: u32 = 0x1fff;
        let there = self.read(offset, 2);
        let mask = i64::from(there.swapped(FRAGMENT_OFFSET));
        let its = self.builder.ins().band_imm_u(there.raw, mask);
        self.go_on_if(IntCC::Equal, its, 0, otherwise);
        let rest = RegisterContent::Bytes(there.masked(!FRAGMENT_OFFSET));
        facts.loads.push((PacketLoad::at(offset, 2), rest));
    }

    /// Writes a test: unless `condition` holds between `value` and `number`, packets go to
    /// `otherwise`.
    fn go_on_if(&mut self, condition: IntCC, value: Value, number: u32, otherwise: Block) {
        let ins = self.builder.ins();
        let holds = ins.icmp_imm_u(condition, value, i64::from(number));
        let on = self.builder.create_block();
        self.builder.ins().brif(holds, on, &[], otherwise, &[]);
        self.builder.switch_to_block(on);
    }

    fn read(&mut self, offset: u32, bytes: u32) -> RawBytes {
        let offset = offset.cast_signed().into();
        let raw = load_raw(self.builder, self.packet.data, offset, bytes);
        RawBytes::whole(raw, bytes)
    }

    /// Writes all programs for packets with known facts.
    fn copy(&mut self, facts: &ClassFacts) {
        let mut result = self.builder.ins().iconst(I64, 0);
        for (bit, program) in (0..).zip(self.programs) {
            let bit = self.builder.ins().iconst(I64, bit);
            let on = (self.packet, facts);
            let builder = (&mut *self.builder, self.registers);
            result = with_program(builder, program, on, (result, bit), self.tables);
        }
        self.builder
            .ins()
            .jump(self.done, &[BlockArg::Value(result)]);
    }
}
