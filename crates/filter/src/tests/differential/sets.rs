//! Sets of programs that run as one function. Each program must give the result that it gives
//! alone, whatever the function has found out about the packet for other programs.

use retroscope_bpf::op;
use retroscope_packet::LinkType;

use super::{
    Trials,
    expressions::expression,
    guard::GuardedMemory,
    packets::{Packet, packets},
    programs,
};
use crate::{
    FilterFrame, FilterMode, FusedPrograms, Instruction, LinkContext, Program, compile,
    sys::reference,
};

const PACKETS_EACH: usize = 48;
/// Link types whose network header the function knows, and one link type that it does not know.
const LINK_TYPES: [LinkType; 5] = [
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::NULL,
];
/// Fills all results beforehand. The function must not change results without a frame.
const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Runs all implementations of sets, and counts the results.
struct Judges {
    places: Vec<GuardedMemory>,
    frames: GuardedMemory,
    programs: u64,
    joined: u64,
    kept: u64,
    rejected: u64,
}

impl Judges {
    fn new() -> Self {
        Self {
            places: (0..FusedPrograms::MANY)
                .map(|_| GuardedMemory::new())
                .collect(),
            frames: GuardedMemory::new(),
            programs: 0,
            joined: 0,
            kept: 0,
            rejected: 0,
        }
    }

    /// Runs each program alone, and all together, on up to 64 packets. Fails if any result differs.
    /// Bits in `of_libpcap` mark programs that libpcap runs too.
    fn compare(
        &mut self,
        seed: u64,
        (link_type, set): (LinkType, Vec<Program>),
        of_libpcap: u64,
        packets: &[Packet],
    ) {
        let places = self.places.iter_mut().zip(packets);
        let frames: Vec<FilterFrame<'_>> = places
            .map(|(place, packet)| {
                FilterFrame::new(place.place(&packet.data), packet.wire_len, packet.aux)
            })
            .collect();
        let complaint = |who: &str, packet: usize, differing: u64| {
            let before = seed.wrapping_sub(1);
            let programs = (0..set.len()).filter(|bit| differing >> bit & 1 == 1);
            let programs: Vec<String> = programs
                .map(|bit| format!("program {bit} of {}\n{}", set.len(), set[bit].disassemble()))
                .collect();
            let packet = &packets[packet];
            format!(
                "FILTER_SEED={before}: {who} differs on {packet:?}\n{}",
                programs.join("\n")
            )
        };
        let mut expected = [UNTOUCHED; FusedPrograms::MANY];
        for (index, frame) in frames.iter().enumerate() {
            expected[index] = 0;
            for (bit, program) in set.iter().enumerate() {
                let bytes = program.interpret(frame);
                expected[index] |= u64::from(bytes != 0) << bit;
                if of_libpcap >> bit & 1 == 1 {
                    let theirs =
                        reference::run(program.instructions(), frame.data(), frame.wire_len());
                    assert_eq!(theirs, bytes, "{}", complaint("libpcap", index, 1 << bit));
                }
            }
        }
        let any = expected[..frames.len()]
            .iter()
            .fold(0, |any, one| any | one);
        let joint = FusedPrograms::new(link_type, set.clone());
        let frames = self.frames.place(&frames);
        for who in ["each by itself", "machine code"] {
            let mut results = [UNTOUCHED; FusedPrograms::MANY];
            let found = joint.run_many(frames, &mut results);
            for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
                assert_eq!(
                    result,
                    expected,
                    "{}",
                    complaint(who, index.min(packets.len() - 1), result ^ expected)
                );
            }
            assert_eq!(found, any, "{}", complaint(who, 0, found ^ any));
            // If the programs are too long for one function, the second round repeats the first.
            let _ = joint.make_native();
        }
        self.joined += if joint.native().is_some() {
            set.len() as u64
        } else {
            0
        };
        self.programs += set.len() as u64;
        let kept: u64 = expected[..frames.len()]
            .iter()
            .map(|one| u64::from(one.count_ones()))
            .sum();
        self.kept += kept;
        self.rejected += (set.len() * frames.len()) as u64 - kept;
    }

    /// Fails unless many packets were kept and many rejected, and enough programs were fused: with
    /// few, the test would show little.
    fn must_have_seen_all(&self, joined_percent: u64) {
        let seen = (self.programs, self.joined, self.kept, self.rejected);
        assert!(
            self.kept > self.programs && self.rejected > self.programs,
            "{seen:?}"
        );
        assert!(
            self.joined * 100 >= self.programs * joined_percent,
            "{seen:?}"
        );
    }
}

/// Replaces the header of an Ethernet frame by that of another link type.
fn relink(packet: &mut Packet, link_type: LinkType) {
    let Some((ethernet, network)) = packet.data.split_at_checked(14) else {
        return;
    };
    let ether_type = &ethernet[12..];
    packet.data = match link_type {
        LinkType::RAW => network.to_vec(),
        LinkType::LINUX_SLL => [&[0; 2], ethernet, network].concat(),
        LinkType::LINUX_SLL2 => [ether_type, &[0; 18], network].concat(),
        LinkType::NULL => [&[2, 0, 0, 0], network].concat(),
        _ => return,
    };
    packet.wire_len = u32::try_from(packet.data.len()).expect("short");
}

fn program(instructions: Vec<Instruction>) -> Program {
    Program::new(instructions, false).expect("made to be valid")
}

/// A number of programs. Small numbers are more likely.
fn count(random: &mut fastrand::Rng) -> usize {
    let most = [2, 5, 16, FusedPrograms::MANY][random.usize(..4)];
    random.usize(1..=most)
}

