use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use retroscope_capture::{Direction, InterfaceInfo, TimeDomain};
use retroscope_packet::LinkType;
use retroscope_ring::{GroupKind, Reader, Record, Ring, RingConfig};

use super::*;
use crate::{
    analysis::{
        functions::ScriptFunctions, native::NativeCode, prepared::LinkTypes,
        shard_slots::AnalysisPlacement,
    },
    control::common::RecorderShared,
    intake::{
        Intake,
        placement::{AnalysisResources, HOLD_NS, WAITING_NS_MAX},
    },
    start::{
        analysis_placement::place_shards,
        config::{Analyzers, Config},
        expressions::CheckedExpressions,
        shard_readers,
    },
    tests::rig::{FakeClock, udp},
};

/// The parts that inserters need to run shards with this rule, and the analyzer's reader.
pub(crate) fn inline(
    rule: &str,
    link_type: LinkType,
    common: &Arc<RecorderShared>,
) -> (InlineParts, Reader) {
    let config = Config {
        triggers: vec![rule.to_owned()],
        ..Config::default()
    };
    let (known, native) = ([link_type], Arc::new(NativeCode::new()));
    let link_types = LinkTypes::new(&known, &Vec::new);
    let expressions = CheckedExpressions::new(&config, &link_types, &native).unwrap();
    let reader = common.ring.group(GroupKind::Lapped).unwrap();
    let inserters = common.intake.promises().len();
    let scripts = (0..inserters).map(|_| ScriptFunctions::default()).collect();
    let looks = (expressions.triggers, scripts);
    let templates = &expressions.templates;
    let (slots, _) = place_shards(
        AnalysisPlacement::Inserters,
        looks,
        templates,
        None,
        None,
        common,
    );
    let readers = shard_readers(common, &slots, &reader.waker(), None).unwrap();
    let parts = InlineParts {
        slots,
        readers: SharedReaders::new(readers).unwrap(),
        analyzer: reader.waker(),
        placing: PlacementShared::new(
            Analyzers::Auto,
            AnalysisResources {
                cpus: 2,
                threads: 1,
                inserters: common.intake.promises().len(),
                ring_bytes: common.ring.bytes(),
            },
        ),
    };
    (parts, reader)
}

struct Rig {
    clock: Arc<FakeClock>,
    inline: Inline,
    producer: Producer,
    reader: Reader,
    readers: Arc<SharedReaders>,
    slots: Arc<ShardSlots>,
    is_followed: bool,
    is_behind: bool,
}

impl Rig {
    fn new() -> Self {
        let config = RingConfig {
            releasing_readers: 2,
            ..RingConfig::new(16 << 20, 2, 1)
        };
        let ring = Ring::new(&config, None).unwrap();
        let sources = ["a", "b"].map(|name| (name.to_owned(), 1));
        let intake = Intake::new(sources.into_iter(), Arc::default(), false);
        let clock = Arc::new(FakeClock::default());
        // Each reading of the clock takes `STRIDE_NS`, so the inserter asks the source again after
        // each chunk of packets.
        clock.reading_ns.store(STRIDE_NS, Relaxed);
        let common = RecorderShared::new(ring, Arc::clone(&clock) as _, intake);
        let info = InterfaceInfo {
            name: "a".to_owned(),
            link_type: LinkType::RAW,
            snaplen: 0,
            time_domain: TimeDomain::KernelSoftware,
            time_resolution_ns: 1,
        };
        let interfaces = &common.intake.interfaces;
        interfaces.register(&common.ring, 0, &info).unwrap();
        let (parts, reader) = inline("udp dst port 7", LinkType::RAW, &common);
        let producer = common.ring.producer().unwrap();
        Self {
            readers: Arc::clone(&parts.readers),
            slots: Arc::clone(&parts.slots),
            clock,
            inline: Inline::new(parts, producer.id(), ThreadPulse::default()),
            producer,
            reader,
            is_followed: false,
            is_behind: false,
        }
    }

