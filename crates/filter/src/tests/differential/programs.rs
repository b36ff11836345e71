//! Valid programs that libpcap would never make.

use super::{Judges, Libpcap, Trials, packets::packets};
use retroscope_bpf::{ANCILLARY, Instruction, is_known, op};

use crate::Program;

const PACKETS_EACH: usize = 24;

fn plain(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        k,
    }
}

/// All operation codes that programs may contain.
fn codes() -> Vec<u16> {
    (0..=0xff_u16).filter(|code| is_known(*code)).collect()
}

/// Operation codes that libpcap's interpreter defines for every constant. It leaves shifts by 32
/// and more to C.
fn defined_codes() -> Vec<u16> {
    let mut codes = codes();
    codes.retain(|code| !matches!(*code, op::LSH_K | op::RSH_K));
    codes
}

/// A random instruction, which `left` more random instructions follow. Its jumps lead at most to
/// the instruction after these.
fn instruction(random: &mut fastrand::Rng, codes: &[u16], left: usize) -> Instruction {
    let code = codes[random.usize(..codes.len())];
    let reach = u8::try_from(left.min(6)).expect("at most 6") + 1;
    let k = match code {
        op::LD_MEM | op::LDX_MEM | op::ST | op::STX => random.u32(..16),
        op::DIV_K | op::MOD_K => random.u32(1..),
        op::JA => random.u32(..u32::from(reach)),
        op::LSH_K | op::RSH_K => random.u32(..40),
        // Mostly offsets inside a packet, sometimes values at the limits of the number range.
        _ => match random.u8(..8) {
            0 => u32::MAX - random.u32(..8),
            1 => random.u32(..),
            2 => i32::MAX.cast_unsigned() - 2 + random.u32(..5),
            _ => random.u32(..70),
        },
    };
    Instruction {
        code,
        jump_true: random.u8(..reach),
        jump_false: random.u8(..reach),
        k,
    }
}

fn body(random: &mut fastrand::Rng, codes: &[u16], len: usize) -> Vec<Instruction> {
    (0..len)
        .map(|index| instruction(random, codes, len - 1 - index))
        .collect()
}

fn last(random: &mut fastrand::Rng) -> Instruction {
    match random.u8(..4) {
        0 => Instruction::ret(random.u32(..)),
        _ => plain(op::RET_A, 0),
    }
}

#[test]
fn random_programs_mean_the_same_to_all() {
    let mut judges = Judges::new();
    let codes = defined_codes();
    let mut without_memory = codes.clone();
    without_memory.retain(|code| !matches!(*code, op::ST | op::STX | op::LD_MEM | op::LDX_MEM));
    for seed in Trials::new(1500) {
        let random = &mut fastrand::Rng::with_seed(seed);
        // libpcap does not initialize scratch memory. So a program either writes all 16 words
        // first, or uses no scratch memory.
        let (codes, words) = if random.bool() {
            (&codes, 16)
        } else {
            (&without_memory, 0)
        };
        let mut program: Vec<Instruction> = (0..words).map(|word| plain(op::ST, word)).collect();
        let len = random.usize(1..24);
        program.extend(body(random, codes, len));
        program.push(last(random));
        let packets = packets(random, PACKETS_EACH);
        judges.compare_instructions(seed, program, Libpcap::Asked, &packets);
    }
    judges.must_have_seen_both();
}

#[test]
fn what_libpcap_leaves_open_means_the_same_to_us() {
    let mut judges = Judges::new();
    let codes = codes();
    for seed in Trials::new(1000) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let len = random.usize(1..32);
        let mut program = body(random, &codes, len);
        program.push(last(random));
        let packets = packets(random, PACKETS_EACH);
        judges.compare_instructions(seed, program, Libpcap::NotAsked, &packets);
    }
    judges.must_have_seen_both();
}

/// Instructions of any kind.
pub(super) fn any(random: &mut fastrand::Rng) -> Vec<Instruction> {
    let codes = codes();
    let len = random.usize(1..24);
    let mut program = body(random, &codes, len);
    program.push(last(random));
    program
}

/// Mostly loads at fixed offsets and relative to `X`, comparisons, and returns: the programs in
/// which bounds checks are merged.
pub(super) fn branches(random: &mut fastrand::Rng) -> Vec<Instruction> {
    const CODES: [u16; 16] = [
        op::LD_W_ABS,
        op::LD_H_ABS,
        op::LD_B_ABS,
        op::LD_W_IND,
        op::LD_H_IND,
        op::LD_B_IND,
        op::LDX_B_MSH,
        op::TAX,
        op::LDX_IMM,
        op::AND_K,
        op::JEQ_K,
        op::JSET_K,
        op::JGT_K,
        op::JGE_X,
        op::RET_K,
        op::JA,
    ];
    let len = random.usize(4..40);
    let mut program = body(random, &CODES, len);
    for instruction in &mut program {
        match instruction.code {
            op::RET_K => instruction.k = u32::from(random.bool()),
            op::JEQ_K | op::JSET_K => instruction.k = random.u32(..4),
            _ => {}
        }
    }
    program.push(Instruction::ret(random.u32(..2)));
    program
}

#[test]
fn loads_and_branches_mean_the_same_to_all() {
    let mut judges = Judges::new();
    for seed in Trials::new(1500) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let program = branches(random);
        let packets = packets(random, PACKETS_EACH);
        judges.compare_instructions(seed, program, Libpcap::Asked, &packets);
    }
    judges.must_have_seen_both();
}

