//! Runs the rewritten program against the original, on a model of the frame that the kernel
//! presents to a socket's program.

use retroscope_filter::{Aux, FilterMode, LinkContext, Program, compile};
use retroscope_packet::LinkType;

use super::*;

/// A frame as a socket's program reads it.
struct SocketFrame {
    data: Vec<u8>,
    /// Protocol identifier and control information of the removed tag.
    tag: Option<(u16, u16)>,
}

impl SocketFrame {
    fn of(wire: &[u8]) -> Self {
        let tag = match wire.get(12..16) {
            Some([0x81 | 0x88, low, tci @ ..]) if [0x00, 0xa8].contains(low) => {
                (wire[12], *low, u16::from_be_bytes([tci[0], tci[1]]))
            }
            _ => {
                return Self {
                    data: wire.to_vec(),
                    tag: None,
                };
            }
        };
        Self {
            data: [&wire[..12], &wire[16..]].concat(),
            tag: Some((u16::from_be_bytes([tag.0, tag.1]), tag.2)),
        }
    }

    /// A load with the kernel's semantics; `None` rejects the frame.
    fn load(&self, at: u32, size: u32) -> Option<u32> {
        match at {
            VLAN_PRESENT => Some(u32::from(self.tag.is_some())),
            VLAN_TPID => Some(u32::from(self.tag.map_or(0, |tag| tag.0))),
            VLAN_TCI => Some(u32::from(self.tag.map_or(0, |tag| tag.1))),
            _ => {
                let bytes = self.data.get(at as usize..)?.get(..size as usize)?;
                Some(
                    bytes
                        .iter()
                        .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
                )
            }
        }
    }

    /// The result of the kernel's interpreter, by the rules of its
    /// `Documentation/networking/filter.rst`.
    fn run(&self, program: &[Instruction]) -> u32 {
        self.try_run(program).unwrap_or(0)
    }

    fn try_run(&self, program: &[Instruction]) -> Option<u32> {
        let (mut a, mut x, mut memory, mut index) = (0_u32, 0_u32, [0_u32; 16], 0);
        loop {
            let Instruction {
                code,
                jump_true,
                jump_false,
                k,
            } = program[index];
            index += 1;
            let operand = if code & 0x08 == 0 { k } else { x };
            match code {
                op::RET_K => return Some(k),
                op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => a = self.load(k, load_bytes(code))?,
                op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => {
                    a = self.load(x + k, load_bytes(code))?
                }
                op::LDX_B_MSH => x = (self.load(k, 1)? & 15) * 4,
                op::LD_LEN => a = u32::try_from(self.data.len()).unwrap(),
                op::LD_IMM => a = k,
                op::LDX_IMM => x = k,
                op::LD_MEM => a = memory[k as usize],
                op::LDX_MEM => x = memory[k as usize],
                op::ST => memory[k as usize] = a,
                op::STX => memory[k as usize] = x,
                op::TAX => x = a,
                op::TXA => a = x,
                op::NEG => a = a.wrapping_neg(),
                op::ADD_K | op::ADD_X => a = a.wrapping_add(operand),
                op::SUB_K | op::SUB_X => a = a.wrapping_sub(operand),
                op::MUL_K | op::MUL_X => a = a.wrapping_mul(operand),
                op::DIV_K | op::DIV_X => a = a.checked_div(operand)?,
                op::MOD_K | op::MOD_X => a = a.checked_rem(operand)?,
                op::AND_K | op::AND_X => a &= operand,
                op::OR_K | op::OR_X => a |= operand,
                op::XOR_K | op::XOR_X => a ^= operand,
                op::LSH_K => a <<= k,
                op::RSH_K => a >>= k,
                op::JA => index += k as usize,
                _ => {
                    let holds = match code & 0xf0 {
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        _ => a & operand != 0,
                    };
                    assert!(program[index - 1].is_conditional(), "code {code:#x}");
                    index += usize::from(if holds { jump_true } else { jump_false });
                }
            }
        }
    }
}

/// libpcap's program for a live Ethernet interface.
fn compiled(expression: &str, optimize: bool) -> Program {
    let link = LinkContext {
        link_type: LinkType::ETHERNET,
        snaplen: 262_144,
        mode: FilterMode::Live,
        optimize,
    };
    compile(expression, link).unwrap()
}

