//! The output of `filter`: one line for each packet, counts, captures on stdout, and BPF programs.

use std::{
    fs::{self, File},
    io::Read,
    process::{Command, Stdio},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};

use super::support::{TIME_NS, ethernet, filter, run, run_on, section, small_pcap, write};
use crate::support::{skip, stderr, stdout};

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
        skip("there is no tcpdump to compare programs with");
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
