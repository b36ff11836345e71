//! Small programs for bugs that were found or expected.

use super::{Judges, Libpcap, packets::Packet};
use retroscope_bpf::{Instruction, op};

use crate::Program;

fn plain(code: u16, k: u32) -> Instruction {
    jump(code, k, 0, 0)
}

fn jump(code: u16, k: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction {
        code,
        jump_true,
        jump_false,
        k,
    }
}

/// Runs the implementations on packets filled with `byte`, of every length up to `len`. Returns how
/// many packets are kept.
fn compare(program: &[Instruction], libpcap: Libpcap, byte: u8, len: usize) -> u64 {
    let mut judges = Judges::new();
    compare_with(&mut judges, program, libpcap, byte, len)
}

fn compare_with(
    judges: &mut Judges,
    program: &[Instruction],
    libpcap: Libpcap,
    byte: u8,
    len: usize,
) -> u64 {
    let before = judges.kept;
    let program = Program::new(program.to_vec(), false).expect("valid");
    let packets: Vec<Packet> = (0..=len).map(|len| Packet::new(vec![byte; len])).collect();
    for packets in packets.chunks(Program::MANY) {
        judges.compare(0, &program, libpcap, packets);
    }
    judges.kept - before
}

#[test]
fn a_later_load_on_one_way_does_not_reject_the_other() {
    // If the first byte is 1, the program needs 30 bytes; otherwise one byte is enough.
    let program = [
        plain(op::LD_B_ABS, 0),
        jump(op::JEQ_K, 1, 0, 1),
        plain(op::LD_H_ABS, 28),
        Instruction::ret(1),
    ];
    assert_eq!(compare(&program, Libpcap::Asked, 2, 40), 40);
    assert_eq!(compare(&program, Libpcap::Asked, 1, 40), 11);
}

#[test]
fn a_packet_may_end_between_two_ports() {
    // Like `port 257`: the first port decides, and the second port need not be captured.
    let program = [
        plain(op::LDX_B_MSH, 0),
        plain(op::LD_H_IND, 4),
        jump(op::JEQ_K, 0x0101, 2, 0),
        plain(op::LD_H_IND, 6),
        jump(op::JEQ_K, 0x0101, 0, 1),
        Instruction::ret(1),
        Instruction::ret(0),
    ];
    let kept = compare(&program, Libpcap::Asked, 1, 20);
    assert_eq!(kept, 11, "from 10 bytes on");
}

#[test]
fn an_offset_that_wraps_is_beyond_the_packet() {
    for k in [
        u32::MAX,
        u32::MAX - 1,
        u32::MAX - 3,
        0x8000_0000,
        0x7fff_ffff,
    ] {
        for code in [op::LD_W_IND, op::LD_H_IND, op::LD_B_IND] {
            let program = [
                plain(op::LD_B_ABS, 0),
                plain(op::TAX, 0),
                plain(code, k),
                Instruction::ret(1),
            ];
            assert_eq!(compare(&program, Libpcap::Asked, 3, 12), 0);
            let constant = [plain(op::LDX_IMM, 3), plain(code, k), Instruction::ret(1)];
            assert_eq!(compare(&constant, Libpcap::Asked, 3, 12), 0);
        }
    }
}

#[test]
fn a_new_x_needs_a_new_check() {
    let program = [
        plain(op::LDX_IMM, 0),
        plain(op::LD_B_IND, 10),
        plain(op::TAX, 0),
        plain(op::LD_B_IND, 10),
        Instruction::ret(1),
    ];
    assert_eq!(
        compare(&program, Libpcap::Asked, 7, 30),
        13,
        "from 18 bytes on"
    );
}

