//! Ten thousand rules, their expected matches, and the time to install the rules.
//!
//! Rule `n` is made from flow `n` of the traffic. The matching rules of each packet follow from the
//! flow that generated the packet. The tests verify this for some packets with libpcap, by trying
//! every rule's own program.

use std::net::Ipv4Addr;

use retroscope_filter::{
    Aux, Certainty, Filter, FilterFrame, FilterMode, Matches, RuleId, RuleReader, RuleSet,
};
use retroscope_packet::LinkType;

use super::{
    cold::{Cold, PassResult},
    traffic::{FLOWS, Mix, flow},
};
use crate::{
    contest::{Course, Work, together},
    measure::Failure,
};

/// The kind of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// Protocol, both hosts and both ports.
    Flows,
    /// A host, a net of 20 to 28 bits, or a port, a third each.
    Mixed,
}

/// Number of rules in a full set.
pub(super) const RULES: u32 = FLOWS;
/// Prefix lengths of nets.
const NET_BITS: [u32; 5] = [20, 22, 24, 26, 28];
/// Added to a rule's number in the checksum if the rule set leaves the decision to the rule's
/// filter ([`Certainty::AskFilter`]).
const NOT_SURE: u64 = 1 << 32;
impl Sort {
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

/// The texts of all rules.
fn texts(sort: Sort) -> Vec<String> {
    (0..RULES).map(|number| sort.text(number)).collect()
}

/// Parses texts as filters.
fn filters(texts: &[String]) -> Result<Vec<(RuleId, Filter)>, Failure> {
    let filter = |(number, text): (u64, &String)| Ok((RuleId(number), Filter::plain(text)?));
    let filters: Result<_, _> = (0..).zip(texts).map(filter).collect();
    filters.map_err(|error: retroscope_filter::FilterError| Failure::system("a rule", error))
}

/// A set of all rules.
pub(super) fn rule_set(sort: Sort) -> Result<RuleSet, Failure> {
    let mut set = RuleSet::new(FilterMode::Savefile);
    insert(&mut set, filters(&texts(sort))?)?;
    set.add_link_type(LinkType::ETHERNET);
    Ok(set)
}

fn insert(set: &mut RuleSet, rules: Vec<(RuleId, Filter)>) -> Result<(), Failure> {
    match set.insert_many(rules).into_iter().next() {
        None => Ok(()),
        Some((RuleId(id), error)) => Err(Failure::system(&format!("inserting rule {id}"), error)),
    }
}

/// The rules that packets of each flow match; packets of no flow match no rule. Each flow has its
/// own client host, network of 24 bits and client port, so only wider networks contain several
/// flows.
fn rules_by_flow(sort: Sort) -> Vec<Vec<u64>> {
    let clients: Vec<u32> = (0..FLOWS).map(|number| flow(number).src).collect();
    let mut rules = vec![Vec::new(); clients.len()];
    for number in 0..RULES {
        let (own, id) = (number as usize, u64::from(number));
        if sort == Sort::Flows || number % 3 != 1 {
            rules[own].push(id);
            continue;
        }
        let net = |client: u32| prefix(client, net_bits(number));
        for (client, rules) in clients.iter().zip(&mut rules) {
            if net(*client) == net(clients[own]) {
                rules.push(id);
            }
        }
    }
    rules
}

/// The expected result in cold memory, and the fraction of the packets that match some rule.
pub(super) fn expect(sort: Sort, cold: &Cold) -> (PassResult, f64) {
    let rules = rules_by_flow(sort);
    let (mut found, mut some) = (PassResult::default(), 0_u64);
    cold.again(|spec, _| {
        let rules = spec.flow.map_or(&[][..], |flow| &rules[flow as usize]);
        some += u64::from(!rules.is_empty());
        for id in rules {
            found.add(0, *id);
        }
        found.add_set(1, 0);
    });
    (found, some as f64 / found.packets as f64)
}

fn frame(packet: &[u8; 64]) -> FilterFrame<'_> {
    FilterFrame::new(packet, 64, Aux::default())
}

fn id(RuleId(rule): RuleId, sure: Certainty) -> u64 {
    match sure {
        Certainty::Certain => rule,
        Certainty::AskFilter => rule + NOT_SURE,
    }
}

