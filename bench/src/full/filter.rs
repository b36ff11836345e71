//! Filters by engine, what it takes to compile them, several of them as one function, and rule sets by number of rules.

use std::time::Instant;

use super::REPETITIONS;
use crate::{
    contest::Failure,
    filter::{
        Case, Engine, PORT_AND_HOST,
        cold::Cold,
        hundred_hosts, native,
        rules::{self, RULES, Sort, Twin},
        singles,
        sys::Libpcap,
        together,
    },
    measure::{Entrant, interleave},
    session::{Session, SessionError},
};

/// Numbers of filters that run as one function.
const TOGETHER: [usize; 5] = [1, 2, 8, 16, 64];
/// Numbers of rules.
const COUNTS: [u32; 5] = [1, 10, 100, 1000, RULES];

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    engines(session)?;
    compile(session)?;
    together(session)?;
    rule_sets(session)
}

/// The texts: name, expression.
fn texts() -> Vec<(&'static str, String)> {
    let singles = singles().map(|(name, text, _)| (name, text));
    let mut texts = singles.to_vec();
    texts.push(("100-hosts", hundred_hosts()));
    texts
}

/// `filter-ns/NAME/ENGINE`: packets in the cache.
fn engines(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_below("filter-ns") {
        return Ok(());
    }
    let mut cases: Vec<_> = singles()
        .into_iter()
        .map(|(name, text, by_hand)| (name, Case::new(&text, Some(by_hand)), &Engine::ALL[..]))
        .collect();
    let hundred = Case::new(&hundred_hosts(), None);
    let without_hand = &[Engine::Native, Engine::Interpreter, Engine::Libpcap][..];
    cases.push(("100-hosts", hundred, without_hand));
    for (name, case, engines) in &cases {
        let row = |engine: &Engine| format!("filter-ns/{name}/{}", engine.name());
        let engines = engines.iter().filter(|engine| session.wants(&row(engine)));
        match case {
            Ok(case) => {
                let scale = session.scale();
                let entrants = engines.map(|engine| case.entrant(row(engine), *engine, &scale));
                let entrants: Vec<_> = entrants.collect();
                write(session, "ns", entrants)?;
            }
            Err(failure) => {
                let rows: Vec<String> = engines.map(row).collect();
                for row in rows {
                    session.absolute(&row, "ns", Err(failure.clone()))?;
                }
            }
        }
    }
    Ok(())
}

/// `filter-compile/NAME/libpcap` and `…/native`.
fn compile(session: &mut Session) -> Result<(), SessionError> {
    let texts = texts();
    let mut entrants = Vec::new();
    for (name, text) in &texts {
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
    entrants.retain(|entrant| session.wants(entrant.name()));
    write(session, "us", entrants)
}

/// `filter-together/COUNT/separate` and `…/joint`: filters with nothing to look up, packets in the cache.
fn together(session: &mut Session) -> Result<(), SessionError> {
    for count in TOGETHER {
        let row = |is_joint| format!("filter-together/{count}/{}", together::name(is_joint));
        let mut ways = vec![false, true];
        ways.retain(|is_joint| session.wants(&row(*is_joint)));
        if ways.is_empty() {
            continue;
        }
        match together::Set::new(count) {
            Ok(set) => {
                let scale = session.scale();
                let entrants = ways.iter();
                let entrants = entrants.map(|way| set.entrant(*way, row(*way), &scale));
                write(session, "ns", entrants.collect())?;
            }
            Err(failure) => {
                for way in ways {
                    session.absolute(&row(way), "ns", Err(failure.clone()))?;
                }
            }
        }
    }
    Ok(())
}

/// `filter-rules/SORT/COUNT` and `filter-rules/one/COUNT`, which is a single filter whatever the number: packets in the ring.
fn rule_sets(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_below("filter-rules") {
        return Ok(());
    }
    let cold = match Cold::new(session.scale().ring_bytes) {
        Ok(cold) => cold,
        Err(failure) => return session.absolute("filter-rules/one/1", "ns", Err(failure)),
    };
    let made = |count: u32| {
        let sets = [Sort::Flows, Sort::Mixed].map(|sort| {
            let set = rules::rule_set(sort, count)?;
            let (expected, _) = Twin::new(sort, count).expect(&cold);
            Ok((sort, set, expected))
        });
        sets.into_iter().collect::<Result<Vec<_>, Failure>>()
    };
    for count in COUNTS {
        let row = |what: &str| format!("filter-rules/{what}/{count}");
        let sets = match (made(count), native(PORT_AND_HOST)) {
            (Ok(sets), Ok(one)) => Ok((sets, one)),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        };
        let (sets, one) = match sets {
            Ok(both) => both,
            Err(failure) => {
                session.absolute(&row("flows"), "ns", Err(failure))?;
                continue;
            }
        };
        let mut entrants = vec![Entrant::new(row("one"), || Ok(cold.filter(&one)?.0))];
        for (sort, set, expected) in &sets {
            let mut reader = set.reader();
            let cold = &cold;
            entrants.push(Entrant::new(row(sort.name()), move || {
                let (ns, found) = rules::read(cold, &mut reader)?;
                found.check(*expected).map(|()| ns)
            }));
        }
        entrants.retain(|entrant| session.wants(entrant.name()));
        write(session, "ns", entrants)?;
    }
    Ok(())
}

fn write(
    session: &mut Session,
    unit: &str,
    entrants: Vec<Entrant<'_>>,
) -> Result<(), SessionError> {
    let repetitions = REPETITIONS.min(session.scale().repetitions);
    for series in interleave(repetitions, entrants).series() {
        session.absolute(&series.name, unit, series.spread())?;
    }
    Ok(())
}
