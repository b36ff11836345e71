//! Hostile clients are refused, and do not keep other clients from being answered.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use rustix::{
    net::sockopt::set_socket_recv_buffer_size,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use serde_json::json;

use crate::support::{Answer, DEADLINE, Served, get, request};

/// Sends these bytes, and reads to the end of the connection.
fn said(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut stream = served.connect();
    // The server may close the connection before all bytes are written.
    let _ = stream.write_all(bytes);
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[test]
fn bodies_are_bounded_and_have_a_type() {
    let served = Served::new();
    let token = served.token("admin");
    let post = || request("POST", "/v1/triggers").token(token);
    // The answer arrives before the body.
    let announced = post()
        .header("Content-Type", "application/json")
        .header("Content-Length", "100000000");
    let mut stream = served.connect();
    stream.write_all(&announced.bytes("localhost")).unwrap();
    Answer::read(&mut stream).refused(413);
    let chunked = post()
        .header("Content-Type", "application/json")
        .header("Transfer-Encoding", "chunked");
    let mut bytes = chunked.bytes("localhost");
    for _ in 0..17 {
        bytes.extend_from_slice(b"1000\r\n");
        bytes.extend_from_slice(&[b' '; 0x1000]);
        bytes.extend_from_slice(b"\r\n");
    }
    Answer::parse(&said(&served, &bytes)).refused(413);
    // The server ignores the body of a GET request.
    let mut unwanted = get("/v1/status").token(token);
    unwanted.body = vec![b'x'; 1 << 20];
    let answer = Answer::parse(&said(&served, &unwanted.bytes("localhost")));
    assert_eq!(answer.status, 200);

    let good = json!({ "past": "0s", "future": "0s" });
    let mut typeless = post();
    typeless.body = good.to_string().into_bytes();
    served.ask(&typeless).refused(415);
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonx",
        "",
    ] {
        served
            .ask(&typeless.clone().header("Content-Type", kind))
            .refused(415);
    }
    let utf8 = typeless
        .clone()
        .header("Content-Type", "application/json; charset=utf-8");
    assert_eq!(served.ask(&utf8).status, 201);
    for body in [
        &b"{"[..],
        b"",
        b"null",
        b"[]",
        b"\"x\"",
        b"{} {}",
        b"{\"past\":\"1s\",\"past\":\"2s\"}",
        b"\xff\xfe",
        b"{\"x\":1}",
    ] {
        let mut malformed = post().header("Content-Type", "application/json");
        malformed.body = body.to_vec();
        let why = served.ask(&malformed).refused(400);
        assert!(why.contains("body"), "{body:?}: {why}");
    }
    let mut deep = post().header("Content-Type", "application/json");
    deep.body = b"[".repeat(60_000);
    served.ask(&deep).refused(400);
}

#[test]
fn paths_lead_nowhere_else() {
    let served = Served::new();
    for target in [
        "/v1",
        "/v1/",
        "/v1/status/",
        "//v1/status",
        "/v1//status",
        "/v1/./status",
        "/v1/x/../status",
        "/../v1/status",
        "/v1/%73tatus",
        "/v1/status%00",
        "/v1/status;x",
        "/v1%2fstatus",
        "/V1/status",
        "/etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/rules/a/b",
        "/v1/dumps/1/..",
        "*",
    ] {
        let why = served.ask_unix(&get(target)).refused(404);
        assert!(why.contains("openapi.json"), "{target}: {why}");
    }
    served
        .ask_unix(&get("/v1/dumps/..%2f..%2fetc%2fpasswd"))
        .refused(404);
    served.ask_unix(&get("/v1/queries/..%2f..")).refused(404);
    for (method, target, allowed) in [
        ("POST", "/v1/status", "GET, HEAD"),
        ("GET", "/v1/triggers", "POST"),
        ("TRACE", "/v1/status", "GET, HEAD"),
        ("POST", "/v1/rules/x", "GET, HEAD, PUT, PATCH, DELETE"),
        ("CONNECT", "/v1/status", ""),
        ("OPTIONS", "/metrics", "GET, HEAD"),
    ] {
        let answer = served.ask_unix(&request(method, target));
        if method == "CONNECT" {
            assert!((400..500).contains(&answer.status), "{answer:?}");
            continue;
        }
        answer.refused(405);
        assert_eq!(answer.headers["allow"], allowed);
    }
}