/// Reads all packets of `cold` with a rule set: nanoseconds a packet, and all matches.
pub(super) fn read(cold: &Cold, reader: &mut RuleReader) -> Result<(f64, PassResult), Failure> {
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

/// Installs the flow rules into an empty set while another thread matches packets against the set.
/// Returns milliseconds from the texts until the reader finds a packet that the last rule matches.
pub(super) fn install() -> Result<f64, Failure> {
    let texts = texts(Sort::Flows);
    let mut set = RuleSet::new(FilterMode::Savefile);
    set.add_link_type(LinkType::ETHERNET);
    let mut reader = set.reader();
    let inserting: Work<'_, ()> = Box::new(|_| insert(&mut set, filters(&texts)?));
    let matching: Work<'_, ()> = Box::new(|course| match_until_last(&mut reader, course));
    let legs = together(&|| {}, vec![inserting, matching])?;
    let [inserted, found] = &legs[..] else {
        return Err(Failure::panicked(()));
    };
    Ok((found.end - inserted.start).as_secs_f64() * 1e3)
}

/// Matches packets, 64 at a time, until the last rule is among the matches. Fails if the last rule
/// matches in the first turn, because then no packet was matched during the insertion.
fn match_until_last(reader: &mut RuleReader, course: &Course) -> Result<(), Failure> {
    let mut packets = [[0; 64]; 64];
    let mut mix = Mix::new();
    packets
        .iter_mut()
        .for_each(|packet| mix.spec().write(packet));
    flow(RULES - 1).write(&mut packets[63]);
    let frames = packets.each_ref().map(frame);
    let last = RuleId(u64::from(RULES - 1));
    let mut matches = Matches::default();
    let mut turns = 0_u64;
    loop {
        course.check()?;
        reader.refresh();
        reader.match_many(LinkType::ETHERNET, 0, &frames, &mut matches);
        if matches.iter().any(|(_, rule, _)| rule == last) {
            break;
        }
        turns += 1;
    }
    if turns > 0 {
        return Ok(());
    }
    let why = "the reader had no turn while rules were inserted";
    Err(Failure::Unsound(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::compile, *};

    /// Compares the rules that a set finds for some packets with libpcap's verdict on every rule.
    fn agrees_with_libpcap(sort: Sort, reader: &mut RuleReader) -> bool {
        let (mut packets, mut mix) = ([[0; 64]; 256], Mix::new());
        packets
            .iter_mut()
            .for_each(|packet| mix.spec().write(packet));
        let frames: Vec<FilterFrame<'_>> = packets.iter().map(frame).collect();
        let (mut found, mut said) = (BTreeSet::new(), BTreeSet::new());
        let mut matches = Matches::default();
        for (chunk, frames) in frames.chunks(64).enumerate() {
            reader.match_many(LinkType::ETHERNET, 0, frames, &mut matches);
            let its = matches.iter();
            found.extend(its.map(|(at, rule, sure)| (chunk * 64 + at, id(rule, sure))));
        }
        for (number, text) in (0..).zip(texts(sort)) {
            let program = compile(&text).unwrap();
            let takes = |frame: &FilterFrame<'_>| program.run_many_in_libpcap(&[*frame]) != 0;
            let packets = (0..frames.len()).filter(|at| takes(&frames[*at]));
            said.extend(packets.map(|at| (at, number)));
        }
        !said.is_empty() && said == found
    }

    #[test]
    fn sets_find_what_they_must_and_libpcap_says() {
        let cold = Cold::new(32 << 20).unwrap();
        for sort in [Sort::Flows, Sort::Mixed] {
            let (expected, share) = expect(sort, &cold);
            assert!((0.45..0.55).contains(&share), "{share}");
            let set = rule_set(sort).unwrap();
            let (_, found) = read(&cold, &mut set.reader()).unwrap();
            assert_eq!(found, expected, "{sort:?}");
            assert!(agrees_with_libpcap(sort, &mut set.reader()));
        }
    }

    #[test]
    fn a_set_that_lacks_a_rule_is_noticed() {
        let cold = Cold::new(32 << 20).unwrap();
        let (expected, _) = expect(Sort::Mixed, &cold);
        let mut set = rule_set(Sort::Mixed).unwrap();
        assert!(set.remove(RuleId(4_242)));
        let (_, found) = read(&cold, &mut set.reader()).unwrap();
        assert_ne!(found, expected);
    }

    #[test]
    fn rules_come_in_while_packets_are_matched() {
        assert!(install().unwrap() > 0.0);
    }
}
