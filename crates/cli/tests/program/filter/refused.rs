//! `filter` refuses bad expressions quickly, with exit code 2 and nothing on stdout. For an error
//! at one place of the expression, the message marks this place.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, process::Command};

use super::support::{filter, run, run_on, small_pcap};
use crate::support::{stderr, stdout};

#[test]
fn the_place_is_marked() {
    let (_directory, path) = small_pcap();
    for (expression, carets) in [
        (r#"payload contains "abc"#, r#"                 ^"#),
        // The error is in the part that libpcap compiles, after a payload term.
        (
            r#"payload contains "a" and prot 80"#,
            "                         ^^^^",
        ),
        (
            "payload matches /((a{99}){99}){99}/",
            "                 ^^^^^^^^^^^^^^^^^",
        ),
        ("payload matches /a(b/ and tcp", "                  ^"),
        // A string must have double quotes. The program gets this argument if a shell removes the
        // quotes.
        ("payload contains EXAMPLE", "                 ^"),
        (r#"payload has "abc""#, "        ^^^"),
        (r#"payload contains "a" tcp"#, "                     ^^^"),
        ("(tcp or udp", "           ^"),
        ("ip[", "   ^"),
    ] {
        let (code, out, err) = run_on(&path, &["--count", "--", expression]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{expression}: {err}");
        let marked = format!("\n  {expression}\n  {carets}\n");
        assert!(err.ends_with(&marked), "{expression}:\n{err}");
    }
}

#[test]
fn a_mebibyte_is_refused_quickly() {
    let (_directory, path) = small_pcap();
    for unit in [
        "host 1.2.3.4 or ",
        "not ",
        "(",
        "payload contains \"a\" or ",
    ] {
        // The kernel limits an argument to 128 KiB.
        let part = unit.repeat((100 << 10) / unit.len());
        let parts = vec![part; (1 << 20) / (100 << 10) + 1];
        // `ulimit` lets the kernel end the program after a second of CPU time, independent of the
        // load on the machine.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"ulimit -t 1; exec "$@""#, "sh"])
            .arg(filter().get_program())
            .args(["filter", "-r"])
            .arg(&path)
            .args(["--count", "--"])
            .args(parts);
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(2), "{unit}: {}", output.status);
        assert_eq!(stdout(&output), "", "{unit}");
        assert!(stderr(&output).contains(" 524288"), "{unit}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let (_directory, path) = small_pcap();
    let mut command = filter();
    let bytes = OsString::from_vec(b"payload contains \"\xff\"".to_vec());
    command.arg("-r").arg(&path).arg("--count").arg(bytes);
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("UTF-8"), "{}", stderr(&output));
}