/// A request that two servers may parse differently gets an error or no answer.
#[test]
fn requests_are_not_smuggled() {
    let served = Served::new();
    let token = served.token("admin");
    let head = format!(
        "POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    );
    let hidden = format!(
        "POST /v1/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    for fields in [
        "Content-Length: 4\r\nContent-Length: 5\r\n\r\n".to_owned(),
        "Content-Length: +4\r\n\r\n{}  ".to_owned(),
        "Content-Length: 4, 4\r\n\r\n{}  ".to_owned(),
        "Transfer-Encoding: xchunked\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n".to_owned(),
        " Folded: x\r\n\r\n".to_owned(),
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Bad\x00Name: x\r\n\r\n".to_owned(),
        "X: a\rb\r\n\r\n".to_owned(),
    ] {
        let heard = said(&served, format!("{head}{fields}{hidden}").as_bytes());
        let text = String::from_utf8_lossy(&heard);
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.is_empty() || first.starts_with("HTTP/1.1 4"),
            "{fields:?}: {text}"
        );
        assert!(!text.contains("202 Accepted"), "{fields:?}: {text}");
    }
    for odd in [
        "GET /healthz HTTP/2.0\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\r\n\r\n\r\n",
        "\x16\x03\x01\x00",
    ] {
        let heard = said(&served, odd.as_bytes());
        let text = String::from_utf8_lossy(&heard);
        assert!(!text.contains(" 200 "), "{odd:?}: {text}");
    }
    let long = format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let heard = said(&served, long.as_bytes());
    assert!(
        heard.is_empty() || heard.starts_with(b"HTTP/1.1 431"),
        "{:?}",
        String::from_utf8_lossy(&heard)
    );
    let many = format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X: y\r\n".repeat(500)
    );
    let heard = said(&served, many.as_bytes());
    assert!(
        heard.starts_with(b"HTTP/1.1 431"),
        "{:?}",
        String::from_utf8_lossy(&heard)
    );
    assert!(served.handle.status().is_ok(), "it records");
    assert_eq!(served.ask(&get("/healthz")).status, 200);
}

/// With HTTP/1.0 a cut body of unknown length looks complete.
#[test]
fn an_old_client_gets_no_body_that_may_be_cut_unseen() {
    let served = Served::new();
    served.wait_for_packets(100);
    let token = served.token("admin");
    for (target, status) in [
        ("/v1/query", 505),
        ("/v1/events", 505),
        ("/v1/query?count=true", 200),
        ("/v1/status", 200),
    ] {
        let fields = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        let heard = said(
            &served,
            format!("GET {target} HTTP/1.0\r\n{fields}").as_bytes(),
        );
        let answer = Answer::parse(&heard);
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        assert!(answer.is_whole && !answer.headers.contains_key("transfer-encoding"));
        let is_told = answer.text().contains("ask by HTTP/1.1");
        assert_eq!(is_told, status == 505, "{target}: {}", answer.text());
        if target.contains("count") {
            assert_eq!(answer.json()["verdict"], "complete");
        }
    }
}

