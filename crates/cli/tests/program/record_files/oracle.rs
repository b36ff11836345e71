//! Computes the expected output of `record -r` in a slow and simple way: all packets in memory, one
//! window at a time.

use std::{collections::HashMap, path::Path};

use retroscope_filter::{
    Aux, Decision, FilledExpression, Filter, FilterMode, LinkContext, PacketView, Template,
    TriggerFacts,
};
use retroscope_packet::{FlowKey, FragmentKey, LinkType, flow_of, fragment_of, parse};
use retroscope_pcapfile::CaptureReader;

/// A packet with all properties that a dump must keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) time_ns: i64,
    pub(crate) wire_len: u32,
    pub(crate) link_type: LinkType,
    pub(crate) interface: String,
    pub(crate) data: Vec<u8>,
}

/// An expected dump.
#[derive(Debug)]
pub(crate) struct Dump {
    pub(crate) rule: String,
    pub(crate) trigger_ns: i64,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) packets: Vec<Packet>,
}

/// The options of a recording, for the program and the oracle: trigger filters, dump filter, and
/// window before and after the trigger.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) triggers: Vec<String>,
    pub(crate) dump: String,
    pub(crate) past_ns: i64,
    pub(crate) future_ns: i64,
}

/// Returns the packets of a capture file in the order of the file, and whether the file was read
/// to its end. An interface without a name gets the name of the file.
pub(crate) fn read(path: &Path) -> (Vec<Packet>, bool) {
    let mut packets = Vec::new();
    let file_name = path
        .file_name()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    let Ok(mut reader) = CaptureReader::open(path) else {
        return (packets, false);
    };
    loop {
        let (meta, data) = match reader.next() {
            Ok(Some(record)) => (record.meta, record.data.to_vec()),
            Ok(None) => return (packets, true),
            Err(_) => return (packets, false),
        };
        let interface = &reader.interfaces()[usize::from(meta.interface)];
        packets.push(Packet {
            time_ns: meta.time_ns,
            wire_len: meta.wire_len,
            link_type: interface.link_type,
            interface: if interface.name.is_empty() {
                file_name.clone()
            } else {
                interface.name.clone()
            },
            data,
        });
    }
}

/// The largest time by which a packet is older than an earlier packet, in ns.
pub(crate) fn lateness_ns(packets: &[Packet]) -> i64 {
    let mut clock = i64::MIN;
    let mut late = 0;
    for packet in packets {
        clock = clock.max(packet.time_ns);
        late = late.max(clock.saturating_sub(packet.time_ns));
    }
    late
}

/// Merges files by timestamp, ties by file, without changing the order within a file.
pub(crate) fn merge(files: Vec<Vec<Packet>>) -> Vec<Packet> {
    let mut queues: Vec<_> = files
        .into_iter()
        .map(|f| f.into_iter().peekable())
        .collect();
    let mut merged = Vec::new();
    loop {
        let heads = queues
            .iter_mut()
            .enumerate()
            .filter_map(|(i, q)| q.peek().map(|p| (p.time_ns, i)));
        let Some((_, first)) = heads.min() else {
            return merged;
        };
        merged.extend(queues[first].next());
    }
}

fn view(packet: &Packet) -> PacketView<'_> {
    PacketView {
        link_type: packet.link_type,
        mode: FilterMode::Savefile,
        interface: 0,
        aux: Aux::default(),
        data: &packet.data,
        wire_len: packet.wire_len,
    }
}

fn prepared(mut filter: Filter, packets: &[Packet]) -> Option<Filter> {
    let mut link_types: Vec<LinkType> = packets.iter().map(|p| p.link_type).collect();
    link_types.sort_unstable();
    link_types.dedup();
    let context = |link_type| LinkContext {
        link_type,
        snaplen: 262_144,
        mode: FilterMode::Savefile,
        optimize: true,
    };
    let compiled = link_types
        .into_iter()
        .filter(|l| filter.prepare(context(*l)).is_ok())
        .count();
    (compiled > 0).then_some(filter)
}

