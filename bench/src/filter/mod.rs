//! Filters and rule sets against libpcap's interpreter and code written by hand.
//!
//! - `traffic`: generated packets. `hot`: a few hundred of them that stay in the cache. `cold`: as many as a ring of 1 GiB holds.
//! - `handwritten`: the single filters as functions.
//! - `rules`: ten thousand rules, and what they must match.
//!
//! All engines get the same packets in the same loop: 64 frames, then 64 bits that say which of them match. Before anything is
//! timed the engines are compared packet by packet, and after each run with what they said before.

mod cold;
mod handwritten;
mod hot;
mod rules;
mod traffic;

use std::{io, sync::LazyLock, time::Instant};

use retroscope_filter::{Aux, Frame, LinkContext, Mode, Program};
use retroscope_packet::LinkType;

use self::{
    cold::{Cold, Found, checked},
    hot::{ENGINES, Pass, each},
    rules::{RULES, Sort},
    traffic::Hot,
};
use crate::{
    measure::{Entrant, Failure, Heat, Series},
    session::Session,
};

/// The filter that finds what is looked for in cold memory, and that a script does too.
const PORT: &str = "udp port 60000";
/// What rule sets are compared with.
const PORT_AND_HOST: &str = "tcp port 80 and host 10.0.0.1";
/// Numbers of filters that run as one function.
const TOGETHER: [usize; 5] = [1, 2, 8, 16, 64];
/// Numbers of rules.
const COUNTS: [u32; 5] = [1, 10, 100, 1000, RULES];
/// What rows say that they were compared with.
const BPF_FILTER: &str = "bpf_filter";

/// The single filters: name, text, the same by hand.
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

/// Hosts far from each other, of which few packets are.
const TEN_HOSTS: [u32; 10] = scattered(0x2545_f491);
/// The same, more of them.
static HUNDRED_HOSTS: LazyLock<[u32; 100]> = LazyLock::new(|| scattered(0x1234_5679));

/// Addresses without an order, by a linear congruential generator (Knuth, MMIX), below 224.0.0.0 and outside 10.0.0.0/8.
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
        mode: Mode::Savefile,
        optimize: true,
    };
    let program = retroscope_filter::compile(text, context);
    program.map_err(|error| Failure::system("compiling a filter", error))
}

/// An expression as machine code.
fn native(text: &str) -> Result<Program, Failure> {
    let program = compile(text)?;
    let made = program.make_native();
    made.map_err(|error| Failure::system("making machine code", error))?;
    Ok(program)
}

/// The judged rows of filters, and of scans of cold memory.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let (single, time) = (
        "filter/single/vs-libpcap",
        "filter/single/vs-handwritten-time",
    );
    if session.wants_any(&[single, time]) {
        let heat = single_filters(session);
        let over = |one, other| {
            let heat = heat.as_ref().map_err(Clone::clone)?;
            mean(heat, one).over(&mean(heat, other))
        };
        session.row(single, Some(BPF_FILTER), || over("libpcap", "native"))?;
        session.row(time, Some("handwritten"), || over("native", "handwritten"))?;
    }
    let hot = Hot::new();
    session.versus("filter/100-hosts/vs-libpcap", BPF_FILTER, || {
        let text = any_of(&*HUNDRED_HOSTS);
        let engines = hot::engines("100-hosts", &hot, &text, None, &session.scale)?;
        two(engines.into_iter().take(2))
    })?;
    session.versus("filter/lua/vs-libpcap-time", BPF_FILTER, || {
        let libpcap = hot::engines("port", &hot, PORT, None, &session.scale)?;
        let script = hot::script(&hot, &session.scale)?;
        two([script].into_iter().chain(libpcap).take(2))
    })?;
    session.row("filter/install-10k-ms", None, || {
        let entrant = Entrant::new("ms", rules::install);
        session.heat("installing rules", vec![entrant]).0[0].spread()
    })?;
    judged_cold(session)
}

/// All engines on the five filters, packets in the cache.
fn single_filters(session: &Session) -> Result<Heat, Failure> {
    let hot = Hot::new();
    let mut entrants = Vec::new();
    for (name, text, by_hand) in singles() {
        entrants.extend(hot::engines(
            name,
            &hot,
            &text,
            Some(by_hand),
            &session.scale,
        )?);
    }
    Ok(session.heat("single filters, packets in cache, ns", entrants))
}

