//! The look-ups that few rules ask for: one packet at a time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use retroscope_packet::{FlowKey, LinkType, flow_of, fragment_of, parse};

use crate::Frame;

use super::{
    index::Index,
    key::{Key, has, kind, proto_trait, traits},
    search_memory::{Probe, SearchMemory},
    sought::{Flow, Flow4Key, flow6_key, link_key, pair_key, proto_key, small, tag, v6_key},
    table::{Slot, Table},
};

/// Looks packets up by everything but flows, addresses and ports of IPv4.
pub(super) struct Finder<'f> {
    pub(super) index: &'f Index,
    pub(super) link_type: LinkType,
    pub(super) interface: u16,
    pub(super) memory: &'f mut SearchMemory,
}

/// A packet being looked up.
#[derive(Clone, Copy)]
struct At<'f> {
    number: u8,
    data: &'f [u8],
    key: &'f Key,
}

impl Finder<'_> {
    /// Looks up frames whose headers are read into the search memory.
    pub(super) fn find_more(&mut self, frames: &[Frame<'_>]) {
        for (number, frame) in (0..).zip(frames) {
            let key = self.memory.keys[usize::from(number)];
            self.look_up(At {
                number,
                data: frame.data(),
                key: &key,
            });
        }
    }

    /// Looks up frames of a link type whose headers are not read: flows as `retroscope-packet` sees them.
    pub(super) fn find_without_keys(&mut self, frames: &[Frame<'_>]) {
        if self.index.followed == 0 {
            return;
        }
        let key = Key::default();
        for (number, frame) in (0..).zip(frames) {
            self.followed(At {
                number,
                data: frame.data(),
                key: &key,
            });
        }
    }

    fn look_up(&mut self, at: At<'_>) {
        let index = self.index;
        let key = at.key;
        if key.kind == kind::V6 {
            self.v6(at);
        }
        if index.has(tag::PROTO) && key.has(has::PROTO) && key.kind & (kind::V4 | kind::V6) != 0 {
            self.small(at, proto_key(key.kind, key.proto), key.traits);
            if key.inner_proto != key.proto && key.has(has::INNER_PROTO) {
                self.small(at, proto_key(key.kind, key.inner_proto), key.traits);
            }
        }
        if index.has(tag::KIND) && key.kind != kind::UNKNOWN {
            self.small(at, small(tag::KIND, u64::from(key.kind)), key.traits);
        }
        if index.has(tag::VLAN) && key.has(has::VLAN) {
            self.small(at, small(tag::VLAN, u64::from(key.vlan)), key.traits);
        }
        if index.has(tag::MAC) {
            for (is_dst, side) in [(false, traits::SRC), (true, traits::DST)] {
                if let Some(mac) = key.mac(at.data, is_dst) {
                    self.small(at, small(tag::MAC, mac), key.traits | side);
                }
            }
        }
        if index.has(tag::INTERFACE) {
            let interface = small(tag::INTERFACE, u64::from(self.interface));
            self.small(at, interface, key.traits);
        }
        if index.followed == 0 {
            return;
        }
        if key.has(has::UNUSUAL) {
            self.followed(at);
        } else if (index.has(tag::PAIR) || key.has(has::FRAGMENT))
            && let Some((src, dst)) = addresses(at)
        {
            self.pair(at, src, dst, key.has(has::FRAGMENT), key.traits);
        }
    }

    fn v6(&mut self, at: At<'_>) {
        let (index, key) = (self.index, at.key);
        let ends = [false, true].map(|is_dst| key.v6_address(at.data, is_dst));
        if index.has(tag::V6) {
            for bits in index.v6_lengths() {
                for (addr, side) in ends.into_iter().zip([traits::SRC, traits::DST]) {
                    if let Some(addr) = addr {
                        let prefix = v6_key(index.seeds, addr, bits);
                        self.small(at, prefix, key.traits | side);
                    }
                }
            }
        }
        if index.has(tag::FLOW6)
            && let [Some(src), Some(dst)] = ends
            && key.has(has::PORTS)
        {
            let ports = [key.src_port, key.dst_port];
            self.flow6(at, Flow::new(key.proto, [src, dst], ports), key.traits);
        }
    }

    fn flow6(&mut self, at: At<'_>, flow: Flow<u128>, traits: u16) {
        self.small(at, flow6_key(self.index.seeds, &flow), traits);
    }

    /// Rules that ask for a flow, on a frame whose flow the fixed places which libpcap reads may not show: tunnelled, tagged twice,
    /// not IP. It is parsed whole.
    #[inline(never)]
    fn followed(&mut self, at: At<'_>) {
        /// Such rules are about packets under any tags.
        const ANY: u16 = traits::PLAIN | traits::TAGGED;
        let index = self.index;
        let parsed = parse(self.link_type, at.data);
        match flow_of(&parsed) {
            Some(FlowKey::Ports { proto, low, high }) => match (low.addr, high.addr) {
                (IpAddr::V4(a), IpAddr::V4(b)) if index.has(tag::FLOW4) => {
                    // Which end is the source makes no difference to these rules.
                    let (key, way) = Flow4Key::new(
                        proto_trait(proto),
                        a.to_bits(),
                        b.to_bits(),
                        (low.port, high.port),
                    );
                    self.search(at, &index.flows, key, (ANY, way));
                }
                (IpAddr::V6(a), IpAddr::V6(b)) if index.has(tag::FLOW6) => {
                    let hosts = [a.to_bits(), b.to_bits()];
                    let flow = Flow::new(proto, hosts, [low.port, high.port]);
                    self.flow6(at, flow, ANY);
                }
                _ => {}
            },
            Some(flow) => {
                if let Some(key) = link_key(index.seeds, &flow) {
                    self.small(at, key, ANY);
                }
            }
            None => {}
        }
        if let Some(ip) = parsed.network {
            let is_fragment = fragment_of(&parsed).is_some();
            self.pair(at, ip.src, ip.dst, is_fragment, ANY);
        }
    }

    fn pair(&mut self, at: At<'_>, src: IpAddr, dst: IpAddr, is_fragment: bool, traits: u16) {
        let seeds = self.index.seeds;
        if self.index.has(tag::PAIR) {
            self.small(at, pair_key(seeds, tag::PAIR, [src, dst]), traits);
        }
        if is_fragment && self.index.has(tag::FRAGMENTS) {
            self.small(at, pair_key(seeds, tag::FRAGMENTS, [src, dst]), traits);
        }
    }

    #[inline]
    fn small(&mut self, at: At<'_>, key: u64, traits: u16) {
        let index = self.index;
        self.search(at, &index.small, key, (traits, 0));
    }

    #[inline]
    fn search<S: Slot>(
        &mut self,
        at: At<'_>,
        table: &Table<S>,
        key: S::Key,
        (traits, way): (u16, u8),
    ) {
        let probe = Probe {
            key,
            hash: table.hash(key),
            traits,
            way,
            frame: at.number,
        };
        let (found, takes) = probe.look_up(table);
        if takes {
            self.memory.push(found);
        }
    }
}

fn addresses(at: At<'_>) -> Option<(IpAddr, IpAddr)> {
    if !at.key.has(has::ADDRESSES) {
        return None;
    }
    match at.key.kind {
        kind::V4 => {
            let [src, dst] = [at.key.src, at.key.dst].map(Ipv4Addr::from);
            Some((src.into(), dst.into()))
        }
        kind::V6 => {
            let src = Ipv6Addr::from(at.key.v6_address(at.data, false)?);
            let dst = Ipv6Addr::from(at.key.v6_address(at.data, true)?);
            Some((src.into(), dst.into()))
        }
        _ => None,
    }
}
