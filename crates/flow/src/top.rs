//! The traffic of flows, second by second, for a table of the largest flows.
//!
//! A shard counts in a [`TopSlice`] and gives the slice away after a second. A [`TopWindow`] adds
//! up the last slices.
//!
//! The number of flows in a slice bounds the memory; packets of further flows are counted together.
//! Each slice begins empty, so flows are missing mostly at random. A flow that sends a thousandth
//! of all packets is among the first 32,768 flows except with probability e^-32.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::index::FlowIndex;
use crate::{BiflowKey, FlowPacket, Host, Secret};

/// Minimum duration of a slice, ns.
const SLICE_NS: i64 = 1_000_000_000;

/// A number of packets, and the bytes of their whole frames on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficVolume {
    /// Number of packets.
    pub packets: u64,
    /// Bytes that the first end sent, and bytes that the second end sent. [`TopSubject::Host`]:
    /// bytes that the host sent, and bytes that it received. In [`TopReport::total`] and
    /// [`TopReport::untracked`] only the sum has a meaning.
    pub bytes: [u64; 2],
}

impl TrafficVolume {
    /// Bytes of both directions.
    #[must_use]
    pub fn bytes_both(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }

    fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes[0] += other.bytes[0];
        self.bytes[1] += other.bytes[1];
    }
}

/// The traffic of flows in a second or more.
#[derive(Debug, Default)]
pub struct TopSlice {
    /// Start and end, ns of the monotonic clock.
    times_ns: [i64; 2],
    flows: Vec<(BiflowKey, TrafficVolume)>,
    /// Traffic of flows that found no room.
    untracked: TrafficVolume,
}

/// Counts the packets of a shard in slices.
#[derive(Debug)]
pub(crate) struct TopCounter {
    secret: Secret,
    flows_max: usize,
    index: FlowIndex,
    slice: TopSlice,
    begin_ns: Option<i64>,
}

impl TopCounter {
    /// A counter with slices of at most `flows_max` flows, 1 to 2^32 - 1.
    pub(crate) fn new(flows_max: usize, secret: Secret) -> Self {
        Self {
            secret,
            flows_max,
            index: FlowIndex::new(flows_max, |_| {}),
            slice: TopSlice::default(),
            begin_ns: None,
        }
    }

    pub(crate) fn count(&mut self, packets: &[FlowPacket]) {
        let TopSlice {
            flows, untracked, ..
        } = &mut self.slice;
        for packet in packets {
            let key = packet.ends.key;
            let hash = self.secret.hash(&key);
            let mut slot = self.index.find(hash, |slot| flows[slot as usize].0 == key);
            if slot.is_none()
                && flows.len() < self.flows_max
                && let Some(room) = self.index.room(hash)
            {
                let new = u32::try_from(flows.len()).expect("flows_max has seen to it");
                self.index.insert(hash, new, room);
                flows.push((key, TrafficVolume::default()));
                slot = Some(new);
            }
            let volume = slot.map_or(&mut *untracked, |slot| &mut flows[slot as usize].1);
            volume.packets += 1;
            volume.bytes[usize::from(packet.ends.is_reverse)] += u64::from(packet.wire_len);
        }
    }

    /// See [`crate::Tracker::give_slice`].
    pub(crate) fn give(
        &mut self,
        now_ns: i64,
        give: impl FnOnce(TopSlice) -> Result<(), TopSlice>,
    ) {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        if now_ns < begin_ns.saturating_add(SLICE_NS) {
            return;
        }
        self.slice.times_ns = [begin_ns, now_ns];
        match give(std::mem::take(&mut self.slice)) {
            Ok(()) => {
                self.index = FlowIndex::new(self.flows_max, |_| {});
                self.begin_ns = Some(now_ns);
            }
            Err(slice) => self.slice = slice,
        }
    }
}

/// The order of the largest flows or hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopOrder {
    /// Flows with the most bytes both ways.
    #[default]
    Bits,
    /// Flows with the most packets both ways.
    Packets,
    /// Hosts with the most flows.
    Flows,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopSubject {
    /// A flow.
    Flow(BiflowKey),
    /// All flows of a host. [`TopRow::volume`] counts the host as the first end of each flow.
    Host(Host),
}

