//! One packet and its flow: Wireshark's details, and the bytes of the conversation.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{fmt::Write as _, sync::Arc, time::Instant};

use axum::{Extension, extract::State, response::Response};
use retroscope_packet::{flow_of, parse, proto};
use retroscope_recorder::{Cancel, Export, PacketId, Query, QueryReport, rfc3339};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    app::App,
    bodies::request::TimeRangeBody,
    caller::Caller,
    conversation::{Conversation, SegmentBytes, end_text},
    dissect::{DataSource, FieldBody},
    extract::{Json, QueryParams},
    flow_packets::{FlowPackets, FlowRange, KeptPacket},
    past_scan::{ScanSummary, run_cancellable},
    problem::Problem,
    queries::ConcurrencyLimit,
};

/// Default time range before and after the packet, ns.
const AROUND_NS: i64 = 60_000_000_000;
/// Time range after the packet whose packets are dissected too, ns.
const AFTER_NS: i64 = 10_000_000_000;
/// Limits of packets and of bytes for the scan up to the packet's time stamp.
const BEFORE_MAX: (u64, u64) = (2000, 2 << 20);
/// Limits of packets and of bytes for the scan after the packet's time stamp.
const AFTER_MAX: (u64, u64) = (200, 256 << 10);
/// Time limit for reading a conversation, checked at each packet of the flow.
const STREAM_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Names a packet.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DetailParameters {
    /// The ID of a packet in the ring, from `/v1/packets`.
    id: String,
    /// Dissect the flow's packets from this time on: RFC 3339 with any offset, or a number since
    /// 1970. Left out: from 60 s before the packet on.
    from: Option<String>,
}

/// A data source of the details.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PacketSource)]
struct SourceBody {
    /// `Frame`, or what Wireshark made: for example `Reassembled TCP (1030 bytes)`.
    name: String,
    /// Number of bytes.
    length: usize,
    /// The first bytes, at most 1 MiB, two hexadecimal digits each.
    hex: String,
}

/// The packets that were dissected together.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = DetailContext)]
struct ContextBody {
    /// Number of packets that were dissected together, the requested packet included.
    packets: usize,
    /// Number of dissected packets before the requested packet.
    before: usize,
    /// The time range has more packets of the flow before the requested packet.
    is_limited: bool,
}

/// The details of a packet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PacketDetails)]
pub(crate) struct DetailBody {
    /// The packet's ID.
    id: String,
    /// Time stamp, RFC 3339.
    time: String,
    interface: String,
    /// Link-layer header type: a LINKTYPE_ value.
    link_type: u16,
    /// Length on the wire, bytes.
    length: u32,
    /// Number of captured bytes, or of bytes that the token may see.
    captured: usize,
    /// The packet, and data that Wireshark reassembled or decoded.
    sources: Vec<SourceBody>,
    /// Wireshark's tree: the protocol layers, each with its fields.
    fields: Vec<FieldBody>,
    context: ContextBody,
    /// The scan for the flow's earlier packets; `null`: the packet is not IP.
    scan: Option<ScanSummary>,
    /// The tree is not complete. For example, it was larger than 20,000 fields or deeper than 64
    /// levels.
    is_truncated: bool,
}

/// Selects a conversation.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamParameters {
    /// The ID of a packet in the ring, from `/v1/packets`.
    id: String,
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970, whose size
    /// tells whether it counts s, ms, µs or ns. Left out: from 60 s before the packet on.
    from: Option<String>,
    /// Packets up to and including this time. Left out: up to 60 s after the packet.
    to: Option<String>,
}

/// A side of a conversation.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StreamSide {
    /// The side that opened the connection, or that sent the first packet.
    Client,
    /// The other side.
    Server,
}

/// Bytes of one direction.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamSegment)]
struct SegmentBody {
    from: StreamSide,
    /// Time stamp of the packet, RFC 3339.
    time: String,
    /// The packet's ID.
    id: Option<String>,
    /// The bytes, two hexadecimal digits each.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hex: Option<String>,
    /// Instead of `hex`: number of bytes that were not recorded, or that were cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    missing: Option<u64>,
}

