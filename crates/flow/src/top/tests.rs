use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use retroscope_packet::{FlowEndpoint, FlowKey, proto::UDP};

use super::*;
use crate::Ends;

/// Of a flow from one of the first hosts of 10.0.0.0/24 to another, or back.
fn packet(flow: u16, is_reverse: bool, wire_len: u32) -> Packet {
    let end = |host: u16, port| FlowEndpoint {
        addr: Ipv4Addr::from(0x0a00_0000 | u32::from(host)).into(),
        port,
    };
    let (low, high) = (end(1 + flow % 3, 53), end(3 + flow % 5, flow));
    let proto = UDP;
    let key = Key::from(FlowKey::Ports { proto, low, high });
    Packet::new(Ends { key, is_reverse }, 0, wire_len, None)
}

/// Beside a list of all packets: two shards, of which one is looked at late now and then, or finds no room for its slice.
#[test]
fn a_window_agrees_with_a_list() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let seconds = random.u32(1..6);
        let mut window = Window::new(seconds);
        let mut shards = [0, 1].map(|_| (Top::new(1000, Secret::random()), Vec::new(), 0));
        // What was given: when it began and ended, and its packets.
        let mut given: Vec<([i64; 2], Vec<Packet>)> = Vec::new();
        for now_ns in (0..20).map(|n| n * SLICE_NS / 2) {
            for (top, waiting, begin_ns) in &mut shards {
                for _ in 0..random.usize(0..30) {
                    let packet = packet(random.u16(0..40), random.bool(), random.u32(60..1500));
                    top.count(&[packet]);
                    waiting.push(packet);
                }
                let has_room = random.u8(..) > 60;
                top.give(now_ns, |slice| {
                    if !has_room {
                        return Err(slice);
                    }
                    window.add(slice);
                    given.push(([*begin_ns, now_ns], std::mem::take(waiting)));
                    *begin_ns = now_ns;
                    Ok(())
                });
            }
            let end_ns = given.iter().map(|(times_ns, _)| times_ns[1]).max();
            let left_ns = end_ns.unwrap_or_default() - i64::from(seconds) * SLICE_NS;
            given.retain(|(times_ns, _)| times_ns[1] > left_ns + SLICE_NS / 2);
            let mut sums = BTreeMap::<Key, Volume>::new();
            let mut hosts = BTreeMap::<Host, BTreeMap<Key, [u64; 2]>>::new();
            for packet in given.iter().flat_map(|(_, packets)| packets) {
                let (key, len) = (packet.ends.key, u64::from(packet.wire_len));
                let from = usize::from(packet.ends.is_reverse);
                let sum = sums.entry(key).or_default();
                sum.packets += 1;
                sum.bytes[from] += len;
                let [low, high] = key.hosts();
                let ends = [low, high].into_iter().enumerate();
                for (end, host) in ends.take(if low == high { 1 } else { 2 }) {
                    let flows = hosts.entry(host).or_default();
                    flows.entry(key).or_default()[from ^ end] += len;
                }
            }
            let report = window.report(1000, By::Packets);
            assert_eq!(report.flows, sums.len() as u64, "seed {seed}");
            let packets: u64 = sums.values().map(|sum| sum.packets).sum();
            assert_eq!(report.total.packets, packets, "seed {seed}");
            let begin_ns = given.iter().map(|(times_ns, _)| times_ns[0]).min();
            assert_eq!(
                report.span_ns,
                end_ns.unwrap_or_default() - begin_ns.unwrap_or_default()
            );
            assert!(
                report
                    .rows
                    .is_sorted_by_key(|row| Reverse(row.volume.packets))
            );
            for row in report.rows {
                let Subject::Flow(key) = row.subject else {
                    panic!("{row:?}")
                };
                assert_eq!(Some(row.volume), sums.remove(&key), "seed {seed}");
            }
            assert!(sums.is_empty());
            for row in window.report(1000, By::Flows).rows {
                let Subject::Host(host) = row.subject else {
                    panic!("{row:?}")
                };
                let flows = hosts.remove(&host).unwrap();
                let sum = |end: usize| flows.values().map(|bytes| bytes[end]).sum::<u64>();
                assert_eq!(
                    (row.flows, row.volume.bytes),
                    (flows.len() as u64, [sum(0), sum(1)])
                );
            }
            assert!(hosts.is_empty());
        }
    }
}

/// What finds no room is in the sum, and a large flow has a place in the next second at the latest.
#[test]
fn a_flood_takes_no_more_memory() {
    let mut top = Top::new(100, Secret::random());
    let mut window = Window::new(10);
    top.give(0, |_| unreachable!("a second is not over"));
    let flood: Vec<Packet> = (0..1000).map(|flow| packet(flow, false, 100)).collect();
    top.count(&flood);
    for now_ns in [1, 2] {
        top.count(&[packet(5000, true, 1000); 50]);
        top.give(now_ns * SLICE_NS, |slice| {
            assert!(slice.flows.capacity() <= 128);
            window.add(slice);
            Ok(())
        });
    }
    let report = window.report(1, By::Bits);
    assert_eq!((report.flows, report.untracked.packets), (101, 950));
    assert_eq!((report.total.packets, report.rows.len()), (1100, 1));
    assert_eq!(report.rows[0].volume.bytes, [0, 50_000]);
}
