//! Packets of flows that begin, live and end.
//!
//! The number of flows is about constant, and each second has as many packets as there are flows.
//! At regular intervals a new flow joins the flows that get packets, and the oldest of these flows
//! gets no more packets. A flow ends when its time-out has passed since its last packet.

use std::net::Ipv4Addr;

use retroscope_flow::{BiflowKey, DirectedKey, FlowPacket};
use retroscope_packet::{FlowEndpoint, FlowKey, proto::UDP};

const SECOND: i64 = 1_000_000_000;

/// How flows begin and end.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowLoad {
    /// Flows in the table, including the flows that get no more packets.
    pub(super) flows: u32,
    /// Packets for each flow that begins.
    pub(super) packets_per_flow: u32,
    /// The time-out of all flows, s.
    pub(super) seconds: u32,
}

impl FlowLoad {
    /// Number of flows that get no more packets.
    fn idle(&self) -> u32 {
        self.flows / self.packets_per_flow * self.seconds
    }

    /// The time-out, ns.
    pub(super) fn time_out_ns(&self) -> i64 {
        i64::from(self.seconds) * SECOND
    }

    /// One packet of each flow that exists at time 0, at even distances over one time-out before
    /// time 0. The flows that get no more packets are spread evenly over this time.
    pub(super) fn first(&self) -> impl Iterator<Item = FlowPacket> {
        let (load, idle) = (*self, self.idle());
        let idle_before = move |number: u32| -> u32 {
            let before = u64::from(number) * u64::from(idle) / u64::from(load.flows);
            u32::try_from(before).expect("no more than there are")
        };
        (0..self.flows).map(move |number| {
            let before = idle_before(number);
            let is_idle = idle_before(number + 1) > before;
            let flow = if is_idle {
                before
            } else {
                idle + number - before
            };
            let part = f64::from(number) / f64::from(load.flows) - 1.0;
            #[expect(clippy::cast_possible_truncation, reason = "some minutes")]
            let time_ns = (part * load.time_out_ns() as f64) as i64;
            packet(flow, false, time_ns)
        })
    }

    /// All later packets, without end.
    pub(super) fn packets(&self) -> impl Iterator<Item = FlowPacket> + use<> {
        let load = *self;
        let gap_ns = SECOND / i64::from(load.flows);
        let (mut random, mut oldest) = (fastrand::Rng::with_seed(1), load.idle());
        let active = load.flows - oldest;
        (1_i64..).map(move |number| {
            if number % i64::from(load.packets_per_flow) == 0 {
                oldest = oldest.wrapping_add(1);
            }
            let flow = oldest.wrapping_add(random.u32(0..active));
            packet(flow, random.bool(), number * gap_ns)
        })
    }
}

fn packet(flow: u32, is_reverse: bool, time_ns: i64) -> FlowPacket {
    let end = |addr, port| FlowEndpoint {
        addr: Ipv4Addr::from_bits(addr).into(),
        port,
    };
    let key = BiflowKey::from(FlowKey::Ports {
        proto: UDP,
        low: end(0x0a00_0000_u32.wrapping_add(flow), 4000),
        high: end(0xc0a8_0001, 53),
    });
    FlowPacket::new(DirectedKey { key, is_reverse }, time_ns, 100, None)
}
