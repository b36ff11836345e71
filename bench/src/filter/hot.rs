//! Filters on packets in the cache: native code, interpreter, libpcap and code written by hand, several filters one by one and as one
//! function, and a trigger in Lua, all timed in the same way.

use std::{hint::black_box, time::Duration};

use retroscope_filter::{Frame, Joint, Program};
use retroscope_packet::LinkType;
use retroscope_script::{Limits, MANY, Machine, Packet, Script};

use super::{compile, native, sys::Libpcap, traffic::Hot};
use crate::{
    contest::on_a_core,
    measure::{Entrant, Failure, Pace, Scale},
};

/// Part of the time of a usual run that packets in the cache need: nothing around them has to warm up.
const PART: f64 = 0.1;
/// [`PORT`](super::PORT) in Lua.
const SCRIPT: &str = "return function(pkt) return pkt:is_udp() and pkt:has_port(60000) end";
/// What a call of it may take: as long as a thread may have to wait for a processor. The script needs microseconds.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Filters as people write them who know headers; the rest are of their kinds.
const TOGETHER: [&str; 24] = [
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

/// Takes frames, at most 64 for each verdict, and says which of them match.
pub(super) type Pass = fn(&[Frame<'_>], &mut [u64]);

/// A test on all frames, one by one.
#[inline(always)]
pub(super) fn each(frames: &[Frame<'_>], verdicts: &mut [u64], takes: impl Fn(&[u8]) -> bool) {
    each_frame(frames, verdicts, |frame| takes(frame.data()));
}

#[inline(always)]
fn each_frame(frames: &[Frame<'_>], verdicts: &mut [u64], takes: impl Fn(&Frame<'_>) -> bool) {
    for (frames, verdict) in frames.chunks(Program::MANY).zip(verdicts) {
        *verdict = frames.iter().enumerate().fold(0, |set, (index, frame)| {
            set | u64::from(takes(frame)) << index
        });
    }
}

/// Nanoseconds a packet of what fills verdicts about all packets of [`Hot`], which must be as expected.
fn timed<'a>(
    name: impl Into<String>,
    expected: &'a [u64],
    scale: &Scale,
    mut pass: impl FnMut(&mut [u64]) + Send + 'a,
) -> Entrant<'a> {
    let mut pace = Pace::new(scale.seconds * PART, 1);
    Entrant::new(name, move || {
        let (rounds, pass) = (pace.next(), &mut pass);
        let (found, seconds) = on_a_core(move || {
            let mut found = vec![0; expected.len()];
            for _ in 0..rounds {
                pass(black_box(&mut found));
            }
            found
        })?;
        pace.was(rounds as f64 / seconds);
        agree("a run", "", expected, &found)?;
        Ok(seconds * 1e9 / (rounds as f64 * Hot::PACKETS as f64))
    })
}

/// Compares what an engine says with what libpcap says.
fn agree(engine: &str, text: &str, expected: &[u64], found: &[u64]) -> Result<(), Failure> {
    let differ = expected.iter().zip(found).map(|(one, other)| one ^ other);
    match differ.enumerate().find(|(_, differ)| *differ != 0) {
        None => Ok(()),
        Some((at, differ)) => Err(Failure::Wrong(format!(
            "{engine} and libpcap disagree about '{text}', packets {at}, bit {}",
            differ.trailing_zeros()
        ))),
    }
}

/// What evaluates a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    /// Machine code.
    Native,
    /// Our interpreter, which runs while machine code is made.
    Interpreter,
    /// The system's `bpf_filter`.
    Libpcap,
    /// A function in Rust.
    ByHand,
}

impl Engine {
    pub(super) const ALL: [Self; 4] =
        [Self::Native, Self::Interpreter, Self::Libpcap, Self::ByHand];

    /// As in names of rows.
    pub(super) fn name(self) -> &'static str {
        ["native", "interpreter", "libpcap", "handwritten"][self as usize]
    }
}

/// One expression, made ready for every engine.
#[derive(Debug)]
pub(super) struct Case {
    native: Program,
    interpreted: Program,
    libpcap: Libpcap,
    by_hand: Option<Pass>,
    hot: Hot,
    /// By 64 packets, what all engines say.
    expected: Vec<u64>,
}

impl Case {
    /// Compiles the expression for all engines and lets them agree.
    pub(super) fn new(text: &str, by_hand: Option<Pass>) -> Result<Self, Failure> {
        let mut case = Self {
            native: native(text)?,
            interpreted: compile(text)?,
            libpcap: Libpcap::compile(text)?,
            by_hand,
            hot: Hot::new(),
            expected: Vec::new(),
        };
        case.expected = case.verdicts(Engine::Libpcap);
        for engine in Engine::ALL {
            if engine != Engine::ByHand || by_hand.is_some() {
                agree(engine.name(), text, &case.expected, &case.verdicts(engine))?;
            }
        }
        let matches: u32 = case.expected.iter().map(|set| set.count_ones()).sum();
        if matches == 0 || matches as usize == Hot::PACKETS {
            let why = format!("'{text}' takes {matches} packets: that is no test");
            return Err(Failure::Unsound(why));
        }
        Ok(case)
    }

