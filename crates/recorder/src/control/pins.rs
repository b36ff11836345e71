//! Pins: named time ranges that the ring keeps for a client. Pins are reservations, and fall as
//! reservations do.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_ring::{Reservation, Ring};

use crate::{control::lock, start::handle::CommandError};

/// Largest number of pins.
const PINS_MAX: usize = 64;

/// All pins, by name. Any thread may change pins; the analyzer reports fallen ones.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    by_name: Mutex<BTreeMap<String, Pinned>>,
    /// The ring's news counter at the last check for fallen pins. It only avoids needless checks
    /// and is ordered with no other access.
    seen: AtomicU64,
}

#[derive(Debug)]
struct Pinned {
    /// The pin as last reported.
    pin: Pin,
    /// Several if a clock was set within the range. Empty after one of the reservations has fallen.
    reservations: Vec<Reservation>,
}

/// A pin at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The pin's name.
    pub name: String,
    /// First stamp that the pin keeps, ns since the epoch.
    pub from_ns: i64,
    /// Last stamp that the pin keeps, ns since the epoch; may be in the future.
    pub to_ns: i64,
    /// Whether the ring needed the pin's buckets (`--set when-full=record`), so that the pin keeps
    /// nothing any more.
    pub has_fallen: bool,
    /// Upper bound of the packets in the pin's range that were overwritten before the pin was made.
    pub evicted_before: u64,
}

impl Pins {
    /// Pins the ranges of ring time that have these stamps. Replaces the pin of this name: packets
    /// of both time ranges stay protected meanwhile. Returns the pin, and whether it replaced a
    /// pin. `only_new`: replaces no pin.
    pub(crate) fn put(
        &self,
        ring: &Ring,
        name: &str,
        (from_ns, to_ns): (i64, i64),
        times: &[(i64, i64)],
        only_new: bool,
    ) -> Result<(Pin, bool), CommandError> {
        let mut pins = lock(&self.by_name);
        let existed = pins.contains_key(name);
        if existed && only_new {
            return Err(CommandError::PinExists(name.to_owned()));
        }
        if !existed && pins.len() >= PINS_MAX {
            return Err(CommandError::Refused(format!(
                "there are {PINS_MAX} pins, which is the limit: unpin one first"
            )));
        }
        let reserve = |times: &(i64, i64)| ring.reserve(times.0, times.1);
        let reservations: Vec<Reservation> = times.iter().map(reserve).collect();
        let evicted_before = reservations.iter().map(|it| it.evicted_before().packets);
        let pinned = Pinned {
            pin: Pin {
                name: name.to_owned(),
                from_ns,
                to_ns,
                has_fallen: false,
                evicted_before: evicted_before.sum(),
            },
            reservations,
        };
        let pin = pinned.now();
        pins.insert(name.to_owned(), pinned);
        Ok((pin, existed))
    }

    /// Removes a pin. Returns whether the pin existed.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let removed = lock(&self.by_name).remove(name);
        removed.is_some()
    }

    /// All pins.
    pub(crate) fn list(&self) -> Vec<Pin> {
        let pins = lock(&self.by_name);
        pins.values().map(Pinned::now).collect()
    }

    /// Messages about pins that were revoked since the last call. Cheap enough to be called often.
    pub(crate) fn take_fallen(&self, ring: &Ring) -> Vec<String> {
        let news = ring.reservation_news();
        if self.seen.swap(news, Ordering::Relaxed) == news {
            return Vec::new();
        }
        let mut pins = lock(&self.by_name);
        let unreported = pins.values_mut().filter(|pinned| !pinned.pin.has_fallen);
        let fallen = unreported.filter(|pinned| pinned.now().has_fallen);
        fallen.map(|pinned| {
            pinned.pin.has_fallen = true;
            pinned.reservations.clear();
            let name = &pinned.pin.name;
            format!("pin '{name}' was revoked: the ring needed its place (when-full protect lets pins stand, and loses new packets)")
        }).collect()
    }
}

impl Pinned {
    fn now(&self) -> Pin {
        let fell = self.reservations.iter().any(Reservation::has_fallen);
        Pin {
            has_fallen: self.pin.has_fallen || fell,
            ..self.pin.clone()
        }
    }
}
