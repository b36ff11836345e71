//! The generator as a source, paced on the real clock.
//!
//! The time stamp of a frame is the wall clock at the opening plus the frame's time on the
//! schedule. So a stamp is exact however late a thread wakes up, and later steps of the wall clock
//! have no effect. Without a rate, frames have the time at the start of their burst. A thread that
//! is late catches up: the generator never drops a frame.

use std::time::Duration;

use retroscope_packet::LinkType;

use super::{GeneratorConfig, frames::Generator};
use retroscope_capture::{
    Burst, InterfaceInfo, Offer, Probed, Queue, QueueStatus, Source, SourceError, SourceEvent,
    SourceStatistics, TimeDomain,
    clock::{self, Now},
};

/// A generator that implements [`Source`].
#[derive(Debug)]
pub struct GeneratorSource {
    name: String,
    config: GeneratorConfig,
}

impl GeneratorSource {
    /// A source with the frames of `config` and a name. [`Source::probe`] checks the limits.
    pub fn new(name: impl Into<String>, config: GeneratorConfig) -> Self {
        Self {
            name: name.into(),
            config,
        }
    }

    /// Parses `generate:flows=…,rate=…`, as [`GeneratorConfig`] describes.
    ///
    /// # Errors
    /// [`SourceError::Usage`] with what to write instead.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        Ok(Self::new(text, text.parse()?))
    }

    /// Shares of the frames. Without a rate, the first share has the trigger; with a rate, the
    /// share that has the trigger's slot.
    fn shares(self, count: usize) -> Result<GeneratorShares, SourceError> {
        // Without a rate there is no schedule: the clock determines the trigger and the end by
        // `duration`.
        let scheduled = match self.config.rate {
            Some(_) => self.config.clone(),
            None => GeneratorConfig {
                trigger_after: None,
                duration: None,
                ..self.config.clone()
            },
        };
        let generators = Generator::split(&scheduled, count)?;
        Ok(GeneratorShares {
            source: self,
            generators,
        })
    }
}

impl Source for GeneratorSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        Ok(Box::new(self.shares(queues)?))
    }
}

/// A generator for each queue, before the start of the schedule.
#[derive(Debug)]
struct GeneratorShares {
    source: GeneratorSource,
    generators: Vec<Generator>,
}

impl GeneratorShares {
    /// Starts the schedule.
    fn start(self) -> impl Iterator<Item = GeneratorQueue> {
        let Self { source, generators } = self;
        let start = clock::now();
        let config = source.config;
        let is_scheduled = config.rate.is_some();
        let trigger_after = config.trigger_after.filter(|_| !is_scheduled);
        let duration = config.duration.filter(|_| !is_scheduled);
        let queue = move |(index, generator)| GeneratorQueue {
            interfaces: [InterfaceInfo::new(
                &source.name,
                LinkType::ETHERNET,
                TimeDomain::Generator,
            )],
            generator,
            start,
            is_scheduled,
            trigger_at_ns: trigger_after.filter(|_| index == 0).map(clock::duration_ns),
            end_ns: duration.map_or(i64::MAX, clock::duration_ns),
            frames_made: 0,
            watermark_ns: start.wall_ns,
            ended: false,
        };
        generators.into_iter().enumerate().map(queue)
    }
}

impl Probed for GeneratorShares {
    fn queues(&self) -> usize {
        self.generators.len()
    }

    fn link_types(&self) -> Vec<LinkType> {
        vec![LinkType::ETHERNET]
    }

    fn open(self: Box<Self>, _offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let queues = self.start().map(|queue| Box::new(queue) as Box<dyn Queue>);
        Ok(queues.collect())
    }
}

#[derive(Debug)]
struct GeneratorQueue {
    interfaces: [InterfaceInfo; 1],
    generator: Generator,
    /// The time of the opening, from which stamps and watermarks are computed.
    start: Now,
    /// Whether frames are due by the generator's schedule. If not, frames are due at once,
    /// `trigger_at_ns` determines the trigger, and `end_ns` and the number of frames determine the
    /// end. Both times are in ns after the start.
    is_scheduled: bool,
    trigger_at_ns: Option<i64>,
    end_ns: i64,
    frames_made: u64,
    watermark_ns: i64,
    ended: bool,
}