/// The geometric means of an engine over all filters, in each repetition.
fn mean(heat: &Heat, engine: &str) -> Series {
    let of_engine = heat.0.iter().filter(|series| series.name.ends_with(engine));
    Series::geometric_mean(&of_engine.collect::<Vec<_>>())
}

/// What is measured on packets that no cache holds.
fn judged_cold(session: &Session) -> io::Result<()> {
    let rows = [
        "ring/cold-scan/vs-length-walk",
        "ring/cold-scan/ns",
        "filter/10k-flows/vs-one-time",
        "filter/10k-mixed/vs-one-time",
        "filter/cold/vs-libpcap-walk",
    ];
    if !session.wants_any(&rows) {
        return Ok(());
    }
    let [ratio, ns, flows, mixed, walk] = rows;
    let cold = Cold::new(session.scale.ring_bytes);
    let cold = || cold.as_ref().map_err(Clone::clone);
    if session.wants_any(&[ratio, ns]) {
        let heat = cold().map(|cold| scans(session, cold));
        let heat = || heat.as_ref().map_err(Clone::clone);
        session.row(ratio, Some("length-walk"), || {
            heat()?.ratio("length-walk", "ring")
        })?;
        session.row(ns, None, || heat()?.get("ring")?.spread())?;
    }
    for (row, sort) in [(flows, Sort::Flows), (mixed, Sort::Mixed)] {
        session.versus(row, PORT_AND_HOST, || rules_over_one(cold()?, sort))?;
    }
    let against = "bpf_filter, walking by length";
    session.versus(walk, against, || walk_over_ring(session, cold()?))
}

fn two<'a>(entrants: impl Iterator<Item = Entrant<'a>>) -> Result<[Entrant<'a>; 2], Failure> {
    let entrants: Vec<_> = entrants.collect();
    entrants
        .try_into()
        .map_err(|_| Failure::Unsound("two are compared".to_owned()))
}

/// Finding packets again by descriptors, and by following lengths.
fn scans(session: &Session, cold: &Cold) -> Heat {
    let expected = cold.expect();
    let packed = cold::pack(&mut session.memory.borrow_mut());
    let walk = || {
        let touch = |found: &mut Found, frame: &[u8], _| found.touch(frame);
        checked(cold::walk(&mut session.memory.borrow_mut(), touch)?, packed)
    };
    let entrants = vec![
        Entrant::new("ring", || checked(cold.scan()?, expected)),
        Entrant::new("length-walk", walk),
    ];
    session.heat("cold scan, ns", entrants)
}

/// A rule set against one filter, both on the packets in the ring.
fn rules_over_one(cold: &Cold, sort: Sort) -> Result<[Entrant<'_>; 2], Failure> {
    let set = rules::rule_set(sort, RULES)?;
    let mut reader = set.reader();
    let (expected, share) = rules::expect(sort, RULES, cold);
    if !(0.45..0.55).contains(&share) {
        let why =
            format!("{share:.2} of the packets match some rule, which should be half of them");
        return Err(Failure::Unsound(why));
    }
    let one = native(PORT_AND_HOST)?;
    let (_, expected_of_one) = cold.filter(|frames| one.run_many_in_libpcap(frames))?;
    Ok([
        Entrant::new("rules", move || {
            checked(rules::read(cold, &mut reader)?, expected)
        }),
        Entrant::new("one", move || {
            checked(cold.filter(|frames| one.run_many(frames))?, expected_of_one)
        }),
    ])
}

