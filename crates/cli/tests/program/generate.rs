//! `retroscope generate`, the program as a user runs it.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::Read,
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    process::{Command, Output, Stdio},
    time::Instant,
};

use retroscope_pcapfile::{CaptureReader, LinkType, Resolution};
use tempfile::TempDir;

use crate::{
    namespace::Namespace,
    support::{PROGRAM, skip},
};

/// 2026-01-01T00:00:00Z.
const START_NS: i64 = 1_767_225_600_000_000_000;

fn generate(directory: &Path, arguments: &str) -> Output {
    Command::new(PROGRAM)
        .arg("generate")
        .args(arguments.split(' ').filter(|argument| !argument.is_empty()))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs `generate` with `arguments` and `-w file`, which must succeed. Returns the contents of the
/// file.
fn generated(directory: &Path, arguments: &str, file: &str) -> Vec<u8> {
    let output = generate(directory, &format!("{arguments} -w {file}"));
    assert!(output.status.success(), "{arguments}: {output:?}");
    fs::read(directory.join(file)).unwrap()
}

/// Timestamps and frames of a capture.
fn packets(bytes: &[u8]) -> Vec<(i64, Vec<u8>)> {
    let mut reader = CaptureReader::new(bytes).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.meta.wire_len as usize, record.data.len());
        packets.push((record.meta.time_ns, record.data.to_vec()));
    }
    assert_eq!(reader.interfaces()[0].link_type, LinkType::ETHERNET);
    packets
}

/// A new file belongs to the user who called sudo. An existing file keeps its owner. A file that is
/// created through a symbolic link belongs to root.
#[test]
fn a_new_file_belongs_to_the_caller_of_sudo() {
    if !rustix::process::geteuid().is_root() {
        skip("files of the caller of sudo (not root)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("old"), "").unwrap();
    symlink("missing", at("link")).unwrap();
    for (name, file, owner) in [
        ("new", "new", (23456, 23457)),
        ("old", "old", (0, 0)),
        ("link", "missing", (0, 0)),
    ] {
        let mut command = Command::new(PROGRAM);
        command.args(["generate", "-c", "1", "-w"]).arg(at(name));
        command.env("SUDO_UID", "23456").env("SUDO_GID", "23457");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let found = fs::metadata(at(file)).unwrap();
        assert_eq!((found.uid(), found.gid()), owner, "{name}");
    }
}

fn destination_port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[36], frame[37]])
}

fn sequence(frame: &[u8]) -> u64 {
    let at = if destination_port(frame) == 60_000 {
        50
    } else {
        42
    };
    u64::from_be_bytes(frame[at..at + 8].try_into().unwrap())
}

#[test]
fn a_seed_means_the_same_bytes() {
    let directory = TempDir::new().unwrap();
    let arguments = "-c 5000 --flows 100 --rate 100kpps --trigger-after 20ms";
    for name in ["a.pcap", "a.pcapng"] {
        let first = generated(directory.path(), arguments, name);
        assert_eq!(generated(directory.path(), arguments, name), first);
        let other = generated(directory.path(), &format!("{arguments} --seed 2"), name);
        assert_ne!(other, first);
    }
}

#[test]
fn a_file_holds_the_schedule() {
    let directory = TempDir::new().unwrap();
    let arguments = "--duration 50ms --flows 10 --size 128 --rate 100kpps --trigger-after 20ms";
    let file = generated(directory.path(), arguments, "a.pcap");
    let format = CaptureReader::new(&file[..]).unwrap().format();
    assert_eq!(format.pcap.unwrap().resolution, Resolution::Nano);
    let plain = packets(&file);
    assert_eq!(plain.len(), 5000);
    for (index, (time_ns, frame)) in plain.iter().enumerate() {
        assert_eq!(*time_ns, START_NS + index as i64 * 10_000);
        assert_eq!(frame.len(), 128);
        assert_eq!(sequence(frame), index as u64);
    }
    let triggers: Vec<u64> = plain
        .iter()
        .filter(|(_, frame)| destination_port(frame) == 60_000)
        .map(|(_, frame)| sequence(frame))
        .collect();
    assert_eq!(triggers, [2000]);
    let flows: HashSet<&[u8]> = plain.iter().map(|(_, frame)| &frame[26..38]).collect();
    assert_eq!(flows.len(), 11, "ten flows and the trigger's");
    let ng = generated(directory.path(), arguments, "a.pcapng");
    let format = CaptureReader::new(&ng[..]).unwrap().format();
    assert_eq!(format.pcap, None, "by the name");
    assert_eq!(packets(&ng), plain);
}

