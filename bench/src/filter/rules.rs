//! Ten thousand rules, what they must match, and how long it takes to bring them in.
//!
//! Rule `n` is made of flow `n` of the traffic. A naive twin, made of hash tables over what the packets were generated from,
//! says which rules match each packet; libpcap says it of some packets, by trying every rule's own program.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use retroscope_filter::{Aux, Filter, Frame, Matches, Mode, RuleId, RuleReader, RuleSet, Sure};
use retroscope_packet::LinkType;

use super::{
    cold::{Cold, Found},
    sys::Libpcap,
    traffic::{FLOWS, Kind, Mix, Spec, flow},
};
use crate::{contest::Failure, pin};

/// What rules name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Protocol, both hosts and both ports.
    Flows,
    /// A host, a net of 20 to 28 bits, or a port, a third each.
    Mixed,
}

/// Rules of a full set.
pub(crate) const RULES: u32 = FLOWS;
/// Prefix lengths of nets.
const NET_BITS: [u32; 5] = [20, 22, 24, 26, 28];
/// Packets that libpcap is asked about too.
const SAMPLE: usize = 256;
/// What the sum of matches gets where a rule is not sure.
const NOT_SURE: u64 = 1 << 32;
/// A reader that does not see new rules for so long is given up.
const LIMIT: Duration = Duration::from_secs(20);

impl Sort {
    /// As in names of rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Mixed => "mixed",
        }
    }

    fn text(self, number: u32) -> String {
        let flow = flow(number);
        let (client, server) = (Ipv4Addr::from(flow.src), Ipv4Addr::from(flow.dst));
        match (self, number % 3) {
            (Self::Flows, kind) => {
                let proto = if kind == 1 { "udp" } else { "tcp" };
                let (port, service) = (flow.src_port, flow.dst_port);
                format!(
                    "{proto} and host {client} and host {server} and port {port} and port {service}"
                )
            }
            (Self::Mixed, 0) => format!("host {client}"),
            (Self::Mixed, 1) => {
                let bits = net_bits(number);
                format!("net {}/{bits}", Ipv4Addr::from(prefix(flow.src, bits)))
            }
            (Self::Mixed, _) => format!("port {}", flow.src_port),
        }
    }
}

fn net_bits(number: u32) -> u32 {
    NET_BITS[number as usize % NET_BITS.len()]
}

fn prefix(address: u32, bits: u32) -> u32 {
    address & (u32::MAX << (32 - bits))
}

/// The texts of the first `count` rules.
pub(crate) fn texts(sort: Sort, count: u32) -> Vec<String> {
    (0..count).map(|number| sort.text(number)).collect()
}

/// Texts as filters.
///
/// # Errors
/// [`Failure::System`] with the error of the expression.
pub(crate) fn filters(texts: &[String]) -> Result<Vec<(RuleId, Filter)>, Failure> {
    let filter = |(number, text): (u64, &String)| Ok((RuleId(number), Filter::plain(text)?));
    let filters: Result<_, _> = (0..).zip(texts).map(filter).collect();
    filters.map_err(|error: retroscope_filter::FilterError| Failure::system("a rule", error))
}

/// A set of the first `count` rules.
///
/// # Errors
/// [`Failure::System`]: a rule was refused.
pub(crate) fn rule_set(sort: Sort, count: u32) -> Result<RuleSet, Failure> {
    let mut set = RuleSet::new(Mode::Savefile);
    insert(&mut set, filters(&texts(sort, count))?)?;
    set.add_link_type(LinkType::ETHERNET);
    Ok(set)
}

fn insert(set: &mut RuleSet, rules: Vec<(RuleId, Filter)>) -> Result<(), Failure> {
    match set.insert_many(rules).into_iter().next() {
        None => Ok(()),
        Some((RuleId(id), error)) => Err(Failure::system(&format!("inserting rule {id}"), error)),
    }
}

/// Which rules of a set match a packet, from what it was made of.
#[derive(Debug, Default)]
pub(crate) struct Twin {
    flows: HashMap<(u8, [(u32, u16); 2]), u64>,
    hosts: HashMap<u32, u64>,
    /// By prefix length, as in [`NET_BITS`].
    nets: [HashMap<u32, Vec<u64>>; NET_BITS.len()],
    ports: HashMap<u16, u64>,
}

