//! `retroscope flows` and `record --eve`, the program as a user runs it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{ffi::OsStrExt as _, net::UnixListener},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

use jiff::Timestamp;
use retroscope_pcapfile::Resolution;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    record_files::generated::{made, write_pcap},
    support::{PROGRAM, stderr, stdout},
};

fn command(directory: &Path, arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments.split(' '))
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}

fn run(directory: &Path, arguments: &str) -> Output {
    command(directory, arguments).output().unwrap()
}

/// A folder with `in.pcap`: 2,000 packets within 20 s. 50 flows have 1,999 packets together.
/// Another flow has one packet, the trigger to UDP port 60000.
fn capture() -> TempDir {
    let directory = TempDir::new().unwrap();
    let arguments =
        "generate -w in.pcap -c 2000 --flows 50 --size 100 --rate 100pps --trigger-after 1s -q";
    let output = run(directory.path(), arguments);
    assert!(output.status.success(), "{output:?}");
    directory
}

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of_type<'l>(lines: &'l [Value], event_type: &str) -> Vec<&'l Value> {
    let lines = lines.iter();
    lines
        .filter(|line| line["event_type"] == event_type)
        .collect()
}

/// Each packet counts in exactly one flow line. The lines are the same for all tested values of
/// `analyzers`.
#[test]
fn a_file_has_the_same_lines_in_every_run() {
    let directory = capture();
    let runs = ["auto", "1", "4", "inline"].map(|analyzers| {
        let output = run(
            directory.path(),
            &format!("flows -r in.pcap --idle-timeout 100ms --set analyzers={analyzers}"),
        );
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        stdout(&output).to_owned()
    });
    assert!(runs.iter().all(|run| *run == runs[0]));
    let lines = lines(&runs[0]);
    let sum = |field: &str| -> u64 {
        let counts = lines.iter().map(|line| line["flow"][field].as_u64());
        counts.map(Option::unwrap).sum()
    };
    assert_eq!(sum("pkts_toserver") + sum("pkts_toclient"), 2000);
    assert_eq!(sum("bytes_toserver") + sum("bytes_toclient"), 200_000);
    assert!(lines.len() > 51, "a flow pauses for half a second");
    let (ended, open) = lines.split_at(lines.len() - of_reason(&lines, "shutdown"));
    assert!(ended.iter().all(|line| line["flow"]["reason"] == "timeout"));
    assert!(!open.is_empty());
}

/// Each conversation of a generated capture has one line. The line has the packets and bytes of
/// both directions, and the time of the conversation's earliest packet. The endpoints are in the
/// order of that packet.
#[test]
fn lines_count_the_packets_of_a_made_capture() {
    let directory = TempDir::new().unwrap();
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut made = made(seed);
    write_pcap(&directory.path().join("in.pcap"), &made, Resolution::Nano);
    let output = run(directory.path(), "flows -r in.pcap --idle-timeout 0");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = lines(stdout(&output));
    made.sort_by_key(|it| it.packet.time_ns);
    let mut expected = BTreeMap::<u16, Value>::new();
    for it in &made {
        let ports = [1000, 2000].map(|first| first + it.conversation);
        let ends = if it.is_from_client { [0, 1] } else { [1, 0] };
        let at = Timestamp::from_nanosecond(it.packet.time_ns.into()).unwrap();
        let line = expected.entry(it.conversation).or_insert_with(|| {
            json!({
                "ports": ends.map(|end| ports[end]),
                "proto": if it.conversation.is_multiple_of(2) { "TCP" } else { "UDP" },
                "start": at.strftime("%Y-%m-%dT%H:%M:%S.%6f+0000").to_string(),
                "sent": [[0, 0], [0, 0]],
            })
        });
        let is_back = line["ports"][0] != ports[ends[0]];
        let sent = &mut line["sent"][usize::from(is_back)];
        *sent = json!([
            sent[0].as_u64().unwrap() + 1,
            sent[1].as_u64().unwrap() + u64::from(it.packet.wire_len)
        ]);
    }
    let told = lines.iter().map(|line| {
        let flow = &line["flow"];
        let ports = [&line["src_port"], &line["dest_port"]];
        let smaller = ports.iter().map(|port| port.as_u64().unwrap()).min();
        let told = json!({
            "ports": ports,
            "proto": line["proto"],
            "start": flow["start"],
            "sent": [
                [flow["pkts_toserver"], flow["bytes_toserver"]],
                [flow["pkts_toclient"], flow["bytes_toclient"]],
            ],
        });
        (u16::try_from(smaller.unwrap() - 1000).unwrap(), told)
    });
    assert_eq!(lines.len(), expected.len());
    assert_eq!(told.collect::<BTreeMap<_, _>>(), expected, "seed {seed}");
}

