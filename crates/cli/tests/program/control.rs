//! `record --control` and `ctl`, as users and as hostile programs use them.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use retroscope_pcapfile::Reader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{client::Client, support::PROGRAM};

/// Made-up traffic needs no privilege.
const TRAFFIC: &str = "generate:flows=10,rate=10kpps";
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A recorder with a socket, killed at the end of a test that fails.
pub(crate) struct Recording {
    pub(crate) child: Child,
    pub(crate) folder: TempDir,
    /// What it said before it recorded.
    first_words: String,
    pub(crate) words: Option<BufReader<ChildStderr>>,
}

impl Recording {
    fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn start_in(folder: TempDir, arguments: &[&str]) -> Self {
        let mut child = record(folder.path(), arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut words = BufReader::new(child.stderr.take().unwrap());
        let mut first_words = String::new();
        while !first_words.contains("recording on") {
            assert!(
                words.read_line(&mut first_words).unwrap() > 0,
                "it does not record"
            );
        }
        Self {
            child,
            folder,
            first_words,
            words: Some(words),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        ctl(&self.socket(), arguments)
    }

    /// The one line that a command prints.
    pub(crate) fn asked(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a refused command says.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }

    fn client(&self) -> Client {
        Client::of(&self.socket()).unwrap()
    }

    /// The status, whose ledger closes.
    pub(crate) fn status(&self) -> Value {
        let status = self.asked(&["status"]);
        let of = |name: &str| status["analyzers"][name].as_u64().unwrap();
        assert_eq!(of("stored"), of("analyzed") + of("lapped") + of("unread"));
        assert_eq!(status["ring"]["stored"], status["analyzers"]["stored"]);
        status
    }

    /// Waits for the end. The exit code, and the object of `--json`.
    pub(crate) fn end(mut self) -> (ExitStatus, Value) {
        let mut text = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let status = self.child.wait().unwrap();
        assert!(!self.socket().exists(), "the socket is removed");
        (status, serde_json::from_str(text.trim()).unwrap())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn record(folder: &Path, arguments: &[&str]) -> Command {
    // Who runs tests may ignore SIGHUP, which is inherited.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PROGRAM]);
    command.args(["record", "-i", TRAFFIC, "--ring", "64MiB", "--json", "-w"]);
    command
        .arg(folder.join("dumps"))
        .arg("--control")
        .arg(folder.join("control"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn ctl(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .args(["ctl", "--socket"])
        .arg(socket)
        .args(arguments);
    command.output().unwrap()
}

fn packets(mut capture: Reader<impl Read>) -> u64 {
    let mut count = 0;
    while capture.next().unwrap().is_some() {
        count += 1;
    }
    count
}

/// Trigger, rules, pins, status, events, and the end.
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
    let mut listener = recording.client();
    assert_eq!(
        listener.ask(&json!({ "command": "events", "from": 0 }))["ok"],
        true
    );

    // A trigger with a key may be asked for again.
    let first = recording.asked(&["trigger", "--key", "a"]);
    assert_eq!(first, json!({ "ok": true, "dump": 1, "existed": false }));
    let finished = listener.until(|event| event["event"] == "finished");
    assert_eq!(
        (&finished["dump"], &finished["report"]["rule"]),
        (&json!(1), &json!("manual"))
    );
    let again = recording.asked(&["trigger", "--key", "a"]);
    assert_eq!(again, json!({ "ok": true, "dump": 1, "existed": true }));
    assert_eq!(recording.asked(&["trigger"])["dump"], 2);

    // Rules come and go.
    let rules = recording.asked(&["rules"]);
    let given = json!({ "name": "1", "expression": "tcp port 9", "enabled": true, "configured": true, "hits": 0,
        "hold_off_seconds": null, "max_dumps": null, "dumps_per_minute": null, "bytes_per_hour": null, "past_seconds": null, "future_seconds": null, "packets": null, "bytes": null, "dump": null, "into": null, "asked_by": null });
    assert_eq!(rules["rules"], json!([given]));
    let refused = recording.refused(&["rules", "add", "bad", "udp", "prot", "9"]);
    assert!(refused.contains("prot"), "{refused}");
    let add = ["rules", "add", "all", "udp or tcp"];
    assert_eq!(recording.asked(&add)["existed"], false);
    assert_eq!(recording.asked(&add)["existed"], true);
    let other = recording.refused(&["rules", "add", "all", "tcp"]);
    assert!(other.contains("another expression"), "{other}");
    listener.until(|event| event["event"] == "triggered" && event["rule"] == "udp or tcp");
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
    assert_eq!(recording.asked(&change)["changed"], true);
    assert_eq!(recording.asked(&change)["changed"], false);
    let of_three =
        listener.until(|event| event["event"] == "finished" && event["report"]["rule"] == "ip");
    assert_eq!(of_three["report"]["packets"], 3);
    let list = recording.asked(&["rules"]);
    let changed = (
        &list["rules"][1]["past_seconds"],
        &list["rules"][1]["packets"],
    );
    assert_eq!(changed, (&json!(0.0), &json!(3)));
    let hits = |recording: &Recording| {
        let rules = recording.asked(&["rules", "list"]);
        let rules = rules["rules"].as_array().unwrap().clone();
        let all = rules.iter().find(|rule| rule["name"] == "all").cloned();
        all.map(|rule| rule["hits"].as_u64().unwrap())
    };
    assert!(hits(&recording) > Some(0));
    assert_eq!(
        recording.asked(&["rules", "disable", "all"])["changed"],
        true
    );
    assert_eq!(
        recording.asked(&["rules", "disable", "all"])["changed"],
        false
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
        recording.asked(&["rules", "remove", "all"])["existed"],
        true
    );
    assert_eq!(
        recording.asked(&["rules", "remove", "all"])["existed"],
        false
    );
    assert_eq!(hits(&recording), None);
    let refused = recording.refused(&["rules", "enable", "all"]);
    assert!(refused.contains("no rule 'all'"), "{refused}");

    // Pins.
    let pin = recording.asked(&["pin", "p", "--last", "1s"]);
    assert_eq!(
        (&pin["existed"], &pin["pin"]["fallen"]),
        (&json!(false), &json!(false))
    );
    let again = recording.asked(&["pin", "p", "--last", "1s"]);
    assert_eq!(
        (&again["existed"], &again["pin"]),
        (&json!(true), &pin["pin"])
    );
    assert_eq!(recording.status()["pins"], json!([pin["pin"]]));
    for number in 2..=64 {
        recording
            .client()
            .ask(&json!({ "command": "pin", "name": number.to_string(), "last": "1s" }));
    }
    let refused = recording.refused(&["pin", "one too many", "--last", "1s"]);
    assert!(refused.contains("64 pins"), "{refused}");
    assert_eq!(recording.asked(&["unpin", "p"])["existed"], true);
    assert_eq!(recording.asked(&["unpin", "p"])["existed"], false);

    recording.asked(&["when-full", "protect"]);
    assert_eq!(recording.status()["when_full"], "protect");
    recording.asked(&["when-full", "record"]);
    assert_eq!(recording.status()["when_full"], "record");

    // A second recorder does not take the socket away.
    let second = record(recording.folder.path(), &["-c", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("another program listens there"), "{said}");
    assert_eq!(second.status.code(), Some(1));

    assert_eq!(recording.asked(&["stop"])["ok"], true);
    listener.until(|event| event["event"] == "end");
    let (status, summary) = recording.end();
    assert_eq!(status.code(), Some(0), "{summary}");
    assert_eq!(summary["dumps"][0]["verdict"], "complete");
}

/// Triggers and rules dump what they say, and a wrong expression is refused with the place.
#[test]
fn a_trigger_brings_its_dump_expression() {
    let arguments = [
        "--trigger",
        "tcp port 9",
        "--trigger-dump",
        "1=arp",
        "--past",
        "1s",
        "--future",
        "50ms",
        "--dump",
        "tcp",
    ];
    let recording = Recording::start(&arguments);
    let mut listener = recording.client();
    listener.ask(&json!({ "command": "events", "from": 0 }));
    let finished = |listener: &mut Client, rule: &str| {
        let is_it = |event: &Value| event["event"] == "finished" && event["report"]["rule"] == rule;
        let report = listener.until(is_it)["report"].clone();
        let file = PathBuf::from(report["file"].as_str().unwrap());
        let sidecar = fs::read(file.with_extension("json")).unwrap();
        let sidecar: Value = serde_json::from_slice(&sidecar).unwrap();
        assert_eq!(sidecar["packets"], report["packets"]);
        (sidecar["expression"].clone(), report["packets"].as_u64())
    };
    let dumps = |recording: &Recording| {
        let rules = recording.asked(&["rules"])["rules"].clone();
        let rules = rules.as_array().unwrap().iter();
        rules.map(|rule| rule["dump"].clone()).collect::<Vec<_>>()
    };
    recording.asked(&["trigger", "--dump", "udp and greater 9000"]);
    let expected = (json!("udp and greater 9000"), Some(0));
    assert_eq!(finished(&mut listener, "manual"), expected);
    recording.asked(&["trigger", "--dump", "udp"]);
    let (expression, packets) = finished(&mut listener, "manual");
    assert_eq!(expression, "udp");
    assert!(packets > Some(100), "{packets:?}");

    let add = |dump| ["rules", "add", "a", "--dump", dump, "--packets", "5", "udp"];
    assert_eq!(recording.asked(&add("src port $srcPort"))["existed"], false);
    assert_eq!(recording.asked(&add("src port $srcPort"))["existed"], true);
    assert!(recording.refused(&add("udp")).contains("change it"));
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
    assert_eq!(recording.asked(&change)["changed"], true);
    assert_eq!(recording.asked(&change)["changed"], false);
    assert_eq!(dumps(&recording)[1], "less 9000");
    while finished(&mut listener, "udp").0 != "less 9000" {}
    recording.asked(&["trigger", "--dump", "udp", "--into", "by-hand.1"]);
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
        (&["trigger", "--dump", "udp prt 9"][..], "\n  udp prt 9\n"),
        (&["trigger", "--dump", "port $srcPort"], "$srcPort"),
        (&["rules", "add", "b", "--dump", "udp prt 9", "udp"], "prt"),
        (&["rules", "change", "a", "--dump", "$flw", "udp"], "$flw"),
    ] {
        let refused = recording.refused(arguments);
        assert!(refused.contains(told), "{arguments:?}: {refused}");
    }
    assert_eq!(
        dumps(&recording).len(),
        2,
        "what was refused changed nothing"
    );
    assert_eq!(dumps(&recording)[1], "less 9000");
    // Without one it is that of the start again.
    recording.asked(&["rules", "change", "a", "udp"]);
    assert_eq!(dumps(&recording)[1], Value::Null);
    while finished(&mut listener, "udp").0 != "tcp" {}
    recording.asked(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// Packets of the ring, into a file and a pipe, as `query` gives them.
#[test]
fn a_query_answers_with_packets_and_a_verdict() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    let deadline = Instant::now() + DEADLINE;
    while recording.status()["ring"]["stored"].as_u64() < Some(20_000) {
        assert!(Instant::now() < deadline, "nothing is stored");
    }
    let file = recording.folder.path().join("answer.pcapng");
    let path = file.to_str().unwrap();
    let output = recording.ctl(&["query", "-w", path]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let count = packets(Reader::open(&file).unwrap());
    assert!(count >= 20_000, "{said}");
    assert!(
        said.contains(&format!("{count} packets")) && said.contains("complete"),
        "{said}"
    );
    let output = recording.ctl(&["query", "-w", "-", "--last", "1s", "port", "9"]);
    assert!(output.status.success(), "{output:?}");
    assert!(packets(Reader::new(&output.stdout[..]).unwrap()) < count);
    // A refusal touches no file.
    for wrong in [
        &["--last", "1s", "port", "prot"][..],
        &["--from", "yesterday"],
        &["--from", "7", "--to", "6"],
    ] {
        let refused = recording.refused(&[&["query", "-w", path], wrong].concat());
        assert!(!refused.is_empty());
    }
    assert_eq!(packets(Reader::open(&file).unwrap()), count);
    kill_process(Pid::from_child(&recording.child), Signal::INT).unwrap();
    assert_eq!(recording.end().0.code(), Some(0));
}

/// Whatever clients do, the others are answered and nothing is lost.
#[test]
fn hostile_clients_hold_nobody_up() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    let seed = 0xc0117201;
    let mut random = fastrand::Rng::with_seed(seed);
    // Random bytes, and lines that are nearly requests.
    for round in 0..200 {
        let mut client = recording.client();
        let mut bytes: Vec<u8> = match round % 3 {
            0 => (0..random.usize(..2000)).map(|_| random.u8(..)).collect(),
            1 => {
                let mut text = br#"{"command":"pin","name":"x","last":"1s"}"#.to_vec();
                let place = random.usize(..text.len());
                text[place] = random.u8(..);
                text
            }
            _ => {
                br#"{"command":"query","expression":"#.iter().cycle().take(5000).copied().collect()
            }
        };
        bytes.push(b'\n');
        client.say(&bytes);
        assert!(
            client.hear()["ok"].is_boolean(),
            "seed {seed}, round {round}"
        );
    }
    // A line that is too long, and one without an end.
    let mut client = recording.client();
    client.say(&vec![b'x'; 1 << 20]);
    let refused = client.hear();
    assert!(
        refused["error"].as_str().unwrap().contains("65536 bytes"),
        "{refused}"
    );
    assert!(client.hear().is_null());
    recording.client().say(b"{\"command\":");
    // A thousand at once: some are answered, the others told, and later ones answered again.
    let mut clients: Vec<Client> = (0..1000).map(|_| recording.client()).collect();
    let mut answered = 0;
    for client in &mut clients {
        let answer = client.ask(&json!({ "command": "rules" }));
        let is_refused = answer["error"]
            .as_str()
            .is_some_and(|why| why.contains("too many clients"));
        assert!(answer["ok"] == true || is_refused, "{answer}");
        answered += u32::from(answer["ok"] == true);
    }
    assert!((32..=64).contains(&answered), "{answered}");
    drop(clients);
    let deadline = Instant::now() + DEADLINE;
    while recording.client().ask(&json!({ "command": "rules" }))["ok"] != true {
        assert!(Instant::now() < deadline, "nobody is let in any more");
    }
    // Clients that leave in the middle of an answer, or do not read it: one that a socket's buffer does not hold.
    let stored = || recording.status()["ring"]["stored"].as_u64().unwrap();
    while stored() < 10_000 {
        assert!(Instant::now() < deadline, "nothing is stored");
    }
    let ask = b"{\"command\":\"query\"}\n";
    for _ in 0..10 {
        let mut client = recording.client();
        client.say(ask);
        client.hear();
    }
    let mut silent: Vec<Client> = (0..8).map(|_| recording.client()).collect();
    silent.iter_mut().for_each(|client| client.say(ask));
    let mut deaf = recording.client();
    deaf.say(b"{\"command\":\"events\",\"from\":0}\n");
    let status = recording.status();
    assert_eq!(status["analyzers"]["lapped"], 0);
    let lost = status["sources"][0]["lost"].as_object().unwrap();
    assert!(lost.values().all(|lost| *lost == 0), "{status}");
    // More often asked at once than there is room for: refused, not kept waiting.
    let answers = silent.iter_mut().map(Client::hear);
    let refused = answers.filter(|answer| answer["ok"] == false).count();
    assert!(refused >= 1, "8 queries ran at once");
    recording.asked(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// Who says stop and does not hear the answer has said it.
#[test]
fn a_client_that_does_not_listen_ends_the_recording_too() {
    let recording = Recording::start(&[]);
    let said = &recording.first_words;
    assert!(said.contains("--control"), "what else starts dumps: {said}");
    let mut client = recording.client();
    client.0.get_ref().shutdown(Shutdown::Read).unwrap();
    client.say(b"{\"command\":\"stop\"}\n");
    let deadline = Instant::now() + DEADLINE;
    while recording.socket().exists() {
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::yield_now();
    }
    assert_eq!(recording.end().0.code(), Some(0));
}

/// Pins and dumps against new packets on a full ring.
#[test]
fn a_full_ring_keeps_what_it_was_told_to() {
    let arguments = [
        "--trigger",
        "tcp port 9",
        "-i",
        "generate:flows=5,size=1500,rate=20kpps",
    ];
    for (mode, falls) in [("record", true), ("protect", false)] {
        let recording = Recording::start(&[&arguments[..], &["--when-full", mode]].concat());
        recording.asked(&["pin", "all", "--to", "2100-01-01T00:00:00Z"]);
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            let status = recording.status();
            let lost = |source: &Value| source["lost"]["no-free-bucket"].as_u64().unwrap();
            let lost: u64 = status["sources"].as_array().unwrap().iter().map(lost).sum();
            assert!(!(falls && lost > 0), "{status}");
            let has_fallen = status["pins"][0]["fallen"] == true;
            assert!(falls || !has_fallen, "{status}");
            if has_fallen || lost > 1000 {
                break status;
            }
            assert!(Instant::now() < deadline, "{status}");
        };
        assert_eq!(status["when_full"], mode);
        if falls {
            let mut listener = recording.client();
            listener.say(b"{\"command\":\"events\",\"from\":0}\n");
            listener.until(|event| {
                let text = event["text"].as_str();
                text.is_some_and(|text| text.contains("pin 'all' fell"))
            });
        } else {
            // Nothing was overwritten meanwhile, and new packets come in again.
            assert_eq!(status["ring"]["evicted"], 0);
            recording.asked(&["when-full", "record"]);
            let stored = || recording.status()["ring"]["evicted"].as_u64() > Some(0);
            while !stored() {
                assert!(Instant::now() < deadline, "{}", recording.status());
            }
        }
        recording.asked(&["stop"]);
        assert_eq!(recording.end().0.code(), Some(0));
    }
}

/// A recording from files is asked and stopped, and not changed.
#[test]
fn from_files_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control");
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
        .arg("--control")
        .arg(&socket)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A file that goes on; it is read in pieces, so there must be some packets for the recorder to begin.
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
    while !ctl(&socket, &["status"]).status.success() {
        assert!(Instant::now() < deadline, "it does not answer");
    }
    for change in [
        &["rules", "add", "a", "tcp"][..],
        &["rules", "change", "1", "tcp"],
        &["rules", "remove", "1"],
        &["rules", "disable", "1"],
        &["pin", "a"],
        &["when-full", "protect"],
    ] {
        let output = ctl(&socket, change);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("packets alone"), "{change:?}: {said}");
    }
    let rules: Value = serde_json::from_slice(&ctl(&socket, &["rules"]).stdout).unwrap();
    assert_eq!(rules["rules"][0]["expression"], "udp");
    assert!(ctl(&socket, &["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(stdin);
}

#[test]
fn without_a_recorder_nothing_is_asked_and_without_a_socket_nothing_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control");
    let output = ctl(&socket, &["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("No such file")
    );
    fs::write(&socket, "").unwrap();
    let output = record(folder.path(), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("is no socket")
    );
    assert!(socket.is_file());
}
