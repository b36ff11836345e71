//! `dev filter-explain` and `dev filter-bench`: how an expression is compiled, and how fast it is.

use std::collections::HashSet;

use retroscope_packet::LinkType;

use super::support::{MFR, dev, dev_on, filter, run, section, small_pcap, write};
use crate::support::{stderr, stdout};

/// Output of `dev filter-explain`, which must succeed without a message.
fn explained(arguments: &[&str]) -> String {
    let output = run(dev("filter-explain").args(arguments));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "{arguments:?}");
    stdout(&output).to_owned()
}

/// The third line of the output, which says how a rule set evaluates the expression.
fn way(text: &str) -> String {
    text.lines().nth(2).expect("a line").to_owned()
}

#[test]
fn it_says_what_is_looked_up_and_what_is_compiled() {
    let looked_up = explained(&["udp port 53"]);
    assert!(
        looked_up.starts_with("expression: udp port 53\n\n"),
        "{looked_up}"
    );
    let links = "\nlink type EN10MB\n  libpcap: ";
    assert!(looked_up.contains(links), "{looked_up}");
    let together = explained(&["ip[8] < 5"]);
    // The program of this expression is too long to share a function with programs of other rules.
    let bytes: Vec<String> = (0..200)
        .map(|n| format!("ip[8] = {n} or ip[9] = {n}"))
        .collect();
    let alone = explained(&[&bytes.join(" or ")]);
    let narrowed = explained(&["-y", "RAW", "host 10.0.0.1 and ip[8] < 5"]);
    assert!(narrowed.contains("\nlink type RAW\n"), "{narrowed}");
    assert!(narrowed.contains(" host 10.0.0.1\n"), "{narrowed}");
    let narrowed_asked = explained(&["udp port 53 and payload contains \"example\""]);
    let asked = explained(&["payload contains \"example\""]);

    let looks_up = |text: &String| text.contains("\n  look up ");
    let compiles = |text: &String| text.contains("machine code: ");
    for (text, has_look_ups, has_code) in [
        (&looked_up, true, true),
        (&together, false, true),
        (&alone, false, true),
        (&narrowed, true, true),
        (&narrowed_asked, true, true),
        (&asked, false, false),
    ] {
        assert_eq!(
            (looks_up(text), compiles(text)),
            (has_look_ups, has_code),
            "{text}"
        );
    }
    let all = [looked_up, together, alone, narrowed, narrowed_asked, asked];
    let ways = HashSet::from(all.map(|text| way(&text)));
    assert_eq!(ways.len(), 6, "{ways:?}");
}

#[test]
fn what_only_a_live_interface_knows_is_explained_without_a_file() {
    assert!(explained(&["inbound and tcp"]).contains("machine code: "));
}

#[test]
fn every_link_type_of_a_file_is_explained_and_others_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let interfaces = [("a", LinkType::ETHERNET), ("b", LinkType::RAW), ("c", MFR)];
    let path = write(&directory, "three.pcapng", &section(&interfaces));
    let (code, text, err) = dev_on("filter-explain", &path, &["tcp"]);
    assert_eq!(code, Some(0), "{err}");
    for name in ["EN10MB", "RAW"] {
        assert!(text.contains(&format!("\nlink type {name}\n")), "{text}");
    }
    assert!(
        err.contains("link type MFR: ") && err.contains("  tcp\n  ^^^"),
        "{err}"
    );

    let none = write(&directory, "none.pcapng", &section(&[("c", MFR)]));
    let (code, text, err) = dev_on("filter-explain", &none, &["tcp"]);
    assert_eq!((code, text.as_str()), (Some(2), ""), "{err}");
}

/// The first column of the table that `filter-bench` prints: how each measurement evaluates the
/// expression.
fn ways(text: &str) -> Vec<&str> {
    let lines = text.lines().skip(3);
    lines
        .filter_map(|line| Some(line.split_once("  ")?.0))
        .collect()
}

#[test]
fn speed_is_measured_on_the_packets_of_a_file() {
    let (_directory, path) = small_pcap();
    let (code, text, err) = dev_on("filter-bench", &path, &["tcp port 80 or udp"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{text}");
    assert!(
        text.starts_with("3 packets, 162 bytes, of which 2 packets match\n"),
        "{text}"
    );
    assert_eq!(
        ways(&text),
        ["machine code", "interpreter", "libpcap", "rule set"]
    );
    for line in text.lines().skip(3) {
        let ns = line[14..26].trim().parse::<f64>();
        assert!(ns.is_ok_and(|ns| ns > 0.0), "{line}");
    }

    // libpcap is not measured, because it has no payload terms.
    let (code, text, err) = dev_on("filter-bench", &path, &["payload matches /x/ or udp"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{text}");
    assert_eq!(ways(&text), ["machine code", "interpreter", "rule set"]);
}

#[test]
fn speed_of_what_cannot_be_measured_is_refused() {
    let (directory, path) = small_pcap();
    assert_eq!(dev_on("filter-bench", &path, &["tcp prt 80"]).0, Some(2));
    assert_eq!(run(dev("filter-bench").arg("tcp")).status.code(), Some(2));
    let moved = stderr(&run(filter().args(["--bench", "tcp"]))).to_owned();
    assert!(moved.contains("retroscope dev filter-bench"), "{moved}");
    let none = write(&directory, "none.pcapng", &section(&[("c", MFR)]));
    assert_eq!(dev_on("filter-bench", &none, &["tcp"]).0, Some(2));
    let bytes = std::fs::read(&path).unwrap();
    let empty = write(&directory, "empty.pcap", &bytes[..24]);
    let (code, _, err) = dev_on("filter-bench", &empty, &["tcp"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("empty.pcap: "), "{err}");
}
