//! Effects of the options of `record`, and errors of wrong options.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{FileInterface, PacketOptions, PcapNgWriter, SectionOptions};
use serde_json::Value;

use super::{S, args, contents, oracle::read, question, record, run, write_capture};
use crate::support::{PROGRAM, skip, stderr};

/// 2000 frames of 100 bytes, 10 ms apart. The capture is too short for a frame to port 60000. The
/// tests trigger on frames to other ports, for example port 13, which has a frame each second.
fn capture(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("in.pcap");
    write_capture(&path, 2000, 100, S / 100, None);
    path
}

fn only_dump(json: &Value) -> &Value {
    let dumps = json["dumps"].as_array().unwrap();
    assert_eq!(dumps.len(), 1, "{dumps:?}");
    &dumps[0]
}

#[test]
fn single_disarms_after_the_first_dump() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let question = question(&["udp port 13", "udp port 14"], "", S / 10, S / 10);
    let all = run(&args(&[&capture], &question, &dir.path().join("all")), &[])
        .1
        .unwrap();
    assert_eq!(
        (&all["triggers"], all["dumps"].as_array().unwrap().len()),
        (&40.into(), 40)
    );
    let single = run(
        &args(&[&capture], &question, &dir.path().join("single")),
        &["--single"],
    )
    .1
    .unwrap();
    assert_eq!(
        only_dump(&single)["trigger_time"],
        all["dumps"][0]["trigger_time"]
    );
    assert_eq!(single["sources"][0]["stored"], 2000, "recording goes on");
}

#[test]
fn further_hits_are_listed_and_do_not_lengthen() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let question = question(&["udp port 13"], "", S, 5 * S / 2);
    let json = run(&args(&[&capture], &question, &dir.path().join("out")), &[])
        .1
        .unwrap();
    // Hits at 0.12, 1.12, … 19.12 s. A window of 2.5 s covers two further hits.
    assert_eq!(
        (&json["triggers"], &json["suppressed"]),
        (&7.into(), &13.into())
    );
    let first = Path::new(json["dumps"][0]["file"].as_str().unwrap()).with_extension("json");
    let sidecar: Value = serde_json::from_slice(&fs::read(first).unwrap()).unwrap();
    assert_eq!(
        (
            &sidecar["suppressed"],
            sidecar["suppressed_hits"].as_array().unwrap().len()
        ),
        (&2.into(), 2)
    );
    assert_eq!(json["dumps"][0]["clipped"], serde_json::json!(["start"]));
    assert_eq!(json["dumps"][6]["clipped"], serde_json::json!(["end"]));
}

/// Dumps beyond `max-dumps` open dumps are refused, counted and reported.
#[test]
fn too_many_dumps_are_refused_aloud() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let question = question(
        &["udp port 13", "udp port 14", "udp port 15"],
        "",
        S / 10,
        S / 2,
    );
    let mut args = args(&[&capture], &question, &dir.path().join("out"));
    args.retain(|a| a != "-q");
    let limit = args
        .iter()
        .position(|a| a.starts_with("max-dumps="))
        .unwrap();
    args[limit] = "max-dumps=2".to_owned();
    let (output, json) = run(&args, &[]);
    let json = json.unwrap();
    assert_eq!(
        (&json["triggers"], &json["suppressed"], &json["refused"]),
        (&40.into(), &20.into(), &20.into())
    );
    assert!(stderr(&output).contains("max-dumps"), "{}", stderr(&output));
}

#[test]
fn limits_stop_the_recording_and_clip_the_window() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let question = question(&["udp port 13"], "", S, 100 * S);
    for (option, value, stored) in [("-c", "700", 700), ("--duration", "5s", 501)] {
        let out = dir.path().join(option);
        let (output, json) = run(&args(&[&capture], &question, &out), &[option, value]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = json.unwrap();
        let source = &json["sources"][0];
        assert_eq!(source["stored"], stored, "{option}");
        assert_eq!(
            source["received"],
            stored + source["filtered"].as_u64().unwrap(),
            "{option}"
        );
        let dump = only_dump(&json);
        assert_eq!(
            (&dump["clipped"], &dump["verdict"]),
            (&serde_json::json!(["start", "stop"]), &"complete".into())
        );
        assert_eq!(dump["packets"], stored);
    }
}

