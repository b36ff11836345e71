//! Engines other than AF_PACKET, in the whole program.

use crate::{
    capture,
    namespace::Namespace,
    recorder::{PROGRAM, Recorder, run},
    shared,
    traffic::{Sender, tagged, udp},
};

/// libpcap delivers tags in their place, so that the filter means what it means on the wire; what it refuses is counted.
#[test]
fn libpcap_records_what_the_filter_takes() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("epcap") else {
        return;
    };
    let recorder = Recorder::start_with(
        &namespace,
        &[
            "-i",
            "v1",
            "--engine",
            "pcap",
            "--ring",
            "64MiB",
            "-f",
            "vlan 10",
            "--past",
            "20s",
            "--future",
            "100ms",
            "--dump",
            "",
            "--trigger",
            "vlan and udp port 3000",
        ],
    );
    let plain = |port| udp(1, 1000, port, b"engine");
    let inside = |port| tagged(&plain(port), &[(0x8100, 10)]);
    let mut sender = Sender::new(&namespace, "v0");
    for frame in [inside(2000), plain(2000), plain(3000), inside(3000)] {
        sender.send(&frame);
    }
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert!(outcome.said("recording on v1 (pcap, "));
    let source = &outcome.json["sources"][0];
    assert_eq!(source["received"], 4, "{source}");
    assert_eq!(
        (&source["stored"], &source["filtered"]),
        (&2.into(), &2.into())
    );
    assert_eq!(source["lost"]["kernel"], 0);
    let dump = capture::read(&outcome.dumps()[0]);
    let came: Vec<&Vec<u8>> = dump.packets.iter().map(|packet| &packet.data).collect();
    assert_eq!(came, [&inside(2000), &inside(3000)]);
}

#[test]
fn what_an_engine_cannot_do_is_refused() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("erefuse") else {
        return;
    };
    let (code, words) = refused(&namespace, &["-i", "v1", "--engine", "pcap", "-Q", "in"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("--engine af-packet"), "{words}");
    let (code, words) = refused(&namespace, &["-i", "no-such-if", "--engine", "pcap"]);
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("no interface no-such-if"), "{words}");
}

/// Runs `record` with arguments that do not let it start.
fn refused(namespace: &Namespace, arguments: &[&str]) -> (i32, String) {
    let line = [&[PROGRAM, "record"], arguments].concat();
    run(namespace, &[], &line)
}
