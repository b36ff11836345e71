//! `record --config`: effects of a file at the start and after a reload.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Output, Stdio},
    thread::yield_now,
    time::Instant,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    recording::{DEADLINE, Lines, Recording},
    support::{PROGRAM, skip, stderr},
};

fn record(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("record").args(arguments).current_dir(folder);
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_file_is_checked_and_nothing_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str, more: &[&str]| {
        fs::write(folder.path().join("c.toml"), text).unwrap();
        let arguments = [&["--config", "c.toml", "--check-config"], more].concat();
        let output = record(&arguments, folder.path());
        assert!(output.stdout.is_empty());
        (output.status.code().unwrap(), stderr(&output).to_owned())
    };
    let good = "interface = 'no-such-interface'\n[[rule]]\nname = 'a'\nfilter = 'udp'\n";
    let (code, said) = check(good, &[]);
    assert_eq!((code, said.lines().count()), (0, 2), "{said}");
    assert!(said.contains("no errors"), "{said}");
    assert!(said.contains(" no-such-interface "), "{said}");
    let (code, said) = check(&good.replace("no-such-interface", "lo"), &[]);
    assert_eq!((code, said.lines().count()), (0, 1), "{said}");
    assert_eq!(check(good, &["-q"]), (0, String::new()));
    let wrong = good.replace("udp", "udp prot 7") + "past = 'x'\n";
    assert_eq!(
        check(&wrong, &[]),
        (
            2,
            "retroscope: c.toml:5:8: past: \"x\" is not a duration: write it like 250ms, 10s, 5m or 2h\n 5 | past = 'x'\n   |        ^^^\n\
             retroscope: --config: 1 error, nothing was started\n"
                .to_owned()
        )
    );
    let wrong = good.replace("udp", "udp prot 7");
    let (code, said) = check(&wrong, &[]);
    assert!(
        code == 2 && said.contains("c.toml:4:10: rule 'a': syntax error"),
        "{said}"
    );
    // A start without `--check-config` reports the same error, before it opens the interface, which
    // does not exist.
    let output = record(&["--config", "c.toml"], folder.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("c.toml:4:10: "), "{output:?}");
    let output = record(&["--check-config", "-i", "lo"], folder.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--config <FILE>"), "{output:?}");
    let output = record(&["--config", "none.toml"], folder.path());
    assert!(
        stderr(&output).contains("cannot read none.toml"),
        "{output:?}"
    );
    // An option may depend on a key of the file, and is refused without that key.
    let eve = "interface = 'generate:flows=1,rate=1kpps'\neve = 'e'\n";
    assert_eq!(check(eve, &["--set", "vlans=apart"]).0, 0);
    assert_eq!(check(good, &["--set", "vlans=apart"]).0, 2);
    assert_eq!(
        check("", &["-i", "generate:flows=1,rate=1kpps", "--past", "x"]).0,
        2
    );
    // The check created no file.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A recording with a configuration file, and its log line by line.
struct Following {
    recording: Recording,
    said: Lines,
}

/// A rule that matches the generated traffic. Its dump is open for an hour and gets no packet,
/// because no packet has port 1.
const RULE: &str =
    "[[rule]]\nname = 'all'\nfilter = 'udp'\npast = 0\nfuture = '1h'\ndump = 'udp port 1'\n";

impl Following {
    fn start(text: &str, arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), text, arguments)
    }

    fn start_in(folder: TempDir, text: &str, arguments: &[&str]) -> Self {
        let file = folder.path().join("c.toml");
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let arguments = [&["--config", &file], arguments].concat();
        let mut recording = Recording::start_in(folder, &arguments);
        let said = recording.lines();
        Self { recording, said }
    }

    fn write(&self, text: &str) {
        // Replace the file like an editor, so that it is never half written.
        let file = self.recording.folder.path().join("c.toml");
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn hang_up(&self) {
        let pid = Pid::from_child(&self.recording.child);
        kill_process(pid, Signal::HUP).unwrap();
    }

    /// Waits for a line of the log that contains `part`.
    fn line(&self, part: &str) -> String {
        self.said.line(part)
    }

    /// Name and expression of each rule, and whether the rule comes from the file.
    fn rules(&self) -> Value {
        let rules = self.recording.asked(&["rules"]);
        let rules = rules["rules"].as_array().unwrap().iter();
        let rules = rules.map(|rule| json!([rule["name"], rule["filter"], rule["configured"]]));
        rules.collect()
    }

    fn hits(&self, name: &str) -> u64 {
        let rules = self.recording.asked(&["rules"]);
        let rules = rules["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["name"] == name);
        rule.and_then(|rule| rule["hits"].as_u64()).unwrap()
    }

    fn wait_for_hits(&self, name: &str, more_than: u64) {
        let deadline = Instant::now() + DEADLINE;
        while self.hits(name) <= more_than {
            assert!(Instant::now() < deadline, "'{name}' is hit no more");
            yield_now();
        }
    }

    /// Stops the recording, which must end with exit code 0. Asserts that no packet was lost and
    /// all packets were analyzed.
    fn end(self) -> Value {
        self.recording.told(&["stop"]);
        let (status, json) = self.recording.end();
        assert_eq!(status.code(), Some(0), "{json}");
        assert_eq!(json["sources"][0]["lost"], json!({ "no-free-bucket": 0 }));
        let analyzers = &json["analyzers"];
        assert_eq!(analyzers["stored"], analyzers["analyzed"]);
        json
    }
}

#[test]
fn a_hangup_reloads_the_rules_while_traffic_runs() {
    let following = Following::start(RULE, &[]);
    following.wait_for_hits("all", 0);
    // The first rule is removed while its dump is open, another rule is added, and a client's rule
    // stays.
    let ctl = &following.recording;
    ctl.asked(&["rules", "add", "mine", "udp port 2", "--past", "1s"]);
    let second = "past = '2s'\n[[rule]]\nname = 'other'\nfilter = 'ip'\nfuture = '1h'\ndump = 'udp port 1'\n";
    following.write(second);
    following.hang_up();
    let said = following.line("reloaded");
    assert!(
        said.ends_with("rules added: other; rules removed: all; changed: past"),
        "{said}"
    );
    assert_eq!(
        following.rules(),
        json!([["mine", "udp port 2", false], ["other", "ip", true]])
    );
    following.wait_for_hits("other", 0);
    assert_eq!(following.recording.status()["dumps_open"], 2);
    // A second reload of the same file, by a command, changes nothing.
    let again = following.recording.asked(&["reload"]);
    assert_eq!(again["changed"], false);
    assert!(
        again["report"]
            .as_str()
            .unwrap()
            .ends_with(": nothing changed")
    );
    following.hang_up();
    following.line(": nothing changed");
    let json = following.end();
    let dumps = json["dumps"].as_array().unwrap();
    // Each rule of the two files has one dump, also the removed rule.
    let told: Vec<_> = dumps
        .iter()
        .map(|it| (it["rule"].as_str().unwrap(), &it["verdict"]))
        .collect();
    assert_eq!(
        told,
        [("udp", &json!("complete")), ("ip", &json!("complete"))]
    );
}

#[test]
fn a_reload_is_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("snaplen = 100\n{RULE}");
    let following = Following::start(&text, &["--hold-off", "1s"]);
    following.wait_for_hits("all", 0);
    let rules = following.rules();
    let goes_on = "[[rule]]\nname = 'new'\nfilter = 'tcp'\n";
    for (text, why) in [
        // The message names all changed keys that need a restart.
        (
            format!("snaplen = 200\nring = '32MiB'\nmax-flows = 3\n{RULE}{goes_on}"),
            "max-flows, snaplen cannot change while the recording runs",
        ),
        (format!("{RULE}{goes_on}"), "snaplen cannot change"),
        (
            format!("snaplen = 100\nted = 16\nhistory-goal = '60s'\n{RULE}{goes_on}"),
            "history-goal, ted cannot change while the recording runs",
        ),
        (
            format!("snaplen = 100\n{RULE}{goes_on}[[rule]]\nname = 's'\nlua = 'x.lua'\n"),
            "rule 's', which is a script cannot change",
        ),
        (
            format!("snaplen = 100\ncutoff = '1KiB'\n{RULE}{goes_on}"),
            "--cutoff: the recording keeps all",
        ),
        (
            format!("snaplen = 100\n{RULE}{goes_on}past = 'x'\n"),
            ":11:8: past: \"x\" is not a duration",
        ),
        (
            format!("snaplen = 100\n{RULE}[[rule]]\nname = 'new'\nfilter = 'tcp prot'\n"),
            ":10:10: rule 'new': syntax error",
        ),
        (
            format!("snaplen = 100\ntrigger-into = '1=x'\n{RULE}{goes_on}"),
            ":2:1: there is no key \"trigger-into\" any more: write rule.NAME.into",
        ),
        ("snaplen = 100\n[[rule".to_owned(), ":2:7: "),
    ] {
        following.write(&text);
        following.hang_up();
        following.line(why);
        following.line("the recording goes on as it was");
        assert_eq!(following.rules(), rules, "{why}");
        let refused = following.recording.refused(1, &["reload"]);
        assert!(refused.contains(why), "{refused}");
        let said = following.line(" pid ");
        assert!(
            said.contains("reloaded the configuration: failed: "),
            "{said}"
        );
        let hits = following.hits("all");
        following.wait_for_hits("all", hits);
    }
    // The command line sets hold-off and ring size, so the keys `hold-off` and `ring` in the file
    // have no effect.
    following.write(&format!("hold-off = '9s'\nring = '32MiB'\n{text}"));
    assert_eq!(following.recording.asked(&["reload"])["changed"], false);
    fs::remove_file(following.recording.folder.path().join("c.toml")).unwrap();
    following.hang_up();
    let said = following.line("SIGHUP reloaded the configuration: failed: ");
    assert!(said.contains("cannot read"), "{said}");
    following.end();
    drop(folder);
}

/// After SIGHUP, an invalid configuration is reported, and the EVE file is opened again anyway.
#[test]
fn a_hangup_with_a_wrong_file_reopens_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("eve.json");
    let following = Following::start(RULE, &["--eve", log.to_str().unwrap()]);
    following.wait_for_hits("all", 0);
    fs::rename(&log, log.with_extension("old")).unwrap();
    following.write("past = 'x'\n");
    following.hang_up();
    following.line(":1:8: past: \"x\" is not a duration");
    following.line("the recording goes on as it was");
    let deadline = Instant::now() + DEADLINE;
    while !log.exists() {
        assert!(Instant::now() < deadline, "the log is not opened again");
        yield_now();
    }
    following.write(RULE);
    following.end();
}

