//! `-i TCP@HOST:PORT`: one live connection, whose end stops the recording.

use std::{fs, io::Write, net::TcpListener};

use super::{S, record, write_capture};
use crate::support::stderr;

#[test]
fn a_stream_is_recorded_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    write_capture(&capture, 20_000, 100, S / 1000, None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(&fs::read(capture).unwrap()).unwrap();
        drop(socket);
        // The test later checks, without waiting, that no second connection has arrived.
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let out = dir.path().join("out");
    let (output, json) = record(&[
        "-i",
        &format!("TCP@{address}"),
        "--ring",
        "32MiB",
        "--trigger",
        "udp port 60000",
        "--past",
        "100ms",
        "--future",
        "0s",
        "--dump",
        "udp",
        "-w",
        out.to_str().unwrap(),
    ]);
    let json = json.unwrap();
    let words = stderr(&output);
    assert!(words.contains("pcap over IP"), "{words}");
    let source = &json["sources"][0];
    assert_eq!(
        (&source["received"], &source["stored"]),
        (&20_000.into(), &20_000.into())
    );
    assert!(source["lost"]["upstream"].is_null(), "{source}");
    let dumps = json["dumps"].as_array().unwrap();
    assert_eq!(dumps.len(), 2, "{words}");
    for dump in dumps {
        assert_eq!(dump["packets"], 101, "{dump}");
        let notes = dump["notes"].to_string();
        assert!(notes.contains("upstream"), "{dump}");
    }
    let listener = server.join().unwrap();
    assert!(listener.accept().is_err(), "it connected twice");
}

#[test]
fn addresses_are_checked() {
    let (output, _) = record(&["-i", "TCP@nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("TCP@HOST:PORT"),
        "{}",
        stderr(&output)
    );
}
