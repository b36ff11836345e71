//! The timeline of the ring: counts for slots of time.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{collections::BTreeMap, sync::Arc};

use axum::{Extension, extract::State, response::Response};
use retroscope_recorder::{
    PeakCounts, Peaks, SLOTS_MAX, SeriesBy, Timeline, TimelineRequest, rfc3339,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    app::{answer_blocking, while_valid},
    bodies::request::time,
    extract::{Json, QueryParams},
    problem::Problem,
};

const SLOTS: usize = 240;

/// Selects a time range.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimelineParameters {
    /// Start: RFC 3339 with any offset, or a number since 1970, whose size tells whether it counts
    /// s, ms, µs or ns. If left out: the oldest packet.
    from: Option<String>,
    /// End, included. If left out: now.
    to: Option<String>,
    /// Number of slots, 240 if left out.
    #[param(minimum = 1, maximum = 2000)]
    slots: Option<usize>,
    /// Add the peaks of each slot, which reads packets. A request reads at most 4 Mi packets; the
    /// next request continues.
    peaks: Option<bool>,
    /// Add the counts and peaks of each series. Implies `peaks`.
    #[param(inline)]
    by: Option<SeriesParameter>,
}

/// The property that divides packets into series.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SeriesBy)]
pub(crate) enum SeriesParameter {
    /// The name of the interface.
    Interface,
    /// `in`, `out` or `unknown`.
    Direction,
}

/// The largest numbers of packets and bytes in intervals of 1 ms, or of a slot if slots are
/// shorter. Each list has one entry for each slot. `null`: not read yet, or unknown as in `packets`
/// of the timeline. Bytes on the wire exclude Ethernet's checksum, preamble and gap.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Peaks)]
pub(crate) struct PeaksBody {
    /// Length of the intervals. Intervals of 1 ms begin at full milliseconds of UTC.
    seconds: f64,
    /// Packets before this time may be unread: repeat the request to read more. `null`: nothing is
    /// left to read.
    known_from: Option<String>,
    /// The most packets of an interval that touches the slot.
    packets: Vec<Option<u64>>,
    /// The most bytes of an interval that touches the slot.
    bytes: Vec<Option<u64>>,
    /// Bytes of the slot. Packets that are not read yet count with their captured bytes.
    wire_bytes: Vec<Option<u64>>,
    /// The 16 series with the most bytes. At most 64 series are compared.
    series: Vec<SeriesBody>,
    /// Number of series left out.
    series_left_out: usize,
}

/// The packets of one interface or direction, by slot.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Series)]
pub(crate) struct SeriesBody {
    /// The interface, or `in`, `out` or `unknown`.
    name: String,
    /// Packets of the slot.
    packets: Vec<Option<u64>>,
    /// Bytes of the slot on the wire.
    wire_bytes: Vec<Option<u64>>,
    /// The most packets of an interval that touches the slot.
    peak_packets: Vec<Option<u64>>,
    /// The most bytes of an interval that touches the slot.
    peak_bytes: Vec<Option<u64>>,
}

impl From<Peaks> for PeaksBody {
    fn from(peaks: Peaks) -> Self {
        let series = peaks.series.into_iter();
        Self {
            seconds: peaks.interval_ns as f64 / 1e9,
            known_from: peaks.known_from_ns.map(rfc3339),
            packets: peaks.all.peak_packets,
            bytes: peaks.all.peak_bytes,
            wire_bytes: peaks.all.wire_bytes,
            series: series.map(SeriesBody::from).collect(),
            series_left_out: peaks.series_left_out,
        }
    }
}

impl From<(String, PeakCounts)> for SeriesBody {
    fn from((name, counts): (String, PeakCounts)) -> Self {
        Self {
            name,
            packets: counts.packets,
            wire_bytes: counts.wire_bytes,
            peak_packets: counts.peak_packets,
            peak_bytes: counts.peak_bytes,
        }
    }
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
    /// remaining packets. `null`: the packets are from files, and no packet was overwritten.
    whole_from: Option<String>,
    /// The longest time span of the packets of one bucket. The counts of a bucket are spread evenly
    /// over its time span. Packets are not spread if the bucket was read for `peaks`.
    resolution_seconds: f64,
    /// Packets in the ring. `null`: all packets of the slot were overwritten, or the slot is before
    /// the recording or in the future.
    packets: Vec<Option<u64>>,
    /// Captured bytes of the packets in the ring. `null` as in `packets`.
    bytes: Vec<Option<u64>>,
    /// Packets that were lost before the ring or shed, by cause. A loss is spread evenly over the
    /// time between two readings of its counter.
    lost: BTreeMap<&'static str, Vec<u64>>,
    /// Losses are known up to this time; `null`: no counter was read yet.
    losses_known_to: Option<String>,
    /// Whether an interface was down or removed, or its capture failed.
    down: Vec<bool>,
    /// Number of triggered dumps. `null`: the slot is in the future, or the recorder has forgotten
    /// triggers since the start of the slot.
    triggers: Vec<Option<u64>>,
    /// Only with `peaks` or `by`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    peaks: Option<PeaksBody>,
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
            peaks: line.peaks.map(PeaksBody::from),
        }
    }
}

/// Packets, bytes, losses and triggers in slots of time
///
/// Without `peaks` the recorder reads the headers of the ring's buckets, and no packet.
#[utoipa::path(
    get, path = "/v1/timeline", tag = "history",
    params(TimelineParameters),
    responses((status = 200, body = TimelineBody)),
)]
pub(crate) async fn timeline(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<TimelineParameters>,
) -> Result<Response, Problem> {
    let at = |text: &Option<String>| text.as_deref().map(time).transpose();
    let request = TimelineRequest {
        from_ns: at(&asked.from)?,
        to_ns: at(&asked.to)?,
        slots: asked.slots.unwrap_or(SLOTS),
        peaks: match (asked.by, asked.peaks) {
            (Some(SeriesParameter::Interface), _) => Some(SeriesBy::Interface),
            (Some(SeriesParameter::Direction), _) => Some(SeriesBy::Direction),
            (None, Some(true)) => Some(SeriesBy::Nothing),
            (None, _) => None,
        },
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
    let permit = request.peaks.map(|_| app.peaks_limit.take(&caller));
    let permit = permit.transpose()?;
    let asked = Arc::clone(&app);
    let answer = answer_blocking(move || {
        let _permit = permit;
        let body: TimelineBody = app.handle.timeline(&request)?.into();
        Ok(Json(body))
    });
    while_valid(&asked, &caller, answer).await
}
