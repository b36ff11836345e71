//! The rows that compare queues: packets a second, against each other and against what memory can do.

use std::io;

use crate::{
    contest::{Contest, Load, entrant},
    limits::{self, DESCRIPTOR_BYTES, Insert},
    measure::{Entrant, Failure, Heat, Pace, Series, Spread},
    peers::{self, Style},
    pin,
    qq2016::{Qq2016, STORAGE_BYTES},
    ring::RingContest,
    rows,
    session::Session,
};

/// Sizes of packets: those of the thesis and the paper.
pub(crate) const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 1514];
/// Beside 64 bytes with one pair: bytes and pairs of the judged rows against the QQ of 2016 and a fill.
const JUDGED: [(usize, usize); 5] = [(64, 2), (512, 1), (1514, 1), (60, 1), (590, 1)];
/// Sizes of buckets, in MiB: those of figure 7.4 of the thesis.
const BUCKETS_MIB: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
/// A ring has so many buckets for each producer and reader.
const BUCKETS_LEAST: u64 = 8;
/// Distances of readers from writers, in inner queues.
const DISTANCES: [usize; 5] = [0, 1, 2, 4, 8];
/// How much of a lap a slow way to use a queue must do at least.
const PART_OF_LAP: u64 = 64;
/// The peer that shows what a queue is worth that has our stores.
const WITH_OUR_STORES: &str = "rtrb";
/// Names of entrants that are no queues.
const NT_FILL: &str = "nt-fill";
const MEMCPY: &str = "memcpy-insert";
const RAW: [&str; 2] = ["raw-insert-straight", "raw-insert-staged"];

type Contestant<'c> = &'c mut dyn Contest;

/// Two threads that hand packets over are not faster than one core.
pub(crate) fn two_cores() -> Result<(), Failure> {
    if pin::cores() >= 2 {
        return Ok(());
    }
    let why = "two threads that hand packets over need two cores; there is one";
    Err(Failure::CannotRun(why.to_owned()))
}

/// Runs of packets of so many bytes, once around the memory at the least.
pub(crate) fn pace(session: &Session, packet_bytes: usize) -> Pace {
    let lap = session.scale.ring_bytes / (packet_bytes + DESCRIPTOR_BYTES) as u64;
    Pace::new(session.scale.seconds, lap)
}

/// A queue that is to carry packets, in Mpps.
pub(crate) fn carrying<'a>(
    session: &'a Session,
    name: impl Into<String>,
    contest: Contestant<'a>,
    load: Load,
) -> Entrant<'a> {
    let pace = pace(session, load.packet_bytes);
    entrant(name, contest, &session.memory, load, pace)
}

/// An insert on one thread, in Mpps.
fn insert<'a>(session: &'a Session, name: &str, way: Insert, packet_bytes: usize) -> Entrant<'a> {
    let lap = session.scale.ring_bytes as f64 / way.record_bytes(packet_bytes) as f64;
    let mut pace = Pace::new(session.scale.seconds, 1);
    Entrant::new(name, move || {
        let mut memory = session.memory.borrow_mut();
        let per_second = way.run(packet_bytes, &mut memory, pace.next())?;
        pace.was(per_second / lap);
        Ok(per_second / 1e6)
    })
}

/// A fill on one thread, in GB/s.
fn nt_fill(session: &Session) -> Entrant<'_> {
    let mut pace = Pace::new(session.scale.seconds, 1);
    Entrant::new(NT_FILL, move || {
        let mut memory = session.memory.borrow_mut();
        let per_second = limits::run(limits::nt_fill, &mut memory, 1, pace.next())?;
        pace.was(per_second / session.scale.ring_bytes as f64);
        Ok(per_second / 1e9)
    })
}

/// Mpps as the bytes of descriptors and payloads, in GB/s.
fn in_gigabytes(series: &Series, packet_bytes: usize) -> Series {
    let factor = (DESCRIPTOR_BYTES + packet_bytes) as f64 / 1e3;
    series.clone().scaled(factor)
}

/// The judged rows that compare queues.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let mut ring =
        two_cores().and_then(|()| RingContest::new(session.scale.ring_bytes, None, 2, 2));
    let mut qq = Qq2016::new();
    judged_at_64_bytes(session, &mut ring, &mut qq)?;
    for (bytes, pairs) in JUDGED {
        let row = |against| format!("ring/{bytes}B/{pairs}p{pairs}c/vs-{against}");
        let (vs_qq, vs_fill) = (row("qq2016"), row(NT_FILL));
        if !session.wants_any(&[&vs_qq, &vs_fill]) {
            continue;
        }
        let load = Load::pairs(bytes, 0, pairs);
        let entrants = vec![
            carrying(session, "ring", &mut ring, load),
            carrying(session, "qq2016", &mut qq, load),
            insert(session, MEMCPY, Insert::Memcpy, bytes),
            nt_fill(session),
        ];
        let heat = session.heat(&format!("{bytes} B, {pairs}P{pairs}C"), entrants);
        if session.wants(&vs_qq) {
            session.ratio(&vs_qq, "qq2016", over_qq(&heat))?;
        }
        if session.wants(&vs_fill) {
            let ring = heat.get("ring").map(|series| in_gigabytes(series, bytes));
            let ratio = ring.and_then(|ring| ring.over(heat.get(NT_FILL)?));
            session.ratio(&vs_fill, NT_FILL, ratio)?;
        }
    }
    Ok(())
}

