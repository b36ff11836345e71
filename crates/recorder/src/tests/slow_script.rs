//! A trigger script that is slower than the packets delays nothing else for long.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retroscope_script::{Script, ScriptLimits};

use crate::{
    Analyzers, Scripts, TriggerRequest, Verdict,
    dump::{encode::DumpFormat, names::Directory},
    tests::rig::{FakeClock, MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;

/// A recorder with a script that matches packets of port 8, and takes `packet_ns` of the fake clock
/// for each packet.
fn rig(packet_ns: i64, ring_bytes: u64, directory: &tempfile::TempDir) -> Rig {
    let plan = RigConfig {
        ring_bytes,
        ..RigConfig::default()
    };
    by_plan(packet_ns, plan, directory)
}

fn by_plan(packet_ns: i64, plan: RigConfig<'_>, directory: &tempfile::TempDir) -> Rig {
    let clock = Arc::new(FakeClock::default());
    let addresses = [&clock.wall_ns, &clock.mono_ns].map(|ns| ns.as_ptr().expose_provenance());
    let [wall, mono] = addresses.map(|at| format!("ffi.cast('int64_t *', {at}ULL)"));
    let text = format!(
        "local ffi = require('ffi')
        local wall, mono = {wall}, {mono}
        partition = 'flow'
        return function(pkt)
            wall[0] = wall[0] + {packet_ns}
            mono[0] = mono[0] + {packet_ns}
            return pkt:has_port(8)
        end"
    );
    let plan = RigConfig {
        scripts: Scripts {
            triggers: vec![Script::new("slow.lua", &text, true)],
            ..Scripts::default()
        },
        past_ns: S,
        future_ns: S,
        ..plan
    };
    let directory = Directory::open(directory.path(), DumpFormat::PcapNg).unwrap();
    Rig::by(clock, &plan, START, directory)
}

fn with_readers() -> RigConfig<'static> {
    RigConfig {
        queues: 2,
        ring_bytes: 128 << 20,
        analyzers: Analyzers::Threads(NonZeroUsize::new(2).unwrap()),
        flows_together: true,
        ..RigConfig::default()
    }
}

fn hits(rig: &Rig) -> u64 {
    let hits = rig.common.counters.reading().hits;
    hits.triggers + hits.suppressed.total()
}

/// Packets of 1,400 bytes arrive at 25 kpps.
fn arrive(rig: &mut Rig, packets: u32) {
    for number in 0..packets {
        let mut packet = udp(1, 7, number);
        packet.resize(1400, 0);
        rig.arrive(0, packet);
        rig.clock.pass(40_000);
        if number % 1000 == 999 {
            rig.insert();
        }
    }
    rig.insert();
}

fn mono_ns(rig: &Rig) -> i64 {
    rig.clock.mono_ns.load(Ordering::SeqCst)
}

fn counts(rig: &Rig) -> (u64, u64, u64) {
    let reading = rig.common.counters.reading();
    (reading.analyzed, reading.lapped, reading.unseen)
}

/// While a slow script analyzes a long burst, its inserter keeps reporting that it runs.
#[test]
fn an_inserter_goes_round_amidst_a_burst() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        ring_bytes: 64 << 20,
        analyzers: Analyzers::Inline,
        ..RigConfig::default()
    };
    let mut rig = by_plan(20 * MS, plan, &dir);
    let turns = |rig: &Rig| {
        let all = rig.common.pulses.list();
        let own = all.into_iter().find(|(thread, _)| thread == "inserter-0");
        own.unwrap().1
    };
    rig.pass(S);
    let (before, begin_ns) = (turns(&rig), mono_ns(&rig));
    arrive(&mut rig, 640);
    let took_ns = mono_ns(&rig) - begin_ns;
    assert!(took_ns > 640 * 20 * MS, "it looked at them: {took_ns}");
    assert!(turns(&rig) - before > 640 / 64, "{}", turns(&rig) - before);
    rig.stop();
}

#[test]
fn a_window_ends_by_the_clock_amidst_a_batch() {
    for packet_ns in [MS / 10, 2 * MS / 5, 3 * MS / 2, 20 * MS] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = rig(packet_ns, 64 << 20, &dir);
        rig.pass(S);
        rig.arrive(0, udp(1, 8, 0));
        rig.pass(MS);
        arrive(&mut rig, 12_000);
        let found_ns = mono_ns(&rig) + packet_ns;
        rig.look_once();
        let (_, closed_ns) = rig.analyzer().closings()[0];
        let late_ns = closed_ns - (START + found_ns + S);
        assert!(
            (0..=75 * MS).contains(&late_ns),
            "{packet_ns}: {late_ns} ns behind its end"
        );
        rig.look();
        rig.stop();
        assert_eq!(rig.reports[0].verdict, Verdict::Complete);
        assert_eq!(counts(&rig), (12_001, 0, 0), "all are looked at");
    }
}

