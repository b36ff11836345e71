//! Limits the reports about refused clients. A flood of refused requests must not fill the log or
//! the disk, and must not displace other events.
//!
//! A period lasts about a minute from its first refusal on. The first refusal of each of the first
//! [`SOURCES_MAX`] sources is reported at once. The sum of the source's further refusals is
//! reported after the period, and one sum for all other sources. So a period has at most 2 × 16 + 1
//! reports.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use retroscope_recorder::Refusal;

/// Minimum length of a period.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of sources in a period with separate sums.
const SOURCES_MAX: usize = 16;

/// An address, and the name of a token or user if known. So a flood of unknown tokens from an
/// address does not hide the refusal of a known token from this address.
type RefusalSource = (Option<IpAddr>, Option<String>);

#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Period>);

#[derive(Debug, Default)]
struct Period {
    /// Time of the first refusal; `None`: no refusal yet.
    since: Option<Instant>,
    /// By source, the sum of the source's refusals after its first refusal.
    sources: BTreeMap<RefusalSource, Option<Refusal>>,
    others: Option<Refusal>,
}

impl Refusals {
    /// Records a refusal. Returns the refusal if it must be reported now.
    pub(crate) fn add(&self, refusal: Refusal, now: Instant) -> Option<Refusal> {
        let mut period = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        period.since.get_or_insert(now);
        let source = (refusal.address, refusal.who.clone());
        if let Some(more) = period.sources.get_mut(&source) {
            count(more, refusal);
        } else if period.sources.len() < SOURCES_MAX {
            period.sources.insert(source, None);
            return Some(refusal);
        } else {
            let several = Refusal {
                who: None,
                address: None,
                ..refusal
            };
            count(&mut period.others, several);
        }
        None
    }

    /// Ends the period if it is at least [`PERIOD`] old, and returns its sums for the report.
    pub(crate) fn take(&self, now: Instant) -> Vec<Refusal> {
        let mut period = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since: Instant| now.saturating_duration_since(since) >= PERIOD;
        if !period.since.is_some_and(is_over) {
            return Vec::new();
        }
        let over = std::mem::take(&mut *period);
        let counted = over.sources.into_values().flatten();
        counted.chain(over.others).collect()
    }
}

/// Adds a refusal to a sum. The sum gets the reason and the status of the newest refusal.
fn count(before: &mut Option<Refusal>, refusal: Refusal) {
    let count = before.as_ref().map_or(0, |before| before.count);
    *before = Some(Refusal {
        count: count + refusal.count,
        ..refusal
    });
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn refusal(host: u32, who: Option<&str>) -> Refusal {
        let address = IpAddr::V4(Ipv4Addr::from_bits(host));
        Refusal::new(who, Some(address), Some(401), "unknown")
    }

    #[test]
    fn a_flood_is_counted_and_reported_in_few_events() {
        let refusals = Refusals::default();
        let now = Instant::now();
        let add = |refusal| refusals.add(refusal, now);
        assert_eq!(add(refusal(0, None)).map(|it| it.count), Some(1));
        assert!(add(refusal(0, Some("ops"))).is_some());
        let mut reported = 2;
        for number in 0..100_000 {
            reported += u32::from(add(refusal(number % 1000, None)).is_some());
        }
        assert_eq!(reported, 16);
        assert_eq!(refusals.take(now + PERIOD / 2), []);
        let counted = refusals.take(now + PERIOD);
        assert_eq!(counted.len(), 16, "15 addresses, and all others");
        let total: u64 = counted.iter().map(|refusal| refusal.count).sum();
        assert_eq!(total + u64::from(reported), 100_002);
        assert_eq!(counted[15].address, None);
        assert_eq!(refusals.take(now + 2 * PERIOD), []);
        assert!(refusals.add(refusal(0, None), now + PERIOD).is_some());
    }
}