/// The heat at 64 bytes, one producer and one consumer, with everybody in it.
fn judged_at_64_bytes(
    session: &Session,
    ring: Contestant<'_>,
    qq: Contestant<'_>,
) -> io::Result<()> {
    let vs = |against: &str| format!("ring/64B/1p1c/vs-{against}");
    let (vs_qq, vs_peer, vs_raw) = (vs("qq2016"), vs("best-peer"), vs("raw-insert"));
    let raw_sound = "limits/raw-insert/vs-nt-fill";
    let qq_sound = "limits/qq2016/vs-memcpy-insert";
    let peer_sound = "limits/best-peer/vs-memcpy-insert";
    let wants_raw = session.wants_any(&[&vs_raw, raw_sound]);
    let wants_qq = session.wants_any(&[&vs_qq, qq_sound]);
    let wants_peers = session.wants_any(&[&vs_peer, peer_sound]);
    if !(wants_raw || wants_qq || wants_peers) {
        return Ok(());
    }
    let mut peers = if wants_peers {
        peers::all(Style::Well)
    } else {
        Vec::new()
    };
    let names: Vec<&str> = peers.iter().map(|(name, _)| *name).collect();
    let load = Load::pairs(64, 0, 1);
    let mut entrants = vec![carrying(session, "ring", ring, load)];
    if wants_qq {
        entrants.push(carrying(session, "qq2016", qq, load));
    }
    if wants_qq || wants_peers {
        entrants.push(insert(session, MEMCPY, Insert::Memcpy, 64));
    }
    if wants_raw {
        entrants.push(nt_fill(session));
        entrants.push(insert(session, RAW[0], Insert::Straight, 64));
        entrants.push(insert(session, RAW[1], Insert::Staged, 64));
    }
    for (name, peer) in &mut peers {
        entrants.push(carrying(session, *name, peer.as_mut(), load));
    }
    let heat = session.heat("64 B, 1P1C", entrants);
    let write =
        |row: &str, best: Result<&str, Failure>, sound_row, by, sound: Result<_, Failure>| {
            session.ratio(sound_row, by, sound.clone())?;
            if !session.wants(row) {
                return Ok(());
            }
            let against = best.clone().unwrap_or_default();
            let ratio = best.and_then(|best| heat.ratio("ring", best));
            session.ratio(row, against, given(ratio, sound, sound_row, against, by))
        };
    if wants_raw {
        let raw = heat.best(&RAW);
        let sound = raw
            .clone()
            .and_then(|raw| in_gigabytes(heat.get(raw)?, 64).over(heat.get(NT_FILL)?));
        write(&vs_raw, raw, raw_sound, NT_FILL, sound)?;
    }
    if wants_qq {
        write(
            &vs_qq,
            Ok("qq2016"),
            qq_sound,
            MEMCPY,
            heat.ratio("qq2016", MEMCPY),
        )?;
    }
    if wants_peers {
        // A peer that loses packets is out of the competition.
        let best = heat.best(&names);
        let sound = best.clone().and_then(|best| heat.ratio(best, MEMCPY));
        write(&vs_peer, best, peer_sound, MEMCPY, sound)?;
    }
    Ok(())
}

/// The ring over the QQ of 2016, if that is as fast as it should be.
fn over_qq(heat: &Heat) -> Result<Spread, Failure> {
    let sound = heat.ratio("qq2016", MEMCPY);
    let row = "limits/qq2016/vs-memcpy-insert";
    given(heat.ratio("ring", "qq2016"), sound, row, "qq2016", MEMCPY)
}

/// A ratio, if its denominator is as good as the goal of `row` says. Else what it would have been, in words.
fn given(
    ratio: Result<Spread, Failure>,
    sound: Result<Spread, Failure>,
    row: &str,
    denominator: &str,
    measured_by: &str,
) -> Result<Spread, Failure> {
    let (ratio, sound) = (ratio?, sound?);
    let listed = rows::find(row);
    if listed.and_then(|listed| listed.is_met(sound.median)) != Some(false) {
        return Ok(ratio);
    }
    let goal = listed.map_or("", |listed| listed.goal);
    Err(Failure::Unsound(format!(
        "{denominator} reaches {:.2} of {measured_by}, which must be {goal} for a sound comparison; the ratio was {:.2}",
        sound.median, ratio.median
    )))
}

