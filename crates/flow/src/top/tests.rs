use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use retroscope_packet::{FlowEndpoint, FlowKey, proto::UDP};

use super::*;
use crate::DirectedKey;

/// A packet of a flow between two of the first hosts of 10.0.0.0/24, or its reverse.
fn packet(flow: u16, is_reverse: bool, wire_len: u32) -> FlowPacket {
    let end = |host: u16, port| FlowEndpoint {
        addr: Ipv4Addr::from(0x0a00_0000 | u32::from(host)).into(),
        port,
    };
    let (low, high) = (end(1 + flow % 3, 53), end(3 + flow % 5, flow));
    let proto = UDP;
    let key = BiflowKey::from(FlowKey::Ports { proto, low, high });
    FlowPacket::new(DirectedKey { key, is_reverse }, 0, wire_len, None)
}

/// Compares a window with a list of all packets. Two shards sometimes find no room for a slice, and
/// give a longer slice later.
#[test]
fn a_window_agrees_with_a_list() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let seconds = random.u32(1..6);
        let mut window = TopWindow::new(seconds);
        let mut shards = [0, 1].map(|_| (TopCounter::new(1000, Secret::random()), Vec::new(), 0));
        // The slices that were given away: start, end and packets.
        let mut given: Vec<([i64; 2], Vec<FlowPacket>)> = Vec::new();
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
            let mut sums = BTreeMap::<BiflowKey, TrafficVolume>::new();
            let mut hosts = BTreeMap::<Host, BTreeMap<BiflowKey, [u64; 2]>>::new();
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
            let report = window.report(1000, TopOrder::Packets);
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
                let TopSubject::Flow(key) = row.subject else {
                    panic!("{row:?}")
                };
                assert_eq!(Some(row.volume), sums.remove(&key), "seed {seed}");
            }
            assert!(sums.is_empty());
            for row in window.report(1000, TopOrder::Flows).rows {
                let TopSubject::Host(host) = row.subject else {
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

/// Flows without room count in the total, and a large flow has a place in the next second at the
/// latest.
#[test]
fn a_flood_takes_no_more_memory() {
    let mut top = TopCounter::new(100, Secret::random());
    let mut window = TopWindow::new(10);
    top.give(0, |_| unreachable!("a second is not over"));
    let flood: Vec<FlowPacket> = (0..1000).map(|flow| packet(flow, false, 100)).collect();
    top.count(&flood);
    for now_ns in [1, 2] {
        top.count(&[packet(5000, true, 1000); 50]);
        top.give(now_ns * SLICE_NS, |slice| {
            assert!(slice.flows.capacity() <= 128);
            window.add(slice);
            Ok(())
        });
    }
    let report = window.report(1, TopOrder::Bits);
    assert_eq!((report.flows, report.untracked.packets), (101, 950));
    assert_eq!((report.total.packets, report.rows.len()), (1100, 1));
    assert_eq!(report.rows[0].volume.bytes, [0, 50_000]);
}
