//! Which buckets cannot have what a query asks for.
//!
//! Of a closed bucket two Bloom filters may be kept: over the addresses of its packets, and over their Community IDs. Who reads the bucket first
//! for a query that needs one of them makes it, of the copy that it reads anyway, off the path of whoever stores. The next query that
//! needs an address or an ID looks there before it reads, and leaves the bucket out if it cannot have it. That is certain: a filter says
//! "may have" of all that it holds, and what is not read as the query's program reads it ([`hosts_of`]) makes a bucket that is never left
//! out. A filter that would be wrong more often than one time in ten is not kept: its bucket is read. Who finds what they ask for in eight buckets after
//! each other makes none until behind one that lacks it: no filter helps them.
//!
//! Both together take 2 % of a bucket at most, which the ring is smaller by ([`ring_bytes`]). Filters are of one generation of their
//! bucket, and nothing has to be told when it is overwritten. Hashes are keyed: whoever sends packets does not choose what collides.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fastbloom::{BloomFilter, BuilderWithBits};
use retroscope_filter::{Mode, NeededHosts, hosts_of};
use retroscope_packet::{FlowKey, LinkType, community_id, community_id_of, flow_of, parse};
use retroscope_ring::{BucketRef, InterfaceEntry, Packet, Ring};

use crate::control::lock;

/// Smaller rings have no index: all of their buckets are read.
const RING_BYTES_MIN: u64 = 256 << 20;
/// Of this many parts of the memory that is asked for, one is the index's: 2 % of the others.
const PARTS: u64 = 51;
/// Bits for each byte of a bucket: together 2 %, 1.2 for addresses and 0.8 for Community IDs.
const HOST_BITS_PER_1000_BYTES: usize = 96;
const ID_BITS_PER_1000_BYTES: usize = 64;
/// Places of a filter that an entry sets. With so many, 10 % are wrong at five bits an entry.
const HASHES: u32 = 4;
/// A filter that is wrong more often is not kept.
const FALSE_POSITIVES_MAX: f64 = 0.1;
/// The second of so many parts of a bucket's packets tells whether a filter of all is worth making: a flood of addresses is given up there, not when the filter is full.
const HOST_PARTS: usize = 24;
/// The same of Community IDs, which take longer to make than all else.
const ID_PARTS: usize = 48;

/// See the module. One for each recorder; any thread may use it.
#[derive(Debug)]
pub(crate) struct Index {
    /// By the position of the bucket; empty: there is none.
    buckets: Vec<Mutex<Filters>>,
    bucket_bytes: usize,
    keys: RandomState,
    seeds: [u64; 2],
    /// Bytes of all filters.
    bytes: AtomicU64,
}

/// What is kept of a bucket.
#[derive(Debug, Default)]
struct Filters {
    generation: u64,
    /// How frames were read.
    mode: Option<Mode>,
    hosts: Part,
    ids: Part,
}

/// One of the filters.
#[derive(Debug, Default)]
enum Part {
    #[default]
    Unmade,
    Made(Box<BloomFilter>),
    /// It would be wrong too often, or not all packets can be read.
    Useless,
}

/// What a query needs of a packet.
#[derive(Debug, Clone)]
pub(super) struct Needed {
    hosts: Option<NeededHosts>,
    id: Option<String>,
    /// How its program reads frames.
    mode: Mode,
}

/// What the index says of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// It has nothing that the query asks for.
    Nothing,
    /// It may have.
    Perhaps,
    /// No filter can tell: see [`Part::Useless`].
    Useless,
    /// A filter has to be made: of hosts, of Community IDs.
    Unknown { hosts: bool, ids: bool },
}

impl Needed {
    /// `None`: no index helps.
    pub(super) fn new(hosts: Option<NeededHosts>, id: Option<String>, mode: Mode) -> Option<Self> {
        (hosts.is_some() || id.is_some()).then_some(Self { hosts, id, mode })
    }
}

/// What is left of the memory that is asked for a ring when the index has its part.
pub(crate) fn ring_bytes(asked: u64) -> u64 {
    if asked < RING_BYTES_MIN {
        return asked;
    }
    asked - asked.div_ceil(PARTS)
}

