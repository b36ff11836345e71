//! Rewrites a filter for frames as on the wire into a filter for frames in the form that a packet
//! socket presents.
//!
//! The NIC or the kernel removes an outermost VLAN tag (0x8100 or 0x88a8) of a received frame and
//! keeps the tag as metadata. So the rewritten program runs one of two copies. In the copy for
//! frames with a removed tag, offsets after the tag are 4 bytes smaller, and the frame's length is
//! 4 bytes larger. There the kernel's extensions provide the tag (`SKF_AD_VLAN_TPID`,
//! `SKF_AD_VLAN_TAG` of `linux/filter.h`).
//!
//! In that copy the protocol identifier is 0x8100 or 0x88a8 (`eth_type_vlan` of `linux/if_vlan.h`),
//! so a comparison with another value becomes a jump.
//!
//! The rewrite refuses a program that the kernel may decide otherwise than the recorder, for
//! example because of:
//! - loads that may overlap an edge of the tag, or may end beyond 64 KiB,
//! - tests of data outside the frame (`inbound`, `ifindex`),
//! - shifts by a variable number of bits, where libpcap and the kernel differ beyond 31,
//! - loops (`ip6 protochain`), and a computed return value.

use retroscope_bpf::{ANCILLARY, Instruction, MEMORY_WORDS, load_bytes, op};

/// Longest program that the kernel accepts (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;

/// Byte offsets of an outermost VLAN tag on the wire.
const TAG_START: u32 = 12;
const TAG_END: u32 = 16;
const TAG_BYTES: u32 = TAG_END - TAG_START;

/// Protocol identifiers of tags that the kernel removes.
const TPIDS: &[u16] = crate::VlanTag::TPIDS.split_at(2).0;

/// Largest end of a load. Beyond it, the kernel may have bytes that were not captured.
const REACH: u32 = 1 << 16;

/// `SKF_AD_VLAN_TAG`: the tag control information.
const VLAN_TCI: u32 = ANCILLARY + 44;
/// `SKF_AD_VLAN_TAG_PRESENT`.
const VLAN_PRESENT: u32 = ANCILLARY + 48;
/// `SKF_AD_VLAN_TPID`, since Linux 4.1.
const VLAN_TPID: u32 = ANCILLARY + 60;

/// The program for a socket that decides as `program` does about the frame on the wire, and keeps
/// `keep` bytes (at least 1). `may_be_tagged`: the kernel may have removed a VLAN tag from a frame.
/// `None`: user space must decide.
///
/// `program` must be valid: jumps stay inside, and the last instruction returns.
pub(super) fn for_socket(
    program: &[Instruction],
    may_be_tagged: bool,
    keep: u32,
) -> Option<Vec<Instruction>> {
    let plain = rewrite(program, SocketView::Whole, keep)?;
    if !may_be_tagged {
        return Some(plain).filter(|program| program.len() <= INSTRUCTIONS_MAX);
    }
    let tagged = rewrite(program, SocketView::TagBeside, keep)?;
    let mut both = vec![
        Instruction::new(op::LD_B_ABS, 0, 0, VLAN_PRESENT),
        Instruction::new(op::JEQ_K, 1, 0, 0),
        Instruction::new(op::JA, 0, 0, u32::try_from(plain.len()).ok()?),
    ];
    both.extend(plain);
    both.extend(tagged);
    Some(both).filter(|program| program.len() <= INSTRUCTIONS_MAX)
}

/// The form in which the socket presents the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketView {
    /// The frame as on the wire.
    Whole,
    /// The frame without its outermost VLAN tag.
    TagBeside,
}

