//! Filters on packets in the cache: native code, interpreter, libpcap and code written by hand, in the same loop.

use std::{hint::black_box, time::Instant};

use retroscope_filter::{Frame, Program};

use super::{Engine, context, native, on_a_core, sys::Libpcap, traffic::Hot};
use crate::{
    contest::Failure,
    measure::Entrant,
    pace::{Pace, Scale},
};

/// Part of the time of a usual run that packets in the cache need: nothing around them has to warm up.
const PART: f64 = 0.1;

/// How long runs on packets in the cache are.
pub(crate) fn pace(scale: &Scale) -> Pace {
    let scale = Scale {
        seconds: scale.seconds * PART,
        ..*scale
    };
    Pace::new(&scale, 1)
}

/// Takes frames, at most 64 for each verdict, and says which of them match.
pub(crate) type Pass = fn(&[Frame<'_>], &mut [u64]);

/// One expression, made ready for every engine.
#[derive(Debug)]
pub(crate) struct Case {
    text: String,
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
    ///
    /// # Errors
    /// [`Failure`]: it cannot be compiled, the engines do not agree, or it takes no packet or all of them.
    pub(crate) fn new(text: &str, by_hand: Option<Pass>) -> Result<Self, Failure> {
        let interpreted = retroscope_filter::compile(text, context());
        let mut case = Self {
            text: text.to_owned(),
            native: native(text)?,
            interpreted: interpreted
                .map_err(|error| Failure::system("compiling a filter", error))?,
            libpcap: Libpcap::compile(text)?,
            by_hand,
            hot: Hot::new(),
            expected: Vec::new(),
        };
        case.expected = case.verdicts(Engine::Libpcap);
        case.agree()?;
        Ok(case)
    }

    /// An engine on this case, whose figures are nanoseconds a packet.
    pub(crate) fn entrant(
        &self,
        name: impl Into<String>,
        engine: Engine,
        scale: &Scale,
    ) -> Entrant<'_> {
        let mut pace = pace(scale);
        Entrant::new(name, move || self.time(engine, &mut pace))
    }

    fn agree(&self) -> Result<(), Failure> {
        for engine in Engine::ALL {
            if engine == Engine::ByHand && self.by_hand.is_none() {
                continue;
            }
            let found = self.verdicts(engine);
            let differ = self.expected.iter().zip(&found).enumerate();
            let mut differ = differ.map(|(at, (libpcap, found))| (at, libpcap ^ found));
            if let Some((at, differ)) = differ.find(|(_, differ)| *differ != 0) {
                return Err(Failure::Disagree {
                    engine: engine.name().to_owned(),
                    text: self.text.clone(),
                    packet: at as u64 * 64 + u64::from(differ.trailing_zeros()),
                });
            }
        }
        let matches: u32 = self.expected.iter().map(|set| set.count_ones()).sum();
        if matches == 0 || matches as usize == self.hot.frames().len() {
            return Err(Failure::Unsound(format!(
                "'{}' takes {matches} packets: that is no test",
                self.text
            )));
        }
        Ok(())
    }

    /// What an engine says of all packets, 64 a word.
    pub(crate) fn verdicts(&self, engine: Engine) -> Vec<u64> {
        let frames = self.hot.frames();
        let mut verdicts = vec![0; frames.len().div_ceil(Program::MANY)];
        self.pass(engine, &frames, &mut verdicts);
        verdicts
    }

    #[inline(always)]
    fn pass(&self, engine: Engine, frames: &[Frame<'_>], verdicts: &mut [u64]) {
        match engine {
            Engine::Native => many(&self.native, frames, verdicts),
            Engine::Interpreter => many(&self.interpreted, frames, verdicts),
            Engine::Libpcap => each(frames, verdicts, |frame| {
                self.libpcap.run(frame.data(), frame.wire_len()) != 0
            }),
            Engine::ByHand => {
                if let Some(by_hand) = self.by_hand {
                    by_hand(frames, verdicts);
                }
            }
        }
    }

    /// Nanoseconds a packet, over as many rounds as `pace` wants.
    ///
    /// # Errors
    /// [`Failure`]: the verdicts are not those of before.
    fn time(&self, engine: Engine, pace: &mut Pace) -> Result<f64, Failure> {
        let rounds = pace.next();
        let (seconds, verdicts) = on_a_core(|| {
            let frames = self.hot.frames();
            let mut verdicts = vec![0; self.expected.len()];
            let start = Instant::now();
            for _ in 0..rounds {
                self.pass(engine, black_box(&frames), black_box(&mut verdicts));
            }
            (start.elapsed().as_secs_f64(), verdicts)
        })?;
        pace.was(rounds as f64 / seconds);
        if verdicts != self.expected {
            let sum = |sets: &[u64]| {
                sets.iter()
                    .fold(0, |sum: u64, set| sum.rotate_left(1) ^ set)
            };
            return Err(Failure::Checksum {
                expected: sum(&self.expected),
                seen: sum(&verdicts),
            });
        }
        Ok(seconds * 1e9 / (rounds as f64 * self.hot.frames().len() as f64))
    }
}

/// A program on all frames, 64 at a time.
#[inline(always)]
fn many(program: &Program, frames: &[Frame<'_>], verdicts: &mut [u64]) {
    for (frames, verdict) in frames.chunks(Program::MANY).zip(verdicts) {
        *verdict = program.run_many(frames);
    }
}

/// A test on all frames, one by one.
#[inline(always)]
pub(crate) fn each(frames: &[Frame<'_>], verdicts: &mut [u64], takes: impl Fn(&Frame<'_>) -> bool) {
    for (frames, verdict) in frames.chunks(Program::MANY).zip(verdicts) {
        *verdict = frames.iter().enumerate().fold(0, |set, (index, frame)| {
            set | u64::from(takes(frame)) << index
        });
    }
}
