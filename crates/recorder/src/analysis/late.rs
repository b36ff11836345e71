//! Windows that are over, for packets that come after all.

use std::collections::VecDeque;

use retroscope_filter::Decision;
use retroscope_ring::Packet;

use crate::{
    analysis::predicate::Predicate,
    dump::order::{LateNews, Message},
    intake::interfaces::Interface,
};

/// Windows that a late packet is still checked against. Their finished dumps can be amended: the dumper keeps each until it is told that
/// the window is given up.
const KEPT: usize = 1024;

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
#[derive(Debug, Default)]
pub(crate) struct ClosedWindows {
    windows: VecDeque<ClosedWindow>,
    /// The latest end of them, and the latest that was over by the clock when it was closed; `None`: there are none.
    to_ns: Option<(i64, i64)>,
}

#[derive(Debug)]
struct ClosedWindow {
    window: OpenWindow,
    /// The first record of each producer that came after the close.
    ends: Vec<u64>,
    /// What the clock showed at the close, ns of ring time.
    closed_ns: i64,
    news: LateNews,
}

impl ClosedWindows {
    /// Adds a window. If that leaves one too many, the oldest is given up, and what the dumper is to be told of it is returned.
    pub(crate) fn add(
        &mut self,
        id: u64,
        window: OpenWindow,
        ends: Vec<u64>,
        closed_ns: i64,
    ) -> Option<Message> {
        self.windows.push_back(ClosedWindow {
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
        let given_up = if self.windows.len() > KEPT {
            self.windows.pop_front()
        } else {
            None
        };
        let ends = self.windows.iter().map(|closed| {
            let to_ns = closed.window.to_ns;
            (to_ns, to_ns.min(closed.closed_ns))
        });
        self.to_ns = ends.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
        Some(Message::GivenUp(given_up?.news))
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
