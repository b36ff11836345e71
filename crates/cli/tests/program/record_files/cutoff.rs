//! `record --cutoff`: kept packets of flows, and the report of shed packets.

use std::{collections::BTreeMap, fs, path::Path};

use retroscope_packet::{LinkType, parse};
use retroscope_pcapfile::{
    FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter, SectionOptions,
};
use serde_json::Value;

use super::{oracle::read, record};
use crate::support::stderr;

const MS: i64 = 1_000_000;
/// Number of packets of each of the three flows, whose source ports are 1000, 1001 and 1002.
const PACKETS: u16 = 100;

/// Three flows take turns, with a packet of 1000 payload bytes each millisecond. The payload of the
/// second flow's 6th packet begins with U.
fn capture(path: &Path) {
    let file = fs::File::create(path).unwrap();
    let mut writer = PcapNgWriter::new(file, &SectionOptions::default()).unwrap();
    let mut interface = FileInterface::new(LinkType::ETHERNET);
    interface.name = "eth0".to_owned();
    writer.add_interface(&interface).unwrap();
    for number in 0..3 * PACKETS {
        let flow = number % 3;
        let mut data = vec![0; 12];
        data.extend([8, 0, 0x45, 0]);
        data.extend(1028_u16.to_be_bytes());
        data.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        data.extend((1000 + flow).to_be_bytes());
        data.extend([0, 9]);
        data.extend(1008_u16.to_be_bytes());
        data.extend([0, 0]);
        let text = if (flow, number / 3) == (1, 5) {
            b'U'
        } else {
            b'x'
        };
        data.resize(data.len() + 1000, text);
        let time_ns = i64::from(number) * MS;
        let options = PacketOptions::default();
        writer.packet(0, time_ns, 1042, &data, &options).unwrap();
    }
    writer.finish().unwrap();
}

/// Records the capture. If it starts a dump, the dump contains all packets of its window. Returns
/// the exit code, the summary, and the number of dumped packets by source port.
fn kept(more: &[&str]) -> (Option<i32>, Value, BTreeMap<u16, usize>) {
    kept_with("", more)
}

/// Like [`kept`], but the dump contains only the packets that match `dump`.
fn kept_with(dump: &str, more: &[&str]) -> (Option<i32>, Value, BTreeMap<u16, usize>) {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("in.pcap"), dir.path().join("out"));
    capture(&path);
    let [path, out] = [&path, &out].map(|path| path.to_str().unwrap());
    let args = [
        "-q",
        "-r",
        path,
        "-w",
        out,
        "--trigger",
        "udp[8] = 0x55",
        "--dump",
        dump,
    ];
    let (output, json) = record(&[&args, more].concat());
    let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
    let mut ports = BTreeMap::new();
    let dump = &json["dumps"][0];
    if let Some(file) = dump["file"].as_str() {
        let (packets, is_whole) = read(Path::new(file));
        assert!(is_whole);
        for packet in packets {
            let transport = parse(LinkType::ETHERNET, &packet.data).transport.unwrap();
            *ports.entry(transport.src).or_default() += 1;
        }
    }
    (output.status.code(), json, ports)
}

fn shed(json: &Value) -> (u64, u64) {
    let source = &json["sources"][0];
    let [received, stored] = ["received", "stored"].map(|of| source[of].as_u64().unwrap());
    let lost = source["lost"]["shed"].as_u64().unwrap();
    let filtered = source["filtered"].as_u64().unwrap();
    assert_eq!(received, stored + lost + filtered, "{source}");
    (stored, lost)
}

/// 11 packets of a flow begin before 10 KiB. The second flow triggers before its cutoff, so all of
/// its packets are kept, for all tested values of `analyzers`.
#[test]
fn flows_are_cut_off_but_those_that_trigger() {
    let who: [&[&str]; 4] = [
        &[],
        &["--set", "analyzers=1"],
        &["--set", "analyzers=inline"],
        &["--set", "analyzers=2"],
    ];
    for more in who {
        let (code, json, ports) = kept(&[more, &["--cutoff", "10KiB"]].concat());
        let expected = BTreeMap::from([(1000, 11), (1001, 100), (1002, 11)]);
        assert_eq!((code, &ports), (Some(3), &expected), "{more:?}: {json}");
        assert_eq!(shed(&json), (122, 178), "{more:?}");
        let dump = &json["dumps"][0];
        assert_eq!(dump["verdict"], "incomplete", "{dump}");
        let missing = &dump["missing"][0];
        assert_eq!(
            (&missing["cause"], &missing["packets"]),
            (&"shed".into(), &178.into())
        );
        assert_eq!(missing["by"], serde_json::json!({ "cutoff": 178 }));
        let by = &json["sources"][0]["shed"];
        let expected =
            serde_json::json!({ "cutoff": 178, "history-goal": 0, "ted": 0, "shunt": 0 });
        assert_eq!(*by, expected);
        assert_eq!(json["sources"][0]["shed_by_engine"], 0);
    }
}