#[test]
fn a_check_covers_what_it_says_and_no_byte_more() {
    let mut judges = Judges::new();
    let sizes = [(op::LD_W_IND, 4), (op::LD_H_IND, 2), (op::LD_B_IND, 1)];
    let loads = sizes
        .into_iter()
        .flat_map(|(code, bytes)| (0..3).map(move |k| (code, k, k + bytes)));
    for (first, second) in loads
        .clone()
        .flat_map(|first| loads.clone().map(move |second| (first, second)))
    {
        // Once with loads relative to `X`, which is 1, and once with absolute loads, which end one
        // byte earlier.
        for absolute in [0, op::LD_W_ABS ^ op::LD_W_IND] {
            let program = [
                plain(op::LD_B_ABS, 0),
                plain(op::TAX, 0),
                plain(first.0 ^ absolute, first.1),
                // The second load is on one path only, so its check must not be merged with the
                // previous check.
                jump(op::JEQ_K, 0, 1, 0),
                plain(second.0 ^ absolute, second.1),
                Instruction::ret(1),
            ];
            let end = first.2.max(second.2) + u32::from(absolute == 0);
            let kept = compare_with(&mut judges, &program, Libpcap::Asked, 1, 8);
            assert_eq!(kept, u64::from(9 - end), "{program:?}");
        }
    }
}

#[test]
fn an_ip_header_has_60_bytes_at_most() {
    // `X` is 60 if the lower half of the first byte is 15.
    for checked in 66..=80 {
        let program = [
            plain(op::LD_B_ABS, checked),
            plain(op::LDX_B_MSH, 0),
            plain(op::LD_H_IND, 14),
            Instruction::ret(1),
        ];
        let shortest = u64::from(checked + 1).max(76);
        assert_eq!(compare(&program, Libpcap::Asked, 0xff, 90), 91 - shortest);
    }
}

#[test]
fn shifts_agree_where_c_defines_them() {
    for code in [op::LSH_K, op::RSH_K] {
        for k in 0..40 {
            let program = [plain(op::LD_W_ABS, 0), plain(code, k), plain(op::RET_A, 0)];
            let libpcap = if k < 32 {
                Libpcap::Asked
            } else {
                Libpcap::NotAsked
            };
            let kept = compare(&program, libpcap, 0xff, 8);
            assert_eq!(kept, if k < 32 { 5 } else { 0 }, "by {k}");
        }
    }
}

#[test]
fn a_loop_without_end_ends_with_nothing() {
    let program = [
        plain(op::LD_B_ABS, 0),
        plain(op::JA, (-2_i32).cast_unsigned()),
        Instruction::ret(1),
    ];
    assert_eq!(compare(&program, Libpcap::NotAsked, 1, 2), 0);
}

/// Regression test: a chain of comparisons led through a loop head, and the machine code left the
/// head out.
#[test]
fn a_chain_of_comparisons_stops_at_the_head_of_a_loop() {
    let program = [
        plain(op::LD_IMM, 3),
        jump(op::JEQ_K, 7, 6, 0),
        jump(op::JEQ_K, 0, 5, 0), // the head
        plain(op::SUB_K, 1),
        plain(op::LDX_LEN, 0),
        jump(op::JEQ_X, 0, 2, 0),
        plain(op::JA, (-5_i32).cast_unsigned()),
        Instruction::ret(0),
        plain(op::LD_B_ABS, 4),
        Instruction::ret(1),
    ];
    // `A` is 2 in the first round. Only a packet of 2 bytes takes no second round. Every path ends
    // at the load of the fifth byte.
    assert_eq!(
        compare(&program, Libpcap::Asked, 0, 9),
        5,
        "from 5 bytes on"
    );
}

/// A bounds check before a loop head does not count if the backward jump comes from a path that
/// skipped the check.
#[test]
fn a_loop_may_be_entered_from_the_side() {
    let program = [
        plain(op::LD_LEN, 0),
        jump(op::JGT_K, 20, 0, 3),
        plain(op::LD_W_ABS, 20), // checks 24 bytes
        plain(op::LD_W_ABS, 16), // the head
        Instruction::ret(1),
        plain(op::JA, (-3_i32).cast_unsigned()),
        Instruction::ret(0),
    ];
    // Packets of up to 20 bytes enter the loop from the side and need 20 bytes. Longer packets need
    // 24.
    assert_eq!(compare(&program, Libpcap::Asked, 0, 30), 8);
}

#[test]
fn division_by_an_x_of_zero_rejects() {
    for code in [op::DIV_X, op::MOD_X] {
        let program = [
            plain(op::LD_B_ABS, 1),
            plain(op::TAX, 0),
            plain(op::LD_IMM, 9),
            plain(code, 0),
            Instruction::ret(1),
        ];
        assert_eq!(compare(&program, Libpcap::Asked, 0, 4), 0);
        assert_eq!(compare(&program, Libpcap::Asked, 2, 4), 3);
    }
}
