//! Packets a second, against each other and against what memory can do.

use std::cell::RefCell;

use crate::{
    contest::{Failure, Load},
    limits::{self, DESCRIPTOR_BYTES, Insert, Stream},
    measure::{Entrant, Heat, Series, Spread, interleave},
    memory::Memory,
    pace::{Broken, Pace, Scale, Shared, entrant},
    peers, pin,
    qq2016::Qq2016,
    recorder,
    ring::RingContest,
    session::{Session, SessionError, say},
};

pub(super) const RAW_VS_FILL: &str = "limits/raw-insert/vs-nt-fill";
pub(super) const QQ_VS_MEMCPY: &str = "limits/qq2016/vs-memcpy-insert";
pub(super) const PEER_VS_MEMCPY: &str = "limits/best-peer/vs-memcpy-insert";
pub(super) const VS_QQ_64: &str = "ring/64B/1p1c/vs-qq2016";
pub(super) const VS_PEER: &str = "ring/64B/1p1c/vs-best-peer";
pub(super) const VS_RAW: &str = "ring/64B/1p1c/vs-raw-insert";
pub(super) const VS_QQ_64_PAIRS: &str = "ring/64B/2p2c/vs-qq2016";
pub(super) const VS_QQ_512: &str = "ring/512B/1p1c/vs-qq2016";
pub(super) const VS_QQ_1514: &str = "ring/1514B/1p1c/vs-qq2016";
pub(super) const VS_FILL: &str = "ring/1514B/1p1c/vs-nt-fill";
pub(super) const RECORDER: &str = "recorder/64B/vs-ring";

/// What a denominator must reach of what it is measured by.
const RAW_LEAST: f64 = 0.7;
const QQ_LEAST: f64 = 0.4;
const PEER_LEAST: f64 = 0.8;
/// Names of entrants that are no contestants.
const NT_FILL: &str = "nt-fill";
const MEMCPY: &str = "memcpy-insert";
const RAW: [&str; 2] = ["raw-insert-straight", "raw-insert-staged"];

/// The rows that compare queues.
pub(super) fn queues(session: &mut Session) -> Result<(), SessionError> {
    let at_64 = [
        VS_QQ_64,
        VS_PEER,
        VS_RAW,
        RAW_VS_FILL,
        QQ_VS_MEMCPY,
        PEER_VS_MEMCPY,
    ];
    let others = [VS_QQ_64_PAIRS, VS_QQ_512, VS_QQ_1514, VS_FILL];
    if !session.wants_any(&at_64) && !session.wants_any(&others) {
        return Ok(());
    }
    let ring = two_cores().and_then(|()| RingContest::new(session.scale().ring_bytes, None, 2, 2));
    let ring: Shared = RefCell::new(match ring {
        Ok(ring) => Box::new(ring),
        Err(failure) => Box::new(Broken(failure)),
    });
    let qq: Shared = RefCell::new(Box::new(Qq2016::new()));
    if session.wants_any(&at_64) {
        at_64_bytes(session, &ring, &qq)?;
    }
    if session.wants(VS_QQ_64_PAIRS) {
        let heat = against_qq(session, &ring, &qq, 64, 2);
        session.ratio(
            VS_QQ_64_PAIRS,
            "qq2016",
            heat.and_then(|heat| over_qq(&heat)),
        )?;
    }
    if session.wants(VS_QQ_512) {
        let heat = against_qq(session, &ring, &qq, 512, 1);
        session.ratio(VS_QQ_512, "qq2016", heat.and_then(|heat| over_qq(&heat)))?;
    }
    if session.wants_any(&[VS_QQ_1514, VS_FILL]) {
        let heat = against_qq(session, &ring, &qq, 1514, 1);
        if session.wants(VS_QQ_1514) {
            session.ratio(
                VS_QQ_1514,
                "qq2016",
                heat.clone().and_then(|heat| over_qq(&heat)),
            )?;
        }
        if session.wants(VS_FILL) {
            let ratio = heat
                .and_then(|heat| in_gigabytes(heat.get("ring")?, 1514).over(heat.get(NT_FILL)?));
            session.ratio(VS_FILL, NT_FILL, ratio)?;
        }
    }
    Ok(())
}