#[test]
fn sets_of_random_programs_answer_as_each_alone() {
    let mut judges = Judges::new();
    for seed in Trials::new(300) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let count = count(random);
        let mut set: Vec<Program> = Vec::new();
        for _ in 0..count {
            match random.u8(..8) {
                // Equal programs, and programs that differ in some constants only.
                0 if !set.is_empty() => set.push(set[random.usize(..set.len())].clone()),
                1 if !set.is_empty() => {
                    let other = set[random.usize(..set.len())].instructions().to_vec();
                    set.push(program(varied(random, other)));
                }
                _ => set.push(program(programs::any(random))),
            }
        }
        let packets = packets(random, PACKETS_EACH);
        judges.compare(seed, (LinkType::ETHERNET, set), 0, &packets);
    }
    judges.must_have_seen_all(50);
}

/// The program with some of its constants and return values changed.
fn varied(random: &mut fastrand::Rng, mut instructions: Vec<Instruction>) -> Vec<Instruction> {
    for instruction in &mut instructions {
        if random.u8(..4) != 0 {
            continue;
        }
        match instruction.code {
            op::RET_K => instruction.k = u32::from(instruction.k == 0),
            op::JEQ_K | op::JSET_K | op::JGT_K | op::JGE_K => {
                instruction.k = instruction.k.wrapping_add(random.u32(..3));
            }
            op::LD_B_ABS | op::LD_B_IND => instruction.k ^= random.u32(..2),
            _ => {}
        }
    }
    instructions
}

#[test]
fn sets_of_expressions_answer_as_each_alone() {
    let mut judges = Judges::new();
    for seed in Trials::new(120) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let count = count(random);
        let link_type = LINK_TYPES[random.usize(..LINK_TYPES.len())];
        let mut set: Vec<Program> = Vec::new();
        while set.len() < count {
            let depth = random.u32(..3);
            let link = LinkContext {
                link_type,
                snaplen: 65_535,
                mode: FilterMode::Savefile,
                optimize: random.u8(..4) != 0,
            };
            let text = expression(random, depth);
            // Some expressions contradict themselves.
            let text = match random.u8(..8) {
                0 => format!("({text}) and not ({text})"),
                1 => format!("tcp and udp and ({text})"),
                _ => text,
            };
            // libpcap rejects some combinations, such as `pppoes` inside `pppoes`.
            if let Ok(program) = compile(&text, link) {
                set.push(program);
            }
        }
        let mut packets = packets(random, FusedPrograms::MANY);
        packets
            .iter_mut()
            .for_each(|packet| relink(packet, link_type));
        judges.compare(seed, (link_type, set), u64::MAX, &packets);
    }
    judges.must_have_seen_all(70);
}

/// Loads, comparisons and returns: the instructions for which the function merges bounds checks and
/// uses known header values.
#[test]
fn sets_of_loads_and_branches_answer_as_each_alone() {
    let mut judges = Judges::new();
    for seed in Trials::new(400) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let count = count(random);
        let set: Vec<Program> = (0..count)
            .map(|_| program(programs::branches(random)))
            .collect();
        let packets = packets(random, PACKETS_EACH);
        judges.compare(seed, (LinkType::ETHERNET, set), u64::MAX, &packets);
    }
    judges.must_have_seen_all(90);
}

#[test]
fn every_length_of_a_packet_ends_programs_where_they_end_alone() {
    const TEXTS: [&str; 12] = [
        "greater 40",
        "tcp[13] & 2 != 0",
        "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
        "ip[8] < 65",
        "not port 22",
        "ip6 and tcp[13] & 2 != 0",
        "udp[8:4] = 1 or tcp[20:2] = 0x0101",
        "ether[60] = 1",
        "ip[60] = 1",
        "not tcp",
        "icmp[0] = 3 or tcp",
        "tcp[100] = 1 or ip",
    ];
    let link = LinkContext {
        link_type: LinkType::ETHERNET,
        snaplen: 65_535,
        mode: FilterMode::Savefile,
        optimize: true,
    };
    let set: Vec<Program> = TEXTS
        .iter()
        .map(|text| compile(text, link).expect("it is right"))
        .collect();
    let v4 = |words: u8, fragment: u8, protocol| {
        vec![8, 0, 0x40 | words, 0, 0, 0, 0, 0, 0, fragment, 64, protocol]
    };
    let v6 = |next| vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64];
    let mut headers: Vec<Vec<u8>> = [6, 17, 1].map(v6).into();
    for words in [5, 6, 15, 0] {
        headers.extend([6, 17, 1].map(|protocol| v4(words, 0, protocol)));
    }
    headers.push(v4(5, 1, 6));
    let mut judges = Judges::new();
    for header in headers {
        let mut packet = vec![0; 12];
        packet.extend(header);
        packet.resize(170, 1);
        // All lengths, and each program before and after each other program.
        for first in 0..set.len() {
            let mut turned = set.clone();
            turned.rotate_left(first);
            for lengths in (0..=packet.len())
                .collect::<Vec<_>>()
                .chunks(FusedPrograms::MANY)
            {
                let cut = |length: &usize| Packet::new(packet[..*length].to_vec());
                let packets: Vec<Packet> = lengths.iter().map(cut).collect();
                let set = (LinkType::ETHERNET, turned.clone());
                judges.compare(0, set, u64::MAX, &packets);
            }
        }
    }
    judges.must_have_seen_all(100);
}
