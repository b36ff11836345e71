//! The captured bytes that a program needs, computed backwards from its ends.
//!
//! For each instruction: the number of captured bytes without which no path from here accepts the
//! packet. One check for that number covers all loads from these bytes. If the packet is shorter,
//! the result is 0 whichever load would have failed.

use retroscope_bpf::{ANCILLARY, Instruction, load_bytes, op};

/// Captured bytes that every accepted packet has, seen from an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// Bytes from the start of the packet; [`Self::NEVER`] only if every path ends with 0.
    pub(super) captured: u64,
    /// Bytes after the offset in `X`, while `X` keeps its value.
    pub(super) after_x: u64,
}

impl Need {
    /// No packet is this long.
    pub(super) const NEVER: u64 = u64::MAX;

    const NOTHING: Self = Self {
        captured: 0,
        after_x: 0,
    };

    pub(super) fn is_never(self) -> bool {
        self.captured == Self::NEVER
    }

    fn either(self, other: Self) -> Self {
        Self {
            captured: self.captured.min(other.captured),
            after_x: self.after_x.min(other.after_x),
        }
    }

    /// The need before an instruction that changes `X`.
    fn before_new_x(self) -> Self {
        let after_x = if self.is_never() { Self::NEVER } else { 0 };
        Self { after_x, ..self }
    }
}

#[derive(Debug)]
pub(super) struct Outline {
    /// Need before each instruction.
    pub(super) needs: Vec<Need>,
    pub(super) roles: Vec<InstructionRole>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InstructionRole {
    /// Whether a jump, conditional or not, leads here.
    pub(super) starts_block: bool,
    /// Whether a later instruction, or this one, jumps here.
    pub(super) is_loop_head: bool,
}

impl Outline {
    pub(super) fn new(instructions: &[Instruction], ancillary: bool) -> Self {
        let mut outline = Self {
            needs: vec![Need::NOTHING; instructions.len()],
            roles: vec![InstructionRole::default(); instructions.len()],
        };
        for (index, instruction) in instructions.iter().enumerate().rev() {
            outline.needs[index] = outline.need_before(index, instruction, ancillary);
            outline.mark(index, instruction);
        }
        outline
    }

    fn need_before(&self, index: usize, instruction: &Instruction, ancillary: bool) -> Need {
        let k = instruction.k;
        if let Some(targets) = instruction.targets(index) {
            // The need of an earlier target is still unknown. To assume no need is always correct.
            let need = |target: usize| {
                if target > index {
                    self.needs[target]
                } else {
                    Need::NOTHING
                }
            };
            return need(targets.0).either(need(targets.1));
        }
        let never = Need {
            captured: Need::NEVER,
            after_x: Need::NEVER,
        };
        match instruction.code {
            op::RET_K if k == 0 => return never,
            op::RET_K | op::RET_A => return Need::NOTHING,
            _ => {}
        }
        // Checked instructions end with a return, so another instruction follows.
        let next = self.needs[index + 1];
        match instruction.code {
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS if ancillary && k >= ANCILLARY => next,
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => Need {
                captured: next.captured.max(end(instruction)),
                ..next
            },
            op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => Need {
                after_x: next.after_x.max(end(instruction)),
                ..next
            },
            op::LDX_B_MSH => Need {
                captured: next.captured.max(end(instruction)),
                ..next.before_new_x()
            },
            op::TAX | op::LDX_IMM | op::LDX_LEN | op::LDX_MEM => next.before_new_x(),
            _ => next,
        }
    }

    fn mark(&mut self, index: usize, instruction: &Instruction) {
        let Some(targets) = instruction.targets(index) else {
            return;
        };
        for target in [targets.0, targets.1] {
            self.roles[target].starts_block = true;
            if target <= index {
                self.roles[target].is_loop_head = true;
            }
        }
    }
}

/// End of the bytes that a load reads, counted from the load's base.
pub(super) fn end(instruction: &Instruction) -> u64 {
    u64::from(instruction.k) + u64::from(load_bytes(instruction.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(code: u16, k: u32) -> Instruction {
        Instruction::new(code, 0, 0, k)
    }

    fn need(captured: u64, after_x: u64) -> Need {
        Need { captured, after_x }
    }

    #[test]
    fn a_need_is_what_every_accepted_packet_has() {
        let program = [
            plain(op::LD_H_ABS, 12),
            Instruction::new(op::JEQ_K, 0, 5, 0x800),
            plain(op::LDX_B_MSH, 14),
            plain(op::LD_H_IND, 14),
            Instruction::new(op::JEQ_K, 1, 0, 80),
            plain(op::LD_H_IND, 16),
            plain(op::RET_A, 0),
            plain(op::RET_K, 0),
        ];
        let outline = Outline::new(&program, false);
        let needs: Vec<Need> = (0..program.len())
            .map(|index| outline.needs[index])
            .collect();
        let never = need(Need::NEVER, Need::NEVER);
        let expected = [
            need(15, 0),
            need(15, 0),
            need(15, 0),
            need(0, 16),
            need(0, 0),
            need(0, 18),
            need(0, 0),
            never,
        ];
        assert_eq!(needs, expected);
    }

    #[test]
    fn a_way_back_needs_nothing_and_starts_a_block() {
        let program = [
            plain(op::LD_B_ABS, 9),
            Instruction::new(op::JEQ_K, 0, 1, 6),
            plain(op::JA, (-3_i32).cast_unsigned()),
            plain(op::LD_B_ABS, 99),
            plain(op::RET_K, 1),
        ];
        let outline = Outline::new(&program, false);
        assert!(outline.roles[0].is_loop_head && outline.roles[0].starts_block);
        assert_eq!(outline.needs[0], need(10, 0));
        assert_eq!(outline.needs[3], need(100, 0));
    }

    #[test]
    fn live_ancillary_data_is_no_byte_of_the_packet() {
        let program = [plain(op::LD_W_ABS, ANCILLARY + 4), plain(op::RET_A, 0)];
        assert_eq!(Outline::new(&program, true).needs[0], need(0, 0));
        let beyond = u64::from(ANCILLARY) + 8;
        assert_eq!(Outline::new(&program, false).needs[0], need(beyond, 0));
    }
}
