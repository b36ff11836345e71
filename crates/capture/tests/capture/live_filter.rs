//! Tests of filters in the kernel over veth. A kernel filter must accept the same frames as the
//! user's filter accepts on the wire, with and without VLAN tags. It must not truncate a frame
//! below the snap length. Needs root and `ip`.

use crate::support::{
    namespace::Namespace,
    traffic::{Taken, send_all, stop_and_drain, with_tag},
};
use retroscope_capture::{
    Offer, Queue, Source,
    af_packet::{LiveConfig, LiveSource},
};
use retroscope_filter::{Aux, FilterMode, LinkContext, Program, compile};
use retroscope_packet::LinkType;

/// Opens `v1` with an offer. Returns the queues, and whether the kernel filters.
fn open(offer: &Offer, queues: usize) -> (Vec<Box<dyn Queue>>, bool) {
    let source = Box::new(LiveSource(LiveConfig::new("v1", "retroscope")));
    let queues = source.probe(queues).unwrap().open(offer).unwrap();
    let is_filtered = queues[0].is_filtered();
    (queues, is_filtered)
}

fn program(expression: &str) -> Program {
    let link = LinkContext {
        link_type: LinkType::ETHERNET,
        snaplen: 262_144,
        mode: FilterMode::Live,
        optimize: true,
    };
    compile(expression, link).unwrap()
}

fn offer(program: &Program, snaplen: u32) -> Offer {
    Offer {
        programs: vec![(LinkType::ETHERNET, program.instructions().to_vec())],
        is_filtered_behind: false,
        snaplen,
    }
}

/// IPv4 with TCP or UDP, IPv6, ARP and a local EtherType, each without a VLAN tag and after six
/// different stacks of tags. The last byte of a frame is its number.
fn frames() -> Vec<Vec<u8>> {
    let tags: [&[u8]; 7] = [
        &[],
        &[0x81, 0, 0x20, 10],
        &[0x81, 0, 0, 11],
        &[0x88, 0xa8, 0, 20, 0x81, 0, 0, 30],
        &[0x81, 0, 0, 20, 0x81, 0, 0, 30],
        &[0x88, 0xa8, 0xe0, 10],
        &[0x91, 0, 0, 10],
    ];
    let ipv4 = |protocol| {
        let mut packet = vec![8, 0, 0x45, 0, 0, 60, 0, 1, 0, 0, 64, protocol, 0, 0];
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0, 0, 53, 0, 0, 0, 0]);
        packet
    };
    let mut ipv6 = vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 17, 64];
    ipv6.extend([0x20; 32]);
    ipv6.extend([0, 53, 0, 53]);
    let payloads = [
        ipv4(6),
        ipv4(17),
        ipv6,
        vec![8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        vec![0x88, 0xb5],
    ];
    let mut frames = Vec::new();
    for tag in tags {
        for payload in &payloads {
            let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
            frame.extend(tag);
            frame.extend(payload);
            frame.resize(90, 0);
            frame.push(u8::try_from(frames.len()).unwrap());
            frames.push(frame);
        }
    }
    frames
}

/// Stops the queues. Returns the captured frames, in the form that they had on the wire.
fn came(queues: &mut [Box<dyn Queue>]) -> Vec<Vec<u8>> {
    let mut came = Vec::new();
    for queue in queues {
        let mut taken = Taken::default();
        stop_and_drain(queue.as_mut(), &mut taken);
        came.extend(taken.frames.iter().map(|(meta, data)| with_tag(meta, data)));
    }
    // Frames of different queues have no defined order. The last byte of a frame is its number.
    came.sort_by_key(|frame| frame.last().copied());
    came
}

#[test]
fn the_kernel_takes_what_the_filter_takes_on_the_wire() {
    let Some(namespace) = Namespace::with_veth("kfilter") else {
        return;
    };
    let expressions = [
        "ip",
        "ip6",
        "arp",
        "tcp",
        "udp port 53",
        "vlan",
        "vlan 10",
        "not vlan",
        "vlan and tcp",
        "vlan 10 and udp port 53",
        "vlan and vlan",
        "vlan 20 and vlan 30 and tcp",
        "(vlan and ip) or (not vlan and ip6)",
        "ether[14] & 0xe0 = 0xe0",
        "ether[12:2] = 0x88a8",
        "len = 91",
    ];
    namespace.enter(|| {
        let frames = frames();
        for (number, expression) in expressions.iter().enumerate() {
            let program = program(expression);
            let (mut queues, is_filtered) = open(&offer(&program, 0), 1 + number % 2);
            assert!(is_filtered, "{expression}");
            send_all("v0", &frames);
            let expected: Vec<_> = frames
                .iter()
                .filter(|frame| program.run(frame, 91, Aux::default()) != 0)
                .cloned()
                .collect();
            assert!(!expected.is_empty(), "{expression}");
            assert_eq!(came(&mut queues), expected, "{expression}");
        }
    });
}

#[test]
fn a_filter_that_the_kernel_cannot_decide_is_not_taken() {
    let Some(namespace) = Namespace::with_veth("ufilter") else {
        return;
    };
    namespace.enter(|| {
        let frames = frames();
        for offer in [
            offer(&program("inbound"), 60),
            Offer {
                is_filtered_behind: true,
                snaplen: 60,
                ..Offer::default()
            },
        ] {
            let (mut queues, is_filtered) = open(&offer, 1);
            assert!(!is_filtered);
            send_all("v0", &frames);
            assert_eq!(came(&mut queues), frames, "whole");
        }
    });
}

#[test]
fn frames_are_cut_in_the_kernel_behind_what_is_wanted() {
    let Some(namespace) = Namespace::with_veth("ksnap") else {
        return;
    };
    namespace.enter(|| {
        for programs in [vec![], offer(&program("vlan or not vlan"), 0).programs] {
            let (mut queues, _) = open(
                &Offer {
                    programs,
                    is_filtered_behind: false,
                    snaplen: 60,
                },
                1,
            );
            let frames = frames();
            send_all("v0", &frames);
            let mut taken = Taken::default();
            stop_and_drain(queues[0].as_mut(), &mut taken);
            assert_eq!(taken.frames.len(), frames.len());
            for ((meta, data), sent) in taken.frames.iter().zip(&frames) {
                let tag = 4 * u32::from(meta.vlan.is_some());
                let wire = with_tag(meta, data);
                assert_eq!(meta.wire_len + tag, 91);
                assert!((61..=70).contains(&wire.len()), "{}", wire.len());
                assert_eq!(wire, sent[..wire.len()]);
            }
        }
    });
}
