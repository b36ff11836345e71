//! The interpreter against libpcap's own, on programs that libpcap would never make and on packets cut anywhere.

use crate::{
    Aux, Frame, Instruction, LinkContext, Mode, Program, compile, instruction::op, lockstep,
    program::is_known, sys::reference,
};
use retroscope_packet::LinkType;

const PROGRAMS: usize = 20_000;
const PACKETS_EACH: usize = 8;

/// Operation codes that are safe in random programs for both interpreters: no `ja` (loops), no
/// constant shifts (C leaves 32 bits and more open).
fn codes() -> Vec<u16> {
    let is_usable =
        |code: &u16| is_known(*code) && !matches!(*code, op::JA | op::LSH_K | op::RSH_K);
    (0..=0xff_u16).filter(is_usable).collect()
}

fn plain(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        k,
    }
}

fn random_instruction(random: &mut fastrand::Rng, codes: &[u16], left: usize) -> Instruction {
    let code = codes[random.usize(..codes.len())];
    let reach = u8::try_from(left.min(6)).expect("at most 6");
    let k = match code {
        op::LD_MEM | op::LDX_MEM | op::ST | op::STX => random.u32(..16),
        op::DIV_K | op::MOD_K => random.u32(1..),
        // Mostly inside a packet, sometimes at the edges of the number range.
        _ => match random.u8(..8) {
            0 => u32::MAX - random.u32(..8),
            1 => random.u32(..),
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

#[test]
fn random_programs_give_what_libpcap_gives() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let codes = codes();
    let mut accepted = 0;
    for number in 0..PROGRAMS {
        let len = random.usize(1..24);
        // libpcap leaves scratch memory as the stack had it; programs from libpcap write before they read.
        let stores = (0..16).map(|word| plain(op::ST, word));
        let body = (0..len).map(|index| random_instruction(&mut random, &codes, len - index));
        let mut instructions: Vec<Instruction> = stores.chain(body).collect();
        instructions.push(plain(op::RET_A, 0));
        let program = Program::new(instructions.clone(), false).expect("made to be valid");
        program.make_native().expect("x86-64");
        for _ in 0..PACKETS_EACH {
            let packet: Vec<u8> = (0..random.usize(..64)).map(|_| random.u8(..)).collect();
            let wire_len = random.u32(..100_000);
            let ours = program.run(&packet, wire_len, Aux::default());
            let theirs = reference::run(&instructions, &packet, wire_len);
            let frame = Frame::new(&packet, wire_len, Aux::default());
            assert_eq!(program.interpret(&frame), theirs);
            assert_eq!(program.run_many(&[frame]), u64::from(theirs != 0));
            assert_eq!(
                ours,
                theirs,
                "seed {seed}, program {number}:\n{}on {packet:?}",
                program.disassemble()
            );
            accepted += usize::from(ours != 0);
        }
    }
    assert!(
        accepted > PROGRAMS,
        "only {accepted} runs gave anything but 0"
    );
}

/// Packets cut anywhere, with lengths on the wire.
fn random_packets(random: &mut fastrand::Rng, count: usize) -> Vec<(Vec<u8>, u32)> {
    let packet = |_| {
        let len = random.usize(..64);
        let packet = (0..len).map(|_| random.u8(..)).collect();
        (packet, random.u32(..100_000))
    };
    (0..count).map(packet).collect()
}

fn frames(packets: &[(Vec<u8>, u32)]) -> Vec<Frame<'_>> {
    packets
        .iter()
        .map(|(data, wire_len)| Frame::new(data, *wire_len, Aux::default()))
        .collect()
}

/// What each packet alone gives, as `run_many` tells it.
fn one_by_one(program: &Program, packets: &[(Vec<u8>, u32)]) -> u64 {
    let runs = packets
        .iter()
        .map(|(data, wire_len)| program.run(data, *wire_len, Aux::default()));
    (0..)
        .zip(runs)
        .fold(0, |set, (index, kept)| set | u64::from(kept != 0) << index)
}

#[test]
fn many_packets_give_what_each_gives_alone() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut usable = codes();
    usable.retain(|code| !matches!(*code, op::ST | op::STX | op::LD_MEM | op::LDX_MEM));
    usable.extend([op::LSH_K, op::RSH_K, op::JA]);
    let (mut together, mut kept, mut refused) = (0, 0, 0);
    for number in 0..PROGRAMS {
        let len = random.usize(1..24);
        let mut instructions: Vec<Instruction> = (0..len)
            .map(|index| {
                let mut instruction = random_instruction(&mut random, &usable, len - index);
                if instruction.code == op::JA {
                    instruction.k %= u32::try_from(len - index).expect("at most 24");
                }
                instruction
            })
            .collect();
        let mut last = plain(op::RET_A, 0);
        if random.bool() {
            last = Instruction::ret(1);
        }
        instructions.push(last);
        let program = Program::new(instructions, false).expect("made to be valid");
        let count = random.usize(..=Program::MANY);
        let packets = random_packets(&mut random, count);
        let set = program.run_many(&frames(&packets));
        assert_eq!(
            set,
            one_by_one(&program, &packets),
            "seed {seed}, program {number}:\n{}on {packets:?}",
            program.disassemble()
        );
        together += usize::from(lockstep::fits(program.instructions()));
        kept += set.count_ones() as usize;
        refused += count - set.count_ones() as usize;
    }
    assert!(
        together > PROGRAMS / 2 && kept > PROGRAMS && refused > PROGRAMS,
        "{together} programs, {kept} kept, {refused} refused"
    );
}

