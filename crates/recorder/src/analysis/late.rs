//! Windows that are over, for packets that come after all.

use std::collections::{BTreeMap, VecDeque};

use retroscope_filter::Decision;
use retroscope_ring::Packet;

use crate::{
    analysis::predicate::Predicate,
    control::time::rfc3339,
    dump::order::{LateNews, Message},
    intake::interfaces::Interface,
};

/// Windows that a late packet is still checked against, live and from files. Their finished dumps can be amended: the dumper keeps each, some
/// KiB, until it is told that the window is given up.
const KEPT: usize = 1024;
const KEPT_OF_FILES: usize = 8192;
/// Windows that were given up and are remembered one by one, some 100 bytes each; of those before them only the span of all.
const REMEMBERED: usize = 65_536;

/// The window of a dump that was started.
#[derive(Debug)]
pub(crate) struct OpenWindow {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) predicate: Predicate,
    /// More than time may end it.
    pub(crate) is_limited: bool,
}

/// The last windows that were closed.
#[derive(Debug)]
pub(crate) struct ClosedWindows {
    windows: VecDeque<ClosedWindow>,
    /// The latest end of all that were closed, and the latest that was over by the clock when it was closed; `None`: there are none.
    to_ns: Option<(i64, i64)>,
    /// How many can be amended.
    kept: usize,
    given_up: GivenUpWindows,
}

/// Windows whose dumps cannot be amended any more.
#[derive(Debug, Default)]
struct GivenUpWindows {
    /// Those that no packet came late for: start, and the first record of each producer that came after the close; by end and number.
    windows: BTreeMap<(i64, u64), (i64, Vec<u64>)>,
    /// The longest of them, ns.
    longest_ns: i64,
    /// How many there were that are not remembered one by one, and what they span.
    forgotten: u64,
    forgotten_ns: Option<(i64, i64)>,
    outdated: Outdated,
}

/// Packets that came late for dumps that could not be amended any more. Nobody asked a dump filter about them: these are upper bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outdated {
    /// Dumps whose verdict does not tell it.
    pub(crate) dumps: u64,
    /// The first and the last stamp of such packets, ns.
    pub(crate) span_ns: Option<(i64, i64)>,
}

impl GivenUpWindows {
    fn add(&mut self, id: u64, (from_ns, to_ns): (i64, i64), ends: Vec<u64>) {
        self.longest_ns = self.longest_ns.max(to_ns.saturating_sub(from_ns));
        self.windows.insert((to_ns, id), (from_ns, ends));
        if self.windows.len() > REMEMBERED
            && let Some(((to_ns, _), (from_ns, _))) = self.windows.pop_first()
        {
            self.forgotten += 1;
            self.forgotten_ns = join(self.forgotten_ns, (from_ns, to_ns));
        }
    }

    /// Counts the dumps that a packet may have come too late for, each once. `offset_ns`: its stamp less its ring time.
    fn check(&mut self, producer: usize, record: u64, time_ns: i64, offset_ns: i64) {
        let until_ns = time_ns.saturating_add(self.longest_ns);
        let touched = self.windows.range((time_ns, 0)..=(until_ns, u64::MAX));
        let touched = touched.filter(|(_, (from_ns, ends))| {
            *from_ns <= time_ns && record >= ends.get(producer).copied().unwrap_or(0)
        });
        let touched: Vec<_> = touched.map(|(key, _)| *key).collect();
        let spans = |(from_ns, to_ns): &(i64, i64)| (*from_ns..=*to_ns).contains(&time_ns);
        let forgotten = self.forgotten_ns.take_if(|span_ns| spans(span_ns));
        if touched.is_empty() && forgotten.is_none() {
            return;
        }
        for key in &touched {
            self.windows.remove(key);
        }
        self.outdated.dumps += touched.len() as u64;
        if forgotten.is_some() {
            self.outdated.dumps += std::mem::take(&mut self.forgotten);
        }
        let stamp_ns = time_ns.saturating_add(offset_ns);
        self.outdated.span_ns = join(self.outdated.span_ns, (stamp_ns, stamp_ns));
    }
}

/// The span of both.
fn join(one: Option<(i64, i64)>, other: (i64, i64)) -> Option<(i64, i64)> {
    let one = one.unwrap_or(other);
    Some((one.0.min(other.0), one.1.max(other.1)))
}

#[derive(Debug)]
struct ClosedWindow {
    window: OpenWindow,
    /// The first record of each producer that came after the close.
    ends: Vec<u64>,
    /// What the clock showed at the close, ns of ring time.
    #[cfg(test)]
    closed_ns: i64,
    news: LateNews,
}

impl ClosedWindows {
    pub(crate) fn new(is_live: bool) -> Self {
        Self {
            windows: VecDeque::new(),
            to_ns: None,
            kept: if is_live { KEPT } else { KEPT_OF_FILES },
            given_up: GivenUpWindows::default(),
        }
    }

    /// What came too late to be told by verdicts.
    pub(crate) fn outdated(&self) -> Outdated {
        self.given_up.outdated
    }

    /// The same for the user.
    pub(crate) fn outdated_line(&self) -> Option<String> {
        let Outdated { dumps, span_ns } = self.outdated();
        let (from_ns, to_ns) = span_ns?;
        let plural = if dumps == 1 { "" } else { "s" };
        Some(format!(
            "packets from {} to {} came when up to {dumps} finished dump{plural} of that time could not be amended any more, and say nothing of them (a longer --hold helps)",
            rfc3339(from_ns),
            rfc3339(to_ns)
        ))
    }