/// The heat at 64 bytes, one producer and one consumer, with everybody in it.
fn at_64_bytes(session: &mut Session, ring: &Shared, qq: &Shared) -> Result<(), SessionError> {
    let wants_peers = session.wants_any(&[VS_PEER, PEER_VS_MEMCPY]);
    let wants_raw = session.wants_any(&[VS_RAW, RAW_VS_FILL]);
    let wants_qq = session.wants_any(&[VS_QQ_64, QQ_VS_MEMCPY]);
    let peers: Vec<Shared> = if wants_peers {
        peers::all(peers::Style::Well)
            .into_iter()
            .map(RefCell::new)
            .collect()
    } else {
        Vec::new()
    };
    let names: Vec<String> = peers
        .iter()
        .map(|peer| peer.borrow().name().to_owned())
        .collect();
    let heat = {
        let (memory, scale) = (session.memory(), session.scale());
        let load = Load::pairs(64, 0, 1);
        let mut entrants = vec![entrant(ring, "ring", memory, load, &scale)];
        if wants_qq {
            entrants.push(entrant(qq, "qq2016", memory, load, &scale));
        }
        if wants_qq || wants_peers {
            entrants.push(insert(Insert::Memcpy, 64, memory, &scale));
        }
        if wants_raw {
            entrants.push(nt_fill(memory, &scale));
            entrants.push(insert(Insert::Straight, 64, memory, &scale));
            entrants.push(insert(Insert::Staged, 64, memory, &scale));
        }
        for (peer, name) in peers.iter().zip(&names) {
            entrants.push(entrant(peer, name.as_str(), memory, load, &scale));
        }
        run("64 B, 1P1C", &scale, entrants)
    };
    if wants_raw {
        raw(session, &heat)?;
    }
    if wants_qq {
        let sound = heat.ratio("qq2016", MEMCPY);
        let ratio = heat.ratio("ring", "qq2016");
        session.ratio(QQ_VS_MEMCPY, MEMCPY, sound.clone())?;
        if session.wants(VS_QQ_64) {
            let ratio = given(ratio, &sound, QQ_LEAST, "qq2016", MEMCPY);
            session.ratio(VS_QQ_64, "qq2016", ratio)?;
        }
    }
    if wants_peers {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        best_peer(session, &heat, &names)?;
    }
    Ok(())
}

fn raw(session: &mut Session, heat: &Heat) -> Result<(), SessionError> {
    let raw = heat.best(&RAW).unwrap_or(RAW[0]);
    let sound = (|| in_gigabytes(heat.get(raw)?, 64).over(heat.get(NT_FILL)?))();
    session.ratio(RAW_VS_FILL, NT_FILL, sound.clone())?;
    if session.wants(VS_RAW) {
        let ratio = given(heat.ratio("ring", raw), &sound, RAW_LEAST, raw, NT_FILL);
        session.ratio(VS_RAW, raw, ratio)?;
    }
    Ok(())
}

fn best_peer(session: &mut Session, heat: &Heat, names: &[&str]) -> Result<(), SessionError> {
    for name in names {
        // A peer that loses packets is out of the competition, and that is said.
        if let Err(failure) = heat.get(name).and_then(Series::spread) {
            say(&format!("{name}: {failure}"));
        }
    }
    let best = heat
        .best(names)
        .ok_or_else(|| Failure::Unsound("no peer has a figure".to_owned()));
    let sound = best.clone().and_then(|best| heat.ratio(best, MEMCPY));
    session.ratio(PEER_VS_MEMCPY, MEMCPY, sound.clone())?;
    if session.wants(VS_PEER) {
        let name = best.clone().unwrap_or("best-peer");
        let ratio = best.and_then(|best| heat.ratio("ring", best));
        session.ratio(
            VS_PEER,
            name,
            given(ratio, &sound, PEER_LEAST, name, MEMCPY),
        )?;
    }
    Ok(())
}

/// Ring, QQ, a plain insert and a fill in turns.
fn against_qq(
    session: &Session,
    ring: &Shared,
    qq: &Shared,
    packet_bytes: usize,
    pairs: usize,
) -> Result<Heat, Failure> {
    let (memory, scale) = (session.memory(), session.scale());
    let load = Load::pairs(packet_bytes, 0, pairs);
    let entrants = vec![
        entrant(ring, "ring", memory, load, &scale),
        entrant(qq, "qq2016", memory, load, &scale),
        insert(Insert::Memcpy, packet_bytes, memory, &scale),
        nt_fill(memory, &scale),
    ];
    Ok(run(
        &format!("{packet_bytes} B, {pairs}P{pairs}C"),
        &scale,
        entrants,
    ))
}

