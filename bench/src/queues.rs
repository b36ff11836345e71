//! The rows that compare queues: packets a second, against each other and against memory.

use std::io;

use crate::{
    contest::{Contest, Load},
    limits::{DESCRIPTOR_BYTES, Insert, filling, inserting},
    measure::{Entrant, Failure, Figure, Spread},
    peers::{self, Way},
    pin,
    qq2016::Qq2016,
    ring::RingContest,
    rows::{self, Listed},
    session::Session,
};

/// Packet sizes of the thesis and the paper.
pub(crate) const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 1514];
/// Bytes and pairs of threads of the judged rows. The heat of the first entry also measures the
/// rows of the denominators.
const JUDGED: [(usize, usize); 6] = [(64, 1), (64, 2), (512, 1), (1514, 1), (60, 1), (590, 1)];
/// The denominators of the ratios of our ring. For each: its name, the entrant with which the
/// denominator is compared, and the row for the share of that entrant that the denominator must
/// reach. Empty texts: no check.
const AGAINST: [(&str, &str, &str); 4] = [
    (RAW, NT_FILL, "limits/raw-insert/vs-nt-fill"),
    ("qq2016", MEMCPY, "limits/qq2016/vs-memcpy-insert"),
    (BEST_PEER, MEMCPY, "limits/best-peer/vs-memcpy-insert"),
    (NT_FILL, "", ""),
];
/// The next constants name entrants that are not queues (`nt-fill`, `memcpy-insert`, [`RAW_WAYS`]),
/// and groups of which the best entrant counts ([`RAW`], [`BEST_PEER`]).
const NT_FILL: &str = "nt-fill";
const MEMCPY: &str = "memcpy-insert";
const RAW: &str = "raw-insert";
const RAW_WAYS: [&str; 2] = ["raw-insert-straight", "raw-insert-staged"];
const BEST_PEER: &str = "best-peer";

type Contestant<'c> = &'c mut dyn Contest;

/// [`Failure::CannotRun`] if this process may use only one CPU, because two threads that hand
/// packets over need two CPUs.
pub(crate) fn two_cores() -> Result<(), Failure> {
    if pin::cores() >= 2 {
        return Ok(());
    }
    let why = "two threads that hand packets over need two cores; there is one";
    Err(Failure::CannotRun(why.to_owned()))
}

/// Number of packets of this size that fill the memory once.
pub(crate) fn lap(session: &Session, packet_bytes: usize) -> u64 {
    session.scale.ring_bytes / (packet_bytes + DESCRIPTOR_BYTES) as u64
}

/// An entrant for a queue that carries at least the packets of the load, in Mpps. Each run is
/// checked.
pub(crate) fn carrying<'a>(
    session: &'a Session,
    name: impl Into<String>,
    contest: Contestant<'a>,
    load: Load,
) -> Entrant<'a> {
    Entrant::paced(name, session.scale.seconds, load.packets, move |packets| {
        let load = Load { packets, ..load };
        let run = contest.run(&load, &mut session.memory.borrow_mut())?;
        run.check(&load)?;
        Ok((run.mpps(), run.mpps() * 1e6))
    })
}

