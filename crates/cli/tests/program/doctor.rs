//! `retroscope doctor` as a user runs it.

use std::{
    os::unix::process::CommandExt,
    process::{Command, Output},
};

use serde_json::Value;

use crate::support::{PROGRAM, skip};

fn doctor(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("doctor")
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// Parses stdout, which must be one line of JSON.
fn json(output: &Output) -> Value {
    let text = str::from_utf8(&output.stdout).expect("stdout is text");
    assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
    serde_json::from_str(text).expect("stdout is JSON")
}

/// Checks the properties that every report must have. Returns the report's findings.
fn checked(output: &Output) -> Vec<Value> {
    let report = json(output);
    let findings = report["findings"].as_array().expect("a list").clone();
    for finding in &findings {
        let fields = finding.as_object().expect("an object");
        let names: Vec<_> = fields.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["check", "do", "interface", "severity", "what"],
            "{finding}"
        );
        for name in ["check", "do", "what", "severity"] {
            let text = fields[name].as_str().expect("text");
            assert!(
                !text.is_empty() && !text.contains('\n'),
                "{name} of {finding}"
            );
        }
        assert!(fields["interface"].is_null() || fields["interface"].is_string());
        assert!(["ok", "note", "warn"].contains(&fields["severity"].as_str().expect("text")));
    }
    let not_checked = report["not_checked"].as_array().expect("a list");
    let is_checked = |check: &Value| findings.iter().any(|finding| finding["check"] == *check);
    assert!(!not_checked.iter().any(is_checked), "{report}");
    let warns = findings.iter().any(|finding| finding["severity"] == "warn");
    assert_eq!(report["loses_packets"], warns);
    assert_eq!(output.status.code(), Some(i32::from(warns)));
    findings
}

#[test]
fn every_area_is_reported() {
    let findings = checked(&doctor(&["--json"]));
    for check in [
        "permission",
        "memory",
        "memlock",
        "pages",
        "shared-pages",
        "clock",
        "clocksource",
        "libpcap",
    ] {
        let found = findings
            .iter()
            .filter(|finding| finding["check"] == check)
            .count();
        assert_eq!(found, 1, "{check}");
    }
}

#[test]
fn one_interface_can_be_chosen() {
    let all = checked(&doctor(&["--json"]));
    let is_loopback = |finding: &Value| finding["interface"] == "lo";
    if !all.iter().any(is_loopback) {
        skip("this network namespace has no interface lo");
        return;
    }
    let findings = checked(&doctor(&["--json", "-i", "lo"]));
    let on_interfaces: Vec<_> = findings
        .iter()
        .filter(|finding| !finding["interface"].is_null())
        .collect();
    assert!(!on_interfaces.is_empty());
    assert!(on_interfaces.into_iter().all(is_loopback));
}

#[test]
fn an_interface_that_does_not_exist_is_exit_1() {
    let output = doctor(&["-i", "no-such-if", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(!output.stderr.is_empty());
}

#[test]
fn text_says_the_same_without_colour() {
    // The loopback interface does not change between the two calls.
    let findings = checked(&doctor(&["--json", "-i", "lo"]));
    let output = doctor(&["-i", "lo"]);
    let text = str::from_utf8(&output.stdout).expect("stdout is text");
    assert!(!text.contains('\x1b'));
    let severities: Vec<_> = text
        .lines()
        .filter_map(|line| line.get(..4).map(str::trim_end))
        .filter(|word| ["ok", "note", "warn"].contains(word))
        .collect();
    let expected: Vec<_> = findings
        .iter()
        .map(|f| f["severity"].as_str().unwrap())
        .collect();
    assert_eq!(severities, expected);
}

#[test]
fn without_privilege_it_says_how_to_get_it() {
    const NOBODY: u32 = 65_534;
    let mut command = Command::new(PROGRAM);
    command.args(["doctor", "--json"]);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            skip(&format!("cannot run the program as another user: {error}"));
            return;
        }
    };
    let findings = checked(&output);
    let permission = findings
        .iter()
        .find(|finding| finding["check"] == "permission")
        .unwrap();
    if permission["severity"] != "warn" {
        skip("this user may capture without being root");
        return;
    }
    let advice = permission["do"].as_str().unwrap();
    assert!(
        advice.contains("sudo") && advice.contains("setcap cap_net_raw"),
        "{advice}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn wrong_arguments_are_exit_2() {
    assert_eq!(doctor(&["--no-such-flag"]).status.code(), Some(2));
    assert_eq!(doctor(&["-i"]).status.code(), Some(2));
}
