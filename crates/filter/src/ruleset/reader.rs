//! The data path's side: packets in, rules out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_packet::{FlowKey, LinkType, flow_of, fragment_of, parse};

use crate::{Frame, Program};

use super::{
    Matches,
    atom::Subject,
    index::{Entry, Index, RuleInfo, flags},
    key::{Key, Shape, has, kind, traits},
    sought::{
        Flow4Key, flow6_key, link_key, pair_key, port_key, proto_key, proto_trait, small, tag,
        v4_key, v6_key,
    },
};

/// Where the writer leaves versions for readers.
#[derive(Debug)]
pub(super) struct Shared {
    /// Number of the version under the mutex.
    version: AtomicU64,
    /// Held for the time of copying or replacing one pointer.
    current: Mutex<Arc<Index>>,
}

impl Shared {
    pub(super) fn new(index: Arc<Index>) -> Self {
        Self {
            version: AtomicU64::new(0),
            current: Mutex::new(index),
        }
    }

    /// Makes `index` the version for readers; gives the one before.
    pub(super) fn publish(&self, index: Arc<Index>) -> Arc<Index> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, index);
        // V0: Release, pairs with V1 in `RuleReader::refresh`. The mutex orders what is under it; this makes a reader that
        // sees the number look there.
        self.version.fetch_add(1, Ordering::Release);
        before
    }

    pub(super) fn current(&self) -> (u64, Arc<Index>) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: the number changes under the mutex only.
        (self.version.load(Ordering::Relaxed), Arc::clone(&current))
    }
}

/// Matches packets against a [`RuleSet`](super::RuleSet); made by [`RuleSet::reader`](super::RuleSet::reader), one for each
/// thread of the data path.
///
/// A reader keeps using the version of the rules that it saw last, until [`Self::refresh`].
pub struct RuleReader {
    shared: Arc<Shared>,
    index: Arc<Index>,
    version: u64,
    keys: Box<[Key; Program::MANY]>,
    /// Rules whose programs match some of the frames at hand, with these.
    residue: Vec<(u32, u64)>,
}

impl fmt::Debug for RuleReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleReader")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl RuleReader {
    /// Frames of one [`Self::match_many`] at most.
    pub const MANY: usize = Program::MANY;

    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (version, index) = shared.current();
        Self {
            shared,
            index,
            version,
            keys: Box::new([Key::default(); Program::MANY]),
            residue: Vec::new(),
        }
    }

    /// Looks for a newer version of the rules and takes it up; whether there was one. One atomic load where nothing changed.
    /// Never waits: while the writer is replacing the pointer, the old version stays for another call.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        // V1: Acquire, pairs with V0 in `Shared::publish`.
        if self.shared.version.load(Ordering::Acquire) == self.version {
            return false;
        }
        self.take_up()
    }

    #[cold]
    fn take_up(&mut self) -> bool {
        let current = match self.shared.current.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Relaxed: the number changes under the mutex only.
        self.version = self.shared.version.load(Ordering::Relaxed);
        self.index = Arc::clone(&current);
        true
    }

    /// Finds the rules that match each of at most [`Self::MANY`] frames of one interface.
    ///
    /// # Panics
    /// If there are more frames.
    pub fn match_many(
        &mut self,
        link_type: LinkType,
        interface: u16,
        frames: &[Frame<'_>],
        matches: &mut Matches,
    ) {
        assert!(frames.len() <= Self::MANY);
        matches.clear();
        self.residue.clear();
        let index = &*self.index;
        let mut of_residue = 0;
        let its = |residue: &&super::index::Residue| residue.link_type == link_type;
        for (rule, program) in index
            .residues
            .iter()
            .filter(its)
            .flat_map(|one| &one.programs)
        {
            let found = program.run_many(frames);
            if found != 0 {
                of_residue |= found;
                self.residue.push((*rule, found));
            }
        }
        let shape = Shape::of(link_type);
        let finder = Finder {
            index,
            has_more: index.has_more(),
            link_type,
            interface,
            matches,
        };
        match shape {
            Some(shape) => {
                let keys = &mut self.keys[..frames.len()];
                for (key, frame) in keys.iter_mut().zip(frames) {
                    *key = Key::of(shape, frame.data());
                }
                finder.find(keys, frames, of_residue, &self.residue);
            }
            None => finder.find_without_keys(frames, of_residue, &self.residue),
        }
    }
}

/// One call of [`RuleReader::match_many`].
struct Finder<'f> {
    index: &'f Index,
    /// Whether rules ask for more than flows, addresses and ports of IPv4.
    has_more: bool,
    link_type: LinkType,
    interface: u16,
    matches: &'f mut Matches,
}

/// A frame being looked up.
#[derive(Clone, Copy)]
struct At<'f> {
    number: usize,
    frame: &'f Frame<'f>,
    key: &'f Key,
}

