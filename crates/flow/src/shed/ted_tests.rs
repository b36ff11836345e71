//! Tail early drop under overload, on the test's clock.

use std::collections::VecDeque;

use super::{
    tests::{Sent, frame},
    *,
};

/// Simulated processing time of a kept packet, and of a shed packet, in time units.
const KEPT_COST: u64 = 16;
const SHED_COST: u64 = 1;
/// Number of packets that the source can queue.
const QUEUE: usize = 1024;
/// Time units between two readings of the losses.
const PERIOD: u64 = 20_000;
/// Number of first packets of a connection that the test evaluates.
const HEAD: u32 = 10;

#[test]
fn it_is_halved_by_congestion_and_grows_by_one() {
    let mut drop = TailDrop::new(16);
    drop.period(false);
    assert_eq!(drop.packets_max(), None);
    let halved = std::iter::repeat_with(|| {
        drop.period(true);
        drop.packets_max()
    });
    let expected = [2048, 1024, 512, 256, 128, 64, 32, 16, 16].map(Some);
    assert!(halved.take(9).eq(expected));
    drop.period(false);
    assert_eq!(drop.packets_max(), Some(17));
    (17..4096).for_each(|_| drop.period(false));
    assert_eq!(drop.packets_max(), None);
    drop.period(true);
    assert_eq!(drop.packets_max(), Some(2048));
    assert_eq!(TailDrop::new(0).min, 1);
    assert_eq!(TailDrop::new(u32::MAX).min, 4096);
}

fn place(time_ns: i64, data: &[u8]) -> (i64, u32) {
    (time_ns, u32::try_from(data.len()).unwrap())
}

#[test]
fn of_a_connection_the_first_packets_are_kept() {
    let mut drop = TailDrop::new(4);
    (0..20).for_each(|_| drop.period(true));
    let config = TrackerConfig::default();
    let mut shedder = Shedder::new(
        ShedderConfig {
            tail_drop: Some(drop),
            ..ShedderConfig::default()
        },
        &config,
        Secret::random(),
        |_| {},
    );
    let mut time_ns = 0;
    let mut keeps = |flow, is_reply, flags, silence_ns: i64, is_exempt: bool| {
        time_ns += silence_ns + 1;
        let data = frame(&Sent::new(flow, is_reply, time_ns, flags));
        let place = place(time_ns, &data);
        shedder
            .sheds(
                LinkType::ETHERNET,
                place,
                &data,
                || None,
                |_, _| is_exempt.then_some(Mark::Exempt),
            )
            .is_none()
    };
    let packets = [(false, SYN), (true, SYN | ACK), (false, ACK), (true, ACK)];
    assert!(
        packets
            .iter()
            .all(|&(is_reply, flags)| keeps(2, is_reply, flags, 0, false))
    );
    assert!(!keeps(2, false, ACK, 0, false));
    assert!(!keeps(2, true, ACK, 0, false));
    assert!(keeps(2, true, FIN | ACK, 0, false) && keeps(2, false, RST, 0, false));
    assert!(!keeps(2, true, ACK, 0, false));
    // A SYN restarts the connection, and so does silence.
    assert!(keeps(2, false, SYN, 0, false));
    assert!((0..3).all(|_| keeps(2, false, ACK, 0, false)) && !keeps(2, false, ACK, 0, false));
    assert!(!keeps(2, false, ACK, IDLE_NS - 2, false));
    assert!(keeps(2, false, ACK, IDLE_NS, false));
    assert!((0..4).all(|_| keeps(3, false, ACK, 0, false)));
    assert!(keeps(3, false, ACK, 0, true) && keeps(3, false, ACK, 0, false));
    (0..4096).for_each(|_| shedder.tail_drop().unwrap().period(false));
    let data = frame(&Sent::new(2, false, time_ns, ACK));
    let place = place(time_ns, &data);
    let mut more = || {
        shedder
            .sheds(LinkType::ETHERNET, place, &data, || None, |_, _| None)
            .is_none()
    };
    assert!((0..100).all(|_| more()));
}

