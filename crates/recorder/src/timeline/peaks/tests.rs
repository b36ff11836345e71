use retroscope_ring::{Producer, Record, RingConfig};

use super::*;
use crate::{
    Timeline,
    tests::{
        live::{START, config},
        rig::{MS, Rig, S, udp},
    },
    timeline::{TimelineRequest, TriggerLog},
};

struct Filled {
    ring: Ring,
    producers: Vec<Producer>,
    cache: PeakCache,
}

impl Filled {
    fn new(mib: u64, producers: usize) -> Self {
        let ring = Ring::new(&RingConfig::new(mib << 20, producers, 1), None).unwrap();
        for name in ["eth0", "eth1"] {
            let entry = InterfaceEntry {
                name: name.to_owned(),
                link_type: 1,
                snaplen: 0,
                time_domain: 0,
                clock: 0,
            };
            ring.add_interface(entry).unwrap();
        }
        Self {
            producers: (0..producers).map(|_| ring.producer().unwrap()).collect(),
            cache: PeakCache::default(),
            ring,
        }
    }

    fn store(&mut self, producer: usize, record: &Record<'_>) {
        self.producers[producer].store(record).unwrap();
    }

    /// Makes the stored records visible, and returns the buckets.
    fn buckets(&mut self) -> Vec<PeakBucket> {
        self.producers.iter_mut().for_each(Producer::publish);
        let buckets = self.ring.attached().buckets().unwrap().into_iter();
        buckets.filter_map(|it| PeakBucket::new(it, &[])).collect()
    }

    fn line(&self, mut buckets: Vec<PeakBucket>, asked: Asked) -> Timeline {
        let slots = TimelineSlots::new(asked.stamps, asked.slots);
        let interfaces = self.ring.interfaces();
        let reading = PeakReading {
            ring: &self.ring,
            cache: &self.cache,
            steps: &[],
            interfaces: &interfaces,
            slots,
            by: asked.by,
            records: asked.records,
        };
        let sums = reading.read(&mut buckets);
        let present: Vec<_> = buckets.iter().map(|it| it.stretch).collect();
        let triggers = TriggerLog::default();
        let losses = std::iter::empty();
        Timeline::new(
            slots,
            (&present, Some(sums)),
            (None, i64::MAX),
            losses,
            &triggers,
        )
    }
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    stamps: (i64, i64),
    slots: usize,
    by: SeriesBy,
    records: u64,
}

impl Asked {
    fn of(stamps: (i64, i64), slots: usize) -> Self {
        Self {
            stamps,
            slots,
            by: SeriesBy::Nothing,
            records: u64::MAX,
        }
    }
}

fn most(counts: &[Option<u64>]) -> u64 {
    counts.iter().flatten().copied().max().unwrap_or(0)
}

fn sum(counts: &[Option<u64>]) -> u64 {
    counts.iter().flatten().sum()
}

