//! Reservations, as the outer queue knows them: which closed buckets a dump's window still needs.
//!
//! A bucket is wanted where its times touch the window and it was not given back. That is compared where it is asked, so that a
//! bucket which closes or is overwritten costs one look at each window, and nothing at what dumps did before.

use std::collections::HashMap;

use crate::{
    BucketInfo, BucketRef, EvictedBucket,
    outer::{Outer, Slot, State},
    storage::Storage,
};

/// All reservations.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Those that stand, oldest first, and so by number.
    standing: Vec<Claim>,
    /// The windows of `standing`: by themselves, because all are looked at for each bucket that closes.
    windows: Vec<Window>,
    /// Those that fell and are still asked what they lost, by number.
    fallen_claims: Vec<Claim>,
    made: u64,
    /// Fallen since the start.
    pub(crate) fallen: u64,
}

/// Times that a reservation wants, both ends included.
#[derive(Debug, Clone, Copy)]
struct Window {
    from_ns: i64,
    to_ns: i64,
}

/// One reservation.
#[derive(Debug)]
struct Claim {
    id: u64,
    window: Window,
    /// By bucket, the number of its closing in the generation that was given back.
    given: HashMap<u32, u64>,
    /// Overwritten although they were wanted, and not told yet.
    lost: Vec<EvictedBucket>,
}

impl Window {
    const EMPTY: Self = Self {
        from_ns: i64::MAX,
        to_ns: i64::MIN,
    };

    #[inline]
    fn touches(self, min_ns: i64, max_ns: i64) -> bool {
        min_ns <= self.to_ns && max_ns >= self.from_ns && self.from_ns <= self.to_ns
    }
}

impl Claim {
    /// Whether it wants a bucket, whether it stands or not.
    fn wants(&self, index: usize, slot: &Slot) -> bool {
        slot.state == State::Closed
            && self.window.touches(slot.min_ns, slot.max_ns)
            && !self.has_given(index, slot)
    }

    fn has_given(&self, index: usize, slot: &Slot) -> bool {
        !self.given.is_empty() && self.given.get(&slot.bucket(index).index) == Some(&slot.closing)
    }

    /// Takes its wish off all buckets that it wants. Adds those that none wants now.
    fn give_up(&self, slots: &mut [Slot], unwanted: &mut Vec<u32>) {
        for (index, slot) in slots.iter_mut().enumerate() {
            if self.wants(index, slot) {
                slot.wanted -= 1;
                if slot.wanted == 0 {
                    unwanted.push(slot.bucket(index).index);
                }
            }
        }
    }
}

impl Claims {
    /// A reservation that stands, by its place.
    fn place(&self, id: u64) -> Option<usize> {
        self.standing
            .binary_search_by_key(&id, |claim| claim.id)
            .ok()
    }

    fn get(&mut self, id: u64) -> Option<&mut Claim> {
        let place = self.place(id);
        let fallen = || {
            self.fallen_claims
                .binary_search_by_key(&id, |claim| claim.id)
        };
        match place {
            Some(place) => self.standing.get_mut(place),
            None => fallen()
                .ok()
                .and_then(|place| self.fallen_claims.get_mut(place)),
        }
    }

    /// A bucket of these times closes; how many standing reservations want it.
    pub(crate) fn closed(&self, min_ns: i64, max_ns: i64) -> u32 {
        let touches = |window: &Window| u32::from(window.touches(min_ns, max_ns));
        self.windows.iter().map(touches).sum()
    }

    /// A closed bucket that no standing reservation wants is overwritten: those that fell are told.
    pub(crate) fn evicted(&mut self, index: usize, slot: &Slot, entry: &EvictedBucket) {
        for claim in &mut self.fallen_claims {
            if claim.wants(index, slot) {
                claim.lost.push(entry.clone());
            }
        }
    }