#[test]
fn without_a_rate_a_file_has_a_million_a_second() {
    let directory = TempDir::new().unwrap();
    let file = packets(&generated(directory.path(), "--duration 3ms", "a.pcap"));
    assert_eq!(file.len(), 3000);
    assert_eq!(file[2999].0 - file[0].0, 2_999_000);
}

#[test]
fn stdout_takes_the_same_bytes_and_may_close_early() {
    let directory = TempDir::new().unwrap();
    let file = generated(directory.path(), "-c 1000", "a.pcap");
    let output = generate(directory.path(), "-c 1000 -w - -q");
    assert!(output.status.success());
    assert_eq!(output.stdout, file);
    assert!(output.stderr.is_empty(), "{output:?}");

    let mut child = Command::new(PROGRAM)
        .args(["generate", "-c", "10000000", "-w", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut head = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    // The reading end of the pipe is closed now.
    assert!(child.wait().unwrap().success());
    assert_eq!(head, file[..100]);
}

#[test]
fn the_summary_tells_the_trigger() {
    let directory = TempDir::new().unwrap();
    let output = generate(
        directory.path(),
        "-w a.pcap -c 2000 --rate 1kpps --trigger-after 1s --json",
    );
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout.lines().count(), 1);
    let summary: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(summary["packets"], 2000);
    assert_eq!(summary["bytes"], 128_000);
    assert_eq!(summary["trigger"]["sequence"], 1000);
    assert_eq!(summary["trigger"]["time"], "2026-01-01T00:00:01.000000000Z");
    let file = packets(&fs::read(directory.path().join("a.pcap")).unwrap());
    let frame = &file[1000].1;
    let source = format!("{}.{}.{}.{}", frame[26], frame[27], frame[28], frame[29]);
    assert_eq!(summary["trigger"]["source_ip"], source.as_str());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.starts_with(&format!(
            "retroscope: wrote 2000 packets in 1.999 s (1001 pps, 0.5 Mbit/s); trigger {source}:"
        )),
        "{words}"
    );
}

#[test]
fn mistakes_are_named_in_one_line() {
    let directory = TempDir::new().unwrap();
    for (arguments, code, named) in [
        ("", 2, "-w FILE or -i INTERFACE"),
        ("-c 5", 2, "-w FILE or -i INTERFACE"),
        ("-w a.pcap", 2, "--duration"),
        ("-i lo -w a.pcap", 2, "--duration"),
        ("-w - -c 1 --json", 2, "--json and -w -"),
        // A number out of range. Tests of the crate `generate` have further numbers out of range.
        ("-w a.pcap -c 5 --flows 0", 2, "flows=0"),
        ("-w no/such/a.pcap -c 5", 1, "no/such/a.pcap: "),
        ("-w /dev/full -c 5", 1, "/dev/full: "),
        ("-w a.pcap -c 5 --rate 500", 2, "500"),
        ("-w a.pcap --duration soon", 2, "soon"),
    ] {
        let output = generate(directory.path(), arguments);
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {words}");
        assert!(
            words.starts_with("retroscope: ") && words.contains(named),
            "{arguments}: {words}"
        );
        assert_eq!(words.lines().count(), 1, "{arguments}: {words}");
        assert!(output.stdout.is_empty());
    }
    assert!(!directory.path().join("a.pcap").exists());
}

/// Runs a shell script in a network namespace in which a veth pair `v0`, `v1` and `lo` are up and
/// silent. Returns `None` if the system does not permit namespaces.
fn in_namespace(directory: &Path, tag: &str, script: &str) -> Option<Output> {
    let namespace = Namespace::with_veth(tag)?;
    namespace.ip("link set lo up");
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .env("PROGRAM", PROGRAM)
        .current_dir(directory)
        .stdin(Stdio::null());
    Some(namespace.enter(|| command.output().unwrap()))
}

