//! The frames themselves: a pure function of the configuration.
//!
//! Making a frame is copying the 42 header bytes of its flow, writing 16 payload bytes and finishing the UDP checksum,
//! whose constant part was summed up beforehand; the filler behind them lies in the caller's buffer already.

use std::{collections::HashSet, fmt, net::Ipv4Addr};

use super::config::{GeneratorConfig, Rate};
use crate::SourceError;

/// UDP destination port of the trigger packet, outside the range of the background flows.
pub const TRIGGER_PORT: u16 = 60_000;

/// The first payload bytes of the trigger packet; its sequence number follows.
pub const TRIGGER_TEXT: [u8; 8] = *b"EXAMPLE\n";

/// Ports of background flows.
const PORTS: std::ops::RangeInclusive<u16> = 1_000..=10_000;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Headers of a frame.
const HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// Payload bytes that are written for each frame: sequence number and filler, or trigger text and sequence number.
const MARK_BYTES: usize = 16;
/// Where the UDP checksum stands.
const UDP_CHECKSUM_OFFSET: usize = HEADER_BYTES - 2;

/// Addresses and ports of a flow, in the direction in which it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowAddresses {
    /// Sender, within 10.0.0.0/16.
    pub source: Ipv4Addr,
    /// Receiver, within 10.0.0.0/16, not the sender.
    pub destination: Ipv4Addr,
    /// Sender's UDP port, 1000 to 10000.
    pub source_port: u16,
    /// Receiver's UDP port: 1000 to 10000, or [`TRIGGER_PORT`].
    pub destination_port: u16,
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
    trigger_flow: FlowAddresses,
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
            trigger_flow,
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
        self.write_next(&mut frame);
        self.frame = frame;
        Some((offset_ns, &self.frame))
    }

    /// The flow of the trigger packet, whether or not one is sent: a background flow but for the destination port.
    #[must_use]
    pub fn trigger_flow(&self) -> FlowAddresses {
        self.trigger_flow
    }

    /// Time of the next frame in ns after the start; `None` at the end.
    pub(crate) fn next_offset_ns(&self) -> Option<i64> {
        (self.schedule.slot < self.schedule.end).then_some(self.schedule.offset_ns)
    }

    /// A frame with filler only: what `write_next` and `write` take to write on.
    pub(crate) fn blank_frame(&self) -> &[u8] {
        &self.frame
    }

    /// Writes the next frame of the schedule over a blank or earlier frame and advances.
    pub(crate) fn write_next(&mut self, frame: &mut [u8]) {
        let is_trigger = self.trigger_slot == Some(self.schedule.slot);
        self.write(frame, is_trigger);
    }

    /// Writes the next frame, made the trigger or not by the caller's clock, and advances.
    pub(crate) fn write(&mut self, frame: &mut [u8], is_trigger: bool) {
        let sequence = self.schedule.slot.to_be_bytes();
        self.schedule.advance();
        if is_trigger {
            self.trigger.write(frame, TRIGGER_TEXT, sequence);
            return;
        }
        self.flows[self.next_flow].write(frame, sequence, self.filler);
        self.next_flow += 1;
        if self.next_flow == self.flows.len() {
            self.next_flow = 0;
        }
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

/// Slots of one share in steps of the whole schedule, each with its time. Slot `n` of the run is due at
/// `floor(n * interval)`; whole and fraction are carried on by addition, which is exact.
#[derive(Debug)]
struct Schedule {
    /// The next slot: also the sequence number.
    slot: u64,
    /// Slots from one frame of this share to its next.
    stride: u64,
    /// The first slot that is not made.
    end: u64,
    /// `floor(slot * interval)`, ns.
    offset_ns: i64,
    /// The fraction of it, in `1 / denominator` ns: `< denominator`.
    fraction: u64,
    step_ns: i64,
    step_fraction: u64,
    denominator: u64,
}

impl Schedule {
    fn new(config: &GeneratorConfig, queue: usize, queues: usize) -> Self {
        let (numerator, denominator) = rate(config).interval_ns(config.size);
        let split = |slots: usize| {
            let product = slots as u128 * u128::from(numerator);
            let whole = i64::try_from(product / u128::from(denominator)).unwrap_or(i64::MAX);
            (
                whole,
                u64::try_from(product % u128::from(denominator)).unwrap_or(0),
            )
        };
        let (offset_ns, fraction) = split(queue);
        let (step_ns, step_fraction) = split(queues);
        Self {
            slot: queue as u64,
            stride: queues as u64,
            end: config.duration.map_or(u64::MAX, |duration| {
                first_slot_at(config, duration.as_nanos())
            }),
            offset_ns,
            fraction,
            step_ns,
            step_fraction,
            denominator,
        }
    }

    fn advance(&mut self) {
        self.slot = self.slot.saturating_add(self.stride);
        self.offset_ns = self.offset_ns.saturating_add(self.step_ns);
        self.fraction += self.step_fraction;
        if self.fraction >= self.denominator {
            self.fraction -= self.denominator;
            self.offset_ns = self.offset_ns.saturating_add(1);
        }
    }
}

/// The rate of the schedule, also where none was given.
fn rate(config: &GeneratorConfig) -> Rate {
    config.rate.unwrap_or(Rate::FOR_FILES)
}

/// The first slot that is due at `time_ns` after the start or later.
fn first_slot_at(config: &GeneratorConfig, time_ns: u128) -> u64 {
    let (numerator, denominator) = rate(config).interval_ns(config.size);
    let slot = time_ns
        .saturating_mul(u128::from(denominator))
        .div_ceil(u128::from(numerator));
    u64::try_from(slot).unwrap_or(u64::MAX)
}

/// The headers of a flow and the constant part of its UDP checksum.
#[derive(Debug)]
struct Template {
    header: [u8; HEADER_BYTES],
    /// Sum of the 16-bit words of pseudo-header, UDP header and filler; below 2^31, so that a mark still fits.
    sum: u32,
}

impl Template {
    /// Headers for frames as long as `blank`, whose filler counts from the mark on.
    fn new(flow: FlowAddresses, blank: &[u8]) -> Self {
        let mut header = [0; HEADER_BYTES];
        // At most 9000: the size was checked.
        let ip_bytes = u16::try_from(blank.len() - ETHERNET_BYTES).unwrap_or(u16::MAX);
        let udp_length = ip_bytes - 20;
        header[..6].copy_from_slice(&hardware_address(flow.destination));
        header[6..12].copy_from_slice(&hardware_address(flow.source));
        header[12..14].copy_from_slice(&[0x08, 0x00]);
        let ip = &mut header[ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&ip_bytes.to_be_bytes());
        // Don't fragment: an identification of 0 is then allowed (RFC 6864, section 4.1).
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&flow.source.octets());
        ip[16..20].copy_from_slice(&flow.destination.octets());
        let ip_checksum = checksum(sum_words(ip));
        ip[10..12].copy_from_slice(&ip_checksum.to_be_bytes());
        let udp = &mut header[ETHERNET_BYTES + IPV4_BYTES..];
        udp[0..2].copy_from_slice(&flow.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        let sum = sum_words(&flow.source.octets())
            + sum_words(&flow.destination.octets())
            + 17
            + u32::from(udp_length)
            + sum_words(udp)
            + sum_words(&blank[HEADER_BYTES + MARK_BYTES..]);
        Self { header, sum }
    }

    /// Writes headers and mark; the filler of `frame` is in place.
    fn write(&self, frame: &mut [u8], first: [u8; 8], second: [u8; 8]) {
        frame[..HEADER_BYTES].copy_from_slice(&self.header);
        frame[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&first);
        frame[HEADER_BYTES + 8..HEADER_BYTES + MARK_BYTES].copy_from_slice(&second);
        let checksum = match checksum(self.sum + sum_words(&first) + sum_words(&second)) {
            // Zero would mean "no checksum" (RFC 768).
            0 => 0xffff,
            sum => sum,
        };
        frame[UDP_CHECKSUM_OFFSET..HEADER_BYTES].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Sum of big-endian 16-bit words, an odd last byte padded with zero (RFC 1071).
fn sum_words(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    sum + rest.first().map_or(0, |byte| u32::from(*byte) << 8)
}

/// The Internet checksum of a sum of words: folded to 16 bits and complemented.
fn checksum(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "two folds of 32 bits leave at most 16"
    )]
    let folded = folded as u16;
    !folded
}

/// A locally administered hardware address that tells the IP address.
fn hardware_address(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x00, a, b, c, d]
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

    use super::*;

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
        let flow = Generator::new(&config(text)).unwrap().trigger_flow();
        assert_eq!(flow.source.octets(), trigger[26..30]);
        assert_eq!(flow.destination_port, TRIGGER_PORT);
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
    fn the_schedule_is_exact() {
        for (rate, size) in [
            ("3pps", 64_u128),
            ("700kpps", 64),
            ("1Gbit", 1514),
            ("7bit", 61),
        ] {
            let config = config(&format!("generate:size={size},rate={rate},count=3000"));
            let (numerator, denominator) = config.rate.unwrap().interval_ns(config.size);
            let mut generator = Generator::new(&config).unwrap();
            for slot in 0..3000_u128 {
                let expected = slot * u128::from(numerator) / u128::from(denominator);
                assert_eq!(
                    generator.next_frame().unwrap().0 as u128,
                    expected,
                    "{rate}, slot {slot}"
                );
            }
        }
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
