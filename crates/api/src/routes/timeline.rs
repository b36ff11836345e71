//! The timeline of the ring: counts for slots of time.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::collections::BTreeMap;

use axum::{extract::State, response::Response};
use retroscope_recorder::{SLOTS_MAX, Timeline, TimelineRequest, rfc3339};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::AppState;
use crate::{
    app::answer_blocking,
    bodies::request::time,
    extract::{Json, QueryParams},
    problem::Problem,
};

/// Default number of slots.
const SLOTS: usize = 240;

/// Selects a time range.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimelineParameters {
    /// Start: RFC 3339 with any offset, or a number since 1970. If left out: the oldest packet.
    from: Option<String>,
    /// End, included. If left out: now.
    to: Option<String>,
    /// Number of slots, 240 if left out.
    #[param(minimum = 1, maximum = 2000)]
    slots: Option<usize>,
}

/// A time range in slots of equal length. Each list has one entry for each slot.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Timeline)]
pub(crate) struct TimelineBody {
    /// Start of the first slot, RFC 3339.
    from: String,
    /// Length of each slot, seconds.
    slot_seconds: f64,
    /// Every packet that was stored from this time on is in the ring; older slots have the
    /// remaining packets. `null`: files, of which nothing was overwritten.
    whole_from: Option<String>,
    /// The longest time span of the packets of one bucket. The packets of a bucket are spread
    /// evenly over its time span.
    resolution_seconds: f64,
    /// Number of packets in the ring. `null`: all packets of the slot were overwritten, or the slot
    /// is before the recording or in the future.
    packets: Vec<Option<u64>>,
    /// Captured bytes of the packets in the ring. `null` as in `packets`.
    bytes: Vec<Option<u64>>,
    /// Packets that were lost before the ring or shed, by cause. A loss between two readings of a
    /// counter is spread evenly over the time between the readings.
    lost: BTreeMap<&'static str, Vec<u64>>,
    /// Losses are known up to this time; `null`: no counter was read yet.
    losses_known_to: Option<String>,
    /// Whether an interface was down or removed.
    down: Vec<bool>,
    /// Number of dumps that were triggered. `null`: more dumps started since then than the recorder
    /// remembers, or the slot is in the future.
    triggers: Vec<Option<u64>>,
}

impl From<Timeline> for TimelineBody {
    fn from(line: Timeline) -> Self {
        Self {
            from: rfc3339(line.from_ns),
            slot_seconds: line.slot_ns as f64 / 1e9,
            whole_from: line.whole_from_ns.map(rfc3339),
            resolution_seconds: line.resolution_ns as f64 / 1e9,
            packets: line.packets,
            bytes: line.bytes,
            lost: line.lost,
            losses_known_to: line.losses_known_to_ns.map(rfc3339),
            down: line.down,
            triggers: line.triggers,
        }
    }
}

/// Packets, bytes, losses and triggers in slots of time
///
/// The cost does not depend on the size of the ring: no packet is read.
#[utoipa::path(
    get, path = "/v1/timeline", tag = "history",
    params(TimelineParameters),
    responses((status = 200, body = TimelineBody)),
)]
pub(crate) async fn timeline(
    State(app): AppState,
    QueryParams(asked): QueryParams<TimelineParameters>,
) -> Result<Response, Problem> {
    let at = |text: &Option<String>| text.as_deref().map(time).transpose();
    let request = TimelineRequest {
        from_ns: at(&asked.from)?,
        to_ns: at(&asked.to)?,
        slots: asked.slots.unwrap_or(SLOTS),
    };
    if !(1..=SLOTS_MAX).contains(&request.slots) {
        let why = format!("`slots` is a number from 1 to {SLOTS_MAX}");
        return Err(Problem::invalid(why));
    }
    if request
        .from_ns
        .zip(request.to_ns)
        .is_some_and(|(from, to)| from > to)
    {
        return Err(Problem::invalid("`to` is before `from`"));
    }
    answer_blocking(move || {
        let body: TimelineBody = app.handle.timeline(&request)?.into();
        Ok(Json(body))
    })
    .await
}
