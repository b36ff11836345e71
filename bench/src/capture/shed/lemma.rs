//! The four cases of R-Scope's lemma 1 on live traffic (R-Scope, section 2.1 and figure 3), by the
//! place of analysis: inline (long queue emulation), in a thread (dispatcher thread), and as the
//! recorder decides.
//!
//! Frames of 512 bytes arrive in bursts. The kernel's buffer of 1 MiB has room for about 1,700. In
//! cases (2) to (4) these arrive within 6 ms of a burst. The ring has room for all packets.

use std::{io, time::Duration};

use super::{
    NONE, ONE_ANALYZER, Variant, in_turns,
    run::{Lab, SLOW_ROUNDS, SLOW_SCRIPT, count, number},
    variant,
};
use crate::{capture::pause, measure::Failure, session::Session};

const RING_MIB: usize = 512;
/// Packets a second of a burst in cases (2) to (4), the lemma's λ_max.
const BURST_RATE: f64 = 300_000.0;
const BURST_PACKETS: usize = 30_000;
const BURSTS: usize = 5;
/// Bursts of case (3). Half of their packets take longer than the 3 s for which a recorder that is
/// stopped goes on analyzing.
const BURSTS_TOO_MANY: usize = 25;
/// In cases (3) and (4), one packet of this many takes about [`RARE_SECONDS`], others much less.
const RARE: usize = 1000;
/// Longer than the kernel's buffer lasts in a burst of [`BURST_RATE`].
const RARE_SECONDS: f64 = 0.02;

const AUTO: Variant = variant("auto", "--set analyzers=auto");
const PLACES: [(&str, &Variant); 3] = [
    ("inline", &NONE),
    ("thread", &ONE_ANALYZER),
    ("auto", &AUTO),
];
/// The last parts of the rows' names. `kernel`: packets that the kernel dropped, percent. `missed`:
/// packets that were overwritten in the ring or never analyzed, percent. `cpu`: the recorder's
/// processor time until the end of the last period, for each packet analyzed by then, ns.
const PARTS: [&str; 3] = ["kernel", "missed", "cpu"];

/// Traffic, and the script that analyzes the packets.
#[derive(Debug)]
struct Load {
    /// Arguments of the recorder.
    script: &'static str,
    bursts: usize,
    packets: usize,
    /// Packets a second of a burst.
    rate: f64,
    /// Seconds from the start of a burst to the start of the next burst, at least.
    period: f64,
}

/// The cases in their order. `loss_free` is the rate at which the recorder analyzes packets inline
/// with the script of case (2), packets a second.
fn loads(loss_free: f64) -> [Load; 4] {
    let bursts = |script, period| Load {
        script,
        bursts: BURSTS,
        packets: BURST_PACKETS,
        rate: BURST_RATE,
        period,
    };
    let rare = "--trigger-lua FOLDER/rare.lua";
    let rare_packets_last = (BURST_PACKETS / RARE) as f64 * RARE_SECONDS;
    [
        // Analyzing inline is cheaper: a filter, at a steady rate that all places should reach.
        Load {
            script: "",
            bursts: 1,
            packets: 200_000,
            rate: 100_000.0,
            period: 2.2,
        },
        // The buffer holds the packets that arrive while one packet is analyzed. The mean rate is
        // 3/4 of what inline analysis reaches.
        bursts(SLOW_SCRIPT, BURST_PACKETS as f64 / (0.75 * loss_free)),
        // The buffer does not hold the packets that arrive while a rare packet is analyzed. The
        // mean rate is about twice what one thread analyzes.
        Load {
            bursts: BURSTS_TOO_MANY,
            ..bursts(rare, rare_packets_last / 2.0)
        },
        // As in case (3), but the mean rate is about 3/5 of what one thread analyzes.
        bursts(rare, rare_packets_last / 0.6),
    ]
}

