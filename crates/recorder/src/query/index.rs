//! Which buckets cannot have what a query asks for.
//!
//! A closed bucket may have two Bloom filters: one of the addresses of its packets, and one of
//! their Community IDs. The first query that reads the bucket and needs such a filter makes it from
//! its copy of the bucket, so that no inserter spends time on filters. Later queries may skip the
//! bucket. No packet is missed: a Bloom filter has no false negatives, and a bucket has no filter
//! of addresses if [`hosts_of`] cannot read all of its packets. A filter with more than 10 % false
//! positives is dropped.
//!
//! Both filters together take at most 2 % of a bucket, and the ring is smaller by that
//! ([`ring_bytes`]). A filter is of one generation of its bucket, so nobody resets filters. Hashes
//! are keyed, so that a sender cannot choose packets that collide.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::Mutex,
};

use fastbloom::{BloomFilter, BuilderWithBits};
use retroscope_filter::{FilterMode, NeededHosts, hosts_of};
use retroscope_packet::{FlowKey, LinkType, community_id, community_id_of, flow_of, parse};
use retroscope_ring::{BucketRef, InterfaceEntry, Packet, Ring};

use crate::control::lock;

/// A ring for which less memory is requested has no index.
const RING_BYTES_MIN: u64 = 256 << 20;
/// The index gets one of this many parts of the requested memory. That is 2 % of the other parts.
const PARTS: u64 = 51;
/// Filter bits for each 1,000 bytes of a bucket: together 2 % of the bucket. Addresses take 1.2 %
/// and Community IDs 0.8 %.
const HOST_BITS_PER_1000_BYTES: usize = 96;
const ID_BITS_PER_1000_BYTES: usize = 64;
/// Bits of a filter that an entry sets. With four bits, a filter with five bits for each entry has
/// 9 % false positives.
const HASHES: u32 = 4;
/// A filter with more false positives is dropped.
const FALSE_POSITIVES_MAX: f64 = 0.1;
/// New entries after which the false positives of a filter are calculated again.
const ENTRIES_STEP: usize = 1024;

/// Filters of a ring's buckets, for any thread.
#[derive(Debug)]
pub(crate) struct BucketIndex {
    /// By the position of the bucket. Empty: the ring has no index.
    buckets: Vec<Mutex<BucketFilters>>,
    bucket_bytes: usize,
    keys: RandomState,
    seeds: [u64; 2],
}

#[derive(Debug, Default)]
struct BucketFilters {
    generation: u64,
    /// The mode in which the frames were read.
    mode: Option<FilterMode>,
    hosts: FilterPart,
    ids: FilterPart,
}

#[derive(Debug, Default)]
enum FilterPart {
    #[default]
    Unmade,
    Made(Box<BloomFilter>),
    /// The filter would have too many false positives, or the index cannot read all packets.
    Useless,
}

/// A property that a packet must have to match a query.
#[derive(Debug, Clone)]
pub(super) struct IndexQuestion {
    pub(super) part: AskedFilter,
    /// The mode in which the query's program reads frames.
    pub(super) mode: FilterMode,
}

#[derive(Debug, Clone)]
pub(super) enum AskedFilter {
    Hosts(NeededHosts),
    Id(String),
}

/// The result of the index for a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexAnswer {
    /// The bucket has nothing that the query asks for.
    Nothing,
    /// The bucket may have a matching packet.
    Perhaps,
    /// The filter does not help.
    Useless,
    /// The index does not have this filter of the bucket yet.
    Unknown,
}

/// The memory for a ring, without the memory for the index. `asked`: the requested memory.
pub(crate) fn ring_bytes(asked: u64) -> u64 {
    if asked < RING_BYTES_MIN {
        return asked;
    }
    asked - asked.div_ceil(PARTS)
}

