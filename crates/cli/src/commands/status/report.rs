//! The state of a ring file as JSON and as text.

use std::{fmt::Write, path::Path};

use retroscope_recorder::{Clock, SystemClock, rfc3339};
use retroscope_ring::{
    Attached, AttachedBucket, AttachedProducer, AttachedState, CopyError, InterfaceEntry, Pages,
    RegionWriter, Step,
};
use serde::Serialize;

use crate::units::{counted, show_size};

/// Maximum number of interface names in the text. A damaged file may claim any number.
const NAMES_MAX: usize = 16;

/// The object of `--json`. Times are RFC 3339 in UTC; unknown values are `null`.
#[derive(Debug, Serialize)]
pub(super) struct RingReport {
    ring_file: String,
    bytes: u64,
    bucket_bytes: u64,
    /// `explicit`, `transparent` or `small`.
    pages: Option<&'static str>,
    created: Option<String>,
    writer: WriterJson,
    buckets: Counts,
    /// Packets that are now in the ring.
    packets: u64,
    /// Captured bytes of the packets that are now in the ring.
    packet_bytes: u64,
    /// Packets published since the start, including overwritten packets.
    stored_packets: u64,
    stored_bytes: u64,
    oldest: Option<String>,
    newest: Option<String>,
    /// The ring contains all packets that were stored since this time.
    whole_since: Option<String>,
    /// Seconds from `whole_since` to now, or to the last publication if the recorder is not known
    /// to run.
    held_seconds: Option<f64>,
    producers: Vec<ProducerJson>,
    interfaces: Vec<InterfaceJson>,
    /// Interfaces without room in the region's table.
    interfaces_unlisted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_list: Option<Vec<BucketJson>>,
}