/// Expressions that the kernel may decide.
const TAKEN: [&str; 30] = [
    "ip",
    "ip6",
    "arp",
    "vlan",
    "vlan 10",
    "not vlan",
    "vlan and tcp",
    "vlan 10 and udp port 53",
    "vlan and vlan",
    "vlan 20 and vlan 30",
    "vlan and vlan and ip",
    "tcp",
    "udp port 53",
    "tcp port 80 or udp port 53",
    "host 10.0.0.1",
    "net 10.0.0.0/8 and not port 22",
    "ip6 host 2001:db8::1",
    "ether host 02:00:00:00:00:02",
    "ether broadcast",
    "ether proto 0x88b5",
    "ether[14] = 0x20",
    "ether[15] & 0x0f = 10",
    "ether[12:2] = 0x8100",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "greater 100",
    "less 80",
    "len = 74",
    "ip[8] < 64 and ip[6:2] & 0x1fff = 0",
    "(vlan and ip) or (not vlan and ip6)",
];

/// Expressions that only user space decides.
const LEFT: [&str; 5] = [
    "inbound",
    "ip6 protochain 6",
    "ether[12:4] = 0x81000001",
    "ether[10:4] = 1",
    "ether[13:2] = 1",
];

/// Frames with several stacks of tags and payloads, some truncated.
fn frames(random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    const TAGS: [&[u8]; 8] = [
        &[],
        &[0x81, 0, 0x20, 10],
        &[0x81, 0, 0, 11],
        &[0x88, 0xa8, 0, 20, 0x81, 0, 0, 30],
        &[0x81, 0, 0, 20, 0x81, 0, 0, 30],
        &[0x91, 0, 0, 10],
        &[0x81, 0, 0, 10, 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2],
        &[0x81, 0],
    ];
    let mut frames = Vec::new();
    for tags in TAGS {
        for payload in 0..8 {
            let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
            if payload == 0 {
                frame[..6].fill(0xff);
            }
            frame.extend(tags);
            let port = *random.choice(&[53_u16, 80, 22, 4000]).unwrap();
            let mut transport = [random.u16(..).to_be_bytes(), port.to_be_bytes()].concat();
            transport.extend([
                0,
                0,
                0,
                1,
                0,
                0,
                0,
                0,
                0x50,
                random.u8(..),
                0,
                0,
                0,
                0,
                0,
                0,
            ]);
            transport.extend(*random.choice(&[b"GET ", b"POST"]).unwrap());
            match payload {
                0..=3 => {
                    frame.extend([8, 0, 0x45 + random.u8(0..2), 0, 0, 60, 0, 1]);
                    frame.extend(*random.choice(&[[0, 0], [0x20, 0], [0, 9]]).unwrap());
                    frame.extend([random.u8(..), *random.choice(&[6, 17, 1]).unwrap(), 0, 0]);
                    frame.extend([10, 0, 0, random.u8(0..3), 192, 168, 0, 1]);
                    frame.extend(&transport);
                }
                4 | 5 => {
                    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24]);
                    frame.extend([*random.choice(&[6, 17, 58, 0]).unwrap(), 64]);
                    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                    frame.push(random.u8(0..3));
                    frame.extend([0; 16]);
                    frame.extend(&transport);
                }
                6 => frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]),
                _ => frame.extend([0x88, 0xb5, 1, 2, 3]),
            }
            frame.resize(frame.len() + random.usize(0..60), 0);
            if random.u8(0..4) == 0 {
                frame.truncate(random.usize(14..=frame.len()));
            }
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn decides_as_the_filter_on_the_wire() {
    let seed = 7;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut counts = [[0; 2]; TAKEN.len()];
    for optimize in [true, false] {
        for (expression, counts) in TAKEN.iter().zip(&mut counts) {
            let program = compiled(expression, optimize);
            let Some(rewritten) = for_socket(program.instructions(), true, 100) else {
                // Unoptimized programs compute addresses.
                assert!(!optimize, "left to user space: {expression}");
                continue;
            };
            for wire in (0..20).flat_map(|_| frames(&mut random)) {
                let length = u32::try_from(wire.len()).unwrap();
                let taken = program.run(&wire, length, Aux::default()) != 0;
                counts[usize::from(taken)] += 1;
                let kept = SocketFrame::of(&wire).run(&rewritten);
                assert_eq!(
                    kept,
                    if taken { 100 } else { 0 },
                    "seed {seed}, '{expression}', {wire:02x?}"
                );
            }
        }
    }
    for (expression, [refused, taken]) in TAKEN.iter().zip(counts) {
        assert!(
            refused > 0 && taken > 0,
            "'{expression}': {refused}, {taken}"
        );
    }
}