/// The connection ends before 20 MB, and the analyzer misses no packet.
#[test]
fn a_body_that_is_too_large_is_not_taken() {
    let served = Served::new();
    let chunked = request("POST", "/v1/triggers")
        .token(served.token("admin"))
        .header("Content-Type", "application/json")
        .header("Transfer-Encoding", "chunked");
    let mut stream = served.connect();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&chunked.bytes("localhost")).unwrap();
    let chunk = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
    let mut taken = 0;
    while taken < 100_000_000 && stream.write_all(&chunk).is_ok() {
        taken += chunk.len();
    }
    assert!(taken < 20_000_000, "{taken} bytes were taken");
    assert_eq!(served.handle.status().unwrap().lapped, 0);
}

#[test]
fn a_body_that_comes_slowly_is_given_up() {
    let served = Served::new();
    let slow = request("POST", "/v1/triggers")
        .token(served.token("admin"))
        .header("Content-Type", "application/json")
        .header("Content-Length", "60000");
    let mut stream = served.connect();
    stream.write_all(&slow.bytes("localhost")).unwrap();
    let begin = Instant::now();
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut heard = vec![0; 4096];
    let length = loop {
        assert!(begin.elapsed() < DEADLINE, "it is waited for");
        let _ = stream.write_all(b" ");
        match stream.read(&mut heard) {
            Ok(length) => break length,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    Answer::parse(&heard[..length]).refused(408);
    assert!(begin.elapsed() >= Duration::from_secs(9));
}

/// Of 10,000 connections without a request or with half of a request, at most the permitted 256
/// stay open.
#[test]
fn idle_connections_make_room() {
    const IDLE: usize = 10_000;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let served = Served::new();
    let token = served.token("view");
    let idle: Vec<TcpStream> = (0..IDLE)
        .map(|number| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            if number % 2 == 0 {
                let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n");
            }
            stream
        })
        .collect();
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(served.ask(&get("/v1/status").token(token)).status, 200);
        // The unix socket has a separate connection limit.
        let of_other = served.ask_unix(&get("/v1/query?limit_packets=1"));
        assert!(of_other.status == 200 && of_other.is_whole);
    }
    assert!(begun.elapsed() < DEADLINE);
    let is_ended = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let mut stream = *stream;
        match stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    };
    let ended = idle.iter().filter(is_ended);
    assert!(ended.count() >= IDLE - 256, "they are kept");
    // A connection with a request in progress is not evicted.
    let mut asking = served.connect();
    asking
        .write_all(&get("/v1/events?from=0").token(token).bytes("localhost"))
        .unwrap();
    asking.read_exact(&mut [0; 12]).unwrap();
    let more: Vec<TcpStream> = (0..600)
        .filter_map(|_| TcpStream::connect(served.address).ok())
        .collect();
    assert_eq!(served.ask(&get("/healthz")).status, 200);
    served
        .ask_unix(&request("POST", "/v1/triggers").json(&json!({ "past": "0s", "future": "0s" })))
        .done(201);
    let mut heard = String::new();
    while !heard.contains("event: finished") {
        let mut some = [0; 1024];
        let count = asking.read(&mut some).unwrap();
        assert!(count > 0, "a listener was thrown out: {heard}");
        heard.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    drop((idle, more));
}

/// Queries whose answers nobody reads do not delay other requests.
#[test]
fn unread_answers_are_bounded() {
    let served = Served::new();
    // More data than socket buffers hold.
    served.wait_for_packets(60_000);
    let token = served.token("packets");
    let query = get("/v1/query").token(token);
    let silent: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = served.connect();
            stream.write_all(&query.bytes("localhost")).unwrap();
            stream.read_exact(&mut [0; 12]).unwrap();
            stream
        })
        .collect();
    let refused = served.ask(&query);
    assert_eq!(refused.headers["retry-after"], "1");
    let why = refused.refused(429);
    assert!(why.contains("6 queries"), "{why}");
    assert_eq!(served.ask(&get("/v1/status").token(token)).status, 200);
    silent
        .iter()
        .for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    drop(silent);
    let deadline = Instant::now() + DEADLINE;
    let answer = loop {
        let answer = served.ask(&get("/v1/query?last=1ms").token(token));
        if answer.status == 200 {
            break answer;
        }
        assert!(Instant::now() < deadline, "queries of who has left go on");
    };
    assert!(answer.is_whole);
    let status = served.handle.status().unwrap();
    assert_eq!(status.lapped, 0);
    assert!(status.sources[0].lost.values().all(|lost| *lost == Some(0)));
}

