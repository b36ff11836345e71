//! Concurrency limits, and the states of recent queries.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retroscope_recorder::{Cancel, QueryReport};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    caller::Caller,
    connection::CONNECTIONS_MAX,
    problem::{Cause, Problem},
    role::Role,
};

/// Concurrent queries, scans and similar work, of one account and of all accounts.
const RUNNING_MAX: (usize, usize) = (6, 12);
/// Concurrent timelines with peaks, of one account and of all accounts. Each timeline may read
/// millions of packets.
const PEAKS_MAX: (usize, usize) = (6, 12);
/// Concurrent queries that follow the recording and downloads of open dumps, of one account and of
/// all accounts.
const FOLLOWING_MAX: (usize, usize) = (8, 16);
/// Concurrent listeners to events, of one account and of all accounts.
const LISTENERS_MAX: (usize, usize) = (12, 24);
/// Concurrent requests of one account: half of the connections of an address, so that one account
/// cannot use all connections.
const REQUESTS_MAX: (usize, usize) = (CONNECTIONS_MAX / 2, usize::MAX);
/// Concurrent dissections, of one account and of all accounts. Each dissection may occupy a
/// processor for 10 s.
const DISSECTIONS_MAX: (usize, usize) = (2, 3);
/// Concurrent manual triggers, of one account and of all accounts. Each trigger may occupy a thread
/// while its filter is compiled.
const TRIGGERS_MAX: (usize, usize) = (8, 16);
/// Maximum number of queries whose states are kept.
const KEPT: usize = 256;
/// Time after which a refused client may try again.
const AGAIN: Duration = Duration::from_secs(1);

/// A limit of the concurrent work of one kind, for one account and for all accounts, so that one
/// account cannot use all permits.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    what: &'static str,
    max_of_one: usize,
    max: usize,
    /// Number of permits in use, by account.
    taken: Mutex<BTreeMap<Arc<str>, usize>>,
}

/// A permit of a [`ConcurrencyLimit`], released when dropped.
#[derive(Debug)]
pub(crate) struct ConcurrencyPermit {
    limit: Arc<ConcurrencyLimit>,
    account: Arc<str>,
}

impl ConcurrencyLimit {
    pub(crate) fn listeners() -> Arc<Self> {
        Self::new("listeners", LISTENERS_MAX)
    }

    pub(crate) fn followers() -> Arc<Self> {
        Self::new("queries that follow", FOLLOWING_MAX)
    }

    pub(crate) fn queries() -> Arc<Self> {
        Self::new("queries", RUNNING_MAX)
    }

    pub(crate) fn peaks() -> Arc<Self> {
        Self::new("timelines with peaks", PEAKS_MAX)
    }

    pub(crate) fn requests() -> Arc<Self> {
        Self::new("requests", REQUESTS_MAX)
    }

    pub(crate) fn dissections() -> Arc<Self> {
        Self::new("packet details", DISSECTIONS_MAX)
    }

    pub(crate) fn triggers() -> Arc<Self> {
        Self::new("triggers", TRIGGERS_MAX)
    }

