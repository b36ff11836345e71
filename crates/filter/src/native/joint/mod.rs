//! Many programs as one function: for each packet a word with a bit for each program that keeps it.
//!
//! Programs of a set ask the same again and again: is it IPv4, is it TCP, how long is the header? One function asks once.
//!
//! - `decision` follows each program by hand, from its start to its returns, and leaves a graph of conditions; `value` is
//!   what they are about and `condition` what one answer says about other questions.
//! - `worlds` puts these graphs one behind the other. In front of each program it keeps apart the packets of which different
//!   things are known (`facts`), and leaves out of the program what is known there; `asked` says what is worth knowing. The
//!   result is a `graph` of blocks.
//! - `emit` makes Cranelift's intermediate code of that, in a loop over packets.
//!
//! A load beyond the captured bytes ends its own program with nothing, and the next one goes on: what a check says is a fact
//! like others. A load stands behind its check on every way that leads to it, in this program or in an earlier one.
//!
//! Loops, ancillary data and divisors that may be 0 are not followed; such programs run alone. So do those with too many ways.

mod asked;
mod condition;
mod decision;
mod emit;
mod facts;
mod graph;
mod value;
mod worlds;

use std::{collections::HashMap, time::Instant};

use cranelift_codegen::ir::types::I64;

use self::{
    decision::{Decisions, NodeId},
    worlds::Rule,
};
use super::{NativeError, NativeInfo, code, emit::Generator};
use crate::{Frame, Program};

/// Nodes of all programs of a function at most. More are left to run alone.
const NODES_MAX: usize = 4096;
/// Questions of one program at most; longer ones are lists, which are quicker by themselves.
const NODES_EACH_MAX: usize = 200;

/// Machine code that [`JointCode::new`] made, and nothing else: `code` relies on it.
pub(super) struct JointFunction(Vec<u8>);

impl JointFunction {
    /// One function, from its first byte: first frame, number of frames and first result to the bits of all results. No part of
    /// it depends on where it lies.
    pub(super) fn code(&self) -> &[u8] {
        &self.0
    }
}

/// Programs as one function.
#[derive(Debug)]
pub(crate) struct JointCode {
    code: code::JointCode,
    info: NativeInfo,
    /// The programs that it answers for.
    covered: u64,
}

impl JointCode {
    /// Whether a program is of a kind that can be joined. Cheap; in the end it may still be too long.
    pub(crate) fn may_join(program: &Program) -> bool {
        Decisions::may_follow(program.instructions(), program.is_live())
    }

    /// Joins at most 64 programs.
    ///
    /// # Errors
    /// [`NativeError`]; also where there is nothing to join.
    pub(crate) fn new(programs: &[Program]) -> Result<Self, NativeError> {
        let start = Instant::now();
        let mut decisions = Decisions::new();
        let mut rules: Vec<Rule> = Vec::new();
        let mut places: HashMap<NodeId, usize> = HashMap::new();
        let mut covered = 0;
        for (bit, program) in programs.iter().enumerate().take(Program::MANY) {
            let before = decisions.len();
            if before > NODES_MAX {
                break;
            }
            let followed = decisions.follow(program.instructions(), program.is_live());
            let Ok(root) = followed else { continue };
            if decisions.len() - before > NODES_EACH_MAX {
                continue;
            }
            covered |= 1 << bit;
            let place = *places.entry(root).or_insert_with(|| {
                rules.push(Rule { root, bits: 0 });
                rules.len() - 1
            });
            rules[place].bits |= 1 << bit;
        }
        let programs = programs.len();
        if covered == 0 {
            return Err(NativeError::NotJoined { programs });
        }
        let joined = worlds::join(&decisions, &rules);
        let joined = joined.ok_or(NativeError::NotJoined { programs })?;
        let mut generator = Generator::new()?;
        let made = generator.function(&[I64; 3], I64, |builder, _| {
            emit::many(builder, &decisions, &joined);
        })?;
        let info = NativeInfo {
            code_bytes: made.len(),
            table_bytes: 0,
            compile_time: start.elapsed(),
        };
        Ok(Self {
            code: code::JointCode::new(&JointFunction(made))?,
            info,
            covered,
        })
    }

    pub(crate) fn info(&self) -> NativeInfo {
        self.info
    }

    /// The programs that it answers for: bit `n` is that of program `n`.
    pub(crate) fn covered(&self) -> u64 {
        self.covered
    }

    /// Fills the first of `results`, one for each frame: bit `n` says whether program `n` keeps any byte, if it is covered.
    /// Gives the bits of all results. Panics if there are more frames than results.
    #[inline]
    pub(crate) fn run_many(&self, frames: &[Frame<'_>], results: &mut [u64]) -> u64 {
        self.code.run_many(frames, results)
    }
}
