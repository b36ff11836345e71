//! The frames themselves: a pure function of the configuration.
//!
//! Flows are drawn once from the seed. A frame is then its flow's template written over filler that lies in the caller's
//! buffer already, with the sequence number that the schedule gives.

use std::{collections::HashSet, fmt, net::Ipv4Addr};

use super::{
    config::GeneratorConfig,
    schedule::{Schedule, first_slot_at},
    template::{self, HEADER_BYTES, MARK_BYTES, Template},
};
use crate::SourceError;

/// UDP destination port of the trigger packet, outside the range of the background flows.
pub const TRIGGER_PORT: u16 = 60_000;

/// The first payload bytes of the trigger packet; its sequence number follows.
pub const TRIGGER_TEXT: [u8; 8] = *b"EXAMPLE\n";

/// Ports of background flows.
const PORTS: std::ops::RangeInclusive<u16> = 1_000..=10_000;

/// Addresses and ports of a flow, in the direction in which it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlowAddresses {
    /// Sender, within 10.0.0.0/16.
    pub(super) source: Ipv4Addr,
    /// Receiver, within 10.0.0.0/16, not the sender.
    pub(super) destination: Ipv4Addr,
    /// Sender's UDP port, 1000 to 10000.
    pub(super) source_port: u16,
    /// Receiver's UDP port: 1000 to 10000, or [`TRIGGER_PORT`].
    pub(super) destination_port: u16,
}

/// Makes the frames of a configuration, one after the other, each with its time on the schedule.
///
/// ```
/// use retroscope_capture::generator::{Generator, GeneratorConfig};
///
/// let config: GeneratorConfig = "generate:rate=1kpps,count=2".parse()?;
/// let mut generator = Generator::new(&config)?;
/// assert_eq!(generator.next_frame().map(|(offset_ns, frame)| (offset_ns, frame.len())), Some((0, 64)));
/// assert_eq!(generator.next_frame().map(|(offset_ns, _)| offset_ns), Some(1_000_000));
/// assert!(generator.next_frame().is_none());
/// # Ok::<(), retroscope_capture::SourceError>(())
/// ```
pub struct Generator {
    /// The flows of this share; frames go through them in turn.
    flows: Vec<Template>,
    /// The flow of the next frame: `< flows.len()`.
    next_flow: usize,
    trigger: Template,
    /// Filler between sequence number and the end of the mark.
    filler: [u8; 8],
    /// A whole frame, for `next_frame`.
    frame: Vec<u8>,
    schedule: Schedule,
    /// The slot of the trigger, if the schedule has one.
    trigger_slot: Option<u64>,
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

    /// Generators with disjoint shares of flows and slots of the schedule, at most `queues` and at most one a flow. Where
    /// their number divides that of the flows, together they make the frames that one generator makes.
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
        let mut frame = vec![0; usize::from(config.size)];
        for byte in &mut frame[HEADER_BYTES..] {
            // Letters and digits: a payload that looks at home in a hex dump.
            *byte = b'a' + random.below(26);
        }
        let mut filler = [0; 8];
        filler.copy_from_slice(&frame[HEADER_BYTES + 8..HEADER_BYTES + MARK_BYTES]);
        let trigger_flow = FlowAddresses {
            destination_port: TRIGGER_PORT,
            ..all[0]
        };
        let mut schedule = Schedule::new(config, queue, queues);
        schedule.end = schedule.end.min(config.count.unwrap_or(u64::MAX));
        Self {
            flows: all
                .iter()
                .skip(queue)
                .step_by(queues)
                .map(|flow| Template::new(*flow, &frame))
                .collect(),
            next_flow: 0,
            trigger: Template::new(trigger_flow, &frame),
            filler,
            frame,
            trigger_slot: config
                .trigger_after
                .map(|after| first_slot_at(config, after.as_nanos())),
            schedule,
        }
    }

    /// Makes the next frame of the schedule: its time in ns after the start, and its bytes. `None` at the end.
    pub fn next_frame(&mut self) -> Option<(i64, &[u8])> {
        let offset_ns = self.next_offset_ns()?;
        let mut frame = std::mem::take(&mut self.frame);
        if self.is_trigger_next() {
            self.write_trigger(&mut frame);
        } else {
            self.write(&mut frame);
        }
        self.frame = frame;
        Some((offset_ns, &self.frame))
    }

    /// Time of the next frame in ns after the start; `None` at the end.
    pub(crate) fn next_offset_ns(&self) -> Option<i64> {
        (self.schedule.slot < self.schedule.end).then_some(self.schedule.offset_ns)
    }

    /// How many flows the frames go through in turn.
    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// A frame with filler only: what the functions below take to write on.
    pub(super) fn blank_frame(&self) -> &[u8] {
        &self.frame
    }

    /// Frames of the schedule that are still to come.
    pub(super) fn left(&self) -> u64 {
        self.schedule.left()
    }

    /// Whether the schedule makes the next frame the trigger.
    pub(super) fn is_trigger_next(&self) -> bool {
        self.trigger_slot == Some(self.schedule.slot)
    }

    /// Writes what all frames of a flow have in common over a blank frame, for [`Numbers::renew`].
    pub(super) fn lay_out(&self, flow: usize, frame: &mut [u8]) {
        self.flows[flow].write(frame, [0; 8], self.filler);
    }

    /// Writes the next frame over a blank one or any other, and advances.
    pub(super) fn write(&mut self, frame: &mut [u8]) {
        let sequence = self.sequence();
        self.flow().write(frame, sequence, self.filler);
        self.advance();
    }

    /// The constant part of the checksum of a flow's background frames, for [`Numbers::renew`].
    pub(super) fn sum(&self, flow: usize) -> u32 {
        self.flows[flow].sum_with_filler()
    }

    /// Advances by `count` background frames and gives their numbers. The caller writes each over an earlier frame of the
    /// flow whose turn it is.
    pub(super) fn take(&mut self, count: usize) -> Numbers {
        let numbers = Numbers {
            next: self.schedule.slot,
            stride: self.schedule.stride(),
        };
        self.schedule.advance_by(count);
        self.next_flow = (self.next_flow + count) % self.flows.len();
        numbers
    }

    /// Writes the trigger with the number of the next frame, and advances. The flows' turns stay as they are.
    pub(super) fn write_trigger(&mut self, frame: &mut [u8]) {
        let sequence = self.sequence();
        self.trigger.write(frame, TRIGGER_TEXT, sequence);
        self.schedule.advance();
    }

    fn sequence(&self) -> [u8; 8] {
        self.schedule.slot.to_be_bytes()
    }

    fn flow(&self) -> &Template {
        &self.flows[self.next_flow]
    }

    fn advance(&mut self) {
        self.schedule.advance();
        self.next_flow += 1;
        if self.next_flow == self.flows.len() {
            self.next_flow = 0;
        }
    }
}

