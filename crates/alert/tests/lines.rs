//! Parses example lines, lines of a real Suricata, and lines that are torn at every place.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which may"
)]

use std::{fs, path::Path};

use retroscope_alert::{Alert, ParsedLine, read};

const EVE: &str = concat!(
    r#"{"timestamp":"2026-11-28T05:00:00.123456+0000","flow_id":9007199254740993,"in_iface":"eth0","event_type":"alert","vlan":[201,200],"#,
    r#""src_ip":"10.0.0.2","src_port":80,"dest_ip":"10.0.0.1","dest_port":4000,"proto":"TCP","pkt_src":"wire/pcap","community_id":"1:xxx","tx_id":3,"host":"ids1","#,
    r#""alert":{"action":"allowed","gid":1,"signature_id":2019401,"rev":7,"signature":"ET \"x\"","category":"","severity":3},"#,
    r#""flow":{"pkts_toserver":1,"start":"2026-11-28T04:59:58.000001+0000","src_ip":"10.0.0.1"},"packet":"AAAA"}"#
);

fn alert(line: &str) -> Alert {
    match read(line.as_bytes()) {
        ParsedLine::Alert {
            alert,
            after_torn: false,
        } => *alert,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn an_alert_of_suricata_is_understood() {
    let alert = alert(EVE);
    let tuple = alert.tuple.unwrap();
    assert_eq!(alert.time_ns, 1_795_842_000_123_456_000);
    assert_eq!(alert.start_ns, Some(1_795_841_998_000_001_000));
    assert_eq!((tuple.proto, tuple.ports), (6, Some((80, 4000))));
    assert_eq!(tuple.flow().to_string(), "tcp 10.0.0.1:4000 10.0.0.2:80");
    assert_eq!(alert.vlan.as_deref(), Some(&[201, 200][..]));
    assert_eq!(alert.in_iface.as_deref(), Some("eth0"));
    assert!(alert.is_on_wire && alert.tunnel.is_none());
    assert_eq!(alert.has_community_id_of_tuple(), Some(false));
    let it = &alert.identity;
    assert_eq!(
        (it.flow_id, it.tx_id),
        (Some(9_007_199_254_740_993), Some(3))
    );
    assert_eq!(it.name(), r#"1:2019401:7 "ET \"x\"""#);
    assert_eq!(it.host.as_deref(), Some("ids1"));
    assert_eq!(it.timestamp, "2026-11-28T05:00:00.123456+0000");
}

#[test]
fn what_was_not_on_the_wire_is_told_apart() {
    let of = |source: &str| alert(&EVE.replace("wire/pcap", source)).is_on_wire;
    for source in [
        "wire/pcap",
        "gre tunnel",
        "ipv4 tunnel",
        "teredo tunnel",
        "vxlan encapsulation",
    ] {
        assert!(of(source), "{source}");
    }
    for source in [
        "defrag",
        "stream (flow timeout)",
        "stream (reassembly)",
        "ffr shutdown",
        "capture timeout",
    ] {
        assert!(!of(source), "{source}");
    }
}

#[test]
fn fragments_have_no_ports_and_decoder_events_no_tuple() {
    let fragment = EVE
        .replace(r#""src_port":80"#, r#""src_port":0"#)
        .replace(r#""dest_port":4000"#, r#""dest_port":0"#);
    let tuple = alert(&fragment.replace("TCP", "UDP")).tuple.unwrap();
    assert_eq!(tuple.flow().to_string(), "udp 10.0.0.1 10.0.0.2");
    let line = EVE.replace("src_ip", "x").replace("dest_ip", "y");
    assert_eq!(alert(&line).tuple, None);
    let line = EVE.replace("10.0.0.2", "nowhere");
    assert!(matches!(read(line.as_bytes()), ParsedLine::Wrong(_)));
    let line = EVE.replace("2026-11-28T05", "2026-11-28 at 5");
    assert!(matches!(read(line.as_bytes()), ParsedLine::Wrong(_)));
}

#[test]
fn notices_of_zeek_are_understood() {
    let of_connection = alert(concat!(
        r#"{"ts":1795842000.123456,"uid":"C1","id.orig_h":"10.0.0.1","id.orig_p":4000,"id.resp_h":"10.0.0.2","id.resp_p":80,"proto":"tcp","#,
        r#""note":"HTTP::SQL_Injection","msg":"x","src":"10.9.9.9"}"#
    ));
    let tuple = of_connection.tuple.unwrap();
    assert_eq!(tuple.flow().to_string(), "tcp 10.0.0.1:4000 10.0.0.2:80");
    assert_eq!(of_connection.time_ns, 1_795_842_000_123_456_000);
    assert_eq!(of_connection.identity.uid.as_deref(), Some("C1"));
    assert_eq!(of_connection.identity.name(), r#""HTTP::SQL_Injection""#);
    let iso = r#"{"ts":"2026-11-28T05:00:00.123456Z","note":"Scan::Port_Scan","src":"10.0.0.1","dst":"10.0.0.2"}"#;
    let scan = alert(iso);
    assert_eq!((scan.time_ns, scan.tuple), (of_connection.time_ns, None));
    assert_eq!(scan.hosts.len(), 2);
    let by_port = iso
        .replace(r#""src""#, r#""p":22,"proto":"icmp","src""#)
        .replace("10.0.0.", "fe80::");
    assert_eq!(alert(&by_port).tuple.unwrap().proto, 58);
    let floating = alert(r#"{"ts":1795842000.1234560013,"note":"x"}"#);
    assert_eq!(floating.time_ns, of_connection.time_ns);
    assert!(matches!(
        read(br#"{"ts":1.5,"note":null}"#),
        ParsedLine::Ignored
    ));
}

/// A text may be long if the alert does not keep the text, for example `packet`.
#[test]
fn an_alert_that_keeps_long_texts_is_wrong() {
    let long = "x".repeat(500_000);
    alert(&EVE.replace("AAAA", &long));
    alert(&EVE.replace("ET ", &long[..8000]));
    let vlan = vec!["201"; 100_000].join(",");
    for (text, longer) in [
        ("ET ", &long),
        ("eth0", &long),
        ("1:xxx", &long),
        ("ids1", &long),
        ("201,200", &vlan),
    ] {
        let line = EVE.replace(text, longer);
        assert!(
            matches!(read(line.as_bytes()), ParsedLine::Wrong(_)),
            "{text}"
        );
    }
    let notice = format!(r#"{{"ts":1795842000.5,"note":"x","uid":"{long}"}}"#);
    assert!(matches!(read(notice.as_bytes()), ParsedLine::Wrong(_)));
}

#[test]
fn other_events_are_ignored() {
    for line in [
        "",
        r#"{"event_type":"flow"}"#,
        r#"{"event_type":"stats","stats":{"detect":{"alert":4}}}"#,
        r#"{"event_type":"dns","note":"alert"}"#,
    ] {
        assert_eq!(read(line.as_bytes()), ParsedLine::Ignored, "{line}");
    }
}

#[test]
fn a_line_that_was_torn_anywhere_costs_only_itself() {
    let whole = alert(EVE);
    for end in 1..EVE.len() {
        let torn = &EVE.as_bytes()[..end];
        assert_eq!(read(torn), ParsedLine::Torn, "{end}");
        let glued = [torn, EVE.as_bytes()].concat();
        let ParsedLine::Alert {
            alert,
            after_torn: true,
        } = read(&glued)
        else {
            panic!("{end}: {:?}", read(&glued));
        };
        assert_eq!(*alert, whole, "{end}");
        // Only the end of the line is left. An end that begins with `{` has the form of a whole
        // line, and is not tested.
        let rest = &EVE.as_bytes()[end..];
        if !rest.starts_with(b"{") {
            assert_eq!(read(rest), ParsedLine::Torn, "{end}");
        }
    }
}

#[test]
fn suricata_itself_is_understood() {
    let eve = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/eve");
    if !eve.exists() {
        eprintln!("SKIP: {} is not there; nothing was tested", eve.display());
        return;
    }
    let manifest = fs::read_to_string(eve.join("MANIFEST.tsv")).unwrap();
    let mut seen = 0;
    for row in manifest.lines().skip(1) {
        let [name, _, variant, count, _] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let path = eve.join(format!("{name}.alerts.json"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let alerts: Vec<Alert> = text.lines().map(alert).collect();
        assert_eq!(alerts.len().to_string(), count, "{name}");
        for alert in &alerts {
            let agrees = alert.has_community_id_of_tuple();
            let expected = match variant {
                "plain" => Some(true),
                "seed7" => Some(false),
                _ => None,
            };
            assert!(agrees.is_none() || agrees == expected, "{name}: {alert:?}");
            assert!(
                alert
                    .start_ns
                    .is_none_or(|start_ns| start_ns <= alert.time_ns)
            );
        }
        seen += alerts.len();
    }
    assert!(seen > 2800, "{seen}");
}
