//! Answers are the same with and without an index.

use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Instant};

use retroscope_filter::{FilterMode, hosts_of};
use retroscope_packet::{community_id, parse};

use super::{
    index::{BucketIndex, ring_bytes},
    *,
};

/// A ring in memory with one producer, and its index.
struct Indexed {
    ring: Ring,
    producer: Producer,
    index: Arc<BucketIndex>,
    next_ns: i64,
}

impl Indexed {
    fn new(bytes: usize, bucket_bytes: usize) -> Self {
        let config = RingConfig {
            bucket_bytes: Some(bucket_bytes),
            prefault: false,
            ..RingConfig::new(bytes as u64, 1, 0)
        };
        let ring = Ring::new(&config, None).unwrap();
        Self {
            producer: ring.producer().unwrap(),
            index: Arc::new(BucketIndex::new(ring.buckets(), bucket_bytes)),
            ring,
            next_ns: 1000,
        }
    }

    fn interface(&self, link_type: LinkType, time_domain: TimeDomain) -> u16 {
        let entry = InterfaceEntry {
            name: format!("if{}", link_type.0),
            link_type: link_type.0,
            snaplen: 0,
            time_domain: time_domain as u8,
            clock: 0,
        };
        self.ring.add_interface(entry).unwrap()
    }

    fn store(&mut self, interface: u16, frame: &[u8]) {
        self.next_ns += 10;
        let record = Record::whole(self.next_ns, interface, frame);
        self.producer.store(&record).unwrap();
    }

    fn count(&mut self, query: &Query, is_indexed: bool) -> Result<QueryReport, QueryError> {
        self.producer.publish();
        let answer = query.of(self.ring.attached())?;
        match is_indexed {
            true => answer.with_index(&self.index).count(),
            false => answer.count(),
        }
    }

    /// Runs a query without the index, and twice with the index: the second run can use filters
    /// that the first run made. Returns the index use of the second run.
    fn agrees(&mut self, query: &Query) -> Option<IndexUse> {
        let plain = match self.count(query, false) {
            Ok(plain) => plain,
            // The expression compiles for no link type here.
            Err(QueryError::Filter(_)) => return None,
            Err(error) => panic!("{query:?}: {error}"),
        };
        let mut did = None;
        for _ in 0..2 {
            let mut indexed = self.count(query, true).unwrap();
            did = indexed.index.take();
            assert_eq!(indexed, plain, "{query:?}, {did:?}");
        }
        did
    }
}

fn expression(random: &mut fastrand::Rng, hosts: &[IpAddr], depth: u32) -> String {
    if depth > 0 && random.u32(..3) > 0 {
        let mut part = || expression(random, hosts, depth - 1);
        let (left, right) = (part(), part());
        return match random.u32(..7) {
            0..3 => format!("({left}) and ({right})"),
            3..5 => format!("({left}) or ({right})"),
            5 => format!("not ({left})"),
            _ => format!("{left} and {right}"),
        };
    }
    let host = match random.u32(..5) {
        0 => IpAddr::from([10, 250, random.u8(..), random.u8(..)]),
        _ => hosts[random.usize(..hosts.len())],
    };
    let bits = if host.is_ipv4() { 32 } else { 128 };
    match random.u32(..20) {
        0 => format!("arp host {host}"),
        1 => format!("rarp host {host}"),
        2 => format!("src host {host}"),
        3 => format!("dst {host}"),
        4 => format!("net {host}/{bits}"),
        5 => format!("src and dst host {host}"),
        6 => ["tcp", "udp", "ip6", "ip", "icmp"][random.usize(..5)].to_owned(),
        7 => "port 53".to_owned(),
        8 => ["vlan", "vlan 10"][random.usize(..2)].to_owned(),
        9 => "len > 100".to_owned(),
        10 => "ip[8] < 64".to_owned(),
        11 if host.is_ipv4() => format!("ip host {host}"),
        11 => format!("ip6 host {host}"),
        12 => format!("host {host} or {}", hosts[random.usize(..hosts.len())]),
        _ => format!("host {host}"),
    }
}

fn captures() -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if !folder.is_dir() {
        eprintln!(
            "SKIP: no captures at {}: nothing was tested",
            folder.display()
        );
        return None;
    }
    let folders = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|folder| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path())
    });
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    Some(files)
}

