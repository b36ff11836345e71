//! Triggers with separate dump expressions, at the same time.

use std::{num::NonZeroUsize, time::Duration};

use crate::{
    Analyzers, CommandError, Config, DumpReport, SubDirectory, TriggerRequest, Verdict,
    tests::{
        control::asked,
        live::{START, config, packets},
        rig::{MS, Rig, RigConfig, S, udp},
        verdict::fragment,
        windows::{contents, offline, record, write},
    },
};

const PAST: i64 = 40 * MS;
const FUTURE: i64 = 10 * MS;

fn dumping(dump: &str) -> TriggerRequest {
    TriggerRequest {
        dump: Some(dump.to_owned()),
        ..TriggerRequest::default()
    }
}

fn threads(n: usize) -> Analyzers {
    Analyzers::Threads(NonZeroUsize::new(n).unwrap())
}

fn two_queues() -> RigConfig<'static> {
    RigConfig {
        queues: 2,
        ring_bytes: 64 << 20,
        ..config()
    }
}

/// A packet that was sent. The destination port decides which rule matches.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at_ns: i64,
    source: u16,
    port: u16,
}

/// Rule, trigger, expression, and the indexes of a dump's packets among the sent packets.
type Dump = (String, i64, String, Vec<usize>);

#[derive(Debug, Clone, Copy)]
enum Form {
    Source,
    Flow,
    Either,
    Default,
}

impl Form {
    const DEFAULT: &str = "udp port 7";

    fn request(self) -> TriggerRequest {
        match self {
            Self::Source => dumping("src port $srcPort"),
            Self::Flow => dumping("$flow"),
            Self::Either => dumping("src port $srcPort or dst port $dstPort"),
            Self::Default => TriggerRequest::default(),
        }
    }

    fn text(self, Sent { source, port, .. }: Sent) -> String {
        match self {
            Self::Source => format!("src port {source}"),
            Self::Flow => format!("$flow[udp 10.0.0.1:{source} 10.0.0.2:{port}]"),
            Self::Either => format!("src port {source} or dst port {port}"),
            Self::Default => Self::DEFAULT.to_owned(),
        }
    }

    fn takes(self, trigger: Sent, packet: Sent) -> bool {
        let (source, port) = (trigger.source == packet.source, trigger.port == packet.port);
        match self {
            Self::Source => source,
            Self::Flow => source && port,
            Self::Either => source || port,
            Self::Default => packet.port == 7,
        }
    }
}

/// The rule of port 12, which is added at packet 100 and changed twice.
const LATE: [(usize, Form); 3] = [
    (100, Form::Either),
    (300, Form::Source),
    (450, Form::Default),
];

/// A number for the rule that matches the packet, and its dump expression. A changed rule has
/// another number.
fn rule_of(packet: Sent, place: usize) -> Option<(usize, Form)> {
    match packet.port {
        9 => Some((0, Form::Source)),
        10 => Some((1, Form::Flow)),
        11 => Some((2, Form::Default)),
        12 => {
            let of = LATE.iter().rposition(|(from, _)| *from <= place)?;
            Some((3 + of, LATE[of].1))
        }
        _ => None,
    }
}

fn expected(sent: &[Sent]) -> Vec<Dump> {
    let mut open: Vec<(usize, String, i64)> = Vec::new();
    let mut dumps = Vec::new();
    for (place, trigger) in sent.iter().enumerate() {
        let Some((rule, form)) = rule_of(*trigger, place) else {
            continue;
        };
        let (text, now_ns) = (form.text(*trigger), trigger.at_ns);
        let is_open = |it: &(usize, String, i64)| it.0 == rule && it.1 == text && now_ns <= it.2;
        if open.iter().any(is_open) {
            continue;
        }
        open.push((rule, text.clone(), now_ns + FUTURE));
        let window = now_ns - PAST..=now_ns + FUTURE;
        let is_in = |it: &Sent| window.contains(&it.at_ns) && form.takes(*trigger, *it);
        let taken = sent.iter().enumerate().filter(|(_, it)| is_in(it));
        let taken = taken.map(|(place, _)| place).collect();
        dumps.push((format!("udp port {}", trigger.port), now_ns, text, taken));
    }
    dumps.sort();
    dumps
}