/// If the rewrite accepts a random program, both programs must decide alike.
#[test]
fn decides_as_any_program() {
    let seed = 11;
    let mut random = fastrand::Rng::with_seed(seed);
    let codes: Vec<u16> = (0..=0xff)
        .filter(|code| ![op::RET_K, 0x16, op::JA, 0x85].contains(code))
        .collect();
    let (mut rewritten, mut taken) = (0, 0);
    let frames = frames(&mut random);
    for _ in 0..200_000 {
        let length = random.usize(1..12);
        let mut program: Vec<_> = (0..length)
            .map(|index| {
                let left = u8::try_from(length - index).unwrap();
                let k = *random
                    .choice(&[
                        0,
                        1,
                        2,
                        4,
                        8,
                        11,
                        12,
                        13,
                        14,
                        15,
                        16,
                        17,
                        20,
                        23,
                        26,
                        60,
                        0x800,
                        0x8100,
                        0xffff,
                        1 << 20,
                        u32::MAX,
                    ])
                    .unwrap();
                Instruction::new(
                    *random.choice(&codes).unwrap(),
                    random.u8(0..left),
                    random.u8(0..left),
                    k,
                )
            })
            .collect();
        // The last comparison makes the decision depend on A.
        program.push(Instruction::new(op::JGT_K, 0, 1, random.u32(0..300)));
        program.push(Instruction::ret(1));
        program.push(Instruction::ret(0));
        let Ok(original) = Program::new(program.clone(), false) else {
            continue;
        };
        let Some(for_kernel) = for_socket(&program, true, 1) else {
            continue;
        };
        rewritten += 1;
        for _ in 0..4 {
            let wire = random.choice(&frames).unwrap();
            let kept = original.run(wire, u32::try_from(wire.len()).unwrap(), Aux::default());
            taken += kept;
            assert_eq!(
                SocketFrame::of(wire).run(&for_kernel),
                kept,
                "seed {seed}: {program:?} {wire:02x?}"
            );
        }
    }
    assert!(rewritten > 1000 && taken > 100, "{rewritten}, {taken}");
}

#[test]
fn what_may_differ_is_left() {
    for expression in LEFT {
        let program = compiled(expression, true);
        assert_eq!(
            for_socket(program.instructions(), true, 100),
            None,
            "{expression}"
        );
    }
    let shift = [Instruction::new(0x6c, 0, 0, 0), Instruction::ret(1)];
    let computed = [
        Instruction::new(op::LD_LEN, 0, 0, 0),
        Instruction::new(0x16, 0, 0, 0),
    ];
    let far = [
        Instruction::new(op::LD_W_ABS, 0, 0, 14),
        Instruction::new(op::TAX, 0, 0, 0),
        Instruction::new(op::LD_B_IND, 0, 0, 20),
        Instruction::ret(1),
    ];
    for program in [&shift[..], &computed, &far] {
        assert_eq!(for_socket(program, true, 100), None);
    }
    let long = vec![Instruction::new(op::LD_IMM, 0, 0, 0); 2100];
    let long = [long, vec![Instruction::ret(1)]].concat();
    assert_eq!(for_socket(&long, true, 100), None, "twice is too long");
    assert!(for_socket(&long, false, 100).is_some());
}

#[test]
fn frames_without_tags_need_no_question() {
    let program = compiled("tcp", true);
    let rewritten = for_socket(program.instructions(), false, 7).unwrap();
    assert_eq!(rewritten.len(), program.instructions().len() + 1);
    assert!(rewritten.contains(&Instruction::ret(7)));
}
