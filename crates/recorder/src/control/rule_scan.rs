//! The scan of the past for a new rule: the state that the threads share.
//!
//! Each shard tries a new rule from some record of each producer on, and notes these records when
//! it applies the change. The scan tries the records before, so each packet is tried at most once.
//! Until the scan has ended, hits of the rule that shards find wait in the analyzer.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use crate::{QueryReport, control::lock};

#[derive(Debug)]
pub(crate) struct RuleScan {
    progress: Mutex<ScanProgress>,
    moved: Condvar,
}

#[derive(Debug)]
struct ScanProgress {
    /// Number of the rule; `None`: the analyzer does not have the rule yet.
    rule: Option<usize>,
    /// By shard, once the shard has the rule: for each producer, the first record that the shard
    /// tries.
    starts: Vec<Option<Vec<u64>>>,
    /// Whether the shard of a packet depends on the packet, not on its producer.
    is_divided: bool,
    status: RuleScanStatus,
}

/// A scan of the past, for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleScanStatus {
    /// The time before the rule that the scan tries.
    pub past: Duration,
    /// `None`: the scan runs. Otherwise whether the scan reached its end.
    pub is_whole: Option<bool>,
    /// Packets that the scan found to match.
    pub hits: u64,
    /// Dumps that packets found by the scan started.
    pub dumps: u64,
    /// Packets that matched while the scan ran. Their hits waited for the end of the scan.
    pub waited: u64,
    /// Why the scan ended early.
    pub why: Option<String>,
    /// The report of the query that reads the ring. `None`: the scan runs, or has no report.
    pub report: Option<Box<QueryReport>>,
}

/// The records that a scan tries.
#[derive(Debug)]
pub(crate) struct ScanBounds {
    starts: Vec<Vec<u64>>,
    is_divided: bool,
    scan: Arc<RuleScan>,
    /// The scan ends at this time of the monotonic clock at the latest, ns.
    end_ns: i64,
}

impl ScanBounds {
    /// Whether the scan tries this record. `shard`: the shard number of the packet.
    pub(crate) fn has(&self, (producer, record): (usize, u64), shard: u8) -> bool {
        let by = if self.is_divided {
            usize::from(shard)
        } else {
            producer
        };
        let starts = self.starts.get(by % self.starts.len().max(1));
        let start = starts.and_then(|starts| starts.get(producer));
        start.is_some_and(|start| record < *start)
    }

    /// Whether the time limit of the scan has passed, or the scan has ended.
    pub(crate) fn are_over(&self, mono_ns: i64) -> bool {
        mono_ns >= self.end_ns || self.scan.is_over()
    }

    /// Whether all records that the scan tries are published. `published`: the number of published
    /// records of a producer.
    pub(crate) fn are_published(&self, published: impl Fn(usize) -> u64) -> bool {
        let mut starts = self
            .starts
            .iter()
            .flat_map(|starts| starts.iter().enumerate());
        starts.all(|(producer, start)| *start <= published(producer))
    }
}

impl RuleScan {
    pub(crate) fn new(past: Duration) -> Arc<Self> {
        Arc::new(Self {
            progress: Mutex::new(ScanProgress {
                rule: None,
                starts: Vec::new(),
                is_divided: false,
                status: RuleScanStatus {
                    past,
                    is_whole: None,
                    hits: 0,
                    dumps: 0,
                    waited: 0,
                    why: None,
                    report: None,
                },
            }),
            moved: Condvar::new(),
        })
    }

    pub(crate) fn status(&self) -> RuleScanStatus {
        lock(&self.progress).status.clone()
    }

    pub(crate) fn update(&self, update: impl FnOnce(&mut RuleScanStatus)) {
        update(&mut lock(&self.progress).status);
        self.moved.notify_all();
    }

    /// The scan ends early, unless it has ended.
    pub(crate) fn stop(&self, why: &str) {
        self.update(|status| {
            if status.is_whole.is_none() {
                (status.is_whole, status.why) = (Some(false), Some(why.to_owned()));
            }
        });
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.progress).status.is_whole.is_some()
    }

    pub(crate) fn rule(&self) -> Option<usize> {
        lock(&self.progress).rule
    }

    /// The analyzer is about to give the rule with this number to this number of shards.
    pub(crate) fn begin(&self, rule: usize, shards: usize, is_divided: bool) {
        let mut progress = lock(&self.progress);
        progress.rule = Some(rule);
        progress.starts = vec![None; shards];
        progress.is_divided = is_divided;
    }

    /// A shard tries the rule from these records on, by producer.
    pub(crate) fn starts_at(&self, shard: usize, starts: &[u64]) {
        if let Some(place) = lock(&self.progress).starts.get_mut(shard) {
            *place = Some(starts.to_vec());
        }
        self.moved.notify_all();
    }

    /// Waits until all shards have the rule. `end_ns`: latest end of the scan, monotonic clock.
    /// `None`: the shards take longer than `wait`, or the scan has ended.
    pub(crate) fn bounds(self: &Arc<Self>, wait: Duration, end_ns: i64) -> Option<ScanBounds> {
        let is_waiting = |progress: &mut ScanProgress| {
            progress.status.is_whole.is_none() && progress.starts.contains(&None)
        };
        let progress = lock(&self.progress);
        let waited = self.moved.wait_timeout_while(progress, wait, is_waiting);
        let progress = waited.ok()?.0;
        let starts: Option<Vec<_>> = progress.starts.iter().cloned().collect();
        let is_running = progress.status.is_whole.is_none();
        Some(ScanBounds {
            starts: starts.filter(|_| is_running)?,
            is_divided: progress.is_divided,
            scan: Arc::clone(self),
            end_ns,
        })
    }
}
