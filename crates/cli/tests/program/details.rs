//! Tests of packet details, which Wireshark's dissectors make in a sandbox, and of streams. The
//! recorder reads its packets from stdin.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Instant,
};

use retroscope_pcapfile::{LinkType, PcapOptions, PcapWriter};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    recording::{DEADLINE, run},
    support::{PROGRAM, skip},
};

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A recorder that reads packets from stdin. It is killed when the value is dropped.
struct Stdin {
    child: Child,
    folder: TempDir,
    /// The recorder's stdin. While it is open, the recording continues.
    _input: ChildStdin,
}

impl Drop for Stdin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stdin {
    /// Records frames, given with their lengths on the wire, 1 ms apart. Waits until the frames are
    /// stored.
    fn of(frames: &[(Vec<u8>, u32)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = PcapOptions::new(LinkType::ETHERNET);
        let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
        // The recorder may keep the last packet back until it knows that no older packet follows,
        // so a further packet follows the frames.
        let last = (vec![0; 60], 60);
        for (number, (frame, wire)) in (0..).zip(frames.iter().chain([&last])) {
            let time_ns = 1_700_000_000_000_000_000 + number * 1_000_000;
            writer.record(time_ns, *wire, frame).unwrap();
        }
        let mut child = Command::new(PROGRAM)
            .args([
                "record",
                "-r",
                "-",
                "--ring",
                "32MiB",
                "--trigger",
                "udp port 9",
                "--api",
            ])
            .arg(format!("unix:{}", socket(folder.path()).display()))
            .args(["--set", "reorder-window=0s"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&writer.finish().unwrap()).unwrap();
        input.flush().unwrap();
        let recorder = Self {
            child,
            folder,
            _input: input,
        };
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = run(&recorder.socket(), &["status", "--json"]);
            let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
            if status["ring"]["stored"].as_u64() >= Some(frames.len() as u64) {
                return recorder;
            }
            assert!(Instant::now() < deadline, "nothing is stored: {status}");
        }
    }

    fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    /// Requests `target`. Returns the HTTP status, and the body as JSON.
    fn get(&self, target: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"));
        (status, body)
    }

    /// The IDs of the recorded packets, in order.
    fn ids(&self) -> Vec<String> {
        let (status, page) = self.get("/v1/packets?limit=1000");
        assert_eq!(status, 200, "{page}");
        let packets = page["packets"].as_array().unwrap().iter();
        packets
            .map(|packet| packet["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The details of a packet. `None`, with a message, if the recorder answers 501, because the
    /// machine cannot make details.
    fn details(&self, id: &str) -> Option<Value> {
        let (status, details) = self.get(&format!("/v1/details?id={id}"));
        if status == 501 {
            let why = &details["detail"];
            skip(&format!("no details here: {why}; they were not tested"));
            return None;
        }
        assert_eq!(status, 200, "{details}");
        Some(details)
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("api")
}

/// A TCP segment from 10.0.0.1:50000 (`client`) or from 10.0.0.2:`port`, to the other endpoint.
fn tcp(port: u16, client: bool, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(40 + payload.len()).unwrap();
    let (hosts, ports) = match client {
        true => ([[10, 0, 0, 1], [10, 0, 0, 2]], [50_000, port]),
        false => ([[10, 0, 0, 2], [10, 0, 0, 1]], [port, 50_000]),
    };
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(hosts.concat());
    frame.extend(ports.iter().flat_map(|port: &u16| port.to_be_bytes()));
    frame.extend(seq.to_be_bytes());
    frame.extend(ack.to_be_bytes());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

fn whole(frame: Vec<u8>) -> (Vec<u8>, u32) {
    let length = u32::try_from(frame.len()).unwrap();
    (frame, length)
}

/// A connection: handshake, a request in segments of 200 bytes, an answer in segments of 1000
/// bytes, and FIN.
fn connection(port: u16, request: &[u8], answer: &[u8]) -> Vec<(Vec<u8>, u32)> {
    let mut frames = vec![
        tcp(port, true, SYN, 99, 0, b""),
        tcp(port, false, SYN | ACK, 499, 100, b""),
        tcp(port, true, ACK, 100, 500, b""),
    ];
    let mut sent = 100;
    for piece in request.chunks(200) {
        frames.push(tcp(port, true, ACK, sent, 500, piece));
        sent += u32::try_from(piece.len()).unwrap();
    }
    let mut seq = 500;
    for piece in answer.chunks(1000) {
        frames.push(tcp(port, false, ACK, seq, sent, piece));
        seq += u32::try_from(piece.len()).unwrap();
    }
    frames.push(tcp(port, false, FIN | ACK, seq, sent, b""));
    frames.into_iter().map(whole).collect()
}

/// All fields of the tree of a packet's details.
fn fields(details: &Value) -> Vec<&Value> {
    let mut all: Vec<&Value> = details["fields"].as_array().unwrap().iter().collect();
    let mut at = 0;
    while let Some(field) = all.get(at) {
        let inner = field["fields"].as_array();
        all.extend(inner.into_iter().flatten());
        at += 1;
    }
    all
}

fn find<'d>(details: &'d Value, label: &str) -> &'d Value {
    let found = fields(details).into_iter().find(|field| {
        let text = field["label"].as_str().unwrap();
        text.contains(label)
    });
    found.unwrap_or_else(|| panic!("no {label}: {details:#}"))
}

/// The bytes of a field, as hexadecimal digits.
fn bytes<'d>(details: &'d Value, field: &Value) -> &'d str {
    let of = |name: &str| usize::try_from(field[name].as_u64().unwrap()).unwrap();
    let hex = details["sources"][of("source")]["hex"].as_str().unwrap();
    &hex[2 * of("start")..2 * (of("start") + of("length"))]
}

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_answer_in_several_segments_is_reassembled() {
    let page = "<p>hostile</p>\n".repeat(160);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Name: <script>\u{1b}[31m\u{202e}\"\\\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    );
    let request = b"GET /index HTTP/1.1\r\nHost: example.test\r\n\r\n";
    let mut frames = connection(80, request, answer.as_bytes());
    // A packet of another flow, which must not be dissected.
    frames.insert(4, whole(tcp(81, true, SYN, 7, 0, b"")));
    // A packet of 454 bytes, of which 60 were captured.
    frames.push((tcp(82, true, ACK, 1, 1, &[7; 400])[..60].to_vec(), 454));
    frames.push((vec![0xff; 20], 20));
    let recorder = Stdin::of(&frames);
    let ids = recorder.ids();
    let last = answer.len().div_ceil(1000) + 4;
    let Some(details) = recorder.details(&ids[last]) else {
        return;
    };
    let layer = find(&details, "Hypertext Transfer Protocol");
    assert_eq!(
        (&layer["layer"], &layer["source"]),
        (&true.into(), &1.into()),
        "{layer}"
    );
    let status = find(&details, "Status Code: 200");
    assert_eq!(bytes(&details, status), text(b"200"));
    assert_eq!(status["filter"], "http.response.code == 200");
    assert_eq!(details["sources"][1]["length"], answer.len());
    assert_eq!(details["sources"][1]["hex"], text(answer.as_bytes()));
    let hostile = find(&details, "X-Name: ");
    assert!(bytes(&details, hostile).starts_with(&text(b"X-Name: <script>\x1b[31m")));
    let ethernet = find(&details, "Ethernet II");
    assert_eq!(bytes(&details, ethernet), text(&frames[last].0[..14]));
    assert_eq!(find(&details, "Request in frame")["frame"], ids[3].as_str());
    let context = &details["context"];
    assert_eq!(
        (&context["before"], &context["is_limited"]),
        (&(last - 1).into(), &false.into())
    );
    assert_eq!(context["packets"], last + 1);
    // The details of the request must name the packet that completes the answer.
    let request = recorder.details(&ids[3]).unwrap();
    assert_eq!(
        find(&request, "Response in frame")["frame"],
        ids[last].as_str()
    );
    // With `from`, the packets before that time are not dissected.
    let from = format!("/v1/details?id={}&from=1700000000.{:03}", ids[last], last);
    let (status, alone) = recorder.get(&from);
    assert_eq!(
        (status, &alone["context"]["before"]),
        (200, &0.into()),
        "{alone}"
    );
    let cut = recorder.details(&ids[frames.len() - 2]).unwrap();
    assert_eq!(
        (&cut["captured"], &cut["length"]),
        (&60.into(), &454.into())
    );
    find(&cut, "Packet size limited during capture");
    let other = recorder.details(&ids[frames.len() - 1]).unwrap();
    assert_eq!(other["scan"], Value::Null);
    let (status, problem) = recorder.get("/v1/details?id=17");
    assert_eq!(
        (status, &problem["type"]),
        (422, &"urn:retroscope:problem:invalid-value".into())
    );
}

/// A TLS ClientHello arrives in two segments. The details must show the server name of the
/// reassembled record.
#[test]
fn a_handshake_of_tls_is_reassembled() {
    let host = b"hidden.example";
    let count = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let mut extension = vec![0, 0];
    extension.extend(count(host.len() + 5));
    extension.extend(count(host.len() + 3));
    extension.push(0);
    extension.extend(count(host.len()));
    extension.extend(host);
    extension.extend([0, 21]);
    extension.extend(count(300));
    extension.extend([0; 300]);
    let mut hello = vec![3, 3];
    hello.extend([9; 32]);
    hello.extend([0, 0, 2, 0x13, 1, 1, 0]);
    hello.extend(count(extension.len()));
    hello.extend(extension);
    let mut handshake = vec![1, 0];
    handshake.extend(count(hello.len()));
    handshake.extend(hello);
    let mut record = vec![22, 3, 1];
    record.extend(count(handshake.len()));
    record.extend(handshake);
    let recorder = Stdin::of(&connection(443, &record, b""));
    let ids = recorder.ids();
    let Some(details) = recorder.details(&ids[4]) else {
        return;
    };
    let name = find(&details, "Server Name: hidden.example");
    assert_eq!(
        (bytes(&details, name), &name["source"]),
        (&*text(host), &1.into())
    );
}

#[test]
fn a_stream_has_the_bytes_of_both_sides() {
    let answer = vec![b'x'; 2500];
    let mut frames = connection(80, b"GET / HTTP/1.0\r\n\r\n", &answer);
    // The second segment of the answer was not recorded, but its bytes are acknowledged.
    frames.remove(5);
    frames.push(whole(tcp(80, true, ACK, 118, 3000, b"")));
    // A connection of which no SYN was recorded.
    frames.push(whole(tcp(85, false, ACK, 77, 1, b"late")));
    frames.push((vec![0xff; 20], 20));
    let recorder = Stdin::of(&frames);
    let ids = recorder.ids();
    let (status, stream) = recorder.get(&format!("/v1/stream?id={}", ids[5]));
    assert_eq!(status, 200, "{stream}");
    assert_eq!(
        (&stream["client"], &stream["server"]),
        (&"10.0.0.1:50000".into(), &"10.0.0.2:80".into())
    );
    assert_eq!(
        (&stream["has_start"], &stream["has_end"]),
        (&true.into(), &true.into())
    );
    let segments = stream["segments"].as_array().unwrap();
    let shown = segments.iter().map(|segment| {
        let length = segment["hex"].as_str().map_or(0, |hex| hex.len() / 2);
        (
            segment["from"].as_str().unwrap(),
            length,
            segment["missing"].as_u64(),
        )
    });
    let expected = [
        ("client", 18, None),
        ("server", 1000, None),
        ("server", 0, Some(1000)),
        ("server", 500, None),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert_eq!(
        (&stream["client_bytes"], &stream["server_bytes"]),
        (&18.into(), &2500.into())
    );
    let (status, late) = recorder.get(&format!("/v1/stream?id={}", ids[frames.len() - 2]));
    assert_eq!((status, &late["has_start"]), (200, &false.into()), "{late}");
    assert!(
        late["remarks"][0].as_str().unwrap().contains("SYN"),
        "{late}"
    );
    let (status, problem) = recorder.get(&format!("/v1/stream?id={}", ids[frames.len() - 1]));
    assert_eq!(status, 422, "{problem}");
}
