//! Judges the stamps of frames ([`Sequence`]). From files, keeps frames until later frames decide.
//!
//! A packet that is older than the hold time allows is either late or follows a step; later packets
//! decide. From files, frames usually wait for the decision, up to [`WAITING_BYTES_MAX`] bytes.
//! Waiting frames are copied, because an engine lends one burst at a time. Live, frames do not
//! wait.

use std::collections::VecDeque;

use retroscope_capture::{Burst, FrameMeta, Queue, QueueStatus, SourceError};

use super::{
    parts::SOURCE_WAIT,
    sequence::{Misplaced, PacketOrder, Sequence},
};

/// If more bytes than this wait, undecided packets are stored as late.
const WAITING_BYTES_MAX: usize = if cfg!(test) { 64 << 10 } else { 64 << 20 };

#[derive(Debug)]
pub(super) struct StepLookahead {
    sequence: Sequence,
    /// Whether frames may wait for later frames.
    waits: bool,
    copy: Option<FrameCopy>,
    seen: usize,
    /// The offset of all frames before this index is decided.
    pub(super) decided: usize,
    /// Index of the first frame of the undecided run of old frames, if any.
    first_behind: usize,
    steps: VecDeque<FrameStep>,
    /// Late packets, by the frame that revealed this.
    late: VecDeque<(usize, Misplaced)>,
    /// Packets that are stored as late and may follow a step, for the caller to take.
    pub(super) misplaced: Option<Misplaced>,
}

/// A clock step: another offset applies from a frame on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameStep {
    pub(super) index: usize,
    /// Stamp less ring time, ns.
    pub(super) offset_ns: i64,
    /// By how much the clock was set, ns.
    pub(super) step_ns: i64,
    /// Index of the first frame after the step, in the current burst or its copy.
    pub(super) first: usize,
    /// Live: packets after the step that arrived before it was believed, and are stored as if there
    /// were no step.
    pub(super) misplaced: Option<Misplaced>,
}

#[derive(Debug, Default)]
struct FrameCopy {
    memory: Vec<u8>,
    frames: Vec<FrameMeta>,
}

impl FrameCopy {
    fn add(&mut self, burst: Burst<'_>, from: usize) {
        for frame in burst.iter().skip(from) {
            let offset = self.memory.len();
            self.frames.push(FrameMeta {
                offset,
                ..frame.meta
            });
            self.memory.extend_from_slice(frame.data);
        }
    }
}

impl StepLookahead {
    pub(super) fn new(hold_ns: i64, waits: bool) -> Self {
        Self {
            sequence: Sequence::new(hold_ns),
            waits,
            copy: None,
            seen: 0,
            decided: 0,
            first_behind: 0,
            steps: VecDeque::new(),
            late: VecDeque::new(),
            misplaced: None,
        }
    }

    /// The frames that `seen` and `decided` count.
    pub(super) fn burst<'a>(&'a self, queue: &'a dyn Queue) -> Burst<'a> {
        match &self.copy {
            None => queue.burst(),
            Some(copy) => Burst {
                memory: &copy.memory,
                frames: &copy.frames,
            },
        }
    }

    /// Forgets the previous burst. Call this when another burst is fetched.
    pub(super) fn fetched(&mut self) {
        self.copy = None;
        (self.seen, self.decided, self.first_behind) = (0, 0, 0);
        self.steps.clear();
        self.late.clear();
    }

    pub(super) fn decide(&mut self, queue: &dyn Queue) {
        let copy = self.copy.take();
        let frames = copy
            .as_ref()
            .map_or(queue.burst().frames, |copy| &copy.frames);
        for (index, meta) in frames.iter().enumerate().skip(self.seen) {
            let run = self.sequence.behind();
            let (seen, were_late) = self.sequence.see(meta.time_ns);
            self.late.extend(were_late.map(|late| (index, late)));
            match seen {
                PacketOrder::InTime => self.decided = index + 1,
                PacketOrder::FirstBackward => (self.decided, self.first_behind) = (index, index),
                PacketOrder::Backward => {}
                PacketOrder::Stepped { offset_ns, step_ns } => {
                    self.steps.push_back(FrameStep {
                        index: if self.waits { self.first_behind } else { index },
                        offset_ns,
                        step_ns,
                        first: self.first_behind,
                        misplaced: run.filter(|_| !self.waits),
                    });
                    self.decided = index + 1;
                }
            }
        }
        self.seen = frames.len();
        let waiting = copy.as_ref().map_or(0, |copy| copy.memory.len());
        if self.waits && waiting > WAITING_BYTES_MAX && self.decided < self.seen {
            // It cannot be known in time whether these frames are late or follow a step.
            let stamps = frames[self.decided..].iter().map(|meta| meta.time_ns);
            self.misplaced = self.sequence.misplaced(stamps);
        }
        self.copy = copy;
        if !self.waits || waiting > WAITING_BYTES_MAX {
            self.decided = self.seen;
            self.first_behind = self.seen;
        }
    }

