//! Decides whether a program reads no byte after the headers of a packet: see
//! [`Parsed::headers_end`](retroscope_packet::Parsed::headers_end).
//!
//! The length of the headers depends on the packet. So the module follows the program and remembers
//! the values of fields on every path to an instruction. A load is accepted if these values prove
//! that a header is at its offset. On Ethernet, for example, a load from a TCP header over IPv4
//! needs tests of the EtherType, of the protocol and of the fragment offset.
//!
//! Loops (`protochain`), most computed offsets, and every load on a link type that [`LinkLayout`]
//! does not have count as payload.

use std::collections::{BTreeMap, BTreeSet};

use retroscope_bpf::{ANCILLARY, Instruction, MEMORY_WORDS, load_bytes, op};
use retroscope_packet::LinkType;

use crate::{Program, link::LinkLayout};

/// Maximum number of values remembered of one field; a field with more counts as untested.
const VALUES_MAX: usize = 64;
/// Maximum number of fields remembered on a path; further fields count as untested. Bounds the
/// copies of the fields at the targets of jumps.
const FIELDS_MAX: usize = 64;
/// Maximum number of VLAN tags, and of MPLS labels, that are followed.
const SHIFTS_MAX: usize = 16;

const TPIDS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const ARP: u32 = 0x0806;
const RARP: u32 = 0x8035;
const MPLS: [u32; 2] = [0x8847, 0x8848];
const PPPOE_SESSION: u32 = 0x8864;
const IPV4_HEADER: u32 = 20;
const IPV6_HEADER: u32 = 40;

/// A field of the packet: offset, bytes, and the bits of its value that matter.
type HeaderField = (u32, u32, u32);

/// For each remembered field: the values that the field may have.
type FieldValues = BTreeMap<HeaderField, BTreeSet<u32>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RegisterValue {
    Unknown,
    Constant(u32),
    Field(HeaderField),
    /// The length of the IPv4 header at this offset.
    HeaderLen(u32),
}

/// Facts that hold before an instruction, on all paths from the start.
#[derive(Debug, Clone)]
struct PathState {
    a: RegisterValue,
    x: RegisterValue,
    memory: [RegisterValue; MEMORY_WORDS],
    facts: FieldValues,
}

/// The offset up to which the bytes of a well-formed packet belong to headers, and the offset of
/// its IPv4 header, if certain.
fn headers(layout: LinkLayout, facts: &FieldValues) -> (u32, Option<u32>) {
    match layout {
        LinkLayout::EtherType { at, bytes } => after_type(facts, at.into(), bytes.into()),
        LinkLayout::Ipv4 => ipv4(0),
        LinkLayout::Ipv6 => ipv6(facts, 0),
        LinkLayout::Raw => match only(facts, (0, 1, 0xf0)) {
            Some(0x40) => ipv4(0),
            Some(0x60) => ipv6(facts, 0),
            _ => (1, None),
        },
    }
}

/// Like [`headers`], for headers that begin at `at`, after a type field at `type_at`.
fn after_type(facts: &FieldValues, mut type_at: u32, mut at: u32) -> (u32, Option<u32>) {
    for _ in 0..SHIFTS_MAX {
        let field = (type_at, 2, 0xffff);
        if is_one_of(facts, field, &TPIDS) {
            (type_at, at) = (at + 2, at + 4);
        } else if is_one_of(facts, field, &MPLS) {
            return mpls(facts, at);
        } else if is_one_of(facts, field, &[ARP, RARP]) {
            return (at + 28, None);
        } else {
            return match only(facts, field) {
                Some(IPV4) => ipv4(at),
                Some(IPV6) => ipv6(facts, at),
                Some(PPPOE_SESSION) => pppoe(facts, at),
                _ => (at, None),
            };
        }
    }
    (at, None)
}

/// Like [`headers`], for a label stack at `at`. The lowest bit of a label's third byte marks the
/// last label.
fn mpls(facts: &FieldValues, mut at: u32) -> (u32, Option<u32>) {
    for _ in 0..SHIFTS_MAX {
        let is_last = (at + 2, 1, 1);
        at += 4;
        if only(facts, is_last) != Some(0) {
            break;
        }
    }
    (at, None)
}

fn pppoe(facts: &FieldValues, at: u32) -> (u32, Option<u32>) {
    let body = at + 8;
    match only(facts, (at + 6, 2, 0xffff)) {
        Some(0x0021) => ipv4(body),
        Some(0x0057) => ipv6(facts, body),
        _ => (body, None),
    }
}

