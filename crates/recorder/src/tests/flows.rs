//! Flow accounting: whichever threads count, each packet is counted once, and no flow is reported
//! twice.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use retroscope_capture::file::FileSource;
use retroscope_flow::{EndedFlow, FlowEnd, TopOrder, TopWindow, TrackerConfig};

use super::{
    rig::{FakeClock, MS, Rig, RigConfig, S, udp},
    windows::{offline, write},
};
use crate::{
    Analyzers, Config, FlowCounts, FlowReceiver, Recorder, RecorderSummary, control::lock,
};

const START: i64 = 1_700_000_000 * S;

fn threads(count: usize) -> Analyzers {
    Analyzers::Threads(NonZeroUsize::new(count).unwrap())
}

/// Takes the flows that were reported since the last call.
fn told(flows: &mut FlowReceiver) -> Vec<EndedFlow> {
    let batches = std::iter::from_fn(|| flows.take(Duration::ZERO).ok());
    batches.flatten().collect()
}

/// The facts about a flow: its ports, its first and last time, its packets in each direction, the
/// reason of its end, and the time of the end.
type Line = ([u16; 2], [i64; 2], [u64; 2], FlowEnd, i64);

fn line(ended: &EndedFlow) -> Line {
    let flow = &ended.flow;
    let ports = flow.key().endpoints().unwrap().map(|end| end.port);
    let times = [flow.first_ns(), flow.last_ns()];
    (ports, times, flow.packets(), ended.end, ended.time_ns)
}

fn assert_closed(counts: &FlowCounts) {
    let ended = counts.timed_out + counts.reused + counts.evicted + counts.finished;
    assert_eq!(counts.begun, ended + counts.live, "{counts:?}");
}

fn read(config: &Config, capture: &std::path::Path) -> (Vec<Line>, RecorderSummary) {
    let sources = || Ok(vec![Box::new(FileSource::new(capture)) as Box<_>]);
    let clock = Arc::new(FakeClock::default());
    let files = [capture.to_owned()];
    let mut recorder =
        Recorder::start(config, &sources, &files, clock, None, &mut || Ok(())).unwrap();
    let mut flows = recorder.take_flows().unwrap();
    let mut lines = Vec::new();
    while let Ok(ended) = flows.take(Duration::from_secs(60)) {
        lines.extend(ended.iter().map(line));
    }
    (lines, recorder.join())
}

/// From files, the recorder reports the same flows in the same order for any value of `analyzers`,
/// even if the table of flows is too small.
#[test]
fn files_give_the_same_flows_in_every_run() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut random = fastrand::Rng::with_seed(17);
    let mut frames = Vec::new();
    for n in 0..20_000_i64 {
        let port = 1000 + random.u16(..if n % 100 < 50 { 20 } else { 4000 });
        frames.push((START + n * 20 * MS - random.i64(0..3 * S), udp(1, port, 0)));
    }
    write(&capture, &frames);
    for flows_max in [1_000_000, 500] {
        let runs = [threads(1), threads(4), Analyzers::Inline, Analyzers::Auto].map(|analyzers| {
            let config = Config {
                analyzers,
                flows: Some(TrackerConfig {
                    flows_max,
                    ..TrackerConfig::default()
                }),
                ..offline(&dir.path().join("out"))
            };
            let (lines, summary) = read(&config, &capture);
            let counts = summary.flows.unwrap();
            assert_closed(&counts);
            assert_eq!((counts.packets, counts.unattributed), (20_000, 0));
            assert_eq!((counts.begun, counts.untold), (lines.len() as u64, 0));
            assert_eq!(counts.evicted > 0, flows_max == 500, "{counts:?}");
            let packets: u64 = lines.iter().flat_map(|line| line.2).sum();
            assert_eq!(packets, 20_000);
            lines
        });
        assert!(runs.iter().all(|run| *run == runs[0]));
        let timed_out = runs[0].iter().filter(|line| line.3 == FlowEnd::TimeOut);
        for line in timed_out {
            let expected = (line.1[1] / S + 31) * S;
            assert_eq!(line.4, expected, "UDP one way: 30 s, of whole seconds");
        }
    }
}

