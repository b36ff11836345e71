//! Tiny loads on every peer of the build.

use super::{Opened, Peer, Receiver, Rtrb, Sender, Shape, all, well};
use crate::{contest::Load, measure::Failure, memory::Memory};

/// Runs every peer that can. Returns how many cannot.
fn carry(load: &Load) -> usize {
    // Two laps and more of 16 MiB with the largest packets, several waits for the reader with all.
    let mut memory = Memory::new(16 << 20).unwrap();
    let mut refused = 0;
    for (name, mut peer) in all() {
        match peer.run(load, &mut memory) {
            Ok(run) => assert_eq!(run.check(load), Ok(()), "{name}, {load:?}"),
            Err(Failure::CannotRun(_)) => refused += 1,
            Err(error) => panic!("{name}, {load:?}: {error}"),
        }
    }
    refused
}

#[test]
fn every_peer_carries_every_packet_once() {
    for load in [
        Load::pairs(64, 20_001, 1),
        Load::pairs(64, 20_001, 2),
        Load::pairs(64, 2, 3),
        Load::pairs(1514, 20_001, 1),
    ] {
        assert_eq!(carry(&load), 0);
    }
}

#[test]
fn queues_for_many_take_any_number_and_pairs_say_that_they_cannot() {
    let load = Load {
        consumers: 3,
        ..Load::pairs(64, 10_000, 1)
    };
    let names = all().into_iter().map(|(name, _)| name);
    let pairs = ["rtrb", "reader-writer-queue", "rte-ring-sp", "folly-pcq"];
    let pairs = names.filter(|name| pairs.contains(name)).count();
    assert_eq!(carry(&load), pairs);
}

/// rtrb, but for the third item.
#[derive(Clone, Copy)]
struct Lossy;

impl Peer for Lossy {
    fn open(self, shape: Shape) -> Opened<impl Sender, impl Receiver> {
        let (senders, receivers) = Rtrb.open(shape)?;
        let lossy = receivers.into_iter().map(|mut receive| {
            let mut received = 0;
            move || {
                let item = receive()?;
                received += 1;
                if received == 3 { receive() } else { Some(item) }
            }
        });
        Ok((senders, lossy.collect()))
    }
}

/// Neither count nor checksum are right, and the run fails.
#[test]
fn a_peer_that_loses_a_buffer_fails_its_run() {
    let load = Load::pairs(64, 10_000, 1);
    let mut memory = Memory::new(16 << 20).unwrap();
    let run = well::run(Lossy, &load, &mut memory).unwrap();
    let seen = 10_000 - u64::from(well::PACKETS);
    let lost = Failure::Count {
        expected: 10_000,
        seen,
    };
    assert_eq!(run.check(&load), Err(lost));
}
