//! `record --module` as a user runs it: the example modules on real captures, and errors of wrong
//! modules.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use retroscope_packet::{LinkType, parse};
use retroscope_pcapfile::CaptureReader;
use serde_json::Value;

use crate::support::PROGRAM;

/// Result of a run: exit code, messages, summary, and the packets of each dump.
#[derive(Debug)]
struct Run {
    code: i32,
    words: String,
    json: Value,
    dumps: Vec<Vec<Vec<u8>>>,
}

/// Runs `record` with a module on a capture.
fn record(capture: &Path, module: &Path, arguments: &[&str]) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .args(["record", "--json", "-q", "-r"])
        .arg(capture)
        .arg("--module")
        .arg(module)
        .args(arguments)
        .arg("-w")
        .arg(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let last = stdout.lines().last();
    let json: Value = last.map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
    let dumps = json["dumps"].as_array().into_iter().flatten();
    let dumps = dumps.map(|dump| {
        let mut reader = CaptureReader::open(Path::new(dump["file"].as_str().unwrap())).unwrap();
        let mut packets = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            packets.push(record.data.to_vec());
        }
        packets
    });
    Run {
        code: output.status.code().unwrap(),
        words: String::from_utf8(output.stderr).unwrap(),
        dumps: dumps.collect(),
        json,
    }
}

fn examples() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../examples/modules"]
        .iter()
        .collect()
}

/// Path of a real capture. `None`, with a message, if the file is missing.
fn real(name: &str) -> Option<PathBuf> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../../shared/traces", name]
        .iter()
        .collect();
    if !path.exists() {
        eprintln!("SKIPPED: no capture {}", path.display());
        return None;
    }
    Some(path)
}

/// Runs a module text on a capture of 1,000 packets of 10 flows.
fn run_text(text: &str, arguments: &[&str]) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let (capture, module) = (
        directory.path().join("in.pcap"),
        directory.path().join("own.lua"),
    );
    fs::write(&module, text).unwrap();
    let made = Command::new(PROGRAM)
        .args("generate --flows 10 --rate 1kpps --duration 1s -w".split(' '))
        .arg(&capture)
        .output()
        .unwrap();
    assert!(made.status.success());
    record(&capture, &module, arguments)
}

fn ports(packet: &[u8]) -> [u16; 2] {
    let ports = parse(LinkType::ETHERNET, packet).transport.unwrap();
    [ports.src, ports.dst]
}

