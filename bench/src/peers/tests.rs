//! Tiny loads on every peer of the build, in every style.

use super::{Full, Opened, Receiver, Shape, Style, all, crates, well};
use crate::{contest::Load, measure::Failure, memory::Memory};

/// Runs every peer that can. Returns how many cannot.
fn carry(style: Style, load: &Load) -> usize {
    // Two laps and more of 16 MiB with the largest packets, several waits for the reader with all.
    let mut memory = Memory::new(16 << 20).unwrap();
    let mut refused = 0;
    for (name, mut peer) in all(style) {
        match peer.run(load, &mut memory) {
            Ok(run) => assert_eq!(run.check(load), Ok(()), "{name}, {style:?}, {load}"),
            Err(Failure::CannotRun(_)) => refused += 1,
            Err(error) => panic!("{name}, {style:?}, {load}: {error}"),
        }
    }
    refused
}

#[test]
fn every_peer_carries_every_packet_once() {
    for style in Style::ALL {
        for load in [
            Load::pairs(64, 20_001, 1),
            Load::pairs(64, 20_001, 2),
            Load::pairs(64, 2, 3),
        ] {
            assert_eq!(carry(style, &load), 0);
        }
    }
    for style in [Style::Well, Style::Streaming] {
        assert_eq!(carry(style, &Load::pairs(1514, 20_001, 1)), 0);
    }
    let peers = all(Style::Naive).len();
    assert_eq!(
        carry(Style::Naive, &Load::pairs(65, 10, 1)),
        peers,
        "no slots of this size"
    );
}

#[test]
fn queues_for_many_take_any_number_and_pairs_say_that_they_cannot() {
    let load = Load {
        consumers: 3,
        ..Load::pairs(64, 10_000, 1)
    };
    let names = all(Style::Well).into_iter().map(|(name, _)| name);
    let pairs = ["rtrb", "reader-writer-queue", "rte-ring-sp", "folly-pcq"];
    let pairs = names.filter(|name| pairs.contains(name)).count();
    assert_eq!(carry(Style::Well, &load), pairs);
}

/// rtrb, but for the third item.
struct Lossy<T>(rtrb::Consumer<T>, u32);

impl<T: Send> Receiver<T> for Lossy<T> {
    fn try_receive(&mut self) -> Option<T> {
        let item = self.0.try_receive()?;
        self.1 += 1;
        if self.1 == 3 {
            return self.0.try_receive();
        }
        Some(item)
    }
}

/// Neither count nor checksum are right, and the run fails.
#[test]
fn a_peer_that_loses_a_buffer_fails_its_run() {
    let open = |shape: Shape| -> Opened<_, _> {
        let (senders, receivers) = crates::rtrb::<Full>(shape)?;
        let receivers = receivers.into_iter();
        Ok((
            senders,
            receivers.map(|receiver| Lossy(receiver, 0)).collect(),
        ))
    };
    let load = Load::pairs(64, 10_000, 1);
    let mut memory = Memory::new(16 << 20).unwrap();
    let run = well::run::<false, _, _>(&open, &load, &mut memory).unwrap();
    let seen = 10_000 - u64::from(well::PACKETS);
    let lost = Failure::Count {
        expected: 10_000,
        seen,
    };
    assert_eq!(run.check(&load), Err(lost));
}