/// The judged rows that compare queues.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let mut ring = two_cores().and_then(|()| RingContest::new(session.scale.ring_bytes, 2));
    let mut qq = Qq2016::default();
    for (bytes, pairs) in JUDGED {
        let row = |against: &str| format!("ring/{bytes}B/{pairs}p{pairs}c/vs-{against}");
        let vouched = (bytes, pairs) == JUDGED[0];
        let mut wanted = AGAINST.to_vec();
        wanted.retain(|(against, _, sound_row)| {
            session.wants(&row(against)) || vouched && session.wants(sound_row)
        });
        if wanted.is_empty() {
            continue;
        }
        let needs = |name| {
            let mut wanted = wanted.iter();
            wanted.any(|(against, by, _)| *against == name || *by == name)
        };
        let mut peers = if needs(BEST_PEER) {
            peers::all(Way::Well)
        } else {
            Vec::new()
        };
        let names: Vec<&str> = peers.iter().map(|(name, _)| *name).collect();
        let load = Load::pairs(bytes, lap(session, bytes), pairs);
        let mut entrants = vec![carrying(session, "ring", &mut ring, load)];
        if needs("qq2016") {
            entrants.push(carrying(session, "qq2016", &mut qq, load));
        }
        if needs(MEMCPY) {
            entrants.push(inserting(session, MEMCPY, &[Insert::Memcpy], bytes));
        }
        if needs(NT_FILL) {
            entrants.push(filling(session, NT_FILL, bytes));
        }
        if needs(RAW) {
            for (name, way) in RAW_WAYS.into_iter().zip(&Insert::RAW) {
                entrants.push(inserting(session, name, std::slice::from_ref(way), bytes));
            }
        }
        for (name, peer) in &mut peers {
            entrants.push(carrying(session, *name, peer.as_mut(), load));
        }
        let heat = session.heat(&format!("{bytes} B, {pairs}P{pairs}C"), entrants);
        for (against, by, sound_row) in wanted {
            // A peer that loses packets is excluded.
            let best = match against {
                RAW => heat.best(&RAW_WAYS),
                BEST_PEER => heat.best(&names),
                itself => Ok(itself),
            };
            let ratio = best.clone();
            let ratio = ratio.and_then(|best| heat.ratio_among(&[by], "ring", best));
            let versus = best.clone().unwrap_or_default();
            let mut figure = ratio.clone().map(Figure::from);
            if !by.is_empty() {
                let sound = best.and_then(|best| heat.ratio_among(&["ring"], best, by));
                if vouched {
                    session.put(sound_row, Some(by), sound.clone())?;
                }
                figure = given(ratio, sound, sound_row, versus, by);
            }
            session.row(&row(against), Some(versus), || figure)?;
        }
    }
    Ok(())
}

/// A ratio, with a remark if its denominator misses the goal of `row`.
///
/// # Errors
/// Why the ratio or the figure of its denominator is missing.
pub(crate) fn given(
    ratio: Result<Spread, Failure>,
    sound: Result<Spread, Failure>,
    row: &str,
    denominator: &str,
    measured_by: &str,
) -> Result<Figure, Failure> {
    let (spread, sound) = (ratio?, sound?);
    let missed = rows::find(row).filter(|listed| listed.is_met(sound.median) == Some(false));
    let remark = missed.map(|Listed { goal, .. }| {
        let reached = sound.median;
        format!(
            "{denominator} reaches {reached:.2} of {measured_by}; a sound comparison needs {goal}"
        )
    });
    Ok(Figure { spread, remark })
}

/// All queues, by packet size and number of threads.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let most = (pin::cores() / 2).max(pin::cores().min(2));
    let mut qq = Qq2016::default();
    let mut peers = peers::all(Way::Well);
    for pairs in [1, 2, 4].into_iter().filter(|pairs| *pairs <= most) {
        let mut ring = RingContest::new(session.scale.ring_bytes, pairs);
        for bytes in SIZES {
            let load = Load::pairs(bytes, lap(session, bytes), pairs);
            let row = |name: &str| format!("queue/{name}/{bytes}B/{pairs}p{pairs}c/well");
            let mut entrants = vec![
                carrying(session, row("ring"), &mut ring, load),
                carrying(session, row("qq2016"), &mut qq, load),
            ];
            for (name, peer) in &mut peers {
                entrants.push(carrying(session, row(name), peer.as_mut(), load));
            }
            let what = format!("queues, {bytes} B, {pairs}P{pairs}C");
            session.measure(&what, entrants)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_over_an_unsound_denominator_has_a_remark() {
        let row = "limits/qq2016/vs-memcpy-insert";
        let ratio = || Ok(Spread::once(4.0));
        let remarked = given(ratio(), Ok(Spread::once(0.39)), row, "qq2016", MEMCPY);
        let remark = "qq2016 reaches 0.39 of memcpy-insert; a sound comparison needs ≥ 0.4";
        let expected = Figure {
            spread: Spread::once(4.0),
            remark: Some(remark.to_owned()),
        };
        assert_eq!(remarked, Ok(expected));
        assert_eq!(
            given(ratio(), Ok(Spread::once(0.4)), row, "a", "b"),
            ratio().map(Figure::from)
        );
        let lost = Failure::Count {
            expected: 2,
            seen: 1,
        };
        assert_eq!(given(ratio(), Err(lost.clone()), row, "a", "b"), Err(lost));
    }
}