    fn burst(&mut self, port: impl Fn(usize) -> u16) {
        let mut memory = Vec::new();
        let mut frames = Vec::new();
        for index in 0..100 {
            let data = udp(1, port(index), 0);
            frames.push(FrameMeta {
                time_ns: 5,
                offset: memory.len(),
                captured_len: u32::try_from(data.len()).unwrap(),
                wire_len: 100,
                interface: 0,
                direction: Direction::Inbound,
                vlan: None,
            });
            memory.extend(data);
        }
        let burst = InHand {
            burst: Burst {
                memory: &memory,
                frames: &frames,
            },
            is_followed: &|| self.is_followed,
            is_behind: &|| self.is_behind,
        };
        self.inline.before_storing(&self.producer);
        let first = self.producer.stored();
        for frame in &frames {
            let data = &memory[frame.offset..][..frame.captured_len as usize];
            self.producer.store(&Record::whole(5, 0, data)).unwrap();
        }
        let bytes = memory.len() as u64;
        let frames = (frames.as_slice(), bytes);
        self.inline.after_storing(first, (0, 0), &burst, frames);
    }

    /// `now_ns` is also the new watermark.
    fn publish(&mut self, is_dry: bool, now_ns: i64) -> bool {
        let stored = self.producer.stored();
        self.inline.before_watermark(stored, Some(now_ns));
        self.producer.set_watermark(now_ns);
        self.inline.after_publish(stored, is_dry, now_ns)
    }

    fn stay_inline(&mut self) {
        let room = AnalysisResources {
            cpus: 1,
            threads: 1,
            inserters: 2,
            ring_bytes: 16 << 20,
        };
        let placing = PlacementShared::new(Analyzers::Inline, room);
        self.inline.placement = ShardPlacement::new(placing);
    }

    fn work_off(&mut self, is_dry: bool, has_more: impl Fn() -> Option<bool>) {
        let stored = self.producer.stored();
        let now_ns = self.clock.mono_ns.load(Relaxed);
        self.inline.work_off(stored, (is_dry, now_ns), has_more);
    }

    fn wakes(&mut self, now_ns: i64) {
        self.publish(true, now_ns);
        self.inline.after_wait(now_ns, 0);
    }

    fn found(&self) -> Vec<u64> {
        let (hits, _) = self.slots.of(0).take_hits().drain();
        hits.iter().map(|(order, _)| order.record).collect()
    }

    fn is_called(&mut self) -> bool {
        self.reader.doze(Duration::ZERO)
    }

    fn is_inline(&self) -> bool {
        self.readers.is_inserters(0)
    }

    fn has_backlog(&self) -> bool {
        self.inline.has_backlog(self.producer.stored())
    }
}

#[test]
fn hits_are_found_in_the_burst_with_the_numbers_of_their_records() {
    let mut rig = Rig::new();
    rig.burst(|_| 8);
    for hit in [0_u16, 63, 64, 99] {
        let first = rig.producer.stored();
        rig.burst(|index| 8 - u16::from(index == usize::from(hit)));
        rig.publish(true, 0);
        assert_eq!(rig.found(), [first + u64::from(hit)]);
    }
    assert!(rig.is_inline() && !rig.has_backlog());
    rig.slots.set_armed(false);
    rig.burst(|_| 7);
    rig.publish(true, 0);
    assert!(
        rig.found().is_empty() && !rig.has_backlog(),
        "none is wanted"
    );
}

#[test]
fn a_source_that_has_more_packets_is_emptied_first() {
    let mut rig = Rig::new();
    rig.wakes(0);
    (rig.is_followed, rig.is_behind) = (true, true);
    (0..3).for_each(|_| rig.burst(|_| 7));
    rig.publish(false, 10);
    rig.work_off(false, || Some(true));
    assert!(rig.found().is_empty() && rig.has_backlog());
    assert!(rig.inline.is_busy(300), "it must not sleep");
    (rig.is_followed, rig.is_behind) = (false, false);
    rig.burst(|_| 7);
    assert!(
        rig.has_backlog(),
        "the burst in hand comes after the backlog"
    );
    rig.publish(true, 20);
    rig.work_off(true, || Some(true));
    rig.publish(true, 30);
    let found = rig.found().len() as u64;
    assert!((1..400).contains(&found), "{found}: the source has packets");
    assert_eq!(rig.slots.of(0).promised_ns(), 0, "the last sure watermark");
    while rig.has_backlog() {
        rig.work_off(true, || Some(false));
    }
    assert!(
        !rig.has_backlog() && rig.inline.is_busy(400),
        "the analyzer lacks hits"
    );
    rig.publish(true, 40);
    assert_eq!(rig.found(), (found..400).collect::<Vec<_>>());
    assert!(!rig.inline.is_busy(400));
    assert_eq!(rig.slots.of(0).promised_ns(), i64::MAX);
}

