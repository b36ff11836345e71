//! Assigns each packet to one of 32 shards, by its pair of addresses.
//!
//! A shard has all packets of an address pair: both directions, and all fragments of a datagram.
//! The outermost IP header determines the pair, even for a tunnel or an ICMP error. Packets without
//! an IP header, such as ARP, go by both hardware addresses. Packets without both are in shard 0,
//! such as ARP in Linux cooked captures.
//!
//! The key is random, so that nobody can construct pairs that gather in one shard. See
//! Dietzfelbinger (1996, "Universal hashing and k-wise independent random variables via integer
//! arithmetic without primes"). The results of a recording must not depend on the key. So the key
//! is random even with `--reproducible`: different results of two runs reveal a dependence.
//!
//! A script may join a pair to another pair (`partition.join`). The packets of the pair then go to
//! the other pair's shard, until a full table forgets the join.
//!
//! An IPv4 packet takes 2 ns and an IPv6 packet 5 ns, including 1 ns to read the headers. With VLAN
//! tags it takes 16 ns, nearly all for [`retroscope_packet::parse`] (AMD EPYC Zen 4, 1024 frames in
//! the cache).

use std::{
    array,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use retroscope_packet::{CommonHeaders, LinkType, MacAddr, parse};
use retroscope_script::{AddressPair, PairJoin};

use crate::control::lock;

const SHARD_BITS: u32 = 5;
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;

pub(crate) type ShardCounts = [u64; SHARDS];

/// Live, for each producer: the packets that were stored before a record, by shard. A reader that
/// was overtaken learns here how many packets of its shards it missed.
#[derive(Debug)]
pub(crate) struct StoredShards(Vec<Mutex<(u64, ShardCounts)>>);

impl StoredShards {
    pub(crate) fn new(producers: usize) -> Self {
        Self((0..producers).map(|_| Mutex::default()).collect())
    }

    /// The producer has stored `records` records, with these packets by shard.
    pub(super) fn set(&self, producer: usize, records: u64, packets: &ShardCounts) {
        *lock(&self.0[producer]) = (records, *packets);
    }

    /// A number of records, and how many packets of these records satisfy `is_mine`.
    pub(crate) fn get(&self, producer: usize, is_mine: impl Fn(u8) -> bool) -> (u64, u64) {
        let (records, packets) = *lock(&self.0[producer]);
        let mine = (0..).zip(packets).filter(|(shard, _)| is_mine(*shard));
        (records, mine.map(|(_, packets)| packets).sum())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ShardHash {
    factors: [u128; 4],
    addend: u128,
    joined: Arc<JoinedPairs>,
}

impl ShardHash {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        let word = |n: usize| u128::from(random.hash_one(n));
        Self {
            factors: array::from_fn(|n| word(2 * n) << 64 | word(2 * n + 1)),
            addend: word(8) << 64 | word(9),
            joined: Arc::default(),
        }
    }

    /// From now on the packets of `join.pair`, and of all pairs joined to it, go to the shard of
    /// `join.to`. If an older join is forgotten for lack of room, returns the number of joins
    /// forgotten until now.
    pub(crate) fn join(&self, join: &PairJoin) -> Option<u64> {
        let hash = |[a, b]: AddressPair| match (a, b) {
            (IpAddr::V4(a), IpAddr::V4(b)) => Some(self.hash_v4(a.to_bits(), b.to_bits())),
            (IpAddr::V6(a), IpAddr::V6(b)) => Some(self.hash_v6(a.to_bits(), b.to_bits())),
            _ => None,
        };
        self.joined.join(hash(join.to)?, hash(join.pair)?)
    }

    /// The shard of a frame with these captured bytes. A tag that the NIC removed makes no
    /// difference.
    // Never inlined: inlined into the loop that fills lines of the ring, a record of 64 bytes took
    // 8 ns instead of 4.
    #[inline(never)]
    pub(super) fn of(&self, link_type: LinkType, data: &[u8]) -> u8 {
        if link_type == LinkType::ETHERNET
            && let Some(CommonHeaders {
                version, addresses, ..
            }) = CommonHeaders::read(data)
        {
            let addresses = &data[addresses..];
            if version == 4
                && let ([src, dst, ..], _) = addresses.as_chunks()
            {
                return self.of_v4(u32::from_be_bytes(*src), u32::from_be_bytes(*dst));
            }
            if version == 6
                && let ([src, dst, ..], _) = addresses.as_chunks()
            {
                return self.of_v6(u128::from_be_bytes(*src), u128::from_be_bytes(*dst));
            }
        }
        self.of_parsed(link_type, data)
    }

    /// The shard of any frame, by the full parser.
    #[inline(never)]
    fn of_parsed(&self, link_type: LinkType, data: &[u8]) -> u8 {
        let parsed = parse(link_type, data);
        match (
            parsed.network.map(|ip| (ip.src, ip.dst)),
            parsed.src_mac,
            parsed.dst_mac,
        ) {
            (Some((IpAddr::V4(src), IpAddr::V4(dst))), ..) => {
                self.of_v4(src.to_bits(), dst.to_bits())
            }
            (Some((IpAddr::V6(src), IpAddr::V6(dst))), ..) => {
                self.of_v6(src.to_bits(), dst.to_bits())
            }
            (None, Some(src), Some(dst)) => {
                let word = |mac: MacAddr| {
                    mac.iter()
                        .fold(0, |word, byte| word << 8 | u64::from(*byte))
                };
                let (low, high) = ordered(word(src), word(dst));
                self.shard(self.hash_words([low, high]))
            }
            _ => 0,
        }
    }

    fn of_v4(&self, src: u32, dst: u32) -> u8 {
        self.shard(self.hash_v4(src, dst))
    }

    fn of_v6(&self, src: u128, dst: u128) -> u8 {
        self.shard(self.hash_v6(src, dst))
    }

    fn shard(&self, pair: u64) -> u8 {
        // Relaxed: the entries need no other memory.
        if self.joined.is_any.load(Ordering::Relaxed) {
            return self.joined.shard(pair);
        }
        own_shard(pair)
    }

    fn hash_v4(&self, src: u32, dst: u32) -> u64 {
        let (low, high) = ordered(src, dst);
        self.hash_words([u64::from(low) << 32 | u64::from(high)])
    }

    fn hash_v6(&self, src: u128, dst: u128) -> u64 {
        let (low, high) = ordered(src, dst);
        let [a, b, c, d] = [low >> 64, low, high >> 64, high];
        #[expect(clippy::cast_possible_truncation, reason = "one half of each")]
        self.hash_words([a, b, c, d].map(|half| half as u64))
    }

    fn hash_words<const N: usize>(&self, words: [u64; N]) -> u64 {
        let products = self.factors.iter().zip(words);
        let sum = products.fold(self.addend, |sum, (factor, word)| {
            sum.wrapping_add(factor.wrapping_mul(u128::from(word)))
        });
        // Without this mixing, neighbouring addresses would get neighbouring values of `word`.
        let word = (sum >> 64) as u64;
        (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The shard of a pair that is not joined to another pair.
fn own_shard(pair: u64) -> u8 {
    (pair >> (u64::BITS - SHARD_BITS)) as u8
}

const JOIN_SETS: usize = 512;
const JOIN_WAYS: usize = 8;
/// The bits of an entry that have the shard number.
const SHARD_MASK: u64 = SHARDS as u64 - 1;

/// The pairs that scripts joined to other pairs: a set-associative table of at most 4096 pairs. A
/// full set forgets its oldest pair, because in a long recording the oldest pairs usually have no
/// more packets.
///
/// A pair is known by 59 bits of its hash. Two pairs are confused, and then share a shard, with a
/// probability of about 2^-59.
#[derive(Debug)]
struct JoinedPairs {
    /// Whether any pair was ever joined.
    is_any: AtomicBool,
    sets: Box<[JoinSet]>,
    writer: Mutex<JoinWriter>,
}

/// One cache line of joined pairs. An entry is the hash of a pair with the shard number in the
/// lowest bits, or 0. Loads and stores are relaxed, because an entry needs no other memory.
#[derive(Debug, Default)]
#[repr(align(64))]
struct JoinSet([AtomicU64; JOIN_WAYS]);

#[derive(Debug)]
struct JoinWriter {
    /// By set and entry: the hash of the pair to which the entry's pair is joined, without its
    /// lowest bits. That other pair has no entry itself, so joins make no loops.
    roots: Box<[[u64; JOIN_WAYS]]>,
    added: Box<[usize]>,
    forgotten: u64,
}

impl Default for JoinedPairs {
    fn default() -> Self {
        Self {
            is_any: AtomicBool::new(false),
            sets: (0..JOIN_SETS).map(|_| JoinSet::default()).collect(),
            writer: Mutex::new(JoinWriter {
                roots: [[0; JOIN_WAYS]; JOIN_SETS].into(),
                added: [0; JOIN_SETS].into(),
                forgotten: 0,
            }),
        }
    }
}

impl JoinedPairs {
    #[cold]
    fn shard(&self, pair: u64) -> u8 {
        let joined = self.find(pair & !SHARD_MASK);
        joined.map_or(own_shard(pair), |(_, shard)| shard)
    }

    /// The place in its set, and the shard, of a joined pair.
    fn find(&self, pair: u64) -> Option<(usize, u8)> {
        let entries = self.sets[set_of(pair)].0.iter();
        let entries = entries.map(|entry| entry.load(Ordering::Relaxed));
        let mut found = entries.enumerate();
        let (way, entry) = found.find(|(_, entry)| entry & !SHARD_MASK == pair)?;
        Some((way, (entry & SHARD_MASK) as u8))
    }

    /// See [`ShardHash::join`]. `to` and `pair` are hashes.
    fn join(&self, to: u64, pair: u64) -> Option<u64> {
        let (to, pair) = (to & !SHARD_MASK, pair & !SHARD_MASK);
        let mut writer = lock(&self.writer);
        let JoinWriter {
            roots,
            added,
            forgotten,
        } = &mut *writer;
        let place = self.find(pair).map(|(way, _)| way);
        let root = (self.find(to)).map_or(to, |(way, _)| roots[set_of(to)][way]);
        let set = set_of(pair);
        if root == pair || place.is_some_and(|way| roots[set][way] == root) {
            return None;
        }
        let shard = u64::from(own_shard(root));
        for (set, roots) in self.sets.iter().zip(roots.iter_mut()) {
            for (entry, its) in set.0.iter().zip(roots) {
                if *its == pair {
                    *its = root;
                    let its = entry.load(Ordering::Relaxed) & !SHARD_MASK;
                    entry.store(its | shard, Ordering::Relaxed);
                }
            }
        }
        let way = place.unwrap_or_else(|| {
            added[set] += 1;
            (added[set] - 1) % JOIN_WAYS
        });
        let is_forgetting = place.is_none() && added[set] > JOIN_WAYS;
        *forgotten += u64::from(is_forgetting);
        roots[set][way] = root;
        self.sets[set].0[way].store(pair | shard, Ordering::Relaxed);
        self.is_any.store(true, Ordering::Relaxed);
        is_forgetting.then_some(*forgotten)
    }
}

fn set_of(pair: u64) -> usize {
    (pair >> 32) as usize % JOIN_SETS
}

/// Both directions of a pair get the same order.
fn ordered<T: Ord>(a: T, b: T) -> (T, T) {
    if a <= b { (a, b) } else { (b, a) }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, ops::Range};

    use super::*;

    fn keyed(seed: u64) -> ShardHash {
        let mut random = fastrand::Rng::with_seed(seed);
        ShardHash {
            factors: array::from_fn(|_| random.u128(..)),
            addend: random.u128(..),
            joined: Arc::default(),
        }
    }

    /// An IP packet from `src` to `dst`, with its fragment field (IPv4) and its payload.
    fn ip(src: &[u8], dst: &[u8], proto: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let len = u16::try_from(rest.len()).unwrap();
        let mut header = if src.len() == 4 {
            let ([a, b], [c, d]) = ((len + 20).to_be_bytes(), fragment.to_be_bytes());
            vec![0x45, 0, a, b, 0, 7, c, d, 64, proto, 0, 0]
        } else {
            let [a, b] = len.to_be_bytes();
            vec![0x60, 0, 0, 0, a, b, proto, 64]
        };
        header.extend([src, dst, rest].concat());
        header
    }

    /// An Ethernet frame between these stations. `before` are the bytes between the addresses and
    /// `packet`.
    fn ethernet(macs: [[u8; 6]; 2], before: &[u8], packet: &[u8]) -> Vec<u8> {
        [&macs.concat(), before, packet].concat()
    }

    const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    const UDP: [u8; 12] = [0, 53, 0, 99, 0, 12, 0, 0, 1, 2, 3, 4];

    fn packets(src: &[u8], dst: &[u8]) -> Vec<Vec<u8>> {
        let mut packets = vec![ip(src, dst, 17, 0, &UDP), ip(src, dst, 6, 0, &UDP)];
        if src.len() == 4 {
            let ah = [&[17, 4, 0, 0], &[9; 20][..], &UDP].concat();
            packets.push(ip(src, dst, 51, 0, &ah));
            packets.push(ip(src, dst, 17, 0x2000, &UDP));
            packets.push(ip(src, dst, 17, 1, &[7; 8]));
            let error = [
                &[3, 1, 0, 0, 0, 0, 0, 0][..],
                &ip(dst, &[8; 4], 17, 0, &UDP),
            ];
            packets.push(ip(src, dst, 1, 0, &error.concat()));
        } else {
            let first = [&[17, 0, 0, 1, 0, 0, 0, 7][..], &UDP].concat();
            packets.push(ip(src, dst, 44, 0, &first));
            packets.push(ip(src, dst, 44, 0, &[17, 0, 0, 8, 0, 0, 0, 7, 1, 2, 3, 4]));
        }
        packets
    }

    fn carried(macs: [[u8; 6]; 2], packet: &[u8]) -> Vec<(LinkType, Vec<u8>)> {
        let (ether_type, ppp, family) = match packet[0] >> 4 {
            4 => ([0x08, 0x00], 0x21, 2),
            _ => ([0x86, 0xdd], 0x57, 30),
        };
        let [a, b] = ether_type;
        let mut frames: Vec<_> = [
            &[a, b][..],
            &[0x81, 0, 0, 5, a, b],
            &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, a, b],
            &[0x88, 0x47, 0, 1, 0, 64, 0, 2, 1, 64],
            &[0x88, 0x64, 0x11, 0, 0, 1, 0, 90, 0, ppp],
        ]
        .map(|before| (LinkType::ETHERNET, ethernet(macs, before, packet)))
        .into();
        let cooked = [&[0, 0, 0, 1, 0, 6][..], &macs[1], &[0, 0, a, b], packet];
        frames.push((LinkType::LINUX_SLL, cooked.concat()));
        frames.push((LinkType::NULL, [&[family, 0, 0, 0], packet].concat()));
        frames.push((LinkType::RAW, packet.to_vec()));
        frames
    }

    #[test]
    fn an_address_pair_is_in_one_shard() {
        let [a, b] = STATIONS;
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let shards = keyed(seed);
            for bytes in [4, 16] {
                let mut address = || -> Vec<u8> { (0..bytes).map(|_| random.u8(..)).collect() };
                let (src, dst) = (address(), address());
                let mut found = HashSet::new();
                for (there, back) in packets(&src, &dst).iter().zip(packets(&dst, &src)) {
                    let there = carried([a, b], there);
                    for ((link_type, there), (_, back)) in there.iter().zip(carried([b, a], &back))
                    {
                        found.insert(shards.of(*link_type, there));
                        for cut in 0..=there.len() {
                            let shard = shards.of(*link_type, &there[..cut]);
                            let case = format!("seed {seed}: {cut} bytes of {there:02x?}");
                            assert_eq!(shard, shards.of(*link_type, &back[..cut]), "{case}");
                            let parsed = shards.of_parsed(*link_type, &there[..cut]);
                            assert_eq!(shard, parsed, "{case}");
                        }
                    }
                }
                assert_eq!(found.len(), 1, "seed {seed}");
            }
        }
    }

    #[test]
    fn what_has_no_address_goes_by_its_stations() {
        let mut found = HashSet::new();
        for seed in 0..200 {
            let shards = keyed(seed);
            let [a, b] = STATIONS;
            let of = |macs, before: [u8; 2]| {
                shards.of(LinkType::ETHERNET, &ethernet(macs, &before, &[1; 46]))
            };
            let shard = of([a, b], [0x08, 0x06]);
            found.insert(shard);
            assert_eq!(of([b, a], [0x08, 0x06]), shard);
            assert_eq!(of([b, a], [0x88, 0xcc]), shard);
            // A frame that ends within its IP header has no IP addresses.
            let cut = ethernet([a, b], &[0x08, 0x00], &[0x45, 0, 0]);
            assert_eq!(shards.of(LinkType::ETHERNET, &cut), shard);
            for (link_type, data) in [
                (LinkType::RAW, &[0x00; 40][..]),
                (LinkType::ETHERNET, &a),
                (LinkType::PPP, &[0xc0, 0x21, 1, 1]),
            ] {
                assert_eq!(shards.of(link_type, data), 0);
            }
        }
        assert_eq!(found.len(), 32, "each shard with some key");
    }

    #[test]
    fn joined_pairs_meet_in_one_shard() {
        let v4 = |n: u32| [n, n + 1].map(|n| IpAddr::from(n.to_be_bytes()));
        let v6 = |n: u128| [n, n + 1].map(|n| IpAddr::from(n.to_be_bytes()));
        for seed in 0..200 {
            let shards = keyed(seed);
            let of = |pair: AddressPair| match pair {
                [IpAddr::V4(a), IpAddr::V4(b)] => shards.of_v4(b.to_bits(), a.to_bits()),
                [IpAddr::V6(a), IpAddr::V6(b)] => shards.of_v6(b.to_bits(), a.to_bits()),
                _ => unreachable!(),
            };
            let join = |to, pair| shards.join(&PairJoin { to, pair });
            let [a, b, c, d, e, other] = [v4(0), v6(10), v4(20), v4(30), v6(40), v4(50)];
            let own = [a, b, c, d, e, other].map(of);
            assert_eq!([join(a, b), join(b, c)], [None; 2]);
            assert_eq!([a, b, c].map(of), [own[0]; 3]);
            assert_eq!([join(d, e), join(a, d)], [None; 2]);
            assert_eq!([a, b, c, d, e].map(of), [own[0]; 5]);
            // Loops, and pairs that are together already, change nothing.
            for (to, pair) in [
                (c, a),
                (b, a),
                (e, a),
                (a, a),
                (e, e),
                (c, b),
                (other, other),
            ] {
                assert_eq!(join(to, pair), None);
            }
            assert_eq!([a, b, c, d, e].map(of), [own[0]; 5]);
            assert_eq!(join(other, b), None);
            assert_eq!([a, b, c, other].map(of), [own[0], own[5], own[0], own[5]]);
            assert_eq!(join(other, a), None);
            assert_eq!([a, b, c, d, e, other].map(of), [own[5]; 6]);
            assert_eq!(join(a, v6(10)), None, "joined to `other`, as `a` is");
            let mixed = [a[0], b[0]];
            assert_eq!([join(a, mixed), join(mixed, a)], [None; 2]);
        }
    }

    #[test]
    fn a_full_table_forgets_the_oldest_pairs() {
        let shards = keyed(1);
        let pair = |n: u32| [n, !n].map(|n| IpAddr::from(n.to_be_bytes()));
        let of = |n: u32| shards.of_v4(n, !n);
        let own: Vec<_> = (0..10_000).map(of).collect();
        let to = 0xff00_0000;
        let shard = of(to);
        let mut forgotten = 0;
        for n in 0..10_000 {
            let (to, pair) = (pair(to), pair(n));
            if let Some(count) = shards.join(&PairJoin { to, pair }) {
                forgotten += 1;
                assert_eq!(count, forgotten);
            }
            assert_eq!(of(n), shard);
            assert!(n > 1000 || forgotten < 10, "{n}: {forgotten}");
        }
        assert!((10_000 - 4096..6_000).contains(&forgotten), "{forgotten}");
        // The percentage of pairs that are still joined, among pairs with another own shard.
        let joined = |range: Range<u32>| {
            let others = range.filter(|n| own[*n as usize] != shard);
            let (joined, alone): (Vec<_>, Vec<_>) = others.partition(|n| of(*n) == shard);
            assert!(alone.iter().all(|n| of(*n) == own[*n as usize]));
            100 * joined.len() / (joined.len() + alone.len())
        };
        assert!(joined(0..2000) < 5 && joined(9000..10_000) > 95);
    }

    /// About one in 32 of 3200 keys puts two fixed pairs into one shard.
    #[test]
    fn pairs_made_to_gather_are_spread() {
        const PAIRS: u32 = 3200;
        let family = |shards: &ShardHash, kind: u32, n: u32| match kind {
            0 => shards.of_v4(n, n ^ 0xffff_0000),
            1 => shards.of_v4(0x8000_0000 - n, 0x8000_0001 + n),
            2 => shards.of_v4(n << 20, 0xffff_fff0),
            3 => shards.of_v4(0, n),
            4 => shards.of_v6(u128::from(n) << 116, u128::MAX),
            5 => shards.of_v6(u128::from(n) << 64, u128::from(n) << 64 | u128::from(n)),
            _ => own_shard(shards.hash_words([u64::from(n), u64::from(PAIRS - n)])),
        };
        for seed in 0..100 {
            let shards = keyed(seed);
            for kind in 0..7 {
                let mut counts = [0; 32];
                for n in 0..PAIRS {
                    counts[usize::from(family(&shards, kind, n))] += 1;
                }
                let most = counts.iter().max().unwrap();
                assert!(*most < PAIRS / 10, "seed {seed}, family {kind}: {counts:?}");
            }
        }
        let same = |seed: &u64| {
            let shards = keyed(*seed);
            shards.of_v4(1, 2) == shards.of_v4(1, 3)
        };
        let same = (0..3200).filter(same).count();
        assert!((60..140).contains(&same), "{same} of 3200 keys");
    }
}
