//! Classic BPF: instructions, operation codes, jump targets, and the text form of a program.
//!
//! `retroscope-filter` checks, runs and translates programs, and `retroscope-capture` rewrites a
//! program for a packet socket. The interpreter in `retroscope-filter` defines what an instruction
//! does; `Program` there defines which programs are safe. This is not eBPF.

mod text;

pub use text::DisassemblyLine;

/// One classic BPF instruction. Same layout as `struct bpf_insn` of `pcap/bpf.h` and `struct
/// sock_filter` of `linux/filter.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// Operation code: class, size or operation, mode or source.
    pub code: u16,
    /// Instructions to skip when a conditional jump's condition holds.
    pub jump_true: u8,
    /// Instructions to skip when a conditional jump's condition does not hold.
    pub jump_false: u8,
    /// The constant: offset, operand, jump distance or scratch index.
    pub k: u32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

impl Instruction {
    /// Makes an instruction. `jump_true` and `jump_false` matter for conditional jumps only.
    #[must_use]
    pub const fn new(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Self {
        Self {
            code,
            jump_true,
            jump_false,
            k,
        }
    }

    /// `ret #k`.
    #[must_use]
    pub const fn ret(k: u32) -> Self {
        Self::new(op::RET_K, 0, 0, k)
    }

    /// Whether this is a jump with two targets: any code of class `BPF_JMP` except `ja`.
    #[must_use]
    pub const fn is_conditional(&self) -> bool {
        self.code & 0x07 == 0x05 && self.code != op::JA
    }

    /// Targets of the jump at `index`: if its condition holds, and if not. `None` if the
    /// instruction is no jump, or if the jump leads to before the first instruction.
    #[must_use]
    pub fn targets(&self, index: usize) -> Option<(usize, usize)> {
        if self.code == op::JA {
            let target = jump_target(index, self.k)?;
            return Some((target, target));
        }
        let behind = |skip: u8| index + 1 + usize::from(skip);
        self.is_conditional()
            .then(|| (behind(self.jump_true), behind(self.jump_false)))
    }
}

/// Target of the `ja` at `index`. The distance `k` is signed, as in libpcap's interpreter. `None`
/// if the target is before the first instruction.
#[must_use]
pub fn jump_target(index: usize, k: u32) -> Option<usize> {
    (index + 1).checked_add_signed(k.cast_signed() as isize)
}

/// Bytes that a load from the packet reads; 0 for any other operation code.
#[must_use]
pub fn load_bytes(code: u16) -> u32 {
    match code {
        op::LD_W_ABS | op::LD_W_IND => 4,
        op::LD_H_ABS | op::LD_H_IND => 2,
        op::LD_B_ABS | op::LD_B_IND | op::LDX_B_MSH => 1,
        _ => 0,
    }
}

/// Whether libpcap's interpreter runs this operation code.
#[must_use]
pub fn is_known(code: u16) -> bool {
    text::operation(code).is_some()
}

/// Scratch memory words of a program (`BPF_MEMWORDS`).
pub const MEMORY_WORDS: usize = 16;

/// In live filters, absolute loads at or above this offset read ancillary data instead of the
/// packet (`SKF_AD_OFF` of `linux/filter.h`).
pub const ANCILLARY: u32 = 0xffff_f000;
/// Ancillary offset of the packet type (`SKF_AD_PKTTYPE`).
pub const ANCILLARY_PACKET_TYPE: u32 = ANCILLARY + 4;
/// Ancillary offset of the interface index (`SKF_AD_IFINDEX`).
pub const ANCILLARY_INTERFACE: u32 = ANCILLARY + 8;

/// All operation codes that libpcap's interpreter runs. A name consists of the operation and, if
/// there are any, the size (`W`, `H`, `B`) or the source (`K`, `X`, `A`), and the addressing mode.
#[expect(missing_docs, reason = "a name says it: see the module")]
pub mod op {
    /// Bit in the codes of arithmetic operations and conditional jumps: the operand is `X` instead
    /// of the constant.
    pub const SOURCE_X: u16 = 0x08;
    pub const LD_W_ABS: u16 = 0x20;
    pub const LD_H_ABS: u16 = 0x28;
    pub const LD_B_ABS: u16 = 0x30;
    pub const LD_W_IND: u16 = 0x40;
    pub const LD_H_IND: u16 = 0x48;
    pub const LD_B_IND: u16 = 0x50;
    pub const LD_LEN: u16 = 0x80;
    pub const LD_IMM: u16 = 0x00;
    pub const LD_MEM: u16 = 0x60;
    pub const LDX_LEN: u16 = 0x81;
    pub const LDX_IMM: u16 = 0x01;
    pub const LDX_MEM: u16 = 0x61;
    pub const LDX_B_MSH: u16 = 0xb1;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ADD_K: u16 = 0x04;
    pub const ADD_X: u16 = 0x0c;
    pub const SUB_K: u16 = 0x14;
    pub const SUB_X: u16 = 0x1c;
    pub const MUL_K: u16 = 0x24;
    pub const MUL_X: u16 = 0x2c;
    pub const DIV_K: u16 = 0x34;
    pub const DIV_X: u16 = 0x3c;
    pub const OR_K: u16 = 0x44;
    pub const OR_X: u16 = 0x4c;
    pub const AND_K: u16 = 0x54;
    pub const AND_X: u16 = 0x5c;
    pub const LSH_K: u16 = 0x64;
    pub const LSH_X: u16 = 0x6c;
    pub const RSH_K: u16 = 0x74;
    pub const RSH_X: u16 = 0x7c;
    pub const NEG: u16 = 0x84;
    pub const MOD_K: u16 = 0x94;
    pub const MOD_X: u16 = 0x9c;
    pub const XOR_K: u16 = 0xa4;
    pub const XOR_X: u16 = 0xac;
    pub const JA: u16 = 0x05;
    pub const JEQ_K: u16 = 0x15;
    pub const JEQ_X: u16 = 0x1d;
    pub const JGT_K: u16 = 0x25;
    pub const JGT_X: u16 = 0x2d;
    pub const JGE_K: u16 = 0x35;
    pub const JGE_X: u16 = 0x3d;
    pub const JSET_K: u16 = 0x45;
    pub const JSET_X: u16 = 0x4d;
    pub const RET_K: u16 = 0x06;
    pub const RET_A: u16 = 0x16;
    pub const TAX: u16 = 0x07;
    pub const TXA: u16 = 0x87;
}
