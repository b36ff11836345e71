//! Alerts of many kinds over generated packets, with packets that each dump must contain.

use std::{fs, net::IpAddr, path::Path};

use retroscope_packet::{FlowEndpoint, LinkType, community_id_between};
use retroscope_pcapfile::{PcapOptions, PcapWriter};
use serde_json::{Value, json};

use super::{Run, run};

const EACH: usize = 50;
const START_US: i64 = 1_790_000_000_000_000;
/// Number of packets of a flow that an alert is about.
const PACKETS: usize = 6;
/// Time between two consecutive packets of a flow, µs.
const STEP_US: i64 = 100_003;
/// Time between the starts of two flows, µs.
const FLOW_US: i64 = 7_001;

/// A generated capture, and the alerts about it.
#[derive(Default)]
struct Made {
    frames: Vec<(i64, Vec<u8>)>,
    asks: Vec<Ask>,
}

struct Ask {
    what: &'static str,
    alert: Value,
    /// Frames that the dump must contain, in order of time.
    frames: Vec<(i64, Vec<u8>)>,
    /// Time of the frame that the dump must mark.
    marked: Option<i64>,
}

#[derive(Clone, Copy)]
struct Flow {
    number: usize,
    proto: u8,
    ends: [FlowEndpoint; 2],
}

impl Flow {
    fn new(number: usize, proto: u8, is_v6: bool) -> Self {
        let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
        let addr = |last: u8| match is_v6 {
            false => IpAddr::from([10, high, low, last]),
            true => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, high.into(), low.into(), last.into()]),
        };
        let end = |last, port| FlowEndpoint {
            addr: addr(last),
            port,
        };
        Self {
            number,
            proto,
            ends: [end(1, 40_000), end(2, 80)],
        }
    }

    /// Packet `number` of the flow, in UDP, TCP or ICMP. Odd numbers are replies. `fragment`:
    /// offset in bytes, and whether more fragments follow, for IPv4.
    fn packet(&self, number: usize, fragment: Option<(u16, bool)>) -> Vec<u8> {
        let [from, to] = if number.is_multiple_of(2) {
            self.ends
        } else {
            [self.ends[1], self.ends[0]]
        };
        let tag = [self.number.to_be_bytes(), number.to_be_bytes()].concat();
        let ports = [from.port.to_be_bytes(), to.port.to_be_bytes()].concat();
        let mut body = match self.proto {
            6 => [
                &ports[..],
                &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0],
                &tag,
            ]
            .concat(),
            17 => [&ports[..], &[0, 24, 0, 0], &tag].concat(),
            _ => [
                &[
                    if number.is_multiple_of(2) { 8 } else { 0 },
                    0,
                    0,
                    0,
                    0,
                    1,
                    0,
                    1,
                ][..],
                &tag,
            ]
            .concat(),
        };
        if matches!(fragment, Some((1.., _))) {
            // A later fragment has only data, without a transport header.
            body = vec![0xaa; 24];
        }
        let len = u16::try_from(body.len()).unwrap();
        match (from.addr, to.addr) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total = (len + 20).to_be_bytes();
                let (offset, more) = fragment.unwrap_or((0, false));
                let place = ((offset / 8) | (u16::from(more) << 13)).to_be_bytes();
                let id = u16::try_from(self.number * 8 + number / 2)
                    .unwrap()
                    .to_be_bytes();
                let head = [
                    0x45, 0, total[0], total[1], id[0], id[1], place[0], place[1], 64, self.proto,
                    0, 0,
                ];
                [&head[..], &src.octets(), &dst.octets(), &body].concat()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let len = len.to_be_bytes();
                let head = [0x60, 0, 0, 0, len[0], len[1], self.proto, 64];
                [&head[..], &src.octets(), &dst.octets(), &body].concat()
            }
            _ => unreachable!("one family"),
        }
    }

    /// An alert about packet `number`, as Suricata writes it. `seed`: the seed of the alert's
    /// Community ID. With `None`, and about ICMP, the alert has no Community ID.
    fn alert(&self, number: usize, time_us: i64, seed: Option<u16>) -> Value {
        let [from, to] = if number.is_multiple_of(2) {
            self.ends
        } else {
            [self.ends[1], self.ends[0]]
        };
        let is_icmp = self.proto == 1;
        let name = match self.proto {
            6 => "TCP",
            17 => "UDP",
            _ => "ICMP",
        };
        let mut alert = json!({
            "timestamp": stamp(time_us), "flow_id": self.number, "event_type": "alert",
            "src_ip": from.addr.to_string(), "dest_ip": to.addr.to_string(), "proto": name, "pkt_src": "wire/pcap",
            "alert": {"gid": 1, "signature_id": 1, "rev": 3, "signature": "made", "severity": 3},
            "flow": {"start": stamp(self.start_us()), "src_ip": self.ends[0].addr.to_string(), "dest_ip": self.ends[1].addr.to_string()},
        });
        if is_icmp {
            alert["icmp_type"] = json!(if number.is_multiple_of(2) { 8 } else { 0 });
            alert["icmp_code"] = json!(0);
        } else {
            alert["src_port"] = json!(from.port);
            alert["dest_port"] = json!(to.port);
            if let Some(seed) = seed {
                let mut ends = self.ends;
                ends.sort();
                alert["community_id"] = json!(community_id_between(self.proto, ends, true, seed));
            }
        }
        alert
    }

    fn start_us(&self) -> i64 {
        START_US + FLOW_US * i64::try_from(self.number).unwrap()
    }

    fn time_us(&self, number: usize) -> i64 {
        self.start_us() + STEP_US * i64::try_from(number).unwrap()
    }
}

