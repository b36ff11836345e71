use std::{collections::HashMap, time::Duration};

use retroscope_packet::LinkType;

use super::*;
use crate::{Script, ScriptLimits};

const S: i64 = 1_000_000_000;

/// UDP over IPv4 from 10.0.0.`host` to a port.
fn udp(host: u8, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 0, 1, 1, // IPv4
        4, 210, high, low, 0, 8, 0, 0, // UDP
    ]
}

fn packet(data: &[u8]) -> ScriptPacket<'_> {
    ScriptPacket {
        data,
        wire_len: 28,
        time_ns: 0,
        interface: 0,
        link_type: LinkType::RAW,
        direction: 0,
    }
}

/// The facts of a packet that a module saw: the flow, the number of its packets so far, and whether
/// the packet was the first.
type Seen = (BiflowKey, u64, bool);

/// Counts packets, and fails if a state belongs to another flow. `buildPacketFilter` reports what
/// the module saw.
const COUNTS: &str = "
    local m = { stateType = 'uint32_t own; uint32_t packets;' }
    local first
    function m.handlePacket(key, state, pkt, isFirst)
        local own = flow(pkt)
        if isFirst then
            if state.own ~= 0 or state.packets ~= 0 then error('a used state') end
            state.own = own
        end
        if state.own ~= own then error('the state of another flow') end
        state.packets = state.packets + 1
        first = isFirst
        return true
    end
    function m.buildPacketFilter(key, state) return state.packets .. ' ' .. tostring(first) end
    return m";
/// Defines `flow(pkt)` for [`COUNTS`]: the number of the packet's flow, from host and port.
const BY_HEADERS: &str = "local function flow(pkt) return pkt:u8(15) * 65536 + pkt:u16(22) end";
/// Defines `flow(pkt)` for [`COUNTS`]: the number of the packet's flow, from the port alone. With
/// [`PORT_KEYS`] a packet with an odd port has no flow.
const BY_PORT: &str = "local function flow(pkt) return pkt:u16(22) + 1 end";
const PORT_KEYS: &str = "
    m.flowKeys = 'uint16_t port;'
    function m.extractFlowKey(pkt, key)
        key.port = pkt:u16(22)
        return key.port % 2 == 0
    end
    return m";

fn runner(text: &str, config: &TrackerConfig) -> Runner {
    let limits = ScriptLimits {
        time: Duration::from_secs(60),
        memory_bytes: 64 << 20,
    };
    let module = LuaModule::new(&Script::new("test.lua", text, false), limits).unwrap();
    Runner::new(module, config)
}

/// Runs [`COUNTS`] over packets with times, in calls of 1 to [`MANY`] packets. `has_keys`: the
/// module makes the keys of flows.
fn run(frames: &[(i64, Vec<u8>)], config: &TrackerConfig, has_keys: bool) -> (Vec<Seen>, Runner) {
    let text = if has_keys {
        format!("{BY_PORT}{}", COUNTS.replace("return m", PORT_KEYS))
    } else {
        format!("{BY_HEADERS}{COUNTS}")
    };
    let mut runner = runner(&text, config);
    let mut dumps = Vec::new();
    let mut random = 7_u32;
    let mut rest = frames;
    while !rest.is_empty() {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (some, behind) = rest.split_at(rest.len().min(1 + random as usize % MANY));
        rest = behind;
        let packets: Vec<_> = some.iter().map(|(_, data)| packet(data)).collect();
        let times_ns: Vec<_> = some.iter().map(|(time_ns, _)| *time_ns).collect();
        runner.handle_packets(&packets, &times_ns, &mut dumps);
    }
    assert_eq!(runner.take_notes(), [""; 0]);
    let seen = dumps.iter().map(|dump| {
        let (packets, is_first) = dump.filter.as_ref().unwrap().split_once(' ').unwrap();
        (dump.key, packets.parse().unwrap(), is_first == "true")
    });
    (seen.collect(), runner)
}

