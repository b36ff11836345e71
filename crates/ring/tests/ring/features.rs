//! Tests of features that the QQ thesis (2016) and the FlowScope paper (2017) require of the queue.
//! `docs/dev/features.md` lists all features and their tests.

use std::thread;

use retroscope_ring::{
    GroupKind, Mode, Packet, Producer, Reader, Record, Ring, RingConfig, Step, StoreError,
};

/// Time between records `n` and `n + 1` of [`store`].
const STEP_NS: i64 = 1_000;

fn ring(producers: usize, readers: usize, mode: Mode) -> Ring {
    let bucket_bytes = 272 << 10;
    let buckets = 4 * (producers + readers);
    let config = RingConfig {
        bucket_bytes: Some(bucket_bytes),
        mode,
        ..RingConfig::new((buckets * bucket_bytes) as u64, producers, readers)
    };
    Ring::new(&config, None).expect("some MiB")
}

fn store(producer: &mut Producer, number: i64, frame: &[u8]) {
    let record = Record::whole(number * STEP_NS, 0, frame);
    producer.store(&record).expect("the mode lets it");
}

fn frame(number: i64, length: usize) -> Vec<u8> {
    let seed = number.to_le_bytes();
    (0..length)
        .map(|place| seed[place % 8] ^ place.to_le_bytes()[0])
        .collect()
}

