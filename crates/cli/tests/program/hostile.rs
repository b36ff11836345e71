//! Memory use of a recorder under hostile clients. `api/tests/integration/hostile.rs` tests the
//! answers.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use crate::{recording::Recording, remote::token};

/// Number of connections that send an unfinished request head. The test opens fewer connections if
/// the limit on open files is too low.
const IDLE: usize = 10_000;
/// Size of an unfinished head, close to 32 KiB, the maximum size of a head.
const HEAD_BYTES: usize = 31 << 10;
/// Number of large request bodies. Half are chunked, half declare their length.
const BODIES: usize = 8;
/// Size of a body. The client stops earlier if a write fails because the recorder has closed the
/// connection.
const BODY_BYTES: usize = 100_000_000;
/// Limit on the growth of memory by all clients. It has room for 12 queries of 8 MiB, for 256
/// connections of 100 KiB, and for about a quarter more. The 8 MiB are four times the maximum of a
/// copy of a bucket, 2 MiB (docs/dev/threats.md, "Memory of clients").
const GROWTH_KIB_MAX: u64 = 150 << 10;

/// Peak memory of the recorder's process in KiB: `VmHWM` of proc_pid_status(5).
fn peak_kib(recording: &Recording) -> u64 {
    let told = fs::read_to_string(format!("/proc/{}/status", recording.child.id())).unwrap();
    let line = told.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

fn source(recording: &Recording) -> Value {
    let status = recording.status();
    assert_eq!(status["analyzers"]["missed"], 0);
    status["sources"][0].clone()
}

/// The clients open thousands of connections, send bodies of 100 MB, and read only the first 12
/// bytes of large answers. The recorder's memory stays bounded, and no packet is lost.
#[test]
fn hostile_clients_cost_little_memory() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = token(folder.path(), &tokens, "a", "admin");
    let token = fs::read_to_string(token).unwrap();
    let mut recording =
        Recording::start(&["--api", "127.0.0.1:0", "--tokens", tokens.to_str().unwrap()]);
    let url = recording.url();
    let address = url.strip_prefix("http://").unwrap();
    let head = |request: &str| {
        let token = token.trim();
        format!("{request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n")
    };
    // The answer to each query must be larger than the socket buffers, so that the recorder has to
    // wait for the reader.
    recording.wait_for_packets(60_000);
    let (before_kib, before) = (peak_kib(&recording), source(&recording));

    let query = head("GET /v1/query") + "\r\n";
    let mut unread: Vec<Box<dyn ReadWrite>> = Vec::new();
    for _ in 0..6 {
        unread.push(Box::new(TcpStream::connect(address).unwrap()));
        unread.push(Box::new(UnixStream::connect(recording.socket()).unwrap()));
    }
    for stream in &mut unread {
        stream.write_all(query.as_bytes()).unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    }

    let chunk = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
    let bodies = (0..BODIES).map(|number| {
        let length = if number % 2 == 0 {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {BODY_BYTES}")
        };
        let head = head("POST /v1/alertmanager");
        let begin = format!("{head}Content-Type: application/json\r\n{length}\r\n\r\n");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        let mut said = 0;
        while said < BODY_BYTES && stream.write_all(&chunk).is_ok() {
            said += chunk.len();
        }
        stream
    });
    let bodies: Vec<TcpStream> = bodies.collect();

    let mut half = head("GET /v1/status") + "X: ";
    half.extend(std::iter::repeat_n('x', HEAD_BYTES - half.len()));
    let room = usize::try_from(limit.maximum.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let idle = IDLE.min(room.saturating_sub(500));
    if idle < IDLE {
        crate::support::skip(&format!(
            "{idle} connections instead of {IDLE}: `ulimit -Hn` is {room}"
        ));
    }
    let idle: Vec<TcpStream> = (0..idle)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            // The write may fail, because the recorder may have closed this connection.
            let _ = stream.write_all(half.as_bytes());
            stream
        })
        .collect();

    let (after_kib, after) = (peak_kib(&recording), source(&recording));
    let grown_kib = after_kib - before_kib;
    eprintln!(
        "{} connections, {BODIES} bodies, {} unread answers: {grown_kib} KiB more than {before_kib}",
        idle.len(),
        unread.len()
    );
    assert!(
        grown_kib < GROWTH_KIB_MAX,
        "{grown_kib} KiB more than {before_kib}"
    );
    assert!(
        after["received"].as_u64() > before["received"].as_u64(),
        "{after}"
    );
    drop((idle, bodies, unread));
    recording.told(&["stop"]);
    let (status, told) = recording.end();
    assert_eq!(status.code(), Some(0), "{told}");
    let source = &told["sources"][0];
    let mut lost = source["lost"].as_object().unwrap().values();
    assert!(lost.all(|lost| lost == 0), "{source}");
    assert_eq!(source["received"], source["stored"], "{source}");
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}