/// The bytes of a conversation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Stream)]
pub(crate) struct StreamBody {
    /// `tcp` or `udp`.
    protocol: &'static str,
    /// Address and port.
    client: String,
    /// Address and port.
    server: String,
    /// TCP: the start of the connection (SYN) is among the packets.
    has_start: bool,
    /// TCP: the end of the connection (FIN or RST) is among the packets.
    has_end: bool,
    segments: Vec<SegmentBody>,
    /// Number of bytes from the client, missing bytes included.
    client_bytes: u64,
    /// Number of bytes from the server, missing bytes included.
    server_bytes: u64,
    scan: ScanSummary,
    /// Remarks on the bytes, in words.
    remarks: Vec<&'static str>,
    /// The conversation has more than 1 MiB, more than 10,000 segments, or took longer than 10 s
    /// to read.
    is_truncated: bool,
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl From<DataSource> for SourceBody {
    fn from(source: DataSource) -> Self {
        Self {
            name: source.name,
            length: source.length,
            hex: hex(&source.data),
        }
    }
}

/// A packet's details as Wireshark shows them
///
/// Wireshark's `sharkd`, in a sandbox, dissects the packet together with earlier packets and the
/// next packets of its flow, so that reassembled HTTP and TLS appear. Needs the package tshark (501
/// without) and a kernel with Landlock and seccomp.
#[utoipa::path(
    get, path = "/v1/details", tag = "packets",
    params(DetailParameters),
    responses((status = 200, body = DetailBody)),
)]
pub(crate) async fn details(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<DetailParameters>,
) -> Result<Response, Problem> {
    let (id, range) = read(&asked.id, asked.from, None)?;
    let limit = Arc::clone(&app.dissection_limit);
    answer(app, caller, &limit, move |app, caller, cancel| {
        let flow = FlowPackets {
            handle: &app.handle,
            caller,
            cancel,
        };
        let packet = flow.packet(id)?;
        let from_ns = range.0.unwrap_or(packet.stamp_ns.saturating_sub(AROUND_NS));
        let context = FlowContext::read(flow, &packet, from_ns.min(packet.stamp_ns))?;
        let is_cancelled = || cancel.is_cancelled();
        let dissector = &app.services.dissector;
        let frame = dissector.frame(&context.packets, context.before, &is_cancelled)?;
        let mut fields = frame.fields;
        let id_of = |number: usize| {
            let packet = context.packets.get(number.checked_sub(1)?)?;
            packet.id.map(|id| id.to_string())
        };
        fields
            .iter_mut()
            .for_each(|field| field.name_frames(&id_of));
        let body = DetailBody {
            id: id.to_string(),
            time: rfc3339(packet.stamp_ns),
            interface: packet.interface,
            link_type: packet.link_type.0,
            length: packet.wire_len,
            captured: packet.data.len(),
            sources: frame.sources.into_iter().map(SourceBody::from).collect(),
            fields,
            context: ContextBody {
                packets: context.packets.len(),
                before: context.before,
                is_limited: context.is_limited,
            },
            scan: context.scan.as_ref().map(|(report, _)| report.into()),
            is_truncated: frame.is_truncated,
        };
        let bytes = context.packets.iter().map(|it| it.data.len() as u64).sum();
        let scan = context.scan.as_ref();
        export(app, caller, "details", scan, packet.stamp_ns, bytes);
        Ok(body)
    })
    .await
}

/// The bytes of the TCP connection or UDP flow that contains a packet
///
/// Orders TCP segments by their sequence numbers, and says which bytes are missing. If a connection
/// started before the time range or before the oldest packet in the ring, its earlier bytes are not
/// in the answer, and `has_start` is false.
#[utoipa::path(
    get, path = "/v1/stream", tag = "packets",
    params(StreamParameters),
    responses((status = 200, body = StreamBody)),
)]
pub(crate) async fn stream(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<StreamParameters>,
) -> Result<Response, Problem> {
    let (id, range) = read(&asked.id, asked.from, asked.to)?;
    let limit = Arc::clone(&app.query_limit);
    answer(app, caller, &limit, move |app, caller, cancel| {
        let flow = FlowPackets {
            handle: &app.handle,
            caller,
            cancel,
        };
        let packet = flow.packet(id)?;
        let parsed = parse(packet.link_type, &packet.data);
        let ip = parsed.network.and_then(|ip| ip.proto);
        let protocol = match ip.filter(|_| flow_of(&parsed).is_some()) {
            Some(proto::TCP) => "tcp",
            Some(proto::UDP) => "udp",
            _ => {
                let why = format!("packet {id} is neither TCP nor UDP: only these have a stream");
                return Err(Problem::invalid(why));
            }
        };
        let stamp_ns = packet.stamp_ns;
        let range = FlowRange {
            from_ns: range
                .0
                .unwrap_or(stamp_ns.saturating_sub(AROUND_NS))
                .min(stamp_ns),
            to_ns: range
                .1
                .unwrap_or(stamp_ns.saturating_add(AROUND_NS))
                .max(stamp_ns),
            ..FlowRange::default()
        };
        let deadline = Instant::now() + STREAM_WAIT;
        let mut conversation = Conversation::new(id);
        let mut is_late = false;
        let scan = flow.flow(&packet, &range, |seen| {
            is_late = Instant::now() >= deadline;
            conversation.packet(seen) && !is_late
        })?;
        let scan = scan.ok_or_else(|| Problem::bug("a flow with ports has no Community ID"))?;
        conversation.finish();
        let body = StreamBody::new(protocol, conversation, &scan.0, is_late);
        let bytes = body.client_bytes.saturating_add(body.server_bytes);
        export(app, caller, "stream", Some(&scan), stamp_ns, bytes);
        Ok(body)
    })
    .await
}

