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
    /// Oldest first, and so by number.
    claims: Vec<Claim>,
    made: u64,
    /// Fallen since the start.
    pub(crate) fallen: u64,
}

/// One reservation. Small, because all are looked at for each bucket that closes.
#[derive(Debug)]
struct Claim {
    from_ns: i64,
    to_ns: i64,
    id: u64,
    /// Closed buckets that it wants.
    wants: u32,
    /// It did not fall.
    stands: bool,
    progress: Box<Progress>,
}

/// What a dump did with the buckets of its window.
#[derive(Debug, Default)]
struct Progress {
    /// By bucket, the number of its closing in the generation that was given back.
    given: HashMap<u32, u64>,
    /// Overwritten although they were wanted, and not told yet.
    lost: Vec<EvictedBucket>,
}

impl Claim {
    #[inline]
    fn touches(&self, min_ns: i64, max_ns: i64) -> bool {
        min_ns <= self.to_ns && max_ns >= self.from_ns && self.from_ns <= self.to_ns
    }

    /// Whether it wants a bucket, whether it stands or not.
    fn wants(&self, index: usize, slot: &Slot) -> bool {
        slot.state == State::Closed
            && self.touches(slot.min_ns, slot.max_ns)
            && !self.has_given(index, slot)
    }

    fn has_given(&self, index: usize, slot: &Slot) -> bool {
        let given = &self.progress.given;
        !given.is_empty() && given.get(&slot.bucket(index).index) == Some(&slot.closing)
    }
}

impl Claims {
    fn get(&mut self, id: u64) -> Option<&mut Claim> {
        let place = self.claims.binary_search_by_key(&id, |claim| claim.id);
        self.claims.get_mut(place.ok()?)
    }

    /// A bucket of these times closes; how many standing reservations want it.
    pub(crate) fn closed(&mut self, min_ns: i64, max_ns: i64) -> u32 {
        let mut wanted = 0;
        for claim in &mut self.claims {
            let wants = u32::from(claim.touches(min_ns, max_ns));
            claim.wants += wants;
            wanted += wants & u32::from(claim.stands);
        }
        wanted
    }

    /// A closed bucket that no standing reservation wants is overwritten: those that fell are told.
    pub(crate) fn evicted(&mut self, index: usize, slot: &Slot, entry: impl Fn() -> EvictedBucket) {
        for claim in &mut self.claims {
            if !claim.stands && claim.wants(index, slot) {
                claim.wants -= 1;
                claim.progress.lost.push(entry());
            }
        }
    }

    /// Where the oldest standing reservation is that wants a bucket which `could` be overwritten but for it.
    pub(crate) fn oldest_in_the_way(
        &self,
        slots: &[Slot],
        could: impl Fn(usize, &Slot) -> bool,
    ) -> Option<usize> {
        let slots_of = |claim: &Claim| {
            let mut slots = slots.iter().enumerate();
            slots.any(|(index, slot)| claim.wants(index, slot) && could(index, slot))
        };
        self.claims
            .iter()
            .position(|claim| claim.stands && claim.wants > 0 && slots_of(claim))
    }

    /// The reservation at `place` protects nothing any more. Adds the buckets that none wants now.
    pub(crate) fn fall(&mut self, place: usize, slots: &mut [Slot], unwanted: &mut Vec<u32>) {
        self.fallen += 1;
        let claim = &mut self.claims[place];
        give_up(claim, slots, unwanted);
        claim.stands = false;
    }
}

/// Takes a reservation's wish off all buckets that it wants. Adds those that none wants now.
fn give_up(claim: &Claim, slots: &mut [Slot], unwanted: &mut Vec<u32>) {
    if !claim.stands {
        return;
    }
    for (index, slot) in slots.iter_mut().enumerate() {
        if claim.wants(index, slot) {
            slot.wanted -= 1;
            if slot.wanted == 0 {
                unwanted.push(slot.bucket(index).index);
            }
        }
    }
}

/// Reservations, by their number.
impl Outer {
    /// Makes a reservation; also tells what of its interval is gone already.
    pub(crate) fn reserve(&mut self, from_ns: i64, to_ns: i64) -> (u64, crate::Evicted) {
        let id = self.claims.made;
        self.claims.made += 1;
        self.claims.claims.push(Claim {
            from_ns: i64::MAX,
            to_ns: i64::MIN,
            id,
            wants: 0,
            stands: true,
            progress: Box::default(),
        });
        self.set_interval(id, from_ns, to_ns);
        (id, self.evicted(from_ns, to_ns))
    }

    pub(crate) fn set_interval(&mut self, id: u64, from_ns: i64, to_ns: i64) {
        let (claims, slots) = (&mut self.claims, &mut self.slots);
        let Some(claim) = claims.get(id) else {
            return;
        };
        give_up(claim, slots, &mut self.unwanted);
        (claim.from_ns, claim.to_ns) = (from_ns, to_ns);
        claim.wants = 0;
        for (index, slot) in slots.iter_mut().enumerate() {
            if claim.wants(index, slot) {
                claim.wants += 1;
                slot.wanted += u32::from(claim.stands);
            }
        }
        self.list_unwanted();
    }

    pub(crate) fn give_back(&mut self, id: u64, bucket: BucketRef) {
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
        claim.progress.given.insert(bucket.index, slot.closing);
        if wants {
            claim.wants -= 1;
            if claim.stands {
                slot.wanted -= 1;
                self.unwanted.push(bucket.index);
                self.list_unwanted();
            }
        }
    }

    pub(crate) fn release(&mut self, id: u64) {
        let claims = &mut self.claims.claims;
        let Ok(place) = claims.binary_search_by_key(&id, |claim| claim.id) else {
            return;
        };
        let claim = claims.remove(place);
        give_up(&claim, &mut self.slots, &mut self.unwanted);
        self.list_unwanted();
    }

    pub(crate) fn buckets(&mut self, id: u64, storage: &Storage, out: &mut Vec<BucketInfo>) {
        let Some(claim) = self.claims.get(id) else {
            return;
        };
        for (index, slot) in self.slots.iter().enumerate() {
            let given = slot.state == State::Closed && claim.has_given(index, slot);
            if !given
                && let Some(info) = slot.info(index, storage)
                && claim.touches(info.min_ns, info.max_ns)
            {
                out.push(info);
            }
        }
        out.sort_unstable_by_key(|info| (info.producer, info.first));
    }

    pub(crate) fn fallen(&mut self, id: u64, out: &mut Vec<EvictedBucket>) {
        if let Some(claim) = self.claims.get(id) {
            out.append(&mut claim.progress.lost);
        }
    }
}