fn over_qq(heat: &Heat) -> Result<Spread, Failure> {
    let sound = heat.ratio("qq2016", MEMCPY);
    given(
        heat.ratio("ring", "qq2016"),
        &sound,
        QQ_LEAST,
        "qq2016",
        MEMCPY,
    )
}

/// The whole recorder, and the bare ring.
pub(super) fn recorder(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants(RECORDER) {
        return Ok(());
    }
    let ratio = recorder_over_ring(session);
    session.ratio(RECORDER, "ring", ratio)
}

fn recorder_over_ring(session: &Session) -> Result<Spread, Failure> {
    two_cores()?;
    let (memory, scale) = (session.memory(), session.scale());
    let folder = tempfile::tempdir().map_err(|error| Failure::system("making a folder", error))?;
    let ring = RingContest::new(scale.ring_bytes, None, 1, 1)?;
    let ring: Shared = RefCell::new(Box::new(ring));
    let entrants = vec![
        entrant(&ring, "ring", memory, Load::pairs(64, 0, 1), &scale),
        Entrant::new("recorder", || {
            recorder::run(scale.ring_bytes, 64, folder.path())
        }),
    ];
    run("recorder", &scale, entrants).ratio("recorder", "ring")
}

/// A ratio, if its denominator reaches `least` of what it is measured by. Else what it would have been, in words.
fn given(
    ratio: Result<Spread, Failure>,
    sound: &Result<Spread, Failure>,
    least: f64,
    denominator: &str,
    measured_by: &str,
) -> Result<Spread, Failure> {
    let (ratio, sound) = (ratio?, sound.clone()?);
    if sound.median >= least {
        return Ok(ratio);
    }
    Err(Failure::Unsound(format!(
        "{denominator} reaches {:.2} of {measured_by}, which must be {least} for a sound comparison; the ratio was {:.2}",
        sound.median, ratio.median
    )))
}

/// Two threads that hand packets over are not faster than one core.
fn two_cores() -> Result<(), Failure> {
    if pin::cores() >= 2 {
        return Ok(());
    }
    let why = "a producer and a consumer need two cores; there is one";
    Err(Failure::CannotRun(why.to_owned()))
}

pub(super) fn run(what: &str, scale: &Scale, entrants: Vec<Entrant<'_>>) -> Heat {
    say(&format!(
        "{what}: {} turns of {entrants:?}",
        scale.repetitions + 1
    ));
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

/// An insert on one thread, in Mpps.
fn insert<'a>(
    way: Insert,
    packet_bytes: usize,
    memory: &'a RefCell<Memory>,
    scale: &Scale,
) -> Entrant<'a> {
    let lap_packets = scale.ring_bytes as f64 / way.record_bytes(packet_bytes) as f64;
    let mut pace = Pace::new(scale, 1);
    Entrant::new(way.name(), move || {
        let laps = pace.next();
        let per_second = limits::insert(way, packet_bytes, &mut memory.borrow_mut(), 1, laps)?;
        pace.was(per_second / lap_packets);
        Ok(per_second / 1e6)
    })
}

/// A fill on one thread, in GB/s.
fn nt_fill<'a>(memory: &'a RefCell<Memory>, scale: &Scale) -> Entrant<'a> {
    let lap_bytes = scale.ring_bytes as f64;
    let mut pace = Pace::new(scale, 1);
    Entrant::new(NT_FILL, move || {
        let per_second = Stream::NtFill.run(&mut memory.borrow_mut(), 1, pace.next())?;
        pace.was(per_second / lap_bytes);
        Ok(per_second / 1e9)
    })
}

/// Mpps as the bytes of descriptors and payloads, in GB/s.
fn in_gigabytes(series: &Series, packet_bytes: usize) -> Series {
    series.scaled((DESCRIPTOR_BYTES + packet_bytes) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsound_denominator_leaves_words() {
        let ratio = Ok(Spread::once(4.0));
        let sound = Ok(Spread::once(0.39));
        let failed = given(ratio.clone(), &sound, 0.4, "qq2016", MEMCPY).unwrap_err();
        assert_eq!(
            failed.to_string(),
            "qq2016 reaches 0.39 of memcpy-insert, which must be 0.4 for a sound comparison; the ratio was 4.00"
        );
        assert_eq!(
            given(ratio.clone(), &Ok(Spread::once(0.4)), 0.4, "a", "b"),
            ratio
        );
        let lost = Err(Failure::Lapped { packets: 1 });
        assert_eq!(given(ratio, &lost, 0.4, "a", "b"), lost);
    }
}
