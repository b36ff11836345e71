//! A clock and queues that tests control.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_capture::{
    Burst, Direction, FrameMeta, InputDrops, InterfaceInfo, LossCause, Queue, QueueStatus,
    SourceError, SourceEvent, SourceStatistics, TimeDomain, VlanTag, WaitTerms,
    clock::{Clock, Now},
};
use retroscope_packet::LinkType;

use crate::intake::inserter::live::LiveInserter;

#[derive(Debug, Default)]
pub(crate) struct FakeClock {
    pub(crate) wall_ns: AtomicI64,
    pub(crate) mono_ns: AtomicI64,
    /// Time between the readings of both clocks, ns.
    pub(crate) read_gap_ns: AtomicI64,
    /// Time that passes with each reading, ns.
    pub(crate) reading_ns: AtomicI64,
    pub(super) pause: Mutex<Option<Pause>>,
}

/// A pause after a reading of the clock. At its end a packet arrives.
#[derive(Debug)]
pub(super) struct Pause {
    /// Number of readings before the reading that the pause follows.
    pub(super) readings: usize,
    pub(super) pause_ns: i64,
    pub(super) packet: Vec<u8>,
    pub(super) feed: Arc<Mutex<Feed>>,
    pub(super) inserters: Arc<Mutex<Vec<LiveInserter>>>,
}

impl FakeClock {
    /// Moves both clocks by `ns`.
    pub(crate) fn pass(&self, ns: i64) {
        self.wall_ns.fetch_add(ns, Ordering::SeqCst);
        self.mono_ns.fetch_add(ns, Ordering::SeqCst);
    }

    /// The pause, if it follows this reading.
    fn due(&self) -> Option<Pause> {
        let mut pause = self.pause.lock().unwrap();
        let readings = &mut pause.as_mut()?.readings;
        if *readings == 0 {
            return pause.take();
        }
        *readings -= 1;
        None
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Now {
        self.pass(self.reading_ns.load(Ordering::SeqCst));
        let now = Now {
            wall_ns: self.wall_ns.load(Ordering::SeqCst),
            mono_ns: self.mono_ns.load(Ordering::SeqCst),
            read_gap_ns: self.read_gap_ns.load(Ordering::SeqCst),
        };
        if let Some(pause) = self.due() {
            self.pass(pause.pause_ns);
            let time_ns = self.wall_ns.load(Ordering::SeqCst);
            let frame = (time_ns, pause.packet);
            pause.feed.lock().unwrap().frames.push_back(frame);
            step_all(&pause.inserters);
        }
        now
    }
}

#[derive(Debug, Default)]
pub(crate) struct Feed {
    pub(crate) frames: VecDeque<(i64, Vec<u8>)>,
    pub(crate) watermark_ns: Option<i64>,
    pub(crate) received: u64,
    pub(crate) lost: u64,
    /// Whether the queue has no counter of losses.
    pub(crate) counts_nothing: bool,
    pub(crate) input_drops: Option<InputDrops>,
    pub(crate) known_ns: Option<i64>,
    pub(crate) stopped: bool,
    pub(crate) failed: bool,
    pub(crate) events: VecDeque<SourceEvent>,
}

#[derive(Debug)]
pub(super) struct FakeQueue {
    pub(super) interfaces: Vec<InterfaceInfo>,
    pub(super) feed: Arc<Mutex<Feed>>,
    pub(super) memory: Vec<u8>,
    pub(super) frames: Vec<FrameMeta>,
}

impl FakeQueue {
    /// Removes the outer VLAN tag from an Ethernet frame, as the kernel does.
    fn take_tag(&self, data: &mut Vec<u8>) -> Option<VlanTag> {
        let tag: [u8; 4] = data.get(12..16)?.try_into().ok()?;
        let [tpid, tci] = [[tag[0], tag[1]], [tag[2], tag[3]]].map(u16::from_be_bytes);
        let is_tag = matches!(tpid, 0x8100 | 0x88a8);
        if self.interfaces[0].link_type != LinkType::ETHERNET || !is_tag {
            return None;
        }
        data.drain(12..16);
        Some(VlanTag { tpid, tci })
    }
}

impl Queue for FakeQueue {
    fn wait_terms(&self) -> Option<WaitTerms<'_>> {
        Some(WaitTerms {
            descriptor: None,
            longest: Duration::ZERO,
        })
    }

    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    fn next(&mut self, _wait: Duration) -> Result<QueueStatus, SourceError> {
        let mut feed = self.feed.lock().unwrap();
        if std::mem::take(&mut feed.failed) {
            feed.stopped = true;
            let interface = "fake".to_owned();
            return Err(SourceError::NoInterface { interface });
        }
        self.memory.clear();
        self.frames.clear();
        while let Some((time_ns, mut data)) = feed.frames.pop_front() {
            let vlan = self.take_tag(&mut data);
            let captured_len = u32::try_from(data.len()).unwrap();
            self.frames.push(FrameMeta {
                time_ns,
                offset: self.memory.len(),
                captured_len,
                wire_len: captured_len,
                interface: 0,
                direction: Direction::Inbound,
                vlan,
            });
            self.memory.extend(data);
            feed.received += 1;
        }
        Ok(match (self.frames.is_empty(), feed.stopped) {
            (false, _) => QueueStatus::Frames,
            (true, true) => QueueStatus::End,
            (true, false) => QueueStatus::Idle,
        })
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: &self.memory,
            frames: &self.frames,
        }
    }

    fn has_more(&self) -> Option<bool> {
        Some(!self.feed.lock().unwrap().frames.is_empty())
    }

    fn watermark(&self) -> Option<i64> {
        let watermark_ns = self.feed.lock().unwrap().watermark_ns;
        watermark_ns.filter(|_| self.promises_watermark())
    }

    fn promises_watermark(&self) -> bool {
        self.interfaces[0].time_domain != TimeDomain::Foreign
    }

    fn event(&mut self) -> Option<SourceEvent> {
        self.feed.lock().unwrap().events.pop_front()
    }

    fn statistics(&mut self) -> SourceStatistics {
        let feed = self.feed.lock().unwrap();
        SourceStatistics {
            received: Some(feed.received + feed.lost),
            lost: vec![(
                LossCause::Kernel,
                (!feed.counts_nothing).then_some(feed.lost),
            )],
            as_of_ns: feed.known_ns.filter(|_| self.promises_watermark()),
        }
    }

    fn input_drops(&self) -> InputDrops {
        let feed = self.feed.lock().unwrap();
        feed.input_drops.unwrap_or(InputDrops::None)
    }

    fn stop(&mut self) {
        self.feed.lock().unwrap().stopped = true;
    }
}

pub(super) fn step_all(inserters: &Mutex<Vec<LiveInserter>>) {
    let mut inserters = inserters.lock().unwrap();
    inserters
        .iter_mut()
        .for_each(|inserter| _ = inserter.step());
}
