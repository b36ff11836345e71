//! Measures the average time and length of a line, ns and bytes. The million flows are TCP and UDP
//! over IPv4, and UDP over IPv6.
#![allow(clippy::print_stdout, reason = "it is what an example is for")]

use std::time::Instant;

use retroscope_eve::{FlowContext, flow};
use retroscope_flow::{DirectedKey, EndedFlow, FlowEnd, FlowPacket, FlowTable, Secret, TimeOuts};
use retroscope_packet::{LinkType, parse};

const FLOWS: u32 = 1_000_000;

/// A packet without link header. Each number gives a separate flow.
fn packet(number: u32) -> Vec<u8> {
    let (proto, is_v6) = (
        if number.is_multiple_of(2) { 6 } else { 17 },
        number % 8 == 7,
    );
    let mut data = if is_v6 {
        let mut data = vec![0x60, 0, 0, 0, 0, 40, proto, 64];
        data.extend([0x20; 12]);
        data.extend(number.to_be_bytes());
        data.extend([0x2a; 16]);
        data
    } else {
        let mut data = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, proto, 0, 0];
        data.extend(number.to_be_bytes());
        data.extend([192, 168, 178, 200]);
        data
    };
    data.extend([200, 7, 1, 187, 0, 40, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0]);
    data.extend([0x16; 24]);
    data
}

fn main() {
    let mut table = FlowTable::new(FLOWS as usize, TimeOuts::default(), Secret::random());
    let start_ns = 1_795_374_903_123_456_789;
    for number in 0..FLOWS {
        let data = packet(number);
        let parsed = parse(LinkType::RAW, &data);
        let Some(ends) = DirectedKey::of(&parsed, true) else {
            continue;
        };
        let time_ns = start_ns + i64::from(number) * 1000;
        let packet =
            FlowPacket::new(ends, time_ns, 1514, parsed.tcp_flags).with_payload(&data[40..]);
        table.update(&[packet], |_, _| {});
    }
    let mut flows = Vec::with_capacity(FLOWS as usize);
    table.finish(|flow, end: FlowEnd| {
        flows.push(EndedFlow {
            flow: *flow,
            end,
            time_ns: flow.last_ns(),
        });
    });
    let about = FlowContext {
        interface: Some("eth0"),
        community_id_seed: 0,
    };
    let mut out = Vec::with_capacity(1 << 20);
    for _ in 0..5 {
        let (mut bytes, begun) = (0, Instant::now());
        for flows in flows.chunks(1000) {
            out.clear();
            for ended in flows {
                flow(&mut out, ended, &about);
            }
            bytes += out.len();
        }
        let ns = begun.elapsed().as_nanos() as f64 / flows.len() as f64;
        println!("{ns:.0} ns and {} bytes a line", bytes / flows.len());
    }
}
