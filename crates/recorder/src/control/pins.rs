//! Pins: stretches of time that the ring keeps for somebody, under a name. They are reservations, and fall as these do.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_ring::{Reservation, Ring};

use crate::control::lock;

/// Pins at once.
const PINS_MAX: usize = 64;

/// All pins, by name. Anyone may change them; the analyzer tells which fell.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    by_name: Mutex<BTreeMap<String, Pinned>>,
    /// The ring's news when somebody last looked which fell. A guard against looking too often, ordered with nothing.
    seen: AtomicU64,
}

#[derive(Debug)]
struct Pinned {
    /// As it was told last.
    pin: Pin,
    /// More than one where a clock was set. None any more once one of them fell.
    reservations: Vec<Reservation>,
}

/// A pin at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Its name.
    pub name: String,
    /// What it keeps: stamps from here, ns since the epoch, …
    pub from_ns: i64,
    /// … to here, stored already or not.
    pub to_ns: i64,
    /// The ring needed its place (`--set when-full=record`): it keeps nothing any more.
    pub has_fallen: bool,
    /// Upper bound of the packets of its time that were overwritten before it was made.
    pub evicted_before: u64,
}

impl Pins {
    /// Pins the stretches of ring time that have these stamps. A name that is there keeps what it has. Returns the pin, and whether it was
    /// there.
    pub(crate) fn add(
        &self,
        ring: &Ring,
        name: &str,
        (from_ns, to_ns): (i64, i64),
        times: &[(i64, i64)],
    ) -> Result<(Pin, bool), String> {
        let mut pins = lock(&self.by_name);
        if let Some(pinned) = pins.get(name) {
            return Ok((pinned.now(), true));
        }
        if pins.len() >= PINS_MAX {
            return Err(format!(
                "there are {PINS_MAX} pins, which is the limit: unpin one first"
            ));
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
        Ok((pin, false))
    }

    /// Gives a stretch up. Whether it was there.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let removed = lock(&self.by_name).remove(name);
        removed.is_some()
    }

    /// All of them.
    pub(crate) fn list(&self) -> Vec<Pin> {
        let pins = lock(&self.by_name);
        pins.values().map(Pinned::now).collect()
    }

    /// Sentences about those that fell since the last call. To be asked often.
    pub(crate) fn take_fallen(&self, ring: &Ring) -> Vec<String> {
        let news = ring.reservation_news();
        if self.seen.swap(news, Ordering::Relaxed) == news {
            return Vec::new();
        }
        let mut pins = lock(&self.by_name);
        let untold = pins.values_mut().filter(|pinned| !pinned.pin.has_fallen);
        let fallen = untold.filter(|pinned| pinned.now().has_fallen);
        fallen.map(|pinned| {
            pinned.pin.has_fallen = true;
            pinned.reservations.clear();
            let name = &pinned.pin.name;
            format!("pin '{name}' fell: the ring needed its place (when-full protect lets pins stand, and loses new packets)")
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
