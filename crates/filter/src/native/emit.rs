//! Two functions around a program, compiled: one for a packet, one with the loop over many.

use std::sync::OnceLock;

use cranelift_codegen::{
    Context,
    control::ControlPlane,
    ir::{
        AbiParam, BlockArg, Function, InstBuilder, Signature, Type, UserFuncName, Value,
        condcodes::IntCC,
        types::{I32, I64},
    },
    isa::OwnedTargetIsa,
    settings::{self, Configurable},
};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use super::{
    NativeError,
    operate::load_flags,
    plan::Plan,
    table::Table,
    translate::{Exits, Packet, Program, Translator},
};
use crate::{frame::layout, instruction::Instruction};

/// Longest program that is compiled, in instructions.
pub(super) const INSTRUCTIONS_MAX: usize = 4096;

/// Where the second function may begin.
const ALIGNMENT: usize = 64;
/// `int3`, between the functions.
const BREAKPOINT: u8 = 0xcc;

/// Machine code that [`compile`] made, and nothing else: `code` relies on it.
pub(super) struct Compiled {
    code: Vec<u8>,
    many_offset: usize,
    tables: Vec<Box<[u32]>>,
}

impl Compiled {
    /// Both functions. No part of it depends on where it lies.
    pub(super) fn code(&self) -> &[u8] {
        &self.code
    }

    /// Where the function for one packet begins: frame to bytes to keep.
    pub(super) fn single_offset(&self) -> usize {
        0
    }

    /// Where the function for many packets begins: first frame and number of frames to a set of bits.
    pub(super) fn many_offset(&self) -> usize {
        self.many_offset
    }

    pub(super) fn code_bytes(&self) -> usize {
        self.code.len()
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.tables.iter().map(|table| size_of_val(&**table)).sum()
    }

    /// What the code reads beside packets; it must outlive the code, where it is.
    pub(super) fn into_tables(self) -> Vec<Box<[u32]>> {
        self.tables
    }
}

/// Compiles checked instructions.
///
/// # Errors
/// [`NativeError`], except [`NativeError::Memory`].
pub(super) fn compile(
    instructions: &[Instruction],
    ancillary: bool,
) -> Result<Compiled, NativeError> {
    if instructions.len() > INSTRUCTIONS_MAX {
        return Err(NativeError::TooLong {
            instructions: instructions.len(),
            limit: INSTRUCTIONS_MAX,
        });
    }
    let plan = Plan::new(instructions, ancillary);
    let program = Program {
        instructions,
        ancillary,
        plan: &plan,
    };
    let mut generator = Generator::new()?;
    let mut code = generator.function(&[I64], I32, |builder, tables| {
        single(builder, &program, tables);
    })?;
    code.resize(code.len().next_multiple_of(ALIGNMENT), BREAKPOINT);
    let many_offset = code.len();
    code.extend(generator.function(&[I64, I64], I64, |builder, tables| {
        many(builder, &program, tables);
    })?);
    let tables = generator.tables.into_iter().map(Table::into_slots);
    Ok(Compiled {
        code,
        many_offset,
        tables: tables.collect(),
    })
}

/// Makes functions.
pub(super) struct Generator {
    isa: OwnedTargetIsa,
    frontend: FunctionBuilderContext,
    /// Of all functions so far.
    tables: Vec<Table>,
}

impl Generator {
    /// For this processor.
    ///
    /// # Errors
    /// [`NativeError::Processor`], [`NativeError::Generator`]
    pub(super) fn new() -> Result<Self, NativeError> {
        Ok(Self {
            isa: isa()?,
            frontend: FunctionBuilderContext::new(),
            tables: Vec::new(),
        })
    }