/// All queues, by size of packet, number of threads, and the way they are used.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let cores = pin::cores();
    let mut all_pairs = vec![1, 2, (cores / 2).max(2)];
    all_pairs.dedup();
    all_pairs.retain(|pairs| *pairs <= cores);
    let most = all_pairs.iter().copied().max().unwrap_or(1);
    let mut ring = RingContest::new(session.scale.ring_bytes, None, most, most);
    let mut qq = Qq2016::new();
    let mut peers: Vec<_> = Style::ALL
        .into_iter()
        .map(|style| (style, peers::all(style)))
        .collect();
    for pairs in all_pairs {
        for bytes in SIZES {
            let load = Load::pairs(bytes, 0, pairs);
            let row = |name: &str, style: Style| {
                format!("queue/{name}/{bytes}B/{pairs}p{pairs}c/{}", style.name())
            };
            let mut entrants = vec![
                carrying(session, row("ring", Style::Well), &mut ring, load),
                carrying(session, row("qq2016", Style::Well), &mut qq, load),
            ];
            for (style, peers) in &mut peers {
                for (name, peer) in peers {
                    if *style == Style::Streaming && *name != WITH_OUR_STORES
                        || style.is_slow() && bytes != peers::SLOT_BYTES
                    {
                        continue;
                    }
                    let pace = if style.is_slow() {
                        let lap = session.scale.ring_bytes / (bytes + DESCRIPTOR_BYTES) as u64;
                        Pace::new(session.scale.seconds, lap / PART_OF_LAP)
                    } else {
                        pace(session, bytes)
                    };
                    let row = row(name, *style);
                    entrants.push(entrant(row, peer.as_mut(), &session.memory, load, pace));
                }
            }
            session.measure(&format!("queues, {bytes} B, {pairs} pairs"), entrants)?;
        }
    }
    // Several producers and one consumer, as figure 7.1 of the thesis has them.
    let producers = cores.saturating_sub(1).min(4);
    if producers < 2 {
        return Ok(());
    }
    let mut ring = RingContest::new(session.scale.ring_bytes, None, producers, 1);
    for bytes in SIZES {
        let row = |name| format!("queue/{name}/{bytes}B/{producers}p1c/well");
        let load = Load {
            producers,
            ..Load::pairs(bytes, 0, 1)
        };
        let entrants = vec![
            carrying(session, row("ring"), &mut ring, load),
            carrying(session, row("qq2016"), &mut qq, load),
        ];
        session.measure("one sink", entrants)?;
    }
    Ok(())
}

/// Throughput by size of the inner queue.
pub(crate) fn buckets(session: &Session) -> io::Result<()> {
    let ring_bytes = session.scale.ring_bytes;
    for mib in BUCKETS_MIB {
        let bytes = mib << 20;
        if bytes as u64 * BUCKETS_LEAST > ring_bytes {
            break;
        }
        let mut ring = RingContest::new(ring_bytes, Some(bytes), 1, 1);
        let mut qq = Qq2016::with(bytes, None);
        for packet in [64, 1514] {
            let load = Load::pairs(packet, 0, 1);
            let rows = ["bucket", "bucket-qq2016"].map(|of| format!("{of}/{mib}MiB/{packet}B"));
            let [ours, theirs] = rows;
            let entrants = vec![
                carrying(session, ours, &mut ring, load),
                carrying(session, theirs, &mut qq, load),
            ];
            session.measure("sizes of buckets", entrants)?;
        }
    }
    Ok(())
}

/// What distance between writer and reader is worth. The QQ of 2016 keeps readers a guard interval behind its writers. The ring has
/// none: a reader follows into the open bucket. Here it is held back on purpose, to see whether that would be faster.
pub(crate) fn guard(session: &Session) -> io::Result<()> {
    let pairs = if pin::cores() >= 4 { 2 } else { 1 };
    for distance in DISTANCES {
        let mut qq = Qq2016::with(STORAGE_BYTES, Some(distance));
        let ring = RingContest::new(session.scale.ring_bytes, None, 1, 1);
        let mut ring = ring.map(|ring| ring.at_distance(distance));
        let row = |name| format!("guard/{name}/{distance}");
        let entrants = vec![
            carrying(session, row("qq2016"), &mut qq, Load::pairs(64, 0, pairs)),
            carrying(session, row("ring"), &mut ring, Load::pairs(64, 0, 1)),
        ];
        session.measure("distance", entrants)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsound_denominator_leaves_words() {
        let row = "limits/qq2016/vs-memcpy-insert";
        let ratio = || Ok(Spread::once(4.0));
        let failed = given(ratio(), Ok(Spread::once(0.39)), row, "qq2016", MEMCPY);
        let words = failed.unwrap_err().to_string();
        assert!(
            words.contains("qq2016 reaches 0.39 of memcpy-insert"),
            "{words}"
        );
        assert!(words.ends_with("the ratio was 4.00"), "{words}");
        assert_eq!(
            given(ratio(), Ok(Spread::once(0.4)), row, "a", "b"),
            ratio()
        );
        let lost = Failure::Count {
            expected: 2,
            seen: 1,
        };
        assert_eq!(given(ratio(), Err(lost.clone()), row, "a", "b"), Err(lost));
    }
}
