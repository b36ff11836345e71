use std::collections::HashMap;

use retroscope_packet::proto::{TCP, UDP};
use retroscope_packet::{FlowEndpoint, FlowKey};

use super::*;
use crate::{BiflowKey, DirectedKey, TcpState, TimeOutStage, index};

const SECOND: i64 = 1_000_000_000;
/// Width of a slot of the fine default resolution, ns.
const FINE: i64 = 1 << 27;

/// The key between port 80 of 10.0.0.1 and `port` of the address 11.0.0.0 + `addr`.
fn key(proto: u8, addr: u32, port: u16) -> BiflowKey {
    let end = |addr: u32, port| FlowEndpoint {
        addr: std::net::Ipv4Addr::from(addr).into(),
        port,
    };
    BiflowKey::from(FlowKey::Ports {
        proto,
        low: end(0x0a00_0001, 80),
        high: end(0x0b00_0000 + addr, port),
    })
}

fn packet(key: BiflowKey, is_reverse: bool, time_ns: i64) -> FlowPacket {
    FlowPacket::new(DirectedKey { key, is_reverse }, time_ns, 100, None)
}

fn known(seed: u64) -> Secret {
    let mut random = fastrand::Rng::with_seed(seed);
    let words: [u64; 14] = std::array::from_fn(|_| random.u64(..));
    Secret::from_words(|n| words[n])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Facts {
    first_ns: i64,
    last_ns: i64,
    packets: [u64; 2],
    bytes: [u64; 2],
    server: usize,
}

fn facts(flow: &Flow) -> Facts {
    Facts {
        first_ns: flow.first_ns(),
        last_ns: flow.last_ns(),
        packets: flow.packets(),
        bytes: flow.bytes(),
        server: flow.server(),
    }
}

fn assert_sums(table: &FlowTable) {
    let counters = table.counters();
    let FlowTableCounters {
        begun,
        timed_out,
        reused,
        full,
        crowded,
        finished,
        ..
    } = counters;
    let ended = timed_out + reused + full + crowded + finished;
    assert_eq!(begun, ended + table.len() as u64, "{counters:?}");
    assert_eq!(table.flows().count(), table.len());
}

#[test]
fn it_agrees_with_a_map() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let time_outs = match seed % 3 {
            0 => TimeOuts::default(),
            1 => TimeOuts::idle(random.i64(1..20 * SECOND)),
            _ => TimeOuts::idle(0),
        };
        let (mut table, mut now) = (FlowTable::new(5000, time_outs, known(seed)), -SECOND);
        let mut live = HashMap::<BiflowKey, Facts>::new();
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let flows = 1 << random.u32(0..12);
        for _ in 0..200 {
            let mut batch = Vec::new();
            for _ in 0..random.u32(0..200) {
                now += random.i64(0..SECOND / 20);
                let time_ns = now - random.i64(0..SECOND / 5);
                let key = key(UDP, random.u32(0..flows), 9);
                let packet = packet(key, random.bool(), time_ns);
                batch.push(packet);
                let from = usize::from(packet.ends.is_reverse);
                if let Some(flow) = live.get(&key) {
                    let stage = match flow.packets.contains(&0) {
                        true => TimeOutStage::New,
                        false => TimeOutStage::Established,
                    };
                    let due = time_outs.due_ns(flow.last_ns + time_outs.of(UDP, stage));
                    if due <= time_ns && time_outs.has_end {
                        expected.push((key, *flow));
                        live.remove(&key);
                    }
                }
                let flow = live.entry(key).or_insert(Facts {
                    first_ns: time_ns,
                    last_ns: time_ns,
                    packets: [0; 2],
                    bytes: [0; 2],
                    server: 1 - from,
                });
                if time_ns < flow.first_ns {
                    (flow.first_ns, flow.server) = (time_ns, 1 - from);
                }
                flow.last_ns = flow.last_ns.max(time_ns);
                flow.packets[from] += 1;
                flow.bytes[from] += 100;
            }
            table.update(&batch, |flow, end| {
                assert_eq!(end, FlowEnd::TimeOut);
                found.push((*flow.key(), facts(flow)));
            });
            if random.bool() {
                // Earlier than any late packet that may follow, so that table and map split each
                // flow alike.
                let time_ns = now - SECOND;
                let mut ended = Vec::new();
                table.expire(time_ns, |flow, _| ended.push((*flow.key(), facts(flow))));
                for (key, _) in &ended {
                    expected.push((*key, live.remove(key).unwrap()));
                }
                found.extend(ended);
                let overdue = table.flows().any(|flow| {
                    let due = flow.due_ns(&time_outs) + FINE;
                    due < time_ns && time_outs.has_end
                });
                assert!(!overdue, "seed {seed}");
            }
            assert_sums(&table);
        }
        assert_eq!(table.len(), live.len());
        table.finish(|flow, _| found.push((*flow.key(), facts(flow))));
        expected.extend(live);
        let sorted = |mut flows: Vec<(BiflowKey, Facts)>| {
            flows.sort_by_key(|(key, facts)| (key.endpoints(), *facts));
            flows
        };
        assert_eq!(sorted(found), sorted(expected), "seed {seed}");
        assert_sums(&table);
        assert!(table.is_empty());
    }
}

