//! The largest flows, hosts and ports of the past.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::net::IpAddr;

use axum::{Extension, extract::State, response::Response};
use retroscope_packet::{FlowKey, community_id_of, flow_of, parse};
use retroscope_recorder::{DumpsAsked, QueriedPacket, Query, QueryReport};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    bodies::request::TimeRangeBody,
    extract::QueryParams,
    largest::{Largest, LargestBy, Volume},
    past_scan::{PastScan, ScanSummary},
    problem::Problem,
};

/// Default number of rows of each table.
const ROWS: usize = 10;
const ROWS_MAX: usize = 1000;
/// Bytes of each packet that are parsed for its headers.
const HEADERS: u32 = 512;

/// Selects packets.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TopParameters {
    /// A pcap-filter(7) expression; left out: every packet.
    #[param(example = "tcp")]
    filter: Option<String>,
    /// Packets with this Community ID, in both directions.
    community_id: Option<String>,
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970, whose size
    /// tells whether it counts s, ms, µs or ns.
    from: Option<String>,
    /// Packets up to and including this time.
    to: Option<String>,
    /// Packets of this duration before now. Excludes `from` and `to`.
    #[param(example = "30s")]
    last: Option<String>,
    /// The measure of size.
    #[param(inline)]
    by: Option<LargestBy>,
    /// Number of rows of each table, 10 if left out.
    #[param(minimum = 1, maximum = 1000)]
    count: Option<usize>,
}

/// An end of a flow.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FlowEnd)]
pub(crate) struct EndBody {
    address: String,
    /// `null`: the protocol is not TCP, UDP or SCTP.
    port: Option<u16>,
}

/// A flow, in both directions.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TopFlow)]
pub(crate) struct FlowRow {
    /// The flow in words.
    flow: String,
    /// The IP protocol number; `null`: the flow is not IP.
    proto: Option<u8>,
    /// Both ends of the flow; empty: the flow is not IP.
    ends: Vec<EndBody>,
    /// The Community ID, version 1 with seed 0; `null`: the flow is not TCP, UDP or SCTP.
    community_id: Option<String>,
    packets: u64,
    /// Bytes on the wire.
    bytes: u64,
}

/// A host, by its IP address.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TopHost)]
pub(crate) struct HostRow {
    address: String,
    packets: u64,
    /// Bytes on the wire, sent and received.
    bytes: u64,
    /// Bytes on the wire that the host sent.
    sent_bytes: u64,
}

/// A port of a protocol, at either end of a flow.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TopPort)]
pub(crate) struct PortRow {
    /// The protocol: 6 TCP, 17 UDP, 132 SCTP.
    proto: u8,
    port: u16,
    packets: u64,
    /// Bytes on the wire, to the port and from the port.
    bytes: u64,
    /// Bytes on the wire from the port.
    sent_bytes: u64,
}

/// The largest flows, hosts and ports.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Top)]
pub(crate) struct TopBody {
    scan: ScanSummary,
    /// Number of matching packets.
    packets: u64,
    /// Bytes on the wire of the matching packets.
    bytes: u64,
    flows: Vec<FlowRow>,
    hosts: Vec<HostRow>,
    /// The largest ports, source and destination.
    ports: Vec<PortRow>,
    /// Bytes that a row may lack. At most 65,536 flows, 65,536 hosts and 65,536 ports are tracked
    /// at the same time; beyond that, at least the smaller half is dropped.
    uncertain_bytes: u64,
    /// Packets that a row may lack, for the same reason as `uncertain_bytes`.
    uncertain_packets: u64,
}

#[derive(Debug)]
struct TopCounts {
    all: Volume,
    flows: Largest<FlowKey>,
    hosts: Largest<IpAddr>,
    ports: Largest<(u8, u16)>,
}

impl TopCounts {
    fn new(by: LargestBy) -> Self {
        Self {
            all: Volume::default(),
            flows: Largest::new(by),
            hosts: Largest::new(by),
            ports: Largest::new(by),
        }
    }

