//! The generated frames: a pure function of the configuration.
//!
//! The seed determines the flows. A frame consists of its flow's template, filler, and the sequence
//! number from the schedule.
//!
//! The generator lays the frames out once and then overwrites them in place. If all flows fit,
//! every flow has one or more frames, and the next frame needs only its sequence number and
//! checksum. Otherwise all flows share at most 512 frames, and the generator copies a flow's
//! headers into the frame. In both cases the background frames take at most 256 KiB, which fits the
//! L2 cache of many processors.

use std::{fmt, ops::Range};

use super::{
    config::GeneratorConfig,
    flows::{FlowAddresses, SplitMix64, flows},
    schedule::Schedule,
    template::{FrameTemplate, HEADER_BYTES, NUMBER_BYTES, write_number, write_number_after_text},
};
use retroscope_capture::{Burst, FrameMeta, SourceError};

/// UDP destination port of the trigger packet, outside the range of the background flows.
pub const TRIGGER_PORT: u16 = 60_000;

/// The first payload bytes of the trigger packet; its sequence number follows.
pub const TRIGGER_TEXT: [u8; 8] = *b"EXAMPLE\n";

/// Maximum number of frames in a burst.
const BURST_FRAMES: usize = 512;
/// Maximum number of bytes of memory for background frames. The largest frame fits, and the
/// trigger's frame has additional memory.
const MEMORY_BYTES: usize = 256 * 1024;

/// Makes the frames of a configuration, one after the other, each with its time on the schedule.
///
/// ```
/// use retroscope_generate::{Generator, GeneratorConfig};
///
/// let config: GeneratorConfig = "generate:rate=1kpps,count=2".parse()?;
/// let mut generator = Generator::new(&config)?;
/// let mut next = || generator.next_frame().map(|(offset_ns, frame)| (offset_ns, frame.len()));
/// assert_eq!(next(), Some((0, 64)));
/// assert_eq!(next(), Some((1_000_000, 64)));
/// assert_eq!(next(), None);
/// # Ok::<(), retroscope_capture::SourceError>(())
/// ```
pub struct Generator {
    /// The flows of this share. Frames take the flows in turn.
    flows: Vec<FrameTemplate>,
    trigger: FrameTemplate,
    pub(super) schedule: Schedule,
    /// The slot of the trigger, if the schedule has a trigger.
    trigger_slot: Option<u64>,
    /// Frames at distances of `place_bytes`: frames of background flows, then the trigger's frame.
    memory: Vec<u8>,
    place_bytes: usize,
    frame_bytes: usize,
    /// One descriptor per place, with the time stamp of the frame made there last.
    frames: Vec<FrameMeta>,
    /// If every place belongs to a flow, the constant parts of the checksums by place; place `n`
    /// belongs to flow `n` modulo the number of flows. Empty if the flows share the places.
    sums: Vec<u32>,
    /// The flow of the next frame if the flows share the places: `< flows.len()`.
    next_flow: usize,
    /// The place of the next background frame: `<= trigger_place()`.
    next: usize,
    /// The places that are lent.
    lent: Range<usize>,
}

impl Generator {
    /// A generator of all frames.
    ///
    /// # Errors
    /// [`SourceError::Usage`] as [`GeneratorConfig::check`].
    pub fn new(config: &GeneratorConfig) -> Result<Self, SourceError> {
        config.check()?;
        Ok(Self::share(config, &flows(config), 0, 1))
    }

    /// Generators with disjoint shares of the flows and of the schedule's slots. Their number is
    /// the smallest of `queues`, the number of flows and 1024, but at least 1. If this number
    /// divides the number of flows, together they make the same frames as one generator up to the
    /// trigger.
    ///
    /// # Errors
    /// [`SourceError::Usage`] as [`GeneratorConfig::check`].
    pub fn split(config: &GeneratorConfig, queues: usize) -> Result<Vec<Self>, SourceError> {
        config.check()?;
        let flows = flows(config);
        let queues = queues.clamp(1, flows.len().min(1024));
        Ok((0..queues)
            .map(|queue| Self::share(config, &flows, queue, queues))
            .collect())
    }

