//! Packets that arrive too late for a dump, after its window is closed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_filter::Decision;
use retroscope_ring::Packet;

use crate::{
    analysis::predicate::DumpPredicate, control::time::rfc3339,
    intake::interfaces::RecordedInterface,
};

/// Maximum number of closed windows that a late packet is compared with one by one: `KEPT` live,
/// `KEPT_OF_FILES` from files. A window takes some KiB of memory. For older windows the recorder
/// knows only one common time range.
const KEPT: usize = 1024;
const KEPT_OF_FILES: usize = 8192;
/// Live: minimum time between two reports of late packets, ns. The report at the end does not wait.
const MINUTE_NS: i64 = 60_000_000_000;

/// The window of a dump that was started.
#[derive(Debug)]
pub(crate) struct OpenWindow {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) predicate: DumpPredicate,
    /// Whether a limit of packets or bytes may end the window early.
    pub(crate) is_limited: bool,
    /// Number of packets of the window that arrived after its close, and that the dump's filter
    /// selects or may select.
    pub(crate) late: Arc<AtomicU64>,
}

/// Closed windows, and the packets that came too late for these windows.
#[derive(Debug)]
pub(crate) struct ClosedWindows {
    windows: VecDeque<ClosedWindow>,
    /// Bounds for all closed windows: the latest end, and the latest time up to which one was open,
    /// ns of ring time.
    to_ns: Option<(i64, i64)>,
    /// Maximum number of `windows`.
    kept: usize,
    forgotten: Option<Forgotten>,
    /// Number of dumps for which packets came, or may have come, too late. Each dump counts once.
    pub(crate) outdated: u64,
    /// Late packets that are not reported yet, by source.
    unreported: BTreeMap<usize, LatePackets>,
    /// When late packets were reported last, ns of the monotonic clock.
    reported_ns: Option<i64>,
}

#[derive(Debug)]
struct ClosedWindow {
    /// The number of its dump.
    id: u64,
    window: OpenWindow,
    /// By producer: the number of the first record after the close.
    ends: Vec<u64>,
    /// Whether the dump is counted in `outdated`.
    is_outdated: bool,
    /// Ring time at the close, ns.
    #[cfg(test)]
    closed_ns: i64,
}

/// All windows that have been merged into one range.
#[derive(Debug)]
struct Forgotten {
    /// Number of these dumps for which no packet has come too late yet.
    dumps: u64,
    /// From the first start to the last end, ns.
    from_ns: i64,
    to_ns: i64,
    /// The `ends` of the window that was forgotten first.
    ends: Vec<u64>,
}

/// Packets of one source that arrived too late for closed windows: an upper bound, because not
/// every dump filter is tried.
#[derive(Debug)]
pub(crate) struct LatePackets {
    packets: u64,
    /// The smallest and the largest stamp, ns.
    span_ns: (i64, i64),
}

impl LatePackets {
    pub(crate) fn sentence(&self, source: &str) -> String {
        let Self { packets, span_ns } = self;
        let plural = if *packets == 1 { "" } else { "s" };
        let [from, to] = [span_ns.0, span_ns.1].map(rfc3339);
        format!(
            "up to {packets} packet{plural} of {source}, from {from} to {to}, came too late for finished dumps, whose verdicts do not report them (a longer reorder-window helps)"
        )
    }
}

/// Whether a producer's record came after a close. `ends`: by producer, the first record after the
/// close.
fn is_after(ends: &[u64], producer: usize, record: u64) -> bool {
    record >= ends.get(producer).copied().unwrap_or(0)
}

impl ClosedWindows {
    pub(crate) fn new(is_live: bool) -> Self {
        Self {
            windows: VecDeque::new(),
            to_ns: None,
            kept: if is_live { KEPT } else { KEPT_OF_FILES },
            forgotten: None,
            outdated: 0,
            unreported: BTreeMap::new(),
            reported_ns: None,
        }
    }

    /// Late packets that were not reported yet, by source; none within a minute of the last report.
    /// `mono_ns`: now on the monotonic clock, or `i64::MAX` at the end.
    pub(crate) fn take_unreported(&mut self, mono_ns: i64) -> BTreeMap<usize, LatePackets> {
        let age_ns = self.reported_ns.map(|ns| mono_ns.saturating_sub(ns));
        if self.unreported.is_empty() || age_ns.is_some_and(|age_ns| age_ns < MINUTE_NS) {
            return BTreeMap::new();
        }
        self.reported_ns = Some(mono_ns);
        std::mem::take(&mut self.unreported)
    }