impl Twin {
    /// Of the first `count` rules.
    pub(crate) fn new(sort: Sort, count: u32) -> Self {
        let mut twin = Self::default();
        for number in 0..count {
            let (flow, id) = (flow(number), u64::from(number));
            match (sort, number % 3) {
                (Sort::Flows, _) => {
                    twin.flows.extend(flow_key(&flow).map(|key| (key, id)));
                }
                (Sort::Mixed, 0) => {
                    twin.hosts.insert(flow.src, id);
                }
                (Sort::Mixed, 1) => {
                    let at = number as usize % NET_BITS.len();
                    let net = prefix(flow.src, NET_BITS[at]);
                    twin.nets[at].entry(net).or_default().push(id);
                }
                (Sort::Mixed, _) => {
                    twin.ports.insert(flow.src_port, id);
                }
            }
        }
        twin
    }

    fn ids(&self, spec: &Spec, ids: &mut BTreeSet<u64>) {
        ids.clear();
        if let Some(key) = flow_key(spec) {
            ids.extend(self.flows.get(&key));
        }
        if spec.has_hosts() {
            for host in [spec.src, spec.dst] {
                ids.extend(self.hosts.get(&host));
                for (nets, bits) in self.nets.iter().zip(NET_BITS) {
                    ids.extend(nets.get(&prefix(host, bits)).into_iter().flatten());
                }
            }
        }
        if spec.has_ports() {
            for port in [spec.src_port, spec.dst_port] {
                ids.extend(self.ports.get(&port));
            }
        }
    }

    /// What must be found in cold memory, and the part of the packets that some rule matches.
    pub(crate) fn expect(&self, cold: &Cold) -> (Found, f64) {
        let (mut found, mut some) = (Found::default(), 0_u64);
        let mut ids = BTreeSet::new();
        for spec in cold.specs() {
            self.ids(&spec, &mut ids);
            some += u64::from(!ids.is_empty());
            for id in &ids {
                found.add(0, *id);
            }
            found.add_set(1, 0);
        }
        (found, some as f64 / found.packets as f64)
    }
}

/// Protocol and both ends, the lower first, of IPv4 with ports.
fn flow_key(spec: &Spec) -> Option<(u8, [(u32, u16); 2])> {
    let proto = match spec.kind {
        Kind::Tcp | Kind::TcpOptions => 6,
        Kind::Udp => 17,
        _ => return None,
    };
    let mut ends = [(spec.src, spec.src_port), (spec.dst, spec.dst_port)];
    ends.sort_unstable();
    Some((proto, ends))
}

/// Compares the rules that a set finds for some packets with what libpcap says when it is asked about every rule.
///
/// # Errors
/// [`Failure::Disagree`].
pub(crate) fn compare_with_libpcap(sort: Sort, reader: &mut RuleReader) -> Result<(), Failure> {
    let mut packets = vec![[0; 64]; SAMPLE];
    for (packet, spec) in packets.iter_mut().zip(Mix::new()) {
        spec.write(packet);
    }
    let frames: Vec<Frame<'_>> = packets.iter().map(|packet| frame(packet)).collect();
    let mut found = BTreeSet::new();
    let mut matches = Matches::default();
    for (chunk, frames) in frames.chunks(64).enumerate() {
        reader.match_many(LinkType::ETHERNET, 0, frames, &mut matches);
        let its = matches
            .iter()
            .map(|(at, rule, sure)| (chunk * 64 + at, id(rule, sure)));
        found.extend(its);
    }
    for (number, text) in (0..).zip(texts(sort, RULES)) {
        let libpcap = Libpcap::compile(&text)?;
        for (packet, frame) in frames.iter().enumerate() {
            let takes = libpcap.run(frame.data(), frame.wire_len()) != 0;
            if takes != found.contains(&(packet, number)) {
                return Err(Failure::Disagree {
                    engine: "the rule set".to_owned(),
                    text,
                    packet: packet as u64,
                });
            }
        }
    }
    Ok(())
}

fn frame(packet: &[u8; 64]) -> Frame<'_> {
    Frame::new(packet, 64, Aux::default())
}

fn id(RuleId(rule): RuleId, sure: Sure) -> u64 {
    match sure {
        Sure::Yes => rule,
        Sure::Ask => rule + NOT_SURE,
    }
}

/// Reads all packets of `cold` with a rule set: nanoseconds a packet, and all matches.
///
/// # Errors
/// [`Failure`].
pub(crate) fn read(cold: &Cold, reader: &mut RuleReader) -> Result<(f64, Found), Failure> {
    let mut matches = Matches::default();
    cold.read(|found, frames| {
        reader.refresh();
        reader.match_many(LinkType::ETHERNET, 0, frames, &mut matches);
        for (at, rule, sure) in matches.iter() {
            found.add(at, id(rule, sure));
        }
        found.add_set(frames.len(), 0);
    })
}