    /// Adds a window. If that leaves one too many, the oldest is given up, and what the dumper is to be told of it is returned.
    pub(crate) fn add(
        &mut self,
        id: u64,
        window: OpenWindow,
        ends: Vec<u64>,
        closed_ns: i64,
    ) -> Option<Message> {
        let to_ns = window.to_ns;
        let over_ns = to_ns.min(closed_ns);
        let ends_ns = self.to_ns.unwrap_or((to_ns, over_ns));
        self.to_ns = Some((ends_ns.0.max(to_ns), ends_ns.1.max(over_ns)));
        self.windows.push_back(ClosedWindow {
            #[cfg(test)]
            closed_ns,
            window,
            ends,
            news: LateNews {
                id,
                packets: 0,
                is_bound: false,
                span_ns: (i64::MAX, i64::MIN),
                unseen: 0,
            },
        });
        if self.windows.len() <= self.kept {
            return None;
        }
        let ClosedWindow {
            window, ends, news, ..
        } = self.windows.pop_front()?;
        // That packets were late for it, its verdict tells.
        if news.packets == 0 {
            (self.given_up).add(news.id, (window.from_ns, window.to_ns), ends);
        }
        Some(Message::GivenUp(news))
    }

    /// A window that was closed turns out to have ended at `to_ns`, if it is one of them.
    pub(crate) fn cut(&mut self, id: u64, to_ns: i64) {
        let mut windows = self.windows.iter_mut().rev();
        if let Some(closed) = windows.find(|closed| closed.news.id == id) {
            closed.window.to_ns = closed.window.to_ns.min(to_ns);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
    }

    /// The ends of windows and when they were closed, ns of ring time.
    #[cfg(test)]
    pub(crate) fn closings(&self) -> Vec<(i64, i64)> {
        let closings = self.windows.iter();
        closings.map(|it| (it.window.to_ns, it.closed_ns)).collect()
    }

    /// The latest time of a packet that may belong to one of them, ns; `None`: there are none. For a producer whose watermark
    /// moves the closing clock (`is_promised`), a window counts only up to what that clock showed when it was closed.
    pub(crate) fn until_ns(&self, is_promised: bool) -> Option<i64> {
        self.to_ns
            .map(|(to_ns, over_ns)| if is_promised { over_ns } else { to_ns })
    }

    /// Whether a packet of this time may belong to one of them. In order it does not.
    pub(crate) fn concerns(&self, time_ns: i64, is_promised: bool) -> bool {
        let until_ns = self.until_ns(is_promised);
        until_ns.is_some_and(|until_ns| time_ns <= until_ns)
    }

    /// Counts a packet for each window that it belongs to and came too late for.
    pub(crate) fn check(
        &mut self,
        producer: usize,
        record: u64,
        interface: &Interface,
        packet: &Packet<'_>,
        offset_ns: i64,
    ) {
        (self.given_up).check(producer, record, packet.time_ns, offset_ns);
        for closed in &mut self.windows {
            let window = &mut closed.window;
            let came_after = record >= closed.ends.get(producer).copied().unwrap_or(0);
            if !came_after || !(window.from_ns..=window.to_ns).contains(&packet.time_ns) {
                continue;
            }
            let predicate = &mut window.predicate;
            let is_asked = predicate.decides_at_once(interface.link_type);
            if !is_asked
                || predicate.decide(interface, packet, offset_ns).decision == Decision::Take
            {
                let news = &mut closed.news;
                news.packets += 1;
                news.is_bound |= !is_asked;
                let (first_ns, last_ns) = news.span_ns;
                news.span_ns = (first_ns.min(packet.time_ns), last_ns.max(packet.time_ns));
            }
        }
    }

    /// So many packets of this span of ring time were not seen by the trigger rules: counts them for each window that they
    /// may have been in.
    pub(crate) fn miss(&mut self, (from_ns, to_ns): (i64, i64), packets: u64) {
        for ClosedWindow { window, news, .. } in &mut self.windows {
            if window.from_ns <= to_ns && window.to_ns >= from_ns {
                news.unseen += packets;
            }
        }
    }

    /// Gives all of them up at the end, when the dumper keeps nothing any more: the news of them are returned.
    pub(crate) fn drain(&mut self) -> Vec<Message> {
        self.to_ns = None;
        let windows = std::mem::take(&mut self.windows);
        let news = windows.into_iter().map(|closed| closed.news);
        let news = news.filter(LateNews::is_any);
        news.map(Message::GivenUp).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More windows than are remembered, 5 ns long and 5 apart: packets between them concern none, but for those that only their span
    /// is left of, which are all counted once.
    #[test]
    fn windows_that_were_given_up_are_not_forgotten() {
        let mut given_up = GivenUpWindows::default();
        let (count, forgotten) = (70_000_u64, 70_000 - REMEMBERED as u64);
        for id in 0..count {
            let from_ns = 10 * id.cast_signed();
            given_up.add(id, (from_ns, from_ns + 4), vec![id]);
        }
        assert_eq!(given_up.windows.len(), REMEMBERED);
        let last_ns = 10 * (count.cast_signed() - 1);
        let first_ns = 10 * forgotten.cast_signed();
        let cases = [
            // Behind it, between two, before its close.
            (count, last_ns + 5, 0),
            (count, last_ns - 5, 0),
            (count - 2, last_ns, 0),
            (count, last_ns, 1),
            (count, last_ns + 4, 1),
            (count, first_ns + 4, 2),
            (count, first_ns - 1, 2),
            (count, first_ns - 5, 2),
            (count, first_ns - 6, 2 + forgotten),
            (count, 3, 2 + forgotten),
        ];
        for (record, time_ns, dumps) in cases {
            given_up.check(0, record, time_ns, 100);
            assert_eq!(given_up.outdated.dumps, dumps, "{time_ns}");
        }
        let span_ns = Some((first_ns + 94, last_ns + 100));
        assert_eq!(given_up.outdated.span_ns, span_ns);
    }
}