/// Frames of real captures: fragments, tags, tunnels, extension headers, ARP and RARP, cut packets,
/// many link types.
#[test]
fn captures_give_the_same_with_and_without_an_index() {
    let Some(captures) = captures() else { return };
    const PACKETS_MAX: usize = 400;
    let (mut ruled_out, mut read, mut asked) = (0, 0, 0);
    for (seed, path) in captures.iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let Ok(file) = fs::File::open(path) else {
            continue;
        };
        let Ok(mut reader) = CaptureReader::new(io::BufReader::new(file)) else {
            continue;
        };
        let time_domain = match seed % 2 {
            0 => TimeDomain::File,
            _ => TimeDomain::KernelSoftware,
        };
        let mode = [FilterMode::Savefile, FilterMode::Live][seed % 2];
        let mut indexed = Indexed::new(5 << 20, BUCKET_BYTES);
        let mut numbers = Vec::<(LinkType, u16)>::new();
        let (mut hosts, mut ids) = (vec![IpAddr::from([10, 0, 0, 1])], Vec::new());
        let mut packets = Vec::new();
        while let Ok(Some(record)) = reader.next() {
            let interface = usize::from(record.meta.interface);
            let data = record.data.to_vec();
            let link_type = reader.interfaces()[interface].link_type;
            packets.push((link_type, data));
            if packets.len() >= PACKETS_MAX {
                break;
            }
        }
        let filler = vec![0; 60_000];
        let every = packets.len().div_ceil(12).max(1);
        for (at, (link_type, data)) in packets.iter().enumerate() {
            let known = numbers.iter().find(|(known, _)| known == link_type);
            let number = known.map(|(_, number)| *number).unwrap_or_else(|| {
                let number = indexed.interface(*link_type, time_domain);
                numbers.push((*link_type, number));
                number
            });
            hosts.extend(
                hosts_of(*link_type, mode, data)
                    .into_iter()
                    .flatten()
                    .flatten(),
            );
            let parsed = parse(*link_type, data);
            hosts.extend(parsed.network.into_iter().flat_map(|ip| [ip.src, ip.dst]));
            ids.push(community_id(&parsed, 0));
            if data.len() <= BUCKET_BYTES / 2 {
                indexed.store(number, data);
            }
            if at % every == every - 1 {
                // The bucket is full: later packets are in another bucket.
                (0..5).for_each(|_| indexed.store(number, &filler));
            }
        }
        let mut ids: Vec<String> = ids.into_iter().flatten().collect();
        ids.push("1:AAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_owned());
        for round in 0..4 {
            let mut query = Query::default();
            if round % 4 < 3 {
                query.expression = expression(&mut random, &hosts, 2);
            }
            if round % 4 > 1 {
                query.community_id = Some(ids[random.usize(..ids.len())].clone());
            }
            if random.bool() {
                let from_ns = random.i64(900..indexed.next_ns);
                query.from_ns = Some(from_ns);
                query.to_ns = random
                    .bool()
                    .then(|| random.i64(from_ns..indexed.next_ns + 9));
            }
            if random.u32(..3) == 0 {
                query.limit_packets = Some(random.u64(..20));
                query.newest = random.bool();
            }
            if let Some(did) = indexed.agrees(&query) {
                ruled_out += did.ruled_out;
                read += did.read;
                asked += 1;
            }
        }
    }
    eprintln!("{asked} queries, {ruled_out} buckets left out, {read} read");
    assert!(ruled_out > 500 && read > 100, "{ruled_out}, {read}");
}

/// An Ethernet frame with UDP from one address to another.
fn udp(src: u32, dst: u32) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(src.to_be_bytes());
    frame.extend(dst.to_be_bytes());
    frame.extend([0, 53, 16, 0, 0, 8, 0, 0]);
    frame
}

fn host(text: &str) -> Query {
    Query {
        expression: format!("host {text}"),
        ..Query::default()
    }
}

#[test]
fn a_flood_of_addresses_makes_no_filter_and_says_so() {
    let mut indexed = Indexed::new(4 << 20, BUCKET_BYTES);
    let interface = indexed.interface(LinkType::ETHERNET, TimeDomain::KernelSoftware);
    let mut random = fastrand::Rng::with_seed(1);
    while indexed.ring.statistics().evicted_packets == 0 {
        indexed.store(interface, &udp(random.u32(..), random.u32(..)));
    }
    let did = indexed.agrees(&host("10.0.0.1")).unwrap();
    assert_eq!((did.ruled_out, did.read, did.made), (0, 0, 0));
    assert!(did.useless >= 10, "{did:?}");
    assert_eq!(indexed.index.bytes(), 0);
}

/// In half of the buckets, random addresses make filters useless. Only the first query tries to
/// make these filters.
#[test]
fn a_flood_in_half_of_the_buckets_leaves_the_index_of_the_others() {
    let mut indexed = Indexed::new(16 << 20, BUCKET_BYTES);
    let interface = indexed.interface(LinkType::ETHERNET, TimeDomain::KernelSoftware);
    let mut random = fastrand::Rng::with_seed(1);
    let mut stored = 0;
    while indexed.ring.statistics().evicted_packets == 0 {
        let addresses = if stored < 120_000 { u32::MAX } else { 100 };
        let mut address = || random.u32(..addresses);
        indexed.store(interface, &udp(address(), address()));
        stored += 1;
    }
    let mut asked = || {
        let report = indexed.count(&host("10.0.0.1"), true).unwrap();
        report.index.unwrap()
    };
    let first = asked();
    assert!(first.made >= 40, "{first:?}");
    let second = asked();
    let closed = second.ruled_out + second.read + second.useless;
    assert_eq!((second.made, closed), (0, first.made), "{second:?}");
    assert!(second.useless >= 20 && second.read <= 2, "{second:?}");
    assert!(second.ruled_out >= 20, "{second:?}");
}

