//! Dumps that may lack packets: their verdicts report what may be missing.

use retroscope_capture::InputDrops;
use retroscope_packet::LinkType;
use retroscope_pcapfile::{FileInterface, PacketOptions, PcapNgWriter, SectionOptions};
use retroscope_ring::EvictionDetail;

use crate::{
    DumpReport, Verdict,
    tests::{
        rig::{MS, Rig, RigConfig, S, udp},
        windows,
    },
};

const START: i64 = 1_800_000_000 * S;

fn config() -> RigConfig<'static> {
    RigConfig::default()
}

/// The only missing entry of a dump: cause, number of packets, upper bound.
fn missing(report: &DumpReport) -> (&str, Option<u64>, Option<u64>) {
    assert_eq!(report.verdict, Verdict::Incomplete, "{report:?}");
    assert_eq!(report.missing.len(), 1, "{report:?}");
    let missing = &report.missing[0];
    (missing.cause, missing.packets, missing.at_most)
}

fn finished(rig: &mut Rig) -> &DumpReport {
    rig.pass(2 * S);
    rig.step();
    rig.step();
    assert_eq!(rig.reports.len(), 1, "{:?}", rig.notices);
    &rig.reports[0]
}

/// A fragment of a UDP datagram over raw IPv4. The first fragment has the ports 1 and `port`;
/// `None` makes a later fragment.
pub(super) fn fragment(id: u16, port: Option<u16>) -> Vec<u8> {
    let mut packet = udp(1, port.unwrap_or(0xffff), 0);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(if port.is_some() { &[0x20, 0] } else { &[0, 2] });
    packet
}

/// The window is between two packets of an overwritten bucket.
#[test]
fn of_a_bucket_around_the_window_an_upper_bound_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        ring_bytes: 16 << 20,
        past_ns: MS,
        future_ns: 0,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for number in 0..200 {
        rig.arrive(0, udp(1, 7, number));
    }
    rig.pass(10 * S);
    for _ in 0..100 {
        rig.arrive(0, vec![0x45; 250_000]);
        rig.step();
    }
    let trigger = (START + 5 * S, udp(1, 9, 0));
    rig.feeds[1].lock().unwrap().frames.push_back(trigger);
    rig.step();
    let report = finished(&mut rig);
    let (cause, packets, at_most) = missing(report);
    assert_eq!((cause, packets), ("evicted", None));
    let at_most = at_most.unwrap();
    assert!(at_most > 200, "{at_most}");
    let words = [&format!("up to {at_most} packets"), "evicted"];
    let reasons = report.reasons();
    assert!(words.iter().all(|it| reasons.contains(*it)), "{reasons}");
    let window = (report.from.as_str(), report.to.as_str());
    let entry = &report.missing[0];
    assert_eq!((entry.from.as_str(), entry.to.as_str()), window);
}

/// Before the dumper asks what was lost, the ring has forgotten most losses.
#[test]
fn what_fell_and_was_forgotten_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        eviction_detail: EvictionDetail::Exact { budget_bytes: 400 },
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.arrive(0, udp(1, 9, 0));
    rig.insert();
    rig.look();
    for _ in 0..100 {
        rig.arrive(0, vec![0x45; 250_000]);
        rig.insert();
    }
    rig.step();
    let report = finished(&mut rig);
    assert_eq!(missing(report), ("evicted", None, None));
    let entry = &report.missing[0];
    assert_eq!(entry.from, report.from);
    assert_eq!(entry.to, report.trigger_time, "all came at once");
}

/// Checks a dump of a flow. Fragments arrive in `rounds`, and `of_flow` fragments belong to the
/// flow. The dump must report that up to `missed` fragments may be missing; `None`: the dump is
/// complete.
fn fragments_are_missing(
    rounds: impl IntoIterator<Item = Vec<Vec<u8>>>,
    of_flow: u64,
    missed: Option<u64>,
) {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        dump: "$flow",
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 0));
    for fragments in rounds {
        fragments
            .into_iter()
            .for_each(|fragment| rig.arrive(0, fragment));
        rig.step();
    }
    let report = finished(&mut rig);
    match missed {
        Some(_) => assert_eq!(missing(report), ("fragments", None, missed)),
        None => assert_eq!(report.verdict, Verdict::Complete, "{report:?}"),
    }
    assert_eq!(report.packets, 1 + of_flow - missed.unwrap_or(0));
}

/// A dump keeps up to 1024 later fragments that wait for their first fragments.
#[test]
fn later_fragments_that_were_given_up_may_be_missing() {
    for (later, missed) in [(1024, None), (1100, Some(76))] {
        let without_ports: Vec<_> = (0..later).map(|id| fragment(id, None)).collect();
        let first: Vec<_> = (0..later).map(|id| fragment(id, Some(9))).collect();
        let at_once = [without_ports.as_slice(), first.as_slice()].concat();
        for rounds in [vec![at_once], vec![without_ports, first]] {
            fragments_are_missing(rounds, 2 * u64::from(later), missed);
        }
    }
}

