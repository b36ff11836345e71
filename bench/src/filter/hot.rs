//! Filters on packets in the cache: native code, libpcap and handwritten code, several filters as
//! one function, and a trigger in Lua, all timed in the same way.

use std::{hint::black_box, time::Duration};

use retroscope_filter::{FilterFrame, FusedPrograms, Program};
use retroscope_packet::LinkType;
use retroscope_script::{MANY, Machine, Script, ScriptLimits, ScriptPacket};

use super::{PORT, compile, native, traffic::Hot};
use crate::{
    contest::on_a_core,
    measure::{Entrant, Failure, Scale},
};

/// A run on packets in the cache takes this fraction of a normal run's time.
const PART: f64 = 0.1;
/// [`PORT`] in Lua.
const SCRIPT: &str = "return function(pkt) return pkt:is_udp() and pkt:has_port(60000) end";
/// Time limit of a script call: as long as a thread may have to wait for a processor. The script
/// needs microseconds.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Filters as users with knowledge of headers write them, and variations, one a line.
const TOGETHER: &str = include_str!("together.txt");

/// Writes verdicts about frames: the matching frames of each 64 as bits, or for each frame the
/// matching filters as bits.
pub(super) type Pass<'p> = Box<dyn FnMut(&[FilterFrame<'_>], &mut [u64]) + Send + 'p>;

/// A pass over 64 frames at a time.
fn many<'p>(run: impl Fn(&[FilterFrame<'_>]) -> u64 + Send + 'p) -> Pass<'p> {
    Box::new(move |frames, verdicts| {
        for (frames, verdict) in frames.chunks(Program::MANY).zip(verdicts) {
            *verdict = run(frames);
        }
    })
}

/// A pass that tests each frame with `takes`.
pub(super) fn each(takes: impl Fn(&[u8]) -> bool + Send + 'static) -> Pass<'static> {
    many(move |frames| {
        frames.iter().enumerate().fold(0, |set, (index, frame)| {
            set | u64::from(takes(frame.data())) << index
        })
    })
}

/// Nanoseconds a packet of a pass over all packets of [`Hot`]. In every turn, also the uncounted
/// turn, the pass must find the packets that libpcap finds.
fn timed<'a>(
    name: String,
    hot: &'a Hot,
    expected: Vec<u64>,
    scale: &Scale,
    mut pass: Pass<'a>,
) -> Entrant<'a> {
    let (frames, told) = (hot.frames(), name.clone());
    Entrant::paced(name, scale.seconds * PART, 1, move |rounds| {
        let (frames, pass, mut found) = (&frames, &mut pass, vec![0; expected.len()]);
        let (found, seconds) = on_a_core(move || {
            for _ in 0..rounds {
                pass(black_box(frames), black_box(&mut found));
            }
            found
        })?;
        if found != expected {
            return Err(Failure::Wrong(format!("{told} and libpcap disagree")));
        }
        let packets = rounds as f64 * Hot::PACKETS as f64;
        Ok((seconds * 1e9 / packets, rounds as f64 / seconds))
    })
}

/// The engines of a single filter: the system's `bpf_filter`, machine code, and a Rust function.
const ENGINES: [&str; 3] = ["libpcap", "native", "handwritten"];

/// libpcap's verdicts on all packets, 64 a word.
fn verdicts(hot: &Hot, program: &Program) -> Vec<u64> {
    let frames = hot.frames();
    let chunks = frames.chunks(Program::MANY);
    chunks
        .map(|frames| program.run_many_in_libpcap(frames))
        .collect()
}

/// One entrant `NAME/ENGINE` for each engine, which runs an expression. `by_hand`: the pass of the
/// handwritten function; `None` omits this engine.
pub(super) fn engines<'a>(
    name: &str,
    hot: &'a Hot,
    text: &str,
    by_hand: Option<Pass<'a>>,
    scale: &Scale,
) -> Result<Vec<Entrant<'a>>, Failure> {
    let (libpcap, native) = (compile(text)?, native(text)?);
    let expected = verdicts(hot, &libpcap);
    let matches: u32 = expected.iter().map(|set| set.count_ones()).sum();
    if matches == 0 || matches as usize == Hot::PACKETS {
        let why = format!("'{text}' takes {matches} packets: that is no test");
        return Err(Failure::Unsound(why));
    }
    let passes = [
        many(move |frames| libpcap.run_many_in_libpcap(frames)),
        many(move |frames| native.run_many(frames)),
    ];
    let passes = ENGINES.into_iter().zip(passes.into_iter().chain(by_hand));
    let timed = |(engine, pass)| {
        timed(
            format!("{name}/{engine}"),
            hot,
            expected.clone(),
            scale,
            pass,
        )
    };
    Ok(passes.map(timed).collect())
}

