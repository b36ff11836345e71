//! The interpreter of classic BPF: safe code, no allocation, no panic.
//!
//! The interpreter defines what a program means. Apart from ancillary data, the limit on backward
//! jumps and results that C leaves undefined, the interpreter follows libpcap's `bpf_filter`.

use retroscope_bpf::{
    ANCILLARY, ANCILLARY_INTERFACE, ANCILLARY_PACKET_TYPE, Instruction, MEMORY_WORDS, jump_target,
    op,
};

use crate::frame::PackedAux;

/// Maximum number of backward jumps before a run stops with 0. `protochain` makes one backward jump
/// for each extension header. The smallest header has 8 bytes, a packet usually at most 256 KiB.
pub(crate) const BACKWARD_JUMPS_MAX: u32 = 65_536;

/// Runs validated instructions. Returns the number of bytes to keep; `None` means 0. Without `aux`,
/// absolute loads always read the packet.
pub(crate) fn run(
    instructions: &[Instruction],
    packet: &[u8],
    wire_len: u32,
    aux: Option<PackedAux>,
) -> Option<u32> {
    let mut a = 0_u32;
    let mut x = 0_u32;
    let mut memory = [0_u32; MEMORY_WORDS];
    let mut backward_jumps = 0;
    let mut index = 0;
    loop {
        // A program that `Program::new` accepted never runs past its end.
        let instruction = instructions.get(index)?;
        let k = instruction.k;
        index += 1;
        match instruction.code {
            op::RET_K => return Some(k),
            op::RET_A => return Some(a),
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS if k >= ANCILLARY && aux.is_some() => {
                a = ancillary(k, aux?)?;
            }
            op::LD_W_ABS => a = word(packet, k)?,
            op::LD_H_ABS => a = half(packet, k)?,
            op::LD_B_ABS => a = byte(packet, k)?,
            op::LD_W_IND => a = word(packet, x.checked_add(k)?)?,
            op::LD_H_IND => a = half(packet, x.checked_add(k)?)?,
            op::LD_B_IND => a = byte(packet, x.checked_add(k)?)?,
            op::LDX_B_MSH => x = (byte(packet, k)? & 0x0f) << 2,
            op::LD_LEN => a = wire_len,
            op::LDX_LEN => x = wire_len,
            op::LD_IMM => a = k,
            op::LDX_IMM => x = k,
            op::LD_MEM => a = memory[scratch(k)],
            op::LDX_MEM => x = memory[scratch(k)],
            op::ST => memory[scratch(k)] = a,
            op::STX => memory[scratch(k)] = x,
            op::TAX => x = a,
            op::TXA => a = x,
            op::JA => {
                let target = jump_target(index - 1, k)?;
                if target < index {
                    backward_jumps += 1;
                    if backward_jumps > BACKWARD_JUMPS_MAX {
                        return None;
                    }
                }
                index = target;
            }
            op::JEQ_K => index += skip(instruction, a == k),
            op::JEQ_X => index += skip(instruction, a == x),
            op::JGT_K => index += skip(instruction, a > k),
            op::JGT_X => index += skip(instruction, a > x),
            op::JGE_K => index += skip(instruction, a >= k),
            op::JGE_X => index += skip(instruction, a >= x),
            op::JSET_K => index += skip(instruction, a & k != 0),
            op::JSET_X => index += skip(instruction, a & x != 0),
            op::NEG => a = a.wrapping_neg(),
            code => a = arithmetic(code, a, if code & op::SOURCE_X == 0 { k } else { x })?,
        }
    }
}

fn skip(instruction: &Instruction, condition: bool) -> usize {
    usize::from(if condition {
        instruction.jump_true
    } else {
        instruction.jump_false
    })
}

/// Applies the operation of `code` to `a` and `operand`. `None` for a division by zero. C does not
/// define shifts by 32 bits or more; here they give 0, as in libpcap's interpreter for shifts by
/// `X`.
#[inline]
pub(crate) fn arithmetic(code: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match code {
        op::ADD_K | op::ADD_X => a.wrapping_add(operand),
        op::SUB_K | op::SUB_X => a.wrapping_sub(operand),
        op::MUL_K | op::MUL_X => a.wrapping_mul(operand),
        op::DIV_K | op::DIV_X => a.checked_div(operand)?,
        op::MOD_K | op::MOD_X => a.checked_rem(operand)?,
        op::AND_K | op::AND_X => a & operand,
        op::OR_K | op::OR_X => a | operand,
        op::XOR_K | op::XOR_X => a ^ operand,
        op::LSH_K | op::LSH_X => a.checked_shl(operand).unwrap_or(0),
        op::RSH_K | op::RSH_X => a.checked_shr(operand).unwrap_or(0),
        _ => return None,
    })
}

/// A validated scratch index is below `MEMORY_WORDS`. The mask shows the compiler this bound.
fn scratch(k: u32) -> usize {
    const _: () = assert!(MEMORY_WORDS.is_power_of_two());
    k as usize & (MEMORY_WORDS - 1)
}

fn word(packet: &[u8], at: u32) -> Option<u32> {
    bytes(packet, at).map(u32::from_be_bytes)
}

fn half(packet: &[u8], at: u32) -> Option<u32> {
    bytes(packet, at).map(|half| u16::from_be_bytes(half).into())
}

#[inline]
fn bytes<const N: usize>(packet: &[u8], at: u32) -> Option<[u8; N]> {
    packet.get(at as usize..)?.first_chunk().copied()
}

fn byte(packet: &[u8], at: u32) -> Option<u32> {
    packet.get(at as usize).map(|byte| u32::from(*byte))
}

fn ancillary(k: u32, aux: PackedAux) -> Option<u32> {
    match k {
        ANCILLARY_PACKET_TYPE => aux.packet_type(),
        ANCILLARY_INTERFACE => aux.interface(),
        _ => None,
    }
}