    fn share(config: &GeneratorConfig, all: &[FlowAddresses], queue: usize, queues: usize) -> Self {
        let mut random = SplitMix64(config.seed ^ 0x66_69_6c_6c_65_72);
        let frame_bytes = usize::from(config.size);
        let mut blank = vec![0; frame_bytes];
        for byte in &mut blank[HEADER_BYTES..] {
            // Letters: a readable payload in a hex dump.
            *byte = b'a' + random.below(26);
        }
        // The offset of a background frame's number. In the trigger frame the text is at this
        // offset, and the number follows.
        let (number, second) = (HEADER_BYTES, HEADER_BYTES + NUMBER_BYTES);
        let mut trigger_blank = blank.clone();
        trigger_blank[number..second].copy_from_slice(&TRIGGER_TEXT);
        trigger_blank[second..second + NUMBER_BYTES].fill(0);
        blank[number..second].fill(0);
        let trigger_flow = FlowAddresses {
            destination_port: TRIGGER_PORT,
            ..all[0]
        };
        let trigger = FrameTemplate::new(trigger_flow, &trigger_blank);
        let of_share = all.iter().skip(queue).step_by(queues);
        let flows: Vec<_> = of_share
            .map(|flow| FrameTemplate::new(*flow, &blank))
            .collect();

        let place_bytes = frame_bytes.next_multiple_of(64);
        let fitting = (MEMORY_BYTES / place_bytes).max(1);
        let most = fitting.min(BURST_FRAMES);
        let is_by_flow = flows.len() <= fitting;
        let places = if is_by_flow {
            flows.len() * (most / flows.len()).max(1)
        } else {
            most
        };
        let mut memory = vec![0; (places + 1) * place_bytes];
        let mut lay_out = |place: usize, blank: &[u8], header: &[u8]| {
            let frame = &mut memory[place * place_bytes..][..frame_bytes];
            frame.copy_from_slice(blank);
            frame[..HEADER_BYTES].copy_from_slice(header);
        };
        for place in 0..places {
            lay_out(place, &blank, &flows[place % flows.len()].header);
        }
        lay_out(places, &trigger_blank, &trigger.header);
        let captured_len = u32::from(config.size);
        let meta = |place: usize| FrameMeta {
            offset: place * place_bytes,
            captured_len,
            wire_len: captured_len,
            ..FrameMeta::default()
        };
        let own = if is_by_flow { places } else { 0 };
        Self {
            trigger,
            schedule: Schedule::new(config, queue, queues),
            trigger_slot: config
                .trigger_after
                .map(|after| config.interval().first_slot_at(after.as_nanos())),
            memory,
            place_bytes,
            frame_bytes,
            frames: (0..=places).map(meta).collect(),
            sums: (0..own)
                .map(|place| flows[place % flows.len()].sum)
                .collect(),
            next_flow: 0,
            next: 0,
            lent: 0..0,
            flows,
        }
    }

    /// Makes the next frame of the schedule. Returns its time in ns after the start, and its bytes;
    /// `None` at the end.
    pub fn next_frame(&mut self) -> Option<(i64, &[u8])> {
        let offset_ns = self.schedule.offset_ns()?;
        self.take_back();
        if self.is_trigger_next() {
            self.push_trigger(offset_ns);
            return Some((offset_ns, self.burst().frame(0).data));
        }
        // This is `push` of one frame, without the loops of `push`.
        let place = self.next;
        let frame = &mut self.memory[place * self.place_bytes..][..self.frame_bytes];
        let sum = match self.sums.get(place) {
            Some(sum) => *sum,
            None => {
                let flow = &self.flows[self.next_flow];
                frame[..HEADER_BYTES].copy_from_slice(&flow.header);
                self.next_flow = following_flow(self.next_flow, self.flows.len());
                flow.sum
            }
        };
        write_number(frame, sum, self.schedule.slot);
        self.frames[place].time_ns = offset_ns;
        self.schedule.step();
        self.next = place + 1;
        self.lent.end = self.next;
        Some((offset_ns, frame))
    }

