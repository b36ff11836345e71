//! Alerts of an IDS. The analyzer acts on each alert at its time: packet time from files, ring time
//! live.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use retroscope_alert::Alert;
use retroscope_capture::clock::duration_ns;
use retroscope_ring::BucketInfo;

use super::Core;
use crate::{
    analysis::{
        alerts::Sought,
        director::{ALERT, Hit, HitOrder, Order},
        predicate::Expression,
        terms::{Terms, TriggerRequest, Window},
    },
    control::{
        alerts::{AlertConfig, AlertNews, AlertOutcome},
        events::Event,
        hits::Reason,
        progress::records_before,
        ring_time::Moment,
        time::seconds,
    },
    dump::{
        alerted::{AlertFacts, oddity},
        order::Message,
    },
};

/// Live, the recorder refuses an alert whose stamp is further ahead of the clock than this, ns: the
/// clock of the IDS is wrong. A stamp that the clock has shown before a step is not ahead.
const AHEAD_MAX_NS: i64 = 10_000_000_000;
/// Live, alerts that wait at once. Beyond this limit the recorder refuses the alert with the latest
/// time. An alert takes about 1 KiB.
const WAITING_MAX: usize = 65_536;

/// An alert and its time, ns: live, the ring time of its stamp; from files, the stamp.
type TimedAlert = (i64, Arc<Alert>);

/// Alerts that wait for their time, in its order; alerts of one time, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Alerts {
    waiting: BTreeMap<(i64, u64), Arc<Alert>>,
    came: u64,
    delay_ns: i64,
    has_told_oddity: bool,
}

impl Alerts {
    pub(super) fn new(config: &mut AlertConfig) -> Self {
        let mut alerts = Self {
            delay_ns: duration_ns(config.delay),
            ..Self::default()
        };
        let of_files = std::mem::take(&mut config.alerts).into_iter();
        alerts.add(of_files.map(|alert| (alert.time_ns, alert)));
        alerts
    }

    fn add(&mut self, alerts: impl IntoIterator<Item = TimedAlert>) {
        for (time_ns, alert) in alerts {
            self.waiting.insert((time_ns, self.came), alert);
            self.came += 1;
        }
    }

    /// When the next one acts, ns; `None`: none waits.
    pub(super) fn next_ns(&self) -> Option<i64> {
        let ((time_ns, _), _) = self.waiting.first_key_value()?;
        Some(time_ns.saturating_add(self.delay_ns))
    }

    /// Beyond [`WAITING_MAX`], removes the alert with the latest time.
    fn take_excess(&mut self) -> Option<Arc<Alert>> {
        let is_excess = self.waiting.len() > WAITING_MAX;
        let last = is_excess.then(|| self.waiting.pop_last()).flatten();
        last.map(|(_, alert)| alert)
    }

    /// Takes the next one whose time has come.
    fn next(&mut self, now_ns: i64) -> Option<TimedAlert> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let ((time_ns, _), alert) = self.waiting.pop_first()?;
        Some((time_ns, alert))
    }
}

impl Core {
    /// Live: alerts arrived. Each acts at its time, unless the time is too far ahead or too many
    /// alerts wait.
    pub(super) fn add_alerts(&mut self, alerts: Vec<Arc<Alert>>, now: Moment) {
        let alerts = alerts.into_iter();
        let timed = alerts.map(|alert| (self.ring_time_of(alert.time_ns, now), alert));
        let is_ahead =
            |(time_ns, _): &TimedAlert| time_ns.saturating_sub(now.ring_ns) > AHEAD_MAX_NS;
        let (ahead, alerts): (Vec<_>, Vec<_>) = timed.partition(is_ahead);
        for (time_ns, alert) in ahead {
            let by = seconds(time_ns.saturating_sub(now.ring_ns));
            let why = format!("its time is {by} after that of the recorder's clock");
            self.tell_alert(&alert, AlertOutcome::NotYet, None, Some(why));
        }
        self.alerts.add(alerts);
        // Before the count: an alert that is due takes no place among the alerts that wait.
        self.act_on_alerts(now.ring_ns);
        while let Some(alert) = self.alerts.take_excess() {
            let why = format!("{WAITING_MAX} alerts with an earlier time wait");
            self.tell_alert(&alert, AlertOutcome::NotYet, None, Some(why));
        }
    }

