//! Tests a trigger rule on packets in the ring.

use axum::{Extension, extract::State, response::Response};
use retroscope_recorder::{QueriedPacket, Query, QueryReport, rfc3339};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppState, CallerExtension, packets::PacketLine};
use crate::{
    bodies::request::{TimeRangeBody, count},
    extract::{Json, NoQuery, QueryParams},
    past_scan::{PastScan, ScanSummary},
    problem::Problem,
};

/// Default number of listed packets.
const LISTED: usize = 10;
const LISTED_MAX: usize = 1000;

/// A rule to test.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleTest)]
pub(crate) struct RuleTestBody {
    /// The trigger filter, a pcap-filter(7) expression.
    #[schema(example = "tcp[tcpflags] & tcp-rst != 0", min_length = 1)]
    filter: String,
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970, whose size
    /// tells whether it counts s, ms, µs or ns.
    from: Option<String>,
    /// Packets up to and including this time.
    to: Option<String>,
    /// Packets of this duration before now. Excludes `from` and `to`.
    #[schema(example = "30s")]
    last: Option<String>,
    /// Maximum number of listed packets, 10 if left out.
    #[schema(minimum = 0, maximum = 1000)]
    #[serde(default, deserialize_with = "count")]
    list: Option<usize>,
}

/// The result of a rule test.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RuleTested)]
pub(crate) struct RuleTestedBody {
    /// Number of matching packets.
    hits: u64,
    /// Time stamp of the first hit, RFC 3339; `null`: no hit.
    first: Option<String>,
    /// Time stamp of the last hit, RFC 3339; `null`: no hit.
    last: Option<String>,
    /// Maximum number of hits in one second. Seconds are counted from the first hit.
    most_in_a_second: u64,
    /// The first hits, in order.
    packets: Vec<PacketLine>,
    scan: ScanSummary,
}

#[derive(Debug, Default)]
struct RuleTestCounts {
    hits: u64,
    first_ns: Option<i64>,
    last_ns: Option<i64>,
    /// The current second, counted from the first hit, and its number of hits.
    second: (i64, u64),
    most: u64,
    packets: Vec<PacketLine>,
}

impl RuleTestCounts {
    fn hit(&mut self, stamp_ns: i64) {
        self.hits += 1;
        let first_ns = *self.first_ns.get_or_insert(stamp_ns);
        self.last_ns = Some(stamp_ns);
        let second = stamp_ns.saturating_sub(first_ns).div_euclid(1_000_000_000);
        if second != self.second.0 {
            self.second = (second, 0);
        }
        self.second.1 += 1;
        self.most = self.most.max(self.second.1);
    }
}

/// The hits that a rule would have had in the past
///
/// Hits are not dumps: windows, hold-off and limits decide which hits start a dump.
#[utoipa::path(
    post, path = "/v1/rules/test", tag = "rules",
    request_body = RuleTestBody,
    responses((status = 200, body = RuleTestedBody)),
)]
pub(crate) async fn test(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    Json(asked): Json<RuleTestBody>,
) -> Result<Response, Problem> {
    if asked.filter.trim().is_empty() {
        let why = "a rule has a filter: an empty filter matches every packet";
        return Err(Problem::invalid(why));
    }
    let list = asked.list.unwrap_or(LISTED);
    if list > LISTED_MAX {
        let why = format!("`list` is a number from 0 to {LISTED_MAX}");
        return Err(Problem::invalid(why));
    }
    let wanted = PastScan {
        filter: Some(asked.filter),
        stretch: TimeRangeBody {
            from: asked.from,
            to: asked.to,
            last: asked.last,
        },
        query: Query::default(),
    };
    let look = move |found: &mut RuleTestCounts, seen: &QueriedPacket<'_>| {
        found.hit(seen.stamp_ns);
        if found.packets.len() < list {
            found.packets.push(PacketLine::new(seen, false));
        }
        true
    };
    let answer = |found: RuleTestCounts, report: &QueryReport, _: &Query| RuleTestedBody {
        hits: found.hits,
        first: found.first_ns.map(rfc3339),
        last: found.last_ns.map(rfc3339),
        most_in_a_second: found.most,
        packets: found.packets,
        scan: ScanSummary::from(report),
    };
    let none = RuleTestCounts::default();
    wanted.run(app, caller, none, look, answer).await
}
