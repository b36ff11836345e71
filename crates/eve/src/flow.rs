//! Writes a flow that ended as a `flow` event of EVE.

use std::sync::LazyLock;

use retroscope_flow::{
    AddressKind, BiflowKey, EndedFlow, Flow, FlowEnd, Secret, TcpState, TimeOutStage,
};
use retroscope_packet::proto::{ICMP, ICMPV6, SCTP, TCP, UDP};
use retroscope_packet::{Icmp, community_id_between};

use crate::protocols::put_proto;
use crate::text::{put, put_addr, put_hex, put_name, put_number, put_stamp};

const SECOND_NS: i64 = 1_000_000_000;
const FIN: u8 = 1;

/// Names of TCP flags, by their bits, in the order of Suricata's lines.
const FLAGS: [(u8, &str); 8] = [
    (2, "syn"),
    (FIN, "fin"),
    (4, "rst"),
    (8, "psh"),
    (16, "ack"),
    (32, "urg"),
    (64, "ecn"),
    (128, "cwr"),
];

/// Hashes keys for the identifiers of flows, equally in every run.
static IDS: LazyLock<Secret> = LazyLock::new(|| Secret::from_words(|n| mixed(n as u64 + 1)));

/// The facts in the line of a flow that the [`EndedFlow`] does not contain.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlowContext<'a> {
    /// Name of the interface that received the flow. `None` if the name is unknown, for example
    /// because the flow is from a file.
    pub interface: Option<&'a str>,
    /// Seed of the Community ID. Tools whose IDs should agree need the same seed, usually 0.
    pub community_id_seed: u16,
}