    /// The recording ends: acts on alerts that wait for their delay. Live, refuses alerts that are
    /// ahead of the clock.
    pub(super) fn end_alerts(&mut self) {
        let now_ns = match self.live {
            true => self.common.clock.now().ring_ns,
            false => i64::MAX,
        };
        while let Some((time_ns, alert)) = self.alerts.next(i64::MAX) {
            if time_ns <= now_ns {
                self.act_on_alert(time_ns, &alert);
                self.execute();
            } else {
                let why = "the recording ended before its time".to_owned();
                self.tell_alert(&alert, AlertOutcome::NotYet, None, Some(why));
            }
        }
    }

    /// Acts on those whose time has come.
    pub(super) fn act_on_alerts(&mut self, now_ns: i64) {
        while let Some((time_ns, alert)) = self.alerts.next(now_ns) {
            self.act_on_alert(time_ns, &alert);
            self.execute();
        }
    }

    fn act_on_alert(&mut self, time_ns: i64, alert: &Arc<Alert>) {
        let common = Arc::clone(&self.common);
        if self.live {
            let age_ns = common.clock.now().ring_ns.saturating_sub(time_ns);
            let age_ns = u64::try_from(age_ns).unwrap_or(0);
            common.alerts.ages.record(age_ns, 1);
        }
        if oddity(alert).is_some() {
            common.alerts.other_community_id.fetch_add(1, Relaxed);
            self.tell_oddity(alert);
        }
        let interface = alert.in_iface.as_deref();
        let recorded = interface.filter(|name| self.is_recorded(name));
        let sought = Sought::new(alert, recorded.map(Arc::from));
        if let Some(name) = interface.filter(|_| sought.is_window() && recorded.is_none()) {
            let why = format!("it names no IP packet, and no interface {name:?} is recorded");
            self.tell_alert(alert, AlertOutcome::NoInterface, None, Some(why));
            return;
        }
        let mut terms = Terms::new(&TriggerRequest::default(), self.parts.window);
        terms.window = self.window_of(alert, time_ns, sought.is_window());
        terms.reason = Some(alert.identity.name().into());
        terms.alert = Some(Arc::clone(alert));
        let order = HitOrder {
            time_ns,
            source: 0,
            producer: 0,
            record: u64::MAX,
            rule: ALERT,
        };
        let expression = match Expression::of_alert(sought) {
            Ok(expression) => expression,
            Err(error) => return self.tell(Event::Notice(format!("alert: {error}"))),
        };
        let newest_ns = if self.live {
            common.clock.now().ring_ns
        } else {
            self.director.clock_ns
        };
        let hit = Hit {
            order,
            terms,
            expression: Ok(expression),
        };
        self.director.alert(hit, newest_ns, &mut self.orders);
        if let Some(Order::Refused { why, .. }) = self.orders.last() {
            let outcome = match why.reason() {
                Reason::DumpsPerMinute => AlertOutcome::DumpsPerMinute,
                Reason::BytesPerHour => AlertOutcome::BytesPerHour,
                _ => AlertOutcome::MaxDumps,
            };
            let why = why.to_string();
            self.tell_alert(alert, outcome, None, Some(why));
        }
    }

    /// From the first packet of its flow to its own, and what is dumped before and after any trigger.
    fn window_of(&self, alert: &Alert, time_ns: i64, is_window: bool) -> Window {
        let config = &self.parts.alerts;
        let mut window = self.parts.window;
        if is_window {
            let most_ns = duration_ns(config.window);
            window.past_ns = window.past_ns.min(most_ns);
            window.future_ns = window.future_ns.min(most_ns);
            let past_ns = (window.start_ns(time_ns), time_ns);
            let before_ns = self.since_bytes(past_ns, config.window_bytes / 2);
            window.past_ns = window.past_ns.min(time_ns.saturating_sub(before_ns));
            window.bytes_max = window.bytes_max.min(config.window_bytes.max(1));
        } else if let Some(start_ns) = alert.start_ns {
            let flow_ns = alert.time_ns.saturating_sub(start_ns);
            window.past_ns = window.past_ns.saturating_add(flow_ns);
        }
        // Stamps of alerts are of whole microseconds, and those of packets may go on behind them.
        window.future_ns = window.future_ns.saturating_add(999);
        window
    }

    /// The time, ns, since which the ring has at most `bytes` up to `time_ns`, in whole buckets.
    /// `i64::MIN`: it has less since `from_ns`.
    fn since_bytes(&self, (from_ns, time_ns): (i64, i64), bytes: u64) -> i64 {
        let ring = &self.common.ring;
        let bucket_bytes = (ring.bytes() / ring.buckets().max(1) as u64).max(1);
        let buckets = usize::try_from(bytes / bucket_bytes).unwrap_or(usize::MAX);
        let infos = self.buckets(from_ns, time_ns);
        let mut ends: Vec<i64> = infos.iter().map(|info| info.max_ns.min(time_ns)).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(buckets.max(1)).copied().unwrap_or(i64::MIN)
    }