    fn add(&mut self, seen: &QueriedPacket<'_>) {
        let parsed = parse(seen.link_type, seen.data);
        let volume = |is_sent| Volume::of(seen.wire_len, is_sent);
        self.all.packets += 1;
        self.all.bytes += u64::from(seen.wire_len);
        if let Some(flow) = flow_of(&parsed) {
            self.flows.add(flow, volume(false));
        }
        let Some(ip) = parsed.network else {
            return;
        };
        self.hosts.add(ip.src, volume(true));
        if ip.dst != ip.src {
            self.hosts.add(ip.dst, volume(false));
        }
        if let (Some(ports), Some(proto)) = (parsed.transport, ip.proto) {
            self.ports.add((proto, ports.src), volume(true));
            if ports.dst != ports.src {
                self.ports.add((proto, ports.dst), volume(false));
            }
        }
    }

    fn into_body(self, count: usize, scan: ScanSummary) -> TopBody {
        let uncertain = [
            self.flows.uncertain(),
            self.hosts.uncertain(),
            self.ports.uncertain(),
        ];
        let flows = self.flows.largest(count).into_iter();
        let hosts = self.hosts.largest(count).into_iter();
        let ports = self.ports.largest(count).into_iter();
        TopBody {
            scan,
            packets: self.all.packets,
            bytes: self.all.bytes,
            flows: flows.map(|(flow, volume)| flow_row(flow, volume)).collect(),
            hosts: hosts
                .map(|(address, volume)| HostRow {
                    address: address.to_string(),
                    packets: volume.packets,
                    bytes: volume.bytes,
                    sent_bytes: volume.sent_bytes,
                })
                .collect(),
            ports: ports
                .map(|((proto, port), volume)| PortRow {
                    proto,
                    port,
                    packets: volume.packets,
                    bytes: volume.bytes,
                    sent_bytes: volume.sent_bytes,
                })
                .collect(),
            uncertain_bytes: uncertain.iter().map(|it| it.0).max().unwrap_or(0),
            uncertain_packets: uncertain.iter().map(|it| it.1).max().unwrap_or(0),
        }
    }
}

fn flow_row(flow: FlowKey, volume: Volume) -> FlowRow {
    let end = |address: IpAddr, port| EndBody {
        address: address.to_string(),
        port,
    };
    let (proto, ends) = match flow {
        FlowKey::Ports { proto, low, high } => (
            Some(proto),
            vec![
                end(low.addr, Some(low.port)),
                end(high.addr, Some(high.port)),
            ],
        ),
        FlowKey::Ip { proto, low, high } => (Some(proto), vec![end(low, None), end(high, None)]),
        FlowKey::Mac { .. } | FlowKey::Link { .. } => (None, Vec::new()),
    };
    FlowRow {
        flow: flow.to_string(),
        proto,
        ends,
        community_id: community_id_of(&flow, 0),
        packets: volume.packets,
        bytes: volume.bytes,
    }
}

/// The largest flows, hosts and ports of a time range
///
/// Packets that have left the ring are read from finished dumps.
#[utoipa::path(
    get, path = "/v1/top", tag = "history",
    params(TopParameters),
    responses((status = 200, body = TopBody)),
)]
pub(crate) async fn top(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<TopParameters>,
) -> Result<Response, Problem> {
    let count = asked.count.unwrap_or(ROWS);
    if !(1..=ROWS_MAX).contains(&count) {
        let why = format!("`count` is a number from 1 to {ROWS_MAX}");
        return Err(Problem::invalid(why));
    }
    let wanted = PastScan {
        filter: asked.filter,
        stretch: TimeRangeBody {
            from: asked.from,
            to: asked.to,
            last: asked.last,
        },
        query: Query {
            community_id: asked.community_id,
            headers: std::num::NonZeroU32::new(HEADERS),
            dumps: DumpsAsked::Named,
            ..Query::default()
        },
    };
    let empty = TopCounts::new(asked.by.unwrap_or_default());
    let look = |all: &mut TopCounts, seen: &QueriedPacket<'_>| {
        all.add(seen);
        true
    };
    let answer = move |all: TopCounts, report: &QueryReport, _: &Query| {
        all.into_body(count, ScanSummary::from(report))
    };
    wanted.run(app, caller, empty, look, answer).await
}