#[test]
fn every_example_is_run_here() {
    let files = fs::read_dir(examples()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    let run_here = [
        "live-statistician.lua",
        "ndpi.lua",
        "noop.lua",
        "quic-migration.lua",
        "shunt-tls.lua",
        "sip-rtp.lua",
        "ttl.lua",
        // A recipe in docs/cookbook.md uses this module, and the test of the cookbook runs the
        // recipe.
        "unanswered-syn.lua",
    ];
    assert_eq!(names, run_here);
}

#[test]
fn noop_sees_all_packets() {
    let Some(capture) = real("apps/nd-sip.pcap") else {
        return;
    };
    let run = record(&capture, &examples().join("noop.lua"), &[]);
    assert_eq!((run.code, run.dumps.len()), (0, 0), "{run:?}");
    let module = &run.json["modules"][0];
    let numbers = ["packets", "unattributed", "started", "live", "faults"];
    let numbers = numbers.map(|name| module[name].as_u64().unwrap());
    assert_eq!(numbers, [112, 0, 4, numbers[3], 0], "{module}");
}

/// A call through a registrar. The signalling goes to port 5060, and the media use the ports that
/// the signalling names.
#[test]
fn sip_rtp_dumps_the_media_that_sdp_names() {
    let Some(capture) = real("apps/nd-sip.pcap") else {
        return;
    };
    let run = record(
        &capture,
        &examples().join("sip-rtp.lua"),
        &["--past", "60s"],
    );
    assert_eq!((run.code, run.dumps.len()), (0, 3), "{run:?}");
    let mut seen = BTreeMap::new();
    for packet in run.dumps.iter().flatten() {
        *seen.entry(ports(packet)).or_insert(0) += 1;
    }
    // Ports of signalling, RTP and RTCP.
    for pair in [[5060, 5060], [30_000, 40_392], [30_001, 40_393]] {
        assert!(seen.get(&pair).is_some_and(|count| *count > 0), "{seen:?}");
    }
}

/// Text that is no valid address never becomes part of a filter. The module still requests the
/// dumps of all streams.
#[test]
fn sip_rtp_takes_addresses_only() {
    let Some(capture) = real("apps/nd-sip.pcap") else {
        return;
    };
    let bytes = fs::read(capture).unwrap();
    let named = b"c=IN IP4 192.168.1.2";
    let at = bytes
        .windows(named.len())
        .position(|window| window == named);
    let address = at.unwrap() + "c=IN IP4 ".len();
    for wrong in ["cafecafecaf", "0.0.0.0/000", "1.1) or ip "] {
        let mut bytes = bytes.clone();
        bytes[address..address + wrong.len()].copy_from_slice(wrong.as_bytes());
        let directory = tempfile::tempdir().unwrap();
        let changed = directory.path().join("changed.pcap");
        fs::write(&changed, bytes).unwrap();
        let run = record(&changed, &examples().join("sip-rtp.lua"), &[]);
        // The capture also has retransmissions of the packet that the test changes. The
        // retransmissions stay unchanged, so the module must still request all three dumps.
        assert_eq!((run.code, run.dumps.len()), (0, 3), "{wrong}: {run:?}");
        assert_eq!(run.json["unfilled"], 0, "{wrong}: {}", run.json);
    }
}

/// The packets of one server arrive with two times to live, 104 and 57. The module must dump that
/// flow, with packets of both kinds.
#[test]
fn ttl_finds_packets_that_came_another_way() {
    let Some(capture) = real("apps/nd-stun.pcap") else {
        return;
    };
    let run = record(
        &capture,
        &examples().join("ttl.lua"),
        &["--past", "1000s", "--future", "1000s"],
    );
    assert_eq!((run.code, run.dumps.len()), (0, 1), "{run:?}");
    let ttls = |packets: &[Vec<u8>]| -> Vec<u8> {
        let from_server = packets.iter().filter(|packet| ports(packet)[0] == 3478);
        let mut ttls: Vec<u8> = from_server.map(|packet| packet[22]).collect();
        ttls.sort_unstable();
        ttls.dedup();
        ttls
    };
    let found = ttls(&run.dumps[0]);
    assert!(found.contains(&57) && found.contains(&104), "{found:?}");
    assert!(
        run.dumps[0]
            .iter()
            .all(|packet| ports(packet).contains(&49_153))
    );
}

/// In real QUIC traffic the module must request no dump. Then the test changes the client's port in
/// the second half of the packets of one connection ID, as if a NAT rebinds the client. The module
/// must dump that connection.
#[test]
fn quic_migration_finds_a_client_that_moves() {
    let Some(capture) = real("apps/zk-zerortt.pcap") else {
        return;
    };
    let module = examples().join("quic-migration.lua");
    let run = record(&capture, &module, &[]);
    assert_eq!((run.code, run.dumps.len()), (0, 0), "{run:?}");
    assert_eq!(run.json["modules"][0]["started"], 20);
    let mut bytes = fs::read(&capture).unwrap();
    // Positions in the file of the packets to port 443, by QUIC destination connection ID.
    let mut of_connection: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let mut reader = CaptureReader::open(&capture).unwrap();
    let mut places = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let parsed = parse(LinkType::ETHERNET, record.data);
        let payload = parsed.payload(record.data).unwrap_or_default();
        if parsed.transport.is_some_and(|ports| ports.dst == 443) && payload.len() > 20 {
            let start = if payload[0] & 0x80 != 0 { 6 } else { 1 };
            let id = payload[start..start + 8].to_vec();
            places.push((id, record.data.to_vec()));
        }
    }
    for (id, data) in places {
        let at = bytes.windows(data.len()).position(|window| window == data);
        of_connection.entry(id).or_default().push(at.unwrap());
    }
    let most = of_connection.into_values().max_by_key(Vec::len).unwrap();
    assert!(most.len() > 3, "{most:?}");
    for at in &most[most.len() / 2..] {
        let is_v6 = bytes[at + 12] == 0x86;
        let port = at + if is_v6 { 54 } else { 34 };
        bytes[port..port + 2].copy_from_slice(&6_000_u16.to_be_bytes());
    }
    let directory = tempfile::tempdir().unwrap();
    let moved = directory.path().join("moved.pcap");
    fs::write(&moved, bytes).unwrap();
    let run = record(&moved, &module, &["--past", "1000s", "--future", "1000s"]);
    assert_eq!((run.code, run.dumps.len()), (0, 1), "{run:?}");
    assert!(run.words.contains(" 6000 now"), "{}", run.words);
    let moved = run.dumps[0]
        .iter()
        .filter(|packet| ports(packet)[0] == 6_000);
    assert_eq!(moved.count(), most.len() - most.len() / 2);
    assert!(
        run.dumps[0]
            .iter()
            .any(|packet| ports(packet) == [443, 6_000] || ports(packet)[0] != 6_000)
    );
}

