//! After figure 4 of the FlowScope paper (Emmerich et al., 2017): the highest rate at which a recorder loses nothing, by the size of
//! packets. Over a veth pair instead of three NICs, and without the Time Machine.
//!
//! A rate is searched for by halving, with short runs. All programs get a buffer from the kernel that holds about as many packets
//! ([`buffer_bytes`]), small enough that it is filled many times in a run: what is found is what they keep up with, not what a
//! buffer hides.
//!
//! A row's value is the highest rate that lost nothing, its greatest the least rate that did. Two kinds of rows belong beside those
//! of the programs, because on a veth pair the sender's CPU does the kernel's work of receiving too:
//!
//! - `capture/lossless/SIZE/sender`: the sender alone. Nobody captures, and the other end drops its packets.
//! - `capture/lossless/SIZE/NAME-sender`: the highest rate that it reached while the program NAME captured. A program cannot show
//!   more; it kept up with all where the two are equal.

use std::io;

use super::{
    Load,
    contestant::{Contestant, DUMPCAP, Kind, RETROSCOPE, RETROSCOPE_XDP, TCPDUMP, Trial},
    sender::{Seats, send},
    veth::Veth,
};
use crate::{
    measure::{Failure, Spread},
    pin,
    session::Session,
};

/// Bytes of a frame without its check sequence. The last is what the paper's 1518 bytes are without it.
const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1514];

/// The recorder's ring.
const RING_BYTES: u64 = 256 << 20;
/// The kernel's buffer, but for AF_XDP.
const BUFFER_BYTES: u64 = 8 << 20;
/// What AF_PACKET puts before the bytes of a frame in a TPACKET_V3 ring, and what a frame's place is a multiple of.
const FRAME_HEAD_BYTES: u64 = 82;
const FRAME_ALIGNMENT: u64 = 8;
/// A frame's place in the memory of AF_XDP.
const CHUNK_BYTES: u64 = 2048;

/// Packets of a run at full speed: most of a second for the sender.
const COUNT_MAX: u64 = 800_000;
/// Length of a run, in parts of a second: one in so many.
const RUNS_A_SECOND: u64 = 2;
/// Runs of the sender alone.
const RUNS_ALONE: usize = 3;
/// Whose highest rate is looked for.
const KINDS: [&Kind; 4] = [&RETROSCOPE, &RETROSCOPE_XDP, &TCPDUMP, &DUMPCAP];
/// Halvings of the interval between a rate that lost nothing and one that did.
const HALVINGS: usize = 4;
/// So often a rate may fail: now and then something else takes the processor.
const ATTEMPTS: usize = 2;

/// Finds the highest rates and writes their rows.
pub(crate) fn lossless(session: &Session) -> io::Result<()> {
    for size in SIZES {
        let row = |name: &str| format!("capture/lossless/{size}B/{name}");
        session.row(&row("sender"), None, || alone(session, size))?;
        for kind in KINDS {
            let (row, its_sender) = (row(kind.name), row(&format!("{}-sender", kind.name)));
            if !session.wants_any(&[&row, &its_sender]) {
                continue;
            }
            let mut fastest = 0.0_f64;
            session.put(&row, None, beside(session, kind, size, &mut fastest))?;
            if fastest > 0.0 {
                session.put(&its_sender, None, Ok(Spread::once(fastest / 1e6)))?;
            }
        }
    }
    Ok(())
}

/// The highest rate of a program; `fastest` is the highest one of its sender.
fn beside(
    session: &Session,
    kind: &'static Kind,
    size: u32,
    fastest: &mut f64,
) -> Result<Spread, Failure> {
    let contestant = Contestant {
        kind,
        session,
        ring_bytes: RING_BYTES,
        buffer_bytes: buffer_bytes(kind, size),
        seats: Seats::spread(pin::cpus()),
        files: None,
    };
    let veth = Veth::new()?;
    highest(|rate| {
        let count = rate.map_or(COUNT_MAX, |rate| (rate / RUNS_A_SECOND).max(1));
        let trial = contestant.try_load(&veth, Load { size, count, rate })?;
        if rate.is_none() {
            *fastest = fastest.max(trial.sent.rate);
        }
        Ok(trial)
    })
}

/// How fast the sender is when nobody captures, in Mpps.
fn alone(session: &Session, size: u32) -> Result<Spread, Failure> {
    let (veth, seats) = (Veth::new()?, Seats::spread(pin::cpus()));
    let (count, rate) = (COUNT_MAX, None);
    let load = Load { size, count, rate };
    let run = |_| Ok(send(session, &veth, seats, load)?.rate / 1e6);
    let rates: Result<Vec<f64>, Failure> = (0..RUNS_ALONE).map(run).collect();
    Spread::of(&rates?)
}