/// A filter remembers the flows of 4096 datagrams.
#[test]
fn later_fragments_of_a_forgotten_datagram_may_be_missing() {
    for (datagrams, missed) in [(4096, None), (4097, Some(1))] {
        let first = (0..datagrams).map(|id| fragment(id, Some(if id == 0 { 9 } else { 7 })));
        let later = std::iter::once_with(|| fragment(0, None));
        fragments_are_missing([first.chain(later).collect()], 2, missed);
    }
}

/// The dump may open before or after the dumper has read the bucket of the first fragment for
/// another dump.
#[test]
fn a_first_fragment_is_found_in_the_bucket_before_the_window() {
    for is_behind in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            triggers: &["udp[11] = 5"],
            dump: "$flow",
            past_ns: 10 * MS,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.arrive(0, udp(2, 9, 5));
        rig.step();
        rig.step();
        let bounds = is_behind.then(|| rig.dumper_mut().begin_round());
        rig.arrive(0, fragment(7, Some(9)));
        for _ in 0..9 {
            rig.arrive(0, vec![0x45; 250_000]);
        }
        rig.insert();
        rig.look();
        rig.pass(50 * MS);
        rig.arrive(0, fragment(7, None));
        rig.arrive(0, udp(1, 9, 5));
        rig.insert();
        rig.look();
        if let Some(bounds) = bounds {
            rig.dumper_mut().end_round(&bounds);
        }
        rig.step();
        rig.pass(2 * S);
        rig.step();
        rig.step();
        let [_, report] = rig.reports.as_slice() else {
            panic!("{:?}", rig.reports);
        };
        let verdict = report.verdict;
        assert_eq!(
            (verdict, report.packets),
            (Verdict::Complete, 2),
            "{is_behind}: {report:?}"
        );
    }
}

/// The result must not depend on how many buckets the dumper reads at once.
#[test]
fn fragments_are_looked_at_in_the_order_of_records() {
    for at_once in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            dump: "$flow",
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.arrive(0, udp(1, 9, 0));
        rig.arrive(0, fragment(7, Some(9)));
        (0..8).for_each(|_| rig.arrive(0, vec![0x45; 250_000]));
        rig.step();
        rig.pass(20 * MS);
        rig.arrive(0, vec![0x45; 250_000]);
        rig.arrive(0, fragment(7, Some(7)));
        (0..8).for_each(|_| rig.arrive(0, vec![0x45; 250_000]));
        rig.insert();
        if !at_once {
            rig.analyze();
        }
        let late = (START + 10 * MS, fragment(7, None));
        rig.feeds[0].lock().unwrap().frames.push_back(late);
        rig.step();
        let report = finished(&mut rig);
        assert_eq!(report.packets, 2, "at once: {at_once}");
    }
}

/// The kernel may have dropped packets before any tap. The verdict has an upper bound of these
/// packets.
#[test]
fn what_the_kernel_may_have_dropped_before_the_tap_is_told() {
    for (before, meanwhile) in [(7, 0), (7, 5)] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
        let drop_at_most = |rig: &mut Rig, packets| {
            let drops = InputDrops::AtMost(packets);
            rig.feeds[0].lock().unwrap().input_drops = Some(drops);
            rig.pass(100 * MS);
            rig.step();
        };
        drop_at_most(&mut rig, before);
        rig.pass(10 * S);
        rig.step();
        rig.arrive(0, udp(1, 9, 1));
        rig.step();
        drop_at_most(&mut rig, before + meanwhile);
        let report = finished(&mut rig);
        if meanwhile == 0 {
            assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        } else {
            assert_eq!(missing(report), ("unknown", None, Some(meanwhile)));
            let reasons = report.reasons();
            let words = ["up to 5 packets", "(unknown, fake0)"];
            assert!(words.iter().all(|it| reasons.contains(it)), "{reasons}");
        }
        let source = &rig.common.intake.snapshots()[0];
        assert_eq!((source.lost_known(), source.in_flight()), (0, Some(0)));
    }
}

/// A counter cannot be read: the verdict is `complete` and names the unknown losses.
#[test]
fn losses_that_no_counter_tells_stand_in_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.feeds[0].lock().unwrap().input_drops = Some(InputDrops::Unknown);
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    let report = finished(&mut rig);
    let verdict = "complete; fake0: losses unknown: backlog";
    assert_eq!(report.reasons(), verdict);
    assert!(report.notes.iter().any(|note| verdict.ends_with(note)));
    let bytes = std::fs::read(&report.file).unwrap();
    let field = format!("verdict: {verdict}");
    let has_field = bytes.windows(field.len()).any(|w| w == field.as_bytes());
    assert!(has_field, "{report:?}");
}

