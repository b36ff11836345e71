//! Overload of the analysis over a veth pair: tests, and two experiments of docs/dev/shedding.md,
//! after figures of R-Scope (Ros-Giralt et al. 2018).
//!
//! The offered load of [`heads_by_overload`] is a multiple of the capacity. The capacity is the
//! rate at which the same recorder analyzes packets during a flood, with plain dropping, measured
//! in the same run. The tests and the other experiment send [`FLOOD`] packets per second, or half
//! as many. An experiment prints its results:
//!
//! ```text
//! cargo test -p retroscope-cli --test live overload -- --ignored --nocapture --test-threads 1
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "rates, of some thousands a second"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use tempfile::TempDir;

use crate::{
    namespace::Namespace,
    quiet,
    recorder::{Outcome, Recorder},
    traffic::{HEADERS, Sender},
};

/// Number of concurrent flows. Flows send in turns, and start at different times.
const SLOTS: u64 = 50;
/// Number of packets of a whole flow.
const LENGTH: u64 = 500;
/// Packets per second at which a recorder with [`slow_script`] cannot analyze all packets.
const FLOOD: u64 = 150_000;

/// The flow of a packet, and the packet's position in the flow.
fn place(number: u64) -> (u64, u64) {
    let (slot, turn) = (number % SLOTS, number / SLOTS);
    let at = turn + slot * (LENGTH / SLOTS);
    (at / LENGTH * SLOTS + slot, at % LENGTH)
}

/// Fills a frame of a flow. The payload contains the packet's position in the flow.
fn fill(number: u64, frame: &mut [u8]) {
    let (flow, at) = place(number);
    let port = 1000 + u16::try_from(flow).unwrap();
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame[HEADERS..HEADERS + 8].copy_from_slice(&at.to_be_bytes());
}

/// A trigger function that needs 40 to 80 µs for a packet on a 2-core Xeon guest.
fn slow_script(directory: &Path) -> PathBuf {
    let path = directory.join("slow.lua");
    let text = "return function(pkt) local n = 1 for i = 1, 5000 do n = (n * 7 + i) % 1013 end return n < 0 end";
    fs::write(&path, text).unwrap();
    path
}

/// Lost packets by cause.
#[derive(Debug, Clone, Copy)]
struct Losses {
    kernel: u64,
    shed: u64,
    /// Stored packets that were overwritten before their analysis.
    lapped: u64,
}

impl Losses {
    /// Reads the losses, and asserts that the recorder's counts include all sent packets.
    fn of(outcome: &Outcome, sent: u64) -> Self {
        let ledger = outcome.source();
        assert_eq!(ledger.received, sent);
        let lost = &outcome.json["sources"][0]["lost"];
        Self {
            kernel: ledger.kernel,
            shed: lost["shed"].as_u64().unwrap_or(0),
            lapped: outcome.json["analyzers"]["missed"].as_u64().unwrap(),
        }
    }
}

/// Sends packets to a recorder with these arguments. Returns the number of sent packets and the
/// losses.
fn losses(namespace: &Namespace, line: &str, send: impl FnOnce(&mut Sender)) -> (u64, Losses) {
    let recorder = Recorder::start(namespace, line);
    let mut sender = Sender::new(namespace, "v0");
    send(&mut sender);
    recorder.settle(sender.sent());
    let sent = sender.sent();
    (sent, Losses::of(&recorder.stop(), sent))
}

/// Packets a second that a recorder with these arguments analyzes during a flood.
fn capacity(
    namespace: &Namespace,
    line: &str,
    send: impl Fn(&mut Sender, u64, Option<u64>),
) -> u64 {
    let recorder = Recorder::start(namespace, line);
    let mut sender = Sender::new(namespace, "v0");
    let start = Instant::now();
    send(&mut sender, 2 * FLOOD, Some(FLOOD));
    let outcome = recorder.stop();
    let took = start.elapsed();
    let analyzed = outcome.json["analyzers"]["analyzed"].as_u64().unwrap();
    assert!(
        analyzed < sender.sent(),
        "{FLOOD} packets a second are no flood"
    );
    let capacity = analyzed as f64 / took.as_secs_f64();
    eprintln!("flooded, it analyzes {capacity:.0} packets a second");
    capacity as u64
}

#[test]
fn heads_of_flows_survive_overload() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("ted") else {
        return;
    };
    let load = (4 * FLOOD, FLOOD);
    let [plain, with] =
        ["", "--set ted=10"].map(|options| kept_with(&namespace, "inline", (options, false), load));
    eprintln!("without: {plain:?}, with: {with:?}");
    assert!(plain.1.shed == 0 && with.1.shed > 0);
    assert!(with.0 * 2 >= plain.0 * 5 && with.0 > 0);
}

/// An inserter that also analyzes first stores all packets that its source has. So in a flood the
/// kernel drops at most 5 % of the packets, although the kernel's buffer has only 1 MiB.
#[test]
fn a_thread_that_analyzes_stores_first() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("lqe") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let script = slow_script(directory.path());
    let line = format!(
        "-i v1 --ring 16MiB --set analyzers=inline --set capture-buffer=1MiB --trigger-lua {}",
        script.display()
    );
    let (sent, lost) = losses(&namespace, &line, |sender| {
        sender.flood(3 * FLOOD, Some(FLOOD / 2), fill, |_, _| {});
    });
    eprintln!("{lost:?} of {sent}");
    assert!(lost.kernel * 20 <= sent, "{lost:?} of {sent}");
    assert!(lost.lapped > sent / 10, "no flood: {lost:?} of {sent}");
}