#[test]
fn bursts_that_a_rest_left_are_analyzed_in_hand() {
    let mut rig = Rig::new();
    rig.wakes(0);
    rig.is_followed = true;
    rig.clock.reading_ns.store(0, Relaxed);
    (0..3).for_each(|_| rig.burst(|_| 8));
    assert!(!rig.has_backlog());
    rig.clock.reading_ns.store(10 * STRIDE_NS, Relaxed);
    rig.burst(|_| 8);
    assert!(rig.has_backlog(), "a slow burst ends for the next burst");
}

#[test]
fn each_record_is_looked_at_once() {
    let (mut from_ring, mut by_analyzer) = (0, 0);
    for seed in 0..100 {
        let mut rig = Rig::new();
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut now_ns, mut looked) = (0, Vec::new());
        for _ in 0..200 {
            rig.is_followed = random.bool();
            rig.is_behind = rig.is_followed && random.bool();
            match random.u32(..8) {
                0 => {
                    now_ns += WAITING_NS_MAX;
                    rig.publish(false, now_ns);
                }
                1 => {
                    now_ns += HOLD_NS / 2;
                    rig.wakes(now_ns);
                }
                2 => {
                    let analyzed = rig.slots.of(0).counters.analyzed.load(Relaxed);
                    let most_ns = [0, 4 * STRIDE_NS, i64::MAX][random.usize(..3)];
                    rig.readers.step_for(&ThreadPulse::default(), most_ns);
                    by_analyzer += rig.slots.of(0).counters.analyzed.load(Relaxed) - analyzed;
                }
                3 | 4 => {
                    rig.publish(true, now_ns);
                    let analyzed = rig.slots.of(0).counters.analyzed.load(Relaxed);
                    let is_enough = random.bool();
                    rig.work_off(true, || Some(is_enough));
                    from_ring += rig.slots.of(0).counters.analyzed.load(Relaxed) - analyzed;
                }
                _ => rig.burst(|index| if index % 25 == 0 { 7 } else { 8 }),
            }
            looked.extend(rig.found());
        }
        let stored = rig.producer.stored();
        rig.producer.publish();
        drop(rig.inline);
        rig.readers.end(&ThreadPulse::default());
        let (hits, _) = rig.slots.of(0).take_hits().drain();
        looked.extend(hits.iter().map(|(order, _)| order.record));
        let hits: Vec<u64> = (0..stored).step_by(25).collect();
        assert!(looked == hits, "{seed}: {} of {}", looked.len(), hits.len());
    }
    assert!(
        from_ring > 1000 && by_analyzer > 1000,
        "{from_ring} {by_analyzer}"
    );
}

#[test]
fn an_inserter_at_its_limit_leaves_the_shard_to_the_analyzer() {
    let mut rig = Rig::new();
    rig.wakes(0);
    rig.publish(false, WAITING_NS_MAX);
    rig.is_followed = true;
    rig.burst(|_| 7);
    assert!(rig.is_inline() && rig.has_backlog());
    rig.publish(false, WAITING_NS_MAX + 1);
    rig.burst(|_| 7);
    assert!(!rig.is_inline(), "with its backlog");
    rig.publish(true, WAITING_NS_MAX + 1 + HOLD_NS);
    rig.burst(|_| 7);
    assert!(!rig.is_inline(), "the analyzer has not read what is before");
    rig.publish(true, WAITING_NS_MAX + 2 + HOLD_NS);
    assert!(rig.readers.step_for(&ThreadPulse::default(), i64::MAX));
    assert_eq!(rig.found(), (0..300).collect::<Vec<_>>());
    rig.burst(|_| 8);
    assert!(rig.is_inline(), "all was read: it is back");
    drop(rig.inline);
    assert!(!rig.readers.is_inserters(0), "it is gone");
}

/// A backlog that lasts is overload, even if the source is dry in between.
#[test]
fn a_backlog_that_lasts_goes_to_the_analyzer() {
    let mut rig = Rig::new();
    rig.wakes(0);
    for now_ns in (0..=WAITING_NS_MAX + 1).step_by(1_000_000) {
        rig.is_followed = true;
        rig.burst(|_| 8);
        assert!(rig.is_inline());
        rig.publish(true, now_ns);
    }
    rig.publish(true, WAITING_NS_MAX + 2);
    rig.burst(|_| 8);
    assert!(!rig.is_inline());
}

