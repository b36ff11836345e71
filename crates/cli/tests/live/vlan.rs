//! VLAN tags: the kernel removes tags from frames, and a dump has them at their place on the wire.

use crate::{
    capture,
    namespace::Namespace,
    recorder::Recorder,
    shared,
    traffic::{Sender, tagged, udp},
};

/// Tag protocol identifiers of 802.1Q and 802.1ad.
const DOT1Q: u16 = 0x8100;
const DOT1AD: u16 = 0x88a8;

/// A trigger filter matches a VLAN tag. The dump must contain all frames byte for byte, with their
/// tags.
#[test]
fn tags_round_trip() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("tags") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 128MiB --past 20s --future 60s --dump '' --trigger 'vlan 10'",
    );
    let frame = |number: u64| udp(1, 1000, 2000, &number.to_be_bytes());
    let sent = [
        frame(0),
        tagged(&frame(1), &[(DOT1Q, 0x2000 | 20)]),
        tagged(&frame(2), &[(DOT1AD, 30), (DOT1Q, 40)]),
        tagged(&frame(3), &[(DOT1Q, 50), (DOT1Q, 60)]),
        tagged(&frame(4), &[(DOT1Q, 0xe000 | 10)]),
    ];
    let mut sender = Sender::new(&namespace, "v0");
    sent.iter().for_each(|frame| sender.send(frame));
    recorder.settle(sent.len() as u64);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert_eq!(outcome.json["triggers"], 1);
    let capture = capture::read(&outcome.dumps()[0]);
    let came: Vec<&Vec<u8>> = capture.packets.iter().map(|p| &p.data).collect();
    assert_eq!(came, sent.iter().collect::<Vec<_>>());
}

/// `$flow` selects the packets of a flow in both directions with any VLAN tags, and of no other
/// flow.
#[test]
fn a_flow_is_the_same_under_tags() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("flow") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 128MiB --past 20s --future 100ms --trigger 'vlan and udp port 60000'",
    );
    let frame = udp(1, 1000, 60000, &[0; 8]);
    let mut back = frame.clone();
    // Swap addresses and ports: 10.1.0.1 answers 10.0.0.1.
    back[26..30].copy_from_slice(&frame[30..34]);
    back[30..34].copy_from_slice(&frame[26..30]);
    back[34..36].copy_from_slice(&frame[36..38]);
    back[36..38].copy_from_slice(&frame[34..36]);
    let flow = [
        frame.clone(),
        tagged(&back, &[(DOT1AD, 30), (DOT1Q, 40)]),
        back.clone(),
        tagged(&frame, &[(DOT1Q, 10)]),
    ];
    let other = [
        udp(2, 1000, 60000, &[0; 8]),
        tagged(&udp(1, 1001, 2000, &[0; 8]), &[(DOT1Q, 10)]),
    ];
    let mut sender = Sender::new(&namespace, "v0");
    for frame in [&flow[0], &other[0], &flow[1], &flow[2], &other[1], &flow[3]] {
        sender.send(frame);
    }
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    let capture = capture::read(&outcome.dumps()[0]);
    let came: Vec<&Vec<u8>> = capture.packets.iter().map(|p| &p.data).collect();
    assert_eq!(came, flow.iter().collect::<Vec<_>>());
}

/// If a trigger never matches, but would match tagged packets with `vlan and` in front, the
/// recorder advises this filter.
#[test]
fn a_trigger_that_misses_tagged_packets_is_told() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("hint") else {
        return;
    };
    let recorder = Recorder::start(&namespace, "-i v1 --ring 128MiB --trigger 'udp port 60000'");
    let mut sender = Sender::new(&namespace, "v0");
    for _ in 0..3 {
        sender.send(&tagged(&udp(1, 1000, 60000, &[0; 8]), &[(DOT1Q, 10)]));
    }
    sender.send(&udp(1, 1000, 2000, &[0; 8]));
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert_eq!(outcome.json["triggers"], 0);
    assert!(
        outcome.said("3 tagged packets: try 'vlan and (udp port 60000)'"),
        "{:#?}",
        outcome.words
    );
}