impl BucketIndex {
    /// The index of a ring with the size from [`ring_bytes`]. `is_offline`: the packets are from
    /// files, and the index is empty.
    pub(crate) fn of(ring: &Ring, is_offline: bool) -> Self {
        let least = ring_bytes(RING_BYTES_MIN) - ring.bucket_bytes() as u64;
        let has_one = !is_offline && ring.bytes() >= least;
        let buckets = if has_one { ring.buckets() } else { 0 };
        Self::new(buckets, ring.bucket_bytes())
    }

    pub(super) fn new(buckets: usize, bucket_bytes: usize) -> Self {
        let keys = RandomState::new();
        Self {
            buckets: (0..buckets).map(|_| Mutex::default()).collect(),
            bucket_bytes,
            seeds: [0_u8, 1].map(|one| keys.hash_one(one)),
            keys,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |part: &FilterPart| match part {
            FilterPart::Made(filter) => filter.num_bits() as u64 / 8,
            FilterPart::Unmade | FilterPart::Useless => 0,
        };
        let filters = self.buckets.iter().map(lock);
        filters.map(|it| bytes(&it.hosts) + bytes(&it.ids)).sum()
    }

    /// Asks whether a closed bucket may have a packet with the required property.
    pub(super) fn asks(&self, bucket: BucketRef, needed: &IndexQuestion) -> IndexAnswer {
        let Some(place) = self.buckets.get(bucket.index as usize) else {
            return IndexAnswer::Useless;
        };
        let mut filters = lock(place);
        if (filters.generation, filters.mode) != (bucket.generation, Some(needed.mode)) {
            return IndexAnswer::Unknown;
        }
        let has = |filter: &BloomFilter| match &needed.part {
            AskedFilter::Hosts(hosts) => {
                let has = |host: &IpAddr| filter.contains_hash(self.of_host(host));
                hosts.alternatives.iter().any(|hosts| hosts.iter().all(has))
            }
            AskedFilter::Id(id) => filter.contains_hash(self.keys.hash_one(id)),
        };
        match filters.part(needed) {
            FilterPart::Unmade => IndexAnswer::Unknown,
            FilterPart::Useless => IndexAnswer::Useless,
            FilterPart::Made(filter) if has(filter) => IndexAnswer::Perhaps,
            FilterPart::Made(_) => IndexAnswer::Nothing,
        }
    }

    /// Makes the required filter from all packets of a closed bucket.
    pub(super) fn make<'p>(
        &self,
        bucket: BucketRef,
        needed: &IndexQuestion,
        interfaces: &[InterfaceEntry],
        packets: impl Iterator<Item = Packet<'p>>,
    ) {
        let Some(place) = self.buckets.get(bucket.index as usize) else {
            return;
        };
        let part = self.made(needed, interfaces, packets);
        let mut filters = lock(place);
        if (filters.generation, filters.mode) != (bucket.generation, Some(needed.mode)) {
            // A slow query may bring a filter of an older generation, which is not used for the
            // present bucket.
            *filters = BucketFilters {
                generation: bucket.generation,
                mode: Some(needed.mode),
                ..BucketFilters::default()
            };
        }
        *filters.part(needed) = part.map_or(FilterPart::Useless, FilterPart::Made);
    }