/// Appends the line of a flow. EVE has no form for flows that are not IP: `flow` then returns
/// `false` and appends nothing.
///
/// `src` is the client: see [`Flow::server`]. `reason` is the closest reason that EVE has;
/// `retroscope.end` is the exact reason. A TCP flow in [`TcpState::None`] has no `tcp.state`.
pub fn flow(out: &mut Vec<u8>, ended: &EndedFlow, about: &FlowContext<'_>) -> bool {
    let flow = &ended.flow;
    let key = flow.key();
    let Some(ends) = key.endpoints() else {
        return false;
    };
    let proto = key.proto();
    let (client, server) = (1 - flow.server(), flow.server());

    put(out, r#"{"timestamp":"#);
    put_stamp(out, ended.time_ns);
    put(out, r#","flow_id":"#);
    put_number(out, id(key, flow.first_ns()));
    if let Some(name) = about.interface {
        put(out, r#","in_iface":"#);
        put_name(out, name);
    }
    put(out, r#","event_type":"flow""#);
    put_vlans(out, key);
    let has_ports = matches!(proto, TCP | UDP | SCTP);
    for (name, end) in [("src", ends[client]), ("dest", ends[server])] {
        put(out, ",\"");
        put(out, name);
        put(out, r#"_ip":""#);
        put_addr(out, end.addr);
        put(out, "\"");
        if has_ports {
            put(out, ",\"");
            put(out, name);
            put(out, r#"_port":"#);
            put_number(out, end.port);
        }
    }
    put(out, r#","proto":""#);
    put_proto(out, proto);
    put(out, "\"");
    let icmp = flow.icmp();
    put_icmp(out, "icmp", icmp[client]);
    put_icmp(out, "response_icmp", icmp[server]);

    put_counts(out, ended, [server, client]);

    // If the ICMP type was not captured, the Community ID is unknown.
    let is_icmp = matches!(
        (key.family(), proto),
        (AddressKind::V4, ICMP) | (AddressKind::V6, ICMPV6)
    );
    let has_type = icmp != [None; 2];
    if has_type || !is_icmp {
        put(out, r#","community_id":""#);
        let has_ports = has_ports || is_icmp;
        let id = community_id_between(proto, ends, has_ports, about.community_id_seed);
        put(out, &id);
        put(out, "\"");
    }
    if proto == TCP {
        put_tcp(out, flow, client);
    }
    put_ours(out, ended);
    put(out, "}\n");
    true
}

fn put_vlans(out: &mut Vec<u8>, key: &BiflowKey) {
    let mut before = r#","vlan":["#;
    for vlan in key.vlans() {
        put(out, before);
        put_number(out, vlan);
        before = ",";
    }
    if before == "," {
        put(out, "]");
    }
}

fn put_icmp(out: &mut Vec<u8>, name: &str, icmp: Option<Icmp>) {
    let Some(icmp) = icmp else { return };
    for (part, number) in [("_type\":", icmp.kind), ("_code\":", icmp.code)] {
        put(out, ",\"");
        put(out, name);
        put(out, part);
        put_number(out, number);
    }
}

/// The object `flow`.
fn put_counts(out: &mut Vec<u8>, ended: &EndedFlow, [server, client]: [usize; 2]) {
    let flow = &ended.flow;
    let (packets, bytes) = (flow.packets(), flow.bytes());
    put(out, r#","flow":{"pkts_toserver":"#);
    put_number(out, packets[client]);
    put(out, r#","pkts_toclient":"#);
    put_number(out, packets[server]);
    put(out, r#","bytes_toserver":"#);
    put_number(out, bytes[client]);
    put(out, r#","bytes_toclient":"#);
    put_number(out, bytes[server]);
    put(out, r#","start":"#);
    put_stamp(out, flow.first_ns());
    put(out, r#","end":"#);
    put_stamp(out, flow.last_ns());
    // As in Suricata: the difference between the seconds of both stamps.
    put(out, r#","age":"#);
    let seconds = |time_ns: i64| time_ns.div_euclid(SECOND_NS);
    put_number(out, seconds(flow.last_ns()) - seconds(flow.first_ns()));
    put(out, r#","state":""#);
    put(
        out,
        match flow.stage() {
            TimeOutStage::New => "new",
            TimeOutStage::Established => "established",
            TimeOutStage::Closed => "closed",
        },
    );
    put(out, r#"","reason":""#);
    put(
        out,
        match ended.end {
            FlowEnd::TimeOut => "timeout",
            FlowEnd::Reused => "tcp_reuse",
            FlowEnd::Full | FlowEnd::Crowded => "forced",
            FlowEnd::Finished => "shutdown",
        },
    );
    put(out, "\"}");
}

/// The object `tcp`.
fn put_tcp(out: &mut Vec<u8>, flow: &Flow, client: usize) {
    let flags = flow.tcp_flags();
    let (to_server, to_client) = (flags[client], flags[1 - client]);
    put(out, r#","tcp":{"tcp_flags":""#);
    put_hex(out, to_server | to_client);
    put(out, r#"","tcp_flags_ts":""#);
    put_hex(out, to_server);
    put(out, r#"","tcp_flags_tc":""#);
    put_hex(out, to_client);
    put(out, "\"");
    for (flag, name) in FLAGS {
        if (to_server | to_client) & flag != 0 {
            put(out, ",\"");
            put(out, name);
            put(out, "\":true");
        }
    }
    let state = match flow.tcp_state() {
        TcpState::None => None,
        TcpState::SynSent => Some("syn_sent"),
        TcpState::SynReceived => Some("syn_recv"),
        TcpState::Established => Some("established"),
        // After one FIN, EVE's state is the server's.
        TcpState::Closing if to_client & FIN != 0 => Some("fin_wait1"),
        TcpState::Closing => Some("close_wait"),
        TcpState::Closed => Some("closed"),
    };
    if let Some(state) = state {
        put(out, r#","state":""#);
        put(out, state);
        put(out, "\"");
    }
    put(out, "}");
}

/// The object `retroscope`.
fn put_ours(out: &mut Vec<u8>, ended: &EndedFlow) {
    let flow = &ended.flow;
    put(out, r#","retroscope":{"start_ns":"#);
    put_number(out, flow.first_ns());
    put(out, r#","end_ns":"#);
    put_number(out, flow.last_ns());
    if flow.key().proto() == TCP {
        put(out, r#","midstream":"#);
        put(out, if flow.is_midstream() { "true" } else { "false" });
    }
    put(out, r#","end":""#);
    put(
        out,
        match ended.end {
            FlowEnd::TimeOut => "timeout",
            FlowEnd::Reused => "reused",
            FlowEnd::Full => "full",
            FlowEnd::Crowded => "crowded",
            FlowEnd::Finished => "finished",
        },
    );
    put(out, "\"");
    if !flow.payload().is_empty() {
        put(out, r#","payload":""#);
        for byte in flow.payload() {
            put_hex(out, *byte);
        }
        put(out, "\"");
    }
    put(out, "}");
}

/// The identifier of a flow from its key and its first stamp. It is below 2^53, so JSON readers
/// that store numbers as `f64` keep it exact.
fn id(key: &BiflowKey, first_ns: i64) -> u64 {
    mixed(IDS.hash(key).wrapping_add(mixed(first_ns.cast_unsigned()))) >> 11
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
/// generators").
fn mixed(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests;