/// The expression of a dump, from its sidecar. Checks that the dump's file contains the expression.
fn expression(report: &DumpReport) -> String {
    let sidecar = std::fs::read(report.file.with_extension("json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
    let expression = sidecar["filter"].as_str().unwrap().to_owned();
    let file = std::fs::read(&report.file).unwrap();
    let mut parts = file.windows(expression.len().max(1));
    assert!(parts.any(|part| part.starts_with(expression.as_bytes())));
    expression
}

fn found(reports: &[DumpReport]) -> Vec<Dump> {
    let found = reports.iter().map(|report| {
        let numbers = packets(report).into_iter();
        let numbers = numbers.map(|(_, _, number)| number as usize).collect();
        let rule = report.rule.clone();
        (rule, report.trigger_ns, expression(report), numbers)
    });
    let mut found: Vec<Dump> = found.collect();
    found.sort();
    found
}

fn traffic(random: &mut fastrand::Rng) -> Vec<Sent> {
    let packet = |place| Sent {
        at_ns: START + place * MS,
        source: random.u16(1..=3),
        port: if random.u8(..5) == 0 {
            random.u16(9..=12)
        } else {
            7
        },
    };
    (0..600).map(packet).collect()
}

/// Hits share a dump only if the values filled into the request of their rule are the same. One
/// rule is added and changed while packets arrive.
#[test]
fn each_rule_dumps_what_it_says_wherever_packets_are_looked_at() {
    let requests = [Form::Source, Form::Flow, Form::Default].map(Form::request);
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let sent = traffic(&mut random);
        let expected = expected(&sent);
        for analyzers in [Analyzers::Auto, threads(1), threads(2)] {
            let dir = tempfile::tempdir().unwrap();
            let plan = RigConfig {
                analyzers,
                flows_together: true,
                triggers: &["udp port 9", "udp port 10", "udp port 11"],
                requests: &requests,
                dump: Form::DEFAULT,
                past_ns: PAST,
                future_ns: FUTURE,
                max_dumps: 1024,
                ..two_queues()
            };
            let mut rig = Rig::new(&plan, START, dir.path());
            for (place, packet) in sent.iter().enumerate() {
                if let Some(of) = LATE.iter().position(|(from, _)| *from == place) {
                    let request = LATE[of].1.request();
                    let put = |it: &crate::RecorderHandle| match of {
                        0 => it.set_rule("late", "udp port 12", &request),
                        _ => it.set_rule("late", "udp port 12", &request),
                    };
                    assert_eq!(asked(&mut rig, put).unwrap(), of > 0);
                }
                let number = u32::try_from(place).unwrap();
                let data = udp(packet.source, packet.port, number);
                rig.arrive(usize::from(packet.source) % 2, data);
                rig.step();
                rig.pass(MS);
            }
            for _ in 0..3 {
                rig.pass(S);
                rig.step();
            }
            assert_eq!(found(&rig.reports), expected, "{seed}, {analyzers:?}");
            let late = sent.iter().zip(0..).filter(|(it, _)| it.port == 12);
            let late = late.filter(|(_, place)| *place >= LATE[0].0).count() as u64;
            assert_eq!(
                rig.handle.rules()[3].hits,
                Some(late),
                "they are counted on"
            );
        }
    }
}

/// All runs write the expected dumps, with the same bytes.
#[test]
fn from_files_each_rule_dumps_what_it_says_whoever_looks() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sent = traffic(&mut random);
        sent.iter_mut().for_each(|it| it.port = it.port.min(11));
        let capture = dir.path().join("in.pcap");
        let frame = |(it, number): (&Sent, u32)| (it.at_ns, udp(it.source, it.port, number));
        let frames: Vec<_> = sent.iter().zip(0..).map(frame).collect();
        write(&capture, &frames);
        let mut first = None;
        for analyzers in [threads(1), threads(2), threads(4), Analyzers::Inline] {
            let out = tempfile::tempdir().unwrap();
            let config = Config {
                analyzers,
                triggers: [9, 10, 11].map(|port| format!("udp port {port}")).to_vec(),
                requests: [Form::Source, Form::Flow].map(Form::request).to_vec(),
                dump: Form::DEFAULT.to_owned(),
                past: Duration::from_millis(40),
                future: Duration::from_millis(10),
                max_dumps: 1024,
                ..offline(out.path())
            };
            let summary = record(&config, &capture);
            assert_eq!(found(&summary.dumps), expected(&sent), "{analyzers:?}");
            let files = contents(out.path());
            let first = first.get_or_insert_with(|| files.clone());
            assert!(*first == files, "{seed}, {analyzers:?}");
        }
    }
}

