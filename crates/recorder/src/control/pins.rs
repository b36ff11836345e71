//! Pins: named time ranges that the ring keeps for a client. Pins are reservations: in mode
//! `record` the ring may overwrite a reserved bucket, and the pin has *fallen*. A pin with a lease
//! ends if its client does not renew the lease.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use retroscope_ring::{Reservation, Ring};

use crate::{control::lock, start::handle::CommandError};

/// Maximum number of pins at once.
const PINS_MAX: usize = 64;

/// All pins, by name.
#[derive(Debug)]
pub(crate) struct Pins {
    by_name: Mutex<BTreeMap<String, Pinned>>,
    /// Names of pins whose lease has ended, until [`Self::take_ended`].
    ended: Mutex<Vec<String>>,
    /// Until this time of the monotonic clock, ns, no check for ended leases is needed. Ordered
    /// with no other access.
    next_end_ns: AtomicI64,
    /// The ring's news counter at the last check for fallen pins.
    seen: AtomicU64,
}

#[derive(Debug)]
struct Pinned {
    /// The pin without its lease. `has_fallen` is set when [`Pins::take_fallen`] reports the pin.
    pin: Pin,
    /// The ranges of ring time that the reservations keep, ns.
    times: Vec<(i64, i64)>,
    /// One reservation for each range of `times`. Cleared when [`Pins::take_fallen`] reports the
    /// pin.
    reservations: Vec<Reservation>,
    /// When the lease ends, ns of the monotonic clock; `None`: the pin has no lease.
    end_ns: Option<i64>,
}

/// A pin that a client requests.
#[derive(Debug)]
pub(crate) struct RequestedPin<'a> {
    pub(crate) name: &'a str,
    /// First and last stamp, ns.
    pub(crate) stamps: (i64, i64),
    /// The ranges of ring time that have these stamps, ns.
    pub(crate) times: Vec<(i64, i64)>,
    /// Duration of the lease, ns; `None`: no lease.
    pub(crate) lease_ns: Option<i64>,
    /// Whether to refuse the request if a pin of this name exists.
    pub(crate) is_new: bool,
}

/// The effect of a request for a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinChange {
    /// The pin is new.
    Made,
    /// The pin replaces an older pin.
    Replaced,
    /// The pin is the same as before, with a new lease.
    Renewed,
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
    /// Whether the ring needed buckets of the pin (`--set when-full=record`).
    pub has_fallen: bool,
    /// Estimate of the packets in the pin's range that were overwritten before the pin was made.
    pub evicted_before: u64,
    /// Time until the pin ends, ns; `None`: the pin has no lease.
    pub lease_ns: Option<i64>,
}

impl Default for Pins {
    fn default() -> Self {
        Self {
            by_name: Mutex::default(),
            ended: Mutex::default(),
            next_end_ns: AtomicI64::new(i64::MAX),
            seen: AtomicU64::default(),
        }
    }
}

impl Pins {
    /// Pins a time range. Unless `is_new`, renews or replaces an existing pin of this name.
    /// `now_ns`: the monotonic clock.
    pub(crate) fn put(
        &self,
        ring: &Ring,
        asked: RequestedPin<'_>,
        now_ns: i64,
    ) -> Result<(Pin, PinChange), CommandError> {
        let name = asked.name;
        let mut pins = self.current(now_ns);
        let existed = pins.contains_key(name);
        if existed && asked.is_new {
            return Err(CommandError::PinExists(name.to_owned()));
        }
        if !existed && pins.len() >= PINS_MAX {
            return Err(CommandError::Refused(format!(
                "there are {PINS_MAX} pins, which is the limit: unpin one first"
            )));
        }
        let end_ns = asked
            .lease_ns
            .map(|lease_ns| now_ns.saturating_add(lease_ns));
        self.next_end_ns
            .fetch_min(end_ns.unwrap_or(i64::MAX), Ordering::Relaxed);
        if let Some(pinned) = pins.get_mut(name)
            && (end_ns.is_some() && pinned.end_ns.is_some())
            && (pinned.times == asked.times && !pinned.has_fallen())
        {
            pinned.end_ns = end_ns;
            return Ok((pinned.now(now_ns), PinChange::Renewed));
        }
        let reserve = |times: &(i64, i64)| ring.reserve(times.0, times.1);
        let reservations: Vec<Reservation> = asked.times.iter().map(reserve).collect();
        let evicted_before = reservations.iter().map(|it| it.evicted_before().packets);
        let pinned = Pinned {
            pin: Pin {
                name: name.to_owned(),
                from_ns: asked.stamps.0,
                to_ns: asked.stamps.1,
                has_fallen: false,
                evicted_before: evicted_before.sum(),
                lease_ns: None,
            },
            times: asked.times,
            reservations,
            end_ns,
        };
        let pin = pinned.now(now_ns);
        pins.insert(name.to_owned(), pinned);
        let change = if existed {
            PinChange::Replaced
        } else {
            PinChange::Made
        };
        Ok((pin, change))
    }