/// A connection: packets left to send, packets sent (lost packets included), and how many of its
/// first [`HEAD`] packets were kept.
#[derive(Debug, Clone)]
struct Connection {
    frames: [Vec<u8>; 2],
    left: u32,
    came: u32,
    kept: u32,
}

/// Number of connections that kept all of their first [`HEAD`] packets, and number of connections
/// with at least [`HEAD`] packets. `load`: packets sent for each packet that can be kept.
fn heads_kept(load: u64, tail_drop: Option<TailDrop>, seed: u64) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let config = TrackerConfig::default();
    let mut shedder = Shedder::new(
        ShedderConfig {
            tail_drop,
            ..ShedderConfig::default()
        },
        &config,
        Secret::random(),
        |_| {},
    );
    let (mut connections, mut active) = (Vec::<Connection>::new(), Vec::new());
    let mut queue = VecDeque::<(usize, u32)>::new();
    let (mut now, mut free_at, mut next_period) = (0, 0, PERIOD);
    let (mut lost, mut lost_before) = (0, 0);
    for _ in 0..200_000 {
        // Downloads as in figure 9 of the paper: Pareto with an exponent of 1.2, 550 packets on
        // average, about 1 MB.
        if active.len() < 200 {
            #[expect(clippy::cast_possible_truncation, reason = "at most 10^7")]
            let size = (100.0 / random.f64().max(1e-6).powf(1.0 / 1.2)) as u32;
            let number = u32::try_from(connections.len()).unwrap();
            let mut data = [SYN, ACK].map(|flags| frame(&Sent::new(2, false, 0, flags)));
            data.iter_mut()
                .for_each(|data| data[26..30].copy_from_slice(&number.to_be_bytes()));
            active.push(connections.len());
            connections.push(Connection {
                frames: data,
                left: size,
                came: 0,
                kept: 0,
            });
        }
        let at = random.usize(..active.len());
        for _ in 0..connections[active[at]].left.min(4) {
            now += KEPT_COST / load + u64::from(random.u64(..load) < KEPT_COST % load);
            while free_at <= now
                && let Some((number, came)) = queue.pop_front()
            {
                let connection: &mut Connection = &mut connections[number];
                let data = &connection.frames[usize::from(came > 0)];
                let at = place(i64::try_from(now).unwrap() * 1000, data);
                let is_kept = shedder
                    .sheds(LinkType::ETHERNET, at, data, || None, |_, _| None)
                    .is_none();
                connection.kept += u32::from(is_kept && came < HEAD);
                free_at = free_at.max(now.saturating_sub(PERIOD))
                    + if is_kept { KEPT_COST } else { SHED_COST };
            }
            if now >= next_period {
                next_period += PERIOD;
                if let Some(drop) = shedder.tail_drop() {
                    drop.period(lost > lost_before);
                }
                lost_before = lost;
            }
            let connection = &mut connections[active[at]];
            if queue.len() < QUEUE {
                queue.push_back((active[at], connection.came));
            } else {
                lost += 1;
            }
            connection.came += 1;
            connection.left -= 1;
        }
        if connections[active[at]].left == 0 {
            active.swap_remove(at);
        }
    }
    let came = connections.iter().filter(|it| it.came >= HEAD);
    let kept = came.clone().filter(|it| it.kept == HEAD);
    (kept.count(), came.count())
}

#[test]
fn heads_of_connections_survive_overload() {
    for load in [4, 6, 8, 10] {
        for seed in 0..2 {
            let (plain, of) = heads_kept(load, None, seed);
            let (ted, of_the_same) = heads_kept(load, Some(TailDrop::new(16)), seed);
            eprintln!("load {load}: {plain} without, {ted} with, of {of}");
            assert_eq!(of, of_the_same);
            assert!(
                plain > 0 && ted * 2 >= plain * 5,
                "{load}: {ted} of {of}, {plain} without"
            );
        }
    }
}
