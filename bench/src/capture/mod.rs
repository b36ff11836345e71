//! The rows that live capture is judged by: `make bench-capture`.
//!
//! Processor time of the receiving process for each captured packet, all its threads together, over a veth pair in a network
//! namespace of its own. There the kernel's copy runs on the sender's CPU, so it is nobody's; the program is kept on the other
//! CPUs (`sender.rs`). The recorder keeps everything in a ring of 1 GiB and runs one trigger filter; the others do less.
//!
//! | row | compared with | at most |
//! |---|---|---|
//! | `capture/64B/cpu-vs-tcpdump`, `capture/1514B/cpu-vs-tcpdump` | `tcpdump -w /dev/null` | 0.5 |
//! | `capture/64B/cpu-vs-minimal` | a loop that copies each packet into memory (`shim/minimal_reader.c`) | 1.6 |
//! | `capture/1514B/cpu-vs-minimal` | the same | 0.8 |
//!
//! Less is better. A run counts if the recorder captured every packet that was sent and its analyzer missed none, and if the
//! others lost at most one in a hundred. The rows
//! `capture/SIZE/NAME-ns` are the times themselves. `capture/lossless/SIZE/NAME`, which nobody judges, are in `lossless.rs`.

mod contestant;
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
use veth::Veth;

/// All judged rows, and the beginnings of those of each size whose highest rate without loss is looked for.
pub const ROWS: [&str; 10] = [
    "capture/64B/cpu-vs-tcpdump",
    "capture/64B/cpu-vs-minimal",
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

/// Who keeps packets has 1 GiB for them. The kernel's buffer is what each program takes by itself.
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
    for load in LOADS {
        let group = format!("capture/{}B", load.size);
        if !session.wants_below(&group) {
            continue;
        }
        match measure(load, programs, folder) {
            Ok(heat) => report(session, &group, &heat)?,
            Err(failure) => {
                say(&format!("SKIP: {group}: {failure}"));
                for against in [Kind::Tcpdump, Kind::Minimal] {
                    let row = format!("{group}/cpu-vs-{}", against.name());
                    session.ratio(&row, against.name(), Err(failure.clone()))?;
                }
            }
        }
    }
    if session.wants_below("capture/lossless") {
        lossless::run(session, programs, folder)?;
    }
    Ok(())
}

/// Runs the contestants in turns.
fn measure(load: Load, programs: &Programs, folder: &Path) -> Result<Heat, Failure> {
    let veth = Veth::new()?;
    let entrant = |kind: Kind| {
        let contestant = Contestant::new(kind, programs, folder, ROOM);
        let veth = &veth;
        Entrant::new(kind.name(), move || contestant.time(veth, load))
    };
    let entrants = Kind::TIMED.map(entrant).into_iter().collect();
    Ok(interleave(REPETITIONS, entrants))
}

fn report(session: &mut Session, group: &str, heat: &Heat) -> Result<(), SessionError> {
    for kind in Kind::TIMED {
        let spread = heat.get(kind.name()).and_then(|series| series.spread());
        session.absolute(&format!("{group}/{}-ns", kind.name()), "ns", spread)?;
    }
    for against in [Kind::Tcpdump, Kind::Minimal] {
        let row = format!("{group}/cpu-vs-{}", against.name());
        let ratio = heat.ratio(Kind::Retroscope.name(), against.name());
        session.ratio(&row, against.name(), ratio)?;
    }
    Ok(())
}
