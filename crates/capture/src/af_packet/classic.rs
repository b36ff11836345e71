//! Classic BPF programs in front of the ring. A frame that a program rejects does not count as
//! received.

use retroscope_bpf::{ANCILLARY_PACKET_TYPE, Instruction, op};

use super::config::Sides;

/// `PACKET_OUTGOING` of packet(7).
const OUTGOING: u32 = 4;

pub(crate) const REJECT_ALL: [Instruction; 1] = [Instruction::ret(0)];

/// A socket's program that accepts frames of `sides` that `filter` accepts. `None`: accept every
/// frame.
///
/// `filter` returns the number of bytes to keep.
pub(super) fn program(sides: Sides, filter: Option<&[Instruction]>) -> Option<Vec<Instruction>> {
    if sides == Sides::Both {
        return filter.map(<[_]>::to_vec);
    }
    // Jump distances for an outgoing and an incoming frame: 1 continues with the filter, 0 rejects.
    let (outgoing, incoming) = if sides == Sides::Out { (1, 0) } else { (0, 1) };
    let mut program = vec![
        Instruction::new(op::LD_B_ABS, 0, 0, ANCILLARY_PACKET_TYPE),
        Instruction::new(op::JEQ_K, outgoing, incoming, OUTGOING),
        Instruction::ret(0),
    ];
    program.extend(filter.unwrap_or(&[Instruction::ret(u32::MAX)]));
    Some(program)
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
