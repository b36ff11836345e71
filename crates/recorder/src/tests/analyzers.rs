//! Analysis in inserters, in several threads, and in the analyzer's thread.

use std::{num::NonZeroUsize, sync::atomic::Ordering, time::Duration};

use retroscope_script::{Script, ScriptLimits};

use super::rig::{MS, Rig, RigConfig, S, udp};
use crate::{Analyzers, Scripts};

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
    // One, two or three threads serve three queues.
    let shared = |it| [2, 1].map(|threads| (it, 3, Some(threads)));
    let not_inline = all.into_iter().filter(|it| *it != Analyzers::Inline);
    let shared = not_inline.flat_map(shared);
    let cases = all
        .into_iter()
        .flat_map(|it| [(it, 1, None), (it, 3, None)]);
    let cases = (cases.chain(shared)).flat_map(|it| [(it, false), (it, true)]);
    for ((analyzers, queues, capture_threads), flows_together) in cases {
        let mut random = fastrand::Rng::with_seed(7);
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            capture_threads,
            ..plan(analyzers, queues, flows_together)
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        let case = format!(
            "{analyzers:?}, {queues} queues, {capture_threads:?} threads, together: {flows_together}"
        );
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

/// A script that learns from packets of port 5060 which address pair a call uses, and matches later
/// packets of this pair.
const CALLS: &str = "partition = 'flow'
local known = {}
local function address(pkt, at)
  return table.concat({ pkt:u8(at), pkt:u8(at + 1), pkt:u8(at + 2), pkt:u8(at + 3) }, '.')
end
return function(pkt)
  local src, dst = pkt:src(), pkt:dst()
  if not pkt:has_port(5060) then return known[src .. ' ' .. dst] end
  local a, b = address(pkt, 28), address(pkt, 32)
  assert(partition.join({ src, dst }, { b, a }))
  known[a .. ' ' .. b], known[b .. ' ' .. a] = true, true
end";

/// A packet between two addresses, in a random direction.
fn between(mut pair: [[u8; 4]; 2], port: u16, random: &mut fastrand::Rng) -> Vec<u8> {
    random.shuffle(&mut pair);
    let mut packet = udp(port, port, 0);
    packet[12..20].copy_from_slice(pair.as_flattened());
    packet
}

/// For each analyzer, if there are several: the packets stored for it are analyzed or missed.
fn check_ledgers(rig: &Rig) {
    let Some(divided) = rig.common.divided.get() else {
        return;
    };
    let (stored, slots) = (divided.stored.as_ref().unwrap(), rig.slots.all());
    for (shard, slot) in slots.iter().enumerate() {
        let is_mine = |number: u8| usize::from(number) % slots.len() == shard;
        let producers = 0..rig.common.ring.producers();
        let stored: u64 = producers.map(|it| stored.get(it, is_mine).1).sum();
        let counters = &slot.counters;
        let seen = [&counters.analyzed, &counters.missed].map(|it| it.load(Ordering::Relaxed));
        assert_eq!(seen[0] + seen[1], stored, "shard {shard}: {seen:?}");
    }
}

/// The media packets of a call have another address pair than its signaling, and are analyzed by
/// the script that saw the signaling.
#[test]
fn media_meets_its_signaling() {
    let threads = |count| Analyzers::Threads(NonZeroUsize::new(count).unwrap());
    let cases = [
        (Analyzers::Auto, 1, None),
        (threads(4), 1, None),
        (threads(4), 3, None),
        (threads(4), 3, Some(2)),
    ];
    for ((analyzers, queues, capture_threads), seed) in cases.into_iter().zip(1..) {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let scripts = Scripts {
            triggers: vec![Script::new("calls.lua", CALLS, false)],
            ..Scripts::default()
        };
        let plan = RigConfig {
            triggers: &[],
            scripts,
            limits: ScriptLimits {
                time: Duration::from_secs(60),
                ..ScriptLimits::default()
            },
            capture_threads,
            ..plan(analyzers, queues, true)
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        let mut pair = || [random.u32(..), random.u32(..)].map(u32::to_be_bytes);
        let calls: Vec<_> = (0..200).map(|_| (pair(), pair())).collect();
        let signaling = |call: usize, random: &mut fastrand::Rng| {
            let mut packet = between(calls[call].0, 5060, random);
            packet[28..].copy_from_slice(&calls[call].1.concat()[..4]);
            packet.extend(&calls[call].1.concat()[4..]);
            packet
        };
        for round in 0..8 {
            // One round of more packets than the ring has room for.
            let packets = if round == 5 { 90_000 } else { 500 };
            for _ in 0..packets {
                let call = random.usize(..calls.len());
                let mut packet = match random.u8(..40) {
                    0 => signaling(call, &mut random),
                    _ => between(calls[call].1, 4000, &mut random),
                };
                packet.resize(packet.len() + random.usize(600..1400), 0);
                rig.arrive(random.usize(..queues), packet);
            }
            rig.pass(MS);
            rig.insert();
            if random.bool() {
                rig.analyze();
            }
        }
        for call in 0..calls.len() {
            rig.arrive(random.usize(..queues), signaling(call, &mut random));
        }
        let hits = |rig: &Rig| {
            let hits = rig.common.counters.reading().hits;
            hits.triggers + hits.suppressed.total()
        };
        rig.pass(MS);
        rig.step();
        let before = hits(&rig);
        for call in (0..calls.len()).chain(0..calls.len()) {
            let packet = between(calls[call].1, 4000, &mut random);
            rig.arrive(random.usize(..queues), packet);
        }
        rig.pass(MS);
        rig.step();
        let case = format!("{analyzers:?}, {queues} queues: {:?}", rig.notices);
        assert_eq!(hits(&rig) - before, 2 * calls.len() as u64, "{case}");
        let is_overtaken = rig.common.counters.reading().lapped > 0;
        assert!(is_overtaken || analyzers == Analyzers::Auto, "{case}");
        rig.pass(MS);
        rig.step();
        rig.stop();
        check_ledgers(&rig);
        assert_eq!(rig.common.counters.scripts_failed(), 0, "{case}");
    }
}
