//! All queues, by size of packet, number of threads, and the way they are used.

use std::cell::RefCell;

use super::{SIZES, Start, compare, pairs, shared};
use crate::{
    contest::Load,
    pace::Shared,
    peers::{self, Style},
    qq2016::Qq2016,
    ring::RingContest,
    session::{Session, SessionError},
};

/// The peer that shows what a queue is worth that has our stores: the best of those that are crates, by FACTS.
const WITH_OUR_STORES: &str = "rtrb";

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_below("queue") {
        return Ok(());
    }
    let all_pairs = pairs();
    let most = all_pairs.iter().copied().max().unwrap_or(1);
    let ours = [
        (
            "ring",
            shared(RingContest::new(
                session.scale().ring_bytes,
                None,
                most,
                most,
            )),
        ),
        ("qq2016", shared(Ok(Qq2016::new()))),
    ];
    let peers: Vec<(Style, Vec<Shared>)> = Style::ALL
        .into_iter()
        .map(|style| {
            (
                style,
                peers::all(style).into_iter().map(RefCell::new).collect(),
            )
        })
        .collect();
    for pairs in all_pairs {
        for bytes in SIZES {
            let load = Load::pairs(bytes, 0, pairs);
            let row = |name: &str, style: Style| {
                format!("queue/{name}/{bytes}B/{pairs}p{pairs}c/{}", style.name())
            };
            let mut starts = Vec::new();
            for (name, contest) in &ours {
                starts.push(Start {
                    row: row(name, Style::Well),
                    contest,
                    load,
                    whole_lap: true,
                });
            }
            for (style, peers) in &peers {
                for contest in peers {
                    let name = contest.borrow().name().to_owned();
                    if *style == Style::Streaming && name != WITH_OUR_STORES {
                        continue;
                    }
                    starts.push(Start {
                        row: row(&name, *style),
                        contest,
                        load,
                        whole_lap: matches!(style, Style::Well | Style::Streaming),
                    });
                }
            }
            compare(session, starts)?;
        }
    }
    sinks(session)
}

/// Several producers and one consumer, as figure 7.1 of the thesis has them.
fn sinks(session: &mut Session) -> Result<(), SessionError> {
    let producers = crate::pin::cores().saturating_sub(1).min(4);
    if producers < 2 {
        return Ok(());
    }
    let ours = [
        (
            "ring",
            shared(RingContest::new(
                session.scale().ring_bytes,
                None,
                producers,
                1,
            )),
        ),
        ("qq2016", shared(Ok(Qq2016::new()))),
    ];
    for bytes in SIZES {
        let starts = ours.iter().map(|(name, contest)| Start {
            row: format!("queue/{name}/{bytes}B/{producers}p1c/well"),
            contest,
            load: Load {
                producers,
                consumers: 1,
                ..Load::pairs(bytes, 0, 1)
            },
            whole_lap: true,
        });
        let starts = starts.collect();
        compare(session, starts)?;
    }
    Ok(())
}