#[test]
fn nothing_is_lost_when_flows_go_within_a_batch() {
    for (seed, secret) in [(0, known(1)), (1, Secret::from_words(|_| 0))] {
        let mut random = fastrand::Rng::with_seed(seed);
        for flows_max in [1, 2, 13, 100, 500] {
            let mut table = FlowTable::new(flows_max, TimeOuts::default(), secret.clone());
            let (mut sent, mut packets) = (0, 0);
            for round in 0..500 {
                let batch: Vec<_> = (0..200)
                    .map(|_| {
                        let key = key(TCP, random.u32(0..1000), 9);
                        let mut packet = packet(key, random.bool(), round * SECOND);
                        packet.tcp_flags = Some(random.u8(..32));
                        packet
                    })
                    .collect();
                sent += 200;
                let mut ended = |flow: &Flow, _| packets += flow.packets().iter().sum::<u64>();
                table.update(&batch, &mut ended);
                if random.bool() {
                    table.expire(round * SECOND, &mut ended);
                }
                assert!(table.len() <= flows_max);
                assert!(table.queue.len() <= 3 * flows_max);
                assert_sums(&table);
            }
            table.finish(|flow, _| packets += flow.packets().iter().sum::<u64>());
            assert_eq!((packets, table.counters().packets), (sent, sent));
        }
    }
}

/// Flows begin and are removed at once, next to one flow that stays.
#[test]
fn entries_of_removed_flows_are_deleted() {
    for step_ns in [0, 1000] {
        let mut table: FlowTable = FlowTable::new(8, TimeOuts::default(), known(1));
        table.update(&[packet(key(UDP, 0, 1), false, 0)], |_, _| {});
        for number in 1..1000 {
            let other = packet(key(UDP, number, 1), false, i64::from(number) * step_ns);
            let mut slot = None;
            table.update_each(&[other], |its, _| slot = Some(its), |_, _| {});
            table.remove(slot.unwrap());
            assert!(table.queue.len() <= 3 * 8 + 1, "{number}");
        }
        assert_eq!(table.len(), 1);
        let mut ended = 0;
        table.expire(24 * 3600 * SECOND, |_, end| {
            assert_eq!(end, FlowEnd::TimeOut);
            ended += 1;
        });
        assert_eq!(ended, 1);
    }
}

#[test]
fn a_full_table_gives_up_what_would_end_first() {
    let mut table = FlowTable::new(1000, TimeOuts::default(), known(1));
    let mut given_up = Vec::new();
    // Two hundred flows continue in both directions. Each other flow has one packet.
    for n in 0..20_000 {
        let time_ns = i64::from(n) * SECOND / 1000;
        let batch = [
            packet(key(UDP, n % 200, 1), n % 400 < 200, time_ns),
            packet(key(UDP, n, 2), false, time_ns),
        ];
        table.update(&batch, |flow, end| {
            assert_eq!(end, FlowEnd::Full);
            given_up.push((flow.first_ns(), flow.packets()));
        });
    }
    assert_eq!(table.len(), 1000);
    assert_eq!(table.counters().full, 20_200 - 1000);
    let busy = given_up.iter().filter(|flow| flow.1[0] + flow.1[1] > 1);
    assert_eq!(busy.count(), 0);
    let last = given_up.iter().map(|flow| flow.0).max().unwrap();
    let first = table
        .flows()
        .filter(|flow| flow.packets()[1] == 0)
        .map(Flow::first_ns);
    // Flows of one second end together.
    assert!(last - first.min().unwrap() < SECOND + FINE);
}

