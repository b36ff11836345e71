//! Tiny loads on every peer of the build.

use super::{Opened, Peer, Receiver, Rtrb, Sender, Way, all, well};
use crate::{contest::Load, measure::Failure, memory::Memory};

/// Runs a load on every peer in every [`Way`], and checks its packets. Each peer must refuse a load
/// of two producers and one consumer.
fn carry(load: &Load) {
    // With packets of 1514 bytes, a load of 20,001 packets is more than one lap of 16 MiB.
    let mut memory = Memory::new(16 << 20).unwrap();
    for way in [Way::Well, Way::Reused, Way::OneByOne, Way::Malloc] {
        for (name, mut peer) in all(way) {
            let run = peer.run(load, &mut memory).unwrap();
            assert_eq!(run.check(load), Ok(()), "{name}, {way:?}, {load:?}");
            let refused = peer.run(&Load::to_one(64, 10, 2), &mut memory);
            assert!(matches!(refused, Err(Failure::CannotRun(_))), "{refused:?}");
        }
    }
}

#[test]
fn every_peer_carries_every_packet_once() {
    for load in [
        Load::pairs(64, 20_001, 1),
        Load::pairs(64, 20_001, 2),
        Load::pairs(64, 2, 3),
        Load::pairs(1514, 20_001, 1),
    ] {
        carry(&load);
    }
}

/// rtrb, except that each receiver loses its third item.
#[derive(Clone, Copy)]
struct Lossy;

impl Peer for Lossy {
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver> {
        let (senders, receivers) = Rtrb.open(pairs, capacity)?;
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

/// The third buffer is lost: the check must report its 64 packets as missing.
#[test]
fn a_peer_that_loses_a_buffer_fails_its_run() {
    let load = Load::pairs(64, 10_000, 1);
    let mut memory = Memory::new(16 << 20).unwrap();
    let run = well::run(Lossy, Way::Well, &load, &mut memory).unwrap();
    let seen = 10_000 - u64::from(well::PACKETS);
    let lost = Failure::Count {
        expected: 10_000,
        seen,
    };
    assert_eq!(run.check(&load), Err(lost));
}
