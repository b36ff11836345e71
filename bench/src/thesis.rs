//! The evaluation of the QQ thesis beyond its queues with as many consumers as producers: several
//! producers and one consumer, sizes of inner queues, calls of the outer queue, guard distances,
//! the check of the hold time, the processor time of a sink, other ways to use a queue, several
//! receive queues, and all rates on one scale.
//!
//! The thesis's machine has 6 cores. With two or more CPUs, but fewer than a row has threads:
//!
//! - Rows whose names say three or more producers or threads, or more receive queues than CPUs, and
//!   guard distances that are too large for the producers, do not run.
//! - Sinks, inner queues and guard distances run with two producers instead of four or five. A
//!   remark says how many threads share the CPUs.

use std::{cell::RefCell, env, fs, io, io::Write, path::Path};

use retroscope_ring::RingConfig;

use crate::{
    contest::{Contest, Course, Load, Run, seconds, together},
    measure::{Entrant, Failure, Spread},
    memory::Memory,
    peers::{self, Way},
    pin, qq2016,
    qq2016::Qq2016,
    queues::{SIZES, carrying, lap, two_cores},
    recorder::slowed,
    ring::RingContest,
    session::Session,
};

/// Maximum number of producers on a machine with fewer CPUs than threads.
const PRODUCERS_MIN: usize = 2;
/// Sizes of inner queues in figure 7.4.
const INNER_MIB: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];

/// All rows of this module.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    to_one_consumer(session)?;
    sinks(session)?;
    inner_queues(session)?;
    outer_queue(session)?;
    guards(session)?;
    hold_check(session)?;
    ways(session)?;
    slowed::rows(session)?;
    scale(session)
}

/// `wanted` producers. If this machine has too few CPUs for them and the consumers, at most
/// [`PRODUCERS_MIN`] producers, and a remark.
fn producers(wanted: usize, consumers: usize) -> (usize, Option<String>) {
    let cores = pin::cores();
    if wanted + consumers <= cores {
        return (wanted, None);
    }
    let few = wanted.min(PRODUCERS_MIN);
    let threads = few + consumers.min(few);
    (few, Some(format!("{threads} threads on {cores} CPUs")))
}

/// Checks that each thread can have a CPU. `is_enough` skips the check.
///
/// # Errors
/// [`Failure::CannotRun`]: `threads` threads need more CPUs.
pub(crate) fn enough_cores(threads: usize, is_enough: bool) -> Result<(), Failure> {
    let cores = pin::cores();
    if is_enough || threads <= cores {
        return Ok(());
    }
    let why = format!("needs {threads} CPUs; this machine has {cores}");
    Err(Failure::CannotRun(why))
}

/// One to five producers and one consumer, by packet size (figures 7.1 and 7.2).
fn to_one_consumer(session: &Session) -> io::Result<()> {
    for number in 1..=5 {
        let (_, remark) = producers(number, 1);
        let enough = two_cores().and_then(|()| enough_cores(number + 1, number <= PRODUCERS_MIN));
        let bytes = session.scale.ring_bytes;
        let ring = || RingContest::with(RingConfig::new(bytes, number, 1));
        let mut ring = enough.clone().and_then(|()| ring());
        let mut qq = enough.map(|()| Qq2016::default());
        for bytes in SIZES {
            let row = |name| format!("producers/{name}/{bytes}B/{number}p1c");
            let load = Load::to_one(bytes, lap(session, bytes), number);
            let entrants = vec![
                carrying(session, row("ring"), &mut ring, load),
                carrying(session, row("qq2016"), &mut qq, load),
            ];
            let what = format!("queues, {bytes} B, {number}P1C");
            session.measure_remarked(&what, entrants, remark.as_deref())?;
        }
    }
    Ok(())
}

/// The processor time of the only consumer, which sleeps when it finds nothing (section 7.2).
fn sinks(session: &Session) -> io::Result<()> {
    let (number, remark) = producers(5, 1);
    let ring = two_cores()
        .and_then(|()| RingContest::with(RingConfig::new(session.scale.ring_bytes, number, 1)));
    let ring = ring.map(|mut ring| {
        ring.is_sleepy = true;
        ring
    });
    let (ring, qq) = (RefCell::new(ring), RefCell::new(Qq2016::default()));
    for bytes in SIZES {
        let load = Load::to_one(bytes, lap(session, bytes), number);
        let (least, time) = (load.packets, session.scale.seconds);
        let of = |packets| Load { packets, ..load };
        let ours = |load: &Load| {
            ring.borrow_mut()
                .run(load, &mut session.memory.borrow_mut())
        };
        let theirs = |load: &Load| qq.borrow_mut().run(load, &mut session.memory.borrow_mut());
        let row = |name| format!("sink/{name}/{bytes}B");
        let entrants = vec![
            Entrant::paced(row("ring"), time, least, |much| sink(&ours, of(much))),
            Entrant::paced(row("qq2016"), time, least, |much| sink(&theirs, of(much))),
        ];
        let what = format!("sink, {bytes} B, {number}P1C");
        session.measure_remarked(&what, entrants, remark.as_deref())?;
    }
    Ok(())
}

