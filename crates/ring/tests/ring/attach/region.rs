//! The description of a ring in its memory region, read with [`Attached`].

use retroscope_ring::{
    Attached, AttachedState, Backing, Buffer, InterfaceEntry, Record, RegionWriter, Ring,
    RingConfig, Step,
};

use super::role::small;

fn memfd() -> (Ring, Attached) {
    let config = RingConfig {
        backing: Backing::Memfd,
        ..small()
    };
    let ring = Ring::new(&config, None).unwrap();
    let attached = Attached::open(&ring.path().unwrap()).unwrap();
    (ring, attached)
}

#[test]
fn a_region_tells_what_its_ring_is() {
    let (ring, attached) = memfd();
    let info = attached.info();
    assert_eq!(info.bytes, ring.bytes());
    assert_eq!((info.buckets, info.bucket_bytes), (8, 272 << 10));
    assert_eq!((info.producers, info.pages), (1, Some(ring.pages())));
    assert_eq!(info.created_ns, Some(1_700_000_000_000_000_000));
    assert_eq!(info.process, u64::from(std::process::id()));
    assert_eq!(info.this_boot, Some(true));
    assert_eq!(attached.writer(), Ok(RegionWriter::Running));
    drop(ring);
    assert_eq!(attached.writer(), Ok(RegionWriter::Ended));
    let anonymous = Ring::new(&small(), None).unwrap();
    assert_eq!(anonymous.path(), None);
}

#[test]
fn producers_tell_their_watermark() {
    let (ring, attached) = memfd();
    assert_eq!(attached.producers().unwrap()[0].watermark_ns, None);
    let mut producer = ring.producer().unwrap();
    producer.set_watermark(-5);
    assert_eq!(attached.producers().unwrap()[0].watermark_ns, Some(-5));
    drop(producer);
    assert_eq!(
        attached.producers().unwrap()[0].watermark_ns,
        Some(i64::MAX)
    );
}

#[test]
fn interfaces_stand_in_the_region() {
    let (ring, attached) = memfd();
    assert_eq!(attached.interfaces().unwrap(), (vec![], 0));
    let entry = |name: &str| InterfaceEntry {
        name: name.to_owned(),
        link_type: 1,
        snaplen: 262_144,
        time_domain: 2,
        clock: 0,
    };
    assert_eq!(ring.add_interface(entry("eth0")).unwrap(), 0);
    let long = "/a/rather/long/path/of/a/capture/file/that/somebody/once/made.pcapng";
    assert_eq!(ring.add_interface(entry(long)).unwrap(), 1);
    let (listed, unlisted) = attached.interfaces().unwrap();
    assert_eq!(listed[0], entry("eth0"));
    assert_eq!(listed[1].name, format!("{}…", &long[..54]));
    assert_eq!((listed.len(), unlisted), (2, 0));
    assert_eq!(
        ring.interfaces()[1],
        entry(long),
        "whole in its own process"
    );
}

#[test]
fn what_finds_no_place_in_the_table_is_counted() {
    let (ring, attached) = memfd();
    let entry = |number: u32| InterfaceEntry {
        name: number.to_string(),
        link_type: 1,
        snaplen: 0,
        time_domain: 0,
        clock: 0,
    };
    for number in 0..1 << 16 {
        assert_eq!(
            u32::from(ring.add_interface(entry(number)).unwrap()),
            number
        );
    }
    assert!(ring.add_interface(entry(0)).is_err());
    let (listed, unlisted) = attached.interfaces().unwrap();
    // The tables of the region have 2 MiB: 4096 bytes of headers, 128 for each of 1 producer and 8
    // buckets, and 32 for each of 1024 steps. The rest is for interfaces, with 64 bytes each.
    assert_eq!(listed.len(), ((2 << 20) - 4096 - 9 * 128 - 1024 * 32) / 64);
    assert_eq!(listed.len() as u64 + unlisted, 1 << 16);
    assert_eq!(ring.interfaces().last(), Some(&entry(65_535)));
    assert_eq!(listed.last().unwrap().name, (listed.len() - 1).to_string());
}

/// A later reader must find the clock steps and the end of the overwritten records.
#[test]
fn what_was_overwritten_and_stepped_stands_in_the_region() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let (ring, attached) = memfd();
    let mut producer = ring.producer().unwrap();
    assert_eq!(attached.whole_since_mono_ns().unwrap(), None);
    let frame = [7; 250_000];
    let mut stamps = Vec::new();
    for number in 0..60_i64 {
        if number == 56 {
            assert!(producer.step(3, -HOUR_NS));
        }
        producer.set_now(1000 + number);
        let record = Record::whole(number, 0, &frame);
        producer.store(&record).unwrap();
        stamps.push(if number < 56 {
            number
        } else {
            number - HOUR_NS
        });
    }
    producer.publish();
    let told = attached.producers().unwrap()[0];
    assert_eq!(told.published_mono_ns, Some(1059));
    let mut buckets = attached.buckets().unwrap();
    buckets.retain(|bucket| bucket.state == AttachedState::Closed);
    buckets.sort_by_key(|bucket| bucket.closing);
    assert!(buckets.is_sorted_by_key(|bucket| (bucket.first, bucket.closed_mono_ns)));
    // `whole_since_mono_ns` is the time at which the first record of the oldest bucket was stored,
    // or the record before.
    let oldest = buckets[0];
    assert_eq!(oldest.first, told.evicted_records);
    assert_eq!(oldest.first.cast_signed(), told.evicted_ns.unwrap() + 1);
    let whole_since_ns = attached.whole_since_mono_ns().unwrap().unwrap();
    assert_eq!(ring.statistics().whole_since_mono_ns, Some(whole_since_ns));
    let first_ns = 1000 + oldest.first.cast_signed();
    assert!((first_ns - 1..=first_ns).contains(&whole_since_ns));
    let mut buffer = Buffer::new();
    let mut found = Vec::new();
    for bucket in &buckets {
        attached.copy_bucket(bucket.bucket, &mut buffer).unwrap();
        let steps = attached.steps().unwrap();
        assert_eq!(steps, ring.steps());
        found.extend(
            buffer
                .packets()
                .zip(bucket.first..)
                .map(|(packet, record)| Step::stamp_ns(&steps, 0, 3, record, packet.time_ns)),
        );
    }
    let first = usize::try_from(oldest.first).unwrap();
    assert_eq!(found, stamps[first..first + found.len()]);
    assert!(found.len() > 5, "{found:?}");
}
