use std::time::Duration;

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
    let parts = InlineParts {
        common: Arc::clone(common),
        slots,
        positions: reader.positions(),
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

/// An inserter of 100 packets at a time, and an analyzer.
struct Rig {
    inline: Inline,
    producer: Producer,
    reader: Reader,
    slots: Arc<ShardSlots>,
}

impl Rig {
    fn new() -> Self {
        let ring = Ring::new(&RingConfig::new(16 << 20, 2, 1), None).unwrap();
        let sources = ["a", "b"].map(|name| (name.to_owned(), 1));
        let intake = Intake::new(sources.into_iter(), Arc::default(), false);
        let common = RecorderShared::new(ring, Arc::new(FakeClock::default()), intake);
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
        let slots = Arc::clone(&parts.slots);
        Self {
            inline: Inline::new(parts, producer.id(), common.pulses.of("inserter-0")),
            producer,
            reader,
            slots,
        }
    }

    /// 100 packets to these ports arrive. The inserter stores, analyzes and publishes the packets.
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
        let burst = Burst {
            memory: &memory,
            frames: &frames,
        };
        self.inline.before_storing(frames.len(), &self.producer);
        let first = self.producer.stored();
        for frame in &frames {
            let data = &memory[frame.offset..][..frame.captured_len as usize];
            self.producer.store(&Record::whole(5, 0, data)).unwrap();
        }
        let bytes = memory.len() as u64;
        self.inline.analyze(first, (0, 0), &burst, (&frames, bytes));
        self.inline.after_storing(&self.producer);
        self.inline.flush_hits();
        self.producer.publish();
    }

    /// The source ran dry, and a packet wakes the inserter at once.
    fn wakes(&mut self, now_ns: i64) {
        self.inline.after_publish(true, now_ns);
        self.inline.after_wait(now_ns, 0);
    }

    /// The records in which the inserter found hits since the last call.
    fn found(&self) -> Vec<u64> {
        let (hits, _) = self.slots.of(0).take_hits().drain();
        hits.iter().map(|(order, _)| order.record).collect()
    }

    /// The analyzer reads everything. Returns the records that it would have to analyze.
    fn read(&mut self) -> Vec<u64> {
        let mut left = Vec::new();
        while let Some(batch) = self.reader.next() {
            let end = batch.first + batch.len() as u64;
            left.extend(self.slots.of(batch.producer).claimed().max(batch.first)..end);
        }
        self.reader.finish();
        left
    }

    /// Whether the analyzer was woken since the last call.
    fn is_called(&mut self) -> bool {
        self.reader.doze(Duration::ZERO)
    }

    fn is_in_slot(&self) -> bool {
        self.slots.of(0).visit(|_| ()).is_some()
    }
}

#[test]
fn hits_are_found_in_the_burst_with_the_numbers_of_their_records() {
    let mut rig = Rig::new();
    rig.burst(|_| 8);
    for hit in [0_u16, 63, 64, 99] {
        let first = rig.producer.stored();
        rig.burst(|index| 8 - u16::from(index == usize::from(hit)));
        assert_eq!(rig.found(), [first + u64::from(hit)]);
    }
    assert!(!rig.is_in_slot());
    assert!(rig.read().is_empty());
    rig.slots.set_armed(false);
    rig.burst(|_| 7);
    assert!(rig.found().is_empty(), "none is wanted");
}

/// Whatever the inserter has time for, each record is analyzed once: by the inserter or by the
/// analyzer.
#[test]
fn each_record_is_looked_at_once() {
    for seed in 0..100 {
        let mut rig = Rig::new();
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut now_ns, mut looked, mut here) = (0, Vec::new(), 0);
        for _ in 0..200 {
            match random.u32(..8) {
                0 => rig.inline.leave(),
                1 => {
                    now_ns += WAITING_NS_MAX;
                    rig.inline.after_publish(false, now_ns);
                }
                2 => {
                    now_ns += HOLD_NS / 2;
                    rig.wakes(now_ns);
                }
                3 | 4 => looked.extend(rig.read()),
                _ => rig.burst(|_| 7),
            }
            let found = rig.found();
            here += found.len();
            looked.extend(found);
        }
        looked.extend(rig.read());
        assert_eq!(
            looked,
            (0..rig.producer.stored()).collect::<Vec<_>>(),
            "{seed}"
        );
        assert!(here > 0 && here < looked.len(), "{seed}: {here}");
    }
}

#[test]
fn an_inserter_at_its_limit_leaves_the_shard_to_the_analyzer() {
    let mut rig = Rig::new();
    rig.wakes(0);
    rig.inline.after_publish(false, WAITING_NS_MAX);
    rig.burst(|_| 8);
    assert_eq!((rig.is_in_slot(), rig.read()), (false, vec![]));
    rig.inline.after_publish(false, WAITING_NS_MAX + 1);
    rig.burst(|_| 8);
    rig.inline.after_publish(true, WAITING_NS_MAX + 1 + HOLD_NS);
    rig.burst(|_| 8);
    assert!(rig.is_in_slot(), "the analyzer has not read what is before");
    assert_eq!(rig.read(), (100..300).collect::<Vec<_>>());
    rig.burst(|_| 8);
    assert_eq!((rig.is_in_slot(), rig.read()), (false, vec![]));
    rig.inline.leave();
    rig.burst(|_| 8);
    assert!(!rig.is_in_slot(), "all was read: it is back");
    drop(rig.inline);
    assert!(rig.slots.of(0).visit(|_| ()).is_some(), "it is gone");
}

#[test]
fn much_that_is_stored_without_running_dry_is_left_to_the_analyzer() {
    let mut rig = Rig::new();
    rig.wakes(0);
    // The limit is a sixteenth of the ring of 16 MiB, divided by two inserters.
    let burst_bytes = 100 * (udp(1, 8, 0).len() as u64 + DESCRIPTOR_BYTES);
    let bursts = (512_u64 << 10) / burst_bytes;
    for _ in 0..=bursts {
        rig.burst(|_| 8);
        assert!(!rig.is_in_slot());
        rig.inline.after_publish(false, 1);
    }
    rig.burst(|_| 8);
    assert!(rig.is_in_slot());
}

#[test]
fn the_analyzer_is_called_for_hits_and_before_much_is_unread() {
    let mut rig = Rig::new();
    rig.burst(|_| 8);
    rig.inline.after_publish(true, 0);
    assert!(!rig.is_called());
    rig.burst(|_| 7);
    assert!(!rig.is_called(), "nothing is published yet");
    rig.inline.after_publish(true, 0);
    assert!(rig.is_called());
    rig.inline.after_publish(true, 0);
    assert!(!rig.is_called(), "once");
    // 1 MiB is an eighth of the ring, divided by two inserters.
    let burst_bytes = 100 * (udp(1, 8, 0).len() as u64 + DESCRIPTOR_BYTES);
    let bursts = (1_u64 << 20).div_ceil(burst_bytes);
    for burst in 1..=bursts {
        rig.burst(|_| 8);
        rig.inline.after_publish(true, 0);
        assert_eq!(rig.is_called(), burst == bursts, "{burst}");
    }
    rig.wakes(0);
    rig.inline.after_publish(false, 2 * WAITING_NS_MAX);
    rig.burst(|_| 8);
    rig.inline.after_publish(true, 2 * WAITING_NS_MAX);
    assert!(rig.is_called(), "it has the shard");
}
