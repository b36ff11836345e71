//! Up to 64 programs that run together.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use retroscope_packet::LinkType;

use crate::{
    FilterFrame, NativeError, NativeInfo, Program,
    evaluation::ones,
    native::{self, FusedFunction, MachineCode},
};

/// Programs that see the same packets, and a way to run all of them at once.
///
/// Each program runs by itself until there is machine code, and also if the programs are too long
/// for one function. A clone refers to the same programs and machine code.
///
/// ```
/// use retroscope_filter::{Aux, FilterFrame, Instruction, FusedPrograms, Program};
/// use retroscope_packet::LinkType;
///
/// let programs = vec![Program::constant(1), Program::constant(0), Program::constant(7)];
/// let joint = FusedPrograms::new(LinkType::ETHERNET, programs);
/// joint.make_native()?;
/// let mut results = [0; 64];
/// let any = joint.run_many(&[FilterFrame::new(&[1, 2, 3], 3, Aux::default())], &mut results);
/// assert_eq!((any, results[0]), (0b101, 0b101));
/// # Ok::<(), retroscope_filter::NativeError>(())
/// ```
#[derive(Clone)]
pub struct FusedPrograms {
    shared: Arc<FusedState>,
}

struct FusedState {
    link_type: LinkType,
    programs: Vec<Program>,
    code: OnceLock<MachineCode<FusedFunction>>,
    /// Orders nothing else, so all accesses are Relaxed.
    is_stale: AtomicBool,
}

impl FusedPrograms {
    /// Maximum number of programs, and of frames in one [`Self::run_many`].
    pub const MANY: usize = Program::MANY;

    /// Combines programs, without machine code yet. The machine code is made for packets of
    /// `link_type`, but is correct for all.
    ///
    /// # Panics
    /// If there are more than [`Self::MANY`] programs.
    #[must_use]
    pub fn new(link_type: LinkType, programs: Vec<Program>) -> Self {
        assert!(programs.len() <= Self::MANY);
        let shared = FusedState {
            link_type,
            programs,
            code: OnceLock::new(),
            is_stale: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The programs, in bit order.
    #[must_use]
    pub fn programs(&self) -> &[Program] {
        &self.shared.programs
    }

    /// Compiles the programs together, on this thread, for every clone. Takes about 0.5 ms for each
    /// program; a [`Compiler`](crate::Compiler) has its own thread for that.
    ///
    /// # Errors
    /// [`NativeError`]; each program runs as before.
    pub fn make_native(&self) -> Result<(), NativeError> {
        let shared = &*self.shared;
        native::fill(&shared.code, || {
            native::compile_fused(shared.link_type, &shared.programs)
        })
    }

    /// Data about the machine code, if the programs run as one function.
    #[must_use]
    pub fn native(&self) -> Option<NativeInfo> {
        self.shared.code.get().map(|code| code.info)
    }

    /// Runs the programs on at most [`Self::MANY`] frames. Bit `n` of `results[i]` tells whether
    /// program `n` keeps any byte of frame `i`. Returns all bits that are set in any result.
    ///
    /// # Panics
    /// If there are more than [`Self::MANY`] frames.
    #[inline]
    pub fn run_many(&self, frames: &[FilterFrame<'_>], results: &mut [u64; Self::MANY]) -> u64 {
        self.run_some(u64::MAX, frames, results)
    }

    /// Like [`Self::run_many`], for the programs in `some`. The bits of other programs may be set
    /// or clear.
    #[inline]
    pub(crate) fn run_some(
        &self,
        some: u64,
        frames: &[FilterFrame<'_>],
        results: &mut [u64; Self::MANY],
    ) -> u64 {
        if let Some(code) = self.shared.code.get() {
            return code.run_many(frames, results);
        }
        results[..frames.len()].fill(0);
        let mut any = 0;
        for (number, program) in self.shared.programs.iter().enumerate() {
            let bit = 1 << number & some;
            if bit == 0 {
                continue;
            }
            for frame in ones(program.run_many(frames)) {
                results[frame] |= bit;
                any |= bit;
            }
        }
        any
    }

    pub(crate) fn all(&self) -> u64 {
        let count = u32::try_from(self.shared.programs.len()).unwrap_or(u32::MAX);
        u64::MAX.unbounded_shr(u64::BITS.saturating_sub(count))
    }

    /// Marks the code as not needed any more.
    pub(crate) fn give_up(&self) {
        self.shared.is_stale.store(true, Ordering::Relaxed);
    }

    /// Whether the code was marked by [`Self::give_up`], or this is the only clone.
    pub(crate) fn is_given_up(&self) -> bool {
        self.shared.is_stale.load(Ordering::Relaxed) || Arc::strong_count(&self.shared) == 1
    }
}

impl fmt::Debug for FusedPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FusedPrograms")
            .field("programs", &self.shared.programs)
            .field("native", &self.native())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use retroscope_bpf::op;

    use super::*;
    use crate::{Aux, Instruction};

    #[test]
    fn programs_that_are_too_long_for_one_function_answer_too() {
        let plain = |code, k| Instruction {
            code,
            ..Instruction::ret(k)
        };
        let keeps = |count: usize, bytes: u32| {
            let mut instructions = vec![plain(op::TAX, 0); count];
            instructions.push(Instruction::ret(bytes));
            Program::new(instructions, false).expect("valid")
        };
        let frames = [FilterFrame::new(&[], 0, Aux::default()); 3];
        for (count, is_joined) in [(1, true), (1000, false)] {
            let programs = vec![keeps(count, 0), keeps(1, 1), keeps(count, 0)];
            let joint = FusedPrograms::new(LinkType::ETHERNET, programs);
            for is_native in [false, is_joined] {
                let mut results = [u64::MAX; 64];
                assert_eq!(joint.native().is_some(), is_native);
                assert_eq!(joint.run_many(&frames, &mut results), 0b010);
                assert_eq!(results[..4], [0b010, 0b010, 0b010, u64::MAX]);
                assert_eq!(joint.make_native().is_ok(), is_joined);
            }
        }
        for (count, all) in [(0, 0), (1, 1), (64, u64::MAX)] {
            let programs = vec![Program::constant(1); count];
            assert_eq!(FusedPrograms::new(LinkType::RAW, programs).all(), all);
        }
    }
}
