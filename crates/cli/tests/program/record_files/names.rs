//! Names in expressions of the command line are looked up once, at the start.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
};

use retroscope_pcapfile::CaptureReader;
use serde_json::Value;

use super::record;
use crate::support::{PROGRAM, skip, stderr};

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &length].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn section() -> Vec<u8> {
    block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]))
}

fn interface(link_type: u32) -> Vec<u8> {
    block(1, &words(&[link_type, 0]))
}

/// A pcapng block with a UDP packet from 10.0.0.`host` to port 9. The timestamp is `number` µs
/// after the epoch.
fn packet(interface: u32, link_type: u32, host: u8, number: u32) -> Vec<u8> {
    let mut data = Vec::new();
    if link_type == 1 {
        data.extend([0; 12]);
        data.extend([8, 0]);
    }
    data.extend([
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 9, 9, 9,
    ]);
    data.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    let length = u32::try_from(data.len()).unwrap();
    data.resize(data.len().next_multiple_of(4), 0);
    block(
        6,
        &[&words(&[interface, 0, number, length, length])[..], &data].concat(),
    )
}

/// Runs the program with `hosts` as /etc/hosts and a capture on stdin. Writes `before`, waits for
/// the start of the recording, calls `change`, which may write to `hosts`, and writes `behind`.
/// Returns the summary and the messages.
fn run(
    hosts: &Path,
    args: &[&str],
    (before, behind): (&[u8], &[u8]),
    change: impl FnOnce(),
) -> (Value, String) {
    let switch = hosts.with_file_name("nsswitch.conf");
    fs::write(&switch, "hosts: files\nservices: files\nprotocols: files\n").unwrap();
    let script = "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/nsswitch.conf && shift 2 && exec \"$@\"";
    let mut child = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .args([hosts, &switch])
        .arg(PROGRAM)
        .args(["record", "--json", "--ring", "8MiB", "-r", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(before).unwrap();
    let mut said = String::new();
    let mut words = BufReader::new(child.stderr.take().unwrap());
    while !said.contains("recording on") {
        assert!(words.read_line(&mut said).unwrap() > 0, "{said}");
    }
    change();
    stdin.write_all(behind).unwrap();
    drop(stdin);
    words.read_to_string(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary = text.lines().last().expect("a summary");
    (serde_json::from_str(summary).unwrap(), said)
}

/// The last byte of the sender's address of each packet of a dump.
fn hosts_of(dump: &Value) -> Vec<u8> {
    let mut reader = CaptureReader::open(Path::new(dump["file"].as_str().unwrap())).unwrap();
    let mut hosts = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        hosts.push(record.data[record.data.len() - 13]);
    }
    hosts
}

fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "true"]).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        skip("no mount namespaces (root): names that change were not tried");
    }
    can
}

/// A host's address changes after the start. Each expression keeps the address from the start, even
/// if the recorder compiles the expression later.
#[test]
fn a_host_that_moves_is_not_looked_up_again() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    let out = dir.path().join("out");
    let before = [section(), interface(1), packet(0, 1, 1, 1)].concat();
    let mut behind = Vec::new();
    for (number, host) in (2..).zip([1, 2, 3, 1, 2, 3]) {
        behind.extend(packet(0, 1, host, number));
    }
    behind.extend(interface(101));
    for (number, host) in (20..).zip([1, 2, 3]) {
        behind.extend(packet(1, 101, host, number));
    }
    let old = "10.0.0.1 moving.test\n10.0.0.1 many.test\nfe80::1 many.test\n10.0.0.3 many.test\n";
    let new = "10.0.0.2 moving.test\n";
    let run = |args: &[&str]| {
        fs::write(&hosts, old).unwrap();
        let _ = fs::remove_dir_all(&out);
        let args = [
            &[
                "--past",
                "1s",
                "--future",
                "1s",
                "-w",
                out.to_str().unwrap(),
            ],
            args,
        ]
        .concat();
        run(&hosts, &args, (&before, &behind), || {
            fs::write(&hosts, new).unwrap()
        })
    };

    // The dump opens after the change. The part of its filter after `or` is the same for all dumps,
    // and must match the address from the start.
    let (json, said) = run(&[
        "--trigger",
        "src host 10.0.0.3",
        "--single",
        "--dump",
        "($flow and tcp) or src host moving.test",
    ]);
    let dump = &json["dumps"][0];
    assert_eq!(hosts_of(dump), [1, 1, 1, 1], "{said}");
    assert_eq!(dump["verdict"], "complete", "{dump}");
    assert!(!dump["notes"].to_string().contains("moving.test"), "{dump}");

    // A trigger and a capture filter are also compiled for a link type that appears after the
    // change.
    let (json, said) = run(&[
        "--trigger",
        "src host moving.test",
        "--single",
        "--dump",
        "",
    ]);
    assert_eq!(
        json["dumps"][0]["trigger_time"],
        "1970-01-01T00:00:00.000001000Z"
    );
    assert!(!said.contains("link type"), "{said}");
    let (json, _) = run(&[
        "--trigger",
        "udp",
        "--single",
        "--dump",
        "",
        "-f",
        "src host moving.test",
    ]);
    assert_eq!(hosts_of(&json["dumps"][0]), [1, 1, 1, 1]);
    let (json, _) = run(&["--trigger", "udp", "--single", "--dump", "src (many.test)"]);
    assert_eq!(hosts_of(&json["dumps"][0]), [1, 1, 3, 1, 3, 1, 3]);

    // A port name may be next to a variable. Its number is fixed at the start.
    let (json, _) = run(&[
        "--trigger",
        "port discard",
        "--single",
        "--dump",
        "port discard and host $srcIP",
    ]);
    assert_eq!(hosts_of(&json["dumps"][0]), [1, 1, 1, 1]);
}

/// A link type for which libpcap refuses the capture filter is reported once.
#[test]
fn a_link_type_that_the_capture_filter_takes_nothing_of_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in.pcapng");
    let blocks = [
        section(),
        interface(1),
        packet(0, 1, 1, 1),
        interface(101),
        packet(1, 101, 1, 2),
        interface(101),
        packet(2, 101, 2, 3),
    ];
    fs::write(&file, blocks.concat()).unwrap();
    let ether = "ether src 00:00:00:00:00:00 or src host 10.0.0.9";
    let args = [
        &["-r", file.to_str().unwrap(), "--trigger", "udp", "--single"][..],
        &["-w", dir.path().to_str().unwrap(), "-f", ether],
    ];
    let (output, json) = record(&args.concat());
    let said = stderr(&output);
    let sentence = format!("filter '{ether}' matches nothing of link type 101");
    let told = said.matches(&sentence).count();
    assert_eq!((output.status.code(), told), (Some(0), 1), "{said}");
    assert_eq!(json.unwrap()["sources"][0]["filtered"], 2);
}

#[test]
fn a_name_beside_a_variable_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in.pcapng");
    fs::write(
        &file,
        [section(), interface(1), packet(0, 1, 1, 1)].concat(),
    )
    .unwrap();
    for (dump, name) in [
        ("host $srcIP and host www.example.com", "www.example.com"),
        ("$flow or (net loopback and port $dstPort)", "loopback"),
    ] {
        let file = file.to_str().unwrap();
        let output = record(&["-r", file, "--trigger", "udp", "--dump", dump]).0;
        let words = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(words.contains(&format!("'{name}'")), "{words}");
    }
}
