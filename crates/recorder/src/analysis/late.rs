//! Windows that are over, for packets that come after all.

use std::collections::VecDeque;

use retroscope_filter::Decision;
use retroscope_ring::Packet;

use crate::{analysis::predicate::Predicate, dump::order::Message, intake::interfaces::Interface};

/// Windows that a late packet is still checked against.
const KEPT: usize = 1024;

/// The window of a dump that was started.
#[derive(Debug)]
pub(crate) struct OpenWindow {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) predicate: Predicate,
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
    id: u64,
    window: OpenWindow,
    /// The first record of each producer that came after the close.
    ends: Vec<u64>,
    /// What the clock showed at the close, ns of ring time.
    closed_ns: i64,
    late: u64,
    first_ns: i64,
    last_ns: i64,
}

impl ClosedWindows {
    /// Adds a window. If that leaves one too many, the oldest is given up, and what came late for it is returned.
    pub(crate) fn add(
        &mut self,
        id: u64,
        window: OpenWindow,
        ends: Vec<u64>,
        closed_ns: i64,
    ) -> Option<Message> {
        self.windows.push_back(ClosedWindow {
            closed_ns,
            id,
            window,
            ends,
            late: 0,
            first_ns: i64::MAX,
            last_ns: i64::MIN,
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
        given_up?.message()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
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
            if came_after
                && (window.from_ns..=window.to_ns).contains(&packet.time_ns)
                && window
                    .predicate
                    .decide(interface, packet, offset_ns)
                    .decision
                    == Decision::Take
            {
                closed.late += 1;
                closed.first_ns = closed.first_ns.min(packet.time_ns);
                closed.last_ns = closed.last_ns.max(packet.time_ns);
            }
        }
    }

    /// Gives all of them up; what came late is returned.
    pub(crate) fn drain(&mut self) -> Vec<Message> {
        self.to_ns = None;
        let windows = std::mem::take(&mut self.windows);
        windows.iter().filter_map(ClosedWindow::message).collect()
    }
}

impl ClosedWindow {
    fn message(&self) -> Option<Message> {
        let &Self {
            id,
            late: packets,
            first_ns,
            last_ns,
            ..
        } = self;
        (packets > 0).then_some(Message::Late {
            id,
            packets,
            first_ns,
            last_ns,
        })
    }
}
