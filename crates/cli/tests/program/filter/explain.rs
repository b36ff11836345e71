//! `-d`, `--explain` and `--bench`: what an expression becomes, and how fast it is.

use retroscope_packet::LinkType;

use super::support::{MFR, filter, run, run_on, section, small_pcap, write};
use crate::support::{stderr, stdout};

/// `filter --explain EXPRESSION`, which must succeed.
fn explained(arguments: &[&str]) -> String {
    let output = run(filter().arg("--explain").args(arguments));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "{arguments:?}");
    stdout(&output).to_owned()
}

#[test]
fn it_says_what_is_looked_up_and_what_is_compiled() {
    let text = explained(&["udp port 53"]);
    assert!(text.starts_with("expression: udp port 53\n\n"), "{text}");
    assert!(
        text.contains("found by look-ups alone\n  look up "),
        "{text}"
    );
    assert!(text.contains("\nlink type EN10MB\n  libpcap: "), "{text}");
    assert!(text.contains("instructions; machine code: "), "{text}");
    assert!(!text.contains("piece"), "{text}");

    let text = explained(&["ip[8] < 5"]);
    assert!(
        text.contains("run on every packet, as one function with those of other such rules"),
        "{text}"
    );
    assert!(!text.contains("look up "), "{text}");
    // Too long to be put together with others.
    let bytes: Vec<String> = (0..200)
        .map(|n| format!("ip[8] = {n} or ip[9] = {n}"))
        .collect();
    let text = explained(&[&bytes.join(" or ")]);
    assert!(text.contains("run on every packet, by itself"), "{text}");

    let text = explained(&["-y", "RAW", "host 10.0.0.1 and ip[8] < 5"]);
    assert!(
        text.contains("its program is run on what they find\n  look up host 10.0.0.1"),
        "{text}"
    );
    assert!(text.contains("\nlink type RAW\n"), "{text}");
}

#[test]
fn terms_of_our_own_are_told_from_pcap_filter_text() {
    let text = explained(&["udp port 53 and payload contains \"example\""]);
    assert!(text.contains("the whole expression is evaluated"), "{text}");
    assert!(
        text.contains("a program for what is pcap-filter text in it"),
        "{text}"
    );
    let text = explained(&["payload contains \"example\""]);
    assert!(
        text.contains("no program: it has terms of our own only"),
        "{text}"
    );
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
    let (code, text, err) = run_on(&path, &["--explain", "tcp"]);
    assert_eq!(code, Some(0), "{err}");
    for name in ["EN10MB", "RAW"] {
        assert!(text.contains(&format!("\nlink type {name}\n")), "{text}");
    }
    assert!(
        err.contains("link type MFR: ") && err.contains("  tcp\n  ^^^"),
        "{err}"
    );

    let none = write(&directory, "none.pcapng", &section(&[("c", MFR)]));
    let (code, text, err) = run_on(&none, &["--explain", "tcp"]);
    assert_eq!((code, text.as_str()), (Some(2), ""), "{err}");
}

/// The first words of the lines of a table.
fn ways(text: &str) -> Vec<&str> {
    let lines = text.lines().skip(3);
    lines
        .filter_map(|line| Some(line.split_once("  ")?.0))
        .collect()
}

#[test]
fn speed_is_measured_on_the_packets_of_a_file() {
    let (_directory, path) = small_pcap();
    let (code, text, err) = run_on(&path, &["--bench", "tcp port 80 or udp"]);
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

    // libpcap has no payload terms.
    let (code, text, err) = run_on(&path, &["--bench", "payload matches /x/ or udp"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{text}");
    assert_eq!(ways(&text), ["machine code", "interpreter", "rule set"]);
}

#[test]
fn speed_of_what_cannot_be_measured_is_refused() {
    let (directory, path) = small_pcap();
    assert_eq!(run_on(&path, &["--bench", "tcp prt 80"]).0, Some(2));
    assert_eq!(
        run(filter().args(["--bench", "tcp"])).status.code(),
        Some(2)
    );
    assert_eq!(run_on(&path, &["--bench", "--count", "tcp"]).0, Some(2));
    assert_eq!(run_on(&path, &["--bench", "--explain", "tcp"]).0, Some(2));
    let none = write(&directory, "none.pcapng", &section(&[("c", MFR)]));
    assert_eq!(run_on(&none, &["--bench", "tcp"]).0, Some(2));
    let bytes = std::fs::read(&path).unwrap();
    let empty = write(&directory, "empty.pcap", &bytes[..24]);
    let (code, _, err) = run_on(&empty, &["--bench", "tcp"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("empty.pcap: it has no packets"), "{err}");
}