    /// Whether the next frame of the schedule is the trigger.
    pub(super) fn is_trigger_next(&self) -> bool {
        self.trigger_slot == Some(self.schedule.slot)
    }

    fn trigger_place(&self) -> usize {
        self.frames.len() - 1
    }

    /// Takes back the lent frames, to lend another burst.
    pub(super) fn take_back(&mut self) {
        if self.next == self.trigger_place() || self.sums.is_empty() {
            self.next = 0;
        }
        self.lent = self.next..self.next;
    }

    /// The frames that are lent now.
    pub(super) fn burst(&self) -> Burst<'_> {
        Burst {
            memory: &self.memory,
            frames: &self.frames[self.lent.clone()],
        }
    }

    /// Makes and lends up to `count` more background frames with one time stamp. Returns the number
    /// of frames that it made, which is smaller than `count` if the burst has too little room.
    /// After the trigger a burst has no room.
    pub(super) fn push(&mut self, count: usize, time_ns: i64) -> usize {
        let room = match self.lent.end > self.trigger_place() {
            true => 0,
            false => (self.trigger_place() - self.next).min(BURST_FRAMES - self.lent.len()),
        };
        let count = count.min(room);
        let places = self.next..self.next + count;
        let bytes = places.start * self.place_bytes..places.end * self.place_bytes;
        let memory = self.memory[bytes].chunks_exact_mut(self.place_bytes);
        let memory = memory.map(|place| &mut place[..self.frame_bytes]);
        let mut number = self.schedule.slot;
        let stride = self.schedule.stride;
        if self.sums.is_empty() {
            for frame in memory {
                let flow = &self.flows[self.next_flow];
                frame[..HEADER_BYTES].copy_from_slice(&flow.header);
                write_number(frame, flow.sum, number);
                number = number.saturating_add(stride);
                self.next_flow = following_flow(self.next_flow, self.flows.len());
            }
        } else {
            for (frame, sum) in memory.zip(&self.sums[places.clone()]) {
                write_number(frame, *sum, number);
                number = number.saturating_add(stride);
            }
        }
        for meta in &mut self.frames[places.clone()] {
            meta.time_ns = time_ns;
        }
        self.schedule.advance(count);
        self.next = places.end;
        if count > 0 {
            self.lent.end = places.end;
        }
        count
    }

    /// Makes the trigger with the number of the next frame, and lends it alone. The flows' turns do
    /// not change.
    pub(super) fn push_trigger(&mut self, time_ns: i64) {
        let place = self.trigger_place();
        let frame = &mut self.memory[place * self.place_bytes..][..self.frame_bytes];
        write_number_after_text(frame, self.trigger.sum, self.schedule.slot);
        self.frames[place].time_ns = time_ns;
        self.schedule.step();
        self.lent = place..place + 1;
    }
}

