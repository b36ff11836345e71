//! Alerts that arrive during a recording, through sockets and growing files.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::net::{UnixDatagram, UnixStream},
    path::{Path, PathBuf},
    time::Instant,
};

use retroscope_packet::{LinkType, parse};
use retroscope_pcapfile::CaptureReader;
use retroscope_recorder::rfc3339;
use serde_json::{Value, json};

use crate::recording::{DEADLINE, Recording};

/// Timestamp in µs and headers of the first packet of a finished dump.
fn first_packet(path: &Path) -> (i64, retroscope_packet::Parsed) {
    let mut reader = CaptureReader::new(File::open(path).unwrap()).unwrap();
    let record = reader.next().unwrap().expect("it has a packet");
    (
        record.meta.time_ns / 1000,
        parse(LinkType::ETHERNET, record.data),
    )
}

/// Waits for at least `count` sidecars in the directory. Returns path and content of all sidecars,
/// sorted by path.
fn sidecars(recording: &Recording, count: usize) -> Vec<(PathBuf, Value)> {
    let since = Instant::now();
    loop {
        let files = fs::read_dir(recording.folder.path().join("dumps"));
        let files = files.into_iter().flatten().map(|file| file.unwrap().path());
        let mut all: Vec<PathBuf> = files
            .filter(|path| path.extension().is_some_and(|it| it == "json"))
            .collect();
        if all.len() >= count {
            all.sort();
            let read = |path: PathBuf| {
                let sidecar = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                (path, sidecar)
            };
            return all.into_iter().map(read).collect();
        }
        assert!(since.elapsed() < DEADLINE, "{count} dumps: {all:?}");
        std::thread::yield_now();
    }
}

fn alert(number: u64, us: i64, packet: &retroscope_packet::Parsed) -> String {
    let (ip, ports) = (packet.network.unwrap(), packet.transport.unwrap());
    let stamp = format!("{}+0000", &rfc3339(us * 1000)[..26]);
    let alert = json!({
        "timestamp": stamp, "event_type": "alert", "src_ip": ip.src.to_string(), "dest_ip": ip.dst.to_string(), "src_port": ports.src,
        "dest_port": ports.dst, "proto": "UDP", "pkt_src": "wire/pcap", "flow": {"start": stamp},
        "alert": {"gid": 1, "signature_id": number, "rev": 1, "signature": "live"},
    });
    alert.to_string()
}

/// Alerts arrive through a stream socket, a datagram socket and a followed file that is then
/// rotated. Each alert must get a dump, and the sidecar reports that the alert's packet was found,
/// although the packet was recorded before the alert.
#[test]
fn alerts_come_by_sockets_and_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (stream, datagrams, log) = (at("stream"), at("datagrams"), at("eve.json"));
    fs::write(&log, "{\"event_type\":\"alert\"}\n").unwrap();
    let from = [
        format!("unix:{}", stream.display()),
        format!("unix-dgram:{}", datagrams.display()),
        at("eve*.json").display().to_string(),
    ];
    let mut arguments = vec!["--future", "100ms", "--past", "10ms"];
    from.iter()
        .for_each(|from| arguments.extend(["--alerts", from]));
    let mut recording = Recording::start_in(folder, &arguments);
    let lines = recording.lines();
    // A manual dump provides a packet of the traffic. All alerts are about this packet.
    recording.told(&["trigger", "udp", "--past", "1s", "--future", "0s"]);
    let (path, _) = sidecars(&recording, 1).remove(0);
    let (us, packet) = first_packet(&path.with_extension("pcapng"));

    let mut client = UnixStream::connect(&stream).unwrap();
    // A torn line, a line that is no alert, and an alert in two pieces.
    let text = alert(1, us, &packet);
    write!(client, "{0}\n{{\"event_type\":\"flow\"}}\n{0}", &text[..40]).unwrap();
    writeln!(client, "{}", &text[40..]).unwrap();
    sidecars(&recording, 2);
    let socket = UnixDatagram::unbound().unwrap();
    socket
        .send_to(alert(2, us, &packet).as_bytes(), &datagrams)
        .unwrap();
    sidecars(&recording, 3);
    let mut file = File::options().append(true).open(&log).unwrap();
    writeln!(file, "{}", alert(3, us, &packet)).unwrap();
    sidecars(&recording, 4);
    // The log is rotated: the old file is renamed, and a new file gets its name.
    fs::rename(&log, log.with_extension("1")).unwrap();
    fs::write(&log, alert(4, us, &packet) + "\n").unwrap();
    let all = sidecars(&recording, 5);
    let alerts: Vec<&Value> = all
        .iter()
        .flat_map(|(_, it)| it["alerts"].as_array().into_iter().flatten())
        .collect();
    let numbers: Vec<u64> = alerts
        .iter()
        .filter_map(|it| it["signature_id"].as_u64())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(alerts.iter().all(|it| it["frame"] == true), "{alerts:?}");
    let modes = fs::metadata(&stream).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&modes.permissions()) & 0o777,
        0o660
    );
    recording.told(&["stop"]);
    let (status, summary) = recording.end();
    assert!(status.success(), "{status}");
    let said = lines.rest();
    assert!(said.contains("1:3:1 \"live\""), "{said}");
    let lines = &summary["alerts"]["lines"];
    assert_eq!(
        (&lines["alerts"], &lines["ignored"], &lines["torn"]),
        (&json!(4), &json!(1), &json!(1))
    );
    assert!(!stream.exists() && !datagrams.exists(), "they go with it");
}

/// While the dump of a flow is open, two alerts about a packet of the flow share that dump. A third
/// alert names a flow without packets, so its dump is empty and incomplete.
#[test]
fn alerts_of_a_flow_share_its_dump() {
    let folder = tempfile::tempdir().unwrap();
    let stream = folder.path().join("stream");
    let from = format!("unix:{}", stream.display());
    let arguments = ["--future", "1s", "--past", "10ms", "--alerts", &from];
    let recording = Recording::start_in(folder, &arguments);
    recording.told(&["trigger", "udp", "--past", "1s", "--future", "0s"]);
    let (path, _) = sidecars(&recording, 1).remove(0);
    let (us, packet) = first_packet(&path.with_extension("pcapng"));
    let mut client = UnixStream::connect(&stream).unwrap();
    writeln!(client, "{}", alert(1, us, &packet)).unwrap();
    writeln!(client, "{}", alert(2, us, &packet)).unwrap();
    let other = alert(3, us, &packet).replace("\"dest_port\":", "\"dest_port\":1");
    writeln!(client, "{other}").unwrap();
    let all = sidecars(&recording, 3);
    let of_alerts: Vec<&Value> = all
        .iter()
        .map(|(_, it)| it)
        .filter(|it| it["rule"] == "alert")
        .collect();
    let shared = of_alerts
        .iter()
        .find(|it| it["alerts"].as_array().unwrap().len() == 2);
    let shared = shared.unwrap_or_else(|| panic!("{of_alerts:?}"));
    assert!(
        shared["alerts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|it| it["frame"] == true),
        "{shared}"
    );
    let empty = of_alerts.iter().find(|it| it["packets"] == 0).unwrap();
    assert_eq!(
        (&empty["verdict"], &empty["missing"][0]["cause"]),
        (&json!("incomplete"), &json!("unmatched"))
    );
    assert!(
        empty["notes"].to_string().contains("nothing matched"),
        "{empty}"
    );
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(3));
}
