//! Checks that the interpreter, machine code and libpcap's `bpf_filter` agree about every packet,
//! for one program and for several programs as one function.

use retroscope_filter::{Aux, FilterFrame, FusedPrograms, Instruction, Program};
use retroscope_packet::LinkType;

use crate::{bytes::InputBytes, reference};

/// A program has fewer instructions than this, without the stores at its start and the return at
/// its end.
const INSTRUCTIONS_MAX: u8 = 48;
/// Maximum number of programs in a set.
const PROGRAMS_MAX: u8 = 12;
/// Words of scratch memory.
const SCRATCH: u32 = 16;
/// Classic BPF operation codes that libpcap's interpreter runs (`pcap/bpf.h`): loads and stores,
/// arithmetic, jumps, returns, and the transfers between A and X.
const CODES: [u16; 51] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x80, 0x00, 0x60, 0x81, 0x01, 0x61, 0xb1, // ld, ldx
    0x02, 0x03, // st, stx
    0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, // add to and
    LSH_K, 0x6c, RSH_K, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, // shifts, neg, mod, xor
    JA, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, // jumps
    0x06, 0x16, 0x07, 0x87, 0x15,
    0x28, // returns, tax, txa; and again two codes that are frequent in filters
];
const LSH_K: u16 = 0x64;
const RSH_K: u16 = 0x74;
const JA: u16 = 0x05;
const ST: u16 = 0x02;

/// Input: number of instructions, the instructions (7 bytes each), the constant of the return at
/// the end (4 bytes), the length on the wire beyond the packet, the packet.
pub fn translator(data: &[u8]) {
    let mut bytes = InputBytes(data);
    let instructions = program(&mut bytes);
    let beyond = u32::from(bytes.u8());
    let packet = bytes.0;
    let accepted = Program::new(instructions.clone(), false);
    let is_valid = reference::validate(&instructions);
    let Ok(interpreted) = accepted else {
        assert!(!is_valid, "only we refuse {instructions:?}: {accepted:?}");
        return;
    };
    assert!(is_valid, "only libpcap refuses {instructions:?}");
    let native = Program::new(instructions.clone(), false).expect("the same was accepted above");
    let is_native = native.make_native().is_ok();
    assert!(is_native || cfg!(not(target_arch = "x86_64")));

    let (wire_len, frames) = cut(packet, beyond);
    let (many, native_many) = (interpreted.run_many(&frames), native.run_many(&frames));
    for (index, frame) in frames.iter().enumerate() {
        let packet = frame.data();
        let expected = reference::run(&instructions, packet, wire_len);
        assert_eq!(
            interpreted.run(packet, wire_len, Aux::default()),
            expected,
            "interpreter against libpcap, {packet:02x?} of {wire_len}, {instructions:?}"
        );
        let kept = [many, native_many].map(|kept| kept >> index & 1 == 1);
        assert_eq!(
            kept,
            [expected != 0; 2],
            "interpreter of many and machine code against libpcap, {packet:02x?} of {wire_len}, {instructions:?}"
        );
    }
}

/// Input: number of programs, the programs as in [`translator`], the length on the wire beyond the
/// packet, the packet.
pub fn joint(data: &[u8]) {
    let mut bytes = InputBytes(data);
    let count = bytes.u8() % PROGRAMS_MAX + 1;
    let programs = (0..count).map(|_| program(&mut bytes));
    let set: Vec<Program> = programs
        .filter_map(|instructions| Program::new(instructions, false).ok())
        .collect();
    let beyond = u32::from(bytes.u8());
    let packet = bytes.0;
    let (wire_len, frames) = cut(packet, beyond);
    let joint = FusedPrograms::new(LinkType::ETHERNET, set);
    for is_native in [false, true] {
        let mut results = [0; FusedPrograms::MANY];
        let any = joint.run_many(&frames, &mut results);
        let mut expected_any = 0;
        for (frame, result) in frames.iter().zip(&results) {
            let verdicts = joint
                .programs()
                .iter()
                .map(|program| reference::run(program.instructions(), frame.data(), wire_len) != 0);
            let expected = verdicts
                .enumerate()
                .fold(0, |set, (bit, keeps)| set | u64::from(keeps) << bit);
            assert_eq!(
                *result,
                expected,
                "together, machine code: {is_native}, {:02x?} of {wire_len}, {:?}",
                frame.data(),
                joint.programs()
            );
            expected_any |= expected;
        }
        assert_eq!(any, expected_any, "machine code: {is_native}");
        // If the programs are too long for one function, each program runs alone.
        let _ = joint.make_native();
    }
}

/// A packet captured at several lengths, and its length on the wire, which exceeds the packet by
/// `beyond`.
fn cut(packet: &[u8], beyond: u32) -> (u32, Vec<FilterFrame<'_>>) {
    let wire_len = u32::try_from(packet.len())
        .unwrap_or(u32::MAX)
        .saturating_add(beyond);
    let frames = cuts(packet.len()).into_iter();
    let frames = frames.map(|len| FilterFrame::new(&packet[..len], wire_len, Aux::default()));
    (wire_len, frames.collect())
}

/// Lengths to which a packet is truncated, the whole packet last.
fn cuts(len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..len).rev().take(Program::MANY / 2).collect();
    cuts.extend((0..len).take(Program::MANY / 2 - 1));
    cuts.push(len);
    cuts
}

fn program(bytes: &mut InputBytes<'_>) -> Vec<Instruction> {
    let plain = |code, k| Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        k,
    };
    // libpcap leaves scratch memory uninitialized, so each program writes before it reads.
    let mut program: Vec<Instruction> = (0..SCRATCH).map(|word| plain(ST, word)).collect();
    let count = bytes.u8() % INSTRUCTIONS_MAX;
    for left in (1..=count).rev() {
        let code = CODES[usize::from(bytes.u8()) % CODES.len()];
        let (jump_true, jump_false) = (bytes.u8() % left, bytes.u8() % left);
        let k = bytes.u32();
        let k = match code {
            // Forward only: in libpcap a backward jump may never end.
            JA => k % u32::from(left),
            // C does not define a shift of 32 bits by 32 or more.
            LSH_K | RSH_K => k % 32,
            _ => k,
        };
        program.push(Instruction {
            code,
            jump_true,
            jump_false,
            k,
        });
    }
    program.push(Instruction::ret(bytes.u32()));
    program
}