/// No thread takes the flows of a file.
#[test]
fn a_file_does_not_wait_for_who_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    // About twice as many flows as can wait for the receiver. `join` drops the receiver some time
    // after the start.
    let frames = (1..=2).flat_map(|host| (0..u16::MAX).map(move |n| (START, udp(host, n, 0))));
    write(&capture, &frames.collect::<Vec<_>>());
    let config = Config {
        flows: Some(TrackerConfig {
            flows_max: 100,
            ..TrackerConfig::default()
        }),
        ..offline(&dir.path().join("out"))
    };
    let sources = || Ok(vec![Box::new(FileSource::new(&capture)) as Box<_>]);
    let clock = Arc::new(FakeClock::default());
    let files = [capture.clone()];
    let recorder = Recorder::start(&config, &sources, &files, clock, None, &mut || Ok(())).unwrap();
    let counts = recorder.join().flows.unwrap();
    assert_closed(&counts);
    assert_eq!(counts.begun, 2 * u64::from(u16::MAX));
    assert!(counts.untold > 60_000, "{counts:?}");
}

fn plan(analyzers: Analyzers, queues: usize) -> RigConfig<'static> {
    RigConfig {
        queues,
        // The default ring of [`RigConfig`] is too small for two queues with a reader each.
        ring_bytes: 64 << 20,
        analyzers,
        flows: Some(TrackerConfig::default()),
        flows_together: true,
        ..RigConfig::default()
    }
}

/// Flows end also while triggers are disarmed.
#[test]
fn a_silent_link_ends_flows() {
    for (analyzers, queues) in [(Analyzers::Auto, 1), (threads(1), 1), (threads(2), 2)] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            single: true,
            ..plan(analyzers, queues)
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        assert_eq!(lock(&rig.common.flows).len(), queues, "shards");
        rig.pass(S);
        for port in [9, 53, 53, 80] {
            rig.arrive(0, udp(1, port, 0));
            rig.step();
            rig.pass(5 * S);
        }
        let begun = START + S;
        let mut lines = Vec::new();
        for _ in 0..500 {
            rig.step();
            rig.pass(100 * MS);
            lines.extend(told(&mut rig.flows).iter().map(line));
        }
        lines.sort_by_key(|line| line.0[1]);
        let [ninth, dns, web] = lines[..] else {
            panic!("{lines:?}");
        };
        let counts = rig.common.flow_counts().unwrap();
        assert_eq!((counts.live, counts.timed_out, counts.packets), (0, 3, 4));
        assert_eq!(ninth.1, [begun; 2]);
        assert_eq!(dns.1, [begun + 5 * S, begun + 10 * S]);
        assert_eq!(web.4, begun + 46 * S, "when it was over");
        rig.stop();
    }
}

/// Flows that were not reported to a slow receiver are counted.
#[test]
fn a_slow_receiver_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        triggers: &[],
        flows: Some(TrackerConfig {
            flows_max: 1000,
            ..TrackerConfig::default()
        }),
        ..plan(Analyzers::Auto, 1)
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(S);
    let total = 300_000;
    for host in 0..300 {
        for port in 0..1000 {
            rig.arrive(0, udp(host, port, 0));
        }
        rig.step();
        rig.pass(MS);
    }
    rig.step();
    let mut lines = told(&mut rig.flows).len() as u64;
    // At the end the shards wait until the channel has room.
    rig.stop();
    lines += told(&mut rig.flows).len() as u64;
    let counts = rig.common.flow_counts().unwrap();
    assert_closed(&counts);
    assert_eq!((counts.packets, counts.live), (total, 0));
    assert_eq!(lines + counts.untold, counts.begun, "{counts:?}");
    assert!(lines >= 64 * 1024 && counts.untold > 100_000, "{counts:?}");
}

/// Packets of each flow in both directions, by the flow's ports.
fn sums(lines: &[EndedFlow]) -> BTreeMap<[u16; 2], [u64; 2]> {
    let sums = lines.iter().map(|ended| (line(ended).0, line(ended).2));
    sums.collect()
}