/// Packets of random flows, `step_ns` apart. Some flows have few packets and some have many.
fn frames(count: u32, flows: u32, step_ns: i64) -> Vec<(i64, Vec<u8>)> {
    let mut random = 1_u32;
    let frame = |n: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Flows with small numbers get more packets.
        let flow = (random >> 16) * (random >> 8 & 0xff) / 0x100 % flows;
        let [host, ..] = flow.to_le_bytes();
        let port = u16::try_from(flow >> 8).unwrap();
        (i64::from(n) * step_ns, udp(host, port))
    };
    (0..count).map(frame).collect()
}

#[test]
fn every_packet_meets_the_state_of_its_flow() {
    let frames = frames(20_000, 3000, 0);
    for has_keys in [false, true] {
        let (seen, runner) = run(&frames, &TrackerConfig::default(), has_keys);
        let mut packets = HashMap::<BiflowKey, u64>::new();
        for (key, count, is_first) in &seen {
            let expected = packets.entry(*key).or_default();
            *expected += 1;
            assert_eq!((*count, *is_first), (*expected, *expected == 1));
        }
        let ports: HashMap<_, _> = frames.iter().map(|(_, data)| (&data[22..24], ())).collect();
        let even = ports
            .keys()
            .filter(|port| port[1].is_multiple_of(2))
            .count();
        let all: HashMap<_, _> = frames.iter().map(|(_, data)| (data, ())).collect();
        assert_eq!(packets.len(), if has_keys { even } else { all.len() });
        let counts = runner.counts();
        assert_eq!(counts.packets + counts.unattributed, 20_000);
        assert_eq!(
            (counts.begun, counts.live),
            (packets.len() as u64, packets.len() as u64)
        );
    }
}

/// If flows end, by time-out or by eviction, a flow never gets the state of another flow.
#[test]
fn a_slot_that_is_used_again_begins_anew() {
    let frames = frames(50_000, 3000, S / 50);
    for flows_max in [1, 2, 50, 1000] {
        for time_outs in [TimeOuts::default(), TimeOuts::idle(5 * S)] {
            let config = TrackerConfig {
                flows_max,
                time_outs,
                ..TrackerConfig::default()
            };
            let (seen, runner) = run(&frames, &config, false);
            assert_eq!(seen.len(), frames.len());
            let begun = seen.iter().filter(|(.., is_first)| *is_first).count();
            let counts = runner.counts();
            assert_eq!(counts.begun, begun as u64);
            assert_eq!(counts.begun, counts.live + counts.over + counts.evicted);
            assert!(counts.live <= flows_max as u64 && counts.over + counts.evicted > 1000);
        }
    }
}

/// One packet has a stamp in the far future. Checks must continue by the stamps of the packets that
/// follow.
#[test]
fn a_stamp_of_the_far_future_is_got_over() {
    let mut runner = runner(CHECKED_TWICE, &TrackerConfig::default());
    let data = udp(1, 53);
    let mut dumps = Vec::new();
    let mut look = |second: i64| runner.handle_packets(&[packet(&data)], &[second * S], &mut dumps);
    look(0);
    look(4_000_000_000);
    (0..150).for_each(|second| look(second / 4));
    // The second check ended the flow. The module did not fail, so there was no fourth check.
    assert_eq!((runner.counts().over, runner.take_notes().len()), (1, 0));
}

/// Packets of two sources with different clocks alternate. The runner does not go back to the
/// earlier clock, so the packets do not cause one check each.
#[test]
fn stamps_to_and_fro_are_checked_by_the_later_ones() {
    let mut runner = runner(CHECKED_TWICE, &TrackerConfig::default());
    let data = udp(1, 53);
    for n in 0..2000 {
        let time_ns = S / 100 * n + if n % 2 == 0 { 0 } else { 100 * S };
        runner.handle_packets(&[packet(&data)], &[time_ns], &mut Vec::new());
    }
    // The module fails at its fourth check.
    assert_eq!(runner.take_notes(), [""; 0]);
}