fn ipv4(at: u32) -> (u32, Option<u32>) {
    (at + IPV4_HEADER, Some(at))
}

fn ipv6(facts: &FieldValues, at: u32) -> (u32, Option<u32>) {
    const FRAGMENT: u32 = 44;
    let next = (at + 6, 1, 0xff);
    let more = match facts.get(&next) {
        Some(values) if values.iter().all(|it| *it == FRAGMENT) => 8,
        Some(values) => shortest(values, 58),
        None => 0,
    };
    (at + IPV6_HEADER + more, None)
}

/// Length in bytes of the shortest header of these protocols, 0 for an unknown protocol. `icmp` is
/// the number of ICMP or ICMPv6.
fn shortest(protocols: &BTreeSet<u32>, icmp: u32) -> u32 {
    let bytes = protocols.iter().map(|protocol| match protocol {
        6 => 20,
        17 => 8,
        132 => 12,
        _ if *protocol == icmp => 4,
        _ => 0,
    });
    bytes.min().unwrap_or(0)
}

/// The value of a field, if the field can have only one value.
fn only(facts: &FieldValues, field: HeaderField) -> Option<u32> {
    let mut values = facts.get(&field)?.iter();
    let first = values.next().copied();
    first.filter(|_| values.next().is_none())
}

fn is_one_of(facts: &FieldValues, field: HeaderField, of: &[u32]) -> bool {
    let values = facts.get(&field);
    values.is_some_and(|values| values.iter().all(|value| of.contains(value)))
}

/// Whether a program reads only the headers of packets of a link type.
pub(crate) fn reads_headers_only(program: &Program, link_type: LinkType) -> bool {
    let instructions = program.instructions();
    let is_load = |it: &Instruction| load_bytes(it.code) > 0 || it.code == op::LDX_B_MSH;
    let Some(layout) = LinkLayout::of(link_type) else {
        return !instructions.iter().any(is_load);
    };
    let mut before: Vec<Option<PathState>> = vec![None; instructions.len()];
    before[0] = Some(PathState::new());
    for (index, instruction) in instructions.iter().enumerate() {
        // No path reaches the instruction.
        let Some(mut known) = before[index].take() else {
            continue;
        };
        if matches!(instruction.code, op::RET_K | op::RET_A) {
            continue;
        }
        let Some((if_true, if_false)) = instruction.targets(index) else {
            if known.step(*instruction, layout).is_none() {
                return false;
            }
            merge(&mut before[index + 1], known);
            continue;
        };
        if if_true.min(if_false) <= index {
            return false;
        }
        let (holds, fails) = known.decide(*instruction);
        merge(&mut before[if_true], holds);
        merge(&mut before[if_false], fails);
    }
    true
}

fn merge(known: &mut Option<PathState>, other: PathState) {
    match known {
        Some(known) => known.join(&other),
        None => *known = Some(other),
    }
}

impl PathState {
    fn new() -> Self {
        Self {
            a: RegisterValue::Constant(0),
            x: RegisterValue::Constant(0),
            memory: [RegisterValue::Constant(0); MEMORY_WORDS],
            facts: FieldValues::new(),
        }
    }

    /// Keeps the facts that hold on both paths.
    fn join(&mut self, other: &Self) {
        let join = |own: &mut RegisterValue, other: RegisterValue| {
            if *own != other {
                *own = RegisterValue::Unknown;
            }
        };
        join(&mut self.a, other.a);
        join(&mut self.x, other.x);
        for (own, other) in self.memory.iter_mut().zip(other.memory) {
            join(own, other);
        }
        self.facts.retain(|field, values| {
            let Some(others) = other.facts.get(field) else {
                return false;
            };
            values.extend(others);
            values.len() <= VALUES_MAX
        });
    }