fn of_reason(lines: &[Value], reason: &str) -> usize {
    let lines = lines.iter();
    lines
        .filter(|line| line["flow"]["reason"] == reason)
        .count()
}

/// With an idle time-out of 0, silence never splits a flow, so each flow key of the capture has one
/// line. A filter expression selects the packets that count.
#[test]
fn one_line_a_key_where_flows_do_not_end() {
    let directory = capture();
    let output = run(
        directory.path(),
        "flows -r in.pcap --idle-timeout 0 --json udp dst port 60000",
    );
    let lines = lines(stdout(&output));
    let [flow, summary] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(flow["dest_port"], 60000);
    assert_eq!(flow["flow"]["pkts_toserver"], 1);
    assert_eq!(summary["flows"]["started"], 1);
    assert_eq!(summary["eve"]["lines"], 1);
    let output = run(directory.path(), "flows -r in.pcap --idle-timeout 0");
    assert_eq!(stdout(&output).lines().count(), 51);
    assert!(
        stderr(&output).contains("51 flows of 2000 packets"),
        "{output:?}"
    );
}

/// With `--eve` and a trigger, the file has event lines for the trigger and the finished dump, in
/// addition to one line for each flow.
#[test]
fn record_tells_flows_and_dumps() {
    let directory = capture();
    let mut record = command(
        directory.path(),
        "record -r in.pcap -w dumps -q --eve eve.json",
    );
    let output = record.args(["--trigger", "udp dst port 60000"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    let text = fs::read_to_string(directory.path().join("eve.json")).unwrap();
    let lines = lines(&text);
    assert_eq!(of_type(&lines, "flow").len(), 51);
    let events = of_type(&lines, "retroscope");
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["retroscope"]["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["triggered", "finished"]);
    assert_eq!(events[0]["timestamp"], "2026-01-01T00:00:01.000000+0000");
    assert_eq!(events[1]["retroscope"]["report"]["packets"], 1);
}

/// With `--eve unix:PATH`, a listener at that socket receives one whole line for each flow.
#[test]
fn a_socket_gets_all_lines() {
    let directory = capture();
    let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let arguments = "flows -r in.pcap --idle-timeout 0 --eve unix:socket";
    let output = run(directory.path(), arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(lines(&reader.join().unwrap()).len(), 51);
}

/// If the reader of stdout closes the pipe, `flows` ends with exit code 0.
#[test]
fn it_ends_when_the_reader_of_stdout_leaves() {
    let directory = TempDir::new().unwrap();
    let arguments = "flows -i generate:flows=100000,rate=100kpps --ring 64MiB --max-flows 1000 -q";
    let mut child = command(directory.path(), arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    assert_eq!(lines(&line).len(), 1);
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Without a terminal, `--top` prints one text table after another. With `--eve`, each flow is also
/// a line of a file.
#[test]
fn the_largest_flows_are_text_where_there_is_no_terminal() {
    let directory = TempDir::new().unwrap();
    let arguments = "flows -i generate:flows=4,size=1000,rate=1kpps --ring 64MiB --top 3 --by packets --eve eve.json -q";
    let mut child = command(directory.path(), arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut table = || -> Vec<String> {
        let lines = lines.by_ref().map(Result::unwrap);
        lines.take_while(|line| !line.is_empty()).collect()
    };
    for table in [table(), table()] {
        let [about, heading, rows @ ..] = &table[..] else {
            panic!("{table:?}");
        };
        assert!(about.contains(" 4 flows; lost 0; generate:"), "{about}");
        assert!(heading.trim_start().starts_with("pps "), "{heading}");
        assert_eq!(rows.len(), 4, "{table:?}");
        for (row, says) in rows.iter().zip(["UDP", "UDP", "UDP", "all others"]) {
            assert!(row.contains(says), "{table:?}");
            let share = row.split('%').next().unwrap().split(' ').next_back();
            let share: f64 = share.unwrap().parse().unwrap();
            assert!((24.0..26.0).contains(&share), "{table:?}");
        }
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let eve = fs::read_to_string(directory.path().join("eve.json")).unwrap();
    assert_eq!(of_type(&self::lines(&eve), "flow").len(), 4);
}

/// Each wrong command line gives exit code 2, or 1 if a file or socket cannot be opened. A message
/// names the mistake, stdout stays empty, and no folder for dumps is created.
#[test]
fn wrong_arguments_are_a_sentence() {
    let directory = capture();
    for (arguments, code, says) in [
        ("flows", 2, "say what to read"),
        ("flows -r in.pcap udp portt 5", 2, "syntax error"),
        ("flows -r in.pcap -f udp tcp", 2, "cannot be used with"),
        ("flows -r in.pcap --eve unix:", 2, "names no socket"),
        ("flows -r in.pcap --eve unix:nobody", 1, "unix:nobody"),
        ("flows -r in.pcap --eve .", 1, "it is a directory"),
        ("flows -r in.pcap --community-id-seed 65536", 2, "65536"),
        ("flows -r in.pcap --max-flows 0", 2, "from 1 to"),
        ("flows -r in.pcap --top 3", 2, "-i IFACE"),
        ("flows -i lo --top 3 --eve -", 2, "--eve FILE"),
        ("flows -i lo --top 0", 2, "'0'"),
        ("flows -i lo --top 3 --by bytes", 2, "'bytes'"),
        ("flows -i lo --top 3 --window 61", 2, "'61'"),
        ("flows -i lo --by bits", 2, "--top"),
        ("flows -r nothing.pcap", 1, "nothing.pcap"),
        ("flows -r in.pcap -c 0", 2, "from 1 to"),
        (
            "flows -r in.pcap --set api.listen=unix:a",
            2,
            "api.listen is for `retroscope record`",
        ),
        ("flows --set rule.a.past=1s", 2, "rule.a.past is for"),
        ("flows --set snaplen=9", 2, "snaplen is for"),
        ("record --set api=3", 2, "api is a table: set its keys"),
        (
            "record -r in.pcap --set rule=[{name='a'}]",
            2,
            "--set rule: rule 'a' needs",
        ),
        ("flows --cpus=1", 2, "a key now: --set cpus=VALUE\n"),
        ("flows --eve-rotate=1d", 2, "any more: logrotate(8)"),
        ("flows --tokens=x", 2, "unexpected argument"),
        (
            "record --no-sha256",
            2,
            "--set sha256=false, or sha256 = false in",
        ),
        (
            "record -r in.pcap -t udp --set vlans=apart",
            2,
            "needs --eve FILE",
        ),
    ] {
        let output = run(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains(says), "{arguments}: {said}");
        assert!(output.stdout.is_empty(), "{arguments}: {output:?}");
    }
    assert!(!directory.path().join("dumps").exists());
    // An argument that is not UTF-8.
    let mut program = Command::new(PROGRAM);
    let output = program.arg(OsStr::from_bytes(b"--\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