/// The analyzer reports a gap of overwritten packets before it has analyzed the first bucket after
/// the gap.
#[test]
fn packets_that_were_overwritten_are_told_where_that_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let packet_ns = 3 * MS / 2;
    let mut rig = rig(packet_ns, 16 << 20, &dir);
    rig.pass(S);
    arrive(&mut rig, 1);
    rig.look();
    arrive(&mut rig, 30_000);
    let begin_ns = mono_ns(&rig);
    rig.look_once();
    let told_ns = rig.analyzer().told_ns().unwrap();
    let bucket_ns = 3000 * packet_ns;
    assert!(
        told_ns - begin_ns <= bucket_ns,
        "told after {} ns of {}",
        told_ns - begin_ns,
        mono_ns(&rig) - begin_ns
    );
    rig.analyze();
    let told = |text: &&String| text.contains("triggers may be missed");
    assert_eq!(rig.notices.iter().filter(told).count(), 1);
    let (_, lapped, unseen) = counts(&rig);
    assert!(lapped > 10_000, "{lapped}");
    assert_eq!(unseen, lapped);
}

/// After a stop, the recorder analyzes packets for about 3 s at most, and reports the number of
/// unread packets.
#[test]
fn a_stop_does_not_wait_for_all_packets() {
    let cases = [(MS / 10, false), (3 * MS / 2, true), (20 * MS, true)];
    for (packet_ns, is_bound, has_readers) in cases
        .into_iter()
        .flat_map(|(packet_ns, is_bound)| [false, true].map(|it| (packet_ns, is_bound, it)))
    {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = match has_readers {
            true => by_plan(packet_ns, with_readers(), &dir),
            false => rig(packet_ns, 64 << 20, &dir),
        };
        rig.pass(S);
        arrive(&mut rig, 10);
        rig.look();
        rig.trigger(TriggerRequest::default());
        rig.look();
        arrive(&mut rig, 12_000);
        let stop_ns = mono_ns(&rig);
        rig.stop();
        let took_ns = mono_ns(&rig) - stop_ns;
        assert!(took_ns <= 3 * S + 50 * MS, "{packet_ns}: {took_ns} ns");
        let stored = rig.common.ring.statistics().stored_packets;
        let (analyzed, lapped, unseen) = counts(&rig);
        let unread = stored - analyzed - lapped;
        assert_eq!((unseen, unread > 0), (lapped + unread, is_bound));
        let told = format!("the trigger rules did not see {unread} packets");
        let told = rig.notices.iter().any(|text| text.starts_with(&told));
        assert_eq!(told, is_bound, "{:?}", rig.notices);
        let report = rig.reports.last().unwrap();
        assert_eq!(report.verdict, Verdict::Complete, "all were recorded");
    }
}

#[test]
fn a_trigger_by_hand_acts_amidst_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(MS, 64 << 20, &dir);
    rig.pass(S);
    arrive(&mut rig, 10_000);
    rig.trigger(TriggerRequest::default());
    let begin_ns = mono_ns(&rig);
    rig.look_once();
    let (to_ns, _) = rig.analyzer().closings()[0];
    let waited_ns = to_ns - S - (START + begin_ns);
    assert!(waited_ns <= 100 * MS, "{waited_ns} ns");
}

#[test]
fn a_rule_is_changed_amidst_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(MS, 64 << 20, &dir);
    // The analyzer runs in this thread, so it cannot answer.
    rig.handle.answer_wait = Duration::ZERO;
    let request = TriggerRequest::default();
    _ = rig.handle.set_rule("r", "udp port 7", &request);
    rig.pass(S);
    rig.step();
    arrive(&mut rig, 5000);
    _ = rig.handle.set_rule("r", "udp dst port 7", &request);
    rig.look();
    assert_eq!(hits(&rig), 5000);
    assert!(
        rig.handle.rules()[1].hits > Some(4000),
        "from the next packets on"
    );
}

/// A slow script stops a reader at one packet. Meanwhile the reader's earlier hits act, and rules
/// change.
#[test]
fn what_a_reader_found_acts_while_it_looks_on() {
    let dir = tempfile::tempdir().unwrap();
    let goes_on = AtomicBool::new(false);
    let at = goes_on.as_ptr().expose_provenance();
    let text = format!(
        "local ffi = require('ffi')
        local goes_on = ffi.cast('uint8_t *', {at}ULL)
        require('jit').off()
        local seen = 0
        partition = 'flow'
        return function(pkt)
            seen = seen + 1
            while seen == 1030 and goes_on[0] == 0 do end
            return false
        end"
    );
    let plan = RigConfig {
        scripts: Scripts {
            triggers: vec![Script::new("waits.lua", &text, true)],
            ..Scripts::default()
        },
        limits: ScriptLimits {
            time: Duration::from_secs(30),
            ..ScriptLimits::default()
        },
        triggers: &["udp port 7"],
        ..with_readers()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(S);
    rig.step();
    arrive(&mut rig, 2000);
    rig.handle.answer_wait = Duration::ZERO;
    let request = TriggerRequest::default();
    let mut steps = 0;
    rig.look_beside_readers(|handle| {
        let status = handle.status().unwrap();
        steps += u32::from(status.hits.triggers > 0);
        if steps == 1 {
            let name = &handle.rules()[0].name;
            _ = handle.set_rule(name, "udp dst port 7", &request);
        }
        goes_on.store(steps == 2, Ordering::SeqCst);
        steps == 2
    });
    assert_eq!(hits(&rig), 2000);
}