/// libpcap's way through a mapped file against ours through the ring.
fn walk_over_ring<'a>(session: &'a Session, cold: &'a Cold) -> Result<[Entrant<'a>; 2], Failure> {
    let memory = &session.memory;
    cold::pack(&mut memory.borrow_mut());
    let port = native(PORT)?;
    let (_, expected) = cold.filter(|frames| port.run_many_in_libpcap(frames))?;
    let walk = move |port: &Program, run: fn(&Program, &[Frame<'_>]) -> u64| {
        cold::walk(&mut memory.borrow_mut(), |found, frame, wire_len| {
            let frame = Frame::new(frame, wire_len, Aux::default());
            found.add_set(1, run(port, &[frame]));
        })
    };
    let (_, expected_of_walk) = walk(&port, Program::run_many)?;
    let same = port.clone();
    Ok([
        Entrant::new("walk", move || {
            checked(walk(&same, Program::run_many_in_libpcap)?, expected_of_walk)
        }),
        Entrant::new("ring", move || {
            checked(cold.filter(|frames| port.run_many(frames))?, expected)
        }),
    ])
}

/// Filters by engine, what it takes to compile them, several of them as one function, and rule sets by number of rules.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let (hot, scale) = (Hot::new(), &session.scale);
    let by_hand = singles().map(|(name, text, by_hand)| (name, text, Some(by_hand)));
    let hundred = ("100-hosts", any_of(&*HUNDRED_HOSTS), None);
    let mut compiling = Vec::new();
    for (name, text, by_hand) in by_hand.into_iter().chain([hundred]) {
        let names = if by_hand.is_some() {
            &ENGINES[..]
        } else {
            &ENGINES[..3]
        };
        let names = names
            .iter()
            .map(|engine| format!("filter-ns/{name}/{engine}"));
        let engines = hot::engines(&format!("filter-ns/{name}"), &hot, &text, by_hand, scale);
        session.measure("filters, packets in cache", or_failing(engines, names))?;
        let copy = text.clone();
        let libpcap = move || {
            let start = Instant::now();
            compile(&copy)?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let native = move || {
            let info = native(&text)?.native();
            let info = info.ok_or_else(|| Failure::Unsound("no machine code".to_owned()))?;
            Ok(info.compile_time.as_secs_f64() * 1e6)
        };
        compiling.push(Entrant::new(
            format!("filter-compile/{name}/libpcap"),
            libpcap,
        ));
        compiling.push(Entrant::new(
            format!("filter-compile/{name}/native"),
            native,
        ));
    }
    session.measure("compiling", compiling)?;
    for count in TOGETHER {
        let names = ["separate", "joint"].map(|way| format!("filter-together/{count}/{way}"));
        let entrants = or_failing(hot::together(&hot, count, scale), names);
        session.measure("filters together", entrants)?;
    }
    rule_rows(session)
}

/// `filter-rules/SORT/COUNT` and `filter-rules/one/COUNT`, which is a single filter whatever the number: packets in the ring.
fn rule_rows(session: &Session) -> io::Result<()> {
    let rows = COUNTS
        .map(|count| ["one", "flows", "mixed"].map(|of| format!("filter-rules/{of}/{count}")));
    if !rows.iter().flatten().any(|row| session.wants(row)) {
        return Ok(());
    }
    let made =
        Cold::new(session.scale.ring_bytes).and_then(|cold| Ok((cold, native(PORT_AND_HOST)?)));
    for (count, names) in COUNTS.into_iter().zip(rows) {
        let entrants = || {
            let (cold, one) = made.as_ref().map_err(Clone::clone)?;
            let run_one = || Ok(cold.filter(|frames| one.run_many(frames))?.0);
            let mut entrants = vec![Entrant::new(&names[0], run_one)];
            for (row, sort) in names[1..].iter().zip([Sort::Flows, Sort::Mixed]) {
                let (set, (expected, _)) = (
                    rules::rule_set(sort, count)?,
                    rules::expect(sort, count, cold),
                );
                let mut reader = set.reader();
                entrants.push(Entrant::new(row, move || {
                    checked(rules::read(cold, &mut reader)?, expected)
                }));
            }
            Ok(entrants)
        };
        session.measure("rule sets", or_failing(entrants(), names.clone()))?;
    }
    Ok(())
}

/// Entrants, or why they could not be made under each of their names.
fn or_failing<'a>(
    made: Result<Vec<Entrant<'a>>, Failure>,
    names: impl IntoIterator<Item = String>,
) -> Vec<Entrant<'a>> {
    made.unwrap_or_else(|failure| {
        let failing = |name| {
            let failure = failure.clone();
            Entrant::new(name, move || Err(failure.clone()))
        };
        names.into_iter().map(failing).collect()
    })
}
