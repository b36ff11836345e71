//! One, two and four analyzers, in inserters, threads and the analyzer's thread, on one and three
//! queues.

use std::{num::NonZeroUsize, sync::atomic::Ordering};

use super::rig::{MS, Rig, RigConfig, S, udp};
use crate::Analyzers;

const START: i64 = 1_800_000_000 * S;

/// A plan whose rule matches all packets, but starts no dump, so that hits count analyzed packets.
fn plan(analyzers: Analyzers, queues: usize, flows_together: bool) -> RigConfig<'static> {
    RigConfig {
        queues,
        // Room for the queues, the analyzer and four readers.
        ring_bytes: 64 << 20,
        triggers: &["udp"],
        analyzers,
        max_dumps: 0,
        flows_together,
        ..RigConfig::default()
    }
}

/// Each packet is analyzed once or counted as missed, whichever threads analyze, on how many
/// queues, and whether the ring overtakes the analyzers or not.
#[test]
fn each_packet_is_analyzed_once_or_missed() {
    let threads = |count| Analyzers::Threads(NonZeroUsize::new(count).unwrap());
    let all = [
        Analyzers::Auto,
        Analyzers::Inline,
        threads(1),
        threads(2),
        threads(4),
    ];
    let cases = all.into_iter().flat_map(|it| [(it, 1), (it, 3)]);
    let cases = cases.flat_map(|it| [(it, false), (it, true)]);
    for ((analyzers, queues), flows_together) in cases {
        let mut random = fastrand::Rng::with_seed(7);
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&plan(analyzers, queues, flows_together), START, dir.path());
        let case = format!("{analyzers:?}, {queues} queues, together: {flows_together}");
        let mut is_overtaken = false;
        for round in 0..12 {
            // One round of more packets than the ring has room for.
            let packets = if round == 7 { 90_000 } else { 500 };
            for _ in 0..packets {
                let (flow, length) = (random.u8(..), random.usize(600..1400));
                let mut packet = udp(1, 9, 0);
                packet[15] = flow;
                packet.resize(packet.len() + length, 0);
                rig.arrive(random.usize(..queues), packet);
            }
            rig.pass(MS);
            rig.insert();
            if random.bool() {
                rig.analyze();
            }
            is_overtaken |= rig.common.counters.reading().lapped > 0;
        }
        rig.pass(MS);
        rig.step();
        rig.step();
        // The sum is also exact on a silent link, where no later packet makes the analyzers count.
        let reading = rig.common.counters.reading();
        let stored = rig.common.ring.statistics().stored_packets;
        assert_eq!(reading.analyzed + reading.lapped, stored, "{case}, running");
        rig.stop();
        let reading = rig.common.counters.reading();
        let stored = rig.common.ring.statistics().stored_packets;
        assert_eq!(stored, 90_000 + 11 * 500, "{case}");
        assert_eq!(reading.analyzed + reading.lapped, stored, "{case}");
        let hits = reading.hits.triggers + reading.hits.suppressed.total();
        assert_eq!(hits, reading.analyzed, "{case}");
        let by_shard = rig.slots.all().iter();
        let by_shard: Vec<_> = by_shard
            .map(|slot| slot.counters.analyzed.load(Ordering::Relaxed))
            .collect();
        if let Analyzers::Threads(threads) = analyzers
            && threads.get() > 1
        {
            assert_eq!(by_shard.len(), threads.get(), "{case}");
            let least = reading.analyzed / (2 * threads.get() as u64);
            assert!(
                by_shard.iter().all(|it| *it > least),
                "{case}: {by_shard:?}"
            );
            assert!(is_overtaken, "{case}");
        }
    }
}