/// A window begins within a datagram: the first fragment, which alone has ports, arrived before. If
/// the first fragment was overwritten, later fragments may be missing.
#[test]
fn fragments_at_the_start_of_a_window_have_their_first_before_it() {
    let cases = [
        (1, 9, 0, (3, None)),
        (1, 7, 0, (1, None)),
        (1, 9, 9, (3, None)),
        (1, 9, 80, (1, Some(2))),
        (2000, 7, 9, (1, None)),
    ];
    for (later_ms, port, behind, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            ring_bytes: 16 << 20,
            triggers: &["udp[8:4] = 77"],
            dump: "$flow",
            past_ns: 10 * S,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(100 * MS);
        rig.arrive(0, fragment(1, Some(port)));
        (0..100).for_each(|number| rig.arrive(0, udp(2, 8, 1000 + number)));
        // These packets fill the first fragment's bucket, or lead to its being overwritten.
        for _ in 0..behind {
            rig.arrive(0, vec![0x45; 250_000]);
            rig.insert();
        }
        rig.insert();
        rig.pass(later_ms * MS);
        rig.arrive(0, fragment(1, None));
        rig.arrive(0, fragment(1, None));
        rig.step();
        rig.pass((10_001 - later_ms) * MS - 500_000);
        rig.arrive(0, udp(1, 9, 77));
        rig.step();
        let report = finished(&mut rig);
        let case = format!("{later_ms} ms, port {port}, behind it: {behind}");
        let (packets, at_most) = expected;
        match at_most {
            Some(_) => assert_eq!(missing(report), ("fragments", None, at_most), "{case}"),
            None => assert_eq!(report.verdict, Verdict::Complete, "{case}: {report:?}"),
        }
        assert_eq!(report.packets, packets, "{case}");
    }
}

/// The first fragment, which alone has ports, arrived after the end of the window.
#[test]
fn fragments_at_the_end_of_a_window_may_have_their_first_behind_it() {
    for (before_end, port, missed) in [
        (50 * MS, 9, Some(1)),
        (50 * MS, 7, Some(1)),
        (150 * MS, 9, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            triggers: &["udp[8:4] = 77"],
            dump: "$flow",
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.arrive(0, udp(1, 9, 77));
        rig.pass(S - before_end);
        rig.arrive(0, fragment(1, None));
        rig.pass(before_end + 1);
        rig.arrive(0, fragment(1, Some(port)));
        rig.step();
        let report = finished(&mut rig);
        let case = format!("{before_end} ns, port {port}");
        match missed {
            Some(_) => assert_eq!(missing(report), ("fragments", None, missed), "{case}"),
            None => assert_eq!(report.verdict, Verdict::Complete, "{case}: {report:?}"),
        }
        assert_eq!(report.packets, 1, "{case}");
    }
}

/// The dumper sometimes reads first fragments far from a window together with packets of the
/// window.
#[test]
fn fragments_far_from_a_window_tell_nothing() {
    // Time of the first fragment before the window; `None`: after its end.
    for (before, is_taken) in [
        (Some(90 * MS), true),
        (Some(110 * MS), false),
        (None, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            triggers: &["udp[8:4] = 77"],
            dump: "$flow",
            past_ns: 2 * S,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(S);
        if let Some(before_ns) = before {
            rig.arrive(0, fragment(1, Some(9)));
            rig.insert();
            rig.pass(before_ns);
        }
        rig.pass(2 * S);
        rig.arrive(0, udp(1, 9, 77));
        rig.arrive(0, fragment(1, None));
        rig.insert();
        if before.is_none() {
            rig.pass(S + 1);
            rig.arrive(0, fragment(1, Some(9)));
            rig.insert();
        }
        rig.step();
        let report = finished(&mut rig);
        assert_eq!(report.packets, 1 + u64::from(is_taken), "{before:?}");
    }
}

/// From files, a note of a dump names the link types of which the dump selects nothing. Only
/// packets up to the close of the dump count: how many later packets are read by then depends on
/// threads.
#[test]
fn from_files_link_types_behind_the_close_are_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcapng");
    let file = std::fs::File::create(&capture).unwrap();
    let mut writer = PcapNgWriter::new(file, &SectionOptions::default()).unwrap();
    for link_type in [LinkType::ETHERNET, LinkType::RAW] {
        writer
            .add_interface(&FileInterface::new(link_type))
            .unwrap();
    }
    let ethernet = |port| [&[0; 12][..], &[8, 0], &udp(1, port, 0)].concat();
    let packets = [
        (0, 0, ethernet(9)),
        (0, 10, ethernet(9)),
        (1, 10, udp(1, 7, 0)),
        (0, 20, ethernet(7)),
    ];
    for (interface, seconds, data) in packets {
        let wire_len = u32::try_from(data.len()).unwrap();
        let options = PacketOptions::default();
        let time_ns = START + seconds * S;
        (writer.packet(interface, time_ns, wire_len, &data, &options)).unwrap();
    }
    writer.finish().unwrap();
    for round in 0..20 {
        let config = crate::Config {
            dump: "ether src $srcMAC".to_owned(),
            ..windows::offline(&dir.path().join(round.to_string()))
        };
        let dumps = windows::record(&config, &capture).dumps;
        let notes: Vec<usize> = dumps.iter().map(|dump| dump.notes.len()).collect();
        assert_eq!(notes, [0, 1], "{dumps:?}");
    }
}