fn stamp(us: i64) -> String {
    let text = retroscope_recorder::rfc3339(us * 1000);
    format!("{}+0000", &text[..26])
}

/// An Ethernet frame with VLAN tags.
fn ethernet(vlan: &[u16], packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for id in vlan {
        frame.extend([0x81, 0x00]);
        frame.extend(id.to_be_bytes());
    }
    frame.extend(if packet[0] >> 4 == 6 {
        [0x86, 0xdd]
    } else {
        [8, 0]
    });
    frame.extend_from_slice(packet);
    frame
}

impl Made {
    /// Adds a flow and returns its frames. `wrap` encapsulates each packet.
    fn flow(
        &mut self,
        flow: &Flow,
        wrap: impl Fn(usize, Vec<u8>) -> Vec<u8>,
    ) -> Vec<(i64, Vec<u8>)> {
        let packet = |number| {
            (
                flow.time_us(number),
                wrap(number, flow.packet(number, None)),
            )
        };
        let frames: Vec<_> = (0..PACKETS).map(packet).collect();
        self.frames.extend(frames.clone());
        frames
    }

    fn ask(
        &mut self,
        what: &'static str,
        mut alert: Value,
        frames: &[(i64, Vec<u8>)],
        marked: Option<i64>,
    ) {
        alert["alert"]["signature_id"] = json!(self.asks.len());
        let frames = frames.to_vec();
        self.asks.push(Ask {
            what,
            alert,
            frames,
            marked,
        });
    }

    fn write(&mut self, dir: &Path) -> Run {
        self.frames.sort();
        let capture = dir.join("made.pcap");
        let mut writer = PcapWriter::new(
            fs::File::create(&capture).unwrap(),
            PcapOptions::new(LinkType::ETHERNET),
        )
        .unwrap();
        for (us, frame) in &self.frames {
            writer
                .record(us * 1000, u32::try_from(frame.len()).unwrap(), frame)
                .unwrap();
        }
        writer.finish().unwrap();
        let lines: Vec<String> = self.asks.iter().map(|ask| ask.alert.to_string()).collect();
        let alerts = dir.join("made.json");
        fs::write(&alerts, lines.join("\n")).unwrap();
        run(&capture, &alerts, &[])
    }
}

