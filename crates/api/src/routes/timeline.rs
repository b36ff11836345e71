//! What the history holds, slot by slot.
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

/// Slots where nobody says how many.
const SLOTS: usize = 240;

/// Which part.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimelineParameters {
    /// From this time on: RFC 3339 with any offset, or a number since 1970. Left out, from the oldest packet.
    from: Option<String>,
    /// To this time, included. Left out, to now.
    to: Option<String>,
    /// Slots to divide it into, 240 if left out.
    #[param(minimum = 1, maximum = 2000)]
    slots: Option<usize>,
}

/// The history in slots of equal length. All lists have an entry a slot.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Timeline)]
pub(crate) struct TimelineBody {
    /// Where the first slot begins, RFC 3339.
    from: String,
    /// How long each is.
    slot_seconds: f64,
    /// All that was stored from here on is in the ring; older slots have what is left. `null`: of files, where nothing was overwritten.
    whole_from: Option<String>,
    /// Packets of one bucket count as if they had come evenly: this is the longest that packets of one are from.
    resolution_seconds: f64,
    /// Packets in the ring. `null`: all of the slot is overwritten, was before the recording, or is to come.
    packets: Vec<Option<u64>>,
    /// Their captured bytes.
    bytes: Vec<Option<u64>>,
    /// Packets lost before the ring, or shed, by cause. A loss is found between two readings of a counter, and is spread evenly between these.
    lost: BTreeMap<&'static str, Vec<u64>>,
    /// Up to here losses are known; `null`: not yet.
    losses_known_to: Option<String>,
    /// Whether an interface was down or removed.
    down: Vec<bool>,
    /// Dumps that were triggered. `null`: there were more since than are remembered, or it is to come.
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

/// Packets, bytes, losses and triggers of the history, slot by slot
///
/// Cheap whatever the ring holds: no packet is read.
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
