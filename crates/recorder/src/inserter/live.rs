//! The inserter of a live queue.

use std::time::Duration;

use retroscope_capture::Status;
use retroscope_ring::Producer;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{IDLE, InserterShared, Lane, LaneEnd};

/// Time between two readings of an engine's counters, ns.
const STATISTICS_NS: i64 = 10_000_000;
/// Time that a source that never runs dry may go without a publication and a watermark, ns. Bursts of it that are small fill
/// the 128 KiB slowly after which the ring publishes by itself.
const UNTOLD_NS: i64 = 1_000_000;

/// The inserter of one live queue.
#[derive(Debug)]
pub(crate) struct LiveInserter {
    lane: Lane,
    producer: Producer,
    shared: InserterShared,
    start_mono_ns: i64,
    statistics_due_ns: i64,
    stopped: bool,
    enough: bool,
    end: LaneEnd,
}

impl LiveInserter {
    pub(crate) fn new(lane: Lane, mut producer: Producer, mut shared: InserterShared) -> Self {
        if lane.queue.is_filtered() {
            shared.filter = None;
            lane.counters.set_filtered_before();
        }
        // `step` publishes every millisecond.
        producer.leave_sleepers();
        let start_mono_ns = shared.clock.mono_ns();
        let end = LaneEnd {
            error: None,
            notices: Vec::new(),
        };
        Self {
            lane,
            producer,
            shared,
            start_mono_ns,
            statistics_due_ns: 0,
            stopped: false,
            enough: false,
            end,
        }
    }

    /// Runs until the queue ends; `notify` gets sentences for the user as they come.
    pub(crate) fn run(mut self, notify: &mut dyn FnMut(String)) -> LaneEnd {
        if let Err(error) = pin(self.lane.queue.cpus()) {
            let cpus = self.lane.queue.cpus();
            notify(format!(
                "cannot run a capture thread on CPU {cpus:?}: {error}"
            ));
        }
        loop {
            let more = self.step();
            self.end.notices.drain(..).for_each(&mut *notify);
            if !more {
                return self.end;
            }
        }
    }

    /// Serves the bursts that are there, for [`UNTOLD_NS`] at most, or an idle moment; false at the end.
    ///
    /// What was stored is published, and the watermark moved, when the source has run dry: not behind each of many small
    /// bursts. The ring publishes by itself when much is waiting.
    pub(crate) fn step(&mut self) -> bool {
        let (mut status, mut now_ns) = self.fetch(IDLE);
        if let Some(lookout) = &mut self.shared.lookout {
            lookout.asked(now_ns);
        }
        let until_ns = now_ns.saturating_add(UNTOLD_NS);
        while status == Status::Frames {
            self.store_burst();
            self.stop_if_due(now_ns);
            if now_ns >= until_ns {
                break;
            }
            (status, now_ns) = self.fetch(Duration::ZERO);
        }
        match self.lane.queue.watermark() {
            // The burst that is lent may be older than the watermark, and is in the ring.
            Some(watermark_ns) => self.producer.set_watermark(watermark_ns),
            None => self.producer.publish(),
        }
        if let Some(lookout) = &mut self.shared.lookout {
            // Behind the publication.
            lookout.told(status != Status::Frames, now_ns);
        }
        self.lane.notices(&self.shared, &mut self.end.notices);
        if now_ns >= self.statistics_due_ns || status == Status::End {
            self.lane.read_statistics(&self.shared);
            self.statistics_due_ns = now_ns + STATISTICS_NS;
        }
        if status == Status::End {
            let notice = self.lane.ended(self.end.error.as_ref(), &self.shared);
            self.end.notices.extend(notice);
        }
        self.stop_if_due(now_ns);
        status != Status::End
    }

    /// Fetches the next burst; also gives the monotonic clock after it.
    fn fetch(&mut self, wait: Duration) -> (Status, i64) {
        let status = self.lane.queue.next(wait).unwrap_or_else(|error| {
            self.end.error = Some(error);
            Status::End
        });
        if let Err(error) = self.lane.register(&self.shared) {
            self.end.notices.push(error.to_string());
        }
        (status, self.shared.clock.mono_ns())
    }

    /// Stores the burst that is lent, or counts why not.
    fn store_burst(&mut self) {
        let frames = self.lane.queue.burst().frames.len();
        let mut dealt_with = 0;
        if !self.enough {
            dealt_with = self
                .lane
                .store(0..frames, &mut self.producer, &mut self.shared);
            self.enough = dealt_with < frames;
        }
        self.lane.refuse(frames - dealt_with);
        self.lane.flush(&self.shared.intake);
    }

    fn stop_if_due(&mut self, now_ns: i64) {
        let duration_ns = self.shared.duration_ns;
        let is_over = duration_ns.is_some_and(|d| now_ns - self.start_mono_ns >= d);
        if self.shared.is_spent() || is_over {
            self.shared.control.stop();
        }
        if self.shared.control.stopping() && !self.stopped {
            self.stopped = true;
            self.lane.queue.stop();
        }
    }
}

