//! Filters that nothing is looked up for: each as a program of its own, and all as one function, on packets in the cache.

use std::{hint::black_box, time::Instant};

use retroscope_filter::{Frame, Joint, Program};
use retroscope_packet::LinkType;

use super::{native, on_a_core, sys::Libpcap, traffic::Hot};
use crate::{
    contest::Failure,
    measure::Entrant,
    pace::{Pace, Scale},
};

/// Filters as people write them who know headers; the rest are of their kinds.
const TEXTS: [&str; 24] = [
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "ip[8] < 5",
    "greater 1000",
    "not port 22",
    "icmp[0] == 3",
    "ip[1] & 0xfc == 0xb8",
    "ip6 and ip6[53] & 2 != 0",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "vlan and not tcp",
    "tcp[tcpflags] & tcp-rst != 0",
    "ip[6:2] & 0x1fff != 0",
    "udp[4:2] > 1000",
    "len < 70 and tcp",
    "tcp[14:2] = 0",
    "ip6[7] < 5",
    "not portrange 1-1023",
    "tcp[tcpflags] == tcp-syn",
    "icmp[0] == 8 and greater 500",
    "ip[0] & 0xf > 5",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 1400",
    "not ip and not ip6 and not arp",
    "ether[0] & 1 != 0",
    "ip[4:2] == 0",
    "icmp6 and ip6[40] == 135",
];

/// The first `count` filters.
fn texts(count: usize) -> Vec<String> {
    let more = (0_usize..).map(|number| {
        let value = number / 4;
        match number % 4 {
            0 => format!("ip[8] == {}", 60 + value),
            1 => format!("not port {}", 23 + value),
            2 => format!("tcp[4:4] & 0xff == {value}"),
            _ => format!("udp[4:2] == {}", 8 + value),
        }
    });
    let texts = TEXTS.iter().map(ToString::to_string).chain(more);
    texts.take(count).collect()
}

/// A number of filters.
#[derive(Debug)]
pub(crate) struct Set {
    programs: Vec<Program>,
    joint: Joint,
    hot: Hot,
    /// What libpcap says of each packet: a bit for each filter.
    expected: Vec<u64>,
}

impl Set {
    /// Compiles the first `count` filters, at most 64, and lets libpcap and both ways agree.
    ///
    /// # Errors
    /// [`Failure`]: a filter cannot be compiled, or they do not agree.
    pub(crate) fn new(count: usize) -> Result<Self, Failure> {
        let texts = texts(count);
        let programs = texts.iter().map(|text| native(text));
        let programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
        let joint = Joint::new(LinkType::ETHERNET, programs.clone());
        let made = joint.make_native();
        made.map_err(|error| Failure::system("making machine code", error))?;
        let hot = Hot::new();
        let mut expected = vec![0; hot.frames().len()];
        for (bit, text) in texts.iter().enumerate() {
            let libpcap = Libpcap::compile(text)?;
            for (set, frame) in expected.iter_mut().zip(hot.frames()) {
                *set |= u64::from(libpcap.run(frame.data(), frame.wire_len()) != 0) << bit;
            }
        }
        let set = Self {
            programs,
            joint,
            hot,
            expected,
        };
        for is_joint in [false, true] {
            let mut found = vec![0; set.expected.len()];
            set.pass(is_joint, &set.hot.frames(), &mut found);
            if let Some(packet) = (0..found.len()).find(|at| found[*at] != set.expected[*at]) {
                let differ = (found[packet] ^ set.expected[packet]).trailing_zeros();
                return Err(Failure::Disagree {
                    engine: name(is_joint).to_owned(),
                    text: texts[differ as usize].clone(),
                    packet: packet as u64,
                });
            }
        }
        Ok(set)
    }

    /// One of the two ways, whose figures are nanoseconds a packet.
    pub(crate) fn entrant(&self, is_joint: bool, row: String, scale: &Scale) -> Entrant<'_> {
        let mut pace = super::hot::pace(scale);
        Entrant::new(row, move || self.time(is_joint, &mut pace))
    }

    /// The filters that each packet matches. Those of a filter by itself are gathered by packet, as is needed to act on them.
    fn pass(&self, is_joint: bool, frames: &[Frame<'_>], found: &mut [u64]) {
        let mut results = [0; Joint::MANY];
        for (frames, found) in frames
            .chunks(Joint::MANY)
            .zip(found.chunks_mut(Joint::MANY))
        {
            if is_joint {
                self.joint.run_many(frames, &mut results);
                found.copy_from_slice(&results[..frames.len()]);
                continue;
            }
            found.fill(0);
            for (bit, program) in self.programs.iter().enumerate() {
                let mut kept = program.run_many(frames);
                while kept != 0 {
                    found[kept.trailing_zeros() as usize] |= 1 << bit;
                    kept &= kept - 1;
                }
            }
        }
    }

    fn time(&self, is_joint: bool, pace: &mut Pace) -> Result<f64, Failure> {
        let rounds = pace.next();
        let (seconds, found) = on_a_core(|| {
            let frames = self.hot.frames();
            let mut found = vec![0; frames.len()];
            let start = Instant::now();
            for _ in 0..rounds {
                self.pass(is_joint, black_box(&frames), black_box(&mut found));
            }
            (start.elapsed().as_secs_f64(), found)
        })?;
        pace.was(rounds as f64 / seconds);
        if found != self.expected {
            let sum = |sets: &[u64]| {
                sets.iter()
                    .fold(0, |sum: u64, set| sum.rotate_left(1) ^ set)
            };
            return Err(Failure::Checksum {
                expected: sum(&self.expected),
                seen: sum(&found),
            });
        }
        Ok(seconds * 1e9 / (rounds as f64 * found.len() as f64))
    }
}

/// As in names of rows.
pub(crate) fn name(is_joint: bool) -> &'static str {
    if is_joint { "joint" } else { "separate" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_and_libpcap_agree() {
        for count in [1, 24, Joint::MANY] {
            let set = Set::new(count).unwrap();
            assert!(set.expected.iter().any(|filters| *filters != 0));
        }
    }
}