/// How long it took to bring rules in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Installed {
    /// From texts to filters.
    pub(crate) parse_ms: f64,
    /// From filters until a packet that the last rule matches was found by the reader.
    pub(crate) insert_ms: f64,
    /// The longest time between two batches of the reader meanwhile.
    pub(crate) pause_us: f64,
}

/// Brings the flow rules into an empty set while another thread matches packets against it.
///
/// # Errors
/// [`Failure`]: the rules did not come, or the reader did not run.
pub(crate) fn install() -> Result<Installed, Failure> {
    let texts = texts(Sort::Flows, RULES);
    let mut set = RuleSet::new(Mode::Savefile);
    set.add_link_type(LinkType::ETHERNET);
    let reader = set.reader();
    let (started, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let batches = AtomicU64::new(0);
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            pin::pin(1);
            match_until_seen(reader, (&started, &seen), &batches)
        });
        pin::pin(0);
        while !started.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let start = Instant::now();
        let rules = filters(&texts);
        let parsed = Instant::now();
        let before = batches.load(Ordering::Relaxed);
        let inserted = rules.and_then(|rules| insert(&mut set, rules));
        while !seen.load(Ordering::Acquire) && !reading.is_finished() && inserted.is_ok() {
            thread::yield_now();
        }
        let end = Instant::now();
        let meanwhile = batches.load(Ordering::Relaxed) - before;
        // Where the rules did not come, the reader need not wait for them.
        seen.store(true, Ordering::Release);
        let longest = reading.join().map_err(|_| Failure::Panicked)??;
        inserted?;
        if meanwhile == 0 {
            let why = "the reader had no turn while rules were inserted";
            return Err(Failure::Unsound(why.to_owned()));
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Installed {
            parse_ms: ms(parsed - start),
            insert_ms: ms(end - parsed),
            pause_us: longest.as_secs_f64() * 1e6,
        })
    })
}

/// Matches packets, 64 at a time, until the last rule is among the matches; the longest time of one turn.
fn match_until_seen(
    mut reader: RuleReader,
    (started, seen): (&AtomicBool, &AtomicBool),
    batches: &AtomicU64,
) -> Result<Duration, Failure> {
    let mut packets = [[0; 64]; 64];
    for (packet, spec) in packets.iter_mut().zip(Mix::new()) {
        spec.write(packet);
    }
    flow(RULES - 1).write(&mut packets[63]);
    let frames = packets.each_ref().map(frame);
    let last = RuleId(u64::from(RULES - 1));
    let mut matches = Matches::default();
    let start = Instant::now();
    let (mut before, mut longest) = (start, Duration::ZERO);
    loop {
        reader.refresh();
        reader.match_many(LinkType::ETHERNET, 0, &frames, &mut matches);
        batches.fetch_add(1, Ordering::Relaxed);
        started.store(true, Ordering::Release);
        if matches.iter().any(|(_, rule, _)| rule == last) || seen.load(Ordering::Acquire) {
            seen.store(true, Ordering::Release);
            return Ok(longest);
        }
        let now = Instant::now();
        longest = longest.max(now - before);
        before = now;
        if now - start > LIMIT {
            return Err(Failure::Deadline {
                seconds: LIMIT.as_secs(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_find_what_their_twins_know_and_libpcap_says() {
        let cold = Cold::new(32 << 20).unwrap();
        for sort in [Sort::Flows, Sort::Mixed] {
            let (expected, share) = Twin::new(sort, RULES).expect(&cold);
            assert!((0.45..0.55).contains(&share), "{share}");
            let set = rule_set(sort, RULES).unwrap();
            let (_, found) = read(&cold, &mut set.reader()).unwrap();
            assert_eq!(found, expected, "{sort:?}");
            compare_with_libpcap(sort, &mut set.reader()).unwrap();
        }
    }

    #[test]
    fn a_set_that_lacks_a_rule_is_noticed() {
        let cold = Cold::new(32 << 20).unwrap();
        let (expected, _) = Twin::new(Sort::Mixed, RULES).expect(&cold);
        let mut set = rule_set(Sort::Mixed, RULES).unwrap();
        assert!(set.remove(RuleId(4_242)));
        let (_, found) = read(&cold, &mut set.reader()).unwrap();
        assert!(found.check(expected).is_err());
        let compared = compare_with_libpcap(Sort::Flows, &mut set.reader());
        assert!(matches!(compared, Err(Failure::Disagree { .. })));
    }

    #[test]
    fn rules_come_in_while_packets_are_matched() {
        let installed = install().unwrap();
        assert!(installed.insert_ms > 0.0, "{installed:?}");
    }
}