/// The filter of an overwritten bucket is not used, and filters stay within their part of the
/// memory.
#[test]
fn overwritten_buckets_are_asked_anew() {
    let mut indexed = Indexed::new(4 << 20, BUCKET_BYTES);
    let interface = indexed.interface(LinkType::ETHERNET, TimeDomain::KernelSoftware);
    for round in 0..5_u32 {
        let address = 0x0a00_0000 + round;
        for _ in 0..100_000 {
            indexed.store(interface, &udp(address, 0x0a01_0000));
        }
        for asked in 0..5 {
            let query = host(&format!("10.0.0.{asked}"));
            let did = indexed.agrees(&query).unwrap();
            let closed = did.ruled_out + did.read;
            assert!(closed >= 10 && did.made == 0, "{did:?}");
            // A filter rarely has a false positive.
            let most = if asked == round {
                did.read
            } else {
                did.ruled_out
            };
            assert!(most >= closed - 2, "{round}, {asked}: {did:?}");
        }
        let bytes = indexed.index.bytes();
        assert!(bytes > 0 && bytes <= indexed.ring.bytes() / 50, "{bytes}");
    }
}

#[test]
fn the_index_has_its_part_of_the_memory() {
    for asked in [16 << 20, 128 << 20, 256 << 20, 4 << 30, (1 << 40) + 12_345] {
        let left = ring_bytes(asked);
        if asked < 256 << 20 {
            assert_eq!(left, asked);
        } else {
            assert!(left + left / 50 <= asked && left * 52 / 51 >= asked - asked / 51);
        }
    }
}

/// Prints the times of searches for a rare flow and for an address in every 50th packet.
#[test]
#[ignore = "takes a minute and 2 GiB, and is about time: run it alone, with --release"]
fn one_flow_is_found_ten_times_faster() {
    let ring_bytes = std::env::var("RING_MIB").map_or(1024, |mib| mib.parse().unwrap()) << 20;
    // Without the index, with the index that the query makes, and with an existing index, by turns:
    // the fastest of five runs each.
    let fastest = |indexed: &mut Indexed, query: &Query| {
        let mut best = [None; 3];
        let mut did = None;
        for run in 0..15 {
            if run % 3 == 1 {
                let index = BucketIndex::new(indexed.ring.buckets(), indexed.ring.bucket_bytes());
                indexed.index = Arc::new(index);
            }
            let start = Instant::now();
            let report = indexed.count(query, run % 3 > 0).unwrap();
            let seconds = start.elapsed().as_secs_f64();
            let (before, packets) = best[run % 3].unwrap_or((seconds, report.packets));
            assert_eq!(packets, report.packets);
            best[run % 3] = Some((seconds.min(before), packets));
            did = report.index.or(did);
        }
        let [plain, first, with] = best.map(Option::unwrap);
        assert_eq!((plain.1, first.1), (with.1, with.1));
        (plain.0, first.0 / plain.0, plain.0 / with.0, with.1, did)
    };
    for (what, flows, bytes) in [
        ("mixed", 200_000_u32, 700),
        ("flood", u32::MAX, 42),
        ("half a flood", 0, 42),
    ] {
        let mut indexed = Indexed::new(ring_bytes, 2 << 20);
        let interface = indexed.interface(LinkType::ETHERNET, TimeDomain::KernelSoftware);
        let mut random = fastrand::Rng::with_seed(1);
        let mut number = 0_u32;
        while indexed.ring.statistics().evicted_packets == 0 {
            number += 1;
            // Flows begin and end. One address is in every 50th packet, and one flow in every
            // 300,000th.
            let flow = match flows {
                u32::MAX => random.u32(..),
                0 if number & 1 << 17 == 0 => random.u32(..),
                0 => number / 1000 + random.u32(..2000),
                flows => number / 1000 + random.u32(..flows / 100),
            };
            let mut frame = match number % 50 {
                0 => udp(0x0a00_0001, 0x0a00_0002),
                _ => udp(0x1400_0000 | flow >> 4, 0x0b00_0000 | flow & 0xff_ffff),
            };
            if number.is_multiple_of(300_000) {
                frame = udp(0x0a00_0003, 0x0a00_0004);
            }
            frame.resize(bytes, 0);
            indexed.store(interface, &frame);
        }
        let parsed = parse(LinkType::ETHERNET, &udp(0x0a00_0003, 0x0a00_0004));
        let by_id = Query {
            community_id: community_id(&parsed, 0),
            headers: NonZeroU32::new(64),
            ..Query::default()
        };
        for (name, query) in [
            ("one flow", host("10.0.0.3 and host 10.0.0.4")),
            ("one Community ID", by_id),
            ("elephant", host("10.0.0.1")),
        ] {
            let (seconds, first, times, packets, did) = fastest(&mut indexed, &query);
            eprintln!(
                "{what}, {name}: {seconds:.3} s without; with making {first:.2} of that, with {times:.2} times as fast; {packets} packets, {did:?}"
            );
        }
    }
}