    /// No frame follows: the waiting frames are late.
    pub(super) fn give_up(&mut self) {
        let late = self.sequence.give_up();
        self.late.extend(late.map(|late| (0, late)));
        self.decided = self.seen;
    }

    /// Copies the frames from `cursor` on, unless they are in the copy already, and adds the next
    /// burst to the copy. Returns the new value of `cursor`, and the result of the fetch.
    pub(super) fn extend(
        &mut self,
        queue: &mut dyn Queue,
        cursor: usize,
    ) -> (usize, Result<QueueStatus, SourceError>) {
        let copied = self.copy.as_ref().map_or(0, |copy| copy.frames.len());
        // Frames are dropped from the copy only when at least half of it is processed, so that
        // frames are not copied again and again.
        let gone = if 2 * cursor < copied { 0 } else { cursor };
        if gone > 0 || self.copy.is_none() {
            let mut copy = FrameCopy::default();
            copy.add(self.burst(queue), gone);
            self.copy = Some(copy);
            self.seen -= gone;
            self.decided -= gone;
            self.first_behind = self.first_behind.saturating_sub(gone);
            self.late.iter_mut().for_each(|(index, _)| *index -= gone);
            for step in &mut self.steps {
                (step.index, step.first) = (step.index - gone, step.first - gone);
            }
        }
        let status = queue.next(SOURCE_WAIT);
        if let (Ok(QueueStatus::Frames), Some(copy)) = (&status, &mut self.copy) {
            copy.add(queue.burst(), 0);
        }
        (cursor - gone, status)
    }

    /// Live: the packets of a believed step that are not reported yet, or else the packets that may
    /// follow a step.
    pub(super) fn undecided(&self) -> Option<Misplaced> {
        let unreported = self.steps.front().and_then(|step| step.misplaced);
        unreported.or_else(|| self.sequence.behind())
    }

    /// Takes the step at `cursor`.
    pub(super) fn step_at(&mut self, cursor: usize) -> Option<FrameStep> {
        self.steps.pop_front_if(|step| step.index <= cursor)
    }

    /// Takes the packets that the frame at `cursor` reveals as late. Call this until it returns
    /// `None`. Live, this also takes the packets that later frames of the burst reveal.
    pub(super) fn late_at(&mut self, cursor: usize) -> Option<Misplaced> {
        let is_due = |(index, _): &mut (usize, Misplaced)| !self.waits || *index <= cursor;
        let late = self.late.pop_front_if(is_due);
        late.map(|(_, late)| late)
    }

    /// The step that was taken is not followed, nor are the later steps, which are returned.
    pub(super) fn refuse(&mut self, offset_ns: i64) -> VecDeque<FrameStep> {
        self.sequence.refuse(offset_ns);
        std::mem::take(&mut self.steps)
    }

    /// The end of the frames with one offset. From files, only the first of these frames may reveal
    /// late packets.
    pub(super) fn end(&self) -> usize {
        let step = self.steps.front().map_or(usize::MAX, |step| step.index);
        let late = self.late.front().map_or(usize::MAX, |late| late.0);
        self.decided.min(step).min(late)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retroscope_capture::{Direction, InterfaceInfo, SourceEvent, SourceStatistics};

    use super::*;

    const S: i64 = 1_000_000_000;
    const HOUR: i64 = 3600 * S;

    #[derive(Debug)]
    struct Bursts {
        stamps: VecDeque<i64>,
        frames: Vec<FrameMeta>,
        memory: Vec<u8>,
    }

    impl Queue for Bursts {
        fn interfaces(&self) -> &[InterfaceInfo] {
            &[]
        }

        fn next(&mut self, _wait: Duration) -> Result<QueueStatus, SourceError> {
            let count = self.stamps.len().min(10);
            let meta = |time_ns| FrameMeta {
                time_ns,
                offset: 0,
                captured_len: 1000,
                wire_len: 1000,
                interface: 0,
                direction: Direction::Unknown,
                vlan: None,
            };
            self.frames = self.stamps.drain(..count).map(meta).collect();
            Ok(match count {
                0 => QueueStatus::End,
                _ => QueueStatus::Frames,
            })
        }

        fn burst(&self) -> Burst<'_> {
            Burst {
                memory: &self.memory,
                frames: &self.frames,
            }
        }

        fn watermark(&self) -> Option<i64> {
            None
        }

        fn event(&mut self) -> Option<SourceEvent> {
            None
        }

        fn statistics(&mut self) -> SourceStatistics {
            SourceStatistics::default()
        }

        fn stop(&mut self) {}
    }

