//! The forbidden outcomes except `lost_wake_up`, one function each. A failure names its function,
//! and the line of the call.

use std::ops::RangeInclusive;

use retroscope_ring::{BucketInfo, Packet, RingStatistics};

use super::names::Names;

/// A record differs from the contents that its name determines.
#[track_caller]
pub(crate) fn torn_record(names: &Names, packet: &Packet<'_>, producer: usize, number: u64) {
    let named = names.record(producer, number);
    assert!(
        *packet == named.packet(),
        "FORBIDDEN torn_record: producer {producer}, record {number}: time {} of {}, {} bytes of {}",
        packet.time_ns,
        named.time_ns,
        packet.data.len(),
        named.captured()
    );
}

#[track_caller]
pub(crate) fn early_record(producer: usize, number: u64, begun: u64) {
    assert!(
        number < begun,
        "FORBIDDEN early_record: producer {producer} has begun {begun} records, and {number} is seen"
    );
}

/// A batch does not begin at the end of the last batch plus the missed records.
#[track_caller]
pub(crate) fn untold_gap(producer: usize, first: u64, expected: u64, missed: u64) {
    assert_eq!(
        first,
        expected + missed,
        "FORBIDDEN untold_gap: producer {producer}, expected {expected}, told {missed} missed"
    );
}

/// Batches reported more missed records than the reader counted as lapped.
#[track_caller]
pub(crate) fn told_unfound(told: u64, lapped: u64) {
    assert!(
        told <= lapped,
        "FORBIDDEN told_unfound: {told} told as missed, {lapped} found missing"
    );
}

/// A gating group missed a record that was published after the group was made.
#[track_caller]
pub(crate) fn gating_loss(producer: usize, missed: u64) {
    assert_eq!(
        missed, 0,
        "FORBIDDEN gating_loss: records of producer {producer}"
    );
}

/// One generation of a bucket has two different contents.
#[track_caller]
pub(crate) fn stale_hold(held: &BucketInfo, producer: usize, first: u64) {
    assert_eq!(
        (held.producer, held.first),
        (producer, first),
        "FORBIDDEN stale_hold: {:?}",
        held.bucket
    );
}

/// A record's time is outside of its bucket's range, or a closed bucket's range is too large.
#[track_caller]
pub(crate) fn time_outside_bucket(info: &BucketInfo, min_ns: i64, max_ns: i64, all: bool) {
    assert!(
        info.min_ns <= min_ns && info.max_ns >= max_ns,
        "FORBIDDEN time_outside_bucket: records of {min_ns}..={max_ns}, {info:?}"
    );
    assert!(
        !all || (info.min_ns, info.max_ns) == (min_ns, max_ns),
        "FORBIDDEN time_outside_bucket: all records are of {min_ns}..={max_ns}, {info:?}"
    );
}

/// Packets of a window are counted never or twice among read, gone before, and reported as fallen.
#[track_caller]
pub(crate) fn lost_from_window(
    window: &RangeInclusive<i64>,
    inside: u64,
    read: u64,
    before: u64,
    fallen: u64,
) {
    assert_eq!(
        inside,
        read + before + fallen,
        "FORBIDDEN lost_from_window: {window:?}: read {read}, gone before {before}, fallen {fallen}"
    );
}

/// A reservation lost a bucket, although no mode of the round is record mode.
#[track_caller]
pub(crate) fn overwritten_though_reserved(buckets: usize) {
    assert_eq!(
        buckets, 0,
        "FORBIDDEN overwritten_though_reserved: {buckets} buckets, and nobody was in record mode"
    );
}

/// A record is older than the watermark that was read before the record was published.
#[track_caller]
pub(crate) fn older_than_watermark(producer: usize, number: u64, time_ns: i64, watermark_ns: i64) {
    assert!(
        time_ns >= watermark_ns,
        "FORBIDDEN older_than_watermark: producer {producer}, record {number} of {time_ns} after {watermark_ns}"
    );
}

/// A watermark is seen before all records that it promises.
#[track_caller]
pub(crate) fn watermark_before_records(producer: usize, published: u64, promised: u64) {
    assert!(
        published >= promised,
        "FORBIDDEN watermark_before_records: producer {producer} shows {published} of {promised} records"
    );
}

/// Counts contradict each other or earlier counts.
#[track_caller]
pub(crate) fn impossible_counts(before: &RingStatistics, now: &RingStatistics, buckets: usize) {
    let monotone = now.stored_packets >= before.stored_packets
        && now.stored_bytes >= before.stored_bytes
        && now.evicted_packets >= before.evicted_packets
        && now.evicted_bytes >= before.evicted_bytes
        && now.reservations_fallen >= before.reservations_fallen
        && now.free_buckets <= before.free_buckets;
    let possible = now.evicted_packets <= now.stored_packets
        && now.reserved_buckets <= now.closed_buckets
        && now.free_buckets + now.open_buckets + now.closed_buckets == buckets
        && now.oldest_ns <= now.newest_ns;
    assert!(
        monotone && possible,
        "FORBIDDEN impossible_counts: {before:?}, then {now:?}"
    );
}

/// A group's position decreases, or exceeds the published records.
#[track_caller]
pub(crate) fn impossible_position(producer: usize, before: u64, now: u64, published: u64) {
    assert!(
        now == u64::MAX || (now >= before && now <= published),
        "FORBIDDEN impossible_position: producer {producer}: {before}, then {now} of {published}"
    );
}

/// At the end, stored records are counted never or twice among evicted and present.
#[track_caller]
pub(crate) fn open_ledger_of_the_ring(stored: (u64, u64), evicted: (u64, u64), there: (u64, u64)) {
    assert_eq!(
        stored,
        (evicted.0 + there.0, evicted.1 + there.1),
        "FORBIDDEN open_ledger_of_the_ring: (packets, bytes) evicted {evicted:?}, there {there:?}"
    );
}

/// Records stored since the reader's start are counted never or twice among analyzed, lapped and
/// unread.
#[track_caller]
pub(crate) fn open_ledger_of_a_reader(stored: u64, analyzed: u64, lapped: u64, unread: u64) {
    assert_eq!(
        stored,
        analyzed + lapped + unread,
        "FORBIDDEN open_ledger_of_a_reader: analyzed {analyzed}, lapped {lapped}, unread {unread}"
    );
}

/// A burst succeeded with fewer than all records stored, or failed with all stored.
#[track_caller]
pub(crate) fn miscounted_burst(records: u64, stored: u64, all: bool) {
    assert_eq!(
        all,
        stored == records,
        "FORBIDDEN miscounted_burst: {stored} of {records}"
    );
    assert!(
        stored <= records,
        "FORBIDDEN miscounted_burst: {stored} of {records}"
    );
}

/// The count of cut captures is wrong.
#[track_caller]
pub(crate) fn uncounted_cut(counted: u64, cut: u64) {
    assert_eq!(counted, cut, "FORBIDDEN uncounted_cut");
}