/// A flow or host of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopRow {
    /// The flow or host.
    pub subject: TopSubject,
    /// Number of flows. 1 if the subject is a flow.
    pub flows: u64,
    /// Traffic of these flows.
    pub volume: TrafficVolume,
}

/// The content of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopReport {
    /// The largest flows or hosts, the largest first.
    pub rows: Vec<TopRow>,
    /// Traffic of all packets, [`TopReport::untracked`] included.
    pub total: TrafficVolume,
    /// Traffic of packets whose flow found no room in a slice.
    pub untracked: TrafficVolume,
    /// Number of flows that found room.
    pub flows: u64,
    /// Time from the start to the end of the window, ns. 0 before the first slice.
    pub span_ns: i64,
}

/// The slices of the last seconds, of all shards.
#[derive(Debug)]
pub struct TopWindow {
    span_ns: i64,
    slices: Vec<TopSlice>,
}

impl TopWindow {
    /// A window of this number of seconds.
    #[must_use]
    pub fn new(seconds: u32) -> Self {
        Self {
            span_ns: i64::from(seconds) * SLICE_NS,
            slices: Vec::new(),
        }
    }

    /// Adds a slice, and removes slices that are older than the window.
    pub fn add(&mut self, slice: TopSlice) {
        self.slices.push(slice);
        // Rounds the window to the nearest number of slices: most are a little longer than a
        // second.
        let left_ns = self.times_ns()[1] - self.span_ns + SLICE_NS / 2;
        self.slices.retain(|slice| slice.times_ns[1] > left_ns);
    }

    fn times_ns(&self) -> [i64; 2] {
        let times = |at: usize| self.slices.iter().map(move |slice| slice.times_ns[at]);
        [times(0).min(), times(1).max()].map(Option::unwrap_or_default)
    }

    /// The content of the window, with at most `count` rows.
    #[must_use]
    pub fn report(&self, count: usize, by: TopOrder) -> TopReport {
        let (mut flows, mut untracked) = (
            HashMap::<BiflowKey, TrafficVolume>::new(),
            TrafficVolume::default(),
        );
        for slice in &self.slices {
            untracked.add(slice.untracked);
            for (key, volume) in &slice.flows {
                flows.entry(*key).or_default().add(*volume);
            }
        }
        let mut total = untracked;
        flows.values().for_each(|volume| total.add(*volume));
        let mut rows: Vec<TopRow> = match by {
            TopOrder::Flows => hosts(&flows),
            TopOrder::Bits | TopOrder::Packets => {
                let row = |(key, volume): (&BiflowKey, &TrafficVolume)| TopRow {
                    subject: TopSubject::Flow(*key),
                    flows: 1,
                    volume: *volume,
                };
                flows.iter().map(row).collect()
            }
        };
        rows.sort_unstable_by_key(|row| {
            let TrafficVolume { packets, .. } = row.volume;
            let bytes = row.volume.bytes_both();
            let rank = match by {
                TopOrder::Bits => [bytes, packets],
                TopOrder::Packets => [packets, bytes],
                TopOrder::Flows => [row.flows, bytes],
            };
            // Equal rows keep their order between reports.
            (Reverse(rank), row.subject)
        });
        rows.truncate(count);
        let [begin_ns, end_ns] = self.times_ns();
        TopReport {
            rows,
            total,
            untracked,
            flows: flows.len() as u64,
            span_ns: end_ns - begin_ns,
        }
    }
}

fn hosts(flows: &HashMap<BiflowKey, TrafficVolume>) -> Vec<TopRow> {
    let mut hosts = HashMap::<Host, (u64, TrafficVolume)>::new();
    for (key, volume) in flows {
        let [one, other] = key.hosts();
        let mut add = |host, volume| {
            let (flows, sum) = hosts.entry(host).or_default();
            *flows += 1;
            sum.add(volume);
        };
        add(one, *volume);
        if one != other {
            let [sent, got] = volume.bytes;
            let bytes = [got, sent];
            add(other, TrafficVolume { bytes, ..*volume });
        }
    }
    let row = |(host, (flows, volume))| TopRow {
        subject: TopSubject::Host(host),
        flows,
        volume,
    };
    hosts.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
