//! The background flows, drawn from the seed.

use std::{collections::HashSet, net::Ipv4Addr, ops::RangeInclusive};

use super::config::GeneratorConfig;

/// Ports of background flows.
pub(super) const PORTS: RangeInclusive<u16> = 1_000..=10_000;

/// Addresses and ports of a flow, in the direction in which it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlowAddresses {
    /// Sender, within 10.0.0.0/16.
    pub(super) source: Ipv4Addr,
    /// Receiver, within 10.0.0.0/16, not the sender.
    pub(super) destination: Ipv4Addr,
    /// Sender's UDP port, 1000 to 10000.
    pub(super) source_port: u16,
    /// Receiver's UDP port: 1000 to 10000, or [`TRIGGER_PORT`](super::TRIGGER_PORT).
    pub(super) destination_port: u16,
}

/// The flows of a configuration. No flow has the same two endpoints as another flow, in either
/// direction.
pub(super) fn flows(config: &GeneratorConfig) -> Vec<FlowAddresses> {
    let count = config.flows as usize;
    let mut random = SplitMix64(config.seed);
    let mut seen = HashSet::with_capacity(count);
    let mut flows = Vec::with_capacity(count);
    while flows.len() < count {
        let flow = FlowAddresses {
            source: random.host(),
            destination: random.host(),
            source_port: random.port(),
            destination_port: random.port(),
        };
        let sender = (flow.source, flow.source_port);
        let receiver = (flow.destination, flow.destination_port);
        if flow.source != flow.destination
            && seen.insert((sender.min(receiver), sender.max(receiver)))
        {
            flows.push(flow);
        }
    }
    flows
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
/// Small, and never changes, unlike the generator of a library.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`: the high bits of a product. For a `limit` of at most 2^48 the bias
    /// is at most 2^-16.
    pub(super) fn below<T>(&mut self, limit: T) -> T
    where
        u64: From<T>,
        T: TryFrom<u64> + Copy,
    {
        let wide = (u128::from(self.next()) * u128::from(u64::from(limit))) >> 64;
        // Below `limit`, which is a T.
        u64::try_from(wide)
            .ok()
            .and_then(|value| T::try_from(value).ok())
            .unwrap_or(limit)
    }

    /// 10.0.0.1 to 10.0.255.254.
    fn host(&mut self) -> Ipv4Addr {
        let [c, d] = (1 + self.below(65_534_u16)).to_be_bytes();
        Ipv4Addr::new(10, 0, c, d)
    }

    fn port(&mut self) -> u16 {
        PORTS.start() + self.below(PORTS.end() - PORTS.start() + 1)
    }
}