/// A later fragment dumps its flow, even if only one rule uses flows.
#[test]
fn fragments_are_followed_for_any_rule_that_asks() {
    for (analyzers, at_start) in [
        (Analyzers::Auto, true),
        (Analyzers::Auto, false),
        (threads(1), true),
        (threads(1), false),
        (threads(2), true),
        (threads(2), false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let later = "ip[6:2] & 0x1fff != 0";
        let requests = [TriggerRequest::default(), dumping("$flow")];
        let plan = RigConfig {
            analyzers,
            flows_together: true,
            triggers: if at_start {
                &["udp port 9", "ip[6:2] & 0x1fff != 0"]
            } else {
                &["udp port 9"]
            },
            requests: if at_start { &requests } else { &[] },
            dump: Form::DEFAULT,
            ..two_queues()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.step();
        if !at_start {
            asked(&mut rig, |it| it.set_rule("f", later, &requests[1])).unwrap();
        }
        for packet in [
            udp(1, 8, 0),
            udp(2, 8, 0),
            fragment(5, Some(8)),
            fragment(5, None),
        ] {
            rig.arrive(0, packet);
            rig.pass(MS);
            rig.step();
        }
        rig.pass(3 * S);
        rig.step();
        let [report] = &rig.reports[..] else {
            panic!("{:?}", rig.reports);
        };
        assert_eq!(expression(report), "$flow[udp 10.0.0.1:1 10.0.0.2:8]");
        assert_eq!(report.packets, 3, "{report:?}");
    }
}

/// The only rule that uses flows is changed between two fragments of a datagram.
#[test]
fn first_fragments_are_known_to_a_rule_in_the_place_of_another() {
    for analyzers in [Analyzers::Auto, threads(1)] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            analyzers,
            requests: &[TriggerRequest::default(), dumping("$flow")],
            triggers: &["udp port 9", "udp port 10"],
            dump: Form::DEFAULT,
            flows_together: true,
            ..two_queues()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.arrive(0, fragment(5, Some(8)));
        rig.step();
        let later = "ip[6:2] & 0x1fff != 0";
        let change = |it: &crate::RecorderHandle| it.set_rule("2", later, &dumping("$flow"));
        asked(&mut rig, change).unwrap();
        rig.pass(MS);
        rig.arrive(0, fragment(5, None));
        rig.step();
        rig.pass(3 * S);
        rig.step();
        assert_eq!(rig.reports.len(), 1, "{analyzers:?}: {:?}", rig.notices);
        assert_eq!(
            expression(&rig.reports[0]),
            "$flow[udp 10.0.0.1:1 10.0.0.2:8]"
        );
    }
}

/// The configuration has more requests than triggers. A later rule does not get the surplus
/// request.
#[test]
fn a_rule_that_comes_later_is_no_trigger_of_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        requests: &[TriggerRequest::default(), dumping("udp port 1")],
        dump: Form::DEFAULT,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.step();
    let add =
        |it: &crate::RecorderHandle| it.set_rule("r", "udp port 7", &TriggerRequest::default());
    asked(&mut rig, add).unwrap();
    rig.arrive(0, udp(1, 7, 0));
    rig.step();
    rig.pass(3 * S);
    rig.step();
    assert_eq!(expression(&rig.reports[0]), Form::DEFAULT);
}

