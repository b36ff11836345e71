//! The rows that live capture is judged by: `make bench-capture`.
//!
//! Processor time of the receiving process for each captured packet, all its threads together, over a veth pair in a network
//! namespace of its own. There the kernel's copy runs on the sender's CPU, so it is nobody's; the program is kept on the other
//! CPUs (`sender.rs`). The recorder keeps everything in a ring of 1 GiB and runs one trigger filter; the others do less.
//!
//! | row | compared with | at most |
//! |---|---|---|
//! | `capture/64B/cpu-vs-keeping`, `capture/1514B/cpu-vs-keeping` | `tcpdump -Z root -C 100 -W 8 -w` into files on tmpfs, each program's threads on one CPU | 0.4 |
//! | `capture/64B/cpu-vs-tcpdump`, `capture/1514B/cpu-vs-tcpdump` | `tcpdump -w /dev/null`, which keeps nothing | |
//! | `capture/64B/cpu-vs-minimal` | a loop that copies each packet into memory (`shim/minimal_reader.c`) | 1.6 |
//! | `capture/1514B/cpu-vs-minimal` | the same | 0.8 |
//!
//! Less is better. A run counts if the recorder captured every packet that was sent and its analyzer missed none, if the tcpdump
//! that keeps has all of them in its files, and if the others lost at most one in a hundred. The rows
//! `capture/SIZE/NAME-ns` are the times themselves, those with all threads on one CPU `capture/SIZE/one-cpu/NAME-ns`. `capture/lossless/SIZE/NAME`, which nobody judges, are in `lossless.rs`.

mod contestant;
mod keeping;
mod lossless;
mod sender;
mod veth;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    contest::Failure,
    measure::{Entrant, Heat, interleave},
    rows::Selection,
    session::{Session, SessionError, say},
};
use contestant::{Contestant, Kind, Room};
use sender::Seats;
use veth::Veth;

/// All judged rows, and the beginnings of those of each size whose highest rate without loss is looked for.
pub const ROWS: [&str; 12] = [
    "capture/64B/cpu-vs-keeping",
    "capture/64B/cpu-vs-tcpdump",
    "capture/64B/cpu-vs-minimal",
    "capture/1514B/cpu-vs-keeping",
    "capture/1514B/cpu-vs-tcpdump",
    "capture/1514B/cpu-vs-minimal",
    "capture/lossless/64B",
    "capture/lossless/128B",
    "capture/lossless/256B",
    "capture/lossless/512B",
    "capture/lossless/1024B",
    "capture/lossless/1514B",
];

/// Counted runs of each contestant.
const REPETITIONS: usize = 5;

/// What is sent: bytes of a frame, packets, and packets a second. All contestants keep up with it.
const LOADS: [Load; 2] = [
    Load {
        size: 64,
        count: 1_000_000,
        rate: Some(500_000),
    },
    Load {
        size: 1514,
        count: 400_000,
        rate: Some(200_000),
    },
];

/// The same where both keep packets: short enough that one run in two goes by without the host taking the CPU for longer than
/// tcpdump's buffer of 2 MiB lasts, 6.5 ms at this rate, and long enough that the files change.
const LOADS_KEPT: [Load; 2] = [
    LOADS[0],
    Load {
        count: 150_000,
        ..LOADS[1]
    },
];

/// Who keeps packets has 1 GiB for them: room for all of a load. The kernel's buffer is what each program takes by itself.
const ROOM: Room = Room {
    ring_bytes: 1 << 30,
    buffer_bytes: None,
};

/// One kind of traffic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) size: u32,
    pub(crate) count: u64,
    /// `None`: as fast as the sender can.
    pub(crate) rate: Option<u64>,
}

/// The programs that are not on the path.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `retroscope`: the recorder, and the sender.
    pub retroscope: PathBuf,
    /// `minimal_reader`.
    pub minimal: PathBuf,
}

/// Finds a selection that names none of the judged rows.
///
/// # Errors
/// [`SessionError::Selection`].
pub fn check(selection: &Selection) -> Result<(), SessionError> {
    let unknown = selection.unknown(&ROWS).next().map(str::to_owned);
    unknown.map_or(Ok(()), |item| Err(SessionError::Selection { item }))
}

/// The versions of the other programs, as they tell them.
#[must_use]
pub fn versions() -> String {
    let version = |program: &str| {
        let output = Command::new(program).arg("--version").output().ok()?;
        // tcpdump tells it on one, dumpcap on the other.
        let text = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next()?.to_owned())
    };
    let known = ["tcpdump", "dumpcap"].into_iter().filter_map(version);
    known.collect::<Vec<_>>().join(", ")
}

