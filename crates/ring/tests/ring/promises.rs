//! Single promises of the ring's public API.

use std::{
    fs,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, InterfaceEntry, Record, Ring, RingConfig, RingError};

const SECOND_NS: i64 = 1_000_000_000;
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_packet_of_an_hour_ago_is_there_on_sixteen_idle_links() {
    let ring = Ring::new(&RingConfig::new(128 << 20, 16, 1), None).unwrap();
    assert_eq!((ring.bytes(), ring.buckets()), (128 << 20, 128));
    let mut producers: Vec<_> = (0..16).map(|_| ring.producer().unwrap()).collect();
    let frame = [0x5a; 500];
    let seconds = 4 * 3600;
    for second in 0..seconds {
        for producer in &mut producers {
            producer
                .store(&Record::whole(second * SECOND_NS, 0, &frame))
                .unwrap();
            producer.set_watermark(second * SECOND_NS);
        }
    }
    let from = (seconds - 3600) * SECOND_NS;
    let window = ring.reserve(from, from);
    assert_eq!(window.evicted_before().packets, 0);
    let mut buckets = Vec::new();
    window.buckets(&mut buckets);
    let found = buckets.iter().map(|info| {
        let view = ring.hold(info.bucket).unwrap();
        view.iter_from(0)
            .filter(|packet| packet.time_ns == from && packet.data == frame)
            .count()
    });
    assert_eq!(found.sum::<usize>(), 16);
}

#[test]
fn a_lone_packet_is_seen_as_soon_as_it_is_published() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let mut producer = ring.producer().unwrap();
    producer.store(&Record::whole(1, 0, b"lone")).unwrap();
    assert!(reader.next().is_none(), "not published");
    producer.publish();
    let batch = reader.next().unwrap();
    assert_eq!(
        batch
            .into_iter()
            .map(|packet| packet.data)
            .collect::<Vec<_>>(),
        [b"lone"]
    );
    assert_eq!(ring.statistics().open_buckets, 1);
}

#[test]
fn long_captures_are_cut_and_counted() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let mut producer = ring.producer().unwrap();
    let parts = [vec![1; 100_000], vec![2; 200_000], vec![3; 10]];
    let record = Record {
        wire_len: 524_501,
        parts: [&parts[0], &parts[1], &parts[2]],
        ..Record::whole(1, 0, &[])
    };
    producer.store(&record).unwrap();
    producer
        .store(&Record {
            parts: [&parts[0], &[], &[]],
            ..record
        })
        .unwrap();
    producer.publish();
    assert_eq!(producer.cut_records(), 1);
    let packets: Vec<_> = reader.next().unwrap().into_iter().collect();
    assert_eq!(
        (packets[0].data.len(), packets[0].wire_len),
        (256 << 10, 524_501)
    );
    assert_eq!(packets[0].data, &parts.concat()[..256 << 10]);
    assert_eq!(
        (packets[1].data, packets[1].wire_len),
        (&parts[0][..], 524_501)
    );
}

#[test]
fn what_is_stored_is_published_at_128_kib_by_itself() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    for _ in 0..128 {
        assert_eq!(ring.published(0), 0);
        producer.store(&Record::whole(1, 0, &[0; 1024])).unwrap();
    }
    assert_eq!(ring.published(0), 128);
}

