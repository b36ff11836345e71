//! Counts of the API itself: requests, refusals, connections.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::exposition::Exposition;

/// Requests and connections since the start.
#[derive(Debug, Default)]
pub struct Requests {
    /// Answers by status code.
    answers: Mutex<BTreeMap<u16, u64>>,
    /// Refusals by the last word of the problem's type.
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    /// Accepted connections. A counter; its order with other memory accesses does not matter.
    pub(crate) accepted: AtomicU64,
    /// Connections refused because all connections were busy. A counter; its order with other
    /// memory accesses does not matter.
    pub(crate) turned_away: AtomicU64,
    /// Accepted connections that ended. A counter; its order with other memory accesses does not
    /// matter.
    pub(crate) ended: AtomicU64,
}

impl Requests {
    /// Counts an answer, and the type of its problem if it is a refusal.
    pub fn add(&self, status: u16, refusal: Option<&'static str>) {
        add(&self.answers, status);
        if let Some(kind) = refusal {
            add(&self.refusals, kind);
        }
    }

    pub(super) fn write(&self, exposition: &mut Exposition) {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = exposition.counter(
            "retroscope_api_requests",
            "Requests that the API answered, by status code.",
        );
        for (status, requests) in &*answers {
            family.add(&[("code", &status.to_string())], Some(requests));
        }
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = exposition.counter(
            "retroscope_api_refusals",
            "Requests that the API refused, by problem type.",
        );
        for (kind, requests) in &*refusals {
            family.add(&[("type", kind)], Some(requests));
        }
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // Read first, so that connections that start and end between the two reads rarely make the
        // difference too small.
        let ended = of(&self.ended);
        let accepted = of(&self.accepted);
        exposition
            .gauge("retroscope_api_connections", "Open connections of the API.")
            .add(&[], Some(accepted.saturating_sub(ended)));
        for (name, help, count) in [
            (
                "retroscope_api_accepted_connections",
                "Connections that the API accepted.",
                accepted,
            ),
            (
                "retroscope_api_refused_connections",
                "Connections that the API closed because all permitted connections were busy.",
                of(&self.turned_away),
            ),
        ] {
            exposition.counter(name, help).add(&[], Some(count));
        }
    }
}

fn add<K: Ord>(counts: &Mutex<BTreeMap<K, u64>>, key: K) {
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(key).or_default() += 1;
}