fn drain<T>(reader: &mut Reader, of: impl Fn(Packet<'_>) -> T) -> Vec<T> {
    let mut all = Vec::new();
    while let Some(batch) = reader.next() {
        all.extend(batch.iter().map(&of));
    }
    all
}

/// Paper R1, thesis "multi-producer/-consumer".
#[test]
fn every_producer_reaches_every_group_in_its_order() {
    const PRODUCERS: u8 = 3;
    const ROUNDS: i64 = 300;
    let ring = ring(3, 3, Mode::Record);
    let mut alone = ring.group(GroupKind::Lapped).unwrap();
    let mut pair = ring.group_of(GroupKind::Lapped, 2).unwrap();
    let mut producers: Vec<_> = (0..PRODUCERS).map(|_| ring.producer().unwrap()).collect();
    for round in 0..ROUNDS {
        for (producer, name) in producers.iter_mut().zip(0..PRODUCERS) {
            store(producer, round, &[name]);
        }
    }
    producers.iter_mut().for_each(Producer::publish);
    let what = |packet: Packet<'_>| (packet.data[0], packet.time_ns / STEP_NS);
    let seen = drain(&mut alone, what);
    for name in 0..PRODUCERS {
        let of_one = seen.iter().filter(|(by, _)| *by == name);
        assert!(of_one.map(|(_, round)| *round).eq(0..ROUNDS));
    }
    let members = pair.iter_mut().flat_map(|member| drain(member, what));
    let (mut divided, mut whole) = (members.collect::<Vec<_>>(), seen);
    divided.sort_unstable();
    whole.sort_unstable();
    assert_eq!(divided, whole, "each to one member");
}

/// Paper R2, thesis "variable length objects": frames of all lengths up to 1514 bytes, and some up
/// to 256 KiB.
#[test]
fn packets_of_every_length_lie_back_to_back() {
    let ring = ring(1, 1, Mode::Record);
    let mut reader = ring.group(GroupKind::Gating).unwrap();
    let mut producer = ring.producer().unwrap();
    let lengths = (0..=1514).chain([1518, 9_000, 65_535, 65_536, 200_000, 256 << 10]);
    let mut expected = Vec::new();
    for (number, length) in (0..).zip(lengths) {
        let frame = frame(number, length);
        store(&mut producer, number, &frame);
        producer.publish();
        expected.push(frame);
        for got in drain(&mut reader, |packet| {
            (packet.data.to_vec(), packet.wire_len)
        }) {
            let wanted = expected.remove(0);
            assert_eq!((&got.0, got.1 as usize), (&wanted, wanted.len()));
        }
    }
    assert!(expected.is_empty());
}

/// Thesis R2: a descriptor of 16 bytes a packet, and nearly no other overhead.
#[test]
fn millions_of_packets_are_retained_at_81_bytes_each() {
    let ring = Ring::new(&RingConfig::new(256 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    let frame = [0x5a; 64];
    for number in 0..4_000_000 {
        store(&mut producer, number, &frame);
    }
    producer.publish();
    let statistics = ring.statistics();
    assert!(statistics.evicted_packets > 0, "it went round");
    let retained = statistics.stored_packets - statistics.evicted_packets;
    assert!(retained > 3_000_000);
    assert!(
        ring.bytes() <= 81 * retained,
        "{} bytes, {retained} packets",
        ring.bytes()
    );
}

/// Paper R6, thesis "roles".
#[test]
fn peeking_takes_nothing_away() {
    let ring = ring(1, 2, Mode::Record);
    let mut producer = ring.producer().unwrap();
    let mut first = ring.group(GroupKind::Lapped).unwrap();
    for number in 0..100 {
        store(&mut producer, number, &frame(number, 500));
    }
    producer.publish();
    let peeked = drain(&mut first, |packet| packet.data.to_vec());
    assert_eq!(drain(&mut first, |packet| packet.time_ns), [], "each once");
    let mut second = ring.group(GroupKind::Lapped).unwrap();
    assert_eq!(drain(&mut second, |packet| packet.data.to_vec()), peeked);
    let window = ring.reserve(0, i64::MAX);
    let mut buckets = Vec::new();
    window.buckets(&mut buckets);
    let dumped: Vec<Vec<u8>> = buckets
        .iter()
        .filter_map(|info| ring.hold(info.bucket))
        .flat_map(|view| {
            view.iter_from(0)
                .map(|packet| packet.data.to_vec())
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(dumped, peeked);
}

/// Paper R7, thesis "random access".
#[test]
fn any_record_is_one_look_away() {
    let ring = ring(1, 1, Mode::Record);
    let mut producer = ring.producer().unwrap();
    let expected = |index: u32| frame(index.into(), 60 + index as usize);
    for index in 0..200 {
        store(&mut producer, index.into(), &expected(index));
    }
    producer.publish();
    let window = ring.reserve(0, i64::MAX);
    let mut buckets = Vec::new();
    window.buckets(&mut buckets);
    let view = ring.hold(buckets[0].bucket).unwrap();
    assert_eq!(view.committed(), 200);
    for index in (0..200).rev().chain([0, 199, 7, 150]) {
        let packet = view.packet(index);
        assert_eq!(packet.time_ns, i64::from(index) * STEP_NS);
        assert_eq!(packet.data, expected(index));
    }
    for passed in [0, 1, 63, 198, 199, 200, usize::MAX] {
        let mut packets = view.iter_from(0);
        let times: Vec<_> = packets.nth(passed).iter().map(|it| it.time_ns).collect();
        let by_one: Vec<_> = view.iter_from(0).map(|it| it.time_ns).collect();
        let from = passed.min(200);
        assert_eq!(times, by_one[from..200.min(from + 1)], "{passed} passed");
        assert_eq!(packets.len(), 200 - 200.min(from + 1));
    }
}

/// Paper R7, thesis "context coherent storing".
#[test]
fn a_time_leads_to_its_bucket() {
    let ring = ring(1, 1, Mode::Record);
    let mut producer = ring.producer().unwrap();
    let frame = [7; 20_000];
    for number in 0..200 {
        store(&mut producer, number, &frame);
    }
    producer.publish();
    let oldest = ring.statistics().oldest_ns.unwrap() / STEP_NS;
    assert!(oldest > 0, "it went round");
    for number in oldest..200 {
        let window = ring.reserve(number * STEP_NS, number * STEP_NS);
        let mut buckets = Vec::new();
        window.buckets(&mut buckets);
        assert_eq!(buckets.len(), 1, "of {} buckets", ring.buckets());
        let info = buckets[0];
        assert!((info.min_ns..=info.max_ns).contains(&(number * STEP_NS)));
    }
    let window = ring.reserve(0, STEP_NS);
    let evicted = window.evicted_before();
    let span_ns = evicted.first_ns.zip(evicted.last_ns);
    assert_eq!((span_ns, evicted.exact), (Some((0, STEP_NS)), false));
    assert!((2..=200).contains(&evicted.packets), "{evicted:?}");
}

/// Thesis 6.4.3: the reader needs no distance to the writer.
#[test]
fn a_reader_follows_at_no_distance() {
    let ring = ring(1, 1, Mode::Protect);
    let mut reader = ring.group(GroupKind::Gating).unwrap();
    let mut producer = ring.producer().unwrap();
    let frame = [1; 5_000];
    for number in 0..2_000 {
        store(&mut producer, number, &frame);
        producer.publish();
        assert_eq!(
            drain(&mut reader, |packet| packet.time_ns),
            [number * STEP_NS]
        );
    }
    assert!(
        ring.statistics().evicted_packets > 1_000,
        "it went round many times"
    );
}

/// Thesis table 6.1, first row.
#[test]
fn a_ring_that_is_not_full_stores_in_every_mode() {
    for mode in [Mode::Record, Mode::Protect, Mode::Wait] {
        let ring = ring(1, 1, mode);
        let mut producer = ring.producer().unwrap();
        let _window = ring.reserve(i64::MIN, i64::MAX);
        let frame = [3; 64 << 10];
        // Four records in each bucket, none overwritten.
        let count = 4 * ring.buckets() as i64;
        for number in 0..count {
            store(&mut producer, number, &frame);
        }
        producer.publish();
        let statistics = ring.statistics();
        assert_eq!(
            (statistics.stored_packets, statistics.evicted_packets),
            (count as u64, 0)
        );
    }
}

/// Thesis table 6.1, second row, and 6.4.2: a task waits "until either condition changes". Here the
/// mode changes, as the queue's priority does in the thesis.
#[test]
fn a_waiting_writer_goes_on_when_the_mode_changes() {
    let ring = ring(1, 1, Mode::Wait);
    let mut producer = ring.producer().unwrap();
    let window = ring.reserve(i64::MIN, i64::MAX);
    let frame = [3; 64 << 10];
    let count = 4 * ring.buckets() as i64;
    for number in 0..count {
        store(&mut producer, number, &frame);
    }
    thread::scope(|scope| {
        // The writer may already wait, or arrive later.
        let writer = scope.spawn(|| store(&mut producer, count, &frame));
        ring.set_mode(Mode::Record);
        writer.join().unwrap();
    });
    let mut fallen = Vec::new();
    assert_eq!(window.fallen(&mut fallen), None);
    assert_eq!(fallen.len(), 1, "and what fell is told");
}

/// Thesis table 6.1, for each mode. The ring is closed, so that a store that would wait returns
/// [`StoreError::Closed`].
#[test]
fn a_full_ring_answers_by_mode_and_obstacle() {
    const FULL: Result<(), StoreError> = Err(StoreError::Full);
    const WAITS: Result<(), StoreError> = Err(StoreError::Closed);
    let rows = [
        (Obstacle::None, [Ok(()), Ok(()), Ok(())]),
        (Obstacle::Reserved, [Ok(()), FULL, WAITS]),
        (Obstacle::Held, [FULL, FULL, WAITS]),
        (Obstacle::Unread, [WAITS, FULL, WAITS]),
    ];
    for (obstacle, answers) in rows {
        let modes = [Mode::Record, Mode::Protect, Mode::Wait];
        for (mode, answer) in modes.into_iter().zip(answers) {
            let ring = ring(1, 1, mode);
            let unread = ring.group(GroupKind::Gating).unwrap();
            let _unread = (obstacle == Obstacle::Unread).then_some(unread);
            let mut producer = ring.producer().unwrap();
            let frame = [3; 64 << 10];
            let count = 4 * ring.buckets() as i64;
            for number in 0..count {
                store(&mut producer, number, &frame);
            }
            producer.publish();
            let window = ring.reserve(i64::MIN, i64::MAX);
            let mut buckets = Vec::new();
            window.buckets(&mut buckets);
            let _window = (obstacle == Obstacle::Reserved).then_some(window);
            let held = buckets.iter().filter(|_| obstacle == Obstacle::Held);
            let _held: Vec<_> = held.map(|info| ring.hold(info.bucket).unwrap()).collect();
            ring.close();
            let record = Record::whole(count * STEP_NS, 0, &frame);
            assert_eq!(producer.store(&record), answer, "{mode:?}, {obstacle:?}");
        }
    }
}

/// The obstacle to overwriting a bucket of a full ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    None,
    Reserved,
    Held,
    /// A gating group has passed no bucket.
    Unread,
}

/// A clock may be set back, and producers may have different clocks.
#[test]
fn buckets_go_in_the_order_in_which_they_closed() {
    let ring = Ring::new(&RingConfig::new(64 << 20, 2, 1), None).unwrap();
    let mut producers = [ring.producer().unwrap(), ring.producer().unwrap()];
    let frame = [7; 250_000];
    // Both producers' clocks are set back by an hour every 300 records. The second producer's clock
    // is also a day late.
    let mut stored = Vec::new();
    for number in 0..2000_i64 {
        let back_ns = number / 300 * 3_600_000_000_000;
        let owner = usize::from(number % 3 == 0);
        let day_ns = if owner == 1 { 86_400_000_000_000 } else { 0 };
        let time_ns = number - back_ns - day_ns;
        producers[owner].set_now(number);
        producers[owner]
            .store(&Record::whole(time_ns, 0, &frame))
            .unwrap();
        stored.push((owner, time_ns));
    }
    producers.iter_mut().for_each(Producer::publish);
    let mut kept: Vec<(usize, i64)> = Vec::new();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    while let Some(batch) = reader.next() {
        let producer = batch.producer;
        kept.extend(batch.iter().map(|packet| (producer, packet.time_ns)));
    }
    let whole_since = ring.statistics().whole_since_mono_ns.unwrap();
    let since = &stored[usize::try_from(whole_since).unwrap() + 1..];
    // The ring has 32 buckets of 8 packets, of which two are open.
    assert!(since.len() >= 29 * 8, "{}", since.len());
    assert!(since.iter().all(|packet| kept.contains(packet)));
}

/// A clock may jump faster than buckets fill. The table then refuses further steps.
#[test]
fn steps_are_bounded() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    let frame = [7; 250_000];
    let mut followed = 0;
    for number in 0..20_000_i64 {
        producer.store(&Record::whole(number, 0, &frame)).unwrap();
        followed += u64::from(producer.step(0, number));
    }
    let buckets = 20_000 / 8;
    assert!((buckets..=buckets + 17).contains(&followed), "{followed}");
    assert_eq!(ring.steps_made(), followed);
    assert!(ring.steps().len() <= 1024);
    producer.publish();
    let steps = ring.steps();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let batch = reader.next().unwrap();
    let needed = Step::stamp_ns(&steps, 0, 0, batch.first, 0);
    assert!(needed > 0 && needed < batch.first.cast_signed());
}

/// The times of records may go back.
#[test]
fn a_window_lists_the_buckets_that_touch_it() {
    let seed = 0x70c4;
    let mut random = fastrand::Rng::with_seed(seed);
    let ring = ring(2, 1, Mode::Record);
    let mut producers: Vec<_> = (0..2).map(|_| ring.producer().unwrap()).collect();
    for number in 0..60 {
        let producer = &mut producers[random.usize(..2)];
        let back = if random.u8(..4) == 0 {
            random.i64(0..30)
        } else {
            0
        };
        let ahead = if number == 20 { 1000 } else { 0 };
        store(producer, number - back + ahead, &frame(number, 90_000));
        producer.publish();
        let (mut all, mut listed) = (Vec::new(), Vec::new());
        (0..2).for_each(|producer| ring.buckets_from(producer, 0, &mut all));
        for _ in 0..20 {
            let from_ns = random.i64(-10..80) * STEP_NS;
            let to_ns = from_ns + random.i64(-1..40) * STEP_NS;
            ring.buckets_within(from_ns, to_ns, &mut listed);
            let touches = all.iter();
            let touches = touches.filter(|it| it.min_ns <= to_ns && it.max_ns >= from_ns);
            let touches: Vec<_> = touches.filter(|_| from_ns <= to_ns).copied().collect();
            assert_eq!(listed, touches, "seed {seed:#x}, {from_ns}..={to_ns}");
        }
    }
}