/// The first `count` filters of [`TOGETHER`], at most 64, as one function without the look-ups of a
/// rule set. The function returns the matching filters of each packet.
pub(super) fn together<'a>(
    hot: &'a Hot,
    count: usize,
    scale: &Scale,
) -> Result<Entrant<'a>, Failure> {
    let texts = TOGETHER.lines().take(count);
    let programs = texts.map(native).collect::<Result<Vec<_>, _>>()?;
    let mut expected = vec![0; Hot::PACKETS];
    for (bit, program) in programs.iter().enumerate() {
        for (frame, found) in hot.frames().into_iter().zip(&mut expected) {
            *found |= program.run_many_in_libpcap(&[frame]) << bit;
        }
    }
    let joint = FusedPrograms::new(LinkType::ETHERNET, programs);
    let made = joint.make_native();
    made.map_err(|error| Failure::system("making machine code", error))?;
    let pass: Pass<'_> = Box::new(move |frames, found| {
        let mut results = [0; FusedPrograms::MANY];
        let found = found.chunks_mut(FusedPrograms::MANY);
        for (frames, found) in frames.chunks(FusedPrograms::MANY).zip(found) {
            joint.run_many(frames, &mut results);
            found.copy_from_slice(&results[..frames.len()]);
        }
    });
    let row = format!("filter-together/{count}/joint");
    Ok(timed(row, hot, expected, scale, pass))
}

/// A trigger in Lua equivalent to [`PORT`].
pub(super) fn script<'a>(hot: &'a Hot, scale: &Scale) -> Result<Entrant<'a>, Failure> {
    if !retroscope_script::compiles() {
        let why = "LuaJIT compiles nothing on this machine";
        return Err(Failure::CannotRun(why.to_owned()));
    }
    let limits = ScriptLimits {
        time: CALL_MAX,
        ..ScriptLimits::default()
    };
    let trigger = Machine::new(&Script::new("port.lua", SCRIPT, false), limits);
    let mut trigger = trigger.map_err(|error| Failure::system("loading a script", error))?;
    let packet = |frame: FilterFrame<'a>| ScriptPacket {
        data: frame.data(),
        wire_len: frame.wire_len(),
        time_ns: 0,
        interface: 0,
        link_type: LinkType::ETHERNET,
        direction: 0,
    };
    let packets: Vec<_> = hot.frames().into_iter().map(packet).collect();
    let pass: Pass<'_> = Box::new(move |_, verdicts| {
        for (packets, verdict) in packets.chunks(MANY).zip(verdicts) {
            *verdict = trigger.match_many(packets);
        }
    });
    let expected = verdicts(hot, &compile(PORT)?);
    Ok(timed("lua".to_owned(), hot, expected, scale, pass))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Heat;

    #[test]
    fn filters_together_and_libpcap_agree() {
        let scale = Scale {
            ring_bytes: 0,
            seconds: 0.001,
            repetitions: 1,
        };
        let hot = Hot::new();
        for count in [1, 24, FusedPrograms::MANY] {
            let heat = Heat::run("test", 1, vec![together(&hot, count, &scale).unwrap()]);
            assert!(
                heat.first().iter().all(|series| series.figures.is_ok()),
                "{heat:?}"
            );
        }
    }

    #[test]
    fn a_verdict_that_differs_is_told() {
        let hot = Hot::new();
        let scale = Scale {
            ring_bytes: 0,
            seconds: 0.001,
            repetitions: 1,
        };
        let nothing: Pass<'_> = Box::new(|_, found| found.fill(0));
        let entrant = timed("it".to_owned(), &hot, vec![5], &scale, nothing);
        let spread = Heat::run("test", 1, vec![entrant]).spread("it");
        let why = "it and libpcap disagree".to_owned();
        assert_eq!(spread, Err(Failure::Wrong(why)));
    }
}
