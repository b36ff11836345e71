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
//! Loops, ancillary data, divisors that may be 0 and long arithmetic are not followed; such programs run alone. So do those with
//! too many ways, and those that would make the compilation too long: it is bounded by counts of steps, whatever the programs.

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

/// Nodes of all programs of a function at most, and conditions. Programs with more are left to run alone.
const NODES_MAX: usize = 4096;
/// Questions that one program adds to those of others at most; longer ones are lists, which are quicker by themselves.
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

/// The programs that a function may be made of, followed; those that say the same are one.
fn taken(programs: &[Program]) -> (Decisions, Vec<Rule>) {
    let mut decisions = Decisions::new();
    let mut rules: Vec<Rule> = Vec::new();
    let mut places: HashMap<NodeId, usize> = HashMap::new();
    for (bit, program) in programs.iter().enumerate().take(Program::MANY) {
        let before = decisions.lens();
        let followed = decisions.follow(program.instructions(), program.is_live());
        let after = decisions.lens();
        let is_short = after.beyond(before).most() <= NODES_EACH_MAX && after.most() <= NODES_MAX;
        let Some(root) = followed.ok().filter(|_| is_short) else {
            decisions.shrink(before);
            continue;
        };
        let place = *places.entry(root).or_insert_with(|| {
            rules.push(Rule { root, bits: 0 });
            rules.len() - 1
        });
        rules[place].bits |= 1 << bit;
    }
    (decisions, rules)
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
        let (decisions, rules) = taken(programs);
        let joined = worlds::join(&decisions, &rules, worlds::STEPS_MAX);
        let covered = joined.bits;
        if covered == 0 {
            let programs = programs.len();
            return Err(NativeError::NotJoined { programs });
        }
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

#[cfg(test)]
mod tests {
    use retroscope_packet::LinkType;

    use super::*;
    use crate::{Aux, Instruction, Joint, LinkContext, Mode, compile, instruction::op};

    fn program(text: &str) -> Program {
        let link = LinkContext {
            link_type: LinkType::ETHERNET,
            snaplen: 65_535,
            mode: Mode::Savefile,
            optimize: true,
        };
        compile(text, link).expect("it is right")
    }

    fn texts(texts: impl Iterator<Item = String>) -> Vec<Program> {
        texts.map(|text| program(&text)).collect()
    }

    /// What people ask who know headers, 64 times.
    fn short() -> Vec<Program> {
        texts((0..64).map(|number| match number % 8 {
            0 => format!("tcp[13] & {} != 0", number + 1),
            1 => format!("ip[8] < {number}"),
            2 => format!("not port {number}"),
            3 => format!("greater {}", number * 20),
            4 => format!("udp[4:2] = {number}"),
            5 => format!("portrange {number}-{}", number * 3),
            6 => format!("ip[2:2] - ((ip[0] & 0xf) << 2) > {}", number * 9),
            _ => format!("tcp[((tcp[12:1] & 0xf0) >> 2):4] = {number}"),
        }))
    }

    /// Terms that hardly repeat.
    fn lists(count: usize, terms: usize) -> Vec<Program> {
        texts((0..count).map(|list| {
            let term = |place| (list * 7 + place * 3, list + place * 5);
            let terms = (0..terms).map(term);
            let terms = terms.map(|(at, byte)| format!("ip[{}] = {}", at % 60, byte % 251));
            terms.collect::<Vec<_>>().join(" or ")
        }))
    }

    fn plain(code: u16, k: u32) -> Instruction {
        Instruction {
            code,
            ..Instruction::ret(k)
        }
    }

    /// Goes on where `A` is `k`, else `past` instructions further.
    fn equal(k: u32, past: u8) -> Instruction {
        Instruction {
            jump_false: past,
            ..plain(op::JEQ_K, k)
        }
    }

    #[test]
    fn programs_that_are_not_taken_leave_room_for_others() {
        let list = |first: u32| {
            let mut instructions = vec![plain(op::LD_W_ABS, 0)];
            for left in (1..=240).rev() {
                let jump = Instruction {
                    jump_true: left,
                    ..equal(first + u32::from(left), 0)
                };
                instructions.push(jump);
            }
            instructions.extend([Instruction::ret(0), Instruction::ret(1)]);
            Program::new(instructions, false).expect("valid")
        };
        let half_way = program("ip[8] = 7 and ip[8] / ip[9] = 3");
        let mut programs: Vec<Program> = (0..40).map(|number| list(number * 1000)).collect();
        programs.push(half_way);
        let alone = short().split_off(41);
        programs.extend(alone.clone());
        let ((with, rules), (without, _)) = (taken(&programs), taken(&alone));
        assert_eq!(with.lens(), without.lens());
        let bits = rules.iter().fold(0, |bits, rule| bits | rule.bits);
        assert_eq!(bits, u64::MAX << 41);
    }

    #[test]
    fn no_programs_take_more_than_some_steps() {
        let (decisions, rules) = taken(&short());
        let joined = worlds::join(&decisions, &rules, worlds::STEPS_MAX);
        let unbounded = worlds::join(&decisions, &rules, usize::MAX);
        assert_eq!(joined.bits, u64::MAX);
        let blocks = [joined, unbounded].map(|joined| joined.blocks.len());
        assert_eq!(blocks[0], blocks[1], "the first try is enough");
        for programs in [lists(60, 35), lists(64, 60)] {
            let (decisions, rules) = taken(&programs);
            assert!(decisions.lens().most() <= NODES_MAX);
            for steps_max in [0, worlds::STEPS_MAX] {
                let joined = worlds::join(&decisions, &rules, steps_max);
                assert!(joined.blocks.len() <= worlds::BLOCKS_MAX);
                assert_eq!(joined.bits == 0, steps_max == 0);
                assert_ne!(joined.bits, u64::MAX);
            }
        }
    }

    #[test]
    fn programs_behind_the_last_step_answer_too() {
        let programs = lists(64, 60);
        let joint = Joint::new(programs.clone());
        joint.make_native().expect("x86-64 Linux");
        let covered = joint.joined();
        assert!(covered != 0 && covered != u64::MAX, "{covered:x}");
        let mut random = fastrand::Rng::with_seed(1);
        let packets: Vec<[u8; 90]> = (0..64)
            .map(|_| {
                let mut packet = [0; 90];
                packet.fill_with(|| random.u8(..));
                packet[12..15].copy_from_slice(&[8, 0, 0x45]);
                packet
            })
            .collect();
        let frames = packets
            .iter()
            .map(|packet| Frame::new(packet, 90, Aux::default()));
        let frames: Vec<Frame<'_>> = frames.collect();
        let mut results = [0; 64];
        joint.run_many(&frames, &mut results);
        for (bit, program) in programs.iter().enumerate() {
            let alone = program.run_many(&frames);
            for (frame, result) in results.iter().enumerate() {
                assert_eq!(result >> bit & 1, alone >> frame & 1, "{bit} of {frame}");
            }
        }
    }

    #[test]
    fn a_value_that_is_doubled_again_and_again_runs_alone() {
        let doubled = |times: u8| {
            let past = 2 * times;
            let mut instructions = vec![plain(op::LD_W_ABS, 0), equal(7, past + 2)];
            for _ in 0..times {
                instructions.extend([plain(op::TAX, 0), plain(op::ADD_K | 0x08, 0)]);
            }
            instructions.extend([equal(1, 1), Instruction::ret(1), Instruction::ret(0)]);
            Program::new(instructions, false).expect("valid")
        };
        let (_, rules) = taken(&[doubled(60), program("ip[8] < 5"), doubled(3)]);
        let bits = rules.iter().fold(0, |bits, rule| bits | rule.bits);
        assert_eq!(bits, 0b110);
    }
}
