//! A filter for frames as they were on the wire, rewritten for frames as a packet socket sees them.
//!
//! A frame's outermost VLAN tag never stands in the bytes that a socket's program reads: the NIC or the kernel took it out and
//! keeps it beside them. So the program is there twice, behind a question for the tag: as it is, for frames without one, and
//! rewritten for the others. There, bytes behind the tag are 4 places nearer, those of the tag itself are asked for by the
//! kernel's extensions (`SKF_AD_VLAN_TPID`, `SKF_AD_VLAN_TAG` of `linux/filter.h`), and the length is 4 more.
//!
//! There the protocol identifier is 0x8100 or 0x88a8, the only ones that the kernel takes out (`eth_type_vlan` of
//! `linux/if_vlan.h`). So what a filter does with frames that are IP right behind their addresses cannot be reached.
//!
//! That is done only where both programs must decide alike, whatever the frame. What is left to user space:
//! - loads that straddle the edge of the tag, and relative ones that may fall on it,
//! - loads beyond 64 KiB, where the kernel may have bytes that were not captured, and takes far addresses for negative ones,
//! - questions about anything but the frame (`inbound`, `ifindex`),
//! - shifts by a variable number of bits, where libpcap and the kernel differ beyond 31,
//! - loops (`ip6 protochain`), and programs that return what they computed.

use retroscope_bpf::{ANCILLARY, Instruction, MEMORY_WORDS, load_bytes, op};

/// The kernel takes no longer program (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;

/// Where an outermost VLAN tag stands in a frame on the wire, and where it ends.
const TAG_START: u32 = 12;
const TAG_END: u32 = 16;
const TAG_BYTES: u32 = TAG_END - TAG_START;

/// Protocol identifiers of tags that the kernel takes out.
const TPIDS: &[u16] = crate::VlanTag::TPIDS.split_at(2).0;

/// Loads end here at most: up to here a frame is captured as far as the kernel has it, and no address looks negative.
const REACH: u32 = 1 << 16;

/// `SKF_AD_VLAN_TAG`: the tag control information.
const VLAN_TCI: u32 = ANCILLARY + 44;
/// `SKF_AD_VLAN_TAG_PRESENT`.
const VLAN_PRESENT: u32 = ANCILLARY + 48;
/// `SKF_AD_VLAN_TPID`, since Linux 4.1.
const VLAN_TPID: u32 = ANCILLARY + 60;

/// The program for a socket that decides as `program` does about the frame on the wire, and keeps `keep` bytes, at least 1,
/// of a frame that it takes. `None`: user space has to decide.
///
/// `program` must be one that libpcap's or our interpreter runs: jumps stay inside, the last instruction returns.
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

/// How the socket sees the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketView {
    /// The frame as it was on the wire.
    Whole,
    /// The frame without its outermost VLAN tag.
    TagBeside,
}

/// The program for one view; `None`: not every frame would be decided alike.
fn rewrite(program: &[Instruction], view: SocketView, keep: u32) -> Option<Vec<Instruction>> {
    let states = states(program, view)?;
    // RegisterBounds start at 0, also behind the question for the tag.
    let mut out = vec![Instruction::new(op::LD_IMM, 0, 0, 0)];
    // Where each instruction went: jumps are mended by it.
    let mut places = Vec::with_capacity(program.len());
    for (one, state) in program.iter().zip(&states) {
        places.push(out.len());
        let Some(registers) = state else {
            // Never reached.
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

/// A load from a fixed place.
fn absolute(load: Instruction, view: SocketView, out: &mut Vec<Instruction>) -> Option<()> {
    if let Some(load) = relocated(load, 0, view) {
        out.push(load);
        return Some(());
    }
    // Halves and bytes of the tag itself.
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

/// A load relative to X, which is at most `x_max`, or to the start, where that is 0: from where it is in this view. `None`: it is not all
/// before the tag, nor all behind it.
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

/// Gives every jump of the rewritten program the distance that its target has now. `places[n]` is where the rewriting of
/// instruction `n` starts; a jump is always one instruction.
fn mend_jumps(program: &[Instruction], places: &[usize], out: &mut [Instruction]) -> Option<()> {
    for (index, one) in program.iter().enumerate() {
        let here = places[index];
        let distance = |target: usize| places.get(target)?.checked_sub(here + 1);
        let Some((if_true, if_false)) = one.targets(index) else {
            continue;
        };
        match &mut out[here] {
            // Also in the place of a comparison that never holds.
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

/// What is known of the registers: the most that each can be.
#[derive(Debug, Clone, Copy, Default)]
struct RegisterBounds {
    a: u32,
    x: u32,
    memory: [u32; MEMORY_WORDS],
    /// A holds the protocol identifier of a tag that the kernel took out.
    a_is_tpid: bool,
}

impl RegisterBounds {
    /// What holds on both ways here.
    fn join(&mut self, other: &Self) {
        self.a = self.a.max(other.a);
        self.x = self.x.max(other.x);
        self.a_is_tpid &= other.a_is_tpid;
        for (mine, other) in self.memory.iter_mut().zip(other.memory) {
            *mine = (*mine).max(other);
        }
    }

    /// Whether A cannot be `k`.
    fn is_never(&self, k: u32) -> bool {
        self.a_is_tpid && !TPIDS.iter().any(|&tpid| u32::from(tpid) == k)
    }

    /// After an instruction that is no jump. `None`: it is not one on which libpcap and the kernel agree.
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
        // Arithmetic that may wrap can leave anything.
        let or_any = |value: Option<u32>| value.unwrap_or(u32::MAX);
        // All bits up to the highest.
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
            // Division by an X of 0 rejects the frame, here as there.
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

/// What is known before each instruction; `None`: it is never reached. Follows the program, which has no loops, once from the
/// start. `None` for all: it has, or uses what libpcap and the kernel do not agree on.
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
            // A jump to nowhere takes no step.
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