/// The kernel's buffer for packets of `size` bytes: 8 MiB, in which AF_PACKET (libpcap too) packs them. AF_XDP keeps each in a chunk
/// of its own; it gets as many chunks, rounded down to a MiB here and to a power of two by the engine.
fn buffer_bytes(kind: &Kind, size: u32) -> u64 {
    if kind.name != RETROSCOPE_XDP.name {
        return BUFFER_BYTES;
    }
    let place = (FRAME_HEAD_BYTES + u64::from(size)).next_multiple_of(FRAME_ALIGNMENT);
    let bytes = BUFFER_BYTES / place * CHUNK_BYTES;
    bytes >> 20 << 20
}

/// The highest rate without loss, in Mpps. `run` makes a run at so many packets a second, or as fast as the sender can.
fn highest(mut run: impl FnMut(Option<u64>) -> Result<Trial, Failure>) -> Result<Spread, Failure> {
    let mut passes = |rate: Option<u64>| -> Result<(bool, f64), Failure> {
        let mut reached: f64 = 0.0;
        for _ in 0..ATTEMPTS {
            let trial = run(rate)?;
            reached = reached.max(trial.sent.rate);
            // Something else may have sent packets too.
            if trial.captured >= trial.sent.packets {
                return Ok((true, trial.sent.rate));
            }
        }
        Ok((false, reached))
    };
    let (passed, first) = passes(None)?;
    let (mut low, mut high) = (0.0_f64, first);
    if passed {
        // The sender may have been held up.
        let (passed, second) = passes(None)?;
        if passed {
            return Ok(Spread::once(first.max(second) / 1e6));
        }
        // A rate above one that lost packets was luck.
        low = if first < second { first } else { 0.0 };
        high = second;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate between 0 and what a sender reaches"
        )]
        let (passed, reached) = passes(Some(middle as u64))?;
        if passed {
            low = reached.min(middle);
        } else {
            high = middle;
        }
    }
    if low == 0.0 {
        let least = high / 1e6;
        return Err(Failure::Unsound(format!("lost some at {least:.3} Mpps")));
    }
    Ok(Spread {
        median: low / 1e6,
        min: low / 1e6,
        max: high / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::{super::sender::Sent, *};

    /// The sender's highest rate.
    const FULL: f64 = 1_600_000.0;

    /// A program that keeps up with so many packets a second, and loses one in the runs `hiccups` at any rate. The sender
    /// reaches `first` in the first run, and [`FULL`] then.
    fn search_from(first: f64, limit: f64, hiccups: Range<usize>) -> Result<Spread, Failure> {
        let mut runs = 0..;
        highest(|rate| {
            let run = runs.next().unwrap();
            let full = if run == 0 { first } else { FULL };
            let rate = rate.map_or(full, |rate| rate as f64);
            let packets = 1000;
            Ok(Trial {
                sent: Sent { packets, rate },
                captured: packets - u64::from(rate > limit || hiccups.contains(&run)),
            })
        })
    }

    fn search(limit: f64, hiccups: Range<usize>) -> Result<Spread, Failure> {
        search_from(FULL, limit, hiccups)
    }

    #[test]
    fn the_rate_is_found_between_two_bounds() {
        let spread = search(730_000.0, 0..0).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (0.7, 0.7, 0.8));
        assert_eq!(
            search(5e6, 0..0).unwrap(),
            Spread::once(1.6),
            "the sender's"
        );
    }

    #[test]
    fn one_loss_is_tried_again_and_loss_everywhere_is_no_figure() {
        assert_eq!(search(5e6, 0..1).unwrap(), Spread::once(1.6));
        assert_eq!(search(5e6, 1..2).unwrap(), Spread::once(1.6));
        assert!(search(5e6, 0..2).unwrap().median < 1.6);
        assert!(matches!(search(0.0, 0..0), Err(Failure::Unsound(_))));
    }

    #[test]
    fn full_speed_counts_only_if_it_loses_nothing_twice() {
        let spread = search(5e6, 1..3).unwrap();
        assert_eq!((spread.median, spread.max), (1.5, 1.6));
        // The sender was held up at first: what it reached then is the lower bound, not the result.
        let spread = search_from(1e6, 1_200_000.0, 0..0).unwrap();
        assert_eq!((spread.median, spread.max), (1.1875, 1.225));
        let spread = search_from(2e6, 5e6, 1..3).unwrap();
        assert_eq!(
            (spread.median, spread.max),
            (1.5, 1.6),
            "2 million were luck"
        );
    }

    #[test]
    fn buffers_hold_as_many_packets() {
        let chunks = |size| buffer_bytes(&RETROSCOPE_XDP, size) / CHUNK_BYTES;
        assert_eq!(buffer_bytes(&TCPDUMP, 64), 8 << 20);
        // 55,188 places of 152 bytes, 5,242 of 1600; a MiB is 512 chunks.
        assert_eq!(chunks(64), 55_188 / 512 * 512);
        assert_eq!(chunks(1514), 5_242 / 512 * 512);
    }
}
