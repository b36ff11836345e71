//! `retroscope filter` as a user runs it: arguments, exit codes, stdout and stderr.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    ByteOrder, InterfaceOptions, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter, Reader,
    Resolution, SectionOptions,
};
use tempfile::TempDir;

/// 2026-11-20T19:15:03.123456789Z.
const TIME_NS: i64 = 1_795_202_103_123_456_789;

const SNAPLEN: u32 = 65_535;

/// `retroscope filter`.
fn filter() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retroscope"));
    command.arg("filter");
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).expect("stdout is text")
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).expect("stderr is text")
}

/// Runs it on `file`; exit code, stdout, stderr.
fn run_on(file: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(filter().arg("-r").arg(file).args(arguments));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// An IPv4 packet with ports, no Ethernet header. `protocol` is 6 or 17.
fn ip(protocol: u8, source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    packet.extend(source_port.to_be_bytes());
    packet.extend(destination_port.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0, 0, 0, 0, 0, 0]);
    packet
}

/// The same behind an Ethernet header.
fn ethernet(protocol: u8, source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend(ip(protocol, source_port, destination_port));
    frame
}

/// A directory with `t.pcap`: three Ethernet frames, TCP to 80, UDP to 53, TCP to 443.
fn small_pcap() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.pcap");
    let options = PcapOptions {
        snaplen: SNAPLEN,
        ..PcapOptions::new(LinkType::ETHERNET)
    };
    let mut writer = PcapWriter::new(File::create(&path).unwrap(), options).unwrap();
    for (index, frame) in [
        ethernet(6, 1000, 80),
        ethernet(17, 1001, 53),
        ethernet(6, 1002, 443),
    ]
    .iter()
    .enumerate()
    {
        let time_ns = TIME_NS + i64::try_from(index).unwrap();
        writer.record(time_ns, 60, frame).unwrap();
    }
    writer.finish().unwrap();
    (directory, path)
}

/// One section of a pcapng file with a frame of each given interface.
fn section(interfaces: &[(&str, LinkType)]) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    for (name, link_type) in interfaces {
        let index = writer
            .add_interface(&InterfaceOptions {
                name: (*name).to_owned(),
                ..InterfaceOptions::new(*link_type)
            })
            .unwrap();
        let frame = if *link_type == LinkType::RAW {
            ip(6, 1, 2)
        } else {
            ethernet(6, 1, 2)
        };
        writer.record(index, TIME_NS, 60, &frame).unwrap();
    }
    writer.finish().unwrap()
}

/// A link type that libpcap cannot filter: Multi-link Frame Relay.
const MFR: LinkType = LinkType(182);

fn write(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// What a record is, in comparable form: interface, ns, wire length, flags, bytes.
type Record = (u16, i64, u32, Option<u32>, Vec<u8>);

/// All records before the end or the first error.
fn records(path: &Path) -> Vec<Record> {
    let mut reader =
        Reader::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.next() {
        let meta = record.meta;
        records.push((
            meta.interface,
            meta.time_ns,
            meta.wire_len,
            meta.flags,
            record.data.to_vec(),
        ));
    }
    records
}

/// A path beside the checkout, or `None` with a loud line where it is absent.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIP: {} is not there; nothing was tested", path.display());
    None
}

/// All captures of the corpus.
fn corpus() -> Option<Vec<PathBuf>> {
    let root = shared("traces")?;
    let mut captures = Vec::new();
    for folder in fs::read_dir(&root).unwrap().map(Result::unwrap) {
        if folder.path().is_dir() {
            captures.extend(
                fs::read_dir(folder.path())
                    .unwrap()
                    .map(|file| file.unwrap().path()),
            );
        }
    }
    captures.retain(|path| path.extension().is_none_or(|extension| extension != "tsv"));
    captures.sort();
    assert!(
        captures.len() > 200,
        "the corpus has {} captures",
        captures.len()
    );
    Some(captures)
}

#[test]
fn one_line_a_packet() {
    let (_directory, path) = small_pcap();
    let (code, out, err) = run_on(&path, &["tcp"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        "2026-11-20T19:15:03.123456789Z IP 10.0.0.1.1000 > 10.0.0.2.80: TCP [S] len 60 captured 54\n\
         2026-11-20T19:15:03.123456791Z IP 10.0.0.1.1002 > 10.0.0.2.443: TCP [S] len 60 captured 54\n"
    );
}

#[test]
fn count_prints_the_number_and_nothing_else() {
    let (_directory, path) = small_pcap();
    for (words, number) in [
        (&["tcp"][..], "2\n"),
        (&["tcp", "port", "80", "or", "udp"], "2\n"),
        (&["--", "udp"], "1\n"),
        (&[], "3\n"),
        (&[""], "3\n"),
        (&["ip[0]", "=", "-1"], "0\n"),
        (&["arp"], "0\n"),
    ] {
        let mut arguments = vec!["--count"];
        arguments.extend(words);
        let got = run_on(&path, &arguments);
        assert_eq!(
            got,
            (Some(0), number.to_owned(), String::new()),
            "{words:?}"
        );
    }
}

#[test]
fn stdin_and_stdout_are_hyphens() {
    let (_directory, path) = small_pcap();
    let output = run(filter()
        .args(["-r", "-", "-w", "-"])
        .stdin(File::open(&path).unwrap()));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, fs::read(&path).unwrap());
}