    /// Removes the pins whose lease has ended at `now_ns` of the monotonic clock. Returns the other
    /// pins, locked.
    fn current(&self, now_ns: i64) -> MutexGuard<'_, BTreeMap<String, Pinned>> {
        let mut pins = lock(&self.by_name);
        let is_over = |pinned: &mut Pinned| pinned.end_ns.is_some_and(|end_ns| end_ns <= now_ns);
        let mut ended = lock(&self.ended);
        ended.extend(
            pins.extract_if(.., |_, pinned| is_over(pinned))
                .map(|(name, _)| name),
        );
        let next = pins.values().filter_map(|pinned| pinned.end_ns).min();
        let next = next.filter(|_| ended.is_empty());
        let next_ns = next.unwrap_or(if ended.is_empty() { i64::MAX } else { now_ns });
        self.next_end_ns.store(next_ns, Ordering::Relaxed);
        drop(ended);
        pins
    }

    /// Removes the pins whose lease has ended. Returns messages about pins that have ended since
    /// the last call. Cheap enough to be called often.
    pub(crate) fn take_ended(&self, now_ns: i64) -> Vec<String> {
        if self.next_end_ns.load(Ordering::Relaxed) > now_ns {
            return Vec::new();
        }
        drop(self.current(now_ns));
        let ended = std::mem::take(&mut *lock(&self.ended));
        let ended = ended.into_iter();
        ended
            .map(|name| format!("pin '{name}' has ended: its lease was not renewed"))
            .collect()
    }

    /// Removes a pin. Returns whether the pin existed.
    pub(crate) fn remove(&self, name: &str, now_ns: i64) -> bool {
        let removed = self.current(now_ns).remove(name);
        removed.is_some()
    }

    /// All pins at `now_ns` of the monotonic clock.
    pub(crate) fn list(&self, now_ns: i64) -> Vec<Pin> {
        let pins = self.current(now_ns);
        pins.values().map(|pinned| pinned.now(now_ns)).collect()
    }

    /// First and last stamp, ns, of each pin in whose range the ring is known to have overwritten
    /// nothing. The stamps may be wrong after a clock step.
    pub(crate) fn whole(&self, now_ns: i64) -> Vec<(i64, i64)> {
        let pins = self.current(now_ns);
        let whole = pins.values().filter(|pinned| pinned.is_whole());
        whole
            .map(|pinned| (pinned.pin.from_ns, pinned.pin.to_ns))
            .collect()
    }

    /// Messages about pins that have fallen since the last call. Cheap enough to be called often.
    pub(crate) fn take_fallen(&self, ring: &Ring) -> Vec<String> {
        let news = ring.reservation_news();
        if self.seen.swap(news, Ordering::Relaxed) == news {
            return Vec::new();
        }
        let mut pins = lock(&self.by_name);
        let unreported = pins.values_mut().filter(|pinned| !pinned.pin.has_fallen);
        let fallen = unreported.filter(|pinned| pinned.has_fallen());
        fallen.map(|pinned| {
            pinned.pin.has_fallen = true;
            pinned.reservations.clear();
            let name = &pinned.pin.name;
            format!("pin '{name}' was revoked: the ring needed its place (when-full protect lets pins stand, and loses new packets)")
        }).collect()
    }
}

impl Pinned {
    fn has_fallen(&self) -> bool {
        self.pin.has_fallen || self.reservations.iter().any(Reservation::has_fallen)
    }

    /// Whether the ring is known to have overwritten no packet of the pin's range.
    fn is_whole(&self) -> bool {
        let mut before = self.reservations.iter().map(Reservation::evicted_before);
        !self.has_fallen() && before.all(|it| it.packets == 0 && it.unknown_before_ns.is_none())
    }

    /// The pin at `now_ns` of the monotonic clock.
    fn now(&self, now_ns: i64) -> Pin {
        Pin {
            has_fallen: self.has_fallen(),
            lease_ns: self.end_ns.map(|end_ns| end_ns.saturating_sub(now_ns)),
            ..self.pin.clone()
        }
    }
}