/// The flow after `flow` among `flows` flows, without a division.
#[inline]
fn following_flow(flow: usize, flows: usize) -> usize {
    if flow + 1 == flows { 0 } else { flow + 1 }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("flows", &self.flows.len())
            .field("size", &self.frame_bytes)
            .field("schedule", &self.schedule)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            flows::PORTS,
            template::{checksum, sum_words},
        },
        *,
    };

    /// Start of the payload after the trigger's text and number.
    const MARK_END: usize = HEADER_BYTES + 2 * NUMBER_BYTES;

    fn config(text: &str) -> GeneratorConfig {
        text.parse().unwrap()
    }

    fn all(text: &str) -> Vec<(i64, Vec<u8>)> {
        let mut generator = Generator::new(&config(text)).unwrap();
        let mut frames = Vec::new();
        while let Some((offset_ns, frame)) = generator.next_frame() {
            frames.push((offset_ns, frame.to_vec()));
        }
        frames
    }

    fn destination_port(frame: &[u8]) -> u16 {
        u16::from_be_bytes([frame[36], frame[37]])
    }

    fn sequence(frame: &[u8]) -> u64 {
        let start = if destination_port(frame) == TRIGGER_PORT {
            HEADER_BYTES + 8
        } else {
            HEADER_BYTES
        };
        u64::from_be_bytes(frame[start..start + 8].try_into().unwrap())
    }

    /// Checks a frame from its bytes alone, without the generator's shortcuts.
    fn assert_valid(frame: &[u8], size: usize) {
        assert_eq!(frame.len(), size);
        assert_eq!(frame[12..14], [8, 0]);
        assert_eq!(
            usize::from(u16::from_be_bytes([frame[16], frame[17]])),
            size - 14
        );
        assert_eq!(checksum(sum_words(&frame[14..34])), 0, "IPv4 checksum");
        let mut pseudo = frame[26..34].to_vec();
        pseudo.extend([0, 17, frame[38], frame[39]]);
        pseudo.extend(&frame[34..]);
        assert_ne!(frame[40..42], [0, 0]);
        assert_eq!(checksum(sum_words(&pseudo)), 0, "UDP checksum");
        assert_eq!(frame[26..28], [10, 0]);
        assert_eq!(frame[30..32], [10, 0]);
        assert_ne!(frame[26..30], frame[30..34]);
        assert!(PORTS.contains(&u16::from_be_bytes([frame[34], frame[35]])));
    }

    #[test]
    fn frames_are_valid_at_every_size() {
        for size in [60, 61, 64, 65, 128, 1514, 9014] {
            let frames = all(&format!(
                "generate:flows=50,size={size},rate=1kpps,count=200,trigger-after=50ms,seed=3"
            ));
            assert_eq!(frames.len(), 200);
            for (index, (_, frame)) in frames.iter().enumerate() {
                assert_valid(frame, size);
                assert_eq!(sequence(frame), index as u64);
            }
        }
    }

    #[test]
    fn one_trigger_from_the_first_flow() {
        let text = "generate:flows=10,rate=1kpps,count=100,trigger-after=9500us";
        let frames = all(text);
        let triggers: Vec<_> = frames
            .iter()
            .filter(|(_, frame)| destination_port(frame) == TRIGGER_PORT)
            .collect();
        let [(offset_ns, trigger)] = triggers[..] else {
            panic!("{} triggers", triggers.len())
        };
        assert_eq!(*offset_ns, 10_000_000, "the first slot at or after 9.5 ms");
        assert!(trigger[HEADER_BYTES..].starts_with(&TRIGGER_TEXT));
        assert_eq!(
            trigger[..36],
            frames[0].1[..36],
            "same addresses and source port as the first flow"
        );
        assert_eq!(trigger[MARK_END..], frames[0].1[MARK_END..]);
        assert!(
            frames
                .iter()
                .filter(|(_, frame)| frame[26..38] == frames[0].1[26..38])
                .count()
                == 10
        );
    }

    #[test]
    fn flows_are_distinct_and_equally_busy() {
        let mut packets = std::collections::HashMap::new();
        for (_, frame) in all("generate:flows=5000,rate=1Mpps,count=10000") {
            let (source, destination) = (
                (frame[26..30].to_vec(), frame[34..36].to_vec()),
                (frame[30..34].to_vec(), frame[36..38].to_vec()),
            );
            *packets
                .entry((
                    source.clone().min(destination.clone()),
                    source.max(destination),
                ))
                .or_insert(0) += 1;
        }
        assert_eq!(packets.len(), 5000);
        assert!(packets.values().all(|count| *count == 2));
    }

    #[test]
    fn the_seed_decides_every_byte() {
        let text = "generate:flows=100,rate=1Mpps,count=1000,trigger-after=500us";
        assert_eq!(
            all(&format!("{text},seed=1")),
            all(&format!("{text},seed=1"))
        );
        assert_ne!(
            all(&format!("{text},seed=1"))[0],
            all(&format!("{text},seed=2"))[0]
        );
    }

    #[test]
    fn the_duration_ends_before_its_last_instant() {
        assert_eq!(all("generate:rate=1kpps,duration=10ms").len(), 10);
        assert_eq!(all("generate:rate=3kpps,duration=1ms").len(), 3);
        assert_eq!(all("generate:rate=1kpps,duration=10ms,count=4").len(), 4);
        assert_eq!(all("generate:count=0").len(), 0);
    }

    #[test]
    fn shares_are_disjoint_and_make_the_same_stream() {
        let config = config("generate:flows=12,rate=1Mpps,count=1000,trigger-after=333us");
        let mut frames = Vec::new();
        for mut share in Generator::split(&config, 4).unwrap() {
            while let Some((offset_ns, frame)) = share.next_frame() {
                frames.push((offset_ns, frame.to_vec()));
            }
        }
        frames.sort_by_key(|(_, frame)| sequence(frame));
        let mut expected = all("generate:flows=12,rate=1Mpps,count=1000,trigger-after=333us");
        // The trigger takes a slot from one share, so the later frames of this share use their
        // flows one slot later.
        expected.truncate(333);
        assert_eq!(frames.len(), 1000);
        assert_eq!(frames[..333], expected);
        assert_eq!(
            frames
                .iter()
                .filter(|(_, frame)| destination_port(frame) == TRIGGER_PORT)
                .count(),
            1
        );
        assert_eq!(
            Generator::split(&config, 100).unwrap().len(),
            12,
            "no share without a flow"
        );
    }

    /// The trigger's slot among 5000 frames.
    const TRIGGER_SLOT: usize = 2000;

    /// Lends bursts of varying size and compares every frame with the frame that `next_frame`
    /// makes.
    fn check(text: &str, is_by_flow: bool) {
        let config = text.parse().unwrap();
        let mut reference = Generator::new(&config).unwrap();
        let mut generator = Generator::new(&config).unwrap();
        assert_eq!(!generator.sums.is_empty(), is_by_flow, "{text}");
        for round in 0.. {
            generator.take_back();
            assert!(generator.burst().frames.is_empty());
            if generator.schedule.left() == 0 {
                break;
            }
            if generator.is_trigger_next() {
                generator.push_trigger(round);
                assert_eq!(generator.push(1, round), 0, "a burst of its own");
            } else {
                for wanted in [1, usize::try_from(round).unwrap() % 300, 700] {
                    let made = 5000 - usize::try_from(generator.schedule.left()).unwrap();
                    let next_stop = if made <= TRIGGER_SLOT {
                        TRIGGER_SLOT
                    } else {
                        5000
                    };
                    generator.push(wanted.min(next_stop - made), round);
                }
            }
            let burst = generator.burst();
            assert!((1..=BURST_FRAMES).contains(&burst.frames.len()));
            for frame in burst.iter() {
                let (_, expected) = reference.next_frame().unwrap();
                assert!(frame.data == expected, "{text}, burst {round}");
                assert_eq!(frame.meta.time_ns, round);
            }
        }
        assert!(reference.next_frame().is_none());
    }

    #[test]
    fn bursts_of_any_size_hold_the_same_frames() {
        let common = "count=5000,rate=1Mpps,trigger-after=2ms";
        check(&format!("generate:flows=1,{common}"), true);
        check(&format!("generate:flows=7,{common}"), true);
        check(&format!("generate:flows=1000,{common}"), true);
        check(&format!("generate:flows=3,size=9014,{common}"), true);
        check(&format!("generate:flows=100,size=9014,{common}"), false);
        check(&format!("generate:flows=6000,size=61,{common}"), false);
    }
}