impl Index {
    /// Of a ring whose size is what [`ring_bytes`] left; `is_offline`: its packets are files', and it has none.
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
            bytes: AtomicU64::new(0),
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Bytes that filters take now.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether a closed bucket may have what is needed.
    pub(super) fn asks(&self, bucket: BucketRef, needed: &Needed) -> Says {
        let Some(place) = self.buckets.get(bucket.index as usize) else {
            return Says::Useless;
        };
        let filters = lock(place);
        let is_known = filters.generation == bucket.generation && filters.mode == Some(needed.mode);
        let unknown = |part: &Part| !is_known || matches!(part, Part::Unmade);
        let lacks = |part: &Part, has: &dyn Fn(&BloomFilter) -> bool| match part {
            Part::Made(filter) if is_known => !has(filter),
            _ => false,
        };
        let has_hosts = |filter: &BloomFilter| {
            let has = |host: &IpAddr| filter.contains_hash(self.of_host(host));
            let ways = needed.hosts.iter().flat_map(|hosts| &hosts.ways);
            ways.into_iter().any(|way| way.iter().all(has))
        };
        let has_id = |filter: &BloomFilter| {
            let id = needed.id.as_deref().unwrap_or_default();
            filter.contains_hash(self.of_id(id))
        };
        if (needed.hosts.is_some() && lacks(&filters.hosts, &has_hosts))
            || (needed.id.is_some() && lacks(&filters.ids, &has_id))
        {
            return Says::Nothing;
        }
        let hosts = needed.hosts.is_some() && unknown(&filters.hosts);
        let ids = needed.id.is_some() && unknown(&filters.ids);
        let is_useless = |part: &Part| matches!(part, Part::Useless);
        let cannot_tell = (needed.hosts.is_none() || is_useless(&filters.hosts))
            && (needed.id.is_none() || is_useless(&filters.ids));
        match hosts || ids {
            true => Says::Unknown { hosts, ids },
            false if cannot_tell => Says::Useless,
            false => Says::Perhaps,
        }
    }

    /// Makes filters of all packets of a closed bucket.
    pub(super) fn make<'p>(
        &self,
        bucket: BucketRef,
        needed: &Needed,
        (hosts, ids): (bool, bool),
        interfaces: &[InterfaceEntry],
        packets: impl ExactSizeIterator<Item = Packet<'p>> + Clone,
    ) {
        let Some(place) = self.buckets.get(bucket.index as usize) else {
            return;
        };
        let link_type = |packet: &Packet<'_>| {
            let entry = interfaces.get(usize::from(packet.interface));
            entry.map(|entry| LinkType(entry.link_type))
        };
        let hosts = hosts.then(|| {
            let of = |packet: Packet<'p>| hosts_of(link_type(&packet)?, needed.mode, packet.data);
            let all = packets.clone().map(of);
            self.hosts(all)
        });
        let ids = ids.then(|| {
            let all = packets.map(|packet| Some((link_type(&packet)?, packet.data)));
            self.ids(all)
        });
        let mut filters = lock(place);
        if (filters.generation, filters.mode) != (bucket.generation, Some(needed.mode)) {
            // One that comes late with an older generation makes no difference: its bucket is gone.
            self.forget(&filters.hosts);
            self.forget(&filters.ids);
            *filters = Filters {
                generation: bucket.generation,
                mode: Some(needed.mode),
                ..Filters::default()
            };
        }
        let Filters {
            hosts: known_hosts,
            ids: known_ids,
            ..
        } = &mut *filters;
        for (part, known) in [(hosts, known_hosts), (ids, known_ids)] {
            if let Some(part) = part {
                self.forget(known);
                self.bytes.fetch_add(bytes_of(&part), Relaxed);
                *known = part;
            }
        }
    }

    fn forget(&self, part: &Part) {
        self.bytes.fetch_sub(bytes_of(part), Relaxed);
    }

    /// Of the addresses of packets; `None` among them: one that cannot be read.
    fn hosts(&self, packets: impl ExactSizeIterator<Item = Option<[Option<IpAddr>; 2]>>) -> Part {
        let mut filling = Filling::new(self.bucket_bytes, HOST_BITS_PER_1000_BYTES, HOST_PARTS);
        let count = packets.len();
        for (before, hosts) in packets.enumerate() {
            let Some(hosts) = hosts.filter(|_| filling.may_fit(before, count)) else {
                return Part::Useless;
            };
            for host in hosts.iter().flatten() {
                if !filling.add(self.of_host(host)) {
                    return Part::Useless;
                }
            }
        }
        filling.part()
    }

    /// Of the Community IDs of packets; `None` among them: one that cannot be read.
    fn ids<'p>(
        &self,
        packets: impl ExactSizeIterator<Item = Option<(LinkType, &'p [u8])>>,
    ) -> Part {
        let mut filling = Filling::new(self.bucket_bytes, ID_BITS_PER_1000_BYTES, ID_PARTS);
        let count = packets.len();
        // An identifier takes longer to make than a flow to be found here.
        let mut known = HashSet::<FlowKey>::new();
        for (before, packet) in packets.enumerate() {
            let Some((link_type, data)) = packet.filter(|_| filling.may_fit(before, count)) else {
                return Part::Useless;
            };
            let parsed = parse(link_type, data);
            let id = match flow_of(&parsed) {
                Some(flow @ FlowKey::Ports { .. }) => {
                    if !known.insert(flow) {
                        continue;
                    }
                    community_id_of(&flow, 0)
                }
                Some(_) => community_id(&parsed, 0),
                None => None,
            };
            if id.is_some_and(|id| !filling.add(self.of_id(&id))) {
                return Part::Useless;
            }
        }
        filling.part()
    }

    /// Two multiplications of halves that are folded, for every packet; an identifier takes the time of a flow.
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

    fn of_id(&self, id: &str) -> u64 {
        self.keys.hash_one(id)
    }
}