/// A minute has one packet a millisecond, and a burst of 2 ms at 1 Gbit/s.
#[test]
fn a_burst_keeps_its_height_at_every_slot_width() {
    for (mib, queues, len, begin_ns) in [
        (16, 1, 60, 20_300_000_000),
        (128, 1, 1400, 7 * S),
        (20, 4, 60, 30 * S + 1),
    ] {
        let mut filled = Filled::new(mib, queues);
        // A preamble of 8, a checksum of 4 and a gap of 12 bytes; 8 ns for each byte.
        let gap_ns = (i64::try_from(len).unwrap() + 24) * 8;
        let count = 2 * MS / gap_ns;
        let mut times: Vec<i64> = (0..60_000).map(|number| number * MS + 500_000).collect();
        times.extend((0..count).map(|number| begin_ns + number * gap_ns));
        times.sort_unstable();
        let data = vec![0; len];
        for (number, time_ns) in times.iter().enumerate() {
            filled.store(number % queues, &Record::whole(*time_ns, 0, &data));
        }
        let height = u64::try_from(MS / gap_ns).unwrap();
        let widths = [
            500_000,
            700_000,
            MS,
            1_500_000,
            3 * MS,
            10 * MS,
            33 * MS,
            100 * MS,
            S,
            60 * S,
        ];
        for width_ns in widths {
            let all = 60 * S / width_ns;
            let slots = all.min(2000);
            let from_ns = if all > 2000 {
                begin_ns - 700 * width_ns - 12_345
            } else {
                0
            };
            let stamps = (from_ns, from_ns + slots * width_ns - 1);
            let buckets = filled.buckets();
            assert!(buckets.len() > queues, "some buckets are full");
            let line = filled.line(buckets, Asked::of(stamps, usize::try_from(slots).unwrap()));
            assert_eq!(line.slot_ns, width_ns);
            let peaks = line.peaks.unwrap();
            assert_eq!(peaks.known_from_ns, None);
            let scale = |count: u64| count * MS.unsigned_abs() / peaks.interval_ns.unsigned_abs();
            let packets = scale(most(&peaks.all.peak_packets));
            let what = format!("{queues} queues, {len} bytes, {width_ns} ns: {packets}");
            assert!(
                (height - 2..=height + 4).contains(&packets),
                "{what} of {height}"
            );
            let bytes = most(&peaks.all.peak_packets) * len as u64;
            assert_eq!(most(&peaks.all.peak_bytes), bytes, "{what}");
            // Packets at the edges of the time range may count in part, unless the range begins at
            // 0.
            let (from, to) = stamps;
            let within = times.iter().filter(|ns| (from..=to).contains(ns)).count();
            let counted = sum(&line.packets);
            assert!(
                counted.abs_diff(within as u64) <= 1500,
                "{what}: {counted} of {within}"
            );
            if from == 0 {
                assert_eq!(counted, within as u64, "{what}");
                assert_eq!(sum(&peaks.all.wire_bytes), (within * len) as u64, "{what}");
            }
        }
    }
}

/// 16 packets of one millisecond, from two queues, in several buckets.
#[test]
fn an_interval_of_two_buckets_and_two_queues_is_one() {
    let mut filled = Filled::new(16, 2);
    let large = vec![0; 200_000];
    for producer in 0..2 {
        for number in 0..8 {
            filled.store(producer, &Record::whole(5 * MS + number, 0, &large));
        }
    }
    let buckets = filled.buckets();
    assert!(buckets.len() >= 4, "{}", buckets.len());
    let peaks = filled
        .line(buckets, Asked::of((0, 10 * MS - 1), 10))
        .peaks
        .unwrap();
    let expected: Vec<_> = (0..10)
        .map(|slot| Some(if slot == 5 { 16 } else { 0 }))
        .collect();
    assert_eq!(peaks.all.peak_packets, expected);
    assert_eq!(peaks.all.packets, expected);
}

#[test]
fn series_have_their_own_peaks() {
    let mut filled = Filled::new(16, 1);
    for (ms, interface, direction, count) in
        [(1, 0, 1, 3), (1, 1, 2, 4), (7, 0, 2, 5), (8, 1, 0, 1)]
    {
        for number in 0..count {
            let record = Record {
                direction,
                ..Record::whole(ms * MS + number, interface, &[0; 100])
            };
            filled.store(0, &record);
        }
    }
    let mut series = |by| {
        let asked = Asked {
            by,
            ..Asked::of((0, 10 * MS - 1), 2)
        };
        let buckets = filled.buckets();
        let peaks = filled.line(buckets, asked).peaks.unwrap();
        assert_eq!(peaks.all.peak_packets, [Some(7), Some(5)]);
        assert_eq!(peaks.series_left_out, 0);
        let each = peaks.series.into_iter();
        let each = each.map(|(name, counts)| {
            let of = |counts: &[Option<u64>]| [counts[0].unwrap(), counts[1].unwrap()];
            assert_eq!(
                counts.peak_bytes[0],
                counts.peak_packets[0].map(|it| it * 100)
            );
            (name, of(&counts.packets), of(&counts.peak_packets))
        });
        each.collect::<Vec<_>>()
    };
    let name = str::to_owned;
    let expected = [
        (name("eth0"), [3, 5], [3, 5]),
        (name("eth1"), [4, 1], [4, 1]),
    ];
    assert_eq!(series(SeriesBy::Interface), expected);
    let expected = [
        (name("out"), [4, 5], [4, 5]),
        (name("in"), [3, 0], [3, 0]),
        (name("unknown"), [0, 1], [0, 1]),
    ];
    assert_eq!(series(SeriesBy::Direction), expected);
    assert!(series(SeriesBy::Nothing).is_empty());
}