/// The program for one form of the frame; `None`: a decision may differ, or a jump is too far.
fn rewrite(program: &[Instruction], view: SocketView, keep: u32) -> Option<Vec<Instruction>> {
    let states = states(program, view)?;
    // A starts at 0, also after the test for the tag.
    let mut out = vec![Instruction::new(op::LD_IMM, 0, 0, 0)];
    // The new position of each instruction.
    let mut places = Vec::with_capacity(program.len());
    for (one, state) in program.iter().zip(&states) {
        places.push(out.len());
        let Some(registers) = state else {
            // The program never reaches this instruction.
            out.push(Instruction::ret(0));
            continue;
        };
        match one.code {
            op::JEQ_K if registers.is_never(one.k) => {
                out.push(Instruction::new(op::JA, 0, 0, u32::from(one.jump_false)));
            }
            op::RET_K if one.k != 0 => out.push(Instruction::ret(keep)),
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => absolute(*one, view, &mut out)?,
            op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => {
                out.push(relocated(*one, registers.x, view)?);
            }
            op::LDX_B_MSH => out.push(relocated(*one, 0, view)?),
            op::LD_LEN if view == SocketView::TagBeside => {
                out.push(*one);
                out.push(Instruction::new(op::ADD_K, 0, 0, TAG_BYTES));
            }
            _ => out.push(*one),
        }
    }
    mend_jumps(program, &places, &mut out)?;
    Some(out)
}

/// Rewrites a load from a fixed offset.
fn absolute(load: Instruction, view: SocketView, out: &mut Vec<Instruction>) -> Option<()> {
    if let Some(load) = relocated(load, 0, view) {
        out.push(load);
        return Some(());
    }
    // Half words and bytes of the tag itself.
    let half = match load.k & !1 {
        TAG_START => VLAN_TPID,
        _ if (TAG_START..TAG_END).contains(&load.k) => VLAN_TCI,
        _ => return None,
    };
    out.push(Instruction::new(op::LD_H_ABS, 0, 0, half));
    match (load_bytes(load.code), load.k & 1) {
        (2, 0) => {}
        (1, 0) => out.push(Instruction::new(op::RSH_K, 0, 0, 8)),
        (1, _) => out.push(Instruction::new(op::AND_K, 0, 0, 0xff)),
        _ => return None,
    }
    Some(())
}

/// Rewrites the offset of a load for this form of the frame. `x_max`: largest value of X for a
/// relative load, otherwise 0. `None`: the load may overlap the tag, or may end beyond [`REACH`].
fn relocated(load: Instruction, x_max: u32, view: SocketView) -> Option<Instruction> {
    let end_max = x_max
        .checked_add(load.k)?
        .checked_add(load_bytes(load.code))
        .filter(|end_max| *end_max <= REACH)?;
    if view == SocketView::Whole || end_max <= TAG_START {
        return Some(load);
    }
    (load.k >= TAG_END).then(|| Instruction {
        k: load.k - TAG_BYTES,
        ..load
    })
}

/// Corrects the jump distances of the rewritten program. `places[n]`: where instruction `n` is now.
fn mend_jumps(program: &[Instruction], places: &[usize], out: &mut [Instruction]) -> Option<()> {
    for (index, one) in program.iter().enumerate() {
        let here = places[index];
        let distance = |target: usize| places.get(target)?.checked_sub(here + 1);
        let Some((if_true, if_false)) = one.targets(index) else {
            continue;
        };
        match &mut out[here] {
            // Also for a comparison that never holds, which became a jump.
            jump if jump.code == op::JA => jump.k = u32::try_from(distance(if_false)?).ok()?,
            jump if jump.is_conditional() => {
                jump.jump_true = u8::try_from(distance(if_true)?).ok()?;
                jump.jump_false = u8::try_from(distance(if_false)?).ok()?;
            }
            _ => {}
        }
    }
    Some(())
}

/// Upper bounds of the registers.
#[derive(Debug, Clone, Copy, Default)]
struct RegisterBounds {
    a: u32,
    x: u32,
    memory: [u32; MEMORY_WORDS],
    /// A contains the protocol identifier of a tag that the kernel removed.
    a_is_tpid: bool,
}

impl RegisterBounds {
    /// The bounds that hold on both paths to an instruction.
    fn join(&mut self, other: &Self) {
        self.a = self.a.max(other.a);
        self.x = self.x.max(other.x);
        self.a_is_tpid &= other.a_is_tpid;
        for (mine, other) in self.memory.iter_mut().zip(other.memory) {
            *mine = (*mine).max(other);
        }
    }

    fn is_never(&self, k: u32) -> bool {
        self.a_is_tpid && !TPIDS.iter().any(|&tpid| u32::from(tpid) == k)
    }