    /// Adds a window that was closed at `closed_ns`, ns of ring time. If there are too many
    /// windows, merges the oldest into [`Forgotten`].
    pub(crate) fn add(&mut self, id: u64, window: OpenWindow, ends: Vec<u64>, closed_ns: i64) {
        let to_ns = window.to_ns;
        let over_ns = to_ns.min(closed_ns);
        let ends_ns = self.to_ns.unwrap_or((to_ns, over_ns));
        self.to_ns = Some((ends_ns.0.max(to_ns), ends_ns.1.max(over_ns)));
        self.windows.push_back(ClosedWindow {
            id,
            window,
            ends,
            is_outdated: false,
            #[cfg(test)]
            closed_ns,
        });
        if self.windows.len() > self.kept
            && let Some(closed) = self.windows.pop_front()
        {
            self.forget(closed);
        }
    }

    fn forget(&mut self, closed: ClosedWindow) {
        let OpenWindow { from_ns, to_ns, .. } = closed.window;
        let forgotten = self.forgotten.get_or_insert(Forgotten {
            dumps: 0,
            from_ns,
            to_ns,
            ends: closed.ends,
        });
        forgotten.dumps += u64::from(!closed.is_outdated);
        forgotten.from_ns = forgotten.from_ns.min(from_ns);
        forgotten.to_ns = forgotten.to_ns.max(to_ns);
    }

    /// A limit ended the dump of a closed window at `to_ns`. No effect on a window that has been
    /// merged into [`Forgotten`].
    pub(crate) fn cut(&mut self, id: u64, to_ns: i64) {
        let mut windows = self.windows.iter_mut().rev();
        if let Some(closed) = windows.find(|closed| closed.id == id) {
            closed.window.to_ns = closed.window.to_ns.min(to_ns);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
    }

    /// End and close of each window, ns of ring time.
    #[cfg(test)]
    pub(crate) fn closings(&self) -> Vec<(i64, i64)> {
        let closings = self.windows.iter();
        closings.map(|it| (it.window.to_ns, it.closed_ns)).collect()
    }

    /// The latest time of a packet that may belong to a closed window, ns; `None`: no window was
    /// closed. `is_promised`: the clock that closes windows waits for the producer's watermark.
    pub(crate) fn until_ns(&self, is_promised: bool) -> Option<i64> {
        self.to_ns
            .map(|(to_ns, over_ns)| if is_promised { over_ns } else { to_ns })
    }

    /// Whether a packet of this time may belong to a closed window.
    pub(crate) fn concerns(&self, time_ns: i64, is_promised: bool) -> bool {
        let until_ns = self.until_ns(is_promised);
        until_ns.is_some_and(|until_ns| time_ns <= until_ns)
    }

    /// Counts a packet if it came, or may have come, too late for a closed window. Returns whether
    /// it did. `offset_ns`: stamp less ring time of the packet.
    pub(crate) fn check(
        &mut self,
        producer: usize,
        record: u64,
        interface: &RecordedInterface,
        packet: &Packet<'_>,
        offset_ns: i64,
    ) -> bool {
        let is_within = |from_ns, to_ns| (from_ns..=to_ns).contains(&packet.time_ns);
        let forgotten = self
            .forgotten
            .as_mut()
            .filter(|it| is_within(it.from_ns, it.to_ns) && is_after(&it.ends, producer, record));
        let mut is_late = forgotten.is_some();
        self.outdated += forgotten.map_or(0, |it| std::mem::take(&mut it.dumps));
        for closed in &mut self.windows {
            let window = &mut closed.window;
            if !is_within(window.from_ns, window.to_ns) || !is_after(&closed.ends, producer, record)
            {
                continue;
            }
            let predicate = &mut window.predicate;
            if !predicate.decides_at_once(interface.link_type)
                || predicate.decide(interface, packet, offset_ns).decision == Decision::Take
            {
                is_late = true;
                window.late.fetch_add(1, Ordering::Relaxed);
                self.outdated += u64::from(!std::mem::replace(&mut closed.is_outdated, true));
            }
        }
        if is_late {
            let stamp_ns = packet.time_ns.saturating_add(offset_ns);
            let late = self.unreported.entry(interface.source);
            let late = late.or_insert(LatePackets {
                packets: 0,
                span_ns: (stamp_ns, stamp_ns),
            });
            late.packets += 1;
            late.span_ns = (late.span_ns.0.min(stamp_ns), late.span_ns.1.max(stamp_ns));
        }
        is_late
    }
}