fn made() -> Made {
    let mut made = Made::default();
    let mut random = fastrand::Rng::with_seed(20);
    let mut number = 0;
    let mut next = |proto, is_v6| {
        number += 1;
        Flow::new(number, proto, is_v6)
    };
    for round in 0..EACH {
        let plain = |_: usize, packet: Vec<u8>| ethernet(&[], &packet);
        let answer = 1 + 2 * random.usize(..PACKETS / 2);
        let any = random.usize(..PACKETS);

        let flow = next(6, false);
        let frames = made.flow(&flow, plain);
        made.ask(
            "reply",
            flow.alert(answer, flow.time_us(answer), Some(0)),
            &frames,
            Some(flow.time_us(answer)),
        );

        let flow = next(6, false);
        let frames = made.flow(&flow, plain);
        let mut alert = flow.alert(0, flow.time_us(PACKETS - 1) + 3_000_000, Some(0));
        alert["pkt_src"] = json!("stream (flow timeout)");
        made.ask("flow time-out", alert, &frames, None);

        // Every other tunnel is GRE, the rest are VXLAN. The VXLAN source port differs between
        // directions. Another flow is in the same tunnel.
        let (flow, other) = (next(17, false), next(17, false));
        let is_gre = round % 2 == 1;
        let tunnel = |number: usize| {
            let mut ends = [
                FlowEndpoint {
                    addr: IpAddr::from([192, 0, 2, 1]),
                    port: 50_000,
                },
                FlowEndpoint {
                    addr: IpAddr::from([192, 0, 2, 2]),
                    port: 4789,
                },
            ];
            if number % 2 == 1 {
                ends = [
                    FlowEndpoint {
                        port: 60_000,
                        ..ends[1]
                    },
                    FlowEndpoint {
                        port: 4789,
                        ..ends[0]
                    },
                ];
            }
            ends
        };
        let wrap = |number: usize, packet: Vec<u8>| {
            let ends = tunnel(number);
            let body = match is_gre {
                true => [&[0, 0, 8, 0][..], &packet].concat(),
                false => {
                    let inner = ethernet(&[], &packet);
                    let len = u16::try_from(inner.len() + 16).unwrap().to_be_bytes();
                    [
                        &ends[0].port.to_be_bytes()[..],
                        &ends[1].port.to_be_bytes(),
                        &len,
                        &[0, 0, 8, 0, 0, 0, 0, 0, 7, 0],
                        &inner,
                    ]
                    .concat()
                }
            };
            let len = u16::try_from(body.len() + 20).unwrap().to_be_bytes();
            let (IpAddr::V4(src), IpAddr::V4(dst)) = (ends[0].addr, ends[1].addr) else {
                unreachable!("IPv4");
            };
            let head = [
                0x45,
                0,
                len[0],
                len[1],
                0,
                0,
                0,
                0,
                64,
                if is_gre { 47 } else { 17 },
                0,
                0,
            ];
            ethernet(
                &[],
                &[&head[..], &src.octets(), &dst.octets(), &body].concat(),
            )
        };
        made.flow(&other, wrap);
        let frames = made.flow(&flow, wrap);
        let mut alert = flow.alert(any, flow.time_us(any), Some(0));
        let [from, to] = tunnel(any);
        alert["pkt_src"] = json!(if is_gre {
            "gre tunnel"
        } else {
            "vxlan encapsulation"
        });
        alert["tunnel"] = json!({"src_ip": from.addr.to_string(), "dest_ip": to.addr.to_string(), "proto": if is_gre { "GRE" } else { "UDP" },
            "src_port": if is_gre { 0 } else { from.port }, "dest_port": if is_gre { 0 } else { to.port }, "depth": 1, "pkt_src": "wire/pcap"});
        made.ask("tunnel", alert, &frames, Some(flow.time_us(any)));

        // Two flows at the same times that differ only in their VLAN tags.
        let flow = next(6, false);
        for vlan in [&[100, 7][..], &[200, 7]] {
            let frames = made.flow(&flow, |_, packet| ethernet(vlan, &packet));
            let mut alert = flow.alert(any, flow.time_us(any), Some(0));
            alert["vlan"] = json!(vlan);
            made.ask("vlan pair", alert, &frames, Some(flow.time_us(any)));
        }

        // Each datagram has two fragments, and the second fragment arrives first. One alert is
        // about the reassembled datagram, one about a fragment.
        let flow = next(17, false);
        let mut frames = Vec::new();
        for number in 0..PACKETS {
            let time_us = flow.time_us(number);
            for (us, fragment) in [(time_us, (24, false)), (time_us + 5, (0, true))] {
                frames.push((us, ethernet(&[], &flow.packet(number, Some(fragment)))));
            }
        }
        made.frames.extend(frames.clone());
        let mut alert = flow.alert(any, flow.time_us(any) + 5, Some(0));
        alert["pkt_src"] = json!("defrag");
        alert["tunnel"] = json!({"src_ip": alert["src_ip"], "dest_ip": alert["dest_ip"], "src_port": 0, "dest_port": 0, "proto": "UDP", "depth": 0});
        made.ask("fragments put together", alert, &frames, None);
        let mut alert = flow.alert(any, flow.time_us(any), None);
        (alert["src_port"], alert["dest_port"], alert["flow"]) = (json!(0), json!(0), Value::Null);
        made.ask("fragment", alert, &frames, Some(flow.time_us(any)));

        let flow = next(1, false);
        let frames = made.flow(&flow, plain);
        made.ask(
            "icmp",
            flow.alert(any, flow.time_us(any), None),
            &frames,
            Some(flow.time_us(any)),
        );

        let flow = next(6, true);
        let frames = made.flow(&flow, plain);
        made.ask(
            "ipv6",
            flow.alert(any, flow.time_us(any), Some(0)),
            &frames,
            Some(flow.time_us(any)),
        );

        for (what, seed) in [("no community_id", None), ("another seed", Some(7))] {
            let flow = next(17, false);
            let frames = made.flow(&flow, plain);
            made.ask(
                what,
                flow.alert(any, flow.time_us(any), seed),
                &frames,
                Some(flow.time_us(any)),
            );
        }

        let flow = next(6, false);
        made.flow(&flow, plain);
        let mut alert = flow.alert(any, flow.time_us(any), Some(0));
        alert["src_ip"] = json!("203.0.113.9");
        made.ask("xff overwrite", alert, &[], None);

        // A UDP flow over IPv6, with an alert that has no Community ID.
        let flow = next(17, true);
        let frames = made.flow(&flow, plain);
        made.ask(
            "late",
            flow.alert(any, flow.time_us(any), None),
            &frames,
            Some(flow.time_us(any)),
        );
    }
    made
}

