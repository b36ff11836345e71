//! Programs as text, as `tcpdump -d` prints them.

use std::fmt::{self, Display};

use crate::{
    Program,
    instruction::{ANCILLARY, Instruction, op},
    program::jump_target,
};

/// Names of ancillary data in steps of 4 from `SKF_AD_OFF`.
const ANCILLARY_NAMES: [&str; 16] = [
    "proto",
    "type",
    "ifidx",
    "nla",
    "nlan",
    "mark",
    "queue",
    "hatype",
    "rxhash",
    "cpu",
    "xor_x",
    "vlan_tci",
    "vlanp",
    "poff",
    "random",
    "vlan_tpid",
];

/// The name of a code that has none.
const UNKNOWN: &str = "unimp";

impl Program {
    /// The program as `tcpdump -d` prints it: one line an instruction, each with its newline.
    #[must_use]
    pub fn disassemble(&self) -> String {
        self.instructions()
            .iter()
            .enumerate()
            .map(|(index, instruction)| format!("{}\n", Line { index, instruction }))
            .collect()
    }
}

/// One instruction at its place in the program.
struct Line<'p> {
    index: usize,
    instruction: &'p Instruction,
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, instruction } = *self;
        let name = name(instruction.code);
        let operand = operand(instruction, index);
        if instruction.is_conditional() {
            let target = |skip: u8| index + 1 + usize::from(skip);
            let (jt, jf) = (
                target(instruction.jump_true),
                target(instruction.jump_false),
            );
            write!(f, "({index:03}) {name:<8} {operand:<16} jt {jt}\tjf {jf}")
        } else {
            write!(f, "({index:03}) {name:<8} {operand}")
        }
    }
}

fn name(code: u16) -> &'static str {
    match code {
        op::RET_K | op::RET_A => "ret",
        op::LD_W_ABS | op::LD_W_IND | op::LD_LEN | op::LD_IMM | op::LD_MEM => "ld",
        op::LD_H_ABS | op::LD_H_IND => "ldh",
        op::LD_B_ABS | op::LD_B_IND => "ldb",
        op::LDX_IMM | op::LDX_MEM => "ldx",
        op::LDX_B_MSH => "ldxb",
        op::ST => "st",
        op::STX => "stx",
        op::JA => "ja",
        op::JGT_K | op::JGT_X => "jgt",
        op::JGE_K | op::JGE_X => "jge",
        op::JEQ_K | op::JEQ_X => "jeq",
        op::JSET_K | op::JSET_X => "jset",
        op::ADD_K | op::ADD_X => "add",
        op::SUB_K | op::SUB_X => "sub",
        op::MUL_K | op::MUL_X => "mul",
        op::DIV_K | op::DIV_X => "div",
        op::MOD_K | op::MOD_X => "mod",
        op::AND_K | op::AND_X => "and",
        op::OR_K | op::OR_X => "or",
        op::XOR_K | op::XOR_X => "xor",
        op::LSH_K | op::LSH_X => "lsh",
        op::RSH_K | op::RSH_X => "rsh",
        op::NEG => "neg",
        op::TAX => "tax",
        op::TXA => "txa",
        // libpcap makes no `ldx #pktlen` and has no text for it either.
        _ => UNKNOWN,
    }
}

/// The operand column. Most constants are printed signed, bit patterns in hexadecimal.
fn operand(instruction: &Instruction, index: usize) -> String {
    let Instruction { code, k, .. } = *instruction;
    let signed = k.cast_signed();
    match code {
        _ if name(code) == UNKNOWN => format!("{code:#x}"),
        op::RET_A | op::NEG | op::TAX | op::TXA => String::new(),
        op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => match ancillary_name(k) {
            Some(name) => format!("[{name}]"),
            None => format!("[{signed}]"),
        },
        op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => format!("[x + {signed}]"),
        op::LD_LEN => "#pktlen".to_owned(),
        op::LDX_B_MSH => format!("4*([{signed}]&0xf)"),
        op::LD_MEM | op::LDX_MEM | op::ST | op::STX => format!("M[{signed}]"),
        op::JA => match jump_target(index, k) {
            Some(target) => target.to_string(),
            None => format!("{signed:+}"),
        },
        op::LD_IMM
        | op::LDX_IMM
        | op::JGT_K
        | op::JGE_K
        | op::JEQ_K
        | op::JSET_K
        | op::AND_K
        | op::OR_K
        | op::XOR_K => format!("#{k:#x}"),
        op::RET_K
        | op::ADD_K
        | op::SUB_K
        | op::MUL_K
        | op::DIV_K
        | op::MOD_K
        | op::LSH_K
        | op::RSH_K => {
            format!("#{signed}")
        }
        _ if code & 0x08 != 0 => "x".to_owned(),
        _ => String::new(),
    }
}

fn ancillary_name(k: u32) -> Option<&'static str> {
    let offset = k.checked_sub(ANCILLARY)?;
    if offset % 4 != 0 {
        return None;
    }
    ANCILLARY_NAMES.get(offset as usize / 4).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{program::is_known, sys::reference};

    #[test]
    fn every_operation_reads_as_in_libpcap() {
        let mut seen = 0;
        for code in 0..=0xff_u16 {
            for k in [
                0,
                1,
                9,
                10,
                0x800,
                0x7fff_ffff,
                0x8000_0000,
                u32::MAX,
                ANCILLARY,
                ANCILLARY + 44,
                ANCILLARY + 60,
            ] {
                let instruction = Instruction {
                    code,
                    jump_true: 3,
                    jump_false: 200,
                    k,
                };
                // Only what a program may hold; and no program jumps so far that libpcap's sum overflows.
                let far_jump =
                    code == op::JA && jump_target(7, k).is_none_or(|target| target > 0xffff);
                if far_jump || !is_known(code) {
                    continue;
                }
                seen += 1;
                let ours = Line {
                    index: 7,
                    instruction: &instruction,
                }
                .to_string();
                assert_eq!(
                    ours,
                    reference::image(&instruction, 7),
                    "code {code:#x}, k {k:#x}"
                );
            }
        }
        assert!(seen > 400, "{seen} instructions were compared");
    }
}
