//! A trigger in Lua on the packets of [`Hot`], against libpcap with the same test.

use std::time::{Duration, Instant};

use retroscope_filter::Frame;
use retroscope_packet::LinkType;
use retroscope_script::{Limits, MANY, Packet, Script, Trigger};

use super::{Case, Engine, PORT, on_a_core, traffic::Hot};
use crate::{contest::Failure, pace::Pace};

/// [`PORT`] in Lua.
const TEXT: &str = "return function(pkt) return pkt:is_udp() and pkt:has_port(60000) end";

/// What a call may take: as long as a thread may have to wait for a processor. The script needs microseconds.
const CALL_MAX: Duration = Duration::from_secs(60);

/// A script, and libpcap to compare it with.
#[derive(Debug)]
pub(crate) struct PortScript {
    trigger: Trigger,
    hot: Hot,
    expected: u64,
}

impl PortScript {
    /// Loads the script and compares it with libpcap, packet by packet.
    ///
    /// # Errors
    /// [`Failure::Disagree`], [`Failure::System`]: the script fails, [`Failure::CannotRun`]: LuaJIT does not compile here.
    pub(crate) fn new() -> Result<Self, Failure> {
        if !retroscope_script::compiles() {
            let why = "LuaJIT compiles nothing on this machine";
            return Err(Failure::CannotRun(why.to_owned()));
        }
        let script = Script::new("port.lua", TEXT, false);
        let limits = Limits {
            time: CALL_MAX,
            ..Limits::default()
        };
        let trigger = Trigger::new(&script, limits);
        let mut script = Self {
            trigger: trigger.map_err(|error| Failure::system("loading a script", error))?,
            hot: Hot::new(),
            expected: 0,
        };
        let expected = Case::new(PORT, None)?.verdicts(Engine::Libpcap);
        let frames = script.hot.frames();
        for (number, (frames, expected)) in frames.chunks(MANY).zip(&expected).enumerate() {
            let packets: Vec<Packet<'_>> = frames.iter().map(packet).collect();
            let differ = script.trigger.match_many(&packets) ^ expected;
            if differ != 0 {
                return Err(Failure::Disagree {
                    engine: "the script".to_owned(),
                    text: PORT.to_owned(),
                    packet: number as u64 * 64 + u64::from(differ.trailing_zeros()),
                });
            }
        }
        script.expected = expected.iter().map(|set| u64::from(set.count_ones())).sum();
        Ok(script)
    }

    /// Nanoseconds a packet.
    ///
    /// # Errors
    /// [`Failure`]: it took more or fewer packets than before.
    pub(crate) fn time(&mut self, pace: &mut Pace) -> Result<f64, Failure> {
        let rounds = pace.next();
        let Self { trigger, hot, .. } = self;
        let frames = hot.frames();
        let packets: Vec<Packet<'_>> = frames.iter().map(packet).collect();
        let (seconds, found) = on_a_core(|| {
            let start = Instant::now();
            let mut found = 0;
            for _ in 0..rounds {
                for packets in packets.chunks(MANY) {
                    found += u64::from(trigger.match_many(packets).count_ones());
                }
            }
            (start.elapsed().as_secs_f64(), found)
        })?;
        pace.was(rounds as f64 / seconds);
        if let Some(fault) = trigger.fault() {
            return Err(Failure::system("the script", fault));
        }
        if found != self.expected * rounds {
            return Err(Failure::Count {
                expected: self.expected * rounds,
                seen: found,
            });
        }
        Ok(seconds * 1e9 / (rounds as f64 * packets.len() as f64))
    }
}

fn packet<'p>(frame: &Frame<'p>) -> Packet<'p> {
    Packet {
        data: frame.data(),
        wire_len: frame.wire_len(),
        time_ns: 0,
        interface: 0,
        link_type: LinkType::ETHERNET,
        direction: 0,
    }
}