    /// Updates the bounds after an instruction that is no jump. `None`: libpcap and the kernel may
    /// treat this instruction differently.
    fn step(&mut self, one: &Instruction, view: SocketView) -> Option<()> {
        let k = one.k;
        self.a_is_tpid = match one.code {
            op::LD_H_ABS => view == SocketView::TagBeside && k == TAG_START,
            op::ST | op::STX | op::LDX_IMM | op::LDX_MEM | op::LDX_B_MSH | op::TAX => {
                self.a_is_tpid
            }
            _ => false,
        };
        let word = || k as usize & (MEMORY_WORDS - 1);
        // Arithmetic that may wrap can produce any value.
        let or_any = |value: Option<u32>| value.unwrap_or(u32::MAX);
        // All bits up to the highest set bit.
        let filled = |value: u32| u32::MAX.checked_shr(value.leading_zeros()).unwrap_or(0);
        match one.code {
            op::LD_W_ABS | op::LD_W_IND | op::LD_LEN => self.a = u32::MAX,
            op::LD_H_ABS | op::LD_H_IND => self.a = 0xffff,
            op::LD_B_ABS | op::LD_B_IND => self.a = 0xff,
            op::LD_IMM => self.a = k,
            op::LDX_IMM => self.x = k,
            op::LDX_B_MSH => self.x = 4 * 15,
            op::LD_MEM | op::LDX_MEM | op::ST | op::STX if k as usize >= MEMORY_WORDS => {
                return None;
            }
            op::LD_MEM => self.a = self.memory[word()],
            op::LDX_MEM => self.x = self.memory[word()],
            op::ST => self.memory[word()] = self.a,
            op::STX => self.memory[word()] = self.x,
            op::TAX => self.x = self.a,
            op::TXA => self.a = self.x,
            op::ADD_K => self.a = or_any(self.a.checked_add(k)),
            op::ADD_X => self.a = or_any(self.a.checked_add(self.x)),
            op::MUL_K => self.a = or_any(self.a.checked_mul(k)),
            op::MUL_X => self.a = or_any(self.a.checked_mul(self.x)),
            op::AND_K => self.a = self.a.min(k),
            op::AND_X => self.a = self.a.min(self.x),
            op::OR_K | op::XOR_K => self.a = filled(self.a | k),
            op::OR_X | op::XOR_X => self.a = filled(self.a | self.x),
            op::DIV_K | op::MOD_K if k == 0 => return None,
            op::DIV_K => self.a /= k,
            op::MOD_K => self.a = self.a.min(k - 1),
            // Division by an X of 0 rejects the frame in libpcap and in the kernel.
            op::DIV_X | op::MOD_X => {}
            op::LSH_K | op::RSH_K if k > 31 => return None,
            op::LSH_K => {
                self.a = if self.a.leading_zeros() >= k {
                    self.a << k
                } else {
                    u32::MAX
                }
            }
            op::RSH_K => self.a >>= k,
            op::SUB_K | op::SUB_X | op::NEG => self.a = u32::MAX,
            _ => return None,
        }
        Some(())
    }
}

/// The bounds before each instruction; an instruction without bounds is never reached. `None`: the
/// program has a backward jump, or an instruction that libpcap and the kernel may treat
/// differently.
fn states(program: &[Instruction], view: SocketView) -> Option<Vec<Option<RegisterBounds>>> {
    let mut states: Vec<Option<RegisterBounds>> = vec![None; program.len()];
    *states.first_mut()? = Some(RegisterBounds::default());
    for (index, one) in program.iter().enumerate() {
        let Some(mut registers) = states[index] else {
            continue;
        };
        let (one_way, other_way) = match one.targets(index) {
            _ if one.code == op::RET_K => continue,
            Some((_, if_false)) if one.code == op::JEQ_K && registers.is_never(one.k) => {
                (if_false, if_false)
            }
            Some(targets) => targets,
            None => {
                registers.step(one, view)?;
                (index + 1, index + 1)
            }
        };
        for target in [one_way, other_way] {
            let next = states.get_mut(target).filter(|_| target > index)?;
            match next {
                Some(next) => next.join(&registers),
                None => *next = Some(registers),
            }
        }
    }
    Some(states)
}

#[cfg(test)]
mod tests;