/// A request with few records begins with the newest buckets, and later requests read the rest.
/// After that, a request reads only new records.
#[test]
fn a_request_reads_a_bounded_number_of_records() {
    let mut filled = Filled::new(16, 2);
    let data = [0; 1000];
    let store = |filled: &mut Filled, numbers: Range<usize>| {
        for number in numbers {
            let time_ns = i64::try_from(number).unwrap() * MS / 10;
            filled.store(number % 2, &Record::whole(time_ns, 0, &data));
        }
    };
    store(&mut filled, 0..6000);
    let asked = Asked {
        records: 700,
        ..Asked::of((0, 600 * MS - 1), 60)
    };
    let mut known_ns = i64::MAX;
    let mut requests = 0;
    loop {
        let buckets = filled.buckets();
        let line = filled.line(buckets, asked);
        let peaks = line.peaks.unwrap();
        assert_eq!(sum(&line.packets), 6000, "unread packets are spread");
        assert_eq!(sum(&peaks.all.wire_bytes), 6_000_000);
        requests += 1;
        let Some(known_from_ns) = peaks.known_from_ns else {
            assert!(
                peaks.all.peak_packets.iter().all(|it| *it == Some(10)),
                "{peaks:?}"
            );
            break;
        };
        assert!(known_from_ns <= known_ns, "the newest first");
        known_ns = known_from_ns;
        for (slot, peak) in peaks.all.peak_packets.iter().enumerate() {
            let begin_ns = i64::try_from(slot).unwrap() * 10 * MS;
            assert_eq!(
                peak.is_some(),
                begin_ns >= known_from_ns,
                "{slot}: {peaks:?}"
            );
        }
    }
    assert_eq!(requests, 6000_usize.div_ceil(700));
    store(&mut filled, 6000..6300);
    let asked = Asked {
        records: 300,
        ..Asked::of((600 * MS, 630 * MS - 1), 3)
    };
    let buckets = filled.buckets();
    let peaks = filled.line(buckets, asked).peaks.unwrap();
    assert_eq!(peaks.known_from_ns, None, "only the new records are read");
    assert_eq!(peaks.all.peak_packets, [Some(10); 3]);
}

/// Buckets that were overwritten between their listing and their reading count neither as read nor
/// as unread.
#[test]
fn overwritten_buckets_are_left_out() {
    let mut filled = Filled::new(8, 1);
    let large = vec![0; 200_000];
    let store = |filled: &mut Filled, numbers: Range<i64>| {
        for number in numbers {
            filled.store(0, &Record::whole(number * 10 * MS, 0, &large));
        }
    };
    store(&mut filled, 0..20);
    let listed = filled.buckets();
    let slots = Asked::of((0, 400 * MS - 1), 40);
    let before = filled.line(listed.clone(), slots);
    assert_eq!(sum(&before.packets), 20);
    store(&mut filled, 20..400);
    filled.cache = PeakCache::default();
    let line = filled.line(listed.clone(), slots);
    let peaks = line.peaks.unwrap();
    assert_eq!((sum(&line.packets), sum(&peaks.all.wire_bytes)), (0, 0));
    assert_eq!(peaks.known_from_ns, None);
    // Summaries of newer contents give the old list of buckets nothing.
    let now = filled.buckets();
    let stored = now.iter().map(|it| it.stretch.packets).sum::<u64>();
    let line = filled.line(now, Asked::of((0, 4 * S - 1), 400));
    assert_eq!(sum(&line.packets), stored);
    assert_eq!(sum(&filled.line(listed, slots).packets), 0);
}

