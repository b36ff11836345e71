//! Look-ups that few rules need, one packet at a time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use retroscope_packet::{FlowKey, LinkType, flow_of, fragment_of, parse};

use crate::FilterFrame;

use super::{
    index::RuleIndex,
    key::{HeaderKey, frame_flags, has, kind, proto_flag},
    look_up_key::{
        FiveTuple, Flow4Key, flow6_key, link_key, pair_key, proto_key, small, tag, v6_key,
    },
    search_memory::{Probe, SearchMemory},
    table::{LookUpTable, TableSlot},
};

/// Looks packets up by everything except an IPv4 host, an IPv4 net or a port. Looks up IPv4 flows
/// only for frames whose flow may not be at libpcap's fixed offsets.
pub(super) struct Finder<'f> {
    pub(super) index: &'f RuleIndex,
    pub(super) link_type: LinkType,
    pub(super) interface: u16,
    pub(super) memory: &'f mut SearchMemory,
}

#[derive(Clone, Copy)]
struct FrameLookUp<'f> {
    number: u8,
    data: &'f [u8],
    key: &'f HeaderKey,
}

impl Finder<'_> {
    /// Looks up frames whose headers are in the search memory.
    pub(super) fn find_more(&mut self, frames: &[FilterFrame<'_>]) {
        for (number, frame) in (0..).zip(frames) {
            let key = self.memory.keys[usize::from(number)];
            self.look_up(FrameLookUp {
                number,
                data: frame.data(),
                key: &key,
            });
        }
    }

    /// Looks up frames whose headers [`HeaderKey`] cannot read, by the flow and the addresses that
    /// `retroscope-packet` finds.
    pub(super) fn find_without_keys(&mut self, frames: &[FilterFrame<'_>]) {
        if self.index.parsed_rules == 0 {
            return;
        }
        let key = HeaderKey::default();
        for (number, frame) in (0..).zip(frames) {
            self.look_up_parsed(FrameLookUp {
                number,
                data: frame.data(),
                key: &key,
            });
        }
    }

    fn look_up(&mut self, frame: FrameLookUp<'_>) {
        let index = self.index;
        let key = frame.key;
        if key.kind == kind::V6 {
            self.v6(frame);
        }
        if index.has(tag::PROTO) && key.has(has::PROTO) && key.kind & (kind::V4 | kind::V6) != 0 {
            self.small(frame, proto_key(key.kind, key.proto), key.frame_flags);
            if key.inner_proto != key.proto && key.has(has::INNER_PROTO) {
                self.small(frame, proto_key(key.kind, key.inner_proto), key.frame_flags);
            }
        }
        if index.has(tag::KIND) && key.kind != kind::UNKNOWN {
            self.small(
                frame,
                small(tag::KIND, u64::from(key.kind)),
                key.frame_flags,
            );
        }
        if index.has(tag::VLAN) && key.has(has::VLAN) {
            self.small(
                frame,
                small(tag::VLAN, u64::from(key.vlan)),
                key.frame_flags,
            );
        }
        if index.has(tag::MAC) {
            for (is_dst, side) in [(false, frame_flags::SRC), (true, frame_flags::DST)] {
                if let Some(mac) = key.mac(frame.data, is_dst) {
                    self.small(frame, small(tag::MAC, mac), key.frame_flags | side);
                }
            }
        }
        if index.has(tag::INTERFACE) {
            let interface = small(tag::INTERFACE, u64::from(self.interface));
            self.small(frame, interface, key.frame_flags);
        }
        if index.parsed_rules == 0 {
            return;
        }
        if key.has(has::UNUSUAL) {
            self.look_up_parsed(frame);
        } else if (index.has(tag::PAIR) || key.has(has::FRAGMENT))
            && let Some((src, dst)) = addresses(frame)
        {
            self.pair(frame, src, dst, key.has(has::FRAGMENT), key.frame_flags);
        }
    }

    fn v6(&mut self, frame: FrameLookUp<'_>) {
        let (index, key) = (self.index, frame.key);
        let ends = [false, true].map(|is_dst| key.v6_address(frame.data, is_dst));
        if index.has(tag::V6) {
            for bits in index.v6_lengths() {
                for (addr, side) in ends.into_iter().zip([frame_flags::SRC, frame_flags::DST]) {
                    if let Some(addr) = addr {
                        let prefix = v6_key(index.seeds, addr, bits);
                        self.small(frame, prefix, key.frame_flags | side);
                    }
                }
            }
        }
        if index.has(tag::FLOW6)
            && let [Some(src), Some(dst)] = ends
            && key.has(has::PORTS)
        {
            let ports = [key.src_port, key.dst_port];
            self.flow6(
                frame,
                FiveTuple::new(key.proto, [src, dst], ports),
                key.frame_flags,
            );
        }
    }

    fn flow6(&mut self, frame: FrameLookUp<'_>, flow: FiveTuple<u128>, frame_flags: u16) {
        self.small(frame, flow6_key(self.index.seeds, &flow), frame_flags);
    }

    /// Looks up rules with `$flow` or `$communityId` for a frame whose flow may not be at libpcap's
    /// fixed offsets, for example after two tags or an IPv6 extension header.
    #[inline(never)]
    fn look_up_parsed(&mut self, frame: FrameLookUp<'_>) {
        /// Rules with `$flow` match packets under any tags.
        const ANY: u16 = frame_flags::PLAIN | frame_flags::TAGGED;
        let index = self.index;
        let parsed = parse(self.link_type, frame.data);
        match flow_of(&parsed) {
            Some(FlowKey::Ports { proto, low, high }) => match (low.addr, high.addr) {
                (IpAddr::V4(a), IpAddr::V4(b)) if index.has(tag::FLOW4) => {
                    // `$flow` matches both directions.
                    let (key, orientation) = Flow4Key::new(
                        proto_flag(proto),
                        a.to_bits(),
                        b.to_bits(),
                        (low.port, high.port),
                    );
                    self.search(frame, &index.flows, key, (ANY, orientation));
                }
                (IpAddr::V6(a), IpAddr::V6(b)) if index.has(tag::FLOW6) => {
                    let hosts = [a.to_bits(), b.to_bits()];
                    let flow = FiveTuple::new(proto, hosts, [low.port, high.port]);
                    self.flow6(frame, flow, ANY);
                }
                _ => {}
            },
            Some(flow) => {
                if let Some(key) = link_key(index.seeds, &flow) {
                    self.small(frame, key, ANY);
                }
            }
            None => {}
        }
        if let Some(ip) = parsed.network {
            let is_fragment = fragment_of(&parsed).is_some();
            self.pair(frame, ip.src, ip.dst, is_fragment, ANY);
        }
    }

    fn pair(
        &mut self,
        frame: FrameLookUp<'_>,
        src: IpAddr,
        dst: IpAddr,
        is_fragment: bool,
        frame_flags: u16,
    ) {
        let seeds = self.index.seeds;
        if self.index.has(tag::PAIR) {
            self.small(frame, pair_key(seeds, tag::PAIR, [src, dst]), frame_flags);
        }
        if is_fragment && self.index.has(tag::FRAGMENTS) {
            self.small(
                frame,
                pair_key(seeds, tag::FRAGMENTS, [src, dst]),
                frame_flags,
            );
        }
    }

    #[inline]
    fn small(&mut self, frame: FrameLookUp<'_>, key: u64, frame_flags: u16) {
        let index = self.index;
        self.search(frame, &index.small, key, (frame_flags, 0));
    }

    #[inline]
    fn search<S: TableSlot>(
        &mut self,
        frame: FrameLookUp<'_>,
        table: &LookUpTable<S>,
        key: S::Key,
        (frame_flags, orientation): (u16, u8),
    ) {
        let probe = Probe {
            key,
            hash: table.hash(key),
            frame_flags,
            orientation,
            frame: frame.number,
        };
        let (found, accepts) = probe.look_up(table);
        if accepts {
            self.memory.push(found);
        }
    }
}

fn addresses(frame: FrameLookUp<'_>) -> Option<(IpAddr, IpAddr)> {
    if !frame.key.has(has::ADDRESSES) {
        return None;
    }
    match frame.key.kind {
        kind::V4 => {
            let [src, dst] = [frame.key.src, frame.key.dst].map(Ipv4Addr::from);
            Some((src.into(), dst.into()))
        }
        kind::V6 => {
            let src = Ipv6Addr::from(frame.key.v6_address(frame.data, false)?);
            let dst = Ipv6Addr::from(frame.key.v6_address(frame.data, true)?);
            Some((src.into(), dst.into()))
        }
        _ => None,
    }
}
