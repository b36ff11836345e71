//! Scans of the packets in the ring, and for some operations of packets in dumps. The answer is one
//! JSON object, such as a list of packets.

use std::sync::Arc;

use axum::response::Response;
use retroscope_recorder::{
    AnswerDumps, Cancel, DumpsAsked, Empty, QueriedPacket, Query, QueryReport,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    app::{App, run_blocking, while_valid},
    bodies::request::{TimeRangeBody, check_names},
    caller::Caller,
    extract::Json,
    problem::Problem,
    queries::{ConcurrencyLimit, ConcurrencyPermit},
    role::Role,
};

/// Cancels a query when dropped, for example because the client has disconnected.
#[derive(Debug, Default)]
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A scan of the packets that a caller may see.
#[derive(Debug, Clone)]
pub(crate) struct PastScan {
    pub(crate) filter: Option<String>,
    pub(crate) stretch: TimeRangeBody,
    /// Other settings of the query. [`Self::run`] sets the filter, the times and the restrictions
    /// of the caller.
    pub(crate) query: Query,
}

/// The extent and the verdict of a scan.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ScanSummary)]
pub(crate) struct ScanSummary {
    /// The start of the time range, RFC 3339; `null`: nothing is recorded.
    pub(crate) from: Option<String>,
    /// The end of the time range.
    pub(crate) to: Option<String>,
    /// Packets from dumps, of the time that left the ring; `null`: no dump was needed, or the
    /// operation reads no dumps.
    pub(crate) dumps: Option<AnswerDumps>,
    /// Packets in the time range that were compared with the filter, including packets that the
    /// index ruled out. For a token with a filter, only packets in the answer.
    pub(crate) inspected: u64,
    /// `complete` or `incomplete`.
    pub(crate) verdict: &'static str,
    /// The missing packets, as in the verdict of a query.
    pub(crate) missing: Vec<retroscope_recorder::Missing>,
    /// The verdict in words.
    pub(crate) reasons: String,
    /// Why no packet was found; `null`: packets were found. `aged-out`: the time range ends
    /// `seconds` before the oldest packet in the ring.
    pub(crate) empty: Option<Empty>,
}

impl From<&QueryReport> for ScanSummary {
    fn from(report: &QueryReport) -> Self {
        Self {
            from: report.from.clone(),
            to: report.to.clone(),
            dumps: report.dumps.clone(),
            inspected: report.inspected,
            verdict: report.verdict.as_str(),
            missing: report.missing.clone(),
            reasons: report.reasons(),
            empty: report.empty.clone(),
        }
    }
}

impl PastScan {
    /// Calls `look` with `state` for matching packets in order, on a blocking thread, until `look`
    /// returns false. `answer` makes the body of the answer from the state, the verdict and the
    /// query.
    pub(crate) async fn run<T: Send + 'static, B: Serialize>(
        self,
        app: Arc<App>,
        caller: Caller,
        mut state: T,
        mut look: impl FnMut(&mut T, &QueriedPacket<'_>) -> bool + Send + 'static,
        answer: impl FnOnce(T, &QueryReport, &Query) -> B + Send + 'static,
    ) -> Result<Response, Problem> {
        let stretch = self.stretch.read()?;
        let limit = Arc::clone(&app.query_limit);
        run_cancellable(app, caller, &limit, move |app, caller, cancel, permit| {
            check_names(self.filter.as_deref().unwrap_or_default(), caller)?;
            let own = caller.snaplen.and_then(std::num::NonZeroU32::new);
            let query = Query {
                expression: self.filter.unwrap_or_default(),
                within: caller.filter.as_deref().unwrap_or_default().to_owned(),
                tried_bytes: own,
                tried_headers: !caller.may(Role::Packets),
                from_ns: stretch.from_ns,
                to_ns: stretch.to_ns,
                last_ns: stretch.last_ns,
                headers: [own, self.query.headers].into_iter().flatten().min(),
                dumps: match self.query.dumps {
                    DumpsAsked::Named if caller.is_restricted() => DumpsAsked::Counted,
                    asked => asked,
                },
                ..self.query
            };
            let found = app.handle.query(&query)?.until(cancel);
            let report = found.each(|seen| look(&mut state, seen))?;
            Ok(Json(answer(state, &report, &query)).keeping(permit))
        })
        .await
    }
}

/// Runs `work` on a blocking thread, with a permit of `limit`. Cancels `work` if the client
/// disconnects, or if its token or session ends.
pub(crate) async fn run_cancellable(
    app: Arc<App>,
    caller: Caller,
    limit: &Arc<ConcurrencyLimit>,
    work: impl FnOnce(&App, &Caller, &Cancel, ConcurrencyPermit) -> Result<Response, Problem>
    + Send
    + 'static,
) -> Result<Response, Problem> {
    let permit = limit.take(&caller)?;
    let awaited = CancelOnDrop::default();
    let cancel = awaited.0.clone();
    let asked = (Arc::clone(&app), caller.clone());
    let done = run_blocking(move || work(&app, &caller, &cancel, permit));
    let done = while_valid(&asked.0, &asked.1, done).await;
    drop(awaited);
    done
}