/// A script takes so long for some packets that the kernel's buffer overflows. The user learns of
/// this.
#[test]
fn a_script_that_exceeds_the_buffer_is_reported() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("overlong") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let script = directory.path().join("spin.lua");
    let text = "local n = 0 return function(pkt) n = n + 1 local x = 0 for i = 1, n % 10000 == 0 and 2e7 or 0 do x = x + i end return x < 0 end";
    fs::write(&script, text).unwrap();
    let line = format!(
        "-i v1 --ring 64MiB --set analyzers=inline --set capture-buffer=1MiB --trigger-lua {}",
        script.display()
    );
    let recorder = Recorder::start(&namespace, &line);
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(FLOOD, Some(FLOOD / 2), fill, |_, _| {});
    recorder.settle(sender.sent());
    let outcome = recorder.stop();
    assert!(
        outcome.said("while the triggers kept the capture thread busy"),
        "{:#?}",
        outcome.words
    );
}

/// After figure 9 of R-Scope: the number of flows whose first ten packets a module sees, with and
/// without tail early drop.
#[test]
#[ignore = "an experiment of three minutes: run it alone, on an idle machine"]
fn heads_by_overload() {
    const ROUNDS: usize = 3;
    const FLOWS: u64 = 1200;
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("fig9") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let line = format!(
        "-i v1 --ring 16MiB --set analyzers=inline --set capture-buffer=1MiB --module {}",
        slow_module(directory.path(), false).display()
    );
    let rate = capacity(&namespace, &line, |sender, count, rate| {
        sender.flood(count, rate, fill, |_, _| {});
    });
    for times in [4, 6, 8, 10] {
        let mut rounds = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (kept, options) in rounds.iter_mut().zip(["", "--set ted=10"]) {
                let load = (FLOWS * LENGTH, times * rate);
                let heads = kept_with(&namespace, "inline", (options, false), load);
                eprintln!("{times}, '{options}': {heads:?}");
                kept.push(heads.0);
            }
        }
        let [plain, with] = rounds.map(|mut kept: Vec<u64>| {
            kept.sort_unstable();
            kept[ROUNDS / 2]
        });
        let by = with as f64 / plain as f64;
        eprintln!("| {times} times | {with} | {plain} | {FLOWS} | {by:.1} |");
        assert!(with * 2 >= plain * 5, "{plain} {with}");
    }
}

/// A module with the loop of [`slow_script`], which wants a flow dumped if the module saw the
/// flow's first ten packets in order. With `shunts`, the module shunts half of the flows after ten
/// packets, as if these flows were encrypted.
fn slow_module(directory: &Path, shunts: bool) -> PathBuf {
    let module = directory.join("slow-module.lua");
    let shunt = if shunts {
        "if key:port_a() % 2 == 0 then pkt:shunt() end"
    } else {
        ""
    };
    let text = format!(
        "local m = {{ stateType = 'uint32_t seen;', mode = 'direct' }}
        function m.handlePacket(key, state, pkt)
            local n = 1
            for i = 1, 5000 do n = (n * 7 + i) % 1013 end
            local number = pkt:u32({})
            if number == state.seen then state.seen = state.seen + 1 end
            if state.seen >= 10 then {shunt} end
            return n < 0 or (state.seen == 10 and number == 9)
        end
        return m",
        HEADERS + 4,
    );
    fs::write(&module, text).unwrap();
    module
}

/// Sends `count` packets of flows with up to [`LENGTH`] packets to a recorder with [`slow_module`].
/// Returns the number of flows whose first ten packets the module saw in order, and the losses.
fn kept_with(
    namespace: &Namespace,
    analyzers: &str,
    (options, shunts): (&str, bool),
    (count, rate): (u64, u64),
) -> (u64, Losses) {
    let directory = TempDir::new().unwrap();
    let line = format!(
        "-i v1 --set capture-buffer=1MiB --ring 16MiB --set analyzers={analyzers} {options} --module {} --trigger 'udp port 9'",
        slow_module(directory.path(), shunts).display()
    );
    let recorder = Recorder::start(namespace, &line);
    let mut sender = Sender::new(namespace, "v0");
    sender.flood(count, Some(rate), fill, |_, _| {});
    recorder.settle(sender.sent());
    let outcome = recorder.stop();
    let events = outcome.json["modules"][0]["wanted"].as_u64().unwrap();
    (events, Losses::of(&outcome, sender.sent()))
}

/// After figure 12 of R-Scope: all mechanisms, each mechanism turned off in turn, and no mechanism.
/// The events come from a module.
#[test]
#[ignore = "an experiment of three minutes: run it alone, on an idle machine"]
fn one_algorithm_off_at_a_time() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("fig12") else {
        return;
    };
    let runs = [
        ("all", "1", "--set ted=10", true),
        ("no tail early drop", "1", "", true),
        ("no shunting", "1", "--set ted=10", false),
        ("one thread", "inline", "--set ted=10", true),
        ("none", "inline", "", false),
    ];
    for round in 0..3 {
        for (what, analyzers, options, shunts) in runs {
            let (events, lost) =
                kept_with(&namespace, analyzers, (options, shunts), (6 * FLOOD, FLOOD));
            eprintln!("{round}, {what}: {events} events, {lost:?}");
        }
    }
}
