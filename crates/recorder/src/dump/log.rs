//! The log of a recorder's dumps: the reports of the newest dumps, and counts of all older dumps.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use serde::Serialize;

use super::report::{DumpReport, Verdict};
use crate::control::lock;

/// Maximum number of dumps whose reports the log keeps.
const LISTED: usize = 10_000;

/// Number of dumps by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DumpCounts {
    /// Dumps with the verdict [`Verdict::Complete`].
    pub complete: u64,
    /// Dumps with the verdict [`Verdict::Incomplete`].
    pub incomplete: u64,
    /// Dumps with the verdict [`Verdict::Failed`].
    pub failed: u64,
}

impl DumpCounts {
    /// Number of all dumps.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.complete + self.incomplete + self.failed
    }

    pub(crate) fn add(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Complete => &mut self.complete,
            Verdict::Incomplete => &mut self.incomplete,
            Verdict::Failed => &mut self.failed,
        } += 1;
    }

    pub(crate) fn add_all(&mut self, more: &Self) {
        self.complete += more.complete;
        self.incomplete += more.incomplete;
        self.failed += more.failed;
    }
}

/// Sums over all finished dumps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpTotals {
    /// Finished dumps by verdict.
    pub finished: DumpCounts,
    /// Packets in the dumps' files.
    pub packets: u64,
    /// Captured bytes of the packets in the dumps' files.
    pub bytes: u64,
    /// Number of dumps by the causes in their reports ([`Missing::cause`](crate::Missing::cause)).
    /// A dump may have several causes.
    pub missing: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct DumpLog(Mutex<DumpLogState>);

#[derive(Debug, Default)]
struct DumpLogState {
    /// The newest dumps, in the order in which they were finished.
    last: VecDeque<Arc<DumpReport>>,
    before: DumpCounts,
    totals: DumpTotals,
}

impl DumpLog {
    pub(crate) fn add(&self, report: DumpReport) {
        let logged = &mut *lock(&self.0);
        let totals = &mut logged.totals;
        totals.finished.add(report.verdict);
        totals.packets += report.packets;
        totals.bytes += report.bytes;
        let causes = report.missing.iter().map(|missing| missing.cause);
        for cause in causes.collect::<BTreeSet<_>>() {
            *totals.missing.entry(cause).or_default() += 1;
        }
        logged.last.push_back(Arc::new(report));
        if logged.last.len() > LISTED
            && let Some(first) = logged.last.pop_front()
        {
            logged.before.add(first.verdict);
        }
    }

    /// Replaces the report of a finished dump. No effect unless the log still has the report.
    pub(crate) fn replace(&self, report: &DumpReport) {
        let logged = &mut *lock(&self.0);
        let mut last = logged.last.iter_mut().rev();
        if let Some(known) = last.find(|known| known.number == report.number) {
            *known = Arc::new(report.clone());
        }
    }

    pub(crate) fn id_of(&self, number: u64) -> Option<String> {
        let logged = lock(&self.0);
        let found = logged.last.iter().rfind(|dump| dump.number == number);
        found.map(|dump| dump.id.clone())
    }

    /// The newest dump with this ID that the log has.
    pub(crate) fn of_id(&self, id: &str) -> Option<Arc<DumpReport>> {
        let logged = lock(&self.0);
        let found = logged.last.iter().rfind(|dump| dump.id == id);
        found.cloned()
    }

    /// The newest dumps, in the order in which they were finished. The reports are not copied,
    /// because the dumper may wait for the lock.
    pub(crate) fn last(&self) -> Vec<Arc<DumpReport>> {
        lock(&self.0).last.iter().cloned().collect()
    }

    pub(crate) fn totals(&self) -> DumpTotals {
        lock(&self.0).totals.clone()
    }

    /// The newest dumps in the order of their numbers, and the counts of all older dumps.
    pub(crate) fn summary(&self) -> (Vec<Arc<DumpReport>>, DumpCounts) {
        let logged = lock(&self.0);
        let (mut last, before) = (Vec::from_iter(logged.last.iter().cloned()), logged.before);
        drop(logged);
        last.sort_by_key(|dump| dump.number);
        (last, before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::report::{Missing, report_of_test};

    #[test]
    fn the_last_dumps_are_listed_and_all_are_counted() {
        let log = DumpLog::default();
        for number in 1..=25_000 {
            let mut report = report_of_test();
            report.number = number;
            if number % 10 == 0 {
                report.verdict = Verdict::Incomplete;
            }
            log.add(report);
        }
        let mut compressed = report_of_test();
        compressed.number = 24_999;
        compressed.sidecar = false;
        log.replace(&compressed);
        let (last, before) = log.summary();
        assert!(
            Arc::ptr_eq(&last[9_999], &log.last()[9_999]),
            "nothing is copied"
        );
        assert_eq!((last.len(), before.total()), (LISTED, 15_000));
        assert_eq!((before.complete, before.incomplete), (13_500, 1500));
        assert_eq!((last[0].number, last[9_999].number), (15_001, 25_000));
        assert!(!last[9_998].sidecar && last[9_999].sidecar);
        assert_eq!(
            (log.id_of(15_000), log.id_of(15_001)),
            (None, Some(last[0].id.clone()))
        );
        assert!(log.0.lock().unwrap().last.capacity() < 2 * LISTED);
        let totals = log.totals();
        assert_eq!(totals.finished.total(), 25_000);
        assert_eq!(
            (totals.finished.incomplete, totals.finished.failed),
            (2500, 0)
        );
    }

    #[test]
    fn a_dump_is_counted_once_for_each_cause() {
        let log = DumpLog::default();
        let mut report = report_of_test();
        (report.packets, report.bytes) = (3, 300);
        let of = |cause| Missing::new(cause, 0, 1, Some(7));
        report.missing = vec![of("kernel"), of("evicted"), of("kernel")];
        log.add(report.clone());
        log.replace(&report);
        let totals = log.totals();
        let missing = BTreeMap::from([("evicted", 1), ("kernel", 1)]);
        assert_eq!(
            (totals.packets, totals.bytes, totals.missing),
            (3, 300, missing)
        );
    }
}