/// If an open dump matches a packet of a flow that is not beyond its cutoff, the recorder usually
/// keeps all later packets of the flow. Beyond the cutoff, it keeps the packets after its next
/// check, if the dump matches an earlier packet of the flow.
#[test]
fn flows_that_an_open_dump_takes_are_kept() {
    for who in ["auto", "1", "inline", "2", "4"] {
        let of_last = |cutoff| {
            let more = [
                "--set",
                &format!("analyzers={who}"),
                "--set",
                "reorder-window=1ms",
                "--cutoff",
                cutoff,
            ];
            kept_with("src port 1002", &more)
        };
        let (code, json, ports) = of_last("10KiB");
        let expected = BTreeMap::from([(1002, 100)]);
        assert_eq!((code, &ports), (Some(3), &expected), "{who}: {json}");
        assert_eq!(shed(&json), (11 + 100 + 100, 89), "{who}");
        // The first packet that is shed is the flow's 4th packet, number 11, before the trigger.
        // From files, the inserter checks again after 256 packets whether the flow must be kept.
        let (_, json, ports) = of_last("src port 1002=2KiB");
        let back = (11 + 256..300).filter(|number| number % 3 == 2).count();
        assert_eq!(ports, BTreeMap::from([(1002, 3 + back)]), "{who}: {json}");
    }
}

/// The dump of an alert without addresses has all packets of the alert's interface, as a dump with
/// `$iface` has. Such dumps keep no flow whole.
#[test]
fn a_dump_of_an_interface_exempts_no_flow() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["in.pcap", "alerts.json", "out"].map(|name| dir.path().join(name));
    capture(&paths[0]);
    let [input, alerts, out] = paths.each_ref().map(|path| path.to_str().unwrap());
    let alert = serde_json::json!({
        "timestamp": "1970-01-01T00:00:00.010000+0000",
        "event_type": "alert",
        "in_iface": "eth0",
        "alert": { "gid": 1, "signature_id": 1, "rev": 1, "signature": "decoder event" },
    });
    fs::write(alerts, format!("{alert}\n")).unwrap();
    let args = ["-r", input, "-w", out, "--alerts", alerts];
    let more = ["--set", "reorder-window=1ms", "--cutoff", "10KiB"];
    let (output, json) = record(&[&args[..], &more].concat());
    let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
    assert_eq!(json["dumps"][0]["packets"], 33, "{json}");
    assert_eq!(shed(&json), (33, 267));
    // Only the trigger exempts its flow.
    let (_, json, _) = kept_with("$iface", &more);
    assert_eq!(shed(&json), (11 + 100 + 11, 178), "{json}");
}

/// Real traffic: the files of the dumps and the counts of the sources are equal for all tested
/// values of `analyzers`.
#[test]
fn what_open_dumps_keep_is_a_function_of_the_packets() {
    let Some(shared) = crate::support::shared("traces/large/mix-a.pcap") else {
        return;
    };
    let run = |who: &str, dump: &str| {
        let dir = tempfile::tempdir().unwrap();
        let [capture, out] = [&shared, dir.path()].map(|path| path.to_str().unwrap());
        let (output, json) = record(&[
            "-q",
            "-r",
            capture,
            "-w",
            out,
            "--reproducible",
            "--cutoff",
            "2KiB",
            "--past",
            "2s",
            "--future",
            "2s",
            "--trigger",
            "tcp[tcpflags] & tcp-rst != 0",
            "--dump",
            dump,
            "--set",
            &format!("analyzers={who}"),
        ]);
        let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
        let files = fs::read_dir(out).unwrap().map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_owned();
            (name, fs::read(&path).unwrap())
        });
        let files: BTreeMap<_, _> = files.collect();
        (json["sources"].clone(), files)
    };
    let expected = run("auto", "host $srcIP");
    assert!(!expected.1.is_empty(), "{}", expected.0);
    for who in ["1", "inline", "2", "4"] {
        let found = run(who, "host $srcIP");
        assert_eq!(found.0, expected.0, "{who}");
        assert!(found.1 == expected.1, "{who}: other files");
    }
    let (everything, _) = run("auto", "");
    let stored = |sources: &Value| sources[0]["stored"].as_u64().unwrap();
    assert!(
        stored(&expected.0) > stored(&everything),
        "{everything} {}",
        expected.0
    );
}