/// Prints at the end of each check the number of remaining and of ended flows, with a digest of the
/// states in their order. Flows to port 7 end.
const SLOW: &str = "
    local m = { checkInterval = 1, stateType = 'uint32_t packets;' }
    local sum
    function m.handlePacket(key, state) state.packets = state.packets + 1 return true end
    function m.checkInitializer() sum = 0 end
    function m.checkExpiry(key, state)
        sum = (sum * 31 + state.packets) % 4294967296
        return key:port_b() == 7, 0
    end
    function m.checkFinalizer(check, kept, purged) print(kept, purged, sum) end
    return m";

/// A check of more flows than one call takes continues between packets. The packets determine
/// where, not their division into calls.
#[test]
fn a_check_goes_on_between_packets() {
    let frame = |n: i64| {
        let (host, port) = (u8::try_from(n % 251), u16::try_from(n % 97));
        (n * (S / 10_000), udp(host.unwrap(), port.unwrap()))
    };
    let frames: Vec<_> = (0..30_000_i64).map(frame).collect();
    let runs: Vec<_> = [1, 3, 17, 64]
        .map(|most| {
            let mut runner = runner(SLOW, &TrackerConfig::default());
            let mut over = Vec::new();
            for (nth, some) in frames.chunks(most).enumerate() {
                let packets: Vec<_> = some.iter().map(|(_, data)| packet(data)).collect();
                let times_ns: Vec<_> = some.iter().map(|(time_ns, _)| *time_ns).collect();
                runner.handle_packets(&packets, &times_ns, &mut Vec::new());
                over.extend(
                    runner
                        .take_ended_flows()
                        .iter()
                        .map(|it| (nth * most + it.at, it.key)),
                );
            }
            runner.finish();
            let counts = runner.counts();
            assert_eq!(counts.begun, counts.live + counts.over + counts.evicted);
            (runner.take_notes(), over, counts)
        })
        .into_iter()
        .collect();
    assert!(
        runs[0].0.len() >= 3 && runs[0].2.begun > 20_000 && runs[0].1.len() > 100,
        "{:?}",
        runs[0].2
    );
    assert!(runs.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Ends each flow at its second check. The fourth check fails.
const CHECKED_TWICE: &str = "
    local m = { checkInterval = 10, stateType = 'uint32_t checks;' }
    local checks = 0
    function m.handlePacket(key, state, pkt, isFirst) return isFirst end
    function m.checkExpiry(key, state)
        state.checks = state.checks + 1
        return state.checks == 2, 35
    end
    function m.checkFinalizer()
        checks = checks + 1
        if checks == 4 then error('a fourth check') end
    end
    return m";

/// The module decides when flows end. The runner reports the ends of flows with a requested dump.
#[test]
fn a_module_that_checks_says_when_flows_are_over() {
    let mut runner = runner(CHECKED_TWICE, &TrackerConfig::default());
    let data: Vec<_> = (0..200).map(|host| udp(host, 53)).collect();
    let mut dumps = Vec::new();
    for (n, data) in data.iter().enumerate() {
        let time_ns = if n < 150 { 0 } else { 15 * S };
        runner.handle_packets(&[packet(data)], &[time_ns], &mut dumps);
    }
    assert_eq!((dumps.len(), runner.take_ended_flows().len()), (200, 0));
    // The first check was at 15 s, before the later flows began.
    runner.handle_packets(
        &[packet(&data[0]), packet(&data[0])],
        &[24 * S, 30 * S],
        &mut dumps,
    );
    let over = runner.take_ended_flows();
    assert_eq!(over.len(), 150);
    assert!(
        over.iter()
            .all(|it| (it.at, it.now_ns, it.until_ns) == (1, 30 * S, 35 * S))
    );
    let counts = runner.counts();
    // The packet after the check begins the first flow again.
    assert_eq!((counts.over, counts.live, counts.begun), (150, 51, 201));
    runner.finish();
    assert_eq!(runner.counts().over, 200);
    assert_eq!(runner.take_notes(), [""; 0]);
}