    /// Where the oldest standing reservation is that wants a bucket which `could` be overwritten but for it.
    pub(crate) fn oldest_in_the_way(
        &self,
        slots: &[Slot],
        could: impl Fn(usize, &Slot) -> bool,
    ) -> Option<usize> {
        let wanted = || slots.iter().filter(|slot| slot.wanted > 0);
        let min_ns = wanted().map(|slot| slot.min_ns).min()?;
        let max_ns = wanted().map(|slot| slot.max_ns).max()?;
        // Most windows that want nothing lie apart from all that is wanted.
        self.standing.iter().position(|claim| {
            let mut slots = slots.iter().enumerate();
            claim.window.touches(min_ns, max_ns)
                && slots.any(|(index, slot)| claim.wants(index, slot) && could(index, slot))
        })
    }

    /// The reservation at `place` protects nothing any more. Adds the buckets that none wants now.
    pub(crate) fn fall(&mut self, place: usize, slots: &mut [Slot], unwanted: &mut Vec<u32>) {
        self.fallen += 1;
        self.windows.remove(place);
        let claim = self.standing.remove(place);
        claim.give_up(slots, unwanted);
        let behind = self
            .fallen_claims
            .partition_point(|other| other.id < claim.id);
        self.fallen_claims.insert(behind, claim);
    }
}

/// Reservations, by their number.
impl Outer {
    /// Makes a reservation; also tells what of its interval is gone already.
    pub(crate) fn reserve(&mut self, from_ns: i64, to_ns: i64) -> (u64, crate::Evicted) {
        let claims = &mut self.claims;
        let id = claims.made;
        claims.made += 1;
        claims.standing.push(Claim {
            id,
            window: Window::EMPTY,
            given: HashMap::new(),
            lost: Vec::new(),
        });
        claims.windows.push(Window::EMPTY);
        self.set_interval(id, from_ns, to_ns);
        (id, self.evicted(from_ns, to_ns))
    }

    pub(crate) fn set_interval(&mut self, id: u64, from_ns: i64, to_ns: i64) {
        let window = Window { from_ns, to_ns };
        let Some(place) = self.claims.place(id) else {
            if let Some(fallen) = self.claims.get(id) {
                fallen.window = window;
            }
            return;
        };
        let claim = &mut self.claims.standing[place];
        claim.give_up(&mut self.slots, &mut self.unwanted);
        claim.window = window;
        self.claims.windows[place] = window;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.wanted += u32::from(claim.wants(index, slot));
        }
        self.list_unwanted();
    }

    pub(crate) fn give_back(&mut self, id: u64, bucket: BucketRef) {
        let stands = self.claims.place(id).is_some();
        let Some(claim) = self.claims.get(id) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(bucket.index as usize) else {
            return;
        };
        if slot.state != State::Closed || slot.generation != bucket.generation {
            return;
        }
        let wants = claim.wants(bucket.index as usize, slot);
        claim.given.insert(bucket.index, slot.closing);
        if wants && stands {
            slot.wanted -= 1;
            self.unwanted.push(bucket.index);
            self.list_unwanted();
        }
    }

    pub(crate) fn release(&mut self, id: u64) {
        let claims = &mut self.claims;
        if let Some(place) = claims.place(id) {
            claims.windows.remove(place);
            let claim = claims.standing.remove(place);
            claim.give_up(&mut self.slots, &mut self.unwanted);
            self.list_unwanted();
        } else {
            claims.fallen_claims.retain(|claim| claim.id != id);
        }
    }

    pub(crate) fn buckets(&mut self, id: u64, storage: &Storage, out: &mut Vec<BucketInfo>) {
        let Some(claim) = self.claims.get(id) else {
            return;
        };
        for (index, slot) in self.slots.iter().enumerate() {
            let given = slot.state == State::Closed && claim.has_given(index, slot);
            if !given
                && let Some(info) = slot.info(index, storage)
                && claim.window.touches(info.min_ns, info.max_ns)
            {
                out.push(info);
            }
        }
        out.sort_unstable_by_key(|info| (info.producer, info.first));
    }

    pub(crate) fn fallen(&mut self, id: u64, out: &mut Vec<EvictedBucket>) {
        if let Some(claim) = self.claims.get(id) {
            out.append(&mut claim.lost);
        }
    }
}