    fn new(what: &'static str, (max_of_one, max): (usize, usize)) -> Arc<Self> {
        let taken = Mutex::default();
        Arc::new(Self {
            what,
            max_of_one,
            max,
            taken,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refusal is 429 if the caller's account is at its limit, and 503 if all permits are in
    /// use.
    pub(crate) fn take(self: &Arc<Self>, caller: &Caller) -> Result<ConcurrencyPermit, Problem> {
        let what = self.what;
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let own = taken.get(&caller.account).copied().unwrap_or(0);
        if own >= self.max_of_one {
            let (account, max) = (&caller.account, self.max_of_one);
            let why = format!("'{account}' has {max} {what}, which is the limit of one: try again");
            let problem = Problem::new(Cause::Limit, why).with_limit(max as u64);
            return Err(problem.retry_after(AGAIN));
        }
        if all >= self.max {
            let max = self.max;
            let why = format!("there are {max} {what}, which is the limit: try again");
            return Err(Problem::busy(why, AGAIN).with_limit(max as u64));
        }
        taken.insert(Arc::clone(&caller.account), own + 1);
        Ok(ConcurrencyPermit {
            limit: Arc::clone(self),
            account: Arc::clone(&caller.account),
        })
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        let mut taken = self.limit.lock();
        if let Some(own) = taken.get_mut(&self.account) {
            *own -= 1;
        }
        taken.retain(|_, own| *own > 0);
    }
}

/// The state of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueryState {
    /// The query is running.
    Running,
    /// The answer is complete, and `report` has the verdict.
    Done,
    /// The answer is not complete. For example, the client disconnected, or the ring could not be
    /// read.
    Failed,
}

/// A query and its state.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = QueryRecord)]
pub(crate) struct QueryRecord {
    /// The query's ID.
    id: String,
    state: QueryState,
    /// The filter, combined with the token's filter by `and`; empty: no filter.
    filter: String,
    /// The verdict of a complete answer; `null`: the query is running or failed.
    report: Option<QueryReport>,
    /// The verdict in words.
    reasons: Option<String>,
    /// The reason of a failure.
    error: Option<String>,
    #[serde(skip)]
    caller: Arc<str>,
    #[serde(skip)]
    cancel: Cancel,
}

/// A running query. Without [`Self::end`], because its thread failed, the query gets the state
/// `failed`.
#[derive(Debug)]
pub(crate) struct RunningQuery {
    queries: Arc<Queries>,
    pub(crate) id: String,
}

impl RunningQuery {
    pub(crate) fn end(self, outcome: Result<QueryReport, String>) {
        self.queries.end(&self.id, outcome);
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        let why =
            "a thread of the recorder's API failed: please report this bug with what it printed";
        self.queries.end(&self.id, Err(why.to_owned()));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queries(Mutex<RecentQueries>);

#[derive(Debug, Default)]
struct RecentQueries {
    records: VecDeque<QueryRecord>,
    /// [`Queries::cancel_all`] was called.
    is_over: bool,
}

impl Queries {
    fn lock(&self) -> MutexGuard<'_, RecentQueries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a new query, which `cancel` cancels. After [`Self::cancel_all`], the query is
    /// cancelled at once.
    pub(crate) fn begin(
        self: &Arc<Self>,
        caller: &Caller,
        filter: &str,
        cancel: &Cancel,
    ) -> io::Result<RunningQuery> {
        let mut bits = [0_u8; 8];
        getrandom(&mut bits, GetRandomFlags::empty())?;
        let id = format!("{:016x}", u64::from_le_bytes(bits));
        let mut last = self.lock();
        if last.is_over {
            cancel.cancel();
        }
        let last = &mut last.records;
        if last.len() >= KEPT {
            // Records of running queries are kept. The concurrency limits bound their number.
            let is_done = |it: &QueryRecord| it.state != QueryState::Running;
            // The oldest ended query of the same client goes first, so that a client with very many
            // queries does not displace the records of other clients.
            let own = last
                .iter()
                .position(|it| is_done(it) && it.caller == caller.name);
            let oldest = own.or_else(|| last.iter().position(is_done));
            last.remove(oldest.unwrap_or(0));
        }
        last.push_back(QueryRecord {
            id: id.clone(),
            state: QueryState::Running,
            filter: filter.to_owned(),
            report: None,
            reasons: None,
            error: None,
            caller: Arc::clone(&caller.name),
            cancel: cancel.clone(),
        });
        let queries = Arc::clone(self);
        Ok(RunningQuery { queries, id })
    }

    fn end(&self, id: &str, outcome: Result<QueryReport, String>) {
        let mut last = self.lock();
        let running = |it: &&mut QueryRecord| it.id == id && it.state == QueryState::Running;
        let Some(record) = last.records.iter_mut().find(running) else {
            return;
        };
        match outcome {
            Ok(report) => {
                record.state = QueryState::Done;
                record.reasons = Some(report.reasons());
                record.report = Some(report);
            }
            Err(why) => {
                record.state = QueryState::Failed;
                record.error = Some(why);
            }
        }
    }

    /// Finds a query of this caller, or of any caller for an admin.
    pub(crate) fn find(&self, caller: &Caller, id: &str) -> Option<QueryRecord> {
        let last = self.lock();
        let found = last.records.iter().find(|it| it.id == id);
        let may = |it: &&QueryRecord| it.caller == caller.name || caller.may(Role::Admin);
        let mut found = found.filter(may).cloned()?;
        let report = found.report.as_mut().filter(|_| caller.is_restricted());
        if let Some(dumps) = report.and_then(|report| report.dumps.as_mut()) {
            // A restricted caller may not see which dumps exist, but a restricted admin can find
            // the query of a client that may see the dumps.
            dumps.dumps.clear();
        }
        Some(found)
    }

    /// Cancels a query of this caller, or of any caller for an admin. `false`: no such query.
    pub(crate) fn cancel(&self, caller: &Caller, id: &str) -> bool {
        let found = self.find(caller, id);
        found.inspect(|it| it.cancel.cancel()).is_some()
    }

    /// Cancels all queries that run or start later.
    pub(crate) fn cancel_all(&self) {
        let mut last = self.lock();
        last.is_over = true;
        last.records.iter().for_each(|it| it.cancel.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_places() {
        for limit in [
            ConcurrencyLimit::queries(),
            ConcurrencyLimit::followers(),
            ConcurrencyLimit::listeners(),
        ] {
            let (one, other, third) = (
                Caller::of_peer(1, 10),
                Caller::of_peer(2, 20),
                Caller::of_peer(3, 30),
            );
            let take_all = |caller: &Caller| -> (Vec<ConcurrencyPermit>, Problem) {
                let mut held = Vec::new();
                loop {
                    match limit.take(caller) {
                        Ok(permit) => held.push(permit),
                        Err(problem) => return (held, problem),
                    }
                }
            };
            let (mut held, refused) = take_all(&one);
            assert_eq!(held.len(), limit.max_of_one);
            assert!(refused.text().contains("'uid 1' has"), "{refused:?}");
            // Another process of the same user has the same account.
            assert!(limit.take(&Caller::of_peer(1, 11)).is_err());
            let (of_other, _) = take_all(&other);
            assert_eq!(held.len() + of_other.len(), limit.max);
            let refused = limit.take(&third).unwrap_err();
            assert!(refused.text().contains("there are"), "{refused:?}");
            held.pop();
            let of_third = limit.take(&third).unwrap();
            assert!(limit.take(&one).is_err());
            drop((held, of_other, of_third));
            assert!(limit.lock().is_empty());
        }
    }

    #[test]
    fn who_asks_often_forgets_their_own_queries() {
        let queries = Arc::<Queries>::default();
        let (one, other) = (Caller::of_peer(1, 10), Caller::of_peer(2, 20));
        let ask = |caller: &Caller| {
            let begun = queries.begin(caller, "", &Cancel::default()).unwrap();
            let id = begun.id.clone();
            begun.end(Err("the client has left".to_owned()));
            id
        };
        let (of_other, of_one) = (ask(&other), ask(&one));
        (0..2 * KEPT).for_each(|_| drop(ask(&one)));
        assert!(queries.find(&other, &of_other).is_some());
        assert!(queries.find(&one, &of_one).is_none());
        assert_eq!(queries.lock().records.len(), KEPT);
    }

    #[test]
    fn a_query_whose_thread_fails_has_failed() {
        let queries = Arc::<Queries>::default();
        let caller = Caller::anybody("192.0.2.1");
        let begin = || queries.begin(&caller, "udp", &Cancel::default()).unwrap();
        let found = |id: &str| queries.find(&caller, id).unwrap();
        let begun = begin();
        let id = begun.id.clone();
        assert_eq!(found(&id).state, QueryState::Running);
        let thread = std::thread::spawn(move || {
            let _begun = begun;
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(thread.join().is_err());
        let record = found(&id);
        assert_eq!(record.state, QueryState::Failed);
        assert!(record.error.unwrap().contains("report this bug"));
        // The second result of a query is ignored.
        let begun = begin();
        let id = begun.id.clone();
        begun.end(Err("the client has left".to_owned()));
        assert_eq!(found(&id).error.as_deref(), Some("the client has left"));
    }

    #[test]
    fn probes_of_one_host_leave_places_to_those_of_others() {
        let limit = ConcurrencyLimit::requests();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(Caller::anybody);
        let all: Vec<ConcurrencyPermit> = std::iter::from_fn(|| limit.take(&one).ok()).collect();
        assert_eq!(all.len(), CONNECTIONS_MAX / 2);
        assert!(limit.take(&other).is_ok());
    }
}
