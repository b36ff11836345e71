//! Classic BPF instructions and their operation codes.

/// One classic BPF instruction, laid out as `struct bpf_insn` of `pcap/bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// Operation code: class, size or operation, mode or source.
    pub code: u16,
    /// Instructions to skip when a conditional jump's condition holds.
    pub jump_true: u8,
    /// Instructions to skip when it does not.
    pub jump_false: u8,
    /// The constant: offset, operand, jump distance or scratch index.
    pub k: u32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

impl Instruction {
    /// `ret #k`.
    #[must_use]
    pub const fn ret(k: u32) -> Self {
        Self {
            code: op::RET_K,
            jump_true: 0,
            jump_false: 0,
            k,
        }
    }

    /// Whether this is a jump with a condition and two targets.
    pub(crate) const fn is_conditional(&self) -> bool {
        self.code & 0x07 == 0x05 && self.code != op::JA
    }
}

/// Scratch memory words of a program (`BPF_MEMWORDS`).
pub(crate) const MEMORY_WORDS: usize = 16;

/// Absolute loads from here on do not read the packet but ancillary data (`SKF_AD_OFF` of `linux/filter.h`).
pub(crate) const ANCILLARY: u32 = 0xffff_f000;
/// Ancillary offset of the packet type (`SKF_AD_PKTTYPE`).
pub(crate) const ANCILLARY_PACKET_TYPE: u32 = ANCILLARY + 4;
/// Ancillary offset of the interface index (`SKF_AD_IFINDEX`).
pub(crate) const ANCILLARY_INTERFACE: u32 = ANCILLARY + 8;

/// Operation codes: every one that libpcap's interpreter runs. Names: operation, then size (`W`, `H`, `B`) or source
/// (`K`, `X`), then addressing mode.
pub(crate) mod op {
    pub(crate) const LD_W_ABS: u16 = 0x20;
    pub(crate) const LD_H_ABS: u16 = 0x28;
    pub(crate) const LD_B_ABS: u16 = 0x30;
    pub(crate) const LD_W_IND: u16 = 0x40;
    pub(crate) const LD_H_IND: u16 = 0x48;
    pub(crate) const LD_B_IND: u16 = 0x50;
    pub(crate) const LD_LEN: u16 = 0x80;
    pub(crate) const LD_IMM: u16 = 0x00;
    pub(crate) const LD_MEM: u16 = 0x60;
    pub(crate) const LDX_LEN: u16 = 0x81;
    pub(crate) const LDX_IMM: u16 = 0x01;
    pub(crate) const LDX_MEM: u16 = 0x61;
    pub(crate) const LDX_B_MSH: u16 = 0xb1;
    pub(crate) const ST: u16 = 0x02;
    pub(crate) const STX: u16 = 0x03;
    pub(crate) const ADD_K: u16 = 0x04;
    pub(crate) const ADD_X: u16 = 0x0c;
    pub(crate) const SUB_K: u16 = 0x14;
    pub(crate) const SUB_X: u16 = 0x1c;
    pub(crate) const MUL_K: u16 = 0x24;
    pub(crate) const MUL_X: u16 = 0x2c;
    pub(crate) const DIV_K: u16 = 0x34;
    pub(crate) const DIV_X: u16 = 0x3c;
    pub(crate) const OR_K: u16 = 0x44;
    pub(crate) const OR_X: u16 = 0x4c;
    pub(crate) const AND_K: u16 = 0x54;
    pub(crate) const AND_X: u16 = 0x5c;
    pub(crate) const LSH_K: u16 = 0x64;
    pub(crate) const LSH_X: u16 = 0x6c;
    pub(crate) const RSH_K: u16 = 0x74;
    pub(crate) const RSH_X: u16 = 0x7c;
    pub(crate) const NEG: u16 = 0x84;
    pub(crate) const MOD_K: u16 = 0x94;
    pub(crate) const MOD_X: u16 = 0x9c;
    pub(crate) const XOR_K: u16 = 0xa4;
    pub(crate) const XOR_X: u16 = 0xac;
    pub(crate) const JA: u16 = 0x05;
    pub(crate) const JEQ_K: u16 = 0x15;
    pub(crate) const JEQ_X: u16 = 0x1d;
    pub(crate) const JGT_K: u16 = 0x25;
    pub(crate) const JGT_X: u16 = 0x2d;
    pub(crate) const JGE_K: u16 = 0x35;
    pub(crate) const JGE_X: u16 = 0x3d;
    pub(crate) const JSET_K: u16 = 0x45;
    pub(crate) const JSET_X: u16 = 0x4d;
    pub(crate) const RET_K: u16 = 0x06;
    pub(crate) const RET_A: u16 = 0x16;
    pub(crate) const TAX: u16 = 0x07;
    pub(crate) const TXA: u16 = 0x87;
}
