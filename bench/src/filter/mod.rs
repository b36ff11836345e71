//! Filters and rule sets against libpcap's interpreter and handwritten code.
//!
//! - `traffic`: generated packets. `hot`: a few hundred packets that stay in the cache. `cold`: the
//!   packets of a ring much larger than the caches.
//! - `handwritten`: the single filters as functions.
//! - `rules`: ten thousand rules, and their expected matches.
//!
//! Packets in the cache are the same for all engines. Except in the walk, an engine gets up to 64
//! frames at a time. Each run over packets is checked: packets in the cache by libpcap's verdict on
//! each packet, packets in cold memory by counts and a checksum.

mod cold;
mod handwritten;
mod hot;
mod rules;
mod traffic;

use std::{cell::LazyCell, io, sync::LazyLock};

use retroscope_filter::{Aux, FilterFrame, FilterMode, LinkContext, Program};
use retroscope_packet::LinkType;

use self::{
    cold::{Cold, PassResult, checked},
    hot::{Pass, each},
    rules::Sort,
    traffic::Hot,
};
use crate::{
    measure::{Entrant, Failure, Heat, Round, Series},
    session::Session,
};

/// The first single filter, which is also that of `filter/cold/vs-libpcap-walk` and of the script.
pub(crate) const PORT: &str = "udp port 60000";
/// The filter that rule sets are compared with.
const PORT_AND_HOST: &str = "tcp port 80 and host 10.0.0.1";
/// Numbers of filters that run as one function.
const TOGETHER: [usize; 5] = [1, 2, 8, 16, 64];
/// The name of libpcap's interpreter, as a denominator in rows.
const BPF_FILTER: &str = "bpf_filter";

/// The single filters: name, text, handwritten version.
fn singles() -> [(&'static str, String, Pass<'static>); 5] {
    let host_or_net = "host 192.168.1.1 or net 10.0.0.0/8".to_owned();
    let tcp_flags = "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0".to_owned();
    [
        ("udp-port", PORT.to_owned(), each(handwritten::udp_port)),
        (
            "tcp-host",
            PORT_AND_HOST.to_owned(),
            each(handwritten::tcp_port_and_host),
        ),
        ("host-or-net", host_or_net, each(handwritten::host_or_net)),
        ("tcp-flags", tcp_flags, each(handwritten::tcp_flags)),
        ("10-hosts", any_of(&TEN_HOSTS), each(handwritten::ten_hosts)),
    ]
}

fn any_of(hosts: &[u32]) -> String {
    let hosts = hosts.iter().map(|host| std::net::Ipv4Addr::from(*host));
    let hosts: Vec<_> = hosts.map(|host| format!("host {host}")).collect();
    hosts.join(" or ")
}

/// Hosts far from each other, to which few packets belong.
const TEN_HOSTS: [u32; 10] = scattered(0x2545_f491);
/// A hundred hosts far from each other.
static HUNDRED_HOSTS: LazyLock<[u32; 100]> = LazyLock::new(|| scattered(0x1234_5679));

/// Unordered addresses from a linear congruential generator (Knuth, MMIX), from 11.0.0.0 to
/// 223.255.255.255 without 127.0.0.0/8.
const fn scattered<const N: usize>(seed: u64) -> [u32; N] {
    let mut hosts = [0; N];
    let (mut state, mut index) = (seed, 0);
    while index < N {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let host = (state >> 32) as u32;
        let first = host >> 24;
        if first > 10 && first < 224 && first != 127 {
            hosts[index] = host;
            index += 1;
        }
    }
    hosts
}

/// An expression, compiled for Ethernet.
fn compile(text: &str) -> Result<Program, Failure> {
    let context = LinkContext {
        link_type: LinkType::ETHERNET,
        snaplen: 0,
        mode: FilterMode::Savefile,
        optimize: true,
    };
    let program = retroscope_filter::compile(text, context);
    program.map_err(|error| Failure::system("compiling a filter", error))
}

/// An expression as machine code.
pub(crate) fn native(text: &str) -> Result<Program, Failure> {
    let program = compile(text)?;
    let made = program.make_native();
    made.map_err(|error| Failure::system("making machine code", error))?;
    Ok(program)
}

/// The judged rows of filters, and of scans of cold memory.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let hot = Hot::new();
    let heat = LazyCell::new(|| single_filters(session, &hot));
    let over = |one: &str, other: &str| {
        let heat = heat.as_ref().map_err(Clone::clone)?;
        let is_part = |name: &str| name.ends_with(one) || name.ends_with(other);
        heat.figure(&is_part, &|round| {
            mean(round, one).over(&mean(round, other))
        })
    };
    session.row("filter/single/vs-libpcap", Some(BPF_FILTER), || {
        over("libpcap", "native")
    })?;
    session.row(
        "filter/single/vs-handwritten-time",
        Some("handwritten"),
        || over("native", "handwritten"),
    )?;
    session.versus("filter/100-hosts/vs-libpcap", BPF_FILTER, || {
        let text = any_of(&*HUNDRED_HOSTS);
        hot::engines("100-hosts", &hot, &text, None, &session.scale)
    })?;
    session.versus("filter/lua/vs-libpcap-time", BPF_FILTER, || {
        let mut entrants = vec![hot::script(&hot, &session.scale)?];
        entrants.extend(hot::engines("port", &hot, PORT, None, &session.scale)?);
        Ok(entrants)
    })?;
    session.row("filter/install-10k-ms", None, || {
        session.alone("installing rules, ms", rules::install)
    })?;
    judged_cold(session)
}

