//! Wraps a program into a function with a loop over packets, and generates its machine code.

use std::{marker::PhantomData, sync::OnceLock};

use cranelift_codegen::{
    Context,
    control::ControlPlane,
    ir::{
        AbiParam, BlockArg, Function, InstBuilder, Signature, UserFuncName, Value,
        condcodes::IntCC, types::I64,
    },
    isa::OwnedTargetIsa,
    settings::{self, Configurable},
};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use super::{
    NativeError,
    constants::ConstantSet,
    known::ClassFacts,
    operate::load_flags,
    translate::{BpfRegisters, Exits, PacketValues, TranslatedProgram, Translator},
};
use crate::{Instruction, frame::layout};

/// Maximum length, in instructions, of a program that is compiled alone.
pub(super) const INSTRUCTIONS_MAX: usize = 4096;

/// The function of one program. Parameters: the first frame and the number of frames. Returns the
/// set of frames that the program keeps.
pub(crate) type ProgramFunction = unsafe extern "C" fn(*const u8, u64) -> u64;
/// The function of fused programs. Parameters: the first frame, the number of frames, and the first
/// of as many result words. Returns the bits that are set in any result.
pub(crate) type FusedFunction = unsafe extern "C" fn(*const u8, u64, *mut u64) -> u64;

pub(super) struct GeneratedCode<F> {
    /// Position-independent code. The function begins at the first byte.
    pub(super) code: Vec<u8>,
    /// Tables that the function reads. They must outlive the function and must not move.
    pub(super) tables: Vec<Box<[u32]>>,
    function: PhantomData<F>,
}

/// Compiles checked instructions.
///
/// # Errors
/// [`NativeError::TooLong`], [`NativeError::Processor`], [`NativeError::Generator`]
pub(super) fn compile(
    instructions: &[Instruction],
    ancillary: bool,
) -> Result<GeneratedCode<ProgramFunction>, NativeError> {
    if instructions.len() > INSTRUCTIONS_MAX {
        return Err(NativeError::TooLong {
            instructions: instructions.len(),
            limit: INSTRUCTIONS_MAX,
        });
    }
    let program = TranslatedProgram::new(instructions, ancillary);
    // `ProgramFunction` takes two words.
    function(2, |builder, tables| many(builder, &program, tables))
}