/// Lets the calling thread run on these CPUs only; on any if there are none.
fn pin(cpus: &[u32]) -> std::io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for cpu in cpus.iter().map(|cpu| *cpu as usize) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    };

    use retroscope_capture::{
        Burst, Direction, Event, FrameMeta, InterfaceInfo, Queue, SourceError, SourceStatistics,
        TimeDomain,
    };
    use retroscope_packet::LinkType;
    use retroscope_ring::{Ring, RingConfig};

    use super::*;
    use crate::{intake::Intake, progress::Control, rig::FakeClock};

    /// Time between two frames, ns.
    const INTERVAL_NS: i64 = 100_000;

    /// A link with a frame every 100 µs, by the clock that it moves.
    #[derive(Debug)]
    struct SteadyQueue {
        interfaces: [InterfaceInfo; 1],
        clock: Arc<FakeClock>,
        frame: [FrameMeta; 1],
        /// Frames left; then it is idle.
        left: Arc<AtomicU64>,
        lent: usize,
    }

    impl Queue for SteadyQueue {
        fn interfaces(&self) -> &[InterfaceInfo] {
            &self.interfaces
        }

        fn next(&mut self, _wait: Duration) -> Result<Status, SourceError> {
            let now_ns = self.clock.mono_ns.fetch_add(INTERVAL_NS, Ordering::SeqCst) + INTERVAL_NS;
            self.frame[0].time_ns = now_ns;
            let left = self.left.load(Ordering::SeqCst);
            self.left.store(left.saturating_sub(1), Ordering::SeqCst);
            self.lent = usize::from(left > 0);
            Ok(if left > 0 {
                Status::Frames
            } else {
                Status::Idle
            })
        }

        fn burst(&self) -> Burst<'_> {
            Burst {
                memory: &[0; 60],
                frames: &self.frame[..self.lent],
            }
        }

        fn watermark(&self) -> Option<i64> {
            Some(self.frame[0].time_ns)
        }

        fn event(&mut self) -> Option<Event> {
            None
        }

        fn statistics(&mut self) -> SourceStatistics {
            SourceStatistics::default()
        }

        fn stop(&mut self) {}
    }

    /// An inserter of a queue with `frames` frames, and what to watch it by.
    fn inserter(frames: u64) -> (LiveInserter, Ring, Arc<AtomicU64>) {
        let clock = Arc::new(FakeClock {
            wall_ns: AtomicI64::new(0),
            mono_ns: AtomicI64::new(0),
        });
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let sources = std::iter::once(("steady".to_owned(), 1));
        let intake = Arc::new(Intake::new(sources, Arc::default(), false));
        let counters = Arc::clone(&intake.sources[0].queues[0]);
        let shared = InserterShared {
            ring: ring.clone(),
            intake,
            control: Arc::new(Control::default()),
            clock: clock.clone(),
            snaplen: 0,
            filter: None,
            remaining: None,
            lookout: None,
            duration_ns: None,
        };
        let left = Arc::new(AtomicU64::new(frames));
        let queue = SteadyQueue {
            interfaces: [InterfaceInfo {
                name: "steady".to_owned(),
                link_type: LinkType::ETHERNET,
                snaplen: 0,
                time_domain: TimeDomain::KernelSoftware,
                time_resolution_ns: 1,
            }],
            clock,
            frame: [FrameMeta {
                time_ns: 0,
                offset: 0,
                captured_len: 60,
                wire_len: 60,
                interface: 0,
                direction: Direction::Inbound,
                vlan: None,
            }],
            left: Arc::clone(&left),
            lent: 0,
        };
        let lane = Lane::new(Box::new(queue), 0, counters, &shared).unwrap();
        let inserter = LiveInserter::new(lane, ring.producer().unwrap(), shared);
        (inserter, ring, left)
    }

    #[test]
    fn a_source_that_runs_dry_is_told_at_once() {
        let (mut inserter, ring, _) = inserter(3);
        assert!(inserter.step());
        assert_eq!(ring.published(0), 3);
        assert_eq!(ring.watermark(0), Some(4 * INTERVAL_NS), "of the idle look");
    }

    #[test]
    fn a_source_that_never_runs_dry_is_told_once_a_millisecond() {
        let (mut inserter, ring, left) = inserter(u64::MAX);
        for round in 1..=20 {
            assert!(inserter.step());
            let served = u64::MAX - left.load(Ordering::SeqCst);
            assert_eq!(ring.published(0), served, "all that was stored");
            let now_ns = i64::try_from(served).unwrap() * INTERVAL_NS;
            assert_eq!(ring.watermark(0), Some(now_ns));
            // A frame at the start, and those of a millisecond.
            assert_eq!(served, round * (1 + 10));
        }
    }
}
