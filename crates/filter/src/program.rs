//! A validated classic BPF program.

use std::{
    fmt, slice,
    sync::{Arc, OnceLock},
};

use retroscope_bpf::{
    ANCILLARY, ANCILLARY_INTERFACE, ANCILLARY_PACKET_TYPE, DisassemblyLine, Instruction,
    MEMORY_WORDS, is_known, op,
};

use crate::{
    Aux, FilterFrame, NativeError, NativeInfo, interpreter,
    native::{self, MachineCode, ProgramFunction},
};

/// A classic BPF program that is safe to run on any packet.
///
/// Outside libpcap a run always ends: it stops at a limit of backward jumps. libpcap makes backward
/// jumps only for `protochain`.
///
/// Clones share the instructions and the machine code.
#[derive(Clone)]
pub struct Program {
    shared: Arc<ProgramState>,
}

struct ProgramState {
    instructions: Vec<Instruction>,
    ancillary: bool,
    native: OnceLock<MachineCode<ProgramFunction>>,
}

impl Program {
    /// Maximum number of packets in one [`Self::run_many`], whose result is the bits of a `u64`.
    pub const MANY: usize = u64::BITS as usize;

    /// Checks `instructions`. With `ancillary`, absolute loads from 0xfffff000 on read [`Aux`], as
    /// on a live interface. Without `ancillary` they are loads beyond the packet, as in a savefile.
    ///
    /// # Errors
    /// [`ProgramError`] if the instructions are not safe to run, or read ancillary data other than
    /// [`Aux`].
    pub fn new(instructions: Vec<Instruction>, ancillary: bool) -> Result<Self, ProgramError> {
        match instructions.last().map(|last| last.code) {
            None => return Err(ProgramError::Empty),
            Some(op::RET_K | op::RET_A) => {}
            Some(_) => return Err(ProgramError::NoReturn),
        }
        for (index, instruction) in instructions.iter().enumerate() {
            check(instruction, index, instructions.len(), ancillary)?;
        }
        Ok(Self::of_checked(instructions, ancillary))
    }

    /// A program that returns `bytes` for every packet.
    #[must_use]
    pub fn constant(bytes: u32) -> Self {
        Self::of_checked(vec![Instruction::ret(bytes)], false)
    }