impl GeneratorQueue {
    /// Makes the frames that are due `elapsed_ns` after the start, up to one burst. The trigger is
    /// a separate burst.
    fn fill(&mut self, elapsed_ns: i64) {
        while let Some(due_ns) = self.next_due_ns(elapsed_ns)
            && due_ns <= elapsed_ns
        {
            let time_ns = self.start.wall_ns.saturating_add(due_ns);
            let is_trigger_due = self.trigger_at_ns.is_some_and(|at_ns| at_ns <= elapsed_ns);
            if is_trigger_due || self.generator.is_trigger_next() {
                if self.generator.burst().frames.is_empty() {
                    self.trigger_at_ns = None;
                    self.generator.push_trigger(time_ns);
                }
                break;
            }
            // On the schedule each frame has its own time; otherwise all frames have the time of
            // their burst.
            let count = match self.is_scheduled {
                true => 1,
                false => usize::try_from(self.generator.schedule.left()).unwrap_or(usize::MAX),
            };
            if self.generator.push(count, time_ns) == 0 {
                break;
            }
        }
        self.frames_made += self.generator.burst().frames.len() as u64;
    }

    /// When the next frame is due, in ns after the start; `None` at the end.
    fn next_due_ns(&self, elapsed_ns: i64) -> Option<i64> {
        let scheduled_ns = self.generator.schedule.offset_ns()?;
        match self.is_scheduled {
            true => Some(scheduled_ns),
            false => (elapsed_ns < self.end_ns).then_some(elapsed_ns),
        }
    }
}

impl Queue for GeneratorQueue {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError> {
        self.generator.take_back();
        let mut now_ns = clock::monotonic_ns();
        let deadline_ns = now_ns.saturating_add(clock::duration_ns(wait));
        while !self.ended {
            let elapsed_ns = now_ns - self.start.mono_ns;
            // No later frame is stamped before the next slot of the schedule. If the slot is in the
            // future, the watermark advances only to the clock.
            let silent_until_ns = self
                .next_due_ns(elapsed_ns)
                .map_or(elapsed_ns, |due_ns| due_ns.min(elapsed_ns));
            self.watermark_ns = self
                .watermark_ns
                .max(self.start.wall_ns.saturating_add(silent_until_ns));
            self.fill(elapsed_ns);
            if !self.generator.burst().frames.is_empty() {
                return Ok(QueueStatus::Frames);
            }
            let Some(next_due_ns) = self.next_due_ns(elapsed_ns) else {
                self.ended = true;
                break;
            };
            if now_ns >= deadline_ns {
                return Ok(QueueStatus::Idle);
            }
            clock::sleep_until(deadline_ns.min(self.start.mono_ns.saturating_add(next_due_ns)));
            now_ns = clock::monotonic_ns();
        }
        Ok(QueueStatus::End)
    }

