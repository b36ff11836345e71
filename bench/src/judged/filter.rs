//! Filters and rule sets against libpcap and code written by hand.

use crate::{
    contest::Failure,
    filter::{
        Case, Engine, PORT, PORT_AND_HOST,
        cold::{self, Cold},
        hot, hundred_hosts, native,
        rules::{self, RULES, Sort, Twin},
        script::PortScript,
        singles,
        sys::Libpcap,
    },
    measure::{Entrant, Heat, Series, Spread, interleave},
    pace::Scale,
    session::{Session, SessionError, say},
};

pub(super) const SINGLE: &str = "filter/single/vs-libpcap";
pub(super) const SINGLE_TIME: &str = "filter/single/vs-handwritten-time";
pub(super) const HUNDRED: &str = "filter/100-hosts/vs-libpcap";
pub(super) const FLOWS: &str = "filter/10k-flows/vs-one-time";
pub(super) const MIXED: &str = "filter/10k-mixed/vs-one-time";
pub(super) const COLD: &str = "filter/cold/vs-libpcap-walk";
pub(super) const INSTALL: &str = "filter/install-10k-ms";
pub(super) const LUA_TIME: &str = "filter/lua/vs-libpcap-time";

/// What rows say that they were compared with.
const BPF_FILTER: &str = "bpf_filter";
const HANDWRITTEN: &str = "handwritten";
const WALK: &str = "bpf_filter, walking by length";

/// All of them.
pub(super) fn rows(session: &mut Session) -> Result<(), SessionError> {
    in_cache(session)?;
    lua(session)?;
    install(session)?;
    in_ring(session)
}

/// The single filters and the hundred hosts.
fn in_cache(session: &mut Session) -> Result<(), SessionError> {
    if session.wants_any(&[SINGLE, SINGLE_TIME]) {
        let heat = single_filters(&session.scale());
        let over = |one, other| {
            let heat = heat.as_ref().map_err(Clone::clone)?;
            mean_of_singles(heat, one)?.over(&mean_of_singles(heat, other)?)
        };
        let ratio = over(Engine::Libpcap, Engine::Native);
        let time = over(Engine::Native, Engine::ByHand);
        if session.wants(SINGLE) {
            session.ratio(SINGLE, BPF_FILTER, ratio)?;
        }
        if session.wants(SINGLE_TIME) {
            session.ratio(SINGLE_TIME, HANDWRITTEN, time)?;
        }
    }
    if session.wants(HUNDRED) {
        let ratio = hundred(&session.scale());
        session.ratio(HUNDRED, BPF_FILTER, ratio)?;
    }
    Ok(())
}

fn single_filters(scale: &Scale) -> Result<Heat, Failure> {
    let cases = singles().map(|(name, text, by_hand)| Ok((name, Case::new(&text, Some(by_hand))?)));
    let cases = cases
        .into_iter()
        .collect::<Result<Vec<(&str, Case)>, Failure>>()?;
    let mut entrants = Vec::new();
    for (name, case) in &cases {
        for engine in [Engine::Native, Engine::Libpcap, Engine::ByHand] {
            entrants.push(case.entrant(entry(name, engine), engine, scale));
        }
    }
    Ok(run("single filters, packets in cache", scale, entrants))
}

fn entry(name: &str, engine: Engine) -> String {
    format!("{name}/{}", engine.name())
}

/// The geometric mean over the five filters, in each repetition.
fn mean_of_singles(heat: &Heat, engine: Engine) -> Result<Series, Failure> {
    let names = singles().map(|(name, ..)| entry(name, engine));
    let series = names.iter().map(|name| heat.get(name));
    Series::geometric_mean(engine.name(), &series.collect::<Result<Vec<_>, _>>()?)
}

fn hundred(scale: &Scale) -> Result<Spread, Failure> {
    let case = Case::new(&hundred_hosts(), None)?;
    let entrants =
        [Engine::Native, Engine::Libpcap].map(|engine| case.entrant(engine.name(), engine, scale));
    let heat = run("100 hosts, packets in cache", scale, entrants.into());
    heat.ratio(Engine::Libpcap.name(), Engine::Native.name())
}

/// A trigger in Lua.
fn lua(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants(LUA_TIME) {
        return Ok(());
    }
    let scale = session.scale();
    let ratio = (|| {
        let mut script = PortScript::new()?;
        let case = Case::new(PORT, None)?;
        let mut pace = hot::pace(&scale);
        let entrants = vec![
            Entrant::new("lua", || script.time(&mut pace)),
            case.entrant(BPF_FILTER, Engine::Libpcap, &scale),
        ];
        let heat = run("a port in Lua, packets in cache", &scale, entrants);
        heat.ratio("lua", BPF_FILTER)
    })();
    session.ratio(LUA_TIME, BPF_FILTER, ratio)
}