#[test]
fn keys_aimed_at_a_known_secret_crowd_each_other_only() {
    let mut table = FlowTable::new(10_000, TimeOuts::default(), Secret::from_words(|_| 0));
    let before = table.memory_bytes();
    for n in 0..100_000 {
        let time_ns = i64::from(n) * 1000;
        table.update(&[packet(key(UDP, n, 1), false, time_ns)], |_, end| {
            assert_eq!(end, FlowEnd::Crowded);
        });
    }
    let room = index::GROUP * index::PROBES;
    assert_eq!(table.len(), room);
    assert_eq!(table.counters().crowded, 100_000 - room as u64);
    assert_eq!(table.queue.len(), room, "one entry for each");
    assert!(table.memory_bytes() < before + 1_000_000);
    table.expire(100 * SECOND, |_, end| assert_eq!(end, FlowEnd::TimeOut));
    assert_eq!((table.len(), table.queue.len()), (0, 0));
}

/// Sends flows of one packet, more than the table allows, while time advances.
fn flood(flows: u32, flows_max: usize) {
    let mut table = FlowTable::new(flows_max, TimeOuts::default(), known(1));
    let mut batch = Vec::new();
    let mut most = 0;
    for n in 0..flows {
        let key = key(TCP, n, 80);
        // A million flows a second.
        let mut packet = packet(key, false, i64::from(n) * 1000);
        packet.tcp_flags = Some(2);
        batch.push(packet);
        if batch.len() == 64 {
            table.update(&batch, |_, _| {});
            table.expire(i64::from(n) * 1000, |_, _| {});
            batch.clear();
        }
        if n % 50_000 == 0 {
            most = most.max(table.memory_bytes());
        }
    }
    let begun = u64::from(flows) / 64 * 64;
    assert_eq!(table.counters().begun, begun);
    assert_eq!(table.len(), flows_max);
    assert_eq!(table.counters().crowded, 0);
    let bound = 400 * flows_max + (10 << 20);
    assert!(most < bound, "{most} of {bound} bytes");
    assert_sums(&table);
}

#[test]
fn a_million_flows_of_one_packet_take_bounded_memory() {
    flood(1_000_000, 100_000);
}

#[test]
#[ignore = "ten times as long"]
fn ten_million_flows_of_one_packet_take_bounded_memory() {
    flood(10_000_000, 1_000_000);
}

/// The table after TCP packets with one key, and the flows that ended. A packet is: whether the
/// second end sent it, the TCP flags, the time in seconds.
fn tcp(time_outs: TimeOuts, packets: &[(bool, u8, i64)]) -> (FlowTable, Vec<(Flow, FlowEnd)>) {
    let mut table = FlowTable::new(10, time_outs, known(1));
    let mut ended = Vec::new();
    let packets: Vec<_> = packets
        .iter()
        .map(|&(is_reverse, flags, seconds)| {
            let ends = DirectedKey {
                key: key(TCP, 1, 9),
                is_reverse,
            };
            FlowPacket::new(ends, seconds * SECOND, 60, Some(flags)).with_payload(&[flags])
        })
        .collect();
    table.update(&packets, |flow, end| ended.push((*flow, end)));
    (table, ended)
}

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const FIN_ACK: u8 = 17;
const SYN_ACK: u8 = 18;

