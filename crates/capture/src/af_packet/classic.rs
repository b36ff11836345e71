//! Classic BPF in front of the ring: what a socket does not take is not received, and so not counted.

use super::config::Sides;
use crate::Instruction;

const LOAD_BYTE: u16 = 0x30;
const JUMP_EQUAL: u16 = 0x15;

/// Loads beyond here ask the kernel about a frame (`SKF_AD_OFF` of `linux/filter.h`).
pub(super) const ANCILLARY: u32 = 0xffff_f000;
/// The packet type (`SKF_AD_PKTTYPE`).
const PACKET_TYPE: u32 = ANCILLARY + 4;
/// `PACKET_OUTGOING` of packet(7).
const OUTGOING: u32 = 4;

/// Rejects everything.
pub(crate) const REJECT_ALL: [Instruction; 1] = [Instruction::ret(0)];

/// What a socket takes: frames of `sides` that `filter`, if there is one, takes too. `None`: everything.
///
/// A `filter` returns how many bytes to keep, as every classic BPF program does.
pub(super) fn program(sides: Sides, filter: Option<&[Instruction]>) -> Option<Vec<Instruction>> {
    if sides == Sides::Both {
        return filter.map(<[_]>::to_vec);
    }
    // Equal, that is outgoing: go on or reject; else the other way round.
    let (outgoing, incoming) = if sides == Sides::Out { (1, 0) } else { (0, 1) };
    let mut program = vec![
        instruction(LOAD_BYTE, 0, 0, PACKET_TYPE),
        instruction(JUMP_EQUAL, outgoing, incoming, OUTGOING),
        Instruction::ret(0),
    ];
    program.extend(filter.unwrap_or(&[Instruction::ret(u32::MAX)]));
    Some(program)
}

/// An instruction.
pub(super) const fn instruction(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Instruction {
    Instruction {
        code,
        jump_true,
        jump_false,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_go_in_front_of_the_filter() {
        let filter = [Instruction::ret(96)];
        assert_eq!(program(Sides::Both, None), None);
        assert_eq!(program(Sides::Both, Some(&filter)).unwrap(), filter);
        let out = program(Sides::Out, Some(&filter)).unwrap();
        assert_eq!((out[1].jump_true, out[1].jump_false), (1, 0));
        assert_eq!(out[2..], [Instruction::ret(0), Instruction::ret(96)]);
        let into = program(Sides::In, None).unwrap();
        assert_eq!((into[1].jump_true, into[1].jump_false), (0, 1));
        assert_eq!(into[2..], [Instruction::ret(0), Instruction::ret(u32::MAX)]);
    }
}
