//! Frames with VLAN tags, of which the kernel removes the outer one: the hits are the same,
//! whichever thread analyzes the frames.

use std::{num::NonZeroUsize, sync::atomic::Ordering, time::Duration};

use retroscope_flow::TrackerConfig;
use retroscope_packet::LinkType;

use super::rig::{MS, Rig, RigConfig, S, udp};
use crate::Analyzers;

const START: i64 = 1_800_000_000 * S;

/// Frames of several flows: a third each without a tag, with one tag and with two tags.
fn frames() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(11);
    let tags: [&[u8]; 3] = [&[], &[0x81, 0, 0, 7], &[0x88, 0xa8, 0, 8, 0x81, 0, 0, 9]];
    let frame = |number: u32| {
        let port = if number % 500 < 3 {
            9
        } else {
            random.u16(1000..1040)
        };
        let mut frame = [&[2; 12], tags[number as usize % 3], &[8, 0]].concat();
        frame.extend(udp(1, port, number));
        // A burst of 300 frames has more than 96 KiB, so its tags are restored in several rounds.
        frame.resize(frame.len() + random.usize(..1200), 0);
        frame
    };
    (0..3000).map(frame).collect()
}

#[test]
fn tagged_frames_are_looked_at_in_their_inserter_as_by_threads() {
    let threads = Analyzers::Threads(NonZeroUsize::MIN);
    let runs = [Analyzers::Auto, threads].map(|analyzers| {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            link_type: LinkType::ETHERNET,
            ring_bytes: 64 << 20,
            triggers: &[
                "udp port 9",
                "vlan 7 and udp port 9",
                "vlan 8 and vlan 9 and udp port 9",
            ],
            dump: "$flow",
            analyzers,
            flows: Some(TrackerConfig::default()),
            past_ns: 200 * MS,
            future_ns: 50 * MS,
            ..RigConfig::default()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(S);
        for burst in frames().chunks(300) {
            burst.iter().for_each(|frame| rig.arrive(0, frame.clone()));
            rig.insert();
            let stored = rig.common.ring.statistics().stored_packets;
            let analyzed = rig.slots.of(0).counters.analyzed.load(Ordering::Relaxed);
            assert_eq!(analyzed, if analyzers == threads { 0 } else { stored });
            rig.pass(100 * MS);
            rig.step();
        }
        let mut flows = Vec::new();
        for _ in 0..100 {
            rig.pass(S);
            rig.step();
            while let Ok(ended) = rig.flows.take(Duration::ZERO) {
                flows.extend(ended.iter().map(|it| format!("{:?}", it.flow)));
            }
        }
        flows.sort();
        let mut dumps: Vec<_> = (rig.reports.iter())
            .map(|it| {
                (
                    it.rule.clone(),
                    it.trigger_time.clone(),
                    it.packets,
                    std::fs::read(&it.file).unwrap(),
                )
            })
            .collect();
        dumps.sort();
        let hits = rig.handle.status().unwrap().hits_by_rule;
        let hits: Vec<_> = hits
            .into_iter()
            .map(|it| format!("{:?}", it.counts))
            .collect();
        rig.stop();
        (dumps, flows, hits)
    });
    assert_eq!(runs[0].2, runs[1].2);
    assert_eq!(runs[0].1, runs[1].1);
    assert!(runs[0].0 == runs[1].0, "dumps differ");
    let [(dumps, flows, _), _] = runs;
    assert!(
        dumps.len() >= 18 && dumps.iter().all(|it| it.2 > 0),
        "{}",
        dumps.len()
    );
    assert_eq!(flows.len(), 3 * 41);
}