#[test]
fn flags_tell_the_server_and_the_state() {
    type Case<'c> = (&'c [(bool, u8, i64)], TcpState, usize, bool);
    let handshake = [(true, SYN, 0), (false, SYN_ACK, 0), (true, ACK, 0)];
    let closing = [&handshake[..], &[(false, FIN_ACK, 1)]].concat();
    let closed = [&closing[..], &[(true, FIN_ACK, 1), (false, ACK, 1)]].concat();
    let reset = [&handshake[..], &[(true, RST, 1)]].concat();
    let unanswered = [(true, SYN, 0), (true, RST, 1)];
    let refused = [(true, SYN, 0), (false, RST | ACK, 1)];
    // The client's ACK was not captured; an ACK of the server follows.
    let lost = [&handshake[..2], &[(false, ACK, 0)]].concat();
    let cases: [Case<'_>; 14] = [
        (&handshake[..1], TcpState::SynSent, 0, false),
        (&handshake[..2], TcpState::SynReceived, 0, false),
        (&handshake, TcpState::Established, 0, false),
        (&closing, TcpState::Closing, 0, false),
        (&closed, TcpState::Closed, 0, false),
        (&reset, TcpState::Closed, 0, false),
        (&[(false, SYN, 0)], TcpState::SynSent, 1, false),
        (&[(true, ACK, 0), (false, ACK, 0)], TcpState::None, 0, true),
        (&[(false, SYN_ACK, 0)], TcpState::None, 1, true),
        (&[(true, RST, 0)], TcpState::None, 0, true),
        (&unanswered, TcpState::SynSent, 0, false),
        (&refused, TcpState::Closed, 0, false),
        (&lost, TcpState::Established, 0, false),
        (
            &[(true, FIN_ACK, 0), (false, ACK, 0)],
            TcpState::None,
            0,
            true,
        ),
    ];
    for (packets, state, server, is_midstream) in cases {
        let (table, ended) = tcp(TimeOuts::default(), packets);
        assert!(ended.is_empty());
        let flow = table.flows().next().unwrap();
        let found = (flow.tcp_state(), flow.server(), flow.is_midstream());
        assert_eq!(found, (state, server, is_midstream), "{packets:?}");
        assert_eq!(flow.payload(), [packets[0].1], "of the first packet");
    }
}

/// With several queues an answer may be counted before its request.
#[test]
fn the_first_packet_is_the_oldest() {
    let mut table = FlowTable::new(10, TimeOuts::default(), Secret::random());
    let mut packets =
        [1, 0, 2].map(|second| packet(key(UDP, 1, 7), second % 2 == 1, second * SECOND));
    for (packet, interface) in packets.iter_mut().zip([5, 6, 7]) {
        packet.interface = interface;
    }
    table.update(&packets, |_, _| {});
    let flow = table.flows().next().unwrap();
    let client = usize::from(packets[1].ends.is_reverse);
    assert_eq!((flow.server(), flow.interface()), (1 - client, 6));
    assert_eq!((flow.first_ns(), flow.last_ns()), (0, 2 * SECOND));
}

#[test]
fn a_closed_flow_ends_sooner_and_a_syn_begins_another() {
    let packets = [
        (true, SYN, 0),
        (false, SYN_ACK, 0),
        (true, ACK, 0),
        (true, RST, 100),
    ];
    let (mut table, _) = tcp(TimeOuts::default(), &packets[..3]);
    // The queue still has the due time of the open flow.
    table.expire(90 * SECOND, |_, _| panic!("early"));
    assert_eq!(table.queue.peek().unwrap().stamp, stamp(301 * SECOND));
    let mut reset = packet(key(TCP, 1, 9), true, 100 * SECOND);
    reset.tcp_flags = Some(RST);
    table.update(&[reset], |_, _| panic!("early"));
    table.expire(111 * SECOND - 1, |_, _| panic!("early"));
    table.expire(111 * SECOND + FINE, |_, _| {});
    assert_eq!((table.counters().timed_out, table.len()), (1, 0));

    let again = [&packets[..], &[(false, SYN, 101), (false, ACK, 1000)]].concat();
    let (table, ended) = tcp(TimeOuts::default(), &again);
    let ended: Vec<_> = ended
        .iter()
        .map(|(flow, end)| (flow.packets(), flow.server(), *end))
        .collect();
    assert_eq!(ended[0], ([1, 3], 0, FlowEnd::Reused));
    assert_eq!(ended[1], ([1, 0], 1, FlowEnd::TimeOut));
    assert_eq!((table.len(), ended.len()), (1, 2));

    let (table, ended) = tcp(TimeOuts::idle(0), &again);
    assert_eq!((table.len(), ended.len()), (1, 0));
    assert_eq!(table.flows().next().unwrap().packets(), [3, 3]);
}

