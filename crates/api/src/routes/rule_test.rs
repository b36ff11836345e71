//! What a trigger rule would have done in the past.

use axum::{Extension, extract::State, response::Response};
use retroscope_recorder::{Query, QueryReport, Seen, rfc3339};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppState, CallerExtension, packets::PacketLine};
use crate::{
    bodies::request::{TimeRangeBody, count},
    extract::{Json, NoQuery, QueryParams},
    past_scan::{PastScan, ScanSummary},
    problem::Problem,
};

/// Packets that are listed where nobody says how many, …
const LISTED: usize = 10;
/// … and at most.
const LISTED_MAX: usize = 1000;

/// A rule to be tried.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleTest)]
pub(crate) struct RuleTestBody {
    /// Packets that would trigger, a pcap-filter(7) expression.
    #[schema(example = "tcp[tcpflags] & tcp-rst != 0", min_length = 1)]
    expression: String,
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970.
    from: Option<String>,
    /// Packets up to this time, included.
    to: Option<String>,
    /// Packets of this long, up to now; without `from` and `to`.
    #[schema(example = "30s")]
    last: Option<String>,
    /// How many of the first packets are listed, 10 if left out.
    #[schema(minimum = 0, maximum = 1000)]
    #[serde(default, deserialize_with = "count")]
    list: Option<usize>,
}

/// How often it would have fired.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RuleTested)]
pub(crate) struct RuleTestedBody {
    /// Packets that it takes, of those that were scan at.
    hits: u64,
    /// The stamp of the first of them, RFC 3339; `null`: there is none.
    first: Option<String>,
    /// That of the last.
    last: Option<String>,
    /// The most hits in one second of the window, counted from its first hit on.
    most_in_a_second: u64,
    /// The first of them, in order.
    packets: Vec<PacketLine>,
    scan: ScanSummary,
}

/// What is found.
#[derive(Debug, Default)]
struct RuleTestCounts {
    hits: u64,
    first_ns: Option<i64>,
    last_ns: Option<i64>,
    /// The second that is counted, and its hits.
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

/// How often a rule would have fired in the history, and at which packets
///
/// Hits, not dumps: how many of them start one depends on windows, hold-off and limits.
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
    if asked.expression.trim().is_empty() {
        let why = "a rule has an expression: an empty one would take every packet";
        return Err(Problem::invalid(why));
    }
    let list = asked.list.unwrap_or(LISTED);
    if list > LISTED_MAX {
        let why = format!("`list` is a number from 0 to {LISTED_MAX}");
        return Err(Problem::invalid(why));
    }
    let wanted = PastScan {
        filter: Some(asked.expression),
        stretch: TimeRangeBody {
            from: asked.from,
            to: asked.to,
            last: asked.last,
        },
        query: Query::default(),
    };
    let look = move |found: &mut RuleTestCounts, seen: &Seen<'_>| {
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
