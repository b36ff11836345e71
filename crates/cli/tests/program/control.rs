//! `record --api unix:PATH` and the commands that control it, as users type them.

use std::{
    fs,
    io::Write,
    net::Shutdown,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    client::{Api, Events},
    recording::{DEADLINE, Recording, record, run},
    support::PROGRAM,
};

/// A client uses triggers, rules, pins, the status and events of a running recorder, and ends the
/// recording.
#[test]
fn a_recording_is_controlled_while_it_runs() {
    let arguments = [
        "--trigger",
        "tcp port 9",
        "--past",
        "1s",
        "--future",
        "50ms",
        "--dump",
        "",
    ];
    let recording = Recording::start(&arguments);
    let mode = fs::metadata(recording.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut listener = recording.events();

    // If a trigger has a key, repeating the trigger with this key opens no second dump.
    let first = recording.asked(&["trigger", "--key", "a"]);
    assert_eq!(
        (&first["dump"], &first["existed"]),
        (&json!(1), &json!(false))
    );
    let finished = listener.until(|event| event["event"] == "finished");
    assert_eq!(
        (&finished["dump"], &finished["report"]["rule"]),
        (&json!(1), &json!("manual"))
    );
    assert_eq!(
        recording.told(&["trigger", "--key", "a"]),
        "dump 1 was there\n"
    );
    let told = recording.told(&["trigger"]);
    let end = told.strip_prefix("dump 2 is open, its window ends at ");
    assert!(end.is_some_and(|end| end.ends_with("Z\n")), "{told}");

    // Rules are added, changed, disabled and removed.
    let rules = recording.asked(&["rules"]);
    let given = json!({ "name": "1", "filter": "tcp port 9", "enabled": true, "configured": true, "hits": 0, "last_hit": null,
        "hold_off": null, "max_dumps": null, "dumps_per_minute": null, "bytes_per_hour": null, "past": null, "single": false, "future": null, "packets": null, "bytes": null, "dump": null, "into": null, "keep_bytes": null, "keep_age": null, "asked_by": null, "caller": null, "alert_dump": null, "scan": null });
    assert_eq!(rules["rules"], json!([given]));
    let refused = recording.refused(2, &["rules", "add", "bad", "udp", "prot", "9"]);
    assert!(refused.contains("prot"), "{refused}");
    let add = ["rules", "add", "all", "udp or tcp"];
    assert_eq!(recording.told(&add), "rule 'all' is added\n");
    assert_eq!(recording.told(&add), "rule 'all' was there\n");
    let again = recording.told(&["rules", "add", "all", "--scan-past", "1m", "udp or tcp"]);
    assert!(
        again.starts_with("rule 'all' was there\nno scan:"),
        "{again}"
    );
    // A rule acts on the past, and `rules` lists the scan.
    let past = [
        "rules",
        "add",
        "past",
        "--scan-past",
        "1m",
        "--single",
        "udp",
    ];
    let scanned = recording.told(&past);
    let expected = "rule 'past' is added\nscanned the last 1m: 1 hit, 1 dump in ";
    assert!(scanned.starts_with(expected), "{scanned}");
    let listed = recording.told(&["rules"]);
    for expected in [
        "disabled, single, ",
        ", scanned the last 1m: 1 hit, 1 dump in ",
    ] {
        assert!(listed.contains(expected), "{listed}");
    }
    let longer = recording.refused(2, &["rules", "add", "x", "--scan-past", "soon", "udp"]);
    assert!(longer.contains("soon"), "{longer}");
    recording.told(&["rules", "remove", "past"]);
    let other = recording.refused(1, &["rules", "add", "all", "tcp"]);
    assert!(other.contains("another filter"), "{other}");
    listener.until(|event| event["event"] == "triggered" && event["rule"] == "udp or tcp");
    let rules = recording.asked(&["rules"]);
    let mut rules = rules["rules"].as_array().unwrap().iter();
    let all = rules.find(|rule| rule["name"] == "all").unwrap();
    assert!(all["last_hit"].as_str().unwrap().ends_with('Z'), "{all}");
    let change = [
        "rules",
        "change",
        "all",
        "--past",
        "0",
        "--packets",
        "3",
        "ip",
    ];
    assert_eq!(recording.told(&change), "rule 'all' is changed\n");
    assert_eq!(recording.told(&change), "rule 'all' was so\n");
    let refused = recording.refused(1, &["rules", "change", "none", "ip"]);
    assert!(refused.contains("there is no rule"), "{refused}");
    let of_three =
        listener.until(|event| event["event"] == "finished" && event["report"]["rule"] == "ip");
    assert_eq!(of_three["report"]["packets"], 3);
    let list = recording.asked(&["rules"]);
    let changed = (&list["rules"][1]["past"], &list["rules"][1]["packets"]);
    assert_eq!(changed, (&json!("0s"), &json!(3)));
    let hits = |recording: &Recording| {
        let rules = recording.asked(&["rules", "list"]);
        let rules = rules["rules"].as_array().unwrap().clone();
        let all = rules.iter().find(|rule| rule["name"] == "all").cloned();
        all.map(|rule| rule["hits"].as_u64().unwrap())
    };
    assert!(hits(&recording) > Some(0));
    let table = recording.told(&["rules"]);
    assert!(
        table.contains("  ip          past 0s, packets 3, by "),
        "{table}"
    );
    recording.told(&["rules", "disable", "all"]);
    assert_eq!(
        recording.told(&["rules", "disable", "all"]),
        "rule 'all' is disabled\n"
    );
    let before = (
        hits(&recording),
        recording.status()["ring"]["stored"].as_u64(),
    );
    let deadline = Instant::now() + DEADLINE;
    while recording.status()["analyzers"]["analyzed"].as_u64() < before.1.map(|n| n + 1000) {
        assert!(Instant::now() < deadline, "nothing is analyzed");
    }
    assert_eq!(hits(&recording), before.0, "disabled from the answer on");
    assert_eq!(
        recording.told(&["rules", "remove", "all"]),
        "rule 'all' is removed\n"
    );
    assert_eq!(hits(&recording), None);
    for gone in ["remove", "enable", "disable"] {
        let refused = recording.refused(1, &["rules", gone, "all"]);
        assert!(refused.contains("there is no rule \"all\""), "{refused}");
    }

    // A pin with the name of another pin replaces that pin. At most 64 pins exist.
    let pin = recording.asked(&["pin", "p", "--last", "1s"]);
    assert_eq!(
        (&pin["existed"], &pin["revoked"]),
        (&json!(false), &json!(false))
    );
    let told = recording.told(&["pin", "p", "--last", "1s"]);
    let keeps = "pin 'p' replaces an older pin, and keeps 2";
    assert!(told.starts_with(keeps), "{told}");
    let pins = recording.status()["pins"].clone();
    assert_eq!((&pins[0]["name"], &pins[1]), (&json!("p"), &Value::Null));
    assert!(pins[0]["from"].as_str() > pin["from"].as_str(), "{pins}");
    let api = Api::at(&recording.socket());
    for number in 2..=64 {
        api.done(
            "PUT",
            &format!("/v1/pins/{number}"),
            Some(json!({ "last": "1s" })),
        );
    }
    let refused = recording.refused(1, &["pin", "one too many", "--last", "1s"]);
    assert!(refused.contains("64 pins"), "{refused}");
    assert_eq!(recording.told(&["unpin", "p"]), "");
    let refused = recording.refused(1, &["unpin", "p"]);
    assert!(refused.contains("there is no pin"), "{refused}");

    recording.told(&["when-full", "protect"]);
    assert_eq!(recording.status()["when_full"], "protect");
    recording.told(&["when-full", "record"]);
    assert_eq!(recording.status()["when_full"], "record");

    // A second recorder with the same socket path is refused.
    let second = record(recording.folder.path(), &["-c", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("another program listens there"), "{said}");
    assert_eq!(second.status.code(), Some(1));

    let dumps = recording.asked(&["dumps"])["dumps"].clone();
    // The dump of the past has the oldest trigger.
    assert_eq!(dumps[0]["report"]["rule"], "udp");
    assert_eq!(dumps[1]["report"]["rule"], "manual");
    let table = recording.told(&["dumps"]);
    assert!(
        table.lines().count() > 2 && table.contains("manual"),
        "{table}"
    );

    assert_eq!(recording.told(&["stop"]), "");
    assert_eq!(listener.end(), Some(0));
    let (status, summary) = recording.end();
    assert_eq!(status.code(), Some(0), "{summary}");
    assert_eq!(summary["dumps"][0]["verdict"], "complete");
}

/// Triggers and rules dump the packets of their own dump expression. An invalid expression is
/// refused, and the message shows the place of the error.
#[test]
fn a_trigger_brings_its_dump_expression() {
    let arguments = [
        "--set",
        "rule.1.filter=tcp port 9",
        "--set",
        "rule.1.dump=arp",
        "--past",
        "1s",
        "--future",
        "50ms",
        "--dump",
        "tcp",
    ];
    let recording = Recording::start(&arguments);
    let mut listener = recording.events();
    let finished = |listener: &mut Events, rule: &str| {
        let is_it = |event: &Value| event["event"] == "finished" && event["report"]["rule"] == rule;
        let report = listener.until(is_it)["report"].clone();
        let file = PathBuf::from(report["file"].as_str().unwrap());
        let sidecar = fs::read(file.with_extension("json")).unwrap();
        let sidecar: Value = serde_json::from_slice(&sidecar).unwrap();
        assert_eq!(sidecar["packets"], report["packets"]);
        (sidecar["filter"].clone(), report["packets"].as_u64())
    };
    let dumps = |recording: &Recording| {
        let rules = recording.asked(&["rules"])["rules"].clone();
        let rules = rules.as_array().unwrap().iter();
        rules.map(|rule| rule["dump"].clone()).collect::<Vec<_>>()
    };
    recording.told(&["trigger", "udp and greater 9000"]);
    let expected = (json!("udp and greater 9000"), Some(0));
    assert_eq!(finished(&mut listener, "manual"), expected);
    recording.told(&["trigger", "udp"]);
    let (expression, packets) = finished(&mut listener, "manual");
    assert_eq!(expression, "udp");
    assert!(packets > Some(100), "{packets:?}");

    let add = |dump| ["rules", "add", "a", "--dump", dump, "--packets", "5", "udp"];
    assert_eq!(
        recording.told(&add("src port $srcPort")),
        "rule 'a' is added\n"
    );
    assert_eq!(
        recording.told(&add("src port $srcPort")),
        "rule 'a' was there\n"
    );
    assert!(recording.refused(1, &add("udp")).contains("change it"));
    let (expression, packets) = finished(&mut listener, "udp");
    let expression = expression.as_str().unwrap().to_owned();
    let port = expression.strip_prefix("src port ").unwrap();
    assert!(port.parse::<u16>().is_ok(), "{expression}");
    assert_eq!(packets, Some(5));
    assert_eq!(
        dumps(&recording),
        [json!("arp"), json!("src port $srcPort")]
    );

    let change = ["rules", "change", "a", "--dump", "less 9000", "udp"];
    assert_eq!(recording.told(&change), "rule 'a' is changed\n");
    assert_eq!(recording.told(&change), "rule 'a' was so\n");
    assert_eq!(dumps(&recording)[1], "less 9000");
    while finished(&mut listener, "udp").0 != "less 9000" {}
    recording.told(&["trigger", "--into", "by-hand.1", "udp"]);
    let into = listener.until(|event| {
        let file = event["report"]["file"].as_str();
        event["event"] == "finished" && file.is_some_and(|it| it.contains("/dumps/by-hand.1/2"))
    });
    let file = PathBuf::from(into["report"]["file"].as_str().unwrap());
    assert!(file.exists() && file.with_extension("json").exists());
    let mode = fs::metadata(file.parent().unwrap()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777 & !0o750, 0);
    for (arguments, told) in [
        (&["trigger", "--into", "../x"][..], "letters"),
        (&["rules", "add", "b", "--into", ".x", "udp"], "letters"),
        (&["trigger", "udp prt 9"], "\n  udp prt 9\n"),
        (&["trigger", "port $srcPort"], "$srcPort"),
        (&["rules", "add", "b", "--dump", "udp prt 9", "udp"], "prt"),
        (&["rules", "change", "a", "--dump", "$flw", "udp"], "$flw"),
    ] {
        let refused = recording.refused(2, arguments);
        assert!(refused.contains(told), "{arguments:?}: {refused}");
    }
    assert_eq!(
        dumps(&recording).len(),
        2,
        "what was refused changed nothing"
    );
    assert_eq!(dumps(&recording)[1], "less 9000");
    // A change without `--dump` removes the rule's dump expression, so `--dump` of the recorder
    // applies.
    recording.told(&["rules", "change", "a", "udp"]);
    assert_eq!(dumps(&recording)[1], Value::Null);
    while finished(&mut listener, "udp").0 != "tcp" {}
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// A stop request is executed even if the client does not read the answer.
#[test]
fn a_client_that_does_not_listen_ends_the_recording_too() {
    let recording = Recording::start(&[]);
    let said = &recording.first_words;
    let names = ["kill -USR1", "retroscope trigger"];
    assert!(names.iter().all(|it| said.contains(it)), "{said}");
    let mut client = UnixStream::connect(recording.socket()).unwrap();
    client.shutdown(Shutdown::Read).unwrap();
    client
        .write_all(b"POST /v1/stop HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let deadline = Instant::now() + DEADLINE;
    while recording.socket().exists() {
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::yield_now();
    }
    assert_eq!(recording.end().0.code(), Some(0));
}

/// A pin keeps all packets until the ring is full. In mode `record`, the recorder then revokes the
/// pin, and loses no packet. In mode `protect`, the pin stays, and the recorder loses new packets.
#[test]
fn a_full_ring_keeps_what_it_was_told_to() {
    let arguments = [
        "--trigger",
        "tcp port 9",
        "-i",
        "generate:flows=5,size=1500,rate=20kpps",
    ];
    for (mode, falls) in [("record", true), ("protect", false)] {
        let recording =
            Recording::start(&[&arguments[..], &["--set", &format!("when-full={mode}")]].concat());
        recording.told(&["pin", "all", "--to", "2100-01-01T00:00:00Z"]);
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            let status = recording.status();
            let lost = |source: &Value| source["lost"]["no-free-bucket"].as_u64().unwrap();
            let lost: u64 = status["sources"].as_array().unwrap().iter().map(lost).sum();
            assert!(!(falls && lost > 0), "{status}");
            let has_fallen = status["pins"][0]["revoked"] == true;
            assert!(falls || !has_fallen, "{status}");
            if has_fallen || lost > 1000 {
                break status;
            }
            assert!(Instant::now() < deadline, "{status}");
        };
        assert_eq!(status["when_full"], mode);
        if falls {
            recording.events().until(|event| {
                let text = event["text"].as_str();
                text.is_some_and(|text| text.contains("pin 'all' was revoked"))
            });
        } else {
            // The pin prevented all overwriting. After a change to mode `record`, the recorder
            // overwrites packets.
            assert_eq!(status["ring"]["evicted"], 0);
            recording.told(&["when-full", "record"]);
            let stored = || recording.status()["ring"]["evicted"].as_u64() > Some(0);
            while !stored() {
                assert!(Instant::now() < deadline, "{}", recording.status());
            }
        }
        recording.told(&["stop"]);
        assert_eq!(recording.end().0.code(), Some(0));
    }
}

/// A client can read the status and the rules of a recording from files, and stop the recording.
/// Changes of rules, pins or modes are refused.
#[test]
fn from_files_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api");
    let mut child = Command::new(PROGRAM)
        .args([
            "record",
            "-r",
            "-",
            "--trigger",
            "udp",
            "--ring",
            "32MiB",
            "-w",
        ])
        .arg(folder.path().join("dumps"))
        .arg("--api")
        .arg(format!("unix:{}", socket.display()))
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Stdin is a capture file that is still being written. The recorder reads stdin in pieces, so
    // the recording starts only after several packets.
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1_u32];
    let header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&header).unwrap();
    let packet = [
        &[0; 8][..],
        &60_u32.to_le_bytes(),
        &60_u32.to_le_bytes(),
        &[0; 60],
    ]
    .concat();
    stdin.write_all(&packet.repeat(500)).unwrap();
    let deadline = Instant::now() + DEADLINE;
    while !run(&socket, &["status"]).status.success() {
        assert!(Instant::now() < deadline, "it does not answer");
    }
    for change in [
        &["rules", "add", "a", "tcp"][..],
        &["rules", "add", "a", "--scan-past", "1m", "tcp"],
        &["rules", "change", "1", "tcp"],
        &["rules", "remove", "1"],
        &["rules", "disable", "1"],
        &["pin", "a"],
        &["when-full", "protect"],
    ] {
        let output = run(&socket, change);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("packets alone"), "{change:?}: {said}");
    }
    let rules = run(&socket, &["rules", "--json"]);
    let rules: Value = serde_json::from_slice(&rules.stdout).unwrap();
    assert_eq!(rules["rules"][0]["filter"], "udp");
    assert!(run(&socket, &["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(stdin);
}

/// The reader of the recorder's stderr closes the pipe, as in `record 2>&1 | head`. The recording
/// must continue without error.
#[test]
fn a_recording_goes_on_without_the_reader_of_its_messages() {
    let mut recording = Recording::start(&[]);
    drop(recording.words.take());
    for name in ["a", "b", "c"] {
        // Each change prints a message.
        recording.told(&["rules", "add", name, "tcp port 9"]);
    }
    assert_eq!(
        recording.asked(&["rules"])["rules"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    recording.told(&["trigger"]);
    recording.told(&["stop"]);
    let (status, summary) = recording.end();
    assert_eq!(status.code(), Some(0), "{summary}");
}