#[derive(Debug, Serialize)]
struct WriterJson {
    /// Process ID in the recorder's own PID namespace.
    process: u64,
    /// `running`, `ended` or `killed`.
    state: &'static str,
    /// Whether the recorder started after the last boot of this machine. `null`: unknown.
    this_boot: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Counts {
    total: usize,
    free: usize,
    claimed: usize,
    open: usize,
    closed: usize,
    damaged: usize,
}

#[derive(Debug, Serialize)]
struct ProducerJson {
    published: u64,
    published_bytes: u64,
    /// `null`: the producer has not promised a time yet, or sends no more packets.
    watermark: Option<String>,
}

#[derive(Debug, Serialize)]
struct InterfaceJson {
    name: String,
    link_type: u16,
    snaplen: u32,
}

#[derive(Debug, Serialize)]
struct BucketJson {
    index: u32,
    generation: u64,
    state: &'static str,
    producer: usize,
    sequence: u64,
    first: u64,
    packets: u64,
    bytes: u64,
    from: String,
    to: String,
}

impl RingReport {
    pub(super) fn new(
        path: &Path,
        attached: &Attached,
        list_buckets: bool,
    ) -> Result<Self, CopyError> {
        let info = attached.info();
        let (interfaces, interfaces_unlisted) = attached.interfaces()?;
        let producers = attached.producers()?;
        let mut buckets = attached.buckets()?;
        let count = |state| buckets.iter().filter(|one| one.state == state).count();
        let counts = Counts {
            total: buckets.len(),
            free: count(AttachedState::Free),
            claimed: count(AttachedState::Claimed),
            open: count(AttachedState::Open),
            closed: count(AttachedState::Closed),
            damaged: count(AttachedState::Damaged),
        };
        buckets.retain(|bucket| bucket.span_ns.is_some());
        buckets.sort_unstable_by_key(|bucket| (bucket.span_ns, bucket.producer, bucket.sequence));
        // Spans are in ring time; the report has time stamps.
        let steps = attached.steps()?;
        let spans = buckets.iter().filter_map(|bucket| {
            let (from_ns, to_ns) = bucket.span_ns?;
            let stamp = |ring_ns: i64, record| {
                let offset_ns = offset_ns(&steps, bucket.producer, record);
                (ring_ns, ring_ns.saturating_add(offset_ns))
            };
            let last = bucket
                .first
                .saturating_add(bucket.packets.saturating_sub(1));
            Some((bucket, stamp(from_ns, bucket.first), stamp(to_ns, last)))
        });
        let oldest = spans.clone().min_by_key(|(_, from, _)| from.0);
        let newest = spans.clone().max_by_key(|(_, _, to)| to.0);
        let bucket_list = spans.map(|(bucket, from, to)| BucketJson {
            index: bucket.bucket.index,
            generation: bucket.bucket.generation,
            state: if bucket.state == AttachedState::Open {
                "open"
            } else {
                "closed"
            },
            producer: bucket.producer,
            sequence: bucket.sequence,
            first: bucket.first,
            packets: bucket.packets,
            bytes: bucket.bytes,
            from: rfc3339(from.1),
            to: rfc3339(to.1),
        });
        let producer_json = |producer: &AttachedProducer| ProducerJson {
            published: producer.published,
            published_bytes: producer.published_bytes,
            watermark: (producer.watermark_ns.filter(|&ns| ns != i64::MAX)).map(rfc3339),
        };
        let interface_json = |entry: InterfaceEntry| InterfaceJson {
            // The name comes from another process and goes to a terminal.
            name: entry.name.replace(char::is_control, "?"),
            link_type: entry.link_type,
            snaplen: entry.snaplen,
        };
        let writer = attached.writer()?;
        let history = history(attached, writer, &producers)?;
        // The numbers come from another process, so sums may overflow.
        let sum =
            |of: fn(&AttachedBucket) -> u64| buckets.iter().map(of).fold(0, u64::saturating_add);
        let total = |of: fn(&AttachedProducer) -> u64| {
            producers.iter().map(of).fold(0, u64::saturating_add)
        };
        Ok(Self {
            ring_file: path.display().to_string(),
            bytes: info.bytes,
            bucket_bytes: info.bucket_bytes as u64,
            pages: info.pages.map(|pages| match pages {
                Pages::Explicit => "explicit",
                Pages::Transparent => "transparent",
                Pages::Small => "small",
            }),
            created: info.created_ns.map(rfc3339),
            writer: WriterJson {
                process: info.process,
                state: match writer {
                    RegionWriter::Running => "running",
                    RegionWriter::Ended => "ended",
                    RegionWriter::Killed => "killed",
                },
                this_boot: info.this_boot,
            },
            buckets: counts,
            packets: sum(|bucket| bucket.packets),
            packet_bytes: sum(|bucket| bucket.bytes),
            stored_packets: total(|producer| producer.published),
            stored_bytes: total(|producer| producer.published_bytes),
            oldest: oldest.map(|(_, from, _)| rfc3339(from.1)),
            newest: newest.map(|(_, _, to)| rfc3339(to.1)),
            whole_since: history.map(|(since_ns, _)| rfc3339(since_ns)),
            held_seconds: history.map(|(_, ns)| ns as f64 / 1e9),
            bucket_list: list_buckets.then(|| bucket_list.collect()),
            producers: producers.iter().map(producer_json).collect(),
            interfaces: interfaces.into_iter().map(interface_json).collect(),
            interfaces_unlisted,
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, text: &mut String) -> std::fmt::Result {
        let (path, writer, packets) = (&self.ring_file, &self.writer, self.packets);
        let (bytes, bucket_bytes) = (show_size(self.bytes), show_size(self.bucket_bytes));
        let buckets = counted(self.buckets.total as u64, "bucket");
        let pages = match self.pages {
            Some("small") => "4 KiB",
            Some(pages) => pages,
            None => "unknown",
        };
        writeln!(
            text,
            "ring      {path} of {bytes}, {buckets} of {bucket_bytes}, pages: {pages}"
        )?;
        let state = match writer.state {
            "running" => "is running",
            "ended" => "ended in good order",
            _ => "was killed, and left what it had stored",
        };
        write!(text, "recorder  process {} {state}", writer.process)?;
        if let Some(created) = &self.created {
            write!(text, ", made {created}")?;
        }
        if writer.this_boot == Some(false) {
            write!(text, ", before this machine was started")?;
        }
        let (packet_bytes, stored) = (show_size(self.packet_bytes), self.stored_packets);
        writeln!(
            text,
            "\npackets   {packets} in the ring ({packet_bytes}), {stored} stored since the start"
        )?;
        match (self.held_seconds, &self.whole_since) {
            _ if self.oldest.is_none() => writeln!(text, "history   none: the ring is empty")?,
            (Some(seconds), Some(since)) => {
                writeln!(text, "history   {seconds:.3} s: all since {since}")?;
            }
            _ => writeln!(text, "history   unknown: packets of a file")?,
        }
        if let (Some(oldest), Some(newest)) = (&self.oldest, &self.newest) {
            writeln!(text, "stamps    from {oldest} to {newest}")?;
        }
        self.write_buckets(text)?;
        let names = self.interfaces.iter().map(|entry| entry.name.as_str());
        let names = names.filter(|name| !name.is_empty()).take(NAMES_MAX);
        let names: Vec<&str> = names.collect();
        let unnamed = (self.interfaces.len() - names.len()) as u64;
        let shown = match names.as_slice() {
            [] => "no interface".to_owned(),
            names => names.join(", "),
        };
        match self.interfaces_unlisted.saturating_add(unnamed) {
            0 => writeln!(text, "captured  {shown}"),
            more => writeln!(text, "captured  {shown} and {more} more"),
        }
    }

    fn write_buckets(&self, text: &mut String) -> std::fmt::Result {
        let counts = &self.buckets;
        let (closed, open, free) = (counts.closed, counts.open, counts.free);
        write!(text, "buckets   {closed} closed, {open} open, {free} free")?;
        let (claimed, damaged) = (counts.claimed, counts.damaged);
        for (count, what) in [(claimed, "being overwritten"), (damaged, "damaged")] {
            if count > 0 {
                write!(text, ", {count} {what}")?;
            }
        }
        writeln!(text)?;
        let Some(list) = &self.bucket_list else {
            return Ok(());
        };
        writeln!(
            text,
            "{:>6} {:>10} {:6} {:>8} {:>12} {:>9} {:>11}  {:30}  to",
            "bucket", "generation", "state", "producer", "first", "packets", "bytes", "from"
        )?;
        for bucket in list {
            writeln!(
                text,
                "{:>6} {:>10} {:6} {:>8} {:>12} {:>9} {:>11}  {:30}  {}",
                bucket.index,
                bucket.generation,
                bucket.state,
                bucket.producer,
                bucket.first,
                bucket.packets,
                bucket.bytes,
                bucket.from,
                bucket.to
            )?;
        }
        Ok(())
    }
}

/// Start of the complete history in ns since the epoch, and its length in ns. `None`: unknown.
fn history(
    attached: &Attached,
    writer: RegionWriter,
    producers: &[AttachedProducer],
) -> Result<Option<(i64, i64)>, CopyError> {
    let info = attached.info();
    let last_ns = producers.iter().filter_map(|p| p.published_mono_ns).max();
    let (Some(created_mono_ns), Some(last_ns)) = (info.created_mono_ns, last_ns) else {
        return Ok(None);
    };
    let is_running = writer == RegionWriter::Running && info.this_boot == Some(true);
    let now_ns = if is_running {
        SystemClock.mono_ns()
    } else {
        last_ns
    };
    let since_mono_ns = attached.whole_since_mono_ns()?.unwrap_or(created_mono_ns);
    let since_ns = since_mono_ns.saturating_sub(created_mono_ns);
    let since_ns = info.created_ns.unwrap_or(0).saturating_add(since_ns);
    Ok(Some((since_ns, now_ns.saturating_sub(since_mono_ns))))
}

/// Time stamp minus ring time of a record, in ns. Ignores [`Step::clock`], so the result may be
/// wrong if the producer serves several sources.
fn offset_ns(steps: &[Step], producer: usize, record: u64) -> i64 {
    let before = steps
        .iter()
        .filter(|step| step.producer == producer && step.first <= record);
    let last = before.max_by_key(|step| step.first);
    last.map_or(0, |step| step.offset_ns)
}

#[cfg(test)]
mod tests {
    use retroscope_ring::{Backing, Record, Ring, RingConfig};

    use super::*;

    #[test]
    fn a_bucket_has_the_stamps_of_its_ends() {
        let mut config = RingConfig::new(8 << 20, 1, 1);
        config.backing = Backing::Memfd;
        let ring = Ring::new(&config, None).unwrap();
        let mut producer = ring.producer().unwrap();
        producer.store(&Record::whole(0, 0, &[])).unwrap();
        assert!(producer.step(0, 3_600_000_000_000));
        producer
            .store(&Record::whole(1_000_000_000, 0, &[]))
            .unwrap();
        producer.publish();
        let path = ring.path().unwrap();
        let report = RingReport::new(&path, &Attached::open(&path).unwrap(), true).unwrap();
        let bucket = &report.bucket_list.as_ref().unwrap()[0];
        assert_eq!(bucket.from, rfc3339(0));
        assert_eq!(bucket.to, rfc3339(3_601_000_000_000));
        assert_eq!(report.oldest.as_ref(), Some(&bucket.from));
        assert_eq!(report.newest.as_ref(), Some(&bucket.to));
    }
}