/// Suricata compares whole seconds.
#[test]
fn a_flow_is_over_when_the_second_of_its_time_out_has_passed() {
    let end_of = |time_outs, last_ns, time_ns| {
        let mut table = FlowTable::new(10, time_outs, known(1));
        let mut ended = Vec::new();
        let packets = [last_ns, time_ns].map(|time_ns| packet(key(UDP, 1, 7), false, time_ns));
        table.update(&packets, |flow, end| {
            ended.push((end, flow.due_ns(&time_outs)));
        });
        ended.pop()
    };
    let late = SECOND - 1;
    let default = TimeOuts::default();
    for (last_ns, time_ns, is_over) in [
        (0, 30 * SECOND + late, false),
        (0, 31 * SECOND, true),
        (late, 31 * SECOND - 1, false),
        (late, 31 * SECOND, true),
        (-1, 30 * SECOND - 1, false),
        (-1, 30 * SECOND, true),
    ] {
        let second = last_ns.div_euclid(SECOND);
        let end = is_over.then_some((FlowEnd::TimeOut, (second + 31) * SECOND));
        assert_eq!(
            end_of(default, last_ns, time_ns),
            end,
            "{last_ns} {time_ns}"
        );
    }
    let exact = TimeOuts::idle(30 * SECOND);
    assert_eq!(end_of(exact, 5, 30 * SECOND + 4), None);
    let end = Some((FlowEnd::TimeOut, 30 * SECOND + 5));
    assert_eq!(end_of(exact, 5, 30 * SECOND + 5), end);
    let last = end_of(default, i64::MAX - 1, i64::MAX);
    assert_eq!(last, Some((FlowEnd::TimeOut, i64::MAX)));
}

/// A client without an answer repeats the same SYN. The SYN of a new connection has another
/// sequence number, or is the server's.
#[test]
fn a_syn_begins_another_flow_unless_it_is_sent_again() {
    type Part = (bool, u8, u32);
    let refused: &[Part] = &[(true, SYN, 5), (false, RST | ACK, 0)];
    let open: &[Part] = &[(true, SYN, 5), (false, SYN_ACK, 9), (true, ACK, 6)];
    let half = [open, &[(true, FIN_ACK, 6)]].concat();
    let left = [open, &[(false, FIN_ACK, 10)]].concat();
    let cases: [(&[Part], Part, bool); 12] = [
        (refused, (true, SYN, 5), false),
        (refused, (true, SYN, 6), true),
        (refused, (false, SYN, 5), true),
        (refused, (true, SYN | RST, 6), false),
        (refused, (true, SYN_ACK, 6), false),
        (&refused[..1], (true, SYN, 6), false),
        (open, (true, SYN, 6), false),
        (&half, (true, SYN, 5), false),
        (&half, (true, SYN, 7), true),
        (&left, (true, SYN, 7), false),
        (&[(true, ACK, 5), (true, RST, 5)], (true, SYN, 5), true),
        (&[(false, SYN_ACK, 5)], (true, SYN, 5), true),
    ];
    for (before, syn, is_another) in cases {
        let mut table = FlowTable::new(10, TimeOuts::default(), known(1));
        let mut ends = Vec::new();
        for (nth, &(is_reverse, flags, seq)) in (1..).zip(before.iter().chain([&syn])) {
            let mut packet = packet(key(TCP, 1, 9), is_reverse, nth);
            (packet.tcp_flags, packet.tcp_seq) = (Some(flags), seq);
            table.update(&[packet], |_, end| ends.push(end));
        }
        let expected = is_another.then_some(FlowEnd::Reused);
        assert_eq!(ends, Vec::from_iter(expected), "{before:?}, {syn:?}");
    }
}

/// With several queues a SYN may be counted after its answer.
#[test]
fn a_syn_that_is_older_than_its_answer_is_of_the_same_flow() {
    let (table, ended) = tcp(TimeOuts::default(), &[(false, SYN_ACK, 1), (true, SYN, 0)]);
    assert!(ended.is_empty());
    let flow = table.flows().next().unwrap();
    assert_eq!((flow.server(), flow.is_midstream()), (0, false));
}
