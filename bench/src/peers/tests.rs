//! Tiny loads on every peer of the build, in every style.

use super::{Style, all, versions};
use crate::contest::{Failure, Load};
use crate::memory::Memory;

/// Runs every peer that can; a peer that cannot must say so in the words of `refusal`.
fn carry(style: Style, load: &Load, refusal: Option<&str>) {
    // Two laps and more of 16 MiB with the largest packets, several waits for the reader with all.
    let mut memory = Memory::new(16 << 20).unwrap();
    for peer in &mut all(style) {
        let name = peer.name().to_owned();
        match (peer.run(load, &mut memory), refusal) {
            (Ok(run), _) => assert_eq!(run.check(load), Ok(()), "{name}, {style:?}, {load}"),
            (Err(Failure::CannotRun(why)), Some(refusal)) if why.contains(refusal) => {}
            (Err(error), _) => panic!("{name}, {style:?}, {load}: {error}"),
        }
    }
}

#[test]
fn every_peer_carries_every_packet_once() {
    for style in Style::ALL {
        for packet_bytes in [64, 1514] {
            let load = Load {
                touch_payload: true,
                ..Load::pairs(packet_bytes, 20_001, 1)
            };
            carry(style, &load, None);
        }
        for packet_bytes in [128, 256, 512, 1024] {
            carry(style, &Load::pairs(packet_bytes, 777, 1), None);
        }
    }
}

#[test]
fn two_pairs_and_more_threads_than_packets() {
    for style in Style::ALL {
        carry(
            style,
            &Load {
                touch_payload: true,
                ..Load::pairs(64, 20_001, 2)
            },
            None,
        );
        carry(style, &Load::pairs(64, 2, 3), None);
    }
}

#[test]
fn queues_for_many_take_any_number_and_pairs_say_that_they_cannot() {
    let load = Load {
        consumers: 3,
        ..Load::pairs(64, 10_000, 1)
    };
    carry(
        Style::Well,
        &load,
        Some("pairs of one producer and one consumer"),
    );
    let mut memory = Memory::new(2 << 20).unwrap();
    let refused = all(Style::Naive)
        .iter_mut()
        .map(|peer| peer.run(&load, &mut memory))
        .filter(Result::is_err)
        .count();
    assert_eq!(
        refused,
        if cfg!(feature = "peers") { 3 } else { 1 },
        "rtrb, and two of the native ones"
    );
}

#[test]
fn a_size_without_a_slot_and_a_region_without_room_are_told() {
    carry(
        Style::Naive,
        &Load::pairs(65, 10, 1),
        Some("no slot was compiled for packets of 65 bytes"),
    );
    let mut small = Memory::new(1).unwrap();
    let failure = all(Style::Well)[0]
        .run(&Load::pairs(9000, 1000, 1), &mut small)
        .unwrap_err();
    assert!(matches!(failure, Failure::CannotRun(why) if why.contains("buffers of 64 packets")));
}

/// A queue that drops one item: neither count nor checksum are right, and the run fails.
#[test]
fn a_peer_that_loses_a_buffer_fails_its_run() {
    let load = Load::pairs(64, 10_000, 1);
    let mut memory = Memory::new(16 << 20).unwrap();
    let run = super::well::run(lossy::Lossy, super::well::Copying, &load, &mut memory).unwrap();
    let lost = super::buffers::PACKETS as u64;
    assert_eq!(
        run.check(&load),
        Err(Failure::Count {
            expected: 10_000,
            seen: 10_000 - lost
        })
    );
}

#[test]
fn versions_of_all_peers_are_known() {
    let versions = versions();
    assert_eq!(versions.len(), if cfg!(feature = "peers") { 8 } else { 5 });
    for (name, version) in versions {
        assert!(
            version.starts_with(|first: char| first.is_ascii_digit()),
            "{name}: {version}"
        );
    }
}

/// rtrb, but for the third item.
mod lossy {
    use crate::peers::crates::Rtrb;
    use crate::peers::queue::{Ends, Engine, Opened, Receiver, Refusal, Shape};

    #[derive(Clone, Copy)]
    pub(super) struct Lossy;

    pub(super) struct LossyReceiver<T>(rtrb::Consumer<T>, u32);

    impl Engine for Lossy {
        type Sender<T: Send> = rtrb::Producer<T>;
        type Receiver<T: Send> = LossyReceiver<T>;

        fn name(&self) -> &'static str {
            "lossy"
        }

        fn open<T: Send>(&self, shape: Shape) -> Result<Opened<Self, T>, Refusal> {
            let Ends { senders, receivers } = Rtrb.open(shape)?;
            let receivers = receivers
                .into_iter()
                .map(|receiver| LossyReceiver(receiver, 0))
                .collect();
            Ok(Ends { senders, receivers })
        }
    }

    impl<T: Send> Receiver<T> for LossyReceiver<T> {
        fn try_receive(&mut self) -> Option<T> {
            let item = self.0.try_receive()?;
            self.1 += 1;
            if self.1 == 3 {
                self.0.try_receive()
            } else {
                Some(item)
            }
        }
    }
}