/// Chains of comparisons, with few or many targets; constants may occur several times.
#[test]
fn long_lists_of_constants_mean_the_same_to_all() {
    let mut judges = Judges::new();
    for seed in Trials::new(300) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let loads = [op::LD_W_ABS, op::LD_H_ABS, op::LD_B_ABS, op::LD_LEN];
        let mut program = vec![plain(loads[random.usize(..4)], random.u32(..20))];
        if random.u8(..3) == 0 {
            program.push(plain(op::AND_K, 0xff0f_00f0));
        }
        let cases = random.usize(2..120);
        let targets = random.usize(1..20);
        let spread = [4, 300, u32::MAX][random.usize(..3)];
        for left in (0..cases).rev() {
            let target = left + 1 + random.usize(..targets);
            program.push(Instruction {
                code: op::JEQ_K,
                jump_true: u8::try_from(target).expect("below 140"),
                jump_false: 0,
                k: random.u32(..spread),
            });
        }
        program.push(Instruction::ret(0));
        for target in 0..targets {
            let bytes = u32::try_from(target).expect("below 20");
            program.push(Instruction::ret(bytes % 7));
        }
        let mut packets = packets(random, PACKETS_EACH);
        // Random bytes hardly ever equal a 32-bit constant, so the test writes some constants into
        // packets.
        for packet in &mut packets {
            let k = program[1 + random.usize(..cases)].k;
            let at = program[0].k as usize;
            if let Some(place) = packet.data.get_mut(at..at + 4) {
                place.copy_from_slice(&k.to_be_bytes());
            }
        }
        judges.compare_instructions(seed, program, Libpcap::Asked, &packets);
    }
    judges.must_have_seen_both();
}

/// Loops that end after some rounds, like those of `ip6 protochain`.
#[test]
fn loops_mean_the_same_to_all() {
    const COUNTER: u32 = 15;
    let mut judges = Judges::new();
    let mut codes = defined_codes();
    codes.retain(|code| !matches!(*code, op::ST | op::STX | op::JA));
    for seed in Trials::new(500) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let rounds = random.u32(1..5);
        let mut program: Vec<Instruction> = (0..15).map(|word| plain(op::ST, word)).collect();
        program.extend([plain(op::LD_IMM, rounds), plain(op::ST, COUNTER)]);
        // The backward jump leads to any of these instructions. A jump over that target gives the
        // loop two entries.
        let len = random.usize(1..16);
        let head = program.len() + random.usize(..len);
        program.extend(body(random, &codes, len));
        program.extend([
            plain(op::STX, 3),
            plain(op::LD_MEM, COUNTER),
            plain(op::SUB_K, 1),
            plain(op::ST, COUNTER),
            Instruction {
                code: op::JEQ_K,
                jump_true: 2,
                jump_false: 0,
                k: 0,
            },
            plain(op::LD_MEM, 3),
        ]);
        let back = i32::try_from(program.len() + 1 - head).expect("short");
        program.push(plain(op::JA, (-back).cast_unsigned()));
        let len = random.usize(1..8);
        program.extend(body(random, &codes, len));
        program.push(last(random));
        let packets = packets(random, PACKETS_EACH);
        judges.compare_instructions(seed, program, Libpcap::Asked, &packets);
    }
    judges.must_have_seen_both();
}

/// Jumps to any place, also into unreachable instructions. Some programs loop without end, until
/// the limit of backward jumps stops them.
#[test]
fn wild_jumps_mean_the_same_to_us() {
    let mut judges = Judges::new();
    let codes = codes();
    for seed in Trials::new(300) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let len = random.usize(2..20);
        let mut program = body(random, &codes, len);
        program.push(last(random));
        for (index, instruction) in program.iter_mut().enumerate() {
            if instruction.code != op::RET_K && instruction.code != op::RET_A && random.u8(..4) == 0
            {
                let number = |index: usize| i32::try_from(index).expect("short");
                let distance = number(random.usize(..=len)) - number(index) - 1;
                *instruction = plain(op::JA, distance.cast_unsigned());
            }
        }
        let packets = packets(random, 3);
        judges.compare_instructions(seed, program, Libpcap::NotAsked, &packets);
    }
    assert!(
        judges.kept > 0 && judges.rejected > judges.programs,
        "{judges:?}"
    );
}

#[test]
fn ancillary_data_means_the_same_to_us() {
    let mut judges = Judges::new();
    let codes = codes();
    for seed in Trials::new(300) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut program = Vec::new();
        for _ in 0..3 {
            let load = [op::LD_W_ABS, op::LD_H_ABS, op::LD_B_ABS][random.usize(..3)];
            program.push(plain(load, ANCILLARY + [4, 8][random.usize(..2)]));
            let len = random.usize(1..4);
            let noise = body(random, &codes, len).into_iter();
            // No other instruction may read ancillary data, of which programs support only these
            // two kinds.
            program.extend(noise.map(|instruction| Instruction {
                k: instruction.k.min(ANCILLARY - 1),
                ..instruction
            }));
            program.push(plain(op::TAX, 0));
        }
        program.push(last(random));
        let packets = packets(random, PACKETS_EACH);
        let program = Program::new(program, true).expect("made to be valid");
        judges.compare(seed, &program, Libpcap::NotAsked, &packets);
    }
    judges.must_have_seen_both();
}