#[test]
fn the_capture_filter_and_the_snap_length_act_before_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let expressions = dir.path().join("filter");
    fs::write(&expressions, "udp port 13 # thirteen\nor udp port 14\n").unwrap();
    let question = question(&["udp port 13"], "", 100 * S, 100 * S);
    let filter_file = expressions.display().to_string();
    for filter in [["-f", "udp port 13 or udp port 14"], ["-F", &filter_file]] {
        let more = [filter[0], filter[1], "-s", "60"];
        let (output, json) = run(
            &args(&[&capture], &question, &dir.path().join(filter[0])),
            &more,
        );
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = json.unwrap();
        let source = &json["sources"][0];
        assert_eq!(
            (&source["stored"], &source["filtered"], &source["cut"]),
            (&40.into(), &1960.into(), &40.into())
        );
        let (packets, _) = read(Path::new(only_dump(&json)["file"].as_str().unwrap()));
        assert_eq!(packets.len(), 40);
        assert!(
            packets
                .iter()
                .all(|p| p.data.len() == 60 && p.wire_len == 100)
        );
    }
}

/// `--format pcap`: ns timestamps, and one link type for each file.
#[test]
fn pcap_has_one_link_type_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("two.pcapng");
    let mut writer = PcapNgWriter::new(
        fs::File::create(&capture).unwrap(),
        &SectionOptions::default(),
    )
    .unwrap();
    for link_type in [LinkType::ETHERNET, LinkType::RAW] {
        let options = FileInterface::new(link_type);
        writer.add_interface(&options).unwrap();
    }
    let ip = [
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 9, 0, 8, 0, 0,
    ];
    let ether = [&[0; 12][..], &[8, 0], &ip].concat();
    for i in 0..10 {
        let data: &[u8] = if i % 2 == 0 { &ether } else { &ip };
        writer
            .packet(
                i % 2,
                1_000_000_000_000_000_001 + i64::from(i),
                60,
                data,
                &PacketOptions::default(),
            )
            .unwrap();
    }
    writer.finish().unwrap();
    let question = question(&["udp port 9"], "udp", S, S);
    let out = dir.path().join("out");
    let json = run(&args(&[&capture], &question, &out), &["--format", "pcap"])
        .1
        .unwrap();
    let dump = only_dump(&json);
    let files = [
        dump["file"].as_str().unwrap(),
        dump["more_files"][0].as_str().unwrap(),
    ];
    for (file, link_type) in files.iter().zip([LinkType::ETHERNET, LinkType::RAW]) {
        let (packets, complete) = read(Path::new(file));
        assert!(complete && packets.len() == 5);
        assert!(packets.iter().all(|p| p.link_type == link_type
            && p.time_ns % 2 == i64::from(link_type == LinkType::ETHERNET)));
        assert_eq!(
            &fs::read(file).unwrap()[..4],
            &[0x4d, 0x3c, 0xb2, 0xa1],
            "ns pcap, little-endian"
        );
    }
    assert_eq!(contents(&out).len(), 3, "two captures and a sidecar");
    // With pcapng the dump has one file, and a note says that libpcap cannot read this file.
    let out = dir.path().join("ng");
    let json = run(&args(&[&capture], &question, &out), &[]).1.unwrap();
    let dump = only_dump(&json);
    assert_eq!(read(Path::new(dump["file"].as_str().unwrap())).0.len(), 10);
    assert!(
        dump["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|n| n.as_str().unwrap().contains("libpcap")),
        "{dump}"
    );
}

/// Two runs into one directory overwrite nothing.
#[test]
fn nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let question = question(&["udp port 13"], "", S / 10, S / 10);
    let out = dir.path().join("out");
    let args = args(&[&capture], &question, &out);
    run(&args, &["--single"]);
    let before = contents(&out);
    run(&args, &["--single"]);
    let after = contents(&out);
    assert_eq!((before.len(), after.len()), (2, 4));
    assert!(before.iter().all(|file| after.contains(file)));
}

