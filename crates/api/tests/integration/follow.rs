//! Answers that follow the recording, and how they end.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread::scope,
    time::{Duration, Instant},
};

use retroscope_pcapfile::CaptureReader;

use crate::support::{Answer, DEADLINE, Served, get, request};

/// Maximum number of bytes between two pauses of a slow reader.
const PIECE: usize = 16 << 10;
/// Length of a slow reader's pause.
const PACE: Duration = Duration::from_millis(50);

fn packets(answer: &Answer) -> u64 {
    let mut capture = CaptureReader::new(&answer.body[..]).unwrap();
    let mut count = 0;
    while capture.next().unwrap().is_some() {
        count += 1;
    }
    count
}

/// Reads to the end of the connection, slowly while `is_slow`.
fn read(stream: &mut impl Read, is_slow: &AtomicBool) -> Answer {
    let (_never, pace) = mpsc::channel::<()>();
    let mut bytes = Vec::new();
    let mut piece = [0; PIECE];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Answer::parse(&bytes),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) => panic!("{error}"),
        }
        if is_slow.load(SeqCst) {
            let _ = pace.recv_timeout(PACE);
        }
    }
}

/// When the recording ends, each following query ends as HTTP demands and has a verdict. The server
/// does not wait long for a slow reader, which may miss packets.
#[test]
fn followers_have_a_verdict_when_the_recording_ends() {
    let mut served = Served::new();
    // More data than socket buffers hold.
    served.wait_for_packets(100_000);
    let kinds: Vec<(bool, bool, bool)> = (0..8)
        .map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0))
        .collect();
    let token = served.token("packets").to_owned();
    let (address, socket) = (served.address, served.socket.clone());
    let is_slow = AtomicBool::new(true);
    let prompt = AtomicBool::new(false);
    let (stored, answers) = scope(|scope| {
        let (begun, begins) = mpsc::channel();
        let (is_slow, prompt, token, socket) = (&is_slow, &prompt, &token, &socket);
        let reading = kinds.iter().map(|(has_packets, slow, is_tcp)| {
            let begun = begun.clone();
            scope.spawn(move || {
                let filter = if *has_packets { "" } else { "&filter=port+9" };
                let target = format!("/v1/query?follow=true&from=0{filter}");
                let request = get(&target).token(token);
                let pace = if *slow { is_slow } else { prompt };
                if *is_tcp {
                    let mut stream = std::net::TcpStream::connect(address).unwrap();
                    stream.write_all(&request.bytes("localhost")).unwrap();
                    begun.send(()).unwrap();
                    read(&mut stream, pace)
                } else {
                    let mut stream = UnixStream::connect(socket).unwrap();
                    stream.write_all(&request.bytes("localhost")).unwrap();
                    begun.send(()).unwrap();
                    read(&mut stream, pace)
                }
            })
        });
        let reading: Vec<_> = reading.collect();
        kinds.iter().for_each(|_| begins.recv().unwrap());
        served.wait_for_packets(150_000);
        let begin = Instant::now();
        let stored = served.end();
        assert!(begin.elapsed() < DEADLINE, "{:?}", begin.elapsed());
        is_slow.store(false, SeqCst);
        let answers = reading.into_iter().map(|reading| reading.join().unwrap());
        (stored, answers.collect::<Vec<_>>())
    });
    let mut cut_short = 0;
    for (kind, answer) in kinds.iter().zip(answers) {
        let (has_packets, slow, _) = *kind;
        assert_eq!((answer.status, answer.is_whole), (200, true), "{kind:?}");
        let told = packets(&answer);
        let complete = b"complete";
        assert!(
            answer.body.windows(complete.len()).any(|it| it == complete),
            "{kind:?}"
        );
        match (has_packets, slow) {
            (false, _) => assert_eq!(told, 0, "{kind:?}"),
            (true, false) => assert_eq!(told, stored, "{kind:?}"),
            (true, true) => cut_short += u32::from(told < stored),
        }
    }
    assert!(cut_short > 0, "no reader was far behind");
}