    /// An engine on this case.
    pub(super) fn entrant(
        &self,
        name: impl Into<String>,
        engine: Engine,
        scale: &Scale,
    ) -> Entrant<'_> {
        let frames = self.hot.frames();
        timed(name, &self.expected, scale, move |verdicts| {
            self.pass(engine, black_box(&frames), verdicts);
        })
    }

    /// What an engine says of all packets, 64 a word.
    fn verdicts(&self, engine: Engine) -> Vec<u64> {
        let mut verdicts = vec![0; Hot::PACKETS.div_ceil(Program::MANY)];
        self.pass(engine, &self.hot.frames(), &mut verdicts);
        verdicts
    }

    #[inline(always)]
    fn pass(&self, engine: Engine, frames: &[Frame<'_>], verdicts: &mut [u64]) {
        match engine {
            Engine::Native => many(&self.native, frames, verdicts),
            Engine::Interpreter => many(&self.interpreted, frames, verdicts),
            Engine::Libpcap => each_frame(frames, verdicts, |frame| {
                self.libpcap.run(frame.data(), frame.wire_len()) != 0
            }),
            Engine::ByHand => {
                if let Some(by_hand) = self.by_hand {
                    by_hand(frames, verdicts);
                }
            }
        }
    }
}

/// A program on all frames, 64 at a time.
#[inline(always)]
fn many(program: &Program, frames: &[Frame<'_>], verdicts: &mut [u64]) {
    for (frames, verdict) in frames.chunks(Program::MANY).zip(verdicts) {
        *verdict = program.run_many(frames);
    }
}

/// Filters that nothing is looked up for: each as a program of its own, and all as one function.
#[derive(Debug)]
pub(super) struct Together {
    programs: Vec<Program>,
    joint: Joint,
    hot: Hot,
    /// What libpcap says of each packet: a bit for each filter.
    expected: Vec<u64>,
}

impl Together {
    /// Compiles the first `count` filters, at most 64, and lets libpcap and both ways agree.
    pub(super) fn new(count: usize) -> Result<Self, Failure> {
        let texts = texts(count);
        let programs = texts.iter().map(|text| native(text));
        let programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
        let joint = Joint::new(LinkType::ETHERNET, programs.clone());
        let made = joint.make_native();
        made.map_err(|error| Failure::system("making machine code", error))?;
        let hot = Hot::new();
        let mut expected = vec![0; Hot::PACKETS];
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
            let mut found = vec![0; Hot::PACKETS];
            set.pass(is_joint, &set.hot.frames(), &mut found);
            agree("each or all", &texts.join(" | "), &set.expected, &found)?;
        }
        Ok(set)
    }

    /// One of the two ways.
    pub(super) fn entrant(&self, row: String, is_joint: bool, scale: &Scale) -> Entrant<'_> {
        let frames = self.hot.frames();
        timed(row, &self.expected, scale, move |found| {
            self.pass(is_joint, black_box(&frames), found);
        })
    }

    /// The filters that each packet matches. Those of a filter by itself are gathered by packet, as is needed to act on them.
    fn pass(&self, is_joint: bool, frames: &[Frame<'_>], found: &mut [u64]) {
        let mut results = [0; Joint::MANY];
        let found = found.chunks_mut(Joint::MANY);
        for (frames, found) in frames.chunks(Joint::MANY).zip(found) {
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
}

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
    let texts = TOGETHER.iter().map(ToString::to_string).chain(more);
    texts.take(count).collect()
}

/// A trigger in Lua, compared with libpcap on a case with the same test.
pub(super) fn script<'a>(
    hot: &'a Hot,
    case: &'a Case,
    scale: &Scale,
) -> Result<Entrant<'a>, Failure> {
    if !retroscope_script::compiles() {
        let why = "LuaJIT compiles nothing on this machine";
        return Err(Failure::CannotRun(why.to_owned()));
    }
    let limits = Limits {
        time: CALL_MAX,
        ..Limits::default()
    };
    let trigger = Machine::new(&Script::new("port.lua", SCRIPT, false), limits);
    let mut trigger = trigger.map_err(|error| Failure::system("loading a script", error))?;
    let packet = |frame: Frame<'a>| Packet {
        data: frame.data(),
        wire_len: frame.wire_len(),
        time_ns: 0,
        interface: 0,
        link_type: LinkType::ETHERNET,
        direction: 0,
    };
    let packets: Vec<_> = hot.frames().into_iter().map(packet).collect();
    let mut pass = move |verdicts: &mut [u64]| {
        for (packets, verdict) in packets.chunks(MANY).zip(verdicts) {
            *verdict = trigger.match_many(packets);
        }
    };
    let mut found = vec![0; case.expected.len()];
    pass(&mut found);
    agree("the script", SCRIPT, &case.expected, &found)?;
    Ok(timed("lua", &case.expected, scale, pass))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_and_libpcap_agree() {
        for count in [1, 24, Joint::MANY] {
            let set = Together::new(count).unwrap();
            assert!(set.expected.iter().any(|filters| *filters != 0));
        }
    }

    #[test]
    fn a_verdict_that_differs_is_told() {
        let told = agree("it", "text", &[0, 5], &[0, 1])
            .unwrap_err()
            .to_string();
        assert_eq!(
            told,
            "it and libpcap disagree about 'text', packets 1, bit 2"
        );
    }
}
