//! A real Suricata runs next to the recorder on the same interface, and the packets of its alerts
//! are dumped.
//!
//! Needs suricata, which `scripts/suricata.sh` installs. Without suricata the test prints `SKIP:`,
//! except in CI (the variable `CI`), where suricata is required.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    marked::{Dumped, packets},
    namespace::Namespace,
    recorder::Recorder,
    shared,
    traffic::{Sender, tagged, udp},
};

/// One rule each for TCP, UDP, ICMP and packets in a VLAN, with the numbers 1 to 4. `tcp-pkt`
/// matches TCP content in each packet. In streams, Suricata inspects chunks of 2,560 bytes, and
/// attributes a match to the last packet of the chunk.
const RULES: &str = r#"
alert tcp-pkt any any -> any any (msg:"tcp"; flow:established; content:"retroscope over TCP"; sid:1; rev:1;)
alert udp any any -> any any (msg:"udp"; content:"retroscope over UDP"; sid:2; rev:1;)
alert icmp any any -> any any (msg:"icmp"; itype:8; content:"retroscope over ICMP"; sid:3; rev:1;)
alert udp any any -> any 4789 (msg:"vlan"; content:"retroscope in a VLAN"; sid:4; rev:1;)
"#;

/// Suricata's configuration. Alerts go to the recorder's socket, and together with their packets to
/// a file.
const CONFIGURATION: &str = r#"%YAML 1.1
---
vars:
  address-groups: { HOME_NET: any, EXTERNAL_NET: any }
default-rule-path: DIR
rule-files: [test.rules]
default-log-dir: DIR
outputs:
  - eve-log:
      enabled: yes
      filetype: unix_stream
      filename: DIR/alerts.sock
      community-id: yes
      types: [alert: { metadata: { flow: yes } }, flow]
  - eve-log:
      enabled: yes
      filetype: regular
      filename: packets.json
      types: [alert: { packet: yes }]
logging:
  default-log-level: notice
  outputs: [console: { enabled: yes }]
af-packet:
  - interface: v1
    cluster-id: 99
    cluster-type: cluster_flow
    defrag: no
    use-mmap: yes
    ring-size: 2048
    checksum-checks: no
stream: { checksum-validation: no, midstream: no }
unix-command: { enabled: no }
"#;

/// A running Suricata. It is killed when the value is dropped.
struct Suricata(Child);

impl Suricata {
    /// Starts Suricata and waits until it captures.
    fn start(namespace: &Namespace, folder: &Path) -> Self {
        let at = |name: &str| folder.join(name);
        let configuration = CONFIGURATION.replace("DIR", &folder.display().to_string());
        fs::write(at("suricata.yaml"), configuration).unwrap();
        fs::write(at("test.rules"), RULES).unwrap();
        let mut command = Command::new("suricata");
        command.arg("-c").arg(at("suricata.yaml"));
        command.args(["--af-packet=v1", "-l"]).arg(folder);
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        command.stdout(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let suricata = Self(child);
        let mut said = Vec::new();
        loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("suricata ended: {said:#?}"));
            said.push(line);
            if said
                .last()
                .is_some_and(|line| line.contains("Engine started"))
            {
                break;
            }
        }
        // Keep reading Suricata's output, because a full pipe would block Suricata.
        std::thread::spawn(move || lines.for_each(drop));
        suricata
    }

    /// Stops Suricata by SIGINT. Before its end, Suricata reports open flows and pending events.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Suricata {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether Suricata is installed.
fn is_installed() -> bool {
    let version = Command::new("suricata").arg("-V").output();
    if version.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "suricata is not installed: scripts/suricata.sh does that"
    );
    eprintln!("SKIP: suricata is not installed (scripts/suricata.sh)");
    false
}

