//! Translates instructions to Cranelift's intermediate code: blocks and the jumps between blocks.
//!
//! Instructions are translated in order. libpcap's jumps lead forward, except for `protochain`. So
//! all facts that meet at an instruction, except at the head of a loop, are known when the
//! translator reaches the instruction.

use cranelift_codegen::ir::{
    Block, BlockArg, InstBuilder, Value,
    condcodes::IntCC,
    types::{I32, I64},
};
use cranelift_frontend::{FuncInstBuilder, FunctionBuilder, Variable};

use retroscope_bpf::{Instruction, MEMORY_WORDS, op};

use super::{
    constants::ConstantSet,
    known::{ClassFacts, KnownState, RegisterContent},
    need::Outline,
};
use crate::interpreter::BACKWARD_JUMPS_MAX;

/// A checked program and the facts found about the program.
#[derive(Debug)]
pub(super) struct TranslatedProgram<'p> {
    pub(super) instructions: &'p [Instruction],
    /// Whether absolute loads at high offsets read ancillary data.
    pub(super) ancillary: bool,
    pub(super) outline: Outline,
}

impl<'p> TranslatedProgram<'p> {
    pub(super) fn new(instructions: &'p [Instruction], ancillary: bool) -> Self {
        Self {
            instructions,
            ancillary,
            outline: Outline::new(instructions, ancillary),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PacketValues {
    /// Address of the packet's [`crate::FilterFrame`].
    pub(super) frame: Value,
    pub(super) data: Value,
    /// Number of captured bytes, as a 64-bit value.
    pub(super) captured: Value,
}

/// Blocks at which a run ends. The number of kept bytes matters only as zero or not zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exits {
    pub(super) accept: Block,
    pub(super) reject: Block,
    /// Block whose parameter decides: 1 or 0, in 64 bits.
    pub(super) decide: Block,
}

/// Variables that a run changes. All programs of a function share these variables, because the
/// compiler needs memory for each variable in every block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BpfRegisters {
    a: Variable,
    x: Variable,
    /// Scratch words.
    memory: [Variable; MEMORY_WORDS],
    /// Number of backward jumps in this run.
    jumped_back: Variable,
}

impl BpfRegisters {
    pub(super) fn new(builder: &mut FunctionBuilder<'_>) -> Self {
        Self {
            a: builder.declare_var(I32),
            x: builder.declare_var(I32),
            memory: std::array::from_fn(|_| builder.declare_var(I32)),
            jumped_back: builder.declare_var(I32),
        }
    }
}

/// Translates one program of a function.
pub(super) struct Translator<'t, 'f> {
    pub(super) program: &'t TranslatedProgram<'t>,
    pub(super) builder: &'t mut FunctionBuilder<'f>,
    pub(super) packet: PacketValues,
    pub(super) facts: &'t ClassFacts,
    pub(super) tables: &'t mut Vec<ConstantSet>,
    exits: Exits,
    registers: BpfRegisters,
    /// Blocks by the index of their first instruction.
    blocks: Vec<Option<Block>>,
    /// For each block that is not translated yet: the common facts of all known paths to the block.
    arrivals: Vec<Option<KnownState>>,
}

impl<'t, 'f> Translator<'t, 'f> {
    pub(super) fn new(
        program: &'t TranslatedProgram<'t>,
        builder: &'t mut FunctionBuilder<'f>,
        registers: BpfRegisters,
        (packet, facts): (PacketValues, &'t ClassFacts),
        exits: Exits,
        tables: &'t mut Vec<ConstantSet>,
    ) -> Self {
        let len = program.instructions.len();
        Self {
            registers,
            program,
            builder,
            packet,
            facts,
            tables,
            exits,
            blocks: vec![None; len],
            arrivals: vec![None; len],
        }
    }

    /// Translates the program from the builder's position on. All paths end at an exit.
    pub(super) fn translate(mut self) {
        let zero = self.number(0);
        for variable in self.registers.memory.into_iter().chain([
            self.registers.a,
            self.registers.x,
            self.registers.jumped_back,
        ]) {
            self.builder.def_var(variable, zero);
        }
        let mut here = Some(KnownState::registers(RegisterContent::Constant(0)));
        for index in 0..self.program.instructions.len() {
            if self.program.outline.roles[index].starts_block {
                if let Some(known) = here.take() {
                    self.jump_to(index, &known);
                }
                here = self.enter(index);
            }
            here = here.and_then(|known| self.instruction(index, known));
        }
    }

    /// Begins the block at an instruction. `None` if no path leads to the instruction.
    fn enter(&mut self, index: usize) -> Option<KnownState> {
        if self.program.outline.roles[index].is_loop_head {
            // The block is needed even if only backward jumps lead here.
            let block = self.block(index);
            self.builder.switch_to_block(block);
            return Some(KnownState::registers(RegisterContent::Variable));
        }
        let known = self.arrivals[index].take()?;
        let block = self.block(index);
        self.builder.switch_to_block(block);
        self.builder.seal_block(block);
        Some(known)
    }

    /// Translates an instruction. Returns the facts after it, if the next instruction follows.
    fn instruction(&mut self, index: usize, known: KnownState) -> Option<KnownState> {
        let instruction = self.program.instructions[index];
        if self.program.outline.needs[index].is_never() {
            self.exit(0);
            return None;
        }
        match instruction.code {
            op::RET_K => self.exit(instruction.k),
            op::RET_A => self.exit_with_a(known),
            op::JA => self.jump(index, &known),
            _ if instruction.is_conditional() => self.branch(index, known),
            _ => return self.operate(index, known),
        }
        None
    }

    fn jump(&mut self, index: usize, known: &KnownState) {
        let Some((target, _)) = self.program.instructions[index].targets(index) else {
            return self.exit(0); // cannot be: the instruction is a jump
        };
        if target > index {
            return self.jump_to(target, known);
        }
        let count = self.builder.use_var(self.registers.jumped_back);
        let count = self.ins().iadd_imm_u(count, 1);
        self.builder.def_var(self.registers.jumped_back, count);
        let (is_above, limit) = (IntCC::UnsignedGreaterThan, i64::from(BACKWARD_JUMPS_MAX));
        let is_over = self.ins().icmp_imm_u(is_above, count, limit);
        self.reject_if(is_over);
        let head = self.block(target);
        self.builder.ins().jump(head, &[]);
    }

    /// Ends the block with a forward jump.
    pub(super) fn jump_to(&mut self, target: usize, known: &KnownState) {
        let block = self.block_for(target, known);
        self.builder.ins().jump(block, &[]);
    }

    /// The block at a forward target.
    pub(super) fn block_for(&mut self, target: usize, known: &KnownState) -> Block {
        let target = self.through_jumps(target);
        if let Some(bytes) = self.known_result(target) {
            return self.exit_block(bytes);
        }
        match &mut self.arrivals[target] {
            Some(arrival) => arrival.merge(known),
            arrival => *arrival = Some(known.clone()),
        }
        self.block(target)
    }

    /// Follows forward jumps from a target that is only a jump. Stops at the head of a loop.
    pub(super) fn through_jumps(&self, mut target: usize) -> usize {
        while let instruction = &self.program.instructions[target]
            && instruction.code == op::JA
            && !self.program.outline.roles[target].is_loop_head
            && let Some((next, _)) = instruction.targets(target)
            && next > target
        {
            target = next;
        }
        target
    }

    /// The return value of a run from `target` on, if known to be the same for every packet.
    pub(super) fn known_result(&self, target: usize) -> Option<u32> {
        let instruction = &self.program.instructions[target];
        match instruction.code {
            op::RET_K => Some(instruction.k),
            _ if self.program.outline.needs[target].is_never() => Some(0),
            _ => None,
        }
    }

    fn block(&mut self, index: usize) -> Block {
        *self.blocks[index].get_or_insert_with(|| self.builder.create_block())
    }

    pub(super) fn reject_if(&mut self, condition: Value) {
        let reject = self.exit_block(0);
        self.jump_if(condition, reject);
    }

    pub(super) fn jump_if(&mut self, condition: Value, to: Block) {
        let on = self.builder.create_block();
        self.ins().brif(condition, to, &[], on, &[]);
        self.builder.switch_to_block(on);
        self.builder.seal_block(on);
    }

    pub(super) fn exit(&mut self, bytes: u32) {
        let block = self.exit_block(bytes);
        self.builder.ins().jump(block, &[]);
    }

    fn exit_with_a(&mut self, mut known: KnownState) {
        let a = self.a(&mut known);
        let Exits { accept, reject, .. } = self.exits;
        self.builder.ins().brif(a, accept, &[], reject, &[]);
    }

    /// Ends the run with one of two numbers of bytes, depending on the condition (1 or 0, in 8
    /// bits). Uses no conditional jump, which the processor would have to predict.
    pub(super) fn exit_either(&mut self, condition: Value, if_true: u32, if_false: u32) {
        if (if_true == 0) == (if_false == 0) {
            return self.exit(if_true);
        }
        let condition = if if_true == 0 {
            self.ins().icmp_imm_u(IntCC::Equal, condition, 0)
        } else {
            condition
        };
        let bit = self.builder.ins().uextend(I64, condition);
        let decide = self.exits.decide;
        self.builder.ins().jump(decide, &[BlockArg::Value(bit)]);
    }

    pub(super) fn exit_block(&self, bytes: u32) -> Block {
        match bytes {
            0 => self.exits.reject,
            _ => self.exits.accept,
        }
    }

    pub(super) fn ins(&mut self) -> FuncInstBuilder<'_, 'f> {
        self.builder.ins()
    }

    /// A 32-bit constant.
    pub(super) fn number(&mut self, number: u32) -> Value {
        self.builder.ins().iconst(I32, i64::from(number))
    }

    pub(super) fn a(&mut self, known: &mut KnownState) -> Value {
        let value = self.value(known.a, self.registers.a);
        if known.a == RegisterContent::Variable {
            known.a = RegisterContent::Value(value);
        }
        value
    }

    pub(super) fn x(&mut self, known: &mut KnownState) -> Value {
        let value = self.value(known.x, self.registers.x);
        if known.x == RegisterContent::Variable {
            known.x = RegisterContent::Value(value);
        }
        value
    }

    pub(super) fn set_a(&mut self, known: &mut KnownState, content: RegisterContent) {
        known.a = content;
        let value = self.value(content, self.registers.a);
        self.builder.def_var(self.registers.a, value);
    }

    pub(super) fn set_x(&mut self, known: &mut KnownState, content: RegisterContent) {
        known.set_x(content);
        let value = self.value(content, self.registers.x);
        self.builder.def_var(self.registers.x, value);
    }

    pub(super) fn word(&self, k: u32) -> Variable {
        self.registers.memory[k as usize % MEMORY_WORDS]
    }

    /// Content of a register as a 32-bit value. Cranelift emits code for the value only if it is
    /// used.
    pub(super) fn value(&mut self, content: RegisterContent, variable: Variable) -> Value {
        match content {
            RegisterContent::Variable => self.builder.use_var(variable),
            RegisterContent::Value(value) => value,
            RegisterContent::Constant(number) => self.number(number),
            RegisterContent::Bytes(bytes) => self.byte_swapped(bytes),
            RegisterContent::HeaderLen(byte) => {
                let words = self.ins().band_imm_u(byte, 0x0f);
                self.ins().ishl_imm_u(words, 2)
            }
        }
    }
}
