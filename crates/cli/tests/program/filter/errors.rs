//! Exit codes and messages of errors.

use std::fs;

use retroscope_packet::LinkType;

use super::support::{MFR, filter, records, run, run_on, section, small_pcap, write};
use crate::support::{stderr, stdout};

#[test]
fn arguments_that_make_no_sense_are_exit_2() {
    let (directory, path) = small_pcap();
    let file = path.to_str().unwrap();
    let link = directory.path().join("link.pcap");
    fs::hard_link(&path, &link).unwrap();
    let before = fs::read(&path).unwrap();
    let link = link.to_str().unwrap();
    for (arguments, named) in [
        (&["tcp"][..], "-r FILE"),
        (&["-r", file, "-w", file], file),
        (&["-r", file, "-w", link], link),
        (&["-r", file, "host $srcIP"], "$srcIP "),
        (&["-r", file, "$flow"], "$flow "),
        (&["-r", file, "$nonsense"], "$nonsense;"),
        (&["-r", file, "tcp prt 80"], "\n  tcp prt 80\n      ^^^\n"),
        (&["-d", "tcp prt 80"], "\n  tcp prt 80\n      ^^^\n"),
        (&["-d", "-y", "EN10", "tcp"], "EN10"),
        (&["-r", file, "-y", "RAW"], "-y"),
        (&["-r", file, "--count", "-w", "x"], "--count"),
        (&["-r", file, "--no-such-flag"], "--no-such-flag"),
    ] {
        let output = run(filter().args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            stderr(&output).contains(named),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_refused_expression_leaves_an_existing_file_alone() {
    let (directory, path) = small_pcap();
    let out = write(&directory, "out.pcap", b"precious");
    let (code, _, err) = run_on(&path, &["-w", out.to_str().unwrap(), "port 80 and"]);
    assert_eq!(code, Some(2), "{err}");
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    let (code, _, err) = run_on(&path, &["-w", out.to_str().unwrap(), "port 80"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(records(&out), records(&path)[..1]);
}

#[test]
fn what_cannot_be_opened_is_exit_1() {
    let (directory, path) = small_pcap();
    let missing = directory.path().join("missing.pcap");
    let (code, out, err) = run_on(&missing, &["--count"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("missing.pcap: "), "{err}");

    let nowhere = missing.join("out.pcap");
    let (code, _, err) = run_on(&path, &["-w", nowhere.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(err.contains(nowhere.to_str().unwrap()), "{err}");

    let text = write(&directory, "text", b"only words, no packets at all");
    let (code, _, err) = run_on(&text, &[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("text: "), "{err}");

    let (code, out, err) = run_on(directory.path(), &["--count"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
}

#[test]
fn what_stands_before_damage_counts() {
    let (directory, path) = small_pcap();
    let bytes = fs::read(&path).unwrap();
    let cut = write(&directory, "cut.pcap", &bytes[..bytes.len() - 1]);
    let offset = 24 + 2 * (16 + 54);
    let place = format!(" {offset}: ");
    let is_told = |err: &str| err.contains("cut.pcap: ") && err.contains(&place);

    let (code, out, err) = run_on(&cut, &["--count", "ip"]);
    assert_eq!((code, out.as_str()), (Some(1), "2\n"));
    assert!(is_told(&err), "{err}");

    let (code, out, err) = run_on(&cut, &["ip"]);
    assert_eq!((code, out.lines().count()), (Some(1), 2), "{err}");

    let copy = directory.path().join("copy.pcap");
    let (code, _, err) = run_on(&cut, &["-w", copy.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(is_told(&err), "{err}");
    assert_eq!(fs::read(&copy).unwrap(), bytes[..offset]);

    // For a file with a truncated header, `--count` prints 0. If the expression is invalid and the
    // file is damaged, the exit code reports the expression.
    let head = write(&directory, "head.pcap", &bytes[..20]);
    let (code, out, _) = run_on(&head, &["--count"]);
    assert_eq!((code, out.as_str()), (Some(1), "0\n"));
    for damaged in [&cut, &head] {
        assert_eq!(run_on(damaged, &["--count", "prt 80"]).0, Some(2));
    }
}

#[test]
fn link_types_without_filtering_match_nothing_and_are_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let none = write(
        &directory,
        "none.pcapng",
        &section(&[("a", MFR), ("b", MFR)]),
    );
    let out = directory.path().join("out.pcapng");
    let (code, text, err) = run_on(&none, &["-w", out.to_str().unwrap(), "tcp"]);
    assert_eq!((code, text.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("  tcp\n  ^^^"), "{err}");
    assert!(!out.exists());
    assert_eq!(
        run_on(&none, &["--count"]),
        (Some(0), "2\n".to_owned(), String::new())
    );

    // The only interface whose packets can be filtered comes last in the file, after packets of
    // other interfaces.
    let mut bytes = section(&[("a", MFR), ("b", MFR)]);
    bytes.extend(section(&[("eth0", LinkType::ETHERNET)]));
    let some = write(&directory, "some.pcapng", &bytes);
    let (code, text, err) = run_on(&some, &["--count", "tcp"]);
    assert_eq!((code, text.as_str()), (Some(0), "1\n"));
    assert_eq!(err.matches("link type MFR").count(), 1, "{err}");
    let (code, _, err) = run_on(&some, &["-w", out.to_str().unwrap(), "tcp"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(records(&out), records(&some)[2..]);
    assert_eq!(run_on(&some, &["--count", "tcp or"]).0, Some(2));
}