/// The clock is set forward by an hour within a bucket.
#[test]
fn peaks_are_where_the_stamps_are() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    for (count, step_ns) in [(30, 3600 * S), (20, 0)] {
        for number in 0..count {
            rig.arrive(0, udp(1, 7, number));
        }
        rig.step();
        rig.pass(10 * MS);
        rig.step();
        let wall_ns = &rig.clock.wall_ns;
        wall_ns.fetch_add(step_ns, std::sync::atomic::Ordering::SeqCst);
    }
    for (from_ns, count) in [(START, 30), (START + 3600 * S, 20)] {
        for slots in [20, 80] {
            let request = TimelineRequest {
                from_ns: Some(from_ns),
                to_ns: Some(from_ns + 20 * MS - 1),
                slots,
                peaks: Some(SeriesBy::Nothing),
            };
            let line = rig.handle.timeline(&request).unwrap();
            let peaks = line.peaks.unwrap();
            assert_eq!(most(&peaks.all.peak_packets), count, "{from_ns} {slots}");
            assert_eq!(sum(&line.packets), count);
        }
    }
}

/// A dropped cell has at most 1/256 of the packets and of the bytes of its bucket.
#[test]
fn a_full_bucket_keeps_its_largest_cells() {
    for (seed, series) in [(1, 1), (2, 2), (3, 300)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cells = Vec::new();
        for interval in 0..20_000_i64 {
            let key = interval << SERIES_BITS | random.i64(0..series);
            let packets = if random.u8(..) == 0 {
                200
            } else {
                random.u32(1..4)
            };
            cells.push(PeakCell {
                key,
                packets,
                bytes: random.u32(60..6000),
            });
        }
        let all = cells.clone();
        let mut summary = BucketSummary {
            cells,
            ..BucketSummary::default()
        };
        summary.compact();
        let total = |cells: &[PeakCell]| {
            let sum = |value: fn(&PeakCell) -> u32| {
                cells.iter().map(|it| u64::from(value(it))).sum::<u64>()
            };
            [sum(|it| it.packets), sum(|it| it.bytes)]
        };
        let (before, kept, rest) = (total(&all), total(&summary.cells), total(&summary.rest));
        assert_eq!([kept[0] + rest[0], kept[1] + rest[1]], before);
        let limit = 2 * LARGEST + 2 * usize::try_from(PARTS.max(series)).unwrap();
        assert!(summary.cells.len() <= limit, "{}", summary.cells.len());
        let part = summary.exact_from_ns / INTERVAL_NS;
        assert!(part > 1 && summary.cells.is_sorted_by_key(|it| it.key));
        for cell in all.iter().filter(|cell| !summary.cells.contains(cell)) {
            assert!(u64::from(cell.packets) <= before[0] / 256);
            assert!(u64::from(cell.bytes) <= before[1] / 256);
            let near = |it: &&PeakCell| {
                (it.interval() / part, it.series()) == (cell.interval() / part, cell.series())
            };
            let near = summary.cells.iter().filter(near);
            assert!(
                near.clone().any(|it| it.packets >= cell.packets),
                "{cell:?}"
            );
            assert!(near.clone().any(|it| it.bytes >= cell.bytes), "{cell:?}");
        }
    }
}

/// Prints how long requests for peaks take:
/// `cargo test --release -p retroscope-recorder peaks_cost -- --ignored --nocapture`.
#[test]
#[ignore = "measures: run it alone, in a release build"]
fn peaks_cost() {
    for len in [60, 700, 1400] {
        let mut filled = Filled::new(1024, 1);
        let data = vec![0; len];
        let count = (960 << 20) / (i64::try_from(len).unwrap() + 16);
        for number in 0..count {
            // 100 kpps
            filled.store(0, &Record::whole(number * 10_000, 0, &data));
        }
        let last_ns = count * 10_000;
        let mut ask = |what: &str, asked: Asked| {
            let buckets = filled.buckets();
            let start = std::time::Instant::now();
            let line = filled.line(buckets, asked);
            let took = start.elapsed();
            let packets = sum(&line.packets);
            let each = took.as_nanos() as f64 / packets.max(1) as f64;
            println!("{len} bytes, {what}: {took:?} for {packets} packets, {each:.2} ns each");
        };
        let all = Asked::of((0, last_ns - 1), 1000);
        ask("whole ring, first request", all);
        ask("whole ring, again", all);
        ask(
            "last second, again",
            Asked::of((last_ns - S, last_ns - 1), 1000),
        );
        ask("0.5 ms slots", Asked::of((last_ns - S, last_ns - 1), 2000));
        ask("0.1 s", Asked::of((last_ns - 100 * MS, last_ns - 1), 10));
    }
}