#[test]
fn shifts_agree_where_c_defines_them() {
    for code in [op::LSH_K, op::RSH_K] {
        for k in 0..32 {
            let instructions = vec![plain(op::LD_W_ABS, 0), plain(code, k), plain(op::RET_A, 0)];
            let program = Program::new(instructions.clone(), false).expect("valid");
            let packet = [0x89, 0xab, 0xcd, 0xef];
            let ours = program.run(&packet, 4, Aux::default());
            assert_eq!(
                ours,
                reference::run(&instructions, &packet, 4),
                "code {code:#x} by {k}"
            );
        }
    }
}

/// Filters over every kind of instruction that libpcap emits.
const FILTERS: [&str; 14] = [
    "tcp port 80 and host 10.0.0.1",
    "udp portrange 1000-2000 or icmp",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 100 or ip[8] * 3 % 7 = 2 or ip[9] / 2 ^ 3 = 1 or len | 3 > 700",
    "ip6 protochain 17",
    "ip protochain 6",
    "vlan and (ip or ip6) and not port 53",
    "mpls 100 and ip",
    "geneve and ip",
    "ether host 00:00:00:00:00:00 or ether multicast",
    "greater 100 and less 1000",
    "ip[ip[0] & 0x0f * 4] << ip[1] >= -ip[3] + len",
    "icmp6 and ip6[40] = 128",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
];

#[test]
fn real_packets_give_what_libpcap_gives() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let files = [
        "apps/ix-mixed.pcap",
        "encap/nd-ip_fragmented_garbage.pcap",
        "large/mix-a.pcap",
    ];
    if !root.exists() {
        eprintln!("SKIP: {} is not there; nothing was tested", root.display());
        return;
    }
    let mut compared = 0_u64;
    let mut matched = 0_u64;
    for file in files {
        let mut reader =
            retroscope_pcapfile::Reader::open(&root.join(file)).expect("the capture opens");
        let link_type = LinkType::ETHERNET;
        let programs: Vec<Program> = FILTERS
            .iter()
            .flat_map(|filter| [true, false].map(|optimize| (filter, optimize)))
            .map(|(filter, optimize)| {
                let link = LinkContext {
                    link_type,
                    snaplen: 65_535,
                    mode: Mode::Savefile,
                    optimize,
                };
                let program =
                    compile(filter, link).unwrap_or_else(|error| panic!("{}", error.render()));
                program.make_native().expect("x86-64");
                program
            })
            .collect();
        // Every eighth packet of the large capture is plenty.
        let step = if file.starts_with("large/") { 8 } else { 1 };
        let mut index = 0;
        while let Ok(Some(record)) = reader.next() {
            index += 1;
            if index % step != 0 {
                continue;
            }
            let len = record.data.len();
            for cut in [
                len,
                len / 2,
                len.min(54),
                len.min(33),
                len.min(13),
                len.min(index % 80),
            ] {
                let packet = &record.data[..cut];
                for program in &programs {
                    let ours = program.run(packet, record.meta.wire_len, Aux::default());
                    let theirs =
                        reference::run(program.instructions(), packet, record.meta.wire_len);
                    assert_eq!(
                        ours,
                        theirs,
                        "{file}, packet {index}, {cut} bytes of it:\n{}",
                        program.disassemble()
                    );
                    compared += 1;
                    matched += u64::from(ours != 0);
                }
            }
        }
    }
    assert!(
        compared > 500_000 && matched > 50_000,
        "{compared} runs, {matched} matches"
    );
}