/// Records without captured bytes do not count towards the limit of 128 KiB.
#[test]
fn empty_records_are_published_by_their_number() {
    const MANY: usize = 4096;
    let ring = Ring::new(&RingConfig::new(16 << 20, 2, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    for _ in 0..MANY {
        assert_eq!(ring.published(0), 0);
        producer.store(&Record::whole(1, 0, &[])).unwrap();
    }
    assert_eq!(ring.published(0), MANY as u64);
    let mut producer = ring.producer().unwrap();
    let burst = std::iter::repeat_n(Record::whole(1, 0, &[]), MANY - 1);
    assert_eq!(producer.store_burst(burst), Ok(MANY - 1));
    assert_eq!(ring.published(1), 0);
    let burst = std::iter::repeat_n(Record::whole(1, 0, &[]), 2);
    assert_eq!(producer.store_burst(burst), Ok(2));
    assert_eq!(ring.published(1), MANY as u64, "the end of a group");
}

#[test]
fn interfaces_are_numbered_in_order() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let entry = |name: &str| InterfaceEntry {
        name: name.into(),
        link_type: 1,
        snaplen: 0,
        time_domain: 0,
        clock: 0,
    };
    assert_eq!(ring.add_interface(entry("eth0")).unwrap(), 0);
    assert_eq!(
        ring.add_interface(entry("eth0")).unwrap(),
        1,
        "append only: no search for equals"
    );
    assert_eq!(ring.interfaces().get(1), Some(&entry("eth0")));
    assert_eq!(ring.interfaces().get(2), None);
    for _ in 2..1 << 16 {
        ring.add_interface(entry("")).unwrap();
    }
    assert_eq!(ring.interfaces().len(), 1 << 16);
    assert!(matches!(
        ring.add_interface(entry("")),
        Err(RingError::Interfaces)
    ));
}

#[test]
fn members_divide_the_producers() {
    let ring = Ring::new(&RingConfig::new(32 << 20, 5, 2), None).unwrap();
    let readers = ring.group_of(GroupKind::Lapped, 2).unwrap();
    let mut producers: Vec<_> = (0..5).map(|_| ring.producer().unwrap()).collect();
    for producer in &mut producers {
        producer.store(&Record::whole(0, 0, b"frame")).unwrap();
        producer.publish();
    }
    let served = readers.into_iter().map(|mut reader| {
        let mut served = Vec::new();
        while let Some(batch) = reader.next() {
            served.push(batch.producer);
        }
        served
    });
    assert_eq!(served.collect::<Vec<_>>(), [vec![0, 2, 4], vec![1, 3]]);
    assert!(matches!(
        ring.group_of(GroupKind::Lapped, 0),
        Err(RingError::Readers { .. })
    ));
}

#[test]
fn progress_is_told_up_to_the_end() {
    let mut told = Vec::new();
    let mut progress = |done, total| told.push((done, total));
    let ring = Ring::new(&RingConfig::new(200 << 20, 1, 1), Some(&mut progress)).unwrap();
    assert!(told.is_sorted());
    let (done, total) = told[told.len() - 1];
    assert_eq!(done, total);
    assert!(total > ring.bytes() && total <= ring.bytes() + (4 << 20));
}

#[test]
#[should_panic(expected = "was not committed")]
fn what_is_not_committed_cannot_be_read() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    let reservation = ring.reserve(0, 10);
    producer.store(&Record::whole(1, 0, b"seen")).unwrap();
    producer.publish();
    producer.store(&Record::whole(2, 0, b"not yet")).unwrap();
    let mut buckets = Vec::new();
    reservation.buckets(&mut buckets);
    let view = ring.hold(buckets[0].bucket).unwrap();
    assert_eq!(view.packet(0).data, b"seen");
    let _ = view.packet(1);
}

/// A producer that called `leave_sleepers` must wake sleeping readers before all producers together
/// can have lapped these readers.
#[test]
fn sleepers_left_alone_are_woken_before_much_of_the_ring_is_filled() {
    for producers in [1, 2, 16] {
        let ring = Ring::new(&RingConfig::new(128 << 20, producers, 1), None).unwrap();
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        producer.leave_sleepers();
        let quiet = (ring.buckets() / (8 * producers)) as u64;
        let frame = [0; 60_000];
        let in_bucket = (ring.bucket_bytes() / frame.len()) as u64;
        let (thread_id, its_id) = mpsc::channel();
        let reading = thread::spawn(move || {
            thread_id.send(rustix::thread::gettid()).unwrap();
            let start = Instant::now();
            let news = reader.wait(DEADLINE);
            (news, start.elapsed(), reader)
        });
        let id = its_id.recv_timeout(DEADLINE).unwrap();
        let stat = format!("/proc/self/task/{}/stat", id.as_raw_nonzero());
        // In `stat` the state follows the name in parentheses: S is asleep.
        let sleeps = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        while !sleeps() {
            thread::yield_now();
        }
        for time in 0..(quiet + 2) * in_bucket {
            if time < quiet.saturating_sub(1) * in_bucket {
                assert!(sleeps(), "woken after {time} of {in_bucket} a bucket");
            }
            let record = Record::whole(time.cast_signed(), 0, &frame);
            producer.store(&record).unwrap();
        }
        let (news, slept, mut reader) = reading.join().unwrap();
        assert!(news);
        assert!(slept < DEADLINE, "nobody woke it");
        assert!(reader.next().is_some());
        assert_eq!(reader.lapped().packets, 0);
    }
}
