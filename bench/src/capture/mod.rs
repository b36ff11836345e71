//! The judged rows of live capture: `make bench-capture`.
//!
//! The figure is the processor time of the receiving process for each captured packet, over all its
//! threads. Packets cross a veth pair in a separate network namespace. The kernel's copy runs there
//! on the sender's CPU, so no program pays for it; the program usually runs on other CPUs
//! (`sender.rs`). The recorder keeps everything in a ring of 1 GiB and runs one trigger filter. The
//! first comparison is with a tcpdump that also keeps packets, in files on tmpfs, each program's
//! threads on one CPU (`cpu-vs-keeping`). The other comparisons are with `tcpdump -w /dev/null`,
//! which keeps nothing, and with a loop that copies each packet into memory
//! (`shim/minimal_reader.c`). In the other comparisons, a program's threads may use all CPUs except
//! the sender's, or any CPU if there are fewer than three.
//!
//! Less is better. A run counts if the recorder captured every sent packet and its analyzer missed
//! no packet. The tcpdump that keeps packets must have all packets in its files, and the other
//! programs may lose at most one packet in a hundred. The rows `capture/SIZE/NAME-ns` are the times
//! themselves, and `capture/SIZE/one-cpu/NAME-ns` the times with all threads on one CPU.

mod contestant;
mod keeping;
pub(crate) mod overload;
mod sender;
pub(crate) mod shed;
pub(crate) mod veth;

use std::{
    io,
    path::PathBuf,
    thread::park_timeout,
    time::{Duration, Instant},
};

use self::{
    contestant::{Contestant, ContestantKind, KEEPING, MINIMAL, RETROSCOPE, TCPDUMP},
    keeping::Files,
    sender::Seats,
    veth::Veth,
};

use crate::{
    measure::{Entrant, Failure, Heat},
    pin,
    session::Session,
};

/// Bytes that the recorder and `minimal_reader` have for packets: room for a whole load. Each
/// program has its default kernel buffer.
const RING_BYTES: u64 = 1 << 30;

/// The loads: bytes of a frame, packets, and packets a second. Contestants usually keep up with
/// these rates.
const LOADS: [CaptureLoad; 2] = [
    CaptureLoad {
        size: 64,
        count: 1_000_000,
        rate: 500_000,
    },
    CaptureLoad {
        size: 1514,
        count: 400_000,
        rate: 200_000,
    },
];

/// Number of packets if both programs keep packets. The number for 1514 bytes has two bounds. With
/// more packets, the host more often takes the CPU for longer than tcpdump's buffer of 2 MiB lasts
/// (6.5 ms at this rate), and the run fails. With far fewer, tcpdump would need only one file.
const COUNTS_KEPT: [u64; 2] = [1_000_000, 150_000];

/// One kind of traffic.
#[derive(Debug, Clone, Copy)]
struct CaptureLoad {
    size: u32,
    count: u64,
    /// Packets a second.
    rate: u64,
}

/// The programs that the benchmark does not look up in `PATH`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Programs {
    /// Recorder of `capture` and `shed`, and sender of `capture`.
    #[arg(long, value_name = "PROGRAM", required_if_eq_any([("what", "capture"), ("what", "shed")]))]
    pub retroscope: Option<PathBuf>,
    /// `minimal_reader`, for `capture`.
    #[arg(long, value_name = "PROGRAM", required_if_eq("what", "capture"))]
    pub minimal: Option<PathBuf>,
    /// `frame_source`, for `capture`.
    #[arg(long, value_name = "PROGRAM")]
    pub frame_source: Option<PathBuf>,
}

/// Sleeps. The end of a scoped thread may leave a token for [`park_timeout`], which then returns at
/// once.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end
        .checked_duration_since(Instant::now())
        .filter(|it| !it.is_zero())
    {
        park_timeout(left);
    }
}

/// The path of a program, if it was given.
fn path(program: Option<&PathBuf>) -> Result<String, Failure> {
    let missing = || Failure::CannotRun("no programs were given".to_owned());
    Ok(program.ok_or_else(missing)?.display().to_string())
}

/// Runs the recorder in turns with the tcpdump that also keeps packets, each on one CPU, then with
/// programs that do less.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let keeping = (&[&RETROSCOPE, &KEEPING][..], "one-cpu/");
    let others = (&[&RETROSCOPE, &TCPDUMP, &MINIMAL][..], "");
    for (kinds, group) in [keeping, others] {
        for (mut load, kept) in LOADS.into_iter().zip(COUNTS_KEPT) {
            if !group.is_empty() {
                load.count = kept;
            }
            let row =
                |kind: &ContestantKind| format!("capture/{}B/cpu-vs-{}", load.size, kind.name);
            if !kinds[1..].iter().any(|kind| session.wants(&row(kind))) {
                continue;
            }
            let veth = Veth::new();
            let veth = veth.as_ref().map_err(Clone::clone);
            let heat = veth.and_then(|veth| measure(session, veth, load, kinds));
            // Ratios first: if a ratio is unsteady, both programs run again in turns, which also
            // gives them new times.
            for kind in &kinds[1..] {
                let heat = heat.as_ref().map_err(Clone::clone);
                let ratio = heat.and_then(|heat| heat.ratio(RETROSCOPE.name, kind.name));
                session.put(&row(kind), Some(kind.name), ratio)?;
            }
            for (name, time) in heat.iter().flat_map(Heat::spreads) {
                let row = format!("capture/{}B/{group}{name}-ns", load.size);
                session.put(&row, None, time)?;
            }
        }
    }
    Ok(())
}

fn measure<'a>(
    session: &'a Session,
    veth: &'a Veth,
    load: CaptureLoad,
    kinds: &[&'static ContestantKind],
) -> Result<Heat<'a>, Failure> {
    let keeps = |kind: &ContestantKind| kind.name == KEEPING.name;
    let seats = if kinds.iter().any(|kind| keeps(kind)) {
        Seats::one_each(pin::cpus())?
    } else {
        Seats::spread(pin::cpus())
    };
    let entrant = |kind: &&'static ContestantKind| {
        let contestant = Contestant {
            kind,
            session,
            seats,
            files: keeps(kind).then(Files::new).transpose()?,
        };
        Ok(Entrant::new(kind.name, move || contestant.time(veth, load)))
    };
    let entrants = kinds.iter().map(entrant).collect::<Result<_, Failure>>()?;
    let what = format!("processor time, {} B, ns a packet", load.size);
    Ok(session.heat(&what, entrants))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packets of a load with the number of [`COUNTS_KEPT`] must fit in the recorder's ring and
    /// in tcpdump's files, so that both programs keep the whole load.
    #[test]
    fn each_load_stays_in_the_ring_and_in_the_files() {
        for (load, kept) in LOADS.into_iter().zip(COUNTS_KEPT) {
            let bytes = kept * (u64::from(load.size) + 16);
            assert!(bytes < RING_BYTES / 8 * 7, "{load:?}");
            assert!(bytes < 700_000_000, "{load:?}");
        }
    }
}