    fn burst(&self) -> Burst<'_> {
        self.generator.burst()
    }

    /// Without a rate, the next frames are made only when they are fetched, so no frame waits. An
    /// inserter with a shard then usually analyzes each burst before it fetches the next burst.
    fn has_more(&self) -> Option<bool> {
        (!self.is_scheduled).then_some(false)
    }

    fn watermark(&self) -> Option<i64> {
        Some(self.watermark_ns)
    }

    fn event(&mut self) -> Option<SourceEvent> {
        None
    }

    fn statistics(&mut self) -> SourceStatistics {
        SourceStatistics {
            received: Some(self.frames_made),
            lost: Vec::new(),
            as_of_ns: Some(self.watermark_ns),
        }
    }

    fn stop(&mut self) {
        // Frames are made when they are fetched, so the stop needs no drain.
        self.ended = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn open(text: &str, queues: usize) -> Vec<Box<dyn Queue>> {
        Box::new(GeneratorSource::parse(text).unwrap())
            .open(queues)
            .unwrap()
    }

    /// Reads a queue to its end. Returns stamps and frames.
    fn drain(queue: &mut dyn Queue) -> Vec<(i64, Vec<u8>)> {
        let mut frames = Vec::new();
        loop {
            let watermark_ns = queue.watermark().unwrap();
            match queue.next(LONG).unwrap() {
                QueueStatus::Frames => {
                    for frame in queue.burst().iter() {
                        assert!(
                            frame.meta.time_ns >= watermark_ns,
                            "older than the watermark"
                        );
                        frames.push((frame.meta.time_ns, frame.data.to_vec()));
                    }
                }
                QueueStatus::Idle => {}
                QueueStatus::End => break,
            }
            assert!(queue.watermark().unwrap() >= watermark_ns);
        }
        assert!(queue.burst().frames.is_empty());
        assert_eq!(queue.next(LONG).unwrap(), QueueStatus::End);
        assert_eq!(queue.statistics().received, Some(frames.len() as u64));
        frames
    }

    #[test]
    fn stamps_are_the_schedule_and_bytes_the_generator_s() {
        let text = "generate:flows=10,rate=100kpps,count=5000,trigger-after=20ms";
        let started = Instant::now();
        let frames = drain(open(text, 1)[0].as_mut());
        assert!(
            started.elapsed() >= Duration::from_micros(49_990),
            "paced: {:?}",
            started.elapsed()
        );
        let mut generator = Generator::new(&text.parse().unwrap()).unwrap();
        assert_eq!(frames.len(), 5000);
        let start_ns = frames[0].0;
        assert!((start_ns - clock::realtime_ns()).abs() < 60 * clock::SECOND_NS);
        for (time_ns, frame) in &frames {
            let (offset_ns, expected) = generator.next_frame().unwrap();
            assert_eq!(time_ns - start_ns, offset_ns);
            assert_eq!(frame, expected);
        }
    }

    #[test]
    fn without_a_rate_the_clock_decides() {
        let text = "generate:flows=5,duration=30ms,trigger-after=10ms";
        let mut queue = GeneratorSource::parse(text)
            .unwrap()
            .shares(1)
            .unwrap()
            .start()
            .next()
            .unwrap();
        let start_ns = queue.start.wall_ns;
        let mut fill = |elapsed_ns| {
            queue.generator.take_back();
            queue.fill(elapsed_ns);
            let burst = queue.generator.burst();
            assert!(
                burst
                    .iter()
                    .all(|frame| frame.meta.time_ns == start_ns + elapsed_ns)
            );
            let triggers = burst
                .iter()
                .filter(|frame| frame.data[36..38] == [0xea, 0x60]);
            (burst.frames.len(), triggers.count())
        };
        let (full, triggers) = fill(0);
        assert!(full > 1 && triggers == 0);
        assert_eq!(fill(9_999_999), (full, 0));
        assert_eq!(
            fill(10_000_000),
            (1, 1),
            "late or not, the trigger comes once"
        );
        assert_eq!(fill(10_000_000), (full, 0));
        assert_eq!(fill(29_999_999), (full, 0));
        assert_eq!(fill(30_000_000), (0, 0));
        // With the real clock: no thread is interrupted for so long that an hour gives no frame.
        let mut queue = open("generate:duration=1h", 1).remove(0);
        assert_eq!(queue.next(LONG).unwrap(), QueueStatus::Frames);
        let frames = drain(open("generate:duration=1ms,count=1000000000", 1)[0].as_mut());
        assert!(frames.len() < 1_000_000_000);
        assert_eq!(
            drain(open("generate:count=100000", 1)[0].as_mut()).len(),
            100_000
        );
    }

    #[test]
    fn queues_share_the_stream() {
        let mut total = 0;
        for mut queue in open(
            "generate:flows=4,rate=1Mpps,count=1001,trigger-after=100us",
            3,
        ) {
            total += drain(queue.as_mut()).len();
        }
        assert_eq!(total, 1001);
    }

    #[test]
    fn an_idle_queue_moves_its_watermark_and_sleeps() {
        // The second frame is due after more than a minute.
        let mut queue = open("generate:size=64,rate=7bit", 1).remove(0);
        assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::Frames);
        let before_ns = queue.watermark().unwrap();
        let started = Instant::now();
        assert_eq!(
            queue.next(Duration::from_millis(20)).unwrap(),
            QueueStatus::Idle
        );
        assert!(started.elapsed() >= Duration::from_millis(19));
        assert!(queue.watermark().unwrap() >= before_ns + 19_000_000);
        assert!(
            queue.watermark().unwrap() <= clock::realtime_ns(),
            "no promise about the future"
        );
    }

    #[test]
    fn stop_ends_it_at_once() {
        let mut queue = open("generate:", 1).remove(0);
        assert_eq!(queue.next(LONG).unwrap(), QueueStatus::Frames);
        let lent = queue.burst().frames.len() as u64;
        queue.stop();
        queue.stop();
        assert_eq!(queue.next(LONG).unwrap(), QueueStatus::End);
        assert_eq!(queue.statistics().received, Some(lent));
    }
}