/// A later fragment, which has no ports, triggers. The flow of its first fragment is then exempt
/// from the cutoff.
#[test]
fn flows_whose_later_fragments_trigger_are_exempt() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("in.pcap"), dir.path().join("out"));
    let mut writer = PcapWriter::new(
        fs::File::create(&path).unwrap(),
        PcapOptions::new(LinkType::ETHERNET),
    )
    .unwrap();
    let mut write = |time_ns, port: u16, fragment: u16, id: u16| {
        let mut data = vec![0; 12];
        data.extend([8, 0, 0x45, 0]);
        data.extend(1020_u16.to_be_bytes());
        data.extend(id.to_be_bytes());
        data.extend(fragment.to_be_bytes());
        data.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        if fragment & 0x1fff == 0 {
            data.extend(port.to_be_bytes());
            data.extend([0, 9, 7, 200, 0, 0]);
        }
        data.resize(1034, 0);
        writer.record(time_ns, 1034, &data).unwrap();
    };
    write(0, 1000, 0x2000, 7);
    write(MS, 0, 125, 7);
    for number in 0..50 {
        write((2 + number) * MS, 1000, 0, 8);
        write((2 + number) * MS, 1001, 0, 9);
    }
    writer.finish().unwrap();
    let [path, out] = [&path, &out].map(|path| path.to_str().unwrap());
    for who in ["1", "inline", "2"] {
        let args = [
            "-q",
            "-r",
            path,
            "-w",
            out,
            "--set",
            &format!("analyzers={who}"),
        ];
        let trigger = ["--trigger", "ip[6:2] & 0x1fff != 0", "--dump", ""];
        let (_, json) = record(&[&args[..], &trigger, &["--cutoff", "4KiB"]].concat());
        // The flow of port 1001 has packets with 992 bytes of payload. Five of these packets begin
        // before 4 KiB.
        assert_eq!(shed(&json.unwrap()), (52 + 5, 45), "{who}");
    }
}

/// A dump reports packets that were shed within its window, and is complete if no packet was shed
/// there.
#[test]
fn a_dump_tells_what_its_window_lost() {
    // The trigger is packet 16 at 16 ms. The first shed packets are at 33 and 35 ms.
    for (future_ms, missing) in [(16, 0), (17, 1), (18, 1), (19, 2), (22, 4)] {
        let future = format!("{future_ms}ms");
        let (code, json, _) = kept(&["--cutoff", "10KiB", "--past", "10ms", "--future", &future]);
        let dump = &json["dumps"][0];
        let found = dump["missing"].as_array().map_or(0, |missing| {
            missing
                .iter()
                .map(|one| one["packets"].as_u64().unwrap())
                .sum()
        });
        assert_eq!(found, missing, "{future}: {dump}");
        assert_eq!(code, Some(if missing > 0 { 3 } else { 0 }), "{future}");
    }
}

#[test]
fn classes_have_cutoffs_of_their_own() {
    let only_last = ["--cutoff", "src port 1002=2KiB/5s"];
    let (_, json, ports) = kept(&only_last);
    assert_eq!(
        ports,
        BTreeMap::from([(1000, 100), (1001, 100), (1002, 3)]),
        "{json}"
    );
    let of_other = ["--cutoff", "udp[0:2]=1000=0", "--cutoff", "4KiB"];
    let (_, json, ports) = kept(&of_other);
    // Only the 6th packet of the second flow triggers. This packet begins after 4 KiB and is shed.
    // So the flow stays cut off, and no dump starts.
    assert!(ports.is_empty(), "{json}");
    assert_eq!(shed(&json).0, 5 + 5);
    let (_, json, ports) = kept(&[&of_other[..], &["--filter", "not src port 1002"]].concat());
    assert!(ports.is_empty());
    assert_eq!(
        (shed(&json).0, &json["sources"][0]["filtered"]),
        (5, &100.into())
    );
}

/// `-c` limits the number of stored packets. Shed packets do not count.
#[test]
fn shed_packets_are_not_of_those_that_were_asked_for() {
    let (_, json, _) = kept(&["--cutoff", "10KiB", "-c", "50"]);
    // The first 33 packets are kept, then one packet of three. After the 50th stored packet, two
    // more packets are shed before the packet that would be the 51st stored packet.
    assert_eq!(shed(&json), (50, 35), "{json}");
}

#[test]
fn what_is_no_cutoff_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    capture(&path);
    for (wrong, why) in [
        ("20", "has no unit"),
        ("=", "has no unit"),
        ("tcp port 443", "for a class of flows"),
        ("tcp prt 443=20KiB", "prt"),
        ("20KiB/", "not a duration"),
        ("20KiB/0s", "longer time"),
    ] {
        let path = path.to_str().unwrap();
        let (output, _) = record(&["-r", path, "--trigger", "tcp", "--cutoff", wrong]);
        let words = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {words}");
        assert!(
            words.contains("--cutoff") && words.contains(why),
            "{wrong}: {words}"
        );
    }
    let path = path.to_str().unwrap();
    for more in ["tcp port 443=20KiB", "1KiB"] {
        let (output, _) = record(&[
            "-r",
            path,
            "--trigger",
            "tcp",
            "--cutoff",
            "4KiB",
            "--cutoff",
            more,
        ]);
        assert_eq!(output.status.code(), Some(2), "{more}");
        let words = stderr(&output);
        assert!(words.contains("write it last"), "{more}: {words}");
    }
}
