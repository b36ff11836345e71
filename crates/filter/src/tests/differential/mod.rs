//! Interpreter and machine code must agree on every packet, and libpcap too where its result is
//! defined. The programs include some that libpcap makes and some that it never makes. Packets are
//! cut anywhere, and each is placed so that a read beyond its end crashes.
//!
//! Runs are seeded. `FILTER_SEED` repeats a run; `FILTER_SECONDS` sets the duration of each random
//! test (`make verify`).

mod cases;
mod expressions;
mod guard;
mod header_reads;
mod packets;
mod programs;
mod real;
mod sets;

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{FilterFrame, Instruction, Program, sys::reference};
use guard::GuardedMemory;
use packets::Packet;

/// Whether libpcap runs the program too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Libpcap {
    Asked,
    /// libpcap's result is not defined, or may differ: ancillary data, shifts that C does not
    /// define, scratch memory that the program did not write, endless loops.
    NotAsked,
}

/// Runs of a test, each with its own seed. Ends after a number of runs, or after a given time.
struct Trials {
    seed: u64,
    left: u64,
    until: Option<Instant>,
}

impl Trials {
    fn new(count: u64) -> Self {
        let number = |name| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u64>().expect("a number"))
        };
        let seconds = number("FILTER_SECONDS").map(Duration::from_secs);
        let seed = number("FILTER_SEED").unwrap_or_else(|| fastrand::u64(..));
        // A read beyond a packet crashes the test, and this line is then the only information. It
        // appears with `--nocapture`.
        eprintln!("FILTER_SEED={seed}");
        Self {
            seed,
            left: count,
            until: seconds.map(|seconds| Instant::now() + seconds),
        }
    }
}

impl Iterator for Trials {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let is_over = match self.until {
            Some(until) => Instant::now() >= until,
            None => self.left == 0,
        };
        if is_over {
            return None;
        }
        self.left = self.left.saturating_sub(1);
        let seed = self.seed;
        self.seed = seed.wrapping_add(1);
        Some(seed)
    }
}

/// Runs the implementations of programs. Counts the programs, and the packets that the programs
/// keep or reject.
struct Judges {
    /// Guarded memory for each packet of a run.
    places: Vec<GuardedMemory>,
    frames: GuardedMemory,
    programs: u64,
    kept: u64,
    rejected: u64,
}

impl fmt::Debug for Judges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judges")
            .field("programs", &self.programs)
            .field("kept", &self.kept)
            .field("rejected", &self.rejected)
            .finish_non_exhaustive()
    }
}

impl Judges {
    fn new() -> Self {
        Self {
            places: (0..Program::MANY).map(|_| GuardedMemory::new()).collect(),
            frames: GuardedMemory::new(),
            programs: 0,
            kept: 0,
            rejected: 0,
        }
    }

    /// Runs the implementations on up to 64 packets. Fails if any result differs from that of the
    /// interpreter.
    fn compare(&mut self, seed: u64, program: &Program, libpcap: Libpcap, packets: &[Packet]) {
        let places = self.places.iter_mut().zip(packets);
        let frames: Vec<FilterFrame<'_>> = places
            .map(|(place, packet)| {
                FilterFrame::new(place.place(&packet.data), packet.wire_len, packet.aux)
            })
            .collect();
        assert_eq!(frames.len(), packets.len());
        let complaint = |who: &str, index: usize| {
            let before = seed.wrapping_sub(1);
            let packet = &packets[index];
            let program = program.disassemble();
            format!("FILTER_SEED={before}: {who} differs on {packet:?}\n{program}")
        };
        let interpreted: Vec<u32> = frames
            .iter()
            .map(|frame| program.interpret(frame))
            .collect();
        let expected = (0..).zip(&interpreted).fold(0, |set, (index, bytes)| {
            set | u64::from(*bytes != 0) << index
        });
        if let Err(error) = program.make_native() {
            panic!("{error:?}: {}", complaint("the translator", 0));
        }
        for (index, (frame, expected)) in frames.iter().zip(&interpreted).enumerate() {
            let native = program.keeps(frame);
            assert_eq!(
                native,
                *expected != 0,
                "{}",
                complaint("machine code", index)
            );
            if libpcap == Libpcap::Asked {
                let theirs = reference::run(program.instructions(), frame.data(), frame.wire_len());
                assert_eq!(theirs, *expected, "{}", complaint("libpcap", index));
            }
        }
        let together = program.run_many(self.frames.place(&frames));
        let wrong = (together ^ expected).trailing_zeros() as usize;
        let first = wrong.min(packets.len().saturating_sub(1));
        assert_eq!(together, expected, "{}", complaint("the loop", first));
        self.programs += 1;
        self.kept += u64::from(expected.count_ones());
        self.rejected += packets.len() as u64 - u64::from(expected.count_ones());
    }

    /// Like [`Self::compare`], for a program with these instructions.
    fn compare_instructions(
        &mut self,
        seed: u64,
        instructions: Vec<Instruction>,
        libpcap: Libpcap,
        packets: &[Packet],
    ) {
        let program = Program::new(instructions, false).expect("made to be valid");
        self.compare(seed, &program, libpcap, packets);
    }

    /// Fails unless many packets were kept and many were rejected: with few, the test would show
    /// little.
    fn must_have_seen_both(&self) {
        assert!(
            self.kept > self.programs && self.rejected > self.programs,
            "{self:?}"
        );
    }
}