/// If fragments of a flow may arrive at several threads, a new rule that uses flows is refused,
/// unless a rule of the start uses flows.
#[test]
fn a_rule_that_asks_for_flows_may_come_too_late() {
    for (analyzers, dump, is_refused) in [
        (Analyzers::Auto, "", true),
        (threads(2), "", true),
        (threads(1), "", false),
        (Analyzers::Auto, "$communityId", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            analyzers,
            dump,
            ..two_queues()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.step();
        let add =
            |it: &crate::RecorderHandle| it.set_rule("r", "udp port 8", &dumping("$flow or arp"));
        let added = asked(&mut rig, add);
        let is_one = |why: &CommandError| matches!(why, CommandError::Refused(_));
        assert_eq!(added.as_ref().is_err_and(is_one), is_refused, "{added:?}");
        assert_eq!(rig.handle.rules().len(), if is_refused { 1 } else { 2 });
        let add =
            |it: &crate::RecorderHandle| it.set_rule("s", "udp port 8", &dumping("port $dstPort"));
        asked(&mut rig, add).unwrap();
    }
}

/// A manual trigger with another request gets a separate dump. An invalid request starts no dump.
#[test]
fn a_trigger_by_hand_dumps_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    for number in 0..4 {
        rig.arrive(0, udp(1, 7 + u16::try_from(number % 2).unwrap(), number));
        rig.pass(MS);
        rig.step();
    }
    let trigger = |rig: &mut Rig, request: TriggerRequest| {
        asked(rig, move |it| it.trigger(None, request)).map(|it| (it.dump, it.existed))
    };
    for (dump, expected) in [
        ("udp port 7", (1, false)),
        ("udp port 8", (2, false)),
        ("udp port 7", (1, true)),
        ("", (3, false)),
    ] {
        let triggered = trigger(&mut rig, dumping(dump)).unwrap();
        assert_eq!(triggered, expected, "{dump}");
    }
    let plain = trigger(&mut rig, TriggerRequest::default());
    assert_eq!(
        plain.unwrap(),
        (3, true),
        "everything is what is configured"
    );
    for (wrong, told) in [("udp prot 7", "prot"), ("host $srcIP", "$srcIP")] {
        let why = trigger(&mut rig, dumping(wrong)).unwrap_err();
        assert!(matches!(why, CommandError::Filter(_)), "{why:?}");
        assert!(why.to_string().contains(told), "{why}");
    }
    rig.pass(3 * S);
    rig.step();
    rig.reports.sort_by_key(|report| report.number);
    let told = rig.reports.iter();
    let told: Vec<_> = told.map(|it| (expression(it), it.packets)).collect();
    let expected = [("udp port 7", 2), ("udp port 8", 2), ("", 4)];
    assert_eq!(told, expected.map(|(text, count)| (text.to_owned(), count)));
}

/// A request for another directory gets a separate dump. If a directory cannot be made or is a
/// symbolic link, only that dump is lost.
#[test]
fn dumps_go_where_their_triggers_say() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("taken"), "").unwrap();
    std::os::unix::fs::symlink("/tmp", dir.path().join("link")).unwrap();
    let into = |name: &str| TriggerRequest {
        into: Some(SubDirectory::new(name).unwrap()),
        ..TriggerRequest::default()
    };
    let plan = RigConfig {
        requests: &[into("by-rule")],
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 0));
    rig.step();
    for (request, expected) in [
        (into("a.b_C-1"), (2, false)),
        (TriggerRequest::default(), (3, false)),
        (into("a.b_C-1"), (2, true)),
        (into("taken"), (4, false)),
        (into("link"), (5, false)),
    ] {
        let triggered = asked(&mut rig, move |it| it.trigger(None, request)).unwrap();
        assert_eq!((triggered.dump, triggered.existed), expected);
    }
    rig.pass(3 * S);
    rig.step();
    rig.reports.sort_by_key(|report| report.number);
    let places = ["by-rule", "a.b_C-1", "", "taken", "link"];
    assert_eq!(rig.reports.len(), places.len());
    for (report, place) in rig.reports.iter().zip(places) {
        let is_lost = ["taken", "link"].contains(&place);
        assert_eq!(report.verdict == Verdict::Failed, is_lost, "{report:?}");
        assert_eq!(report.file.parent().unwrap(), dir.path().join(place));
        assert_eq!(report.locations, std::slice::from_ref(&report.file));
        assert_eq!(report.file.with_extension("json").exists(), !is_lost);
        assert_eq!(report.packets, u64::from(!is_lost), "{report:?}");
    }
    for wrong in [
        "",
        ".",
        "..",
        ".a",
        "a/b",
        "/a",
        "a b",
        "ä",
        &"a".repeat(65),
    ] {
        assert!(SubDirectory::new(wrong).is_err(), "{wrong}");
    }
}
