//! Drives a peer as a program that allocates each packet: a queue operation, an allocation and a
//! release for each packet (thesis, section 4.3.2).
//!
//! The queue carries the address of an allocation that begins with the descriptor. The queue has
//! room for at least as many packets as fill a quarter of the ring's memory, as in `well.rs`.
#![expect(
    unsafe_code,
    reason = "an allocation travels through the queue as its address"
)]

use std::{
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    Peer, Way,
    well::{FilledBuffer, Polling, add, in_pairs, receive_all, send},
};
use crate::{
    contest::{Course, Frames, Load, Run, Tally, race},
    limits::{DESCRIPTOR_BYTES, describe},
    measure::Failure,
};

/// Carries `load`. A run that fails does not free the packets in the queue.
///
/// # Errors
/// [`Failure`], and [`Failure::CannotRun`] unless each producer has a consumer.
pub(super) fn run(peer: impl Peer, load: &Load, memory_bytes: usize) -> Result<Run, Failure> {
    in_pairs(load)?;
    let record_bytes = DESCRIPTOR_BYTES + load.packet_bytes;
    let (senders, receivers) = peer.open(load.producers, memory_bytes / record_bytes / 4)?;
    let frames = &Frames::new(load.packet_bytes);
    let sending = &AtomicUsize::new(load.producers);
    let producers = senders
        .into_iter()
        .enumerate()
        .map(|(producer, mut sender)| {
            move |course: &Course| {
                for number in 0..load.packets_of(producer) {
                    let descriptor = describe(load.time(producer, number), load.packet_bytes);
                    let mut record = Vec::with_capacity(record_bytes);
                    record.extend_from_slice(&descriptor);
                    record.extend_from_slice(frames.get(number));
                    let record = Box::into_raw(record.into_boxed_slice()).cast::<u8>();
                    let record = FilledBuffer(record.expose_provenance());
                    send(Polling::new(course, Way::Malloc), &mut sender, record)?;
                }
                // Release, as D1 of `well.rs`.
                sending.fetch_sub(1, Ordering::Release);
                Ok(())
            }
        });
    let consumers = receivers.into_iter().map(|receiver| {
        move |course: &Course| {
            let take = |FilledBuffer(address), seen: &mut Tally| {
                let record = ptr::with_exposed_provenance_mut(address);
                let record = ptr::slice_from_raw_parts_mut(record, record_bytes);
                // SAFETY: a producer gave away this box of `record_bytes` bytes, and a token is
                // received once.
                add(&unsafe { Box::<[u8]>::from_raw(record) }, seen);
            };
            receive_all(Polling::new(course, Way::Malloc), receiver, sending, take)
        }
    });
    race(load, &|| {}, producers.collect(), consumers.collect())
}