/// The module reports one active flow during a registration, and two flows during a later call. The
/// test checks the first reports only, because `record` prints at most 50 notices in 10 s.
#[test]
fn live_statistician_tells_flows_by_interval() {
    let Some(capture) = real("apps/nd-sip.pcap") else {
        return;
    };
    let run = record(&capture, &examples().join("live-statistician.lua"), &[]);
    assert_eq!((run.code, run.dumps.len()), (0, 0), "{run:?}");
    let lines: Vec<&str> = run.words.lines().collect();
    let first = "live-statistician.lua: 1 active flows of 1, 0 over, 0 packets/s, 0.002 Mbit/s";
    assert!(lines[0].ends_with(first), "{lines:?}");
    assert!(
        lines[1].ends_with("17 192.168.1.2 5060 212.242.33.35 5060"),
        "{lines:?}"
    );
    let two = lines
        .iter()
        .position(|line| line.contains("2 active flows of 2, 0 over"));
    let two = two.expect("the call is shown");
    assert!(
        lines[two + 1].ends_with("17 192.168.1.2 5060 200.68.120.81 5060"),
        "{lines:?}"
    );
    assert!(
        lines[two + 2].ends_with("17 192.168.1.2 5060 212.242.33.35 5060"),
        "{lines:?}"
    );
}

/// Received, stored and shed packets of the first source.
fn intake(run: &Run) -> [u64; 3] {
    let source = &run.json["sources"][0];
    let counts = [
        &source["received"],
        &source["stored"],
        &source["lost"]["shed"],
    ];
    let counts = counts.map(|count| count.as_u64().unwrap());
    assert_eq!(counts[0], counts[1] + counts[2], "{source}");
    counts
}

/// The recorder stores each flow up to and including the packet at which the module shunts the
/// flow. The result is the same for all tested values of `analyzers`. A flow that triggers is
/// exempt.
#[test]
fn shunted_flows_end_with_the_packet_that_shunts_them() {
    let module = "
        local m = { stateType = 'uint32_t packets;' }
        function m.handlePacket(key, state, pkt)
            state.packets = state.packets + 1
            if state.packets == 5 then pkt:shunt() end
        end
        return m";
    for who in ["auto", "1", "inline"] {
        let all = [
            "--set",
            &format!("analyzers={who}"),
            "--trigger",
            "udp",
            "--dump",
            "",
        ];
        let window = ["--past", "1h", "--future", "1h", "--single"];
        let run = run_text(module, &[&all[..2], &window].concat());
        assert_eq!((run.code, intake(&run)), (0, [1000, 50, 950]), "{run:?}");
        // The first packet of every flow triggers, so every flow is exempt.
        let run = run_text(module, &[&all[..], &window].concat());
        assert_eq!((run.code, intake(&run)), (0, [1000, 1000, 0]), "{run:?}");
        let by_port = ["--trigger", "port 9739", "--dump", ""];
        let run = run_text(module, &[&all[..2], &by_port, &window].concat());
        assert_eq!((run.code, intake(&run)), (3, [1000, 145, 855]), "{run:?}");
        let missing = &run.json["dumps"][0]["missing"][0];
        assert_eq!(missing["cause"], "shed", "{missing}");
        assert_eq!(missing["packets"], 855, "{missing}");
        assert_eq!(missing["by"]["shunt"], 855, "{missing}");
        assert_eq!(run.json["sources"][0]["shed"]["shunt"], 855);
        let of_trigger = run.dumps[0].iter().filter(|it| ports(it).contains(&9739));
        assert_eq!((run.dumps[0].len(), of_trigger.count()), (145, 100));
    }
}