type AskedPacket = (PacketId, (Option<i64>, Option<i64>));

fn read(id: &str, from: Option<String>, to: Option<String>) -> Result<AskedPacket, Problem> {
    let id = id.parse().map_err(Problem::invalid)?;
    let range = TimeRangeBody {
        from,
        to,
        last: None,
    };
    let range = range.read()?;
    Ok((id, (range.from_ns, range.to_ns)))
}

/// Runs `work` as [`run_cancellable`] does, and answers with its result.
async fn answer<T: Serialize + Send + 'static>(
    app: Arc<App>,
    caller: Caller,
    limit: &Arc<ConcurrencyLimit>,
    work: impl FnOnce(&App, &Caller, &Cancel) -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    run_cancellable(app, caller, limit, move |app, caller, cancel, permit| {
        Ok(Json(work(app, caller, cancel)?).keeping(permit))
    })
    .await
}

/// Reports as an event that a client receives `bytes` bytes of the packets of `scan`, or of one
/// packet with the stamp `stamp_ns`.
fn export(
    app: &App,
    caller: &Caller,
    what: &str,
    scan: Option<&(QueryReport, Query)>,
    stamp_ns: i64,
    bytes: u64,
) {
    let one_packet = Query {
        from_ns: Some(stamp_ns),
        to_ns: Some(stamp_ns),
        ..Query::default()
    };
    let query = scan.map_or(&one_packet, |(_, query)| query);
    let mut export = Export::new(&caller.name, caller.address, what, query);
    match scan {
        Some((report, _)) => export.answered(report),
        None => export.packets = Some(1),
    }
    app.handle.tell_export(Export { bytes, ..export });
}

/// A packet and the packets of its flow, which are dissected together.
struct FlowContext {
    packets: Vec<KeptPacket>,
    /// Index of the packet in `packets`.
    before: usize,
    is_limited: bool,
    scan: Option<(QueryReport, Query)>,
}

impl FlowContext {
    fn read(flow: FlowPackets<'_>, packet: &KeptPacket, from_ns: i64) -> Result<Self, Problem> {
        let mut packets = Vec::new();
        let mut has_packet = false;
        let range = FlowRange {
            from_ns,
            to_ns: packet.stamp_ns,
            limits: Some(BEFORE_MAX),
            newest: true,
        };
        // The scan may find packets with the same stamp after the packet.
        let mut behind = Vec::new();
        let scan = flow.flow(packet, &range, |seen| {
            let kept = KeptPacket::from(seen);
            match has_packet {
                true => behind.push(kept),
                false => packets.push(kept),
            }
            has_packet |= seen.id == packet.id;
            true
        })?;
        if !has_packet {
            packets.push(packet.clone());
        }
        let before = packets.len() - 1;
        let is_limited = scan
            .as_ref()
            .is_some_and(|(report, _)| report.clipped.contains(&"limit"));
        packets.append(&mut behind);
        let range = FlowRange {
            from_ns: packet.stamp_ns.saturating_add(1),
            to_ns: packet.stamp_ns.saturating_add(AFTER_NS),
            limits: Some(AFTER_MAX),
            newest: false,
        };
        flow.flow(packet, &range, |seen| {
            packets.push(KeptPacket::from(seen));
            true
        })?;
        Ok(Self {
            packets,
            before,
            is_limited,
            scan,
        })
    }
}

impl StreamBody {
    fn new(
        protocol: &'static str,
        conversation: Conversation,
        report: &QueryReport,
        is_late: bool,
    ) -> Self {
        let mut remarks = Vec::new();
        if protocol == "tcp" && !conversation.has_start {
            remarks.push(
                "the start of the connection (SYN) is not among the packets: earlier bytes may be missing",
            );
        }
        if !conversation.has_asked() {
            remarks.push("the packet that was asked for comes after the end of this answer");
        }
        let segments = conversation.segments.into_iter().map(|segment| {
            let (hex, missing) = match segment.bytes {
                SegmentBytes::Seen(bytes) => (Some(hex(&bytes)), None),
                SegmentBytes::Missing(bytes) => (None, Some(bytes)),
            };
            SegmentBody {
                from: match segment.from_client {
                    true => StreamSide::Client,
                    false => StreamSide::Server,
                },
                time: rfc3339(segment.stamp_ns),
                id: segment.id.map(|id| id.to_string()),
                hex,
                missing,
            }
        });
        Self {
            protocol,
            client: end_text(conversation.client),
            server: end_text(conversation.server),
            has_start: conversation.has_start,
            has_end: conversation.has_end,
            segments: segments.collect(),
            client_bytes: conversation.totals[0],
            server_bytes: conversation.totals[1],
            scan: report.into(),
            remarks,
            is_truncated: conversation.is_truncated || is_late,
        }
    }
}