/// The sidecar of the dump for an alert, found by the alert's signature ID, which is unique here.
fn sidecar<'r>(run: &'r Run, alert: &Value) -> &'r Value {
    let is_it = |entry: &Value| entry["signature_id"] == alert["alert"]["signature_id"];
    let mut all = run.sidecars.iter();
    let found = all.find(|it| it["alerts"].as_array().unwrap().iter().any(is_it));
    found.unwrap_or_else(|| panic!("no dump of {alert}"))
}

#[test]
fn made_alerts_of_every_kind_get_what_they_are_about() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = made();
    let run = made.write(dir.path());
    for ask in &made.asks {
        let Ask {
            what,
            alert,
            frames,
            marked,
        } = ask;
        let sidecar = sidecar(&run, alert);
        let file = Path::new(sidecar["file"].as_str().unwrap());
        let dumped = &run.dumps[file];
        let found: Vec<_> = dumped
            .iter()
            .map(|it| (it.time_us, it.data.clone()))
            .collect();
        let mut frames = frames.clone();
        frames.sort();
        assert_eq!(found, frames, "{what}: {alert} {sidecar}");
        if let Some(marked) = marked {
            let is_marked = dumped
                .iter()
                .any(|it| it.is_marked && it.time_us == *marked);
            assert!(is_marked, "{what}: {alert}");
        }
        let is_empty = frames.is_empty();
        assert_eq!(
            sidecar["verdict"] == "complete",
            !is_empty,
            "{what}: {sidecar}"
        );
        let notes = sidecar["notes"].to_string();
        let is_told = notes.contains("nothing matched") && notes.contains("xff overwrite");
        assert_eq!(is_told, is_empty, "{what}: {notes}");
    }
    let marks = run
        .dumps
        .values()
        .flatten()
        .filter(|it| it.is_marked)
        .count();
    let expected = made.asks.iter().filter(|ask| ask.marked.is_some()).count();
    assert_eq!(marks, expected, "no other packet is marked");
    let alerts = &run.summary["alerts"];
    assert_eq!(alerts["outcomes"]["nothing-matched"], EACH);
    assert_eq!(alerts["other_community_id"], 2 * EACH);
    assert_eq!(run.code, 3);
}