/// Generates a function of type `F`, with `params` words as parameters and a word as result. `body`
/// writes the content.
///
/// # Errors
/// [`NativeError::Processor`], [`NativeError::Generator`]
pub(super) fn function<F>(
    params: usize,
    body: impl FnOnce(&mut FunctionBuilder<'_>, &mut Vec<ConstantSet>),
) -> Result<GeneratedCode<F>, NativeError> {
    let isa = isa()?;
    let mut frontend = FunctionBuilderContext::new();
    let mut tables = Vec::new();
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params = vec![AbiParam::new(I64); params];
    signature.returns = vec![AbiParam::new(I64)];
    let function = Function::with_name_signature(UserFuncName::default(), signature);
    let mut context = Context::for_function(function);
    let mut builder = FunctionBuilder::new(&mut context.func, &mut frontend);
    body(&mut builder, &mut tables);
    builder.seal_all_blocks();
    builder.finalize(isa.frontend_config());
    let compiled = context
        .compile(&*isa, &mut ControlPlane::default())
        .map_err(|error| NativeError::Generator {
            message: format!("{:?}", error.inner),
        })?;
    if !compiled.buffer.relocs().is_empty() {
        // The code calls nothing and names no data, so there are no addresses to fill in.
        return Err(NativeError::Generator {
            message: "code that needs relocation".to_owned(),
        });
    }
    Ok(GeneratedCode {
        code: compiled.code_buffer().to_vec(),
        tables: tables.into_iter().map(|table| table.slots).collect(),
        function: PhantomData,
    })
}

/// Begins a function. Returns its parameters.
pub(super) fn params<const N: usize>(builder: &mut FunctionBuilder<'_>) -> [Value; N] {
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    builder.seal_block(entry);
    std::array::from_fn(|index| builder.block_params(entry)[index])
}

fn many(
    builder: &mut FunctionBuilder<'_>,
    program: &TranslatedProgram<'_>,
    tables: &mut Vec<ConstantSet>,
) {
    let [frames, count] = params(builder);
    let registers = BpfRegisters::new(builder);
    let zero = builder.ins().iconst(I64, 0);
    // The packet's index, and the set of kept packets.
    let state = [zero, zero];
    let [_, kept] = each_packet(builder, (frames, count), state, |builder, packet, state| {
        let [number, kept] = state;
        let on = (packet, &ClassFacts::default());
        let kept = with_program((builder, registers), program, on, (kept, number), tables);
        [builder.ins().iadd_imm_u(number, 1), kept]
    });
    builder.ins().return_(&[kept]);
}

/// Writes a loop over `count` packets whose frames begin at `frames`. `body` makes the next state
/// from the state before a packet. Returns the final state.
pub(super) fn each_packet<const N: usize>(
    builder: &mut FunctionBuilder<'_>,
    (frames, count): (Value, Value),
    state: [Value; N],
    body: impl FnOnce(&mut FunctionBuilder<'_>, PacketValues, [Value; N]) -> [Value; N],
) -> [Value; N] {
    fn args(frame: Option<Value>, state: &[Value]) -> Vec<BlockArg> {
        let values = frame.into_iter().chain(state.iter().copied());
        values.map(BlockArg::Value).collect()
    }
    let frame_bytes = i64::from(layout::BYTES);
    let all_bytes = builder.ins().imul_imm_u(count, frame_bytes);
    let behind = builder.ins().iadd(frames, all_bytes);
    let (next, end) = (builder.create_block(), builder.create_block());
    let frame = builder.append_block_param(next, I64);
    let here = state.map(|_| builder.append_block_param(next, I64));
    let last = state.map(|_| builder.append_block_param(end, I64));
    let start = args(Some(frames), &state);
    builder
        .ins()
        .brif(count, next, &start, end, &args(None, &state));

    builder.switch_to_block(next);
    let packet = packet(builder, frame);
    let state = body(builder, packet, here);
    let frame = builder.ins().iadd_imm_u(frame, frame_bytes);
    let is_left = builder.ins().icmp(IntCC::UnsignedLessThan, frame, behind);
    let on = args(Some(frame), &state);
    builder
        .ins()
        .brif(is_left, next, &on, end, &args(None, &state));

    builder.switch_to_block(end);
    last
}

/// Writes a program for a packet with known `facts`. Returns `kept`, with bit `number` set if the
/// program keeps the packet.
pub(super) fn with_program(
    (builder, registers): (&mut FunctionBuilder<'_>, BpfRegisters),
    program: &TranslatedProgram<'_>,
    (packet, facts): (PacketValues, &ClassFacts),
    (kept, number): (Value, Value),
    tables: &mut Vec<ConstantSet>,
) -> Value {
    let [accept, reject, decide, behind] = std::array::from_fn(|_| builder.create_block());
    let bit = builder.append_block_param(decide, I64);
    let kept_now = builder.append_block_param(behind, I64);
    let exits = Exits {
        accept,
        reject,
        decide,
    };
    Translator::new(program, builder, registers, (packet, facts), exits, tables).translate();

    for (block, bit) in [(accept, None), (decide, Some(bit))] {
        builder.switch_to_block(block);
        let bit = bit.unwrap_or_else(|| builder.ins().iconst(I64, 1));
        let bit_here = builder.ins().ishl(bit, number);
        let with_it = builder.ins().bor(kept, bit_here);
        builder.ins().jump(behind, &[BlockArg::Value(with_it)]);
    }

    builder.switch_to_block(reject);
    builder.ins().jump(behind, &[BlockArg::Value(kept)]);

    builder.switch_to_block(behind);
    kept_now
}

fn packet(builder: &mut FunctionBuilder<'_>, frame: Value) -> PacketValues {
    let flags = load_flags();
    let data = builder.ins().load(I64, flags, frame, layout::DATA);
    let captured = builder.ins().uload32(flags, frame, layout::CAPTURED);
    PacketValues {
        frame,
        data,
        captured,
    }
}

/// The code generator for this processor.
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
    // The tests run on x86-64 Linux only. Some other processors would also need an
    // instruction-cache flush.
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(unknown());
    }
    let failed = |message: String| NativeError::Generator { message };
    let mut flags = settings::builder();
    let values = [
        ("opt_level", "speed"),
        // It is better to find a mistake of the translator than to run the code.
        ("enable_verifier", "true"),
        // A program with very many variables has a large stack frame, which could pass the guard
        // page. Inline probes prevent that, and need no call.
        ("enable_probestack", "true"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_stack_frames_are_probed() {
        let isa = isa().unwrap();
        assert!(isa.flags().enable_probestack());
        assert_eq!(
            isa.flags().probestack_strategy(),
            settings::ProbestackStrategy::Inline
        );
    }
}