/// The module sheds packets of a TLS connection only after both sides have sent a handshake and
/// data. The recorder keeps packets with SYN, FIN or RST, and all packets of other protocols.
#[test]
fn shunt_tls_keeps_handshakes() {
    let Some(capture) = real("large/mix-a.pcap") else {
        return;
    };
    let everything = ["--trigger", "icmp", "--dump", "", "--single"];
    let window = ["--past", "1h", "--future", "1h"];
    let run = record(
        &capture,
        &examples().join("shunt-tls.lua"),
        &[&everything[..], &window].concat(),
    );
    let [received, stored, shed] = intake(&run);
    assert!(shed > received / 10 && run.code == 3, "{:?}", run.json);
    assert_eq!(run.dumps[0].len() as u64, stored);
    // By pair of ports and direction: whether a TLS handshake and whether TLS data were seen.
    let mut seen = BTreeMap::<[u16; 2], [[bool; 2]; 2]>::new();
    // All packets, and whether the module may shed each.
    let mut all = Vec::new();
    let mut reader = CaptureReader::open(&capture).unwrap();
    while let Some(record) = reader.next().unwrap() {
        let parsed = parse(LinkType::ETHERNET, record.data);
        let payload = parsed.payload(record.data).unwrap_or_default();
        let may_be_shed = parsed.transport.is_some_and(|ends| {
            let pair = [ends.src.min(ends.dst), ends.src.max(ends.dst)];
            let flow = seen.entry(pair).or_default();
            let is_tail = *flow == [[true; 2]; 2];
            // A TLS record may follow other records in the segment.
            let side = &mut flow[usize::from(ends.src > ends.dst)];
            for (of, record) in side.iter_mut().zip([[22, 3], [23, 3]]) {
                *of |= payload.windows(2).any(|two| two == record);
            }
            is_tail && parsed.tcp_flags.is_some_and(|flags| flags & 7 == 0)
        });
        all.push((record.meta.time_ns, record.data.to_vec(), may_be_shed));
    }
    // A dump is in order of time.
    all.sort_by_key(|(time_ns, ..)| *time_ns);
    let mut kept = run.dumps[0].iter().peekable();
    all.retain(|(_, data, _)| kept.next_if(|packet| *packet == data).is_none());
    assert_eq!((all.len() as u64, kept.count()), (shed, 0));
    assert!(all.iter().all(|(.., may_be_shed)| *may_be_shed));
}