/// A full disk, simulated by a limit on the file size: recording continues, the verdict reports the
/// failure, and the partial file stays.
#[test]
fn a_full_disk_loses_the_dump_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    write_capture(&capture, 30_000, 600, 1_000_000, None);
    let out = dir.path().join("out");
    // The shell's limit is in units of 512 bytes or, in some shells, 1024 bytes: 512 KiB or 1 MiB.
    // A dump of a whole window needs more than 3 MiB.
    let script = r#"trap '' XFSZ; ulimit -f 1024; exec "$0" "$@""#;
    let output = Command::new("sh")
        .args([
            "-c", script, PROGRAM, "record", "--json", "--ring", "64MiB", "-r",
        ])
        .arg(&capture)
        .args([
            "--trigger",
            "udp port 60000",
            "--dump",
            "udp",
            "--past",
            "3s",
            "--future",
            "3s",
            "--set",
            "max-dumps=9",
        ])
        .args([
            "--trigger",
            "udp port 13 and greater 600 and ether[42:4] = 12012",
            "-w",
        ])
        .arg(&out)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["sources"][0]["stored"], 30_000, "recording goes on");
    let failed: Vec<&Value> = json["dumps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["verdict"] == "failed")
        .collect();
    assert!(!failed.is_empty(), "{json}");
    for dump in failed {
        let file = dump["file"].as_str().unwrap();
        assert!(
            file.ends_with(".part") && Path::new(file).exists(),
            "{dump}"
        );
        assert!(errors.contains(&format!("unfinished: {file}")), "{errors}");
        let missing = &dump["missing"][0];
        assert_eq!(missing["cause"], "disk");
        // Every matched packet is either written or lost. The window of 3 s before and 3 s after
        // the trigger has 6001 packets.
        let (held, _) = read(Path::new(file));
        assert_eq!(
            held.len() as u64,
            dump["packets"].as_u64().unwrap(),
            "what the part holds is whole"
        );
        let matched = held.len() as u64 + missing["packets"].as_u64().unwrap();
        assert_eq!(matched, 6001, "{dump}");
    }
}

/// Bad arguments give exit code 2, or 1 if a file, a directory or an interface cannot be used.
/// stderr names the wrong or missing option, value or command.
#[test]
fn bad_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let capture = capture.to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], 2, "-i IFACE"),
        (&["-r", capture], 2, "trigger"),
        (&["-r", capture, "udp", "port", "53"], 2, "'udp port 53'"),
        (
            &["-r", capture, "-i", "lo", "--trigger", "udp"],
            2,
            "excludes -",
        ),
        (
            &["-r", capture, "--trigger", "udp", "--ring", "4"],
            2,
            "4GiB",
        ),
        (
            &["-r", capture, "--trigger", "udp", "--ring", "2MiB"],
            2,
            "8 MiB",
        ),
        (
            &["-r", capture, "--trigger", "udp", "-w", "x.pcapng"],
            2,
            "directory",
        ),
        (
            &["-r", capture, "--trigger", "udp", "--past", "ten"],
            2,
            "\"ten\"",
        ),
        (
            &["-r", capture, "--trigger", "udp prt 5"],
            2,
            "\n  udp prt 5\n      ^^^\n",
        ),
        (
            &["-r", capture, "--trigger", "port 70000"],
            2,
            "\n       ^^^^^\n",
        ),
        (
            &["-r", capture, "--trigger", "udp", "--dump", "host $srcIPP"],
            2,
            "$srcIPP",
        ),
        (&["-r", capture, "--trigger", "host $srcIP"], 2, "$srcIP"),
        (
            &[
                "-r",
                capture,
                "--set",
                "rule.a.filter=udp",
                "--set",
                "rule.a.dump=udp prt 5",
            ],
            2,
            "dump of a rule: syntax error",
        ),
        (&["-r", capture, "--set", "rule.a.into=a/b"], 2, "letters"),
        (
            &["-r", capture, "--set", "rule.a.dump=ip"],
            2,
            "rule 'a' needs one of the keys filter",
        ),
        (
            &["-r", capture, "-t", "udp", "--dump", "", "--dump-lua", "x"],
            2,
            "excludes --dump",
        ),
        (
            &["-r", capture, "-t", "udp", "--set", "past"],
            2,
            "KEY=VALUE",
        ),
        (
            &[
                "-r",
                capture,
                "--trigger",
                "udp",
                "--set",
                "manual-dump=$flow",
            ],
            2,
            "$flow",
        ),
        (&["-r", capture, "--trigger", "inbound"], 2, "\n  inbound\n"),
        (
            &["-r", capture, "--trigger", "udp", "--format", "erf"],
            2,
            "pcapng, pcap",
        ),
        (
            &["-r", capture, "--trigger", "udp", "--set", "max-dumps=0"],
            2,
            "65536",
        ),
        (&["-r", capture, "--triger", "udp"], 2, "'--trigger'"),
        (
            &["-r", "/nonexistent", "--trigger", "udp"],
            1,
            "/nonexistent",
        ),
        (&["-i", "nosuch0", "--trigger", "udp"], 1, "nosuch0"),
        (&["-i", "lo", "-i", "lo", "--trigger", "udp"], 2, "-i lo "),
        (&["-i", "generate:flows=x", "--trigger", "udp"], 2, "flows"),
        (
            &["-r", capture, "--trigger", "udp", "-w", "/proc/nosuch"],
            1,
            "/proc/nosuch",
        ),
    ];
    for (args, code, named) in cases {
        let (output, _) = record(args);
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {errors}");
        assert!(errors.contains(named), "{args:?}: {errors}");
        assert!(errors.starts_with("retroscope: "), "{args:?}: {errors}");
        assert!(!errors.contains("panicked"), "{args:?}: {errors}");
    }
}