/// The product of two words, its halves folded.
#[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
fn fold(a: u128, b: u128) -> u64 {
    let product = a.wrapping_mul(b);
    product as u64 ^ (product >> 64) as u64
}

fn bytes_of(part: &Part) -> u64 {
    match part {
        Part::Made(filter) => filter.num_bits() as u64 / 8,
        Part::Unmade | Part::Useless => 0,
    }
}

/// A filter that is being made.
struct Filling {
    filter: BloomFilter,
    entries: usize,
    /// Into so many the packets are divided, …
    parts: usize,
    /// … of which the first one has so many entries.
    of_first: usize,
    entries_max: usize,
}

impl Filling {
    fn new(bucket_bytes: usize, bits_per_1000_bytes: usize, parts: usize) -> Self {
        let bits = bucket_bytes / 1000 * bits_per_1000_bytes;
        let builder: BuilderWithBits = BloomFilter::with_num_bits(bits.max(64));
        let filter = builder.hashes(HASHES);
        // About five bits an entry; found by halving.
        let (mut entries_max, mut too_many) = (0, bits + 1);
        while too_many - entries_max > 1 {
            let middle = usize::midpoint(entries_max, too_many);
            match filter.expected_false_pos(middle) <= FALSE_POSITIVES_MAX {
                true => entries_max = middle,
                false => too_many = middle,
            }
        }
        Self {
            filter,
            entries: 0,
            parts,
            of_first: 0,
            entries_max,
        }
    }

    /// `false`: there are too many.
    fn add(&mut self, hash: u64) -> bool {
        self.entries += usize::from(!self.filter.insert_hash(hash));
        self.entries <= self.entries_max
    }

    /// Whether entries of a bucket of so many packets may have room, if each part has as many new ones as the second; `before`: of how many packets they are so far.
    fn may_fit(&mut self, before: usize, packets: usize) -> bool {
        let part = packets / self.parts;
        if before == part {
            self.of_first = self.entries;
        }
        before != 2 * part || {
            let of_second = self.entries - self.of_first;
            self.entries + (self.parts - 2) * of_second <= self.entries_max
        }
    }

    fn part(self) -> Part {
        Part::Made(Box::new(self.filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_given_up_early_and_many_hosts_are_not() {
        const PACKETS: u32 = 30_000;
        let index = Index::new(1, 2 << 20);
        for (addresses, is_made) in [(u32::MAX, false), (PACKETS / 4, true)] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut seen = 0;
            let packets = (0..PACKETS).map(|_| {
                seen += 1;
                let mut host = || Some(IpAddr::from(random.u32(..addresses).to_be_bytes()));
                Some([host(), host()])
            });
            let part = index.hosts(packets);
            assert_eq!(matches!(part, Part::Made(_)), is_made, "{addresses}");
            let expected = if is_made { PACKETS } else { PACKETS / 12 + 1 };
            assert_eq!(seen, expected, "{addresses}");
        }
    }
}
