//! Packets of the past, one line for each.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{fmt::Write as _, net::IpAddr};

use axum::{Extension, extract::State, response::Response};
use retroscope_packet::{Parsed, community_id, parse, summary};
use retroscope_recorder::{
    DumpsAsked, Export, PacketId, QueriedPacket, Query, QueryReport, rfc3339,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    bodies::request::TimeRangeBody,
    extract::QueryParams,
    past_scan::{PastScan, ScanSummary},
    problem::Problem,
    role::Role,
};

/// Default number of packets on a page.
const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;
/// Captured bytes after which a page with `hex` ends.
const PAGE_BYTES_MAX: u64 = 4 << 20;
/// Prefix of a value of `after` that contains a time stamp, not packet IDs.
const TIME: &str = "time:";

/// Selects packets.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PacketParameters {
    /// A pcap-filter(7) expression; left out: every packet.
    #[param(example = "host 192.0.2.7")]
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
    /// Maximum number of packets on a page, 100 if left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
    /// Select the last packets instead of the first.
    newest: Option<bool>,
    /// The `next` of the previous page. All other parameters must be the same.
    after: Option<String>,
    /// Add the bytes of the packets, which needs the role `packets`.
    hex: Option<bool>,
}

/// A packet.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Packet)]
pub(crate) struct PacketLine {
    /// The packet's ID in this recording, as in `epb_packetid`. A string, because the ID has 64
    /// bits.
    id: Option<String>,
    /// Time stamp, RFC 3339.
    time: String,
    interface: String,
    /// Link-layer header type: a LINKTYPE_ value.
    link_type: u16,
    /// Length on the wire, bytes.
    length: u32,
    /// Number of captured bytes, or of bytes that the token may see.
    captured: usize,
    /// Packets of the same capture thread that are missing before this packet.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    dropped: u64,
    /// A summary of the headers.
    summary: String,
    /// The ends of the outermost IP header; `null`: no IP header was parsed.
    flow: Option<PacketFlow>,
    /// The bytes, two hexadecimal digits each.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    hex: Option<String>,
}

/// The ends of a packet, with the field names of EVE.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = PacketFlow)]
pub(crate) struct PacketFlow {
    #[schema(value_type = String)]
    src_ip: IpAddr,
    /// `null`: no port is known, for example of a later fragment.
    src_port: Option<u16>,
    #[schema(value_type = String)]
    dest_ip: IpAddr,
    dest_port: Option<u16>,
    /// IP protocol number; `null`: unknown.
    proto: Option<u8>,
    community_id: Option<String>,
}