/// The sequence numbers of frames of one share, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    next: u64,
    stride: u64,
}

impl Numbers {
    /// Writes the next frame over an earlier one of the same flow, whose checksum has this constant part.
    #[inline]
    pub(super) fn renew(&mut self, frame: &mut [u8], sum: u32) {
        template::renew(frame, sum, self.next);
        self.next = self.next.saturating_add(self.stride);
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("flows", &self.flows.len())
            .field("size", &self.frame.len())
            .field("schedule", &self.schedule)
            .finish_non_exhaustive()
    }
}

/// The flows of a configuration: distinct in either direction.
fn flows(config: &GeneratorConfig) -> Vec<FlowAddresses> {
    let count = config.flows as usize;
    let mut random = SplitMix64(config.seed);
    let mut seen = HashSet::with_capacity(count);
    let mut flows = Vec::with_capacity(count);
    while flows.len() < count {
        let flow = FlowAddresses {
            source: random.host(),
            destination: random.host(),
            source_port: random.port(),
            destination_port: random.port(),
        };
        let sender = (flow.source, flow.source_port);
        let receiver = (flow.destination, flow.destination_port);
        if flow.source != flow.destination
            && seen.insert((sender.min(receiver), sender.max(receiver)))
        {
            flows.push(flow);
        }
    }
    flows
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014): small, and fixed for
/// ever, so that a seed means the same bytes in every version.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`: the high bits of a product, biased by less than 2^-16.
    fn below<T>(&mut self, limit: T) -> T
    where
        u64: From<T>,
        T: TryFrom<u64> + Copy,
    {
        let wide = (u128::from(self.next()) * u128::from(u64::from(limit))) >> 64;
        // Below `limit`, which is a T.
        u64::try_from(wide)
            .ok()
            .and_then(|value| T::try_from(value).ok())
            .unwrap_or(limit)
    }

    /// 10.0.0.1 to 10.0.255.254.
    fn host(&mut self) -> Ipv4Addr {
        let [c, d] = (1 + self.below(65_534_u16)).to_be_bytes();
        Ipv4Addr::new(10, 0, c, d)
    }

    fn port(&mut self) -> u16 {
        PORTS.start() + self.below(PORTS.end() - PORTS.start() + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{
        super::template::{checksum, sum_words},
        *,
    };

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

    /// Checks a frame the slow way, from its bytes alone.
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
        assert_eq!(
            trigger[HEADER_BYTES + MARK_BYTES..],
            frames[0].1[HEADER_BYTES + MARK_BYTES..]
        );
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
        // The trigger takes a slot from one share, so its later frames use their flows one slot later.
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

    #[test]
    fn it_is_faster_than_the_links_it_is_for() {
        let mut generator = Generator::new(&config("generate:flows=10000,count=2000000")).unwrap();
        let start = Instant::now();
        let mut bytes = 0;
        while let Some((_, frame)) = generator.next_frame() {
            bytes += frame.len();
        }
        let elapsed = start.elapsed();
        println!("{:.1} Mpps", 2.0 / elapsed.as_secs_f64());
        assert_eq!(bytes, 128_000_000);
        // An unoptimised build on a busy machine: only a gross mistake fails.
        assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    }
}