impl Finder<'_> {
    fn find(mut self, keys: &[Key], frames: &[Frame<'_>], of_residue: u64, residue: &[(u32, u64)]) {
        for (number, (frame, key)) in frames.iter().zip(keys).enumerate() {
            let at = At { number, frame, key };
            self.look_up(at);
            if of_residue >> number & 1 == 1 {
                self.add_residue(number, residue);
            }
            self.ask(number, &self.index.asked_always);
            self.matches.end(number);
        }
    }

    /// On link types whose headers are not read here: every rule's own program, and flows as `retroscope-packet` sees them.
    fn find_without_keys(mut self, frames: &[Frame<'_>], of_residue: u64, residue: &[(u32, u64)]) {
        let key = Key {
            has: has::UNUSUAL,
            ..Key::default()
        };
        for (number, frame) in frames.iter().enumerate() {
            let at = At {
                number,
                frame,
                key: &key,
            };
            if self.index.followed != 0 {
                self.followed(at);
            }
            if of_residue >> number & 1 == 1 {
                self.add_residue(number, residue);
            }
            self.ask(number, &self.index.asked_always);
            self.ask(number, &self.index.asked_elsewhere);
            self.matches.end(number);
        }
    }

    fn add_residue(&mut self, number: usize, residue: &[(u32, u64)]) {
        for (rule, found) in residue {
            if found >> number & 1 == 1
                && let Some(info) = self.index.rules.get(*rule)
            {
                self.matches.add(number, info.id, false);
            }
        }
    }

    fn ask(&mut self, number: usize, rules: &[u32]) {
        for rule in rules {
            if let Some(info) = self.index.rules.get(*rule) {
                self.matches.add(number, info.id, true);
            }
        }
    }

    #[inline]
    fn look_up(&mut self, at: At<'_>) {
        let index = self.index;
        let key = at.key;
        let is_v4 = key.kind == kind::V4;
        if index.has_flows() && is_v4 && key.has(has::FLOW) {
            let ports = (key.src_port, key.dst_port);
            let (flow, way) = Flow4Key::new(key.traits, key.src, key.dst, ports);
            self.flow4(at, flow, way, key.traits);
        }
        if index.has(tag::V4) && key.kind & (kind::V4 | kind::ARP | kind::RARP) != 0 {
            self.v4(at);
        }
        if index.has(tag::PORT) && key.has & has::PORTS != 0 {
            self.ports(at);
        }
        if self.has_more {
            self.look_up_more(at);
        }
    }

    #[inline(never)]
    fn look_up_more(&mut self, at: At<'_>) {
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
                if let Some(mac) = key.mac(at.frame.data(), is_dst) {
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
        } else if let Some((src, dst)) = self.addresses(at) {
            self.pair(at, src, dst, key.has(has::FRAGMENT), key.traits);
        }
    }

    fn addresses(&self, at: At<'_>) -> Option<(IpAddr, IpAddr)> {
        if !at.key.has(has::ADDRESSES) {
            return None;
        }
        if at.key.kind == kind::V4 {
            let [src, dst] = [at.key.src, at.key.dst].map(Ipv4Addr::from);
            return Some((src.into(), dst.into()));
        }
        let data = at.frame.data();
        let src = Ipv6Addr::from(at.key.v6_address(data, false)?);
        let dst = Ipv6Addr::from(at.key.v6_address(data, true)?);
        Some((src.into(), dst.into()))
    }

    #[inline]
    fn v4(&mut self, at: At<'_>) {
        let key = at.key;
        for (addr, bit, side) in [
            (key.src, has::SRC, traits::SRC),
            (key.dst, has::DST, traits::DST),
        ] {
            if !key.has(bit) {
                continue;
            }
            let mut lengths = self.index.addresses.lengths((addr >> 16) as u16);
            while lengths != 0 {
                let bits = next(&mut lengths);
                self.small(at, v4_key(addr, bits), key.traits | side);
            }
        }
    }

    #[inline]
    fn ports(&mut self, at: At<'_>) {
        let key = at.key;
        for (port, bit, side) in [
            (key.src_port, has::SRC_PORT, traits::SRC),
            (key.dst_port, has::DST_PORT, traits::DST),
        ] {
            if !key.has(bit) {
                continue;
            }
            let mut lengths = self.index.ports.lengths(port);
            while lengths != 0 {
                let bits = next(&mut lengths);
                self.small(at, port_key(port, bits), key.traits | side);
            }
        }
    }

    fn v6(&mut self, at: At<'_>) {
        let (index, key, data) = (self.index, at.key, at.frame.data());
        let ends = [false, true].map(|is_dst| key.v6_address(data, is_dst));
        if index.has(tag::V6) {
            for bits in index.v6_lengths() {
                for (addr, side) in ends.into_iter().zip([traits::SRC, traits::DST]) {
                    if let Some(addr) = addr {
                        let key_of_prefix = v6_key(index.seeds, addr, bits);
                        self.small(at, key_of_prefix, key.traits | side);
                    }
                }
            }
        }
        if index.has(tag::FLOW6)
            && let [Some(src), Some(dst)] = ends
            && key.has(has::PORTS)
        {
            let ports = [key.src_port, key.dst_port];
            self.flow6(at, key.proto, [src, dst], ports, key.traits);
        }
    }

    fn flow6(&mut self, at: At<'_>, proto: u8, ends: [u128; 2], ports: [u16; 2], traits: u16) {
        let [src, dst] = ends;
        let [src_port, dst_port] = ports;
        let ports = u32::from(src_port.min(dst_port)) << 16 | u32::from(src_port.max(dst_port));
        let flow = flow6_key(self.index.seeds, proto, src.min(dst), src.max(dst), ports);
        self.small(at, flow, traits);
    }

    /// Rules that follow flows, on a frame whose flow only a whole parse tells: tunnelled, tagged twice, not IP.
    #[inline(never)]
    fn followed(&mut self, at: At<'_>) {
        /// Such rules are about packets under any tags.
        const ANY: u16 = traits::PLAIN | traits::TAGGED;
        let index = self.index;
        let parsed = parse(self.link_type, at.frame.data());
        match flow_of(&parsed) {
            Some(FlowKey::Ports { proto, low, high }) => {
                let of_ports = proto_trait(proto);
                match (low.addr, high.addr) {
                    (IpAddr::V4(a), IpAddr::V4(b)) => {
                        // Which end is the source makes no difference to these rules.
                        let ports = (low.port, high.port);
                        let (flow, way) = Flow4Key::new(of_ports, a.to_bits(), b.to_bits(), ports);
                        self.flow4(at, flow, way, ANY);
                    }
                    (IpAddr::V6(a), IpAddr::V6(b)) => {
                        let (ends, ports) = ([a.to_bits(), b.to_bits()], [low.port, high.port]);
                        self.flow6(at, proto, ends, ports, ANY);
                    }
                    _ => {}
                }
            }
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
            self.small(at, pair_key(seeds, tag::PAIR, src, dst), traits);
        }
        if is_fragment && self.index.has(tag::FRAGMENTS) {
            self.small(at, pair_key(seeds, tag::FRAGMENTS, src, dst), traits);
        }
    }

    #[inline]
    fn flow4(&mut self, at: At<'_>, key: Flow4Key, way: u8, traits: u16) {
        let index = self.index;
        let hash = index.flows.hash(key);
        let Some(slot) = index.flows.find(key, hash) else {
            return;
        };
        match slot.value() {
            Ok(rule) => {
                if slot.takes(traits, way) {
                    self.found(at, rule);
                }
            }
            Err(group) => self.found_group(at, index.group(group), traits, way),
        }
    }

    #[inline]
    fn small(&mut self, at: At<'_>, key: u64, traits: u16) {
        let index = self.index;
        let hash = index.small.hash(key);
        let Some(slot) = index.small.find(key, hash) else {
            return;
        };
        match slot.value() {
            Ok(rule) => {
                if slot.takes(traits) {
                    self.found(at, rule);
                }
            }
            Err(group) => self.found_group(at, index.group(group), traits, 0),
        }
    }

    #[inline(never)]
    fn found_group(&mut self, at: At<'_>, group: &[Entry], traits: u16, way: u8) {
        let subject = self.subject(at);
        for entry in group {
            if traits & !entry.need == 0
                && way & !entry.ways == 0
                && entry.rest.as_ref().is_none_or(|rest| rest.holds(&subject))
            {
                self.found(at, entry.rule);
            }
        }
    }

    fn subject<'s>(&self, at: At<'s>) -> Subject<'s> {
        Subject {
            key: at.key,
            data: at.frame.data(),
            interface: self.interface,
        }
    }

    #[inline]
    fn found(&mut self, at: At<'_>, rule: u32) {
        let Some(info) = self.index.rules.get(rule) else {
            return;
        };
        if info.flags == 0 {
            self.matches.add(at.number, info.id, false);
        } else if let Some(ask) = self.decide(at, info) {
            self.matches.add(at.number, info.id, ask);
        }
    }

    /// Whether a rule that was found matches: `Some(true)` where the caller must be asked.
    #[inline(never)]
    fn decide(&self, at: At<'_>, info: &RuleInfo) -> Option<bool> {
        let is_set = |flag| info.flags & flag != 0;
        if is_set(flags::ASK) {
            return Some(true);
        }
        if is_set(flags::ETHERNET) && self.link_type != LinkType::ETHERNET {
            return None;
        }
        let is_open = is_set(flags::PARTIAL) || (is_set(flags::ORDERED) && at.key.has(has::SHORT));
        let Some(body) = info.body.as_ref().filter(|_| is_open) else {
            return Some(false);
        };
        let matches = match body.program(self.link_type) {
            Some(program) => program.run_many(std::slice::from_ref(at.frame)) != 0,
            None if body.is_opaque => false,
            None => body.expr.holds(body.view, &self.subject(at)) == Some(true),
        };
        matches.then_some(false)
    }
}

/// Takes the lowest bit out of a set of prefix lengths.
#[inline]
fn next(lengths: &mut u32) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
    let bits = lengths.trailing_zeros() as u8 + 1;
    *lengths &= *lengths - 1;
    bits
}