    /// Updates the facts for an instruction that is no jump. `None` if the instruction may read
    /// payload.
    fn step(&mut self, instruction: Instruction, layout: LinkLayout) -> Option<()> {
        let Instruction { code, k, .. } = instruction;
        let word = || usize::try_from(k).ok().filter(|word| *word < MEMORY_WORDS);
        match code {
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => self.a = self.load(code, k, layout)?,
            op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => {
                self.a = match self.x {
                    RegisterValue::Constant(x) => self.load(code, x.wrapping_add(k), layout)?,
                    RegisterValue::HeaderLen(at) => self.load_after_ipv4(code, at, k, layout)?,
                    RegisterValue::Unknown | RegisterValue::Field(_) => return None,
                };
            }
            op::LDX_B_MSH => {
                self.load(op::LD_B_ABS, k, layout)?;
                self.x = RegisterValue::HeaderLen(k);
            }
            op::LD_IMM => self.a = RegisterValue::Constant(k),
            op::LDX_IMM => self.x = RegisterValue::Constant(k),
            op::LD_MEM => self.a = self.memory[word()?],
            op::LDX_MEM => self.x = self.memory[word()?],
            op::ST => self.memory[word()?] = self.a,
            op::STX => self.memory[word()?] = self.x,
            op::TAX => self.x = self.a,
            op::TXA => self.a = self.x,
            op::LDX_LEN => self.x = RegisterValue::Unknown,
            op::AND_K => {
                self.a = match self.a {
                    RegisterValue::Field((at, bytes, mask)) => {
                        RegisterValue::Field((at, bytes, mask & k))
                    }
                    RegisterValue::Constant(value) => RegisterValue::Constant(value & k),
                    RegisterValue::Unknown | RegisterValue::HeaderLen(_) => RegisterValue::Unknown,
                };
            }
            // A load of the packet's length, or arithmetic.
            _ if load_bytes(code) == 0 => self.a = RegisterValue::Unknown,
            _ => return None,
        }
        Some(())
    }

    /// The content that a load at the offset `at` gives. `None` if the load may read payload.
    fn load(&self, code: u16, at: u32, layout: LinkLayout) -> Option<RegisterValue> {
        if at >= ANCILLARY {
            // No byte of the packet: ancillary data, or an offset beyond every packet.
            return Some(RegisterValue::Unknown);
        }
        let bytes = load_bytes(code);
        let (end, _) = headers(layout, &self.facts);
        (at.checked_add(bytes)? <= end).then_some(())?;
        let mask = u32::MAX >> (32 - 8 * bytes);
        Some(RegisterValue::Field((at, bytes, mask)))
    }

    /// Like [`Self::load`], for the offset `at` plus the length of the IPv4 header at `header`.
    fn load_after_ipv4(
        &self,
        code: u16,
        header: u32,
        at: u32,
        layout: LinkLayout,
    ) -> Option<RegisterValue> {
        let (_, ipv4) = headers(layout, &self.facts);
        (ipv4 == Some(header)).then_some(())?;
        let is_first = only(&self.facts, (header + 6, 2, 0x1fff)) == Some(0);
        let protocols = self.facts.get(&(header + 9, 1, 0xff));
        let bytes = protocols.filter(|_| is_first);
        let bytes = bytes.map_or(0, |protocols| shortest(protocols, 1));
        let end = at.checked_sub(header)?.checked_add(load_bytes(code))?;
        (end <= bytes).then_some(RegisterValue::Unknown)
    }

    /// Remembers that a field has this value, if there is room. Without the fact fewer loads are
    /// accepted, so to drop a fact is safe.
    fn learn(&mut self, field: HeaderField, value: u32) {
        if self.facts.len() < FIELDS_MAX || self.facts.contains_key(&field) {
            self.facts.insert(field, BTreeSet::from([value]));
        }
    }

    /// The facts if the condition of a jump holds, and if not.
    fn decide(self, instruction: Instruction) -> (Self, Self) {
        let (mut holds, mut fails) = (self.clone(), self);
        let (RegisterValue::Field(field), k) = (holds.a, instruction.k) else {
            return (holds, fails);
        };
        match instruction.code {
            op::JEQ_K => {
                holds.learn(field, k);
                if let Some(values) = fails.facts.get_mut(&field) {
                    values.remove(&k);
                }
            }
            op::JSET_K => {
                let (at, bytes, mask) = field;
                let bits = (at, bytes, mask & k);
                fails.learn(bits, 0);
            }
            _ => {}
        }
        (holds, fails)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_remembers_a_bounded_number_of_fields() {
        let test = |code, k| Instruction {
            code,
            jump_true: 0,
            jump_false: 0,
            k,
        };
        let mut known = PathState::new();
        for at in 0..1000 {
            known.a = RegisterValue::Field((at, 1, 0xff));
            known = known.decide(test(op::JEQ_K, 7)).0;
            known = known.decide(test(op::JSET_K, 0x10)).1;
        }
        assert_eq!(known.facts.len(), FIELDS_MAX);
        known.a = RegisterValue::Field((0, 1, 0xff));
        known = known.decide(test(op::JEQ_K, 8)).0;
        assert_eq!(only(&known.facts, (0, 1, 0xff)), Some(8));
    }
}