#[test]
fn a_closed_pipe_is_success() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("long.pcap");
    let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
    for _ in 0..20_000 {
        writer.record(TIME_NS, 54, &ethernet(6, 1, 2)).unwrap();
    }
    fs::write(&path, writer.finish().unwrap()).unwrap();
    for mode in [&[][..], &["-w", "-"]] {
        let mut child = filter()
            .arg("-r")
            .arg(&path)
            .args(mode)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut first).unwrap();
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{mode:?}");
        assert_eq!(stderr(&output), "", "{mode:?}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_exit_2() {
    let (directory, path) = small_pcap();
    let file = path.to_str().unwrap();
    let link = directory.path().join("link.pcap");
    fs::hard_link(&path, &link).unwrap();
    let before = fs::read(&path).unwrap();
    for (arguments, sentence) in [
        (&["tcp"][..], "name a capture file: -r FILE"),
        (&["-r", file, "-w", file], "is the file that is read"),
        (
            &["-r", file, "-w", link.to_str().unwrap()],
            "is the file that is read",
        ),
        (
            &["-r", file, "host $srcIP"],
            "$srcIP needs a trigger packet",
        ),
        (&["-r", file, "$flow"], "$flow needs a trigger packet"),
        (&["-r", file, "$nonsense"], "unknown variable $nonsense"),
        (
            &["-r", file, "tcp prt 80"],
            "syntax error\n  tcp prt 80\n      ^^^\n",
        ),
        (
            &["-d", "tcp prt 80"],
            "syntax error\n  tcp prt 80\n      ^^^\n",
        ),
        (&["-d", "-y", "EN10", "tcp"], "write a name such as EN10MB"),
        (&["-r", file, "-y", "RAW"], "-y"),
        (&["-r", file, "--count", "-w", "x"], "--count"),
        (&["-r", file, "--no-such-flag"], "--no-such-flag"),
    ] {
        let output = run(filter().args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            stderr(&output).contains(sentence),
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
    assert!(err.contains("missing.pcap: No such file"), "{err}");

    let nowhere = missing.join("out.pcap");
    let (code, _, err) = run_on(&path, &["-w", nowhere.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot write"), "{err}");

    let text = write(&directory, "text", b"only words, no packets at all");
    let (code, _, err) = run_on(&text, &[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("not a pcap or pcapng capture"), "{err}");

    let (code, out, err) = run_on(directory.path(), &["--count"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
}

#[test]
fn what_stands_before_damage_counts() {
    let (directory, path) = small_pcap();
    let bytes = fs::read(&path).unwrap();
    let cut = write(&directory, "cut.pcap", &bytes[..bytes.len() - 1]);
    let offset = 24 + 2 * (16 + 54);
    let sentence = format!("cut.pcap: damaged at byte {offset}: ");

    let (code, out, err) = run_on(&cut, &["--count", "ip"]);
    assert_eq!((code, out.as_str()), (Some(1), "2\n"));
    assert!(err.contains(&sentence), "{err}");

    let (code, out, err) = run_on(&cut, &["ip"]);
    assert_eq!((code, out.lines().count()), (Some(1), 2), "{err}");

    let copy = directory.path().join("copy.pcap");
    let (code, _, err) = run_on(&cut, &["-w", copy.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(err.contains(&sentence), "{err}");
    assert_eq!(fs::read(&copy).unwrap(), bytes[..offset]);

    // A header that ends early holds no packet, and a bad expression weighs more than damage.
    let head = write(&directory, "head.pcap", &bytes[..20]);
    let (code, out, _) = run_on(&head, &["--count"]);
    assert_eq!((code, out.as_str()), (Some(1), "0\n"));
    assert_eq!(run_on(&cut, &["--count", "prt 80"]).0, Some(2));
}

#[test]
fn pcap_copies_keep_every_field_of_the_header() {
    let directory = tempfile::tempdir().unwrap();
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        for resolution in [Resolution::Micro, Resolution::Nano] {
            let options = PcapOptions {
                link_type: LinkType::RAW,
                link_type_extra: 0x3400_0000,
                snaplen: 96,
                resolution,
                byte_order,
            };
            let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
            writer.record(TIME_NS, 1500, &ip(6, 1, 2)).unwrap();
            let path = write(&directory, "in.pcap", &writer.finish().unwrap());
            let output = run(filter().arg("-r").arg(&path).args(["-w", "-", "tcp"]));
            assert_eq!(output.stdout, fs::read(&path).unwrap(), "{options:?}");
        }
    }
}

#[test]
fn pcapng_copies_keep_interfaces_of_all_sections() {
    let directory = tempfile::tempdir().unwrap();
    let mut bytes = section(&[("eth0", LinkType::ETHERNET), ("tun0", LinkType::RAW)]);
    let mut second = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    let index = second
        .add_interface(&InterfaceOptions {
            name: "eth1".to_owned(),
            description: "uplink".to_owned(),
            snaplen: 96,
            resolution: Resolution::Micro,
            ..InterfaceOptions::new(LinkType::ETHERNET)
        })
        .unwrap();
    let flags = PacketOptions {
        flags: Some(2),
        ..PacketOptions::default()
    };
    second
        .packet(index, TIME_NS, 9000, &ethernet(17, 5, 6), &flags)
        .unwrap();
    second
        .record(index, TIME_NS, 60, &ethernet(6, 7, 8))
        .unwrap();
    bytes.extend(second.finish().unwrap());
    let path = write(&directory, "in.pcapng", &bytes);
    let out = directory.path().join("out.pcapng");
    let (code, _, err) = run_on(&path, &["-w", out.to_str().unwrap(), "not port 8"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));

    let mut expected = records(&path);
    assert_eq!(expected.len(), 4);
    expected.pop();
    assert_eq!(records(&out), expected);
    let mut reader = Reader::open(&out).unwrap();
    while reader.next().unwrap().is_some() {}
    let interfaces: Vec<_> = reader
        .interfaces()
        .iter()
        .map(|i| {
            (
                i.name.as_str(),
                i.description.as_str(),
                i.link_type,
                i.snaplen,
                i.resolution_ns,
            )
        })
        .collect();
    assert_eq!(
        interfaces,
        [
            ("eth0", "", LinkType::ETHERNET, 0, 1),
            ("tun0", "", LinkType::RAW, 0, 1),
            ("eth1", "uplink", LinkType::ETHERNET, 96, 1000),
        ]
    );
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

    // The interface that can be filtered comes last, behind packets.
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

#[test]
fn a_file_without_interfaces_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(&directory, "empty.pcapng", &section(&[]));
    assert_eq!(
        run_on(&path, &["--count", "tcp"]),
        (Some(0), "0\n".to_owned(), String::new())
    );
    assert_eq!(run_on(&path, &["--count", "tcp tcp"]).0, Some(2));
    let out = directory.path().join("out.pcapng");
    assert_eq!(run_on(&path, &["-w", out.to_str().unwrap()]).0, Some(0));
    assert_eq!(records(&out), []);
}

#[test]
fn programs_are_printed_for_each_link_type() {
    let program = |arguments: &[&str]| {
        let output = run(filter().arg("-d").args(arguments));
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        stdout(&output).to_owned()
    };
    let ethernet_ip = "(000) ldh      [12]\n\
                       (001) jeq      #0x800           jt 2\tjf 3\n\
                       (002) ret      #262144\n\
                       (003) ret      #0\n";
    assert_eq!(program(&["ip"]), ethernet_ip);
    assert_eq!(program(&["-y", "en10mb", "ip"]), ethernet_ip);
    assert_eq!(program(&["-y", "1", "ip"]), ethernet_ip);
    assert_eq!(program(&[]), "(000) ret      #262144\n");
    assert!(program(&["-y", "RAW", "ip"]).starts_with("(000) ldb      [0]\n"));
    assert!(program(&["inbound"]).contains("[type]"));

    let (directory, path) = small_pcap();
    let file = path.to_str().unwrap();
    assert_eq!(
        program(&["-r", file, "ip"]),
        ethernet_ip.replace("262144", "65535")
    );
    let two = write(
        &directory,
        "two.pcapng",
        &section(&[
            ("a", LinkType::ETHERNET),
            ("b", LinkType::RAW),
            ("c", LinkType::ETHERNET),
        ]),
    );
    let text = program(&["-r", two.to_str().unwrap(), "ip"]);
    let headings: Vec<_> = text.lines().filter(|line| !line.starts_with('(')).collect();
    assert_eq!(headings, ["link type EN10MB:", "link type RAW:"]);
}

#[test]
fn programs_are_those_of_tcpdump() {
    let tcpdump = |arguments: &[&str]| Command::new("tcpdump").arg("-d").args(arguments).output();
    if tcpdump(&[]).is_err() {
        eprintln!("SKIP: there is no tcpdump to compare programs with");
        return;
    }
    for arguments in [
        &["tcp port 80 and host 10.0.0.1"][..],
        &["-y", "LINUX_SLL2", "ip6 protochain 17"],
        &["-y", "RAW", "udp[4:2] > 100 and not net 10"],
        &["vlan 5 and pppoes and (port 53 or icmp6)"],
        &["outbound and port 22"],
        &["ip broadcast"],
    ] {
        let ours = run(filter().arg("-d").args(arguments));
        let theirs = tcpdump(arguments).unwrap();
        assert_eq!(stdout(&ours), stdout(&theirs), "{arguments:?}");
    }
}

#[test]
fn copies_of_the_corpus_are_exact() {
    let Some(captures) = corpus() else { return };
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut copied = 0;
    for capture in captures {
        let name = capture.display();
        let (code, _, err) = run_on(&capture, &["-w", out.to_str().unwrap()]);
        if !out.exists() {
            assert_eq!(code, Some(1), "{name}: {err}");
            assert!(Reader::open(&capture).is_err(), "{name}");
            continue;
        }
        let expected = records(&capture);
        // Times of no sense, beyond what 64 bits of nanoseconds hold, are told; all else is exact.
        let beyond = |record: &&Record| record.1 == i64::MAX;
        let times_changed = expected.iter().filter(beyond).count();
        let mut written = records(&out);
        for (ours, theirs) in written.iter_mut().zip(&expected) {
            if theirs.1 == i64::MAX {
                ours.1 = i64::MAX;
            }
        }
        assert!(written == expected, "{name} differs");
        let told = err.contains(&format!(
            "{times_changed} packets have time stamps that cannot"
        ));
        assert_eq!(told, times_changed > 0, "{name}: {err}");
        let damaged = err.contains("damaged at byte") || err.contains("unsupported");
        assert_eq!(code, Some(i32::from(damaged)), "{name}: {err}");
        fs::remove_file(&out).unwrap();
        copied += 1;
    }
    assert!(copied > 200, "{copied}");
}

#[test]
fn every_capture_of_the_corpus_can_be_searched() {
    let Some(captures) = corpus() else { return };
    for capture in captures {
        let (code, out, err) = run_on(&capture, &["tcp or udp"]);
        assert!(
            matches!(code, Some(0..=2)),
            "{}: {code:?} {err}",
            capture.display()
        );
        let is_quiet = err.is_empty() || err.contains("do not match");
        assert_eq!(code == Some(0), is_quiet, "{}: {err}", capture.display());
        assert!(code != Some(2) || out.is_empty(), "{}", capture.display());
        let (count_code, number, _) = run_on(&capture, &["--count", "tcp or udp"]);
        assert_eq!(count_code, code, "{}", capture.display());
        if code != Some(2) {
            assert_eq!(
                number,
                format!("{}\n", out.lines().count()),
                "{}",
                capture.display()
            );
        }
    }
}

#[test]
fn random_rows_of_filters_expected_agree() {
    let (Some(table), Some(root)) = (shared("filters-expected.tsv"), shared("")) else {
        return;
    };
    let table = fs::read_to_string(table).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect())
        .collect();
    let seed = std::env::var("RETROSCOPE_TEST_SEED").map_or_else(
        |_| fastrand::u64(..),
        |seed| seed.parse().expect("the seed is a number"),
    );
    eprintln!("RETROSCOPE_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    for _ in 0..200 {
        let row = &rows[random.usize(..rows.len())];
        let [trace, expression, expected] = row[..] else {
            panic!("three columns: {row:?}")
        };
        let path = root.join(trace);
        let words: Vec<_> = if random.bool() {
            expression.split(' ').collect()
        } else {
            vec![expression]
        };
        let mut arguments = vec!["--count", "--"];
        arguments.extend(&words);
        let (code, text, err) = run_on(&path, &arguments);
        let agrees = match expected {
            "error" => code == Some(2) && text.is_empty() && !err.is_empty(),
            "rejects-all" => text == "0\n" || code == Some(2),
            number => text == format!("{number}\n") && matches!(code, Some(0 | 1)),
        };
        assert!(
            agrees,
            "{trace}\t{expression}\texpected {expected}, got {code:?} {text:?} {err}"
        );
        let Ok(number) = expected.parse::<usize>() else {
            continue;
        };
        arguments.splice(0..1, ["-w", out.to_str().unwrap()]);
        run_on(&path, &arguments);
        let written = records(&out);
        assert_eq!(written.len(), number, "{trace}\t{expression}");
        let mut all = records(&path).into_iter();
        let in_order = written
            .iter()
            .all(|record| all.any(|other| other == *record));
        assert!(
            in_order,
            "{trace}\t{expression}: other packets than those of the file"
        );
    }
}