    /// The ring times of all packets as they are stored, and the misplaced packets.
    fn stored(stamps: &[i64], hold_ns: i64) -> (Vec<i64>, Vec<Misplaced>) {
        let mut queue = Bursts {
            stamps: stamps.iter().copied().collect(),
            frames: Vec::new(),
            memory: vec![7; 1000],
        };
        let mut ahead = StepLookahead::new(hold_ns, true);
        let (mut times, mut misplaced, mut cursor, mut offset_ns) = (Vec::new(), Vec::new(), 0, 0);
        let mut is_at_end = false;
        loop {
            ahead.decide(&queue);
            misplaced.extend(ahead.misplaced.take());
            while ahead.late_at(cursor).is_some() {}
            if let Some(step) = ahead.step_at(cursor) {
                assert_eq!(step.index, cursor);
                misplaced.extend(step.misplaced);
                offset_ns = step.offset_ns;
            }
            let frames = ahead.burst(&queue).frames;
            let waits = cursor < frames.len();
            times.extend(
                frames[cursor..ahead.end()]
                    .iter()
                    .map(|meta| meta.time_ns - offset_ns),
            );
            if cursor < ahead.end() {
                cursor = ahead.end();
            } else if is_at_end && waits {
                ahead.give_up();
            } else if is_at_end {
                return (times, misplaced);
            } else if waits {
                let (now, status) = ahead.extend(&mut queue, cursor);
                (cursor, is_at_end) = (now, status.unwrap() == QueueStatus::End);
            } else {
                ahead.fetched();
                cursor = 0;
                is_at_end = queue.next(Duration::ZERO).unwrap() == QueueStatus::End;
            }
        }
    }

    #[test]
    fn what_waits_is_stored_behind_its_step() {
        for (packets, step) in [(200, 100), (205, 104), (130, 65), (1000, 999)] {
            let stamp = |n| START + n * S / 30 - if n < step { 0 } else { HOUR };
            let stamps: Vec<i64> = (0..packets).map(stamp).collect();
            let (times, misplaced) = stored(&stamps, S / 10);
            let is_told = packets - step >= 64;
            let ring = |n| match (n < step, is_told) {
                (true, _) => stamp(n),
                (false, true) => stamp(n) + HOUR - S / 30,
                (false, false) => stamp(n),
            };
            assert_eq!(
                times,
                (0..packets).map(ring).collect::<Vec<_>>(),
                "{packets}"
            );
            assert_eq!(misplaced, []);
        }
    }

    #[test]
    fn what_is_too_much_to_wait_is_told() {
        // 64 KiB are 65 packets; believing the step takes 300 packets.
        let stamp = |n: i64| START + n * S / 30 - if n < 100 { 0 } else { HOUR };
        let stamps: Vec<i64> = (0..1000).map(stamp).collect();
        let (times, misplaced) = stored(&stamps, 10 * S);
        assert_eq!(times.len(), 1000);
        let at_wrong_place = times.iter().filter(|ns| **ns < START).count();
        assert!((200..310).contains(&at_wrong_place), "{at_wrong_place}");
        let told: u64 = misplaced.iter().map(|run| run.packets).sum();
        assert_eq!(told, at_wrong_place as u64, "{misplaced:?}");
        assert!(misplaced.len() > 1, "{misplaced:?}");
        let mut n = 100;
        for run in &misplaced {
            let right_ns = stamp(n) + HOUR - S / 30;
            assert!((right_ns - run.right_ns).abs() <= 1, "{n}: {run:?}");
            assert_eq!(run.stored_ns, stamp(n));
            n += i64::try_from(run.packets).unwrap();
            assert_eq!(run.length_ns, stamp(n - 1) - run.stored_ns);
        }
    }

    #[test]
    fn a_live_burst_in_disorder_stays_whole() {
        let mut queue = Bursts {
            stamps: (0..100).map(|n| START + n - n % 2 * HOUR).collect(),
            frames: Vec::new(),
            memory: vec![7; 1000],
        };
        let mut ahead = StepLookahead::new(S, false);
        let (mut parts, mut late) = (0, 0);
        while queue.next(Duration::ZERO).unwrap() == QueueStatus::Frames {
            ahead.fetched();
            ahead.decide(&queue);
            let mut cursor = 0;
            while cursor < ahead.seen {
                late += std::iter::from_fn(|| ahead.late_at(cursor)).count();
                cursor = ahead.end();
                parts += 1;
            }
        }
        assert_eq!((parts, late), (10, 49));
    }

    const START: i64 = 1_700_000_000 * S;
}