/// The percentage of a CPU that the consumer takes, and packets a second.
fn sink(carry: &dyn Fn(&Load) -> Result<Run, Failure>, load: Load) -> Result<(f64, f64), Failure> {
    let run = carry(&load)?;
    run.check(&load)?;
    let percent = run.reading_seconds / run.seconds * 100.0;
    Ok((percent, run.mpps() * 1e6))
}

/// Inner queues of 2 to 128 MiB, four producers (two on a machine with few CPUs) and one consumer,
/// 64 bytes (figure 7.4). The queues of 2016 take turns. Rings do not, because each has its own
/// memory.
fn inner_queues(session: &Session) -> io::Result<()> {
    let (number, remark) = producers(4, 1);
    let load = Load::to_one(64, lap(session, 64), number);
    let queue = |mib: usize| Qq2016 {
        storage_bytes: mib << 20,
        ..Qq2016::default()
    };
    let mut queues = INNER_MIB.map(queue);
    let entrants = INNER_MIB
        .iter()
        .zip(&mut queues)
        .map(|(mib, queue)| carrying(session, format!("inner-queue/qq2016/{mib}MiB"), queue, load));
    let entrants = entrants.collect();
    session.measure_remarked("inner queues of QQ of 2016", entrants, remark.as_deref())?;
    for mib in INNER_MIB {
        let row = format!("inner-queue/ring/{mib}MiB");
        if !session.wants(&row) {
            continue;
        }
        let config = RingConfig {
            bucket_bytes: Some(mib << 20),
            ..RingConfig::new(session.scale.ring_bytes, number, 1)
        };
        let parties = config.producers as u64 + 1;
        let has_room = session.scale.ring_bytes >= 4 * parties * (mib << 20) as u64;
        let why = "the ring is too small for four buckets of this size per thread";
        let why = Failure::CannotRun(why.to_owned());
        let mut ring = two_cores()
            .and(if has_room { Ok(()) } else { Err(why) })
            .and_then(|()| RingContest::with(config));
        let entrants = vec![carrying(session, row.clone(), &mut ring, load)];
        session.measure_remarked(&row, entrants, remark.as_deref())?;
    }
    Ok(())
}

/// Calls of the outer queue by threads (figure 7.5; paper, table I).
fn outer_queue(session: &Session) -> io::Result<()> {
    let entrants = (1..=8).map(|threads| {
        let name = format!("outer-queue/qq2016/{threads}t");
        Entrant::paced(name, session.scale.seconds, 1000, move |turns| {
            enough_cores(threads, threads <= PRODUCERS_MIN)?;
            let calls = qq2016::calls_per_second(threads, turns)?;
            Ok((calls / 1e6, calls / (2 * threads) as f64))
        })
    });
    session.measure("calls of the outer queue", entrants.collect())
}

/// Guard distances from 1 to 8, twice the usual four producers, 64 bytes (figure 7.6).
fn guards(session: &Session) -> io::Result<()> {
    let (pairs, remark) = producers(4, 4);
    let load = Load::pairs(64, lap(session, 64), pairs);
    let queue = &RefCell::new(Qq2016::default());
    let contest = |guard| {
        let run = move |load: &Load, memory: &mut Memory| {
            let mut queue = queue.borrow_mut();
            queue.guard = Some(guard);
            queue.run(load, memory)
        };
        enough_cores(8, guard <= 2 * pairs).map(|()| run)
    };
    let mut contests: Vec<_> = (1..=8).map(contest).collect();
    let entrants = contests
        .iter_mut()
        .zip(1..)
        .map(|(contest, guard)| carrying(session, format!("guard/qq2016/{guard}"), contest, load));
    let entrants = entrants.collect();
    session.measure_remarked("guard distances", entrants, remark.as_deref())
}

/// What the check of the hold time costs a store (section 7.2).
fn hold_check(session: &Session) -> io::Result<()> {
    let mut with = Qq2016::default();
    let mut without = Qq2016 {
        checks_hold: false,
        ..Qq2016::default()
    };
    let (with, without) = (&mut with, &mut without);
    session.versus("qq2016/hold-check/vs-none", "no check", move || {
        two_cores()?;
        let load = Load::pairs(64, lap(session, 64), 1);
        Ok(vec![
            carrying(session, "with", with, load),
            carrying(session, "without", without, load),
        ])
    })
}