/// FlowScope's option names and units are accepted.
#[test]
fn the_names_of_flowscope_are_aliases() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let out = dir.path().join("out");
    let (output, json) = record(&[
        "-r",
        capture.to_str().unwrap(),
        "--trigger-expr",
        "udp port 13",
        "--dumper-expr",
        "host $srcIp",
        "--dump-past",
        "1",
        "--dump-future",
        "1",
        "--set",
        "rx-threads=2",
        "--size",
        "1",
        "--path",
        out.to_str().unwrap(),
        "--single",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        only_dump(&json.unwrap())["packets"],
        113,
        "0.12 s before and 1 s after, both ends closed"
    );
}

/// `--size` counts GiB. The size exceeds the memory of any machine, so the program always prints a
/// note about the size. The user does not exist, so the program creates no ring.
#[test]
fn flowscopes_size_is_in_gibibytes() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let (output, _) = record(&[
        "-r",
        capture.to_str().unwrap(),
        "--trigger",
        "udp",
        "--size",
        "2097152",
        "-Z",
        "no-such-user",
        "-w",
        dir.path().to_str().unwrap(),
    ]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(" 2048 TiB "), "{errors}");
    assert!(errors.contains("no-such-user"), "{errors}");
}

/// If frames have VLAN tags, a message advises how to change a trigger that never matched.
#[test]
fn tags_are_hinted_at() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("tagged.pcap");
    let mut writer = retroscope_pcapfile::PcapWriter::new(
        fs::File::create(&capture).unwrap(),
        retroscope_pcapfile::PcapOptions::new(LinkType::ETHERNET),
    )
    .unwrap();
    let frame = [&[0; 12][..], &[0x81, 0, 0, 5, 8, 0, 0x45], &[0; 60]].concat();
    for i in 0..3 {
        writer.record(i, 79, &frame).unwrap();
    }
    writer.finish().unwrap();
    let arguments = [
        "-r",
        capture.to_str().unwrap(),
        "--trigger",
        "ip",
        "--trigger",
        "vlan 5",
        "-w",
        dir.path().to_str().unwrap(),
    ];
    let (output, _) = record(&arguments);
    let errors = stderr(&output);
    assert!(errors.contains("'vlan and (ip)'"), "{errors}");
    assert!(!errors.contains("vlan and (vlan 5)"), "{errors}");
}

/// A pipe becomes silent. SIGINT still ends the recording, and the received packets are dumped.
#[test]
fn a_silent_pipe_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let pipe = dir.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        skip("no mkfifo to make a pipe with");
        return;
    }
    let child = Command::new(PROGRAM)
        .args([
            "record",
            "--json",
            "--ring",
            "8MiB",
            "--trigger",
            "udp port 13",
            "--dump",
            "",
            "--single",
            "--future",
            "100s",
            "-r",
        ])
        .arg(&pipe)
        .arg("-w")
        .arg(dir.path().join("out"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Half of the file, ending inside a record; the pipe stays open.
    let bytes = fs::read(&capture).unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    std::io::Write::write_all(&mut writer, &bytes[..bytes.len() / 2]).unwrap();
    // The file of the first dump appears after the recorder has read the trigger packet.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let out = dir.path().join("out");
    // The recorder also creates a file in the directory to test whether it is writable. So only a
    // name with `.pcapng` is a dump.
    let is_begun = || {
        let entries = fs::read_dir(&out).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name())
            .any(|name| name.to_string_lossy().contains(".pcapng"))
    };
    while !is_begun() {
        assert!(std::time::Instant::now() < deadline, "no dump appears");
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("sh")
            .args(["-c", &format!("kill -INT {pid}")])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        stderr(&output)
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let dump = only_dump(&json);
    assert_eq!(dump["verdict"], "complete");
    assert!(
        dump["clipped"].as_array().unwrap().contains(&"stop".into()),
        "{dump}"
    );
    drop(writer);
}