/// Measures what is wanted of them.
///
/// # Errors
/// [`SessionError::Results`]: the results cannot be written. What cannot be measured is a row.
pub fn run(session: &mut Session, programs: &Programs, folder: &Path) -> Result<(), SessionError> {
    for comparison in Comparison::ALL {
        for load in comparison.loads() {
            let rows = comparison.rows(load);
            if !rows.iter().any(|(row, _)| session.wants(row)) {
                continue;
            }
            match measure(load, comparison, programs, folder) {
                Ok(heat) => report(session, load, comparison, &heat)?,
                Err(failure) => {
                    for (row, against) in rows {
                        say(&format!("SKIP: {row}: {failure}"));
                        session.ratio(&row, against.name(), Err(failure.clone()))?;
                    }
                }
            }
        }
    }
    if session.wants_below("capture/lossless") {
        lossless::run(session, programs, folder)?;
    }
    Ok(())
}

/// Who runs in turns with whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// The recorder and the tcpdump that keeps packets too, each on one CPU.
    Keeping,
    /// The recorder and programs that do less.
    Others,
}

impl Comparison {
    const ALL: [Self; 2] = [Self::Keeping, Self::Others];

    fn loads(self) -> [Load; 2] {
        match self {
            Self::Keeping => LOADS_KEPT,
            Self::Others => LOADS,
        }
    }

    fn contestants(self) -> &'static [Kind] {
        match self {
            Self::Keeping => &Kind::KEEPING,
            Self::Others => &Kind::TIMED,
        }
    }

    /// The judged rows, and whom each compares the recorder with.
    fn rows(self, load: Load) -> Vec<(String, Kind)> {
        let others = self.contestants().iter().skip(1);
        let row = |against: &Kind| format!("capture/{}B/cpu-vs-{}", load.size, against.name());
        others.map(|against| (row(against), *against)).collect()
    }

    /// The row of a contestant's time.
    fn time(self, load: Load, kind: Kind) -> String {
        let group = match self {
            Self::Keeping => "one-cpu/",
            Self::Others => "",
        };
        format!("capture/{}B/{group}{}-ns", load.size, kind.name())
    }

    fn seats(self) -> Result<Seats, Failure> {
        match self {
            Self::Keeping => Seats::one_each(),
            Self::Others => Ok(Seats::spread()),
        }
    }
}

/// Runs the contestants in turns.
fn measure(
    load: Load,
    comparison: Comparison,
    programs: &Programs,
    folder: &Path,
) -> Result<Heat, Failure> {
    let seats = comparison.seats()?;
    let veth = Veth::new()?;
    let entrant = |kind: Kind| {
        let contestant = Contestant::new(kind, programs, folder, ROOM, seats);
        let contestant = match kind {
            Kind::TcpdumpKeeping => contestant.with_files()?,
            _ => contestant,
        };
        let veth = &veth;
        Ok(Entrant::new(kind.name(), move || {
            contestant.time(veth, load)
        }))
    };
    let entrants = comparison.contestants().iter().map(|kind| entrant(*kind));
    Ok(interleave(
        REPETITIONS,
        entrants.collect::<Result<_, Failure>>()?,
    ))
}

fn report(
    session: &mut Session,
    load: Load,
    comparison: Comparison,
    heat: &Heat,
) -> Result<(), SessionError> {
    for kind in comparison.contestants() {
        let spread = heat.get(kind.name()).and_then(|series| series.spread());
        session.absolute(&comparison.time(load, *kind), "ns", spread)?;
    }
    for (row, against) in comparison.rows(load) {
        let ratio = heat.ratio(Kind::Retroscope.name(), against.name());
        session.ratio(&row, against.name(), ratio)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_judged_row_is_measured_by_one_comparison() {
        let measured = Comparison::ALL
            .into_iter()
            .flat_map(|of| of.loads().into_iter().flat_map(move |load| of.rows(load)));
        let mut measured: Vec<_> = measured.map(|(row, _)| row).collect();
        measured.sort_unstable();
        let mut judged: Vec<_> = ROWS
            .iter()
            .filter(|row| !row.starts_with("capture/lossless"))
            .map(ToString::to_string)
            .collect();
        judged.sort_unstable();
        assert_eq!(measured, judged);
    }

    /// Else "kept" would mean less to the recorder than to tcpdump.
    #[test]
    fn each_load_stays_in_the_ring_and_in_the_files() {
        for load in LOADS_KEPT {
            let bytes = load.count * (u64::from(load.size) + 16);
            assert!(bytes < ROOM.ring_bytes / 8 * 7, "{load:?}");
            assert!(bytes < 700_000_000, "{load:?}");
        }
    }
}