/// The engine cannot tell whether packets wait.
#[test]
fn an_engine_that_cannot_tell_is_no_overload() {
    let mut rig = Rig::new();
    rig.wakes(0);
    rig.is_followed = true;
    for step in 1..=20 {
        let now_ns = step * WAITING_NS_MAX;
        rig.clock.mono_ns.store(now_ns, Relaxed);
        rig.inline.after_wait(now_ns, 0);
        rig.burst(|_| 8);
        rig.publish(true, now_ns);
        while rig.has_backlog() {
            rig.work_off(true, || None);
        }
        assert!(rig.is_inline(), "{step}");
    }
}

#[test]
fn much_that_is_stored_without_running_dry_is_left_to_the_analyzer() {
    let mut rig = Rig::new();
    rig.wakes(0);
    // A sixteenth of 16 MiB, divided by two inserters.
    let burst_bytes = 100 * (udp(1, 8, 0).len() as u64 + DESCRIPTOR_BYTES);
    let bursts = (512_u64 << 10) / burst_bytes;
    for _ in 0..=bursts {
        rig.burst(|_| 8);
        assert!(rig.is_inline());
        rig.publish(false, 1);
    }
    rig.burst(|_| 8);
    assert!(!rig.is_inline());
}

#[test]
fn a_source_that_is_never_dry_is_analyzed_a_little() {
    let mut rig = Rig::new();
    rig.stay_inline();
    rig.wakes(0);
    rig.is_followed = true;
    let mut analyzed = Vec::new();
    // Half of the share of one of 2 inserters: 4 MiB of 16 MiB.
    let burst_bytes = 100 * (udp(1, 8, 0).len() as u64 + DESCRIPTOR_BYTES);
    let bursts = (4_u64 << 20).div_ceil(burst_bytes);
    for burst in 1..=4 * bursts {
        let now_ns = if burst < bursts { 1 } else { NEVER_DRY_NS };
        rig.burst(|_| 8);
        rig.clock.mono_ns.store(now_ns, Relaxed);
        rig.publish(false, now_ns);
        let before = rig.slots.of(0).counters.analyzed.load(Relaxed);
        rig.work_off(false, || Some(true));
        if rig.slots.of(0).counters.analyzed.load(Relaxed) > before {
            analyzed.push(burst);
        }
    }
    assert_eq!(analyzed, [1, 2, 3, 4].map(|half| half * bursts));
}

/// The inserter and its shard hold no bucket.
#[test]
fn the_ring_overwrites_the_backlog_and_counts_it() {
    let mut rig = Rig::new();
    rig.is_followed = true;
    rig.stay_inline();
    rig.wakes(0);
    for round in 0..3 {
        for _ in 0..24_000_000 / (100 * 60) {
            rig.burst(|_| 8);
        }
        rig.publish(true, round);
        rig.work_off(true, || Some(true));
        rig.work_off(true, || Some(true));
    }
    rig.publish(true, 10);
    rig.work_off(true, || Some(false));
    while rig.has_backlog() {
        rig.work_off(true, || Some(false));
    }
    let analyzed = rig.slots.of(0).counters.analyzed.load(Relaxed);
    let missed = rig.slots.of(0).take_gaps();
    assert!(missed.iter().all(|gap| gap.is_lapped));
    let missed: u64 = missed.iter().map(|gap| gap.packets).sum();
    assert!(analyzed > 0 && missed > 0);
    assert_eq!(analyzed + missed, rig.producer.stored());
}

#[test]
fn the_analyzer_is_called_for_hits_and_before_much_is_unread() {
    let mut rig = Rig::new();
    rig.burst(|_| 8);
    assert!(!rig.publish(true, 0));
    assert!(!rig.is_called());
    rig.burst(|_| 7);
    assert!(!rig.is_called(), "nothing is published yet");
    assert!(rig.publish(true, 0));
    assert!(rig.is_called());
    rig.publish(true, 0);
    assert!(!rig.is_called(), "once");
    // 1 MiB is an eighth of the ring, divided by two inserters.
    let burst_bytes = 100 * (udp(1, 8, 0).len() as u64 + DESCRIPTOR_BYTES);
    let bursts = (1_u64 << 20).div_ceil(burst_bytes);
    for burst in 1..=bursts {
        rig.burst(|_| 8);
        rig.publish(true, 0);
        assert_eq!(rig.is_called(), burst == bursts, "{burst}");
    }
    rig.wakes(0);
    rig.publish(false, 2 * WAITING_NS_MAX);
    rig.burst(|_| 8);
    rig.publish(true, 2 * WAITING_NS_MAX);
    assert!(rig.is_called(), "it has the shard");
}