/// For each packet that is a fragment, the flow of the latest first fragment of its datagram up to
/// this packet. `None` if the packet is no fragment, or if the datagram has no first fragment up to
/// this packet, or if the latest is more than a minute away.
///
/// The program remembers at most 4096 datagrams, the oracle all.
fn first_fragments(packets: &[Packet]) -> Vec<Option<FlowKey>> {
    let mut first: HashMap<FragmentKey, (FlowKey, i64)> = HashMap::new();
    let told = |packet: &Packet| {
        let parsed = parse(packet.link_type, &packet.data);
        let datagram = fragment_of(&parsed)?;
        if let Some(flow) = flow_of(&parsed).filter(|_| !parsed.is_later_fragment()) {
            first.insert(datagram, (flow, packet.time_ns));
        }
        let (flow, time_ns) = first.get(&datagram)?;
        (packet.time_ns.abs_diff(*time_ns) <= 60_000_000_000).then_some(*flow)
    };
    packets.iter().map(told).collect()
}

/// The dumps of a recording whose packets are late by at most the reorder window. `None`: a trigger
/// is invalid, or compiles for no link type of the packets.
pub(crate) fn dumps(packets: &[Packet], question: &Question) -> Option<Vec<Dump>> {
    let mut order: Vec<usize> = (0..packets.len()).collect();
    order.sort_by_key(|i| packets[*i].time_ns);
    let in_order: Vec<&Packet> = order.iter().map(|i| &packets[*i]).collect();
    let template = Template::parse(&question.dump).expect("a template of the test");
    let mut rules = Vec::new();
    for text in &question.triggers {
        rules.push(prepared(Filter::plain(text).ok()?, packets)?);
    }
    let first_fragments = first_fragments(packets);
    let mut open: Vec<(usize, FilledExpression, i64)> = Vec::new();
    let mut dumps = Vec::new();
    for (index, packet) in order.iter().zip(&in_order) {
        for (rule, filter) in rules.iter().enumerate() {
            if !filter.matches(&view(packet)) {
                continue;
            }
            let facts = TriggerFacts {
                parsed: parse(packet.link_type, &packet.data),
                interface: 0,
                first_fragment: first_fragments[*index],
            };
            let Ok(filled) = template.fill(&facts) else {
                continue;
            };
            if open
                .iter()
                .any(|(r, f, to_ns)| (*r, f) == (rule, &filled) && packet.time_ns <= *to_ns)
            {
                continue;
            }
            let (from_ns, to_ns) = (
                packet.time_ns - question.past_ns,
                packet.time_ns + question.future_ns,
            );
            open.push((rule, filled.clone(), to_ns));
            let packets = window(&in_order, filled, from_ns, to_ns);
            dumps.push(Dump {
                rule: question.triggers[rule].clone(),
                trigger_ns: packet.time_ns,
                from_ns,
                to_ns,
                packets,
            });
        }
    }
    Some(dumps)
}

/// The packets in a closed interval that match a filter, in time order. If the filter cannot decide
/// about a packet, the filter runs again with all known datagrams. So fragments that arrive before
/// their first fragment also match.
fn window(in_order: &[&Packet], filled: FilledExpression, from_ns: i64, to_ns: i64) -> Vec<Packet> {
    let inside: Vec<Packet> = in_order
        .iter()
        .filter(|p| (from_ns..=to_ns).contains(&p.time_ns))
        .map(|p| (*p).clone())
        .collect();
    let Some(filter) = prepared(Filter::new(filled), &inside) else {
        return Vec::new();
    };
    let mut state = filter.state();
    let first: Vec<Decision> = inside
        .iter()
        .map(|p| filter.evaluate(&mut state, &view(p)).decision)
        .collect();
    let mut again = |p: &Packet| filter.evaluate(&mut state, &view(p)).decision == Decision::Take;
    let taken = |(p, d): &(Packet, Decision)| match d {
        Decision::Take => true,
        Decision::Skip => false,
        Decision::Maybe(_) => again(p),
    };
    inside
        .into_iter()
        .zip(first)
        .filter(taken)
        .map(|(p, _)| p)
        .collect()
}