    /// The buckets with analyzed records that touch a time range, each with the number of these
    /// records.
    fn buckets(&self, from_ns: i64, to_ns: i64) -> Vec<BucketInfo> {
        let mut all = Vec::new();
        let ring = &self.common.ring;
        ring.buckets_within(from_ns, to_ns, &mut all);
        if let Some(here) = self.here.first().filter(|_| !self.live) {
            for info in &mut all {
                info.committed = info.committed.min(records_before(*here, info));
            }
        }
        all.retain(|info| info.committed > 0);
        all
    }

    /// A dump is opened for an alert.
    pub(super) fn opened_for(
        &mut self,
        alert: Option<Arc<Alert>>,
        id: u64,
        (from_ns, to_ns): (i64, i64),
    ) -> Option<(Arc<Alert>, AlertFacts)> {
        let alert = alert?;
        let why = oddity(&alert).map(str::to_owned);
        self.tell_alert(&alert, AlertOutcome::Dump, Some(id), why);
        let oldest_ns = |buckets: &[BucketInfo]| buckets.iter().map(|info| info.min_ns).min();
        let within = self.buckets(from_ns, to_ns);
        let facts = AlertFacts {
            // Only files need a walk over all buckets: the answer must not depend on how far the
            // inserter has read ahead.
            oldest_ns: oldest_ns(&within).or_else(|| match self.live {
                true => self.common.ring.oldest_ns(),
                false => oldest_ns(&self.buckets(i64::MIN, i64::MAX)),
            }),
            before: within.iter().map(|info| u64::from(info.committed)).sum(),
            recorded: self.recorded(),
        };
        Some((alert, facts))
    }

    /// An alert belongs to a dump that is open.
    pub(super) fn join(&mut self, id: u64, alert: Arc<Alert>, to_ns: i64) {
        if let Some(window) = self.open.get_mut(&id) {
            window.to_ns = window.to_ns.max(to_ns);
        }
        let why = oddity(&alert).map(str::to_owned);
        self.tell_alert(&alert, AlertOutcome::Joined, Some(id), why);
        self.send(Message::Join { id, alert, to_ns });
    }

    /// All packets that were looked at so far.
    pub(super) fn recorded(&self) -> u64 {
        if self.live {
            self.analyzed
        } else {
            self.received.iter().sum()
        }
    }

    fn is_recorded(&mut self, name: &str) -> bool {
        let mut ids = 0..=u16::MAX;
        std::iter::from_fn(|| {
            let interface = self.names.interface(ids.next()?)?;
            Some(interface.name == name)
        })
        .any(|is_it| is_it)
    }

    /// Live: the ring time, ns, of a stamp of the system's clock. After a step back the clock shows
    /// a stamp again: this function prefers the last time up to now to times after now. If a step
    /// left the stamp out, the present setting of the clock counts.
    fn ring_time_of(&self, stamp_ns: i64, now: Moment) -> i64 {
        let times = self.common.clock.ring_times((stamp_ns, stamp_ns));
        let (passed, to_come): (Vec<_>, Vec<_>) = times
            .into_iter()
            .map(|(time_ns, _)| time_ns)
            .partition(|time_ns| *time_ns <= now.ring_ns);
        let time_ns = passed.into_iter().max().or(to_come.into_iter().min());
        time_ns.unwrap_or_else(|| stamp_ns.saturating_sub(now.offset_ns))
    }

    fn tell_alert(
        &self,
        alert: &Alert,
        outcome: AlertOutcome,
        dump: Option<u64>,
        reason: Option<String>,
    ) {
        self.common.alerts.add(outcome);
        self.tell(Event::Alert(AlertNews {
            identity: Arc::clone(&alert.identity),
            outcome,
            dump,
            reason,
        }));
    }

    /// Once: it is likely so for all.
    fn tell_oddity(&mut self, alert: &Alert) {
        if let Some(odd) = oddity(alert).filter(|_| !self.alerts.has_told_oddity) {
            self.alerts.has_told_oddity = true;
            let name = alert.identity.name();
            let text = format!("alert {name}: {odd}; further ones are only counted");
            self.tell(Event::Notice(text));
        }
    }
}