/// The rows of the four cases.
pub(super) fn rows(session: &Session, turns: usize) -> io::Result<()> {
    let cases = (0..4).flat_map(|case| PLACES.map(|place| (case, place)));
    let cases = cases.map(|(case, (place, variant))| {
        let name = |part| format!("shed/lemma/case-{}/{place}/{part}", case + 1);
        (PARTS.map(name), (case, variant))
    });
    let cases: Vec<_> = cases.collect();
    let is_wanted = |(names, _): &([String; 3], _)| names.iter().any(|name| session.wants(name));
    if !cases.iter().any(is_wanted) {
        return Ok(());
    }
    let lab = Lab::of_bursts(session).and_then(|lab| {
        let loss_free = lab.loss_free_rate(&NONE)?;
        lab.write("rare.lua", &rare_script(loss_free))?;
        Ok((loads(loss_free), lab))
    });
    in_turns(session, turns, cases, |(case, variant)| {
        let (loads, lab) = lab.as_ref().map_err(Clone::clone)?;
        run(lab, &loads[*case], variant)
    })
}

/// A script like that of case (2), which takes about [`RARE_SECONDS`] for one packet of [`RARE`].
fn rare_script(loss_free: f64) -> String {
    let rounds = count(RARE_SECONDS * loss_free * SLOW_ROUNDS);
    format!(
        "local packets = 0
return function(pkt)
    packets = packets + 1
    if packets % {RARE} ~= 0 then return false end
    local n = 1
    for i = 1, {rounds} do n = (n * 7 + i) % 1013 end
    return n < 0
end"
    )
}

/// Sends the load to a recorder, and returns the figures in the order of [`PARTS`].
fn run(lab: &Lab, load: &Load, variant: &Variant) -> Result<[f64; 3], Failure> {
    let overload = format!("--set capture-buffer=1MiB {}", load.script);
    let recorder = lab.recorder_with(RING_MIB, &overload, variant)?;
    let start_ns = recorder.cpu_ns()?;
    for _ in 0..load.bursts {
        let time = lab.send_in_time(load.packets, load.rate)?;
        let left = load.period - time.seconds;
        pause(Duration::from_secs_f64(left.max(0.0)));
    }
    let cpu_ns = recorder.cpu_ns()? - start_ns;
    let analyzed = lab.analyzed()?;
    let sent = (load.bursts * load.packets) as u64;
    let summary = lab.summary(recorder, sent)?;
    let analyzers = &summary["analyzers"];
    let missed = number(&analyzers["missed"])? + number(&analyzers["unread"])?;
    let percent = |packets| 100.0 * packets as f64 / sent as f64;
    Ok([
        percent(number(&summary["sources"][0]["lost"]["kernel"])?),
        percent(missed),
        cpu_ns as f64 / analyzed,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rare`: packets a second that one thread analyzes in cases (3) and (4).
    #[test]
    fn the_loads_are_the_cases_of_the_lemma() {
        let loss_free = 70_000.0;
        let buffer_seconds = 1700.0 / BURST_RATE;
        let mean = |load: &Load| load.packets as f64 / load.period;
        let [one, two, three, four] = loads(loss_free);
        let rare = RARE as f64 / RARE_SECONDS;
        assert!(one.rate * one.period >= one.packets as f64);
        assert!(buffer_seconds > 1.0 / loss_free && mean(&two) < loss_free);
        assert!(buffer_seconds < RARE_SECONDS && mean(&three) > rare);
        assert!(mean(&four) < rare);
        // Not all packets are analyzed by 3 s after the load.
        let seconds = three.bursts as f64 * three.period + 3.0;
        let packets = three.bursts * three.packets;
        assert!(seconds * rare < 0.75 * packets as f64);
        assert!(packets * (512 + 18) < RING_MIB << 20);
        let script = rare_script(loss_free);
        assert!(script.contains("for i = 1, 7000000 do"), "{script}");
    }
}