    /// Machine code of a function whose body `body` writes.
    ///
    /// # Errors
    /// [`NativeError::Generator`]
    pub(super) fn function(
        &mut self,
        params: &[Type],
        result: Type,
        body: impl FnOnce(&mut FunctionBuilder<'_>, &mut Vec<Table>),
    ) -> Result<Vec<u8>, NativeError> {
        let mut signature = Signature::new(self.isa.default_call_conv());
        signature.params = params.iter().copied().map(AbiParam::new).collect();
        signature.returns = vec![AbiParam::new(result)];
        let function = Function::with_name_signature(UserFuncName::default(), signature);
        let mut context = Context::for_function(function);
        let mut builder = FunctionBuilder::new(&mut context.func, &mut self.frontend);
        body(&mut builder, &mut self.tables);
        builder.seal_all_blocks();
        builder.finalize(self.isa.frontend_config());
        let compiled = context
            .compile(&*self.isa, &mut ControlPlane::default())
            .map_err(|error| NativeError::Generator {
                message: format!("{:?}", error.inner),
            })?;
        if !compiled.buffer.relocs().is_empty() {
            // Nothing is called and no data named, so no addresses are left to put in.
            return Err(NativeError::Generator {
                message: "code that needs relocation".to_owned(),
            });
        }
        Ok(compiled.code_buffer().to_vec())
    }
}

/// The function for one packet.
fn single(builder: &mut FunctionBuilder<'_>, program: &Program<'_>, tables: &mut Vec<Table>) {
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    builder.seal_block(entry);
    let frame = builder.block_params(entry)[0];
    let packet = packet(builder, frame);
    Translator::new(*program, builder, packet, Exits::Return, tables).translate();
}

/// The function over many packets: the program stands in the loop.
fn many(builder: &mut FunctionBuilder<'_>, program: &Program<'_>, tables: &mut Vec<Table>) {
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    builder.seal_block(entry);
    let (frames, count) = (
        builder.block_params(entry)[0],
        builder.block_params(entry)[1],
    );
    let zero = builder.ins().iconst(I64, 0);
    let one = builder.ins().iconst(I64, 1);

    // The next packet: its frame, its number, and the packets kept so far.
    let next = builder.create_block();
    let frame = builder.append_block_param(next, I64);
    let number = builder.append_block_param(next, I64);
    let kept = builder.append_block_param(next, I64);
    // Ways out of the program. The loop ends in `advance`, which takes the packets kept with this one.
    let [accept, reject, decide, advance, end] = std::array::from_fn(|_| builder.create_block());
    let bit = builder.append_block_param(decide, I64);
    let kept_now = builder.append_block_param(advance, I64);
    let result = builder.append_block_param(end, I64);

    let start = [frames, zero, zero].map(BlockArg::Value);
    builder
        .ins()
        .brif(count, next, &start, end, &[BlockArg::Value(zero)]);

    builder.switch_to_block(next);
    let packet = packet(builder, frame);
    let exits = Exits::Verdict {
        accept,
        reject,
        decide,
    };
    Translator::new(*program, builder, packet, exits, tables).translate();

    builder.switch_to_block(accept);
    let bit_here = builder.ins().ishl(one, number);
    let with_it = builder.ins().bor(kept, bit_here);
    builder.ins().jump(advance, &[BlockArg::Value(with_it)]);

    builder.switch_to_block(decide);
    let bit_here = builder.ins().ishl(bit, number);
    let with_it = builder.ins().bor(kept, bit_here);
    builder.ins().jump(advance, &[BlockArg::Value(with_it)]);

    builder.switch_to_block(reject);
    builder.ins().jump(advance, &[BlockArg::Value(kept)]);

    builder.switch_to_block(advance);
    let frame_bytes = builder.ins().iconst(I64, i64::from(layout::BYTES));
    let frame = builder.ins().iadd(frame, frame_bytes);
    let number = builder.ins().iadd(number, one);
    let is_left = builder.ins().icmp(IntCC::UnsignedLessThan, number, count);
    let on = [frame, number, kept_now].map(BlockArg::Value);
    builder
        .ins()
        .brif(is_left, next, &on, end, &[BlockArg::Value(kept_now)]);

    builder.switch_to_block(end);
    builder.ins().return_(&[result]);
}

/// Reads where a packet is.
pub(super) fn packet(builder: &mut FunctionBuilder<'_>, frame: Value) -> Packet {
    let flags = load_flags();
    let data = builder.ins().load(I64, flags, frame, layout::DATA);
    let captured = builder.ins().uload32(flags, frame, layout::CAPTURED);
    Packet {
        frame,
        data,
        captured,
    }
}

/// The code generator for this processor, made once: to find out what the processor can do takes as long as a short program.
fn isa() -> Result<OwnedTargetIsa, NativeError> {
    static ISA: OnceLock<OwnedTargetIsa> = OnceLock::new();
    if let Some(isa) = ISA.get() {
        return Ok(isa.clone());
    }
    let isa = new_isa()?;
    Ok(ISA.get_or_init(|| isa).clone())
}

fn new_isa() -> Result<OwnedTargetIsa, NativeError> {
    let unknown = || NativeError::Processor {
        architecture: std::env::consts::ARCH,
    };
    // The tests run on this one; others would need their instruction caches told about new code as well.
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(unknown());
    }
    let failed = |message: String| NativeError::Generator { message };
    let mut flags = settings::builder();
    let values = [
        ("opt_level", "speed"),
        // A mistake of the translator is better found than run.
        ("enable_verifier", "true"),
        // A program without end of variables would grow its stack frame past the guard page otherwise, or call for help.
        ("probestack_strategy", "inline"),
        ("unwind_info", "false"),
    ];
    for (name, value) in values {
        flags
            .set(name, value)
            .map_err(|error| failed(error.to_string()))?;
    }
    let isa = cranelift_native::builder().map_err(|_| unknown())?;
    isa.finish(settings::Flags::new(flags))
        .map_err(|error| failed(error.to_string()))
}