#[test]
fn ndpi_names_protocols() {
    let Some(capture) = real("apps/nd-sip.pcap") else {
        return;
    };
    let module = examples().join("ndpi.lua");
    let refused = record(&capture, &module, &[]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let run = record(&capture, &module, &["--set", "lua-trusted=true"]);
    if run.words.contains("libndpi.so.4.2: cannot open") {
        eprintln!("SKIPPED: no libndpi.so.4.2 here (Debian's libndpi4.2)");
        return;
    }
    assert_eq!((run.code, run.dumps.len()), (0, 2), "{run:?}");
    for name in ["SIP", "RTP", "RTCP"] {
        assert!(
            run.words.contains(&format!(" speaks {name}\n")),
            "{}",
            run.words
        );
    }
    assert!(
        run.dumps
            .iter()
            .flatten()
            .all(|packet| ports(packet) == [5060, 5060])
    );
}

/// Each wrong module gives exit code 2 and no summary. If a line of the module is wrong, the
/// message names this line.
#[test]
fn wrong_modules_are_refused_with_their_line() {
    let head = "local m = {}\nfunction m.handlePacket() end\n";
    for (text, expected) in [
        ("return 1".to_owned(), "own.lua: returns number"),
        ("local m = {\nreturn m".to_owned(), "own.lua:2: "),
        (
            format!("{head}m.stateType = 'struct {{ void *p; }}'\nreturn m"),
            "own.lua:3: stateType: 'void'",
        ),
        (
            format!("{head}m.stateType = 'int8_t a;'\nm.defaultState = {{ b = 1 }}\nreturn m"),
            "own.lua:4: stateType has no field 'b'",
        ),
        (
            format!("{head}m.checkExpiry = true\nreturn m"),
            "own.lua:3: checkExpiry should be a function",
        ),
        (format!("{head}error('no')\nreturn m"), "own.lua:3: no"),
    ] {
        let run = run_text(&text, &[]);
        assert_eq!((run.code, &run.json), (2, &Value::Null), "{text}: {run:?}");
        assert!(run.words.contains(expected), "{text}: {}", run.words);
    }
    let missing = record(Path::new("/dev/null"), Path::new("/nowhere.lua"), &[]);
    assert!(
        missing.code != 0 && missing.words.contains("/nowhere.lua"),
        "{missing:?}"
    );
}

#[test]
fn a_module_that_fails_is_told_and_the_recording_goes_on() {
    for (condition, faults, code, disabled) in [
        ("packets == 500", 1, 1, 0),
        ("packets >= 500 and packets % 10 == 0", 2, 1, 1),
        ("false", 0, 0, 0),
    ] {
        let text = format!(
            "local m, packets = {{}}, 0
             function m.handlePacket()
                 packets = packets + 1
                 if {condition} then error('at ' .. packets) end
             end
             return m"
        );
        let run = run_text(&text, &["--trigger", "udp"]);
        assert_eq!(run.code, code, "{run:?}");
        let module = &run.json["modules"][0];
        let number = |name: &str| module[name].as_u64().unwrap();
        assert_eq!((number("faults"), number("disabled")), (faults, disabled));
        assert_eq!(number("packets") + number("lost"), 1000, "{module}");
        assert_eq!(number("lost") > 0, faults > 0);
        assert_eq!(run.words.contains("own.lua:4: at 500"), faults > 0);
        // Rules and dumps work whether or not the module failed.
        assert!(!run.dumps.is_empty());
        assert_eq!(run.json["analyzers"]["analyzed"], 1000);
    }
}

/// Ten flows request a dump each. With `maxDumperRules = 2` only two dumps may be open, so eight
/// requests are suppressed. With `maxDumperRules = 20` all ten dumps start.
#[test]
fn dumps_are_limited_by_the_module() {
    let text = "return {
        maxDumperRules = 2,
        handlePacket = function(key, state, pkt, isFirst) return isFirst end,
        buildPacketFilter = function(key) return 'host ' .. key:addr_a() .. ' and port ' .. key:port_a() end,
    }";
    let run = run_text(text, &["--future", "10s"]);
    assert_eq!(run.dumps.len(), 2, "{run:?}");
    assert_eq!(run.json["suppressed_by"]["max-dumps"], 8, "{}", run.json);
    let text = text.replace("= 2", "= 20");
    let run = run_text(&text, &["--future", "10s"]);
    assert_eq!(run.dumps.len(), 10, "{run:?}");
    let packets: usize = run.dumps.iter().map(Vec::len).sum();
    assert_eq!(packets, 1000);
}

/// A filter that a module builds is checked like any dump expression. A refusal names the module.
#[test]
fn wrong_filters_are_refused() {
    let text = "return {
        handlePacket = function(key, state, pkt, isFirst) return isFirst end,
        buildPacketFilter = function(key) return 'port nowhere' end,
    }";
    let run = run_text(text, &[]);
    assert_eq!(run.dumps.len(), 0, "{run:?}");
    assert_eq!(run.json["unfilled"], 10, "{}", run.json);
    assert!(
        run.words.contains("own.lua") && run.words.contains("'nowhere' is a name"),
        "{}",
        run.words
    );
}