/// Two queues with one direction of each flow. Two analyzers divide the packets by address pair, so
/// both directions count as one flow.
#[test]
fn directions_of_two_queues_are_one_flow() {
    let reply = |port: u16| {
        let mut packet = udp(1, port, 0);
        let (src, dst) = (packet[12..16].to_vec(), packet[16..20].to_vec());
        packet[12..16].copy_from_slice(&dst);
        packet[16..20].copy_from_slice(&src);
        let (src, dst) = (packet[20..22].to_vec(), packet[22..24].to_vec());
        packet[20..22].copy_from_slice(&dst);
        packet[22..24].copy_from_slice(&src);
        packet
    };
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan(threads(2), 2);
    plan.flows_together = false;
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(S);
    for port in 100..200 {
        rig.arrive(0, udp(1, port, 0));
        rig.step();
        rig.pass(MS);
        rig.arrive(1, reply(port));
        rig.step();
        rig.pass(MS);
    }
    rig.stop();
    let sums = sums(&told(&mut rig.flows));
    assert_eq!(sums.len(), 100);
    assert!(sums.values().all(|packets| *packets == [1, 1]), "{sums:?}");
}

/// A clock is set while flows are active: flows neither end early nor live longer, and their times
/// are the stamps.
#[test]
fn flows_go_on_where_a_clock_is_set() {
    for step_ns in [3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&plan(Analyzers::Auto, 1), START, dir.path());
        rig.pass(S);
        let mut stamps = Vec::new();
        for second in 0..20 {
            if second == 10 {
                rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
                rig.pass(0);
            }
            stamps.push(START + S * (second + 1) + if second < 10 { 0 } else { step_ns });
            rig.arrive(0, udp(1, 7, 0));
            rig.step();
            rig.pass(S);
        }
        for _ in 0..400 {
            rig.step();
            rig.pass(100 * MS);
        }
        let lines: Vec<Line> = told(&mut rig.flows).iter().map(line).collect();
        let [(_, times, packets, end, over_ns)] = lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!((packets.iter().sum::<u64>(), end), (20, FlowEnd::TimeOut));
        assert_eq!(times, [stamps[0], stamps[19]]);
        assert_eq!(over_ns, stamps[19] + 31 * S);
        rig.stop();
    }
}

/// Two analyzers divide the packets of a burst around a clock step. The times of each flow are the
/// stamps of its packet.
#[test]
fn divided_flows_have_stamps_where_a_clock_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(threads(2), 1), START, dir.path());
    rig.pass(MS);
    rig.step();
    let mut stamps = BTreeMap::new();
    for number in 0..40 {
        let mut packet = udp(1, 100 + number, 0);
        packet[15] = u8::try_from(number).unwrap();
        stamps.insert([1, 100 + number], rig.clock.wall_ns.load(SeqCst));
        rig.arrive(0, packet);
        rig.pass(MS);
        if number == 19 {
            rig.clock.wall_ns.fetch_add(3600 * S, SeqCst);
        }
    }
    rig.step();
    rig.stop();
    let lines: Vec<Line> = told(&mut rig.flows).iter().map(line).collect();
    let told = lines.into_iter().map(|(mut ports, times, ..)| {
        ports.sort_unstable();
        (ports, times[0])
    });
    assert_eq!(told.collect::<BTreeMap<_, _>>(), stamps);
}

/// A receiver that takes nothing for 30 s delays no shard, and gets all volumes later.
#[test]
fn a_window_is_that_of_all_shards_and_moves_on_a_silent_link() {
    for (analyzers, queues) in [(Analyzers::Auto, 1), (threads(1), 1), (threads(2), 2)] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            flows: Some(TrackerConfig {
                top: Some(100),
                ..TrackerConfig::default()
            }),
            ..plan(analyzers, queues)
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        let slices = rig.flows.take_slices().unwrap();
        let mut window = TopWindow::new(40);
        for _ in 0..30 {
            for queue in 0..queues {
                rig.arrive(queue, udp(1, 7, 0));
                rig.arrive(queue, udp(1, 100 + u16::try_from(queue).unwrap(), 0));
            }
            rig.step();
            rig.pass(S);
        }
        rig.step();
        slices.try_iter().for_each(|slice| window.add(slice));
        let report = window.report(10, TopOrder::Packets);
        let count = |packets: u64| packets * queues as u64;
        assert!(report.total.packets < count(60), "no room for all seconds");
        rig.pass(S);
        rig.step();
        slices.try_iter().for_each(|slice| window.add(slice));
        let report = window.report(10, TopOrder::Packets);
        assert_eq!(report.total.packets, count(60), "and nothing is lost by it");
        assert_eq!(report.flows, 1 + count(1), "one is of all");
        for _ in 0..41 {
            rig.pass(S);
            rig.step();
            slices.try_iter().for_each(|slice| window.add(slice));
        }
        assert_eq!(window.report(10, TopOrder::Bits).rows, []);
        rig.stop();
    }
}
