//! Names of operations, and programs in the format of `tcpdump -d`.

use std::fmt::{self, Display};

use crate::{ANCILLARY, Instruction, jump_target, op};

/// Kind of text that follows an operation's name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand {
    Nothing,
    X,
    /// The constant as a signed number.
    Signed,
    /// The constant as a bit pattern.
    Bits,
    Packet,
    PacketBehindX,
    HeaderLength,
    WireLength,
    Memory,
    Target,
    /// The operation code itself. libpcap shows an instruction without a name as `unimp` and its
    /// code.
    Code,
}

use Operand::{
    Bits, Code, HeaderLength, Memory, Nothing, Packet, PacketBehindX, Signed, Target, WireLength, X,
};

/// All operation codes that libpcap's interpreter runs, with their names.
static OPERATIONS: [(u16, &str, Operand); 49] = [
    (op::LD_W_ABS, "ld", Packet),
    (op::LD_H_ABS, "ldh", Packet),
    (op::LD_B_ABS, "ldb", Packet),
    (op::LD_W_IND, "ld", PacketBehindX),
    (op::LD_H_IND, "ldh", PacketBehindX),
    (op::LD_B_IND, "ldb", PacketBehindX),
    (op::LD_LEN, "ld", WireLength),
    (op::LD_IMM, "ld", Bits),
    (op::LD_MEM, "ld", Memory),
    (op::LDX_LEN, "unimp", Code),
    (op::LDX_IMM, "ldx", Bits),
    (op::LDX_MEM, "ldx", Memory),
    (op::LDX_B_MSH, "ldxb", HeaderLength),
    (op::ST, "st", Memory),
    (op::STX, "stx", Memory),
    (op::ADD_K, "add", Signed),
    (op::ADD_X, "add", X),
    (op::SUB_K, "sub", Signed),
    (op::SUB_X, "sub", X),
    (op::MUL_K, "mul", Signed),
    (op::MUL_X, "mul", X),
    (op::DIV_K, "div", Signed),
    (op::DIV_X, "div", X),
    (op::OR_K, "or", Bits),
    (op::OR_X, "or", X),
    (op::AND_K, "and", Bits),
    (op::AND_X, "and", X),
    (op::LSH_K, "lsh", Signed),
    (op::LSH_X, "lsh", X),
    (op::RSH_K, "rsh", Signed),
    (op::RSH_X, "rsh", X),
    (op::NEG, "neg", Nothing),
    (op::MOD_K, "mod", Signed),
    (op::MOD_X, "mod", X),
    (op::XOR_K, "xor", Bits),
    (op::XOR_X, "xor", X),
    (op::JA, "ja", Target),
    (op::JEQ_K, "jeq", Bits),
    (op::JEQ_X, "jeq", X),
    (op::JGT_K, "jgt", Bits),
    (op::JGT_X, "jgt", X),
    (op::JGE_K, "jge", Bits),
    (op::JGE_X, "jge", X),
    (op::JSET_K, "jset", Bits),
    (op::JSET_X, "jset", X),
    (op::RET_K, "ret", Signed),
    (op::RET_A, "ret", Nothing),
    (op::TAX, "tax", Nothing),
    (op::TXA, "txa", Nothing),
];

/// Name and operand kind of an operation. `None` for a code that libpcap's interpreter does not
/// run.
pub(crate) fn operation(code: u16) -> Option<(&'static str, Operand)> {
    let mut operations = OPERATIONS.iter();
    let (_, name, operand) = operations.find(|(known, ..)| *known == code)?;
    Some((name, *operand))
}

/// Names of ancillary data, in steps of 4 from `SKF_AD_OFF`.
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

/// One line of `tcpdump -d`: an instruction and its index in the program.
#[derive(Debug, Clone, Copy)]
pub struct DisassemblyLine {
    /// Index of the instruction, from 0.
    pub index: usize,
    /// The instruction.
    pub instruction: Instruction,
}

impl Display for DisassemblyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, instruction } = *self;
        let (name, operand) = operation(instruction.code).unwrap_or(("unimp", Code));
        let operand = text(instruction, index, operand);
        match instruction.targets(index) {
            Some((jt, jf)) if instruction.is_conditional() => {
                write!(f, "({index:03}) {name:<8} {operand:<16} jt {jt}\tjf {jf}")
            }
            _ => write!(f, "({index:03}) {name:<8} {operand}"),
        }
    }
}

/// The operand column.
fn text(instruction: Instruction, index: usize, operand: Operand) -> String {
    let Instruction { code, k, .. } = instruction;
    let signed = k.cast_signed();
    match operand {
        Nothing => String::new(),
        X => "x".to_owned(),
        Signed => format!("#{signed}"),
        Bits => format!("#{k:#x}"),
        Packet => match ancillary_name(k) {
            Some(name) => format!("[{name}]"),
            None => format!("[{signed}]"),
        },
        PacketBehindX => format!("[x + {signed}]"),
        HeaderLength => format!("4*([{signed}]&0xf)"),
        WireLength => "#pktlen".to_owned(),
        Memory => format!("M[{signed}]"),
        Target => match jump_target(index, k) {
            Some(target) => target.to_string(),
            None => format!("{signed:+}"),
        },
        Code => format!("{code:#x}"),
    }
}

fn ancillary_name(k: u32) -> Option<&'static str> {
    let offset = k.checked_sub(ANCILLARY)?;
    if offset % 4 != 0 {
        return None;
    }
    ANCILLARY_NAMES.get(offset as usize / 4).copied()
}