/// An IPv4 frame of protocol `proto` from 10.0.0.`from` to 10.0.0.`to`.
fn ip(proto: u8, from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = udp(from, 0, 0, &vec![0; payload.len()]);
    frame.truncate(14 + 20);
    let length = u16::try_from(20 + payload.len()).unwrap();
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[23] = proto;
    frame[30..34].copy_from_slice(&[10, 0, 0, to]);
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A segment of a connection from port 40000 of host 1 to port 80 of host 2, or back.
fn tcp(is_back: bool, seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let (mut ports, mut hosts) = ([40_000_u16, 80], [1, 2]);
    if is_back {
        ports.reverse();
        hosts.reverse();
    }
    let mut segment: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    ip(6, hosts[0], hosts[1], &segment)
}

/// The frames that the test sends, all different.
fn traffic() -> Vec<Vec<u8>> {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let text = b"GET / retroscope over TCP\r\n";
    let behind = 101 + u32::try_from(text.len()).unwrap();
    let echo = [&[8, 0, 0, 0, 0, 7, 0, 1][..], b"retroscope over ICMP"].concat();
    let vlan = [(0x8100, 42)];
    vec![
        udp(9, 53, 9, b"before"),
        tcp(false, 100, 0, SYN, &[]),
        tcp(true, 500, 101, SYN | ACK, &[]),
        tcp(false, 101, 501, ACK, &[]),
        tcp(false, 101, 501, ACK | 8, text),
        tcp(true, 501, behind, ACK, &[]),
        tcp(true, 501, behind, ACK | 8, b"an answer"),
        tcp(false, behind, 510, ACK, &[]),
        udp(3, 5000, 6000, b"the first of its flow"),
        udp(3, 5000, 6000, b"retroscope over UDP"),
        ip(1, 4, 5, &echo),
        // Two flows that differ only in their tags.
        udp(6, 7000, 4789, b"no retroscope without a VLAN"),
        tagged(&udp(6, 7000, 4789, b"first in the VLAN"), &vlan),
        tagged(&udp(6, 7000, 4789, b"retroscope in a VLAN"), &vlan),
        udp(9, 53, 9, b"behind"),
    ]
}

/// The sent frame of a packet in Suricata's alert. The packet may lack the VLAN tag, because the
/// kernel removed it.
fn sent_as<'f>(sent: &'f [Vec<u8>], packet: &[u8]) -> &'f Vec<u8> {
    let is_it = |frame: &&Vec<u8>| {
        let plain = [&frame[..12], &frame[16..]].concat();
        let is_tagged = frame[12..14] == [0x81, 0];
        **frame == packet || (is_tagged && plain == packet)
    };
    sent.iter().find(is_it).expect("it was sent")
}

/// For each of Suricata's alerts, one dump contains the alert's packet, byte for byte and marked.
/// This dump contains all packets of the alert's flow, and of no other flow.
#[test]
fn the_frame_of_each_alert_is_dumped_and_marked() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("suricata") else {
        return;
    };
    if !is_installed() {
        return;
    }
    let folder = TempDir::with_prefix("retroscope-suricata-").unwrap();
    let socket = folder.path().join("alerts.sock");
    let from = format!(
        "-i v1 --ring 128MiB --past 20s --future 100ms --alerts unix:{}",
        socket.display()
    );
    let recorder = Recorder::start(&namespace, &from);
    let suricata = Suricata::start(&namespace, folder.path());
    let sent = traffic();
    let mut sender = Sender::new(&namespace, "v0");
    sent.iter().for_each(|frame| sender.send(frame));
    recorder.dumps(4);
    suricata.end();
    let outcome = recorder.stop();
    outcome.expect_code(0);

    let log = fs::read_to_string(folder.path().join("packets.json")).unwrap();
    let alerts: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut numbers: Vec<u64> = alerts
        .iter()
        .filter_map(|it| it["alert"]["signature_id"].as_u64())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4], "{log}");
    let dumps: Vec<Vec<Dumped>> = outcome
        .dumps()
        .iter()
        .map(|dump| packets(&crate::capture::path(dump)))
        .collect();
    for alert in &alerts {
        let packet = STANDARD.decode(alert["packet"].as_str().unwrap()).unwrap();
        let frame = sent_as(&sent, &packet);
        let is_marked = |packet: &&Dumped| packet.is_marked && packet.data == *frame;
        let mut with = dumps
            .iter()
            .filter(|dump| dump.iter().any(|it| is_marked(&it)));
        let (Some(dump), None) = (with.next(), with.next()) else {
            panic!("no dump has the frame of {alert} marked: {dumps:?}");
        };
        let number = alert["alert"]["signature_id"].as_u64().unwrap();
        let flow = match number {
            1 => &sent[1..8],
            2 => &sent[8..10],
            3 => &sent[10..11],
            _ => &sent[12..14],
        };
        let dumped: Vec<&Vec<u8>> = dump.iter().map(|packet| &packet.data).collect();
        assert_eq!(dumped, flow.iter().collect::<Vec<_>>(), "alert {number}");
    }
    let told = &outcome.json["alerts"];
    assert_eq!(
        (
            &told["frames_found"],
            &told["unmatched"],
            &told["lines"]["torn"]
        ),
        (&4.into(), &0.into(), &0.into()),
        "{told}"
    );
    assert_eq!(told["other_community_id"], 0, "{told}");
}