/// Packets that an interface sent, from /proc/net/dev.
fn transmitted(devices: &str, interface: &str) -> u64 {
    let line = devices
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{interface}:")))
        .unwrap();
    line.split_whitespace().nth(9).unwrap().parse().unwrap()
}

#[test]
fn live_it_sends_what_it_says_and_writes_what_it_sent() {
    let directory = TempDir::new().unwrap();
    // `date` prints a time before `generate` starts. No packet may have a timestamp earlier than
    // that time plus the packet's scheduled delay.
    let script = "date +%s%N
        $PROGRAM generate -i v0 -w sent.pcap -c 20000 --rate 100kpps --trigger-after 50ms --json
        cat /proc/net/dev";
    let started = Instant::now();
    let Some(output) = in_namespace(directory.path(), "sends", script) else {
        return;
    };
    let all = started.elapsed().as_secs_f64();
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let (before_ns, rest) = stdout.split_once('\n').unwrap();
    let before_ns: i64 = before_ns.parse().unwrap();
    let (summary, devices) = rest.split_once('\n').unwrap();
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    assert_eq!(summary["packets"], 20_000);
    assert_eq!(transmitted(devices, "v0"), 20_000);
    let seconds = summary["seconds"].as_f64().unwrap();
    assert!(
        (0.199..=all).contains(&seconds),
        "paced: {seconds} s of {all}"
    );

    let mut bytes = Vec::new();
    File::open(directory.path().join("sent.pcap"))
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    let sent = packets(&bytes);
    assert_eq!(sent.len(), 20_000);
    let frames = packets(&generated(
        directory.path(),
        "-c 20000 --rate 100kpps --trigger-after 50ms",
        "file.pcap",
    ));
    for ((time_ns, frame), (scheduled_ns, expected)) in sent.iter().zip(&frames) {
        assert_eq!(frame, expected);
        assert!(
            time_ns - before_ns >= scheduled_ns - START_NS,
            "sent before its time"
        );
    }
    assert!(sent.is_sorted_by_key(|(time_ns, _)| *time_ns));
}

#[test]
fn an_interrupt_ends_it_with_a_summary() {
    let directory = TempDir::new().unwrap();
    // The script sends the interrupt after the file has at least 1000 bytes, so `generate` is
    // already sending packets.
    let script = "$PROGRAM generate -i v0 --rate 100kpps --duration 1h -w sent.pcap --json > json &
        process=$!
        trap 'kill -KILL $process 2>/dev/null || :' EXIT
        while [ $(stat -c %s sent.pcap 2>/dev/null || echo 0) -lt 1000 ]; do kill -0 $process; done
        kill -INT $process
        wait $process";
    let Some(output) = in_namespace(directory.path(), "interrupt", script) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let json = fs::read_to_string(directory.path().join("json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
    let file = packets(&fs::read(directory.path().join("sent.pcap")).unwrap());
    assert_eq!(summary["packets"], file.len());
}

#[test]
fn a_real_network_asks_for_yes() {
    let directory = TempDir::new().unwrap();
    // Without `--yes`, the program refuses to send in the network namespace of the host. If the
    // tests run in another network namespace, the program continues, and reports that no interface
    // has this name.
    let output = generate(directory.path(), "-i no-such-if -c 1");
    let words = String::from_utf8(output.stderr).unwrap();
    match output.status.code() {
        Some(2) => assert!(words.contains("--yes"), "{words}"),
        _ => eprintln!("SKIP: the tests run in a network namespace: {words}"),
    }
    let output = generate(directory.path(), "-i no-such-if -c 1 --yes");
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
}

#[test]
fn a_namespace_and_the_loopback_interface_do_not() {
    let directory = TempDir::new().unwrap();
    let script = "$PROGRAM generate -i v0 -c 10 && $PROGRAM generate -i lo -c 10";
    let Some(output) = in_namespace(directory.path(), "allowed", script) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
}