    fn of_checked(instructions: Vec<Instruction>, ancillary: bool) -> Self {
        let shared = ProgramState {
            instructions,
            ancillary,
            native: OnceLock::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The instructions; never empty.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.shared.instructions
    }

    /// The program in the format of `tcpdump -d`, one line for each instruction.
    #[must_use]
    pub fn disassemble(&self) -> String {
        let lines = self.instructions().iter().enumerate();
        let lines = lines.map(|(index, &instruction)| DisassemblyLine { index, instruction });
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Whether absolute loads at high offsets read ancillary data.
    pub(crate) fn is_live(&self) -> bool {
        self.shared.ancillary
    }

    /// Runs the program in the interpreter. Returns how many bytes of the packet to keep, 0 for a
    /// packet that does not match.
    ///
    /// `wire_len` is the length on the wire in bytes. Except for ancillary loads and the limit on
    /// backward jumps, the result is that of libpcap's `bpf_filter`, if C defines that result. A
    /// load beyond the captured bytes, or a division by zero, rejects the packet wherever it
    /// happens in the expression.
    #[must_use]
    pub fn run(&self, packet: &[u8], wire_len: u32, aux: Aux) -> u32 {
        self.interpret(&FilterFrame::new(packet, wire_len, aux))
    }

    /// Whether [`Self::run`] keeps any byte of a packet. Uses machine code if available.
    #[must_use]
    pub fn keeps(&self, frame: &FilterFrame<'_>) -> bool {
        match self.shared.native.get() {
            Some(native) => native.run_many(slice::from_ref(frame)) != 0,
            None => self.interpret(frame) != 0,
        }
    }

    pub(crate) fn interpret(&self, frame: &FilterFrame<'_>) -> u32 {
        let ProgramState {
            instructions,
            ancillary,
            ..
        } = &*self.shared;
        let aux = ancillary.then(|| frame.aux);
        interpreter::run(instructions, frame.data(), frame.wire_len(), aux).unwrap_or(0)
    }

    /// Runs the program on at most [`Self::MANY`] packets. Bit `n` of the result tells whether
    /// [`Self::run`] keeps any byte of packet `n`.
    ///
    /// # Panics
    /// If there are more than [`Self::MANY`] packets.
    #[must_use]
    pub fn run_many(&self, frames: &[FilterFrame<'_>]) -> u64 {
        assert!(frames.len() <= Self::MANY);
        match self.shared.native.get() {
            Some(native) => native.run_many(frames),
            None => run_each(frames, |frame| self.interpret(frame)),
        }
    }

    /// Compiles the program to machine code, on this thread, for every clone. Takes a fraction of a
    /// millisecond for ordinary filters.
    ///
    /// # Errors
    /// [`NativeError`]; the interpreter keeps running the program.
    pub fn make_native(&self) -> Result<(), NativeError> {
        let shared = &*self.shared;
        native::fill(&shared.native, || {
            native::compile(&shared.instructions, shared.ancillary)
        })
    }

    /// Data about the machine code, if available.
    #[must_use]
    pub fn native(&self) -> Option<NativeInfo> {
        self.shared.native.get().map(|code| code.info)
    }

    /// Whether the program is short enough for one function with others
    /// ([`FusedPrograms`](crate::FusedPrograms)).
    #[must_use]
    pub fn can_fuse(&self) -> bool {
        self.instructions().len() <= native::EACH_MAX
    }

    /// Whether the program has no other clone.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

impl PartialEq for Program {
    /// Ignores the machine code.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
            || (self.shared.instructions == other.shared.instructions
                && self.shared.ancillary == other.shared.ancillary)
    }
}

impl Eq for Program {}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("instructions", &self.shared.instructions)
            .field("ancillary", &self.shared.ancillary)
            .finish_non_exhaustive()
    }
}

/// The frames of which `kept_of` keeps at least one byte, as bits.
pub(crate) fn run_each(
    frames: &[FilterFrame<'_>],
    kept_of: impl Fn(&FilterFrame<'_>) -> u32,
) -> u64 {
    (0..).zip(frames).fold(0, |kept, (index, frame)| {
        kept | u64::from(kept_of(frame) != 0) << index
    })
}

fn check(
    instruction: &Instruction,
    index: usize,
    len: usize,
    ancillary: bool,
) -> Result<(), ProgramError> {
    let Instruction { code, k, .. } = *instruction;
    let is_jump = code == op::JA || instruction.is_conditional();
    let lands = |(one, other): (usize, usize)| one.max(other) < len;
    match code {
        op::LD_MEM | op::LDX_MEM | op::ST | op::STX if k as usize >= MEMORY_WORDS => {
            Err(ProgramError::ScratchWord { index, word: k })
        }
        op::DIV_K | op::MOD_K if k == 0 => Err(ProgramError::DivisionByZero { index }),
        _ if is_jump && !instruction.targets(index).is_some_and(lands) => {
            Err(ProgramError::JumpOut { index })
        }
        op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS
            if ancillary
                && k >= ANCILLARY
                && !matches!(k, ANCILLARY_PACKET_TYPE | ANCILLARY_INTERFACE) =>
        {
            let offset = k - ANCILLARY;
            Err(ProgramError::Ancillary { index, offset })
        }
        _ if is_known(code) => Ok(()),
        _ => Err(ProgramError::UnknownCode { index, code }),
    }
}

/// The reason why instructions are not a valid program. `index` is the index of the instruction,
/// from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the messages say it, and `index` is described above"
)]
pub enum ProgramError {
    #[error("the program is empty")]
    Empty,
    #[error("the program does not end with a return")]
    NoReturn,
    #[error("instruction {index} uses scratch word {word} of {MEMORY_WORDS}")]
    ScratchWord { index: usize, word: u32 },
    #[error("instruction {index} divides by zero")]
    DivisionByZero { index: usize },
    #[error("instruction {index} jumps out of the program")]
    JumpOut { index: usize },
    #[error(
        "instruction {index} asks the kernel for ancillary data {offset}, which a recorded packet does not carry"
    )]
    Ancillary { index: usize, offset: u32 },
    #[error("instruction {index} has the unknown operation code {code:#x}")]
    UnknownCode { index: usize, code: u16 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn unsafe_programs_are_refused() {
        let ret = Instruction::ret(1);
        let out = ProgramError::JumpOut { index: 0 };
        let cases = [
            (vec![], ProgramError::Empty),
            (
                vec![Instruction::new(op::TAX, 0, 0, 0)],
                ProgramError::NoReturn,
            ),
            (vec![Instruction::new(op::JEQ_K, 1, 0, 0), ret], out.clone()),
            (
                vec![Instruction::new(op::JSET_X, 0, 255, 0), ret],
                out.clone(),
            ),
            (vec![Instruction::new(op::JA, 0, 0, 1), ret], out.clone()),
            (
                vec![
                    Instruction::new(op::JA, 0, 0, (-2_i32).cast_unsigned()),
                    ret,
                ],
                out.clone(),
            ),
            (
                vec![
                    Instruction::new(op::JA, 0, 0, i32::MIN.cast_unsigned()),
                    ret,
                ],
                out.clone(),
            ),
            (
                vec![Instruction::new(op::ST, 0, 0, 16), ret],
                ProgramError::ScratchWord { index: 0, word: 16 },
            ),
            (
                vec![Instruction::new(op::LDX_MEM, 0, 0, u32::MAX), ret],
                ProgramError::ScratchWord {
                    index: 0,
                    word: u32::MAX,
                },
            ),
            (
                vec![Instruction::new(op::MOD_K, 0, 0, 0), ret],
                ProgramError::DivisionByZero { index: 0 },
            ),
            (
                vec![Instruction::new(0xffff, 0, 0, 0), ret],
                ProgramError::UnknownCode {
                    index: 0,
                    code: 0xffff,
                },
            ),
        ];
        for (instructions, error) in cases {
            assert_eq!(
                Program::new(instructions.clone(), false),
                Err(error),
                "{instructions:?}"
            );
        }
    }

    #[test]
    fn ancillary_loads_need_an_answer_only_where_there_are_any() {
        let vlan_tag = vec![
            Instruction::new(op::LD_H_ABS, 0, 0, ANCILLARY + 44),
            Instruction::ret(1),
        ];
        let error = Program::new(vlan_tag.clone(), true).expect_err("no such data");
        let refused = ProgramError::Ancillary {
            index: 0,
            offset: 44,
        };
        assert_eq!(error, refused);
        let program =
            Program::new(vlan_tag, false).expect("in a savefile it is a load beyond the packet");
        assert_eq!(program.run(&[0; 64], 64, Aux::default()), 0);
    }

    #[test]
    fn agrees_with_libpcap_on_every_operation_code() {
        for code in 0..=0xff_u16 {
            let instructions = vec![Instruction::new(code, 0, 0, 1), Instruction::ret(1)];
            let ours = Program::new(instructions.clone(), false).is_ok();
            // Compares only the codes that we accept: libpcap's validator also accepts return and
            // miscellaneous codes on which libpcap's interpreter aborts.
            if ours {
                assert!(
                    sys::reference::validate(&instructions) || code == op::JA,
                    "code {code:#x}"
                );
            }
        }
    }

    #[test]
    fn every_operation_reads_as_in_libpcap() {
        let numbers = [0, 1, 9, 10, 0x800, 0x7fff_ffff, 0x8000_0000, u32::MAX];
        let ancillary = [0, 44, 60].map(|offset| ANCILLARY + offset);
        let mut seen = 0;
        for code in (0..=0xff_u16).filter(|code| is_known(*code)) {
            for k in numbers.into_iter().chain(ancillary) {
                let (index, instruction) = (7, Instruction::new(code, 3, 200, k));
                // libpcap's sum of `index` and `k` may overflow, so the test skips each `JA` whose
                // target is not in 0..=0xffff.
                let lands = |(target, _)| target <= 0xffff;
                if code == op::JA && !instruction.targets(index).is_some_and(lands) {
                    continue;
                }
                seen += 1;
                let ours = DisassemblyLine { index, instruction }.to_string();
                let theirs = sys::reference::image(&instruction, index);
                assert_eq!(ours, theirs, "code {code:#x}, k {k:#x}");
            }
        }
        assert!(seen > 400, "{seen} instructions were compared");
    }
}