#[test]
fn a_follow_is_ended_by_who_asked() {
    let served = Served::new();
    served.wait_for_packets(100);
    let token = served.token("packets");
    let other = served.new_token("other", &[retroscope_api::Role::Packets], |_| {});
    for target in [
        "/v1/query?follow=true",
        "/v1/query?follow=true&filter=port+9&last=1ms",
    ] {
        let mut stream = served.connect();
        let request = get(target).token(token);
        stream.write_all(&request.bytes("localhost")).unwrap();
        let mut bytes = read_head(&mut stream);
        let head = Answer::parse(&bytes);
        let place = &head.headers["location"];
        let end = |token: &str| served.ask(&crate::support::request("DELETE", place).token(token));
        end(&other).refused(404);
        assert_eq!(end(token).status, 204);
        stream.read_to_end(&mut bytes).unwrap();
        let answer = Answer::parse(&bytes);
        assert!(answer.is_whole);
        let record = served.ask(&get(place).token(token)).done(200);
        assert_eq!(record["report"]["clipped"][0], "cancelled", "{record}");
        assert_eq!(record["report"]["packets"], packets(&answer));
        // Cancelling a query that has ended changes nothing.
        assert_eq!(end(token).status, 204);
    }
    let none = request("DELETE", "/v1/queries/0123456789abcdef").token(token);
    served.ask(&none).refused(404);
}

fn read_head(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.extend_from_slice(&byte);
    }
    bytes
}

/// When a token is revoked, its queries and events report the reason, and its download of a file is
/// cut.
#[test]
fn what_goes_on_ends_with_its_token() {
    let served = Served::new();
    served.wait_for_packets(100);
    let (packets_role, view_role) = (retroscope_api::Role::Packets, retroscope_api::Role::View);
    let gone = served.new_token("gone", &[packets_role, view_role], |_| {});
    let other = served.token("packets");
    let wanted = serde_json::json!({"future": "1h"});
    let triggered = request("POST", "/v1/triggers").json(&wanted);
    let dump = served.ask_unix(&triggered).done(201)["dump"].clone();
    let begin = |target: &str, token: &str| {
        let mut stream = served.connect();
        let request = get(target).token(token);
        stream.write_all(&request.bytes("localhost")).unwrap();
        let head = read_head(&mut stream);
        assert_eq!(Answer::parse(&head).status, 200, "{target}");
        (stream, head)
    };
    let end = |(mut stream, mut bytes): (std::net::TcpStream, Vec<u8>)| {
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    };
    let follow = "/v1/query?follow=true&filter=port+9&last=1ms";
    let (mine, theirs) = (begin(follow, &gone), begin(follow, other));
    let events = begin("/v1/events", &gone);
    let file = begin(&format!("/v1/dumps/{dump}/file"), &gone);
    served.revoke("gone");
    let answer = end(mine);
    assert!(answer.is_whole);
    let place = &answer.headers["location"];
    let report = served.ask_unix(&get(place)).done(200)["report"].clone();
    assert_eq!(report["clipped"][0], "cancelled", "{report}");
    assert_eq!(report["notes"][0], "token 'gone' was removed", "{report}");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.contains("token 'gone' was removed"), "{text}");
    let answer = end(events);
    assert!(answer.is_whole);
    let last = "event: end\ndata: {\"kind\":\"end\",\"why\":\"token 'gone' was removed\"}\n\n";
    assert!(answer.text().ends_with(last), "{:?}", answer.text());
    assert!(!end(file).is_whole, "a part of a file is none");
    // The query of the other token is still running.
    let place = Answer::parse(&theirs.1).headers["location"].clone();
    let record = served.ask(&get(&place).token(other)).done(200);
    assert_eq!(record["state"], "running", "{record}");
    let ended = request("DELETE", &place).token(other);
    assert_eq!(served.ask(&ended).status, 204);
    assert!(end(theirs).is_whole);
    let record = served.ask(&get(&place).token(other)).done(200);
    assert!(record["report"].get("notes").is_none(), "{record}");
}