/// With `alerts.delay=60s` a dump has all packets of its flow if the ring still has these packets.
/// With a smaller ring the dump is empty and incomplete, and a note says that the packets aged out.
#[test]
fn late_alerts_find_the_past_while_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = Made::default();
    let flows: Vec<Flow> = (0..EACH)
        .map(|number| Flow::new(number, 17, false))
        .collect();
    for flow in &flows {
        let frames = made.flow(flow, |_, packet| ethernet(&[], &packet));
        made.ask(
            "late",
            flow.alert(2, flow.time_us(2), Some(0)),
            &frames,
            Some(flow.time_us(2)),
        );
    }
    // Two minutes of other traffic, 32 MiB.
    let filler = Flow::new(7999, 17, false);
    for number in 0..24_000_i64 {
        let mut frame = ethernet(&[], &filler.packet(0, None));
        frame.resize(1400, 0);
        made.frames.push((START_US + 5000 * number, frame));
    }
    made.write(dir.path());
    let (capture, alerts) = (dir.path().join("made.pcap"), dir.path().join("made.json"));
    let late = run(&capture, &alerts, &["--set", "alerts.delay=60s"]);
    for ask in &made.asks {
        let sidecar = sidecar(&late, &ask.alert);
        let file = Path::new(sidecar["file"].as_str().unwrap());
        let found: Vec<_> = late.dumps[file]
            .iter()
            .map(|it| (it.time_us, it.data.clone()))
            .collect();
        assert_eq!(found, ask.frames);
        assert!(late.dumps[file][2].is_marked);
    }
    assert_eq!(late.code, 0, "{}", late.told);
    let aged = run(
        &capture,
        &alerts,
        &["--set", "alerts.delay=60s", "--ring", "8MiB"],
    );
    assert_eq!(aged.summary["alerts"]["outcomes"]["aged-out"], EACH);
    assert_eq!(aged.code, 3);
    for sidecar in &aged.sidecars {
        assert_eq!(
            (sidecar["packets"].as_u64(), &sidecar["verdict"]),
            (Some(0), &json!("incomplete"))
        );
        let notes = sidecar["notes"].to_string();
        assert!(notes.contains("aged out"), "{notes}");
    }
    let after = run(&capture, &alerts, &["--set", "alerts.delay=10m"]);
    assert_eq!(
        after.code, 0,
        "what is later than the last packet acts at the end: {}",
        after.told
    );
}

