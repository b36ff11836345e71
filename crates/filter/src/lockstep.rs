//! Many packets through one program together: each instruction for all packets that have come to it, then the next.
//!
//! A packet alone waits for each comparison before it knows its next instruction. Side by side the packets do not wait for
//! each other, what an instruction costs to find is paid once for all, and comparisons are vector instructions. Where the
//! packets lie in memory that was not read for long, their first loads are under way together.
//!
//! Jumps of classic BPF lead forward, so one pass is enough: a set of packets waits at each instruction, and when the pass
//! comes to it nobody joins any more.
//!
//! This is for programs that are not machine code yet, or cannot be. The meaning is that of `interpreter`, which runs the few
//! programs that do not fit: those with scratch memory, ancillary data, or backward jumps.

use retroscope_bpf::{ANCILLARY, Instruction, op};

use crate::{
    Frame,
    interpreter::{arithmetic, byte, half, word},
};

/// Packets of one run at most: a set is the bits of a `u64`.
pub(crate) const LANES: usize = 64;
/// Longer programs are left to the interpreter.
const INSTRUCTIONS_MAX: usize = 256;

/// A value of each packet.
type Values = [u32; LANES];

/// Whether [`run`] takes checked instructions.
pub(crate) fn fits(instructions: &[Instruction]) -> bool {
    instructions.len() <= INSTRUCTIONS_MAX && instructions.iter().all(is_known)
}

fn is_known(instruction: &Instruction) -> bool {
    let is_backward = instruction.k.cast_signed() < 0;
    match instruction.code {
        op::LD_MEM | op::LDX_MEM | op::ST | op::STX => false,
        op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => instruction.k < ANCILLARY,
        op::JA => !is_backward,
        _ => true,
    }
}

/// Runs instructions that fit on the packets of `frames`; bit `n` of the result tells whether packet `n` is kept. Panics if
/// there are more than [`LANES`].
#[inline]
pub(crate) fn run(instructions: &[Instruction], frames: &[Frame<'_>]) -> u64 {
    let count = frames.len();
    assert!(count <= LANES);
    let mut a: Values = [0; LANES];
    let mut x: Values = [0; LANES];
    let mut waiting = [0_u64; INSTRUCTIONS_MAX];
    waiting[0] = (0..count).fold(0, |set, lane| set | 1 << lane);
    let mut kept = 0;
    for (index, instruction) in instructions.iter().enumerate() {
        let here = waiting[index];
        if here == 0 {
            continue;
        }
        let k = instruction.k;
        let data = |lane: usize| frames[lane].data();
        let behind = |lane: usize| x[lane].checked_add(k);
        let on = match instruction.code {
            op::RET_K => {
                kept |= if k == 0 { 0 } else { here };
                continue;
            }
            op::RET_A => {
                kept |= here & !those(&a, &x, |a, _| a == 0);
                continue;
            }
            op::JA => {
                waiting[index + 1 + k as usize] |= here;
                continue;
            }
            code if instruction.is_conditional() => {
                let is_true = here & test(code, k, &a, &x);
                waiting[index + 1 + usize::from(instruction.jump_true)] |= is_true;
                waiting[index + 1 + usize::from(instruction.jump_false)] |= here & !is_true;
                continue;
            }
            op::LD_W_ABS => set(&mut a, here, |lane, _| word(data(lane), k)),
            op::LD_H_ABS => set(&mut a, here, |lane, _| half(data(lane), k)),
            op::LD_B_ABS => set(&mut a, here, |lane, _| byte(data(lane), k)),
            op::LD_W_IND => set(&mut a, here, |lane, _| word(data(lane), behind(lane)?)),
            op::LD_H_IND => set(&mut a, here, |lane, _| half(data(lane), behind(lane)?)),
            op::LD_B_IND => set(&mut a, here, |lane, _| byte(data(lane), behind(lane)?)),
            op::LDX_B_MSH => set(&mut x, here, |lane, _| {
                byte(data(lane), k).map(|byte| (byte & 0x0f) << 2)
            }),
            op::LD_LEN => set(&mut a, here, |lane, _| Some(frames[lane].wire_len())),
            op::LDX_LEN => set(&mut x, here, |lane, _| Some(frames[lane].wire_len())),
            op::LD_IMM => set(&mut a, here, |_, _| Some(k)),
            op::LDX_IMM => set(&mut x, here, |_, _| Some(k)),
            op::TAX => set(&mut x, here, |lane, _| Some(a[lane])),
            op::TXA => set(&mut a, here, |lane, _| Some(x[lane])),
            op::NEG => set(&mut a, here, |_, a| Some(a.wrapping_neg())),
            code => set(&mut a, here, |lane, a| {
                arithmetic(code, a, if code & op::SOURCE_X == 0 { k } else { x[lane] })
            }),
        };
        // Checked instructions end with a return: another instruction follows this one.
        waiting[index + 1] |= on;
    }
    kept
}

/// Sets the values of the packets in `here`; returns those whose run goes on, as `None` ends it.
#[inline]
fn set(values: &mut Values, here: u64, value: impl Fn(usize, u32) -> Option<u32>) -> u64 {
    let mut on = here;
    let mut left = here;
    while left != 0 {
        let lane = left.trailing_zeros() as usize % LANES;
        left &= left - 1;
        match value(lane, values[lane]) {
            Some(value) => values[lane] = value,
            None => on &= !(1 << lane),
        }
    }
    on
}

/// The packets for which a conditional jump's condition holds.
fn test(code: u16, k: u32, a: &Values, x: &Values) -> u64 {
    match code {
        op::JEQ_K => those(a, x, |a, _| a == k),
        op::JEQ_X => those(a, x, |a, x| a == x),
        op::JGT_K => those(a, x, |a, _| a > k),
        op::JGT_X => those(a, x, |a, x| a > x),
        op::JGE_K => those(a, x, |a, _| a >= k),
        op::JGE_X => those(a, x, |a, x| a >= x),
        op::JSET_K => those(a, x, |a, _| a & k != 0),
        op::JSET_X => those(a, x, |a, x| a & x != 0),
        _ => 0,
    }
}

/// The packets that a condition holds for. Asks for all 64, which is cheaper than to choose.
#[inline]
fn those(a: &Values, x: &Values, condition: impl Fn(u32, u32) -> bool) -> u64 {
    /// Moves bit 0 of byte `n` to bit `56 + n`; no two of the products' bits meet.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let (a, _) = a.as_chunks::<8>();
    let (x, _) = x.as_chunks::<8>();
    let groups = a.iter().zip(x);
    groups.rev().fold(0, |set, (a, x)| {
        let mut flags = [0; 8];
        for lane in 0..8 {
            flags[lane] = u8::from(condition(a[lane], x[lane]));
        }
        set << 8 | u64::from_le_bytes(flags).wrapping_mul(GATHER) >> 56
    })
}