/// Slow bodies occupy all 256 permitted connections. The server evicts these connections for other
/// clients.
#[test]
fn slow_bodies_keep_nobody_out() {
    let served = Served::new();
    let slow: Vec<TcpStream> = ["view", "packets", "trigger", "admin"]
        .iter()
        .cycle()
        .take(256)
        .map(|role| {
            let slow = request("POST", "/v1/rules/test")
                .token(served.token(role))
                .header("Content-Type", "application/json")
                .header("Content-Length", "60000")
                .header("Expect", "100-continue");
            let mut stream = served.connect();
            stream.write_all(&slow.bytes("localhost")).unwrap();
            // The server is waiting for the body.
            let mut go_on = [0; 25];
            stream.read_exact(&mut go_on).unwrap();
            assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
            stream.write_all(b" ").unwrap();
            stream
        })
        .collect();
    // A body has 10 s; afterwards the connections would end without eviction.
    let begun = Instant::now();
    for _ in 0..20 {
        let answer = served.ask(&get("/v1/status").token(served.token("view")));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(begun.elapsed() < Duration::from_secs(9));
    drop(slow);
}

/// One account has at most 128 requests at a time: half of the 256 connections of an address.
#[test]
fn an_account_has_half_of_the_connections() {
    let served = Served::new();
    let slow = request("POST", "/v1/rules/test")
        .token(served.token("view"))
        .header("Content-Type", "application/json")
        .header("Content-Length", "60000");
    let begin = || {
        let mut stream = served.connect();
        stream.write_all(&slow.bytes("localhost")).unwrap();
        stream
    };
    let begun = Instant::now();
    let mut all: Vec<TcpStream> = (0..129).map(|_| begin()).collect();
    // Any of the requests may be refused.
    let refused = loop {
        assert!(begun.elapsed() < Duration::from_secs(9), "none is refused");
        let answered = all.iter_mut().find_map(|stream| {
            stream.set_nonblocking(true).unwrap();
            let is_there = stream.peek(&mut [0; 1]).is_ok();
            stream.set_nonblocking(false).unwrap();
            is_there.then(|| Answer::read(stream))
        });
        if let Some(answer) = answered {
            break answer;
        }
        std::thread::yield_now();
    };
    assert_eq!(refused.headers["retry-after"], "1");
    let why = refused.refused(429);
    assert!(why.contains("128 requests"), "{why}");
    let other = get("/v1/status").token(served.token("packets"));
    assert_eq!(served.ask(&other).status, 200);
}

/// A page of packets keeps its permit until the client has read the text or disconnects.
#[test]
fn unread_pages_occupy_places() {
    let served = Served::recording("generate:flows=10,rate=10kpps,size=4090", |_| None);
    served.wait_for_packets(2000);
    let token = served.token("packets");
    // More text than socket buffers hold.
    let page = get("/v1/packets?hex=true&limit=1000").token(token);
    let unread: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = served.connect();
            set_socket_recv_buffer_size(&stream, 4096).unwrap();
            stream.write_all(&page.bytes("localhost")).unwrap();
            stream.read_exact(&mut [0; 12]).unwrap();
            stream
        })
        .collect();
    let refused = served.ask(&get("/v1/packets?limit=1").token(token));
    let why = refused.refused(429);
    assert!(why.contains("6 queries"), "{why}");
    drop(unread);
    let deadline = Instant::now() + DEADLINE;
    while served.ask(&get("/v1/packets?limit=1").token(token)).status != 200 {
        assert!(Instant::now() < deadline, "places of who has left are lost");
    }
}