/// Other ways to use the other queues, 64 bytes (figure 4.1; slides, figure 1; paper, figure 7).
fn ways(session: &Session) -> io::Result<()> {
    let most = (pin::cores() / 2).max(pin::cores().min(2));
    for pairs in [1, 2, 4].into_iter().filter(|pairs| *pairs <= most) {
        for (way, word) in [
            (Way::Malloc, "malloc"),
            (Way::OneByOne, "one-by-one"),
            (Way::Reused, "reused"),
        ] {
            let mut peers = peers::all(way);
            // Packets do not cycle through the region, except with buffers of one packet.
            let share = if way == Way::OneByOne { 1 } else { 16 };
            let load = Load::pairs(64, lap(session, 64) / share, pairs);
            let entrants = peers.iter_mut().map(|(name, peer)| {
                let row = format!("queue/{name}/64B/{pairs}p{pairs}c/{word}");
                carrying(session, row, peer.as_mut(), load)
            });
            let entrants = entrants.collect();
            session.measure(&format!("queues, {word}, {pairs}P{pairs}C"), entrants)?;
        }
    }
    Ok(())
}

/// NIC, memory, ring and disk on one scale, in Gbit/s (slides, table 1).
fn scale(session: &Session) -> io::Result<()> {
    let nic = || fastest_link(Path::new("/sys/class/net")).map(Spread::once);
    session.row("scale/nic", None, nic)?;
    session.row("scale/disk", None, || {
        let folder = env::var_os("DISK_FOLDER").ok_or_else(|| {
            Failure::CannotRun("DISK_FOLDER=FOLDER names the disk to write to".to_owned())
        })?;
        session.alone("write to the disk, Gbit/s", || {
            written(session, Path::new(&folder))
        })
    })?;
    let mut ring = two_cores().and_then(|()| RingContest::new(session.scale.ring_bytes, 1));
    let load = Load::pairs(1514, lap(session, 1514), 1);
    let entrants = vec![
        Entrant::new("scale/copy", || copied(session)),
        Entrant::paced(
            "scale/ring",
            session.scale.seconds,
            load.packets,
            |packets| {
                let load = Load { packets, ..load };
                let run = ring.run(&load, &mut session.memory.borrow_mut())?;
                run.check(&load)?;
                Ok((run.mpps() * 1514.0 * 8e-3, run.mpps() * 1e6))
            },
        ),
    ];
    session.measure("one scale", entrants)
}

/// Gbit/s of a copy from one half of the memory to the other with all cores. As in STREAM, read and
/// written bytes count.
fn copied(session: &Session) -> Result<f64, Failure> {
    let mut memory = session.memory.borrow_mut();
    let bytes = memory.len();
    let (from, to) = memory.bytes_mut().split_at_mut(bytes / 2);
    let each = from.len().div_ceil(pin::cores());
    let parts = from.chunks(each).zip(to.chunks_mut(each));
    let works = parts.map(|(from, to)| {
        move |_: &Course| {
            to.copy_from_slice(from);
            Ok(())
        }
    });
    let legs = together(&|| {}, works.collect())?;
    Ok(bytes as f64 * 8e-9 / seconds(&legs, &legs))
}

/// Gbit/s of writing the memory to a file, until the disk has it.
fn written(session: &Session, folder: &Path) -> Result<f64, Failure> {
    let mut memory = session.memory.borrow_mut();
    let bytes = memory.bytes_mut();
    let failed = |error| Failure::system("writing to DISK_FOLDER", error);
    let mut file = tempfile::tempfile_in(folder).map_err(failed)?;
    let start = std::time::Instant::now();
    file.write_all(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(bytes.len() as f64 * 8e-9 / start.elapsed().as_secs_f64())
}

/// Gbit/s of the fastest link of a device that reports a speed. A link without a device, such as
/// veth, may report a speed that nobody measured (10 Gbit/s).
///
/// # Errors
/// [`Failure::CannotRun`]: no such link.
fn fastest_link(folder: &Path) -> Result<f64, Failure> {
    let links = fs::read_dir(folder).into_iter().flatten().flatten();
    let links = links.filter(|link| link.path().join("device").exists());
    let megabits = links.filter_map(|link| {
        let text = fs::read_to_string(link.path().join("speed")).ok()?;
        text.trim()
            .parse::<f64>()
            .ok()
            .filter(|megabits| *megabits > 0.0)
    });
    let fastest = megabits.max_by(f64::total_cmp);
    let why = || Failure::CannotRun("no link of a device reports its speed".to_owned());
    fastest.map(|megabits| megabits / 1e3).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_link_counts() {
        let folder = tempfile::tempdir().unwrap();
        let none = fastest_link(folder.path());
        assert!(matches!(none, Err(Failure::CannotRun(_))));
        let links = [
            ("eth0", "1000\n"),
            ("eth1", "40000\n"),
            ("eth2", "-1\n"),
            ("veth0", "100000\n"),
        ];
        for (link, speed) in links {
            let link = folder.path().join(link);
            fs::create_dir(&link).unwrap();
            fs::write(link.join("speed"), speed).unwrap();
            if !link.ends_with("veth0") {
                fs::create_dir(link.join("device")).unwrap();
            }
        }
        assert_eq!(fastest_link(folder.path()), Ok(40.0));
    }
}