    /// The filter of these packets. `None`: a packet cannot be read, or the filter would have too
    /// many false positives.
    fn made<'p>(
        &self,
        needed: &IndexQuestion,
        interfaces: &[InterfaceEntry],
        packets: impl Iterator<Item = Packet<'p>>,
    ) -> Option<Box<BloomFilter>> {
        let mut filling = BloomBuilder::new(match needed.part {
            AskedFilter::Hosts(_) => self.bucket_bytes / 1000 * HOST_BITS_PER_1000_BYTES,
            AskedFilter::Id(_) => self.bucket_bytes / 1000 * ID_BITS_PER_1000_BYTES,
        });
        // Computing a Community ID takes longer than a look-up in this set.
        let mut known = HashSet::new();
        for packet in packets {
            let entry = interfaces.get(usize::from(packet.interface))?;
            let link_type = LinkType(entry.link_type);
            let hashes = match needed.part {
                AskedFilter::Hosts(_) => {
                    let hosts = hosts_of(link_type, needed.mode, packet.data)?;
                    hosts.map(|host| Some(self.of_host(&host?)))
                }
                AskedFilter::Id(_) => {
                    let id = new_id(&mut known, link_type, packet.data);
                    [id.map(|id| self.keys.hash_one(id)), None]
                }
            };
            for hash in hashes.into_iter().flatten() {
                filling.add(hash)?;
            }
        }
        filling.filter()
    }

    /// A cheap hash, because every packet needs one: two multiplications and folds.
    fn of_host(&self, host: &IpAddr) -> u64 {
        let (bits, family) = match host {
            IpAddr::V4(addr) => (u128::from(addr.to_bits()), 4),
            IpAddr::V6(addr) => (addr.to_bits(), 6),
        };
        let [low, high] = [bits & u128::from(u64::MAX), bits >> 64];
        let folded = fold(
            low ^ u128::from(self.seeds[0]),
            high ^ u128::from(self.seeds[1]),
        );
        fold(u128::from(folded ^ family), u128::from(self.seeds[0] | 1))
    }
}

impl BucketFilters {
    fn part(&mut self, needed: &IndexQuestion) -> &mut FilterPart {
        match needed.part {
            AskedFilter::Hosts(_) => &mut self.hosts,
            AskedFilter::Id(_) => &mut self.ids,
        }
    }
}

/// The Community ID of a packet, unless its flow is in `known`. Adds a flow with ports to `known`.
fn new_id(known: &mut HashSet<FlowKey>, link_type: LinkType, data: &[u8]) -> Option<String> {
    let parsed = parse(link_type, data);
    match flow_of(&parsed)? {
        flow @ FlowKey::Ports { .. } => known
            .insert(flow)
            .then(|| community_id_of(&flow, 0))
            .flatten(),
        _ => community_id(&parsed, 0),
    }
}

/// Multiplies two 64-bit words, and combines the halves of the product by exclusive or.
#[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
fn fold(a: u128, b: u128) -> u64 {
    let product = a.wrapping_mul(b);
    product as u64 ^ (product >> 64) as u64
}

struct BloomBuilder {
    filter: BloomFilter,
    entries: usize,
}

impl BloomBuilder {
    fn new(bits: usize) -> Self {
        let builder: BuilderWithBits = BloomFilter::with_num_bits(bits.max(64));
        Self {
            filter: builder.hashes(HASHES),
            entries: 0,
        }
    }

    /// Adds an entry. `None`: the filter now has too many false positives.
    fn add(&mut self, hash: u64) -> Option<()> {
        let is_new = !self.filter.insert_hash(hash);
        self.entries += usize::from(is_new);
        let is_due = is_new && self.entries.is_multiple_of(ENTRIES_STEP);
        (!is_due || self.is_of_use()).then_some(())
    }

    fn is_of_use(&self) -> bool {
        self.filter.expected_false_pos(self.entries) <= FALSE_POSITIVES_MAX
    }

    fn filter(self) -> Option<Box<BloomFilter>> {
        self.is_of_use().then(|| Box::new(self.filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_given_up_when_it_is_full() {
        for (entries, is_made, added) in [(50_000, false, 41_000), (30_000, true, 30_000)] {
            let mut filling = BloomBuilder::new(200_000);
            let hashes = 1..=entries;
            let hashes = hashes.map(|number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let fits = hashes.map_while(|hash| filling.add(hash)).count();
            assert!(fits.abs_diff(added) < 3 * ENTRIES_STEP, "{entries}: {fits}");
            assert_eq!(filling.filter().is_some(), is_made, "{entries}");
        }
    }
}