/// Ten thousand rules while packets flow.
fn install(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants(INSTALL) {
        return Ok(());
    }
    let install = || {
        let installed = rules::install()?;
        say(&format!(
            "{RULES} rules: {:.1} ms from text to filter, {:.1} ms from there to the reader, which paused {:.0} us at most",
            installed.parse_ms, installed.insert_ms, installed.pause_us
        ));
        Ok(installed.parse_ms + installed.insert_ms)
    };
    let heat = interleave(
        session.scale().repetitions,
        vec![Entrant::new("install", install)],
    );
    let figure = heat.get("install").and_then(Series::spread);
    session.absolute(INSTALL, "ms", figure)
}

/// What is measured on packets that no cache holds.
fn in_ring(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_any(&[FLOWS, MIXED, COLD]) {
        return Ok(());
    }
    let cold = Cold::new(session.scale().ring_bytes);
    for (name, sort) in [(FLOWS, Sort::Flows), (MIXED, Sort::Mixed)] {
        if session.wants(name) {
            let ratio = cold.as_ref().map_err(Clone::clone);
            let ratio = ratio.and_then(|cold| rules_over_one(cold, sort, &session.scale()));
            session.ratio(name, PORT_AND_HOST, ratio)?;
        }
    }
    if session.wants(COLD) {
        let ratio = cold.as_ref().map_err(Clone::clone);
        let ratio = ratio.and_then(|cold| scan_over_walk(cold, session));
        session.ratio(COLD, WALK, ratio)?;
    }
    Ok(())
}

/// A rule set against one filter, both on the packets in the ring.
fn rules_over_one(cold: &Cold, sort: Sort, scale: &Scale) -> Result<Spread, Failure> {
    let set = rules::rule_set(sort, RULES)?;
    let mut reader = set.reader();
    rules::compare_with_libpcap(sort, &mut reader)?;
    let (expected, share) = Twin::new(sort, RULES).expect(cold);
    if !(0.45..0.55).contains(&share) {
        return Err(Failure::Unsound(format!(
            "{share:.2} of the packets match some rule, which should be half of them"
        )));
    }
    let one = native(PORT_AND_HOST)?;
    let (_, expected_of_one) = cold.filter_by(&Libpcap::compile(PORT_AND_HOST)?)?;
    let entrants = vec![
        Entrant::new(sort.name(), || {
            let (ns, found) = rules::read(cold, &mut reader)?;
            found.check(expected).map(|()| ns)
        }),
        Entrant::new("one", || {
            let (ns, found) = cold.filter(&one)?;
            found.check(expected_of_one).map(|()| ns)
        }),
    ];
    let what = format!("{RULES} rules ({}), packets in the ring", sort.name());
    run(&what, scale, entrants).ratio(sort.name(), "one")
}

/// Our way through the ring against libpcap's through a mapped file.
fn scan_over_walk(cold: &Cold, session: &Session) -> Result<Spread, Failure> {
    let (scale, memory) = (session.scale(), session.memory());
    cold::pack(&mut memory.borrow_mut());
    let (port, libpcap) = (native(PORT)?, Libpcap::compile(PORT)?);
    let (_, expected) = cold.filter_by(&libpcap)?;
    let by_port = |frame: &[u8], wire_len| port.run(frame, wire_len, Default::default()) != 0;
    let (_, expected_of_walk) = cold::walk(&mut memory.borrow_mut(), by_port)?;
    let entrants = vec![
        Entrant::new("ring", || {
            let (ns, found) = cold.filter(&port)?;
            found.check(expected).map(|()| ns)
        }),
        Entrant::new(WALK, || {
            let takes = |frame: &[u8], wire_len| libpcap.run(frame, wire_len) != 0;
            let (ns, found) = cold::walk(&mut memory.borrow_mut(), takes)?;
            found.check(expected_of_walk).map(|()| ns)
        }),
    ];
    let heat = run("one filter, packets in memory", &scale, entrants);
    heat.ratio(WALK, "ring")
}

/// Runs entrants whose figures are nanoseconds a packet, and says them.
fn run(what: &str, scale: &Scale, entrants: Vec<Entrant<'_>>) -> Heat {
    say(&format!("{what}, ns a packet:"));
    let heat = interleave(scale.repetitions, entrants);
    for series in heat.series() {
        match series.spread() {
            Ok(spread) => say(&format!(
                "  {}: {:.2} ({:.2} to {:.2})",
                series.name, spread.median, spread.min, spread.max
            )),
            Err(failure) => say(&format!("  {}: {failure}", series.name)),
        }
    }
    heat
}
