//! Up to 64 programs that are asked together.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    Frame, NativeError, NativeInfo, Program,
    native::{JointCode, Native},
};

/// Programs that see the same packets, and how to find all that keep a packet at once.
///
/// Machine code asks what several of them ask once. Until there is any, and for programs that cannot be joined, each runs by
/// itself. A clone is the same and costs nothing.
///
/// ```
/// use retroscope_filter::{Aux, Frame, Instruction, Joint, Program};
///
/// let joint = Joint::new(vec![Program::constant(1), Program::constant(0), Program::constant(7)]);
/// joint.make_native()?;
/// let mut results = [0; 64];
/// let any = joint.run_many(&[Frame::new(&[1, 2, 3], 3, Aux::default())], &mut results);
/// assert_eq!((any, results[0]), (0b101, 0b101));
/// # Ok::<(), retroscope_filter::NativeError>(())
/// ```
#[derive(Clone)]
pub struct Joint {
    shared: Arc<Shared>,
}

struct Shared {
    programs: Vec<Program>,
    /// Set once, and used from then on.
    code: OnceLock<JointCode>,
    /// Nobody needs the code any more. Orders nothing else: Relaxed.
    is_stale: AtomicBool,
}

impl Joint {
    /// Programs at most, and frames of one [`Self::run_many`].
    pub const MANY: usize = Program::MANY;

    /// Puts programs together; there is no machine code yet.
    ///
    /// # Panics
    /// If there are more than [`Self::MANY`].
    #[must_use]
    pub fn new(programs: Vec<Program>) -> Self {
        assert!(programs.len() <= Self::MANY);
        let shared = Shared {
            programs,
            code: OnceLock::new(),
            is_stale: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The programs, in the order of their bits.
    #[must_use]
    pub fn programs(&self) -> &[Program] {
        &self.shared.programs
    }

    /// Compiles the programs together, on this thread, for every clone. Does nothing where that was done before. Takes some
    /// milliseconds; a [`Compiler`](crate::Compiler) does it on a thread of its own.
    ///
    /// # Errors
    /// [`NativeError`]; each program runs as before.
    pub fn make_native(&self) -> Result<(), NativeError> {
        if self.shared.code.get().is_none() {
            let code = Native::guarded(|| JointCode::new(&self.shared.programs))?;
            // Another thread may have been faster: its code is as good.
            let _ = self.shared.code.set(code);
        }
        Ok(())
    }

    /// What became of the programs together, if they run as machine code.
    #[must_use]
    pub fn native(&self) -> Option<NativeInfo> {
        self.shared.code.get().map(JointCode::info)
    }

    /// The programs that run as one, as bits; none before there is machine code.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.shared.code.get().map_or(0, JointCode::covered)
    }

    /// Whether all programs run as one.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.joined() == self.all()
    }

    /// Says which programs keep any byte of each of at most [`Self::MANY`] frames: bit `n` of a frame's result is that of
    /// program `n`. Gives the bits of all results.
    ///
    /// # Panics
    /// If there are more frames.
    #[inline]
    pub fn run_many(&self, frames: &[Frame<'_>], results: &mut [u64; Self::MANY]) -> u64 {
        self.run_some(u64::MAX, frames, results)
    }

    /// As [`Self::run_many`], for some of the programs; others' bits may be set or not.
    #[inline]
    pub(crate) fn run_some(
        &self,
        some: u64,
        frames: &[Frame<'_>],
        results: &mut [u64; Self::MANY],
    ) -> u64 {
        let (covered, any) = match self.shared.code.get() {
            Some(code) => (code.covered(), code.run_many(frames, results)),
            None => {
                results[..frames.len()].fill(0);
                (0, 0)
            }
        };
        let left = some & !covered & self.all();
        any | self.run_alone(left, frames, results)
    }

    /// As [`Self::run_some`], each by itself, even where there is code for all; others' bits are 0.
    pub(crate) fn run_each(
        &self,
        some: u64,
        frames: &[Frame<'_>],
        results: &mut [u64; Self::MANY],
    ) -> u64 {
        results[..frames.len()].fill(0);
        self.run_alone(some & self.all(), frames, results)
    }

    /// The bits of its programs.
    pub(crate) fn all(&self) -> u64 {
        let count = u32::try_from(self.shared.programs.len()).unwrap_or(u32::MAX);
        u64::MAX.unbounded_shr(u64::BITS.saturating_sub(count))
    }

    /// Adds the results of programs that run by themselves.
    fn run_alone(&self, mut left: u64, frames: &[Frame<'_>], results: &mut [u64]) -> u64 {
        let mut any = 0;
        while left != 0 {
            let bit = left & left.wrapping_neg();
            let program = &self.shared.programs[left.trailing_zeros() as usize];
            left &= left - 1;
            let mut kept = program.run_many(frames);
            any |= if kept == 0 { 0 } else { bit };
            while kept != 0 {
                results[kept.trailing_zeros() as usize] |= bit;
                kept &= kept - 1;
            }
        }
        any
    }

    /// Says that nobody needs the code any more.
    pub(crate) fn give_up(&self) {
        self.shared.is_stale.store(true, Ordering::Relaxed);
    }

    /// Whether nobody needs the code any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.shared.is_stale.load(Ordering::Relaxed) || Arc::strong_count(&self.shared) == 1
    }
}

impl fmt::Debug for Joint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joint")
            .field("programs", &self.shared.programs)
            .field("native", &self.native())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Aux, Instruction};

    #[test]
    fn programs_that_cannot_be_joined_answer_too() {
        // `ja` to itself is a loop without end, which keeps nothing; the other one keeps all.
        let back = Instruction {
            code: crate::instruction::op::JA,
            jump_true: 0,
            jump_false: 0,
            k: u32::MAX,
        };
        let looped = Program::new(vec![back, Instruction::ret(1)], false).expect("valid");
        let programs = vec![looped.clone(), Program::constant(1), looped];
        let joint = Joint::new(programs);
        let frames = [Frame::new(&[], 0, Aux::default()); 3];
        for covered in [0, 0b010] {
            let mut results = [u64::MAX; 64];
            assert_eq!(joint.joined(), covered);
            assert_eq!(joint.run_many(&frames, &mut results), 0b010);
            assert_eq!(results[..4], [0b010, 0b010, 0b010, u64::MAX]);
            joint.make_native().expect("one of them can be joined");
        }
    }

    #[test]
    fn where_nothing_can_be_joined_there_is_no_code() {
        let joint = Joint::new(Vec::new());
        assert!(joint.make_native().is_err() && joint.native().is_none());
        for (count, all) in [(0, 0), (1, 1), (64, u64::MAX)] {
            let programs = vec![Program::constant(1); count];
            assert_eq!(Joint::new(programs).all(), all);
        }
    }
}
