//! Packets for programs: headers that filters test, in unusual combinations, cut anywhere, and
//! noise.

use retroscope_packet::Direction;

use crate::Aux;

/// A packet as captured.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) data: Vec<u8>,
    pub(super) wire_len: u32,
    pub(super) aux: Aux,
}

impl Packet {
    pub(super) fn new(data: Vec<u8>) -> Self {
        Self {
            wire_len: u32::try_from(data.len()).expect("short"),
            data,
            aux: Aux::default(),
        }
    }
}

/// `count` packets.
pub(super) fn packets(random: &mut fastrand::Rng, count: usize) -> Vec<Packet> {
    (0..count).map(|_| packet(random)).collect()
}

fn packet(random: &mut fastrand::Rng) -> Packet {
    let mut data = if random.u8(..3) == 0 {
        noise(random, 80)
    } else {
        ethernet(random)
    };
    if random.bool() {
        data.truncate(random.usize(..=data.len()));
    }
    let mut packet = Packet::new(data);
    if random.u8(..4) == 0 {
        packet.wire_len = random.u32(..);
    }
    let direction = [Direction::Unknown, Direction::Inbound, Direction::Outbound];
    packet.aux = Aux {
        direction: direction[random.usize(..3)],
        ifindex: random.bool().then(|| random.u32(..4)),
    };
    packet
}

fn noise(random: &mut fastrand::Rng, len_max: usize) -> Vec<u8> {
    (0..random.usize(..len_max))
        .map(|_| random.u8(..))
        .collect()
}

/// Mostly one of few values, so that filters and packets share values.
fn few<const N: usize>(random: &mut fastrand::Rng, values: [[u8; N]; 3]) -> [u8; N] {
    match random.usize(..4) {
        3 => std::array::from_fn(|_| random.u8(..)),
        index => values[index],
    }
}

fn ethernet(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut frame = Vec::new();
    for _ in 0..2 {
        frame.extend(few(random, [[0; 6], [0xff; 6], [2, 0, 0, 0, 0, 1]]));
    }
    for _ in 0..random.usize(..6).saturating_sub(3) {
        frame.extend(few(random, [[0x81, 0], [0x88, 0xa8], [0x91, 0]]));
        frame.extend(few(random, [[0, 10], [0x20, 100], [0, 0]]));
    }
    match random.u8(..8) {
        0 => {
            frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
            for _ in 0..2 {
                frame.extend([0; 6]);
                frame.extend(address(random));
            }
        }
        1 => {
            frame.extend(few(random, [[0x88, 0x47], [0x88, 0x64], [0x88, 0x63]]));
            frame.extend(noise(random, 40));
        }
        2 | 3 => {
            frame.extend([0x86, 0xdd]);
            ipv6(random, &mut frame);
        }
        _ => {
            frame.extend([0x08, 0x00]);
            ipv4(random, &mut frame);
        }
    }
    frame
}

fn address(random: &mut fastrand::Rng) -> [u8; 4] {
    few(random, [[10, 0, 0, 1], [192, 168, 1, 1], [10, 0, 0, 77]])
}

fn ipv4(random: &mut fastrand::Rng, frame: &mut Vec<u8>) {
    let words = if random.bool() { 5 } else { random.u8(..16) };
    let start = frame.len();
    frame.extend([0x40 | words, 0, 0, random.u8(..), 0, 1]);
    frame.extend(few(random, [[0, 0], [0x40, 0], [0x20, 1]]));
    frame.push(64);
    let [protocol] = few(random, [[6], [17], [1]]);
    frame.extend([protocol, 0, 0]);
    frame.extend(address(random));
    frame.extend(address(random));
    frame.resize(start + (usize::from(words) * 4).max(20), 1);
    transport(random, frame);
}

fn ipv6(random: &mut fastrand::Rng, frame: &mut Vec<u8>) {
    let [next] = few(random, [[6], [17], [0]]);
    frame.extend([0x60, 0, 0, 0, 0, random.u8(..), next, 64]);
    for _ in 0..2 {
        let mut address = [0; 16];
        address[0] = 0xfe;
        address[15] = random.u8(..3);
        frame.extend(address);
    }
    // Extension headers, for programs that follow them.
    for _ in 0..random.usize(..3) {
        let [next] = few(random, [[0], [60], [17]]);
        frame.extend([next, random.u8(..2), 0, 0, 0, 0, 0, 0]);
    }
    transport(random, frame);
}

fn transport(random: &mut fastrand::Rng, frame: &mut Vec<u8>) {
    for _ in 0..2 {
        frame.extend(few(random, [[0, 80], [0, 53], [0xea, 0x60]]));
    }
    frame.extend(noise(random, 40));
}