/// All engines on the five filters, packets in the cache.
fn single_filters<'a>(session: &Session, hot: &'a Hot) -> Result<Heat<'a>, Failure> {
    let mut entrants = Vec::new();
    for (name, text, by_hand) in singles() {
        entrants.extend(hot::engines(
            name,
            hot,
            &text,
            Some(by_hand),
            &session.scale,
        )?);
    }
    Ok(session.heat("single filters, packets in cache, ns", entrants))
}

/// The geometric means of an engine over all filters, in each repetition.
fn mean(round: &Round, engine: &str) -> Series {
    let of_engine = round.iter().filter(|series| series.name.ends_with(engine));
    Series::geometric_mean(&of_engine.collect::<Vec<_>>())
}

/// The rows on packets that no cache contains.
fn judged_cold(session: &Session) -> io::Result<()> {
    let cold = LazyCell::new(|| Cold::new(session.scale.ring_bytes));
    let cold = || cold.as_ref().map_err(Clone::clone);
    let heat = LazyCell::new(|| cold().map(|cold| scans(session, cold)));
    let heat = || heat.as_ref().map_err(Clone::clone);
    session.row("ring/cold-scan/vs-length-walk", Some("length-walk"), || {
        heat()?.ratio("length-walk", "ring")
    })?;
    session.row("ring/cold-scan/ns", None, || heat()?.spread("ring"))?;
    for (row, sort) in [
        ("filter/10k-flows/vs-one-time", Sort::Flows),
        ("filter/10k-mixed/vs-one-time", Sort::Mixed),
    ] {
        session.versus(row, PORT_AND_HOST, || rules_over_one(cold()?, sort))?;
    }
    let against = "bpf_filter, walking by length";
    session.versus("filter/cold/vs-libpcap-walk", against, || {
        walk_over_ring(session, cold()?)
    })
}

/// Scans of packets by descriptors, and by following lengths.
fn scans<'a>(session: &'a Session, cold: &'a Cold) -> Heat<'a> {
    let expected = cold.expect();
    let packed = cold::pack(&mut session.memory.borrow_mut());
    let walk = move || {
        let touch = |found: &mut PassResult, frame: &[u8], _| found.touch(frame);
        checked(cold::walk(&mut session.memory.borrow_mut(), touch)?, packed)
    };
    let entrants = vec![
        Entrant::new("ring", move || checked(cold.scan()?, expected)),
        Entrant::new("length-walk", walk),
    ];
    session.heat("cold scan, ns", entrants)
}

/// A rule set against one filter, both on the packets in the ring.
fn rules_over_one(cold: &Cold, sort: Sort) -> Result<Vec<Entrant<'_>>, Failure> {
    let set = rules::rule_set(sort)?;
    let mut reader = set.reader();
    let (expected, share) = rules::expect(sort, cold);
    if !(0.45..0.55).contains(&share) {
        let why =
            format!("{share:.2} of the packets match some rule, which should be half of them");
        return Err(Failure::Unsound(why));
    }
    let one = native(PORT_AND_HOST)?;
    let (_, expected_of_one) = cold.filter(|frames| one.run_many_in_libpcap(frames))?;
    Ok(vec![
        Entrant::new("rules", move || {
            checked(rules::read(cold, &mut reader)?, expected)
        }),
        Entrant::new("one", move || {
            checked(cold.filter(|frames| one.run_many(frames))?, expected_of_one)
        }),
    ])
}

/// libpcap's way through a mapped file against our way through the ring.
fn walk_over_ring<'a>(session: &'a Session, cold: &'a Cold) -> Result<Vec<Entrant<'a>>, Failure> {
    let memory = &session.memory;
    cold::pack(&mut memory.borrow_mut());
    let port = native(PORT)?;
    let (_, expected) = cold.filter(|frames| port.run_many_in_libpcap(frames))?;
    let walk = move |port: &Program, run: fn(&Program, &[FilterFrame<'_>]) -> u64| {
        cold::walk(&mut memory.borrow_mut(), |found, frame, wire_len| {
            let frame = FilterFrame::new(frame, wire_len, Aux::default());
            found.add_set(1, run(port, &[frame]));
        })
    };
    let (_, expected_of_walk) = walk(&port, Program::run_many)?;
    let same = port.clone();
    Ok(vec![
        Entrant::new("walk", move || {
            checked(walk(&same, Program::run_many_in_libpcap)?, expected_of_walk)
        }),
        Entrant::new("ring", move || {
            checked(cold.filter(|frames| port.run_many(frames))?, expected)
        }),
    ])
}

/// Several filters as one function.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let hot = Hot::new();
    let entrants = TOGETHER.map(|count| hot::together(&hot, count, &session.scale));
    let entrants = entrants.into_iter().collect::<Result<_, _>>();
    session.measure("filters together", entrants.map_err(io::Error::other)?)
}