impl PacketFlow {
    fn of(parsed: &Parsed) -> Option<Self> {
        let ip = parsed.network?;
        Some(Self {
            src_ip: ip.src,
            src_port: parsed.transport.map(|ports| ports.src),
            dest_ip: ip.dst,
            dest_port: parsed.transport.map(|ports| ports.dst),
            proto: ip.proto,
            community_id: community_id(parsed, 0),
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl PacketLine {
    pub(crate) fn new(seen: &QueriedPacket<'_>, with_hex: bool) -> Self {
        let hex = with_hex.then(|| {
            let mut text = String::with_capacity(2 * seen.data.len());
            for byte in seen.data {
                let _ = write!(text, "{byte:02x}");
            }
            text
        });
        Self {
            id: seen.id.map(|id| id.to_string()),
            time: rfc3339(seen.stamp_ns),
            interface: seen.interface.to_owned(),
            link_type: seen.link_type.0,
            length: seen.wire_len,
            captured: seen.data.len(),
            dropped: seen.dropped,
            summary: summary(seen.link_type, seen.data, seen.wire_len).to_string(),
            flow: PacketFlow::of(&parse(seen.link_type, seen.data)),
            hex,
        }
    }
}

/// A page of packets.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Packets)]
pub(crate) struct PacketPage {
    packets: Vec<PacketLine>,
    /// The value of `after` for the next page; `null`: this is the last page, or `newest` was
    /// requested.
    next: Option<String>,
    scan: ScanSummary,
}

/// The first packet of a page.
enum PageStart {
    First,
    /// After packets with these IDs.
    After(Vec<PacketId>),
    /// From this stamp (ns) on, without the first N packets of this stamp; N is the second number.
    /// Used if the answer may have packets of dumps, which may have no ID.
    Time(i64, u64),
}

impl PageStart {
    fn read(after: Option<&str>) -> Result<Self, Problem> {
        let wrong = || Problem::invalid("`after` is what `next` of the page before was");
        let Some(after) = after else {
            return Ok(Self::First);
        };
        if let Some(place) = after.strip_prefix(TIME) {
            let (stamp, given) = place.rsplit_once('-').ok_or_else(wrong)?;
            let stamp_ns = stamp.parse().map_err(|_| wrong())?;
            return Ok(Self::Time(stamp_ns, given.parse().map_err(|_| wrong())?));
        }
        let ids = after.split(',').map(|id| id.trim().parse());
        let ids = ids.collect::<Result<Vec<PacketId>, _>>();
        ids.map(Self::After).map_err(|_| wrong())
    }
}

struct PageLines {
    start: PageStart,
    limit: usize,
    bytes: u64,
    is_full: bool,
    lines: Vec<PacketLine>,
    /// The stamp of the last added or skipped packet, ns, and the number of such packets with this
    /// stamp.
    last: (i64, u64),
}

impl PageLines {
    /// Adds a packet, unless the page is full or an earlier page has the packet. Returns whether
    /// the page needs further packets.
    fn add(&mut self, seen: &QueriedPacket<'_>, with_hex: bool) -> bool {
        // The query's limit includes the packets that are skipped below. If some of these packets
        // have left the ring, the query finds more packets than the page needs.
        if self.lines.len() == self.limit {
            self.is_full = true;
            return false;
        }
        let same = if seen.stamp_ns == self.last.0 {
            self.last.1
        } else {
            0
        };
        self.last = (seen.stamp_ns, same + 1);
        if let PageStart::Time(stamp_ns, given) = self.start
            && self.last.0 == stamp_ns
            && self.last.1 <= given
        {
            return true;
        }
        self.bytes += seen.data.len() as u64;
        self.lines.push(PacketLine::new(seen, with_hex));
        self.is_full = with_hex && self.bytes >= PAGE_BYTES_MAX;
        !self.is_full
    }

    /// The `next` of this page. After a page that may have packets of dumps, the pages continue by
    /// time.
    fn next(&self, report: &QueryReport) -> Option<String> {
        if !self.is_full && !report.clipped.contains(&"limit") {
            return None;
        }
        if matches!(self.start, PageStart::Time(..)) || report.dumps.is_some() {
            let (stamp_ns, given) = self.last;
            return Some(format!("{TIME}{stamp_ns}-{given}"));
        }
        let after: Vec<String> = report.after.iter().map(ToString::to_string).collect();
        (!after.is_empty()).then(|| after.join(","))
    }
}

/// Packets of a time range, one line each
///
/// Packets that have left the ring are read from finished dumps; `dumps` of the scan counts these
/// packets. `next` leads to the next page. With `hex` a page ends after 4 MiB of packets.
#[utoipa::path(
    get, path = "/v1/packets", tag = "packets",
    params(PacketParameters),
    responses((status = 200, body = PacketPage)),
)]
pub(crate) async fn list(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<PacketParameters>,
) -> Result<Response, Problem> {
    let with_hex = asked.hex.unwrap_or(false);
    if with_hex && !caller.may(Role::Packets) {
        let name = &caller.name;
        let why =
            format!("token '{name}' may not see bytes of packets: this needs the role 'packets'");
        return Err(Problem::forbidden(why));
    }
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        let why = format!("`limit` is a number from 1 to {PAGE_MAX}");
        return Err(Problem::invalid(why));
    }
    let start = PageStart::read(asked.after.as_deref())?;
    let is_newest = asked.newest.unwrap_or(false);
    let mut stretch = TimeRangeBody {
        from: asked.from,
        to: asked.to,
        last: asked.last,
    };
    let (given, after) = match &start {
        PageStart::First => (0, Vec::new()),
        PageStart::After(after) => (0, after.clone()),
        PageStart::Time(stamp_ns, given) => {
            (stretch.from, stretch.last) = (Some(rfc3339(*stamp_ns)), None);
            (*given, Vec::new())
        }
    };
    let wanted = PastScan {
        filter: asked.filter,
        stretch,
        query: Query {
            community_id: asked.community_id,
            limit_packets: Some(given.saturating_add(limit)),
            // `PageLines::add` counts bytes from the oldest packet on, and would leave out the
            // newest packets.
            limit_bytes: (with_hex && is_newest).then_some(PAGE_BYTES_MAX),
            newest: is_newest,
            after,
            dumps: DumpsAsked::Named,
            ..Query::default()
        },
    };
    let lines = PageLines {
        start,
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        bytes: 0,
        is_full: false,
        lines: Vec::new(),
        last: (i64::MIN, 0),
    };
    let handle = app.handle.clone();
    let (who, address) = (caller.name.clone(), caller.address);
    let look = move |page: &mut PageLines, seen: &QueriedPacket<'_>| page.add(seen, with_hex);
    let answer = move |page: PageLines, report: &QueryReport, query: &Query| {
        if with_hex {
            let mut export = Export::new(&who, address, "packets", query);
            export.answered(report);
            handle.tell_export(Export {
                packets: Some(page.lines.len() as u64),
                bytes: page.bytes,
                ..export
            });
        }
        PacketPage {
            next: page.next(report).filter(|_| !is_newest),
            packets: page.lines,
            scan: ScanSummary::from(report),
        }
    };
    wanted.run(app, caller, lines, look, answer).await
}
