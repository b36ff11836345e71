//! Filters and rule sets against libpcap's interpreter and code written by hand.
//!
//! - `sys`: libpcap as other programs use it.
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
mod sys;
mod traffic;

use std::{io, sync::LazyLock, time::Instant};

use retroscope_filter::{LinkContext, Mode, Program};
use retroscope_packet::LinkType;

use self::{
    cold::{Cold, Found, checked},
    hot::{Case, Engine, Pass, Together, each},
    rules::{RULES, Sort},
    sys::Libpcap,
    traffic::Hot,
};
use crate::{
    measure::{Entrant, Failure, Heat, Series, Spread},
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
fn singles() -> [(&'static str, String, Pass); 5] {
    let host_or_net = "host 192.168.1.1 or net 10.0.0.0/8";
    let tcp_flags = "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0";
    [
        ("udp-port", PORT.to_owned(), |frames, verdicts| {
            each(frames, verdicts, handwritten::udp_port);
        }),
        ("tcp-host", PORT_AND_HOST.to_owned(), |frames, verdicts| {
            each(frames, verdicts, handwritten::tcp_port_and_host);
        }),
        ("host-or-net", host_or_net.to_owned(), |frames, verdicts| {
            each(frames, verdicts, handwritten::host_or_net);
        }),
        ("tcp-flags", tcp_flags.to_owned(), |frames, verdicts| {
            each(frames, verdicts, handwritten::tcp_flags);
        }),
        ("10-hosts", any_of(&TEN_HOSTS), |frames, verdicts| {
            each(frames, verdicts, handwritten::ten_hosts);
        }),
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
        let means = means_of_singles(session);
        let over = |one: Engine, other: Engine| {
            let means = means.as_ref().map_err(Clone::clone)?;
            means[one as usize].over(&means[other as usize])
        };
        session.compare(single, BPF_FILTER, || over(Engine::Libpcap, Engine::Native))?;
        session.compare(time, "handwritten", || over(Engine::Native, Engine::ByHand))?;
    }
    let script = || script_over_libpcap(session);
    session.compare("filter/100-hosts/vs-libpcap", BPF_FILTER, || {
        hundred_hosts(session)
    })?;
    session.compare("filter/lua/vs-libpcap-time", BPF_FILTER, script)?;
    session.figure("filter/install-10k-ms", rules::install)?;
    judged_cold(session)
}

/// The geometric means over the five filters in the cache, in each repetition, by engine.
fn means_of_singles(session: &Session) -> Result<Vec<Series>, Failure> {
    let cases = singles().map(|(name, text, by_hand)| Ok((name, Case::new(&text, Some(by_hand))?)));
    let cases = cases.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let mut entrants = Vec::new();
    for (name, case) in &cases {
        for engine in Engine::ALL {
            let name = format!("{name}/{}", engine.name());
            entrants.push(case.entrant(name, engine, &session.scale));
        }
    }
    let heat = session.heat("single filters, packets in cache, ns", entrants);
    let means = (0..Engine::ALL.len()).map(|engine| {
        let of_engine = heat.0.iter().skip(engine).step_by(Engine::ALL.len());
        Series::geometric_mean(&of_engine.cloned().collect::<Vec<_>>())
    });
    means.collect()
}

fn hundred_hosts(session: &Session) -> Result<Spread, Failure> {
    let case = Case::new(&any_of(&*HUNDRED_HOSTS), None)?;
    let entrant = |engine: Engine| case.entrant(engine.name(), engine, &session.scale);
    let entrants = vec![entrant(Engine::Native), entrant(Engine::Libpcap)];
    session
        .heat("100 hosts, packets in cache, ns", entrants)
        .ratio("libpcap", "native")
}

fn script_over_libpcap(session: &Session) -> Result<Spread, Failure> {
    let (hot, case) = (Hot::new(), Case::new(PORT, None)?);
    let entrants = vec![
        hot::script(&hot, &case, &session.scale)?,
        case.entrant(BPF_FILTER, Engine::Libpcap, &session.scale),
    ];
    session
        .heat("a port in Lua, packets in cache, ns", entrants)
        .ratio("lua", BPF_FILTER)
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
        let heat = cold().and_then(|cold| scans(session, cold));
        let heat = || heat.as_ref().map_err(Clone::clone);
        session.compare(ratio, "length-walk", || {
            heat()?.ratio("length-walk", "ring")
        })?;
        if session.wants(ns) {
            session.absolute(ns, heat().and_then(|heat| heat.0[0].spread()))?;
        }
    }
    for (row, sort) in [(flows, Sort::Flows), (mixed, Sort::Mixed)] {
        session.compare(row, PORT_AND_HOST, || {
            rules_over_one(session, cold()?, sort)
        })?;
    }
    let against = "bpf_filter, walking by length";
    session.compare(walk, against, || walk_over_ring(session, cold()?))
}

/// Finding packets again by descriptors, and by following lengths.
fn scans(session: &Session, cold: &Cold) -> Result<Heat, Failure> {
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
    Ok(session.heat("cold scan, ns", entrants))
}

/// A rule set against one filter, both on the packets in the ring.
fn rules_over_one(session: &Session, cold: &Cold, sort: Sort) -> Result<Spread, Failure> {
    let set = rules::rule_set(sort, RULES)?;
    let mut reader = set.reader();
    let (expected, share) = rules::expect(sort, RULES, cold);
    if !(0.45..0.55).contains(&share) {
        return Err(Failure::Unsound(format!(
            "{share:.2} of the packets match some rule, which should be half of them"
        )));
    }
    let one = native(PORT_AND_HOST)?;
    let (_, expected_of_one) = cold.filter_by(&Libpcap::compile(PORT_AND_HOST)?)?;
    let entrants = vec![
        Entrant::new("rules", || {
            checked(rules::read(cold, &mut reader)?, expected)
        }),
        Entrant::new("one", || checked(cold.filter(&one)?, expected_of_one)),
    ];
    let what = format!("{RULES} rules ({}), packets in the ring, ns", sort.name());
    session.heat(&what, entrants).ratio("rules", "one")
}

/// libpcap's way through a mapped file against ours through the ring.
fn walk_over_ring(session: &Session, cold: &Cold) -> Result<Spread, Failure> {
    cold::pack(&mut session.memory.borrow_mut());
    let (port, libpcap) = (native(PORT)?, Libpcap::compile(PORT)?);
    let (_, expected) = cold.filter_by(&libpcap)?;
    let by_port = |found: &mut Found, frame: &[u8], wire_len| {
        found.add_set(
            1,
            u64::from(port.run(frame, wire_len, Default::default()) != 0),
        );
    };
    let (_, expected_of_walk) = cold::walk(&mut session.memory.borrow_mut(), by_port)?;
    let entrants = vec![
        Entrant::new("ring", || checked(cold.filter(&port)?, expected)),
        Entrant::new("walk", || {
            let walked = cold::walk(
                &mut session.memory.borrow_mut(),
                |found, frame, wire_len| {
                    found.add_set(1, u64::from(libpcap.run(frame, wire_len) != 0));
                },
            );
            checked(walked?, expected_of_walk)
        }),
    ];
    session
        .heat("one filter, packets in memory, ns", entrants)
        .ratio("walk", "ring")
}

/// Filters by engine, what it takes to compile them, several of them as one function, and rule sets by number of rules.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut texts: Vec<_> = singles()
        .into_iter()
        .map(|(name, text, by_hand)| (name, text, Some(by_hand)))
        .collect();
    texts.push(("100-hosts", any_of(&*HUNDRED_HOSTS), None));
    for (name, text, by_hand) in &texts {
        let case = Case::new(text, *by_hand);
        let engines = Engine::ALL.iter();
        let engines = engines.filter(|engine| by_hand.is_some() || **engine != Engine::ByHand);
        let entrants = engines.map(|engine| {
            let row = format!("filter-ns/{name}/{}", engine.name());
            or_failing(&case, row, |case, row| {
                case.entrant(row, *engine, &session.scale)
            })
        });
        session.measure("filters, packets in cache", entrants.collect())?;
    }
    let mut entrants = Vec::new();
    for (name, text, _) in &texts {
        entrants.push(Entrant::new(
            format!("filter-compile/{name}/libpcap"),
            || {
                let start = Instant::now();
                Libpcap::compile(text)?;
                Ok(start.elapsed().as_secs_f64() * 1e6)
            },
        ));
        entrants.push(Entrant::new(
            format!("filter-compile/{name}/native"),
            || {
                let info = native(text)?.native();
                let info = info.ok_or_else(|| Failure::Unsound("no machine code".to_owned()))?;
                Ok(info.compile_time.as_secs_f64() * 1e6)
            },
        ));
    }
    session.measure("compiling", entrants)?;
    for count in TOGETHER {
        let set = Together::new(count);
        let entrants = [("separate", false), ("joint", true)].map(|(way, is_joint)| {
            let row = format!("filter-together/{count}/{way}");
            or_failing(&set, row, |set, row| {
                set.entrant(row, is_joint, &session.scale)
            })
        });
        session.measure("filters together", entrants.into())?;
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
    for (count, [row_of_one, flows, mixed]) in COUNTS.into_iter().zip(rows) {
        let set = |sort| {
            let (cold, _) = made.as_ref().map_err(Clone::clone)?;
            let set = rules::rule_set(sort, count)?;
            Ok((cold, set.reader(), rules::expect(sort, count, cold).0))
        };
        let mut sets = [Sort::Flows, Sort::Mixed].map(set);
        let mut entrants = vec![or_failing(&made, row_of_one, |(cold, one), row| {
            Entrant::new(row, || Ok(cold.filter(one)?.0))
        })];
        for (set, row) in sets.iter_mut().zip([flows, mixed]) {
            entrants.push(Entrant::new(row, move || {
                let (cold, reader, expected) = set
                    .as_mut()
                    .map_err(|failure: &mut Failure| failure.clone())?;
                checked(rules::read(cold, reader)?, *expected)
            }));
        }
        session.measure("rule sets", entrants)?;
    }
    Ok(())
}

/// An entrant on something that may not have been made; then it tells why.
fn or_failing<'a, T>(
    made: &'a Result<T, Failure>,
    row: String,
    entrant: impl FnOnce(&'a T, String) -> Entrant<'a>,
) -> Entrant<'a> {
    match made {
        Ok(made) => entrant(made, row),
        Err(failure) => Entrant::new(row, || Err(failure.clone())),
    }
}