#[test]
fn a_storm_of_hangups_changes_nothing_else() {
    let following = Following::start(RULE, &[]);
    following.wait_for_hits("all", 0);
    following
        .recording
        .asked(&["rules", "add", "mine", "udp port 2"]);
    for number in 0..100 {
        let rules: String = (0..number % 7)
            .map(|n| {
                format!(
                    "[[rule]]\nname = 'r{n}'\nfilter = 'udp port {}'\n",
                    1000 + number + n
                )
            })
            .collect();
        following.write(&format!("past = '{number}s'\n{RULE}{rules}"));
        following.hang_up();
    }
    following.write(&format!("past = '1h'\n{RULE}"));
    // A reload that is still pending may read the file before or after this write. Reload until
    // nothing changes.
    let deadline = Instant::now() + DEADLINE;
    while following.recording.asked(&["reload"])["changed"] == true {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(
        following.rules(),
        json!([["all", "udp", true], ["mine", "udp port 2", false]])
    );
    let hits = following.hits("all");
    following.wait_for_hits("all", hits);
    let json = following.end();
    assert_eq!(
        json["dumps"].as_array().unwrap().len(),
        1,
        "it was one window all the time"
    );
}

/// A reload lowers the cutoff of known flows: packets are shed. Another reload raises the cutoff:
/// no further packet is shed.
#[test]
fn a_cutoff_changes_while_traffic_runs() {
    let of =
        |cutoff| format!("cutoff = '{cutoff}'\n[[rule]]\nname = 'none'\nfilter = 'tcp port 9'\n");
    let following = Following::start(&of("1TiB"), &[]);
    let counted = || {
        let status = following.recording.status();
        let source = &status["sources"][0];
        let of = |value: &Value| value.as_u64().unwrap();
        (of(&source["stored"]), of(&source["lost"]["shed"]))
    };
    let wait = |is_so: &dyn Fn((u64, u64)) -> bool| {
        let deadline = Instant::now() + DEADLINE;
        while !is_so(counted()) {
            assert!(Instant::now() < deadline, "{:?}", counted());
            yield_now();
        }
    };
    wait(&|(stored, _)| stored > 1000);
    assert_eq!(counted().1, 0);
    following.write(&of("1KiB"));
    let told = following.recording.asked(&["reload"]);
    assert!(
        told["report"]
            .as_str()
            .unwrap()
            .ends_with(": changed: cutoff"),
        "{told}"
    );
    wait(&|(_, shed)| shed > 1000);
    following.write(&of("1TiB/30s"));
    following.recording.asked(&["reload"]);
    // Some packets may still use the old cutoff. Wait for 1000 more packets before counting shed
    // packets.
    let (before, _) = counted();
    wait(&|(stored, _)| stored > before + 1000);
    let (before, shed) = counted();
    wait(&|(stored, _)| stored > before + 1000);
    assert_eq!(counted().1, shed, "nothing is shed any more");
    following.write(&of("1TiB/2m"));
    let refused = following.recording.refused(1, &["reload"]);
    assert!(refused.contains("flows are known for 60 s"), "{refused}");
    following.recording.told(&["stop"]);
    assert_eq!(following.recording.end().0.code(), Some(0));
}

/// With -Z a reload reads the file as that user. If the user may not read the file, a message
/// reports that, and the recording continues.
#[test]
fn a_file_that_the_user_may_not_read_is_told() {
    if !geteuid().is_root() {
        return skip("only root can become another user: nothing was tested");
    }
    let folder = tempfile::tempdir().unwrap();
    chown(folder.path(), Some(65534), Some(65534)).unwrap();
    let following = Following::start_in(folder, RULE, &["-Z", "65534:65534"]);
    let file = following.recording.folder.path().join("c.toml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    following.hang_up();
    let said = following.line("cannot read");
    assert!(said.contains("the user that -Z names"), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    following.hang_up();
    following.line(": nothing changed");
    following.end();
}

/// Rules of a configuration file are tested on a capture. One rule has the file's default window.
/// The other rules have their own window, directory or limits.
#[test]
fn rules_of_a_file_are_tried_on_a_capture() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("in.pcap");
    // One packet each 10 ms, to ports 1 to 100 in turn.
    crate::record_files::write_capture(&capture, 2000, 100, 10_000_000, None);
    let text = "interface = 'eth0'\npast = '100ms'\nfuture = '100ms'\nwrite = 'dumps'\ndump = ''\n\
        [[rule]]\nname = 'plain'\nfilter = 'udp port 13'\n\
        [[rule]]\nname = 'limited'\nfilter = 'udp port 14'\ndumps-per-minute = 3\ninto = 'sub'\npast = 0\nfuture = 0\n\
        [[rule]]\nname = 'held-off'\nfilter = 'udp port 15'\nhold-off = '5s'\npast = 0\nfuture = 0\n\
        [[rule]]\nname = 'one'\nfilter = 'udp port 16 or udp port 17'\nfuture = '1h'\nmax-dumps = 1\ndump = 'udp port $dstPort'\n";
    fs::write(folder.path().join("c.toml"), text).unwrap();
    let output = record(
        &["--config", "c.toml", "-r", "in.pcap", "--json", "-q"],
        folder.path(),
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |rule: &str| {
        let dumps = json["dumps"].as_array().unwrap().iter();
        dumps
            .filter(|dump| dump["rule"] == rule)
            .collect::<Vec<_>>()
    };
    // 20 s, with one packet a second to each port.
    assert_eq!(of("udp port 13").len(), 20);
    assert_eq!(of("udp port 13")[5]["packets"], 21, "100 ms on both sides");
    assert_eq!(of("udp port 14").len(), 3);
    assert_eq!(of("udp port 14")[0]["packets"], 1);
    assert_eq!(of("udp port 15").len(), 4);
    assert_eq!(of("udp port 16 or udp port 17").len(), 1);
    assert_eq!(
        fs::read_dir(folder.path().join("dumps/sub"))
            .unwrap()
            .count(),
        6
    );
}