/// A decoder alert has no addresses. The dump has the packets around the alert's time, and among
/// them the alert's own packet. The dump exceeds `alerts.budget` by at most one packet. An alert
/// from an unknown interface gets no dump.
#[test]
fn decoder_events_get_the_packets_around_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = Made::default();
    let filler = Flow::new(9, 17, false);
    for number in 0..30_000_i64 {
        let mut frame = ethernet(&[], &filler.packet(0, None));
        frame.resize(1400, u8::try_from(number % 251).unwrap());
        made.frames.push((START_US + 2000 * number, frame));
    }
    for number in 0..i64::try_from(EACH).unwrap() {
        let us = START_US + 1_000_001 * number + 500_000;
        let frame = vec![u8::try_from(number).unwrap(); 5];
        made.frames.push((us, frame.clone()));
        let alert = json!({"timestamp": stamp(us), "event_type": "alert", "pkt_src": "wire/pcap", "alert": {"signature_id": 0, "gid": 1, "rev": 1, "signature": "too small"}});
        made.ask("decoder", alert, &[(us, frame)], Some(us));
    }
    let all = made.write(dir.path());
    let (capture, alerts) = (dir.path().join("made.pcap"), dir.path().join("made.json"));
    let small = run(
        &capture,
        &alerts,
        &[
            "--set",
            "alerts.budget=6MiB",
            "--future",
            "0s",
            "--ring",
            "64MiB",
        ],
    );
    let elsewhere = fs::read_to_string(&alerts)
        .unwrap()
        .replace(r#""pkt_src""#, r#""in_iface":"eth77","pkt_src""#);
    for run in [&all, &small] {
        for ask in &made.asks {
            let found = run.dumps.values().find(|dump| {
                dump.iter().any(|it| {
                    it.is_marked && (it.time_us, &it.data) == (ask.frames[0].0, &ask.frames[0].1)
                })
            });
            assert!(found.is_some(), "{}", ask.alert);
        }
    }
    for dump in small.dumps.values() {
        let bytes: usize = dump.iter().map(|it| it.data.len()).sum();
        assert!(bytes <= (6 << 20) + 1400, "{bytes}");
    }
    fs::write(&alerts, elsewhere).unwrap();
    let none = run(&capture, &alerts, &[]);
    assert_eq!(none.summary["alerts"]["outcomes"]["no-interface"], EACH);
    assert_eq!((none.dumps.len(), none.code), (0, 3));
}

/// Limits on dumps and bytes also apply to alerts. The summary counts each alert that a limit
/// refuses.
#[test]
fn limits_hold_alerts() {
    const FLOWS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let mut made = Made::default();
    for number in 0..FLOWS {
        let flow = Flow::new(number, 17, false);
        let frames = made.flow(&flow, |_, packet| ethernet(&[], &packet));
        let alert = flow.alert(2, flow.time_us(2), Some(0));
        made.ask("limited", alert, &frames, Some(flow.time_us(2)));
    }
    // Other traffic, 5 MB. The recorder counts the bytes that dumps have written after each 256 KiB
    // of packets.
    let filler = Flow::new(7999, 6, false);
    for number in 0..3600_i64 {
        let mut frame = ethernet(&[], &filler.packet(0, None));
        frame.resize(1400, 0);
        made.frames.push((START_US + 250 * number, frame));
    }
    let all = made.write(dir.path());
    assert_eq!((all.dumps.len(), all.code), (FLOWS, 0), "{}", all.told);
    let (capture, alerts) = (dir.path().join("made.pcap"), dir.path().join("made.json"));
    for (option, limit, most) in [
        ("dumps-per-minute", "7", 7),
        ("bytes-per-hour", "1KiB", FLOWS / 2),
    ] {
        let key = format!("{option}={limit}");
        let held = run(&capture, &alerts, &["--set", &key, "--future", "0s"]);
        let outcomes = &held.summary["alerts"]["outcomes"];
        let refused = outcomes[option].as_u64().unwrap();
        let dumps = held.dumps.len();
        assert_eq!(
            usize::try_from(refused).unwrap() + dumps,
            FLOWS,
            "{outcomes}"
        );
        assert!((1..=most).contains(&dumps), "{option}: {dumps}");
        assert_eq!(held.summary["suppressed_by"][option], refused);
        assert_eq!(held.summary["alerts"]["unmatched"], refused);
    }
    // The rule and the alerts get equal shares of the limit of six dumps: three dumps each.
    let both = [
        "--set",
        "dumps-per-minute=6",
        "--trigger",
        "udp",
        "--future",
        "0s",
    ];
    let both = run(&capture, &alerts, &both);
    let of = |rule: &str| both.sidecars.iter().filter(|it| it["rule"] == rule).count();
    assert_eq!((of("alert"), of("udp")), (3, 3));
}
