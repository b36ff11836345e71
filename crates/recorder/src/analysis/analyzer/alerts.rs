//! Alerts of an IDS. An alert waits until its time plus a configured delay has passed, or until the
//! recording ends. This time is packet time from files, ring time live.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use retroscope_alert::Alert;
use retroscope_capture::clock::duration_ns;

use super::Core;
use crate::{
    analysis::{
        alerts::AlertScope,
        director::{ALERT, HitOrder, TriggerHit},
        predicate::DumpExpression,
        terms::{TriggerRequest, TriggerTerms},
    },
    control::{
        alerts::{AlertConfig, AlertNews, AlertOutcome},
        events::RecorderEvent,
        hits::Reason,
        progress::records_before,
        ring_time::Moment,
        time::seconds,
    },
    dump::{dump_alerts::oddity, order::DumperMessage},
};

/// Live, the recorder refuses an alert whose stamp is further ahead of the clock than this, ns:
/// probably one of the two clocks is wrong.
const AHEAD_MAX_NS: i64 = 10_000_000_000;
/// Live, maximum number of alerts that wait. Beyond this number the recorder refuses the alert with
/// the latest time. An alert takes about 1 KiB.
const WAITING_MAX: usize = 65_536;
/// Maximum time before and after an alert without addresses, ns.
const WINDOW_MAX_NS: i64 = 1_000_000_000;

/// Alerts that wait, sorted by time, ns, and then by arrival. The time of an alert is its stamp
/// from files, and the ring time of its stamp live.
#[derive(Debug, Default)]
pub(super) struct Alerts {
    waiting: BTreeMap<(i64, u64), Arc<Alert>>,
    came: u64,
    delay_ns: i64,
}

impl Alerts {
    pub(super) fn new(config: &mut AlertConfig) -> Self {
        let mut alerts = Self {
            delay_ns: duration_ns(config.delay),
            ..Self::default()
        };
        for alert in std::mem::take(&mut config.alerts) {
            alerts.add(alert.time_ns, alert);
        }
        alerts
    }

    fn add(&mut self, time_ns: i64, alert: Arc<Alert>) {
        self.waiting.insert((time_ns, self.came), alert);
        self.came += 1;
    }

    /// When the next alert acts, ns. `None`: no alert waits.
    pub(super) fn next_ns(&self) -> Option<i64> {
        let ((time_ns, _), _) = self.waiting.first_key_value()?;
        Some(time_ns.saturating_add(self.delay_ns))
    }

    /// Takes the next alert if it is due at `now_ns`.
    fn next(&mut self, now_ns: i64) -> Option<(i64, Arc<Alert>)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let ((time_ns, _), alert) = self.waiting.pop_first()?;
        Some((time_ns, alert))
    }
}

impl Core {
    /// Live: adds alerts. Refuses alerts whose time is too far ahead, and alerts if too many wait.
    pub(super) fn add_alerts(&mut self, alerts: Vec<Arc<Alert>>, now: Moment) {
        for alert in alerts {
            let time_ns = self.ring_time_of(alert.time_ns, now);
            let ahead_ns = time_ns.saturating_sub(now.ring_ns);
            if ahead_ns > AHEAD_MAX_NS {
                let by = seconds(ahead_ns);
                let why = format!("its time is {by} after that of the recorder's clock");
                self.report_alert(&alert, AlertOutcome::NotYet, None, Some(why));
            } else {
                self.alerts.add(time_ns, alert);
            }
        }
        // An alert that is due now must not count as waiting.
        self.act_on_alerts(now.ring_ns);
        while self.alerts.waiting.len() > WAITING_MAX
            && let Some((_, alert)) = self.alerts.waiting.pop_last()
        {
            let why = format!("{WAITING_MAX} alerts with an earlier time wait");
            self.report_alert(&alert, AlertOutcome::NotYet, None, Some(why));
        }
    }

    /// The recording ends: acts on the alerts that still wait. Live, refuses alerts whose time is
    /// ahead of the clock.
    pub(super) fn end_alerts(&mut self) {
        let now_ns = match self.live {
            true => self.common.clock.now().ring_ns,
            false => i64::MAX,
        };
        while let Some((time_ns, alert)) = self.alerts.next(i64::MAX) {
            if time_ns <= now_ns {
                self.act_on_alert(time_ns, &alert);
            } else {
                let why = "the recording ended before its time".to_owned();
                self.report_alert(&alert, AlertOutcome::NotYet, None, Some(why));
            }
        }
    }

    /// Acts on the alerts that are due at `now_ns`.
    pub(super) fn act_on_alerts(&mut self, now_ns: i64) {
        while let Some((time_ns, alert)) = self.alerts.next(now_ns) {
            self.act_on_alert(time_ns, &alert);
        }
    }

    fn act_on_alert(&mut self, time_ns: i64, alert: &Arc<Alert>) {
        if self.live {
            let age_ns = self.common.clock.now().ring_ns.saturating_sub(time_ns);
            let age_ns = u64::try_from(age_ns).unwrap_or(0);
            self.common.alerts.ages.record(age_ns, 1);
        }
        let odd = oddity(alert);
        if let Some(odd) = odd {
            let seen = &self.common.alerts.other_community_id;
            // Reported once: if one Community ID differs, probably all do.
            if seen.fetch_add(1, Relaxed) == 0 {
                let name = alert.identity.name();
                let text = format!("alert {name}: {odd}; further ones are only counted");
                self.tell(RecorderEvent::Notice(text));
            }
        }
        let interface = alert.in_iface.as_deref();
        let recorded = interface.filter(|name| self.is_recorded(name));
        let sought = AlertScope::new(alert, recorded.map(Arc::from));
        if let Some(name) = interface.filter(|_| sought.is_window() && recorded.is_none()) {
            let why = format!("it names no IP packet, and no interface {name:?} is recorded");
            self.report_alert(alert, AlertOutcome::NoInterface, None, Some(why));
            return;
        }
        let terms = self.terms_of_alert(alert, time_ns, sought.is_window());
        let expression = match DumpExpression::of_alert(sought) {
            Ok(expression) => expression,
            Err(error) => return self.tell(RecorderEvent::Notice(format!("alert: {error}"))),
        };
        let hit = TriggerHit {
            order: HitOrder::without_packet(time_ns, ALERT),
            terms,
            expression: Ok(expression),
        };
        let acted = self.director.manual(hit, &mut self.orders);
        self.execute();
        let (outcome, dump, why) = match acted {
            Ok((id, false)) => (AlertOutcome::Dump, Some(id), odd.map(str::to_owned)),
            Ok((id, true)) if !self.parts.messages.has_room_for_alert() => {
                let why =
                    "the dump does not look for its frame: too many messages wait for the dumper";
                (AlertOutcome::Joined, Some(id), Some(why.to_owned()))
            }
            Ok((id, true)) => {
                self.send(DumperMessage::Alert {
                    id,
                    alert: Arc::clone(alert),
                    // From files, the dump marks frames only from the current record on: marks must
                    // not depend on how much the dumper has written.
                    unread: match self.live {
                        true => 0,
                        false => self.ends().first().copied().unwrap_or(0),
                    },
                });
                (AlertOutcome::Joined, Some(id), odd.map(str::to_owned))
            }
            Err(why) => {
                let outcome = match why.reason() {
                    Reason::DumpsPerMinute => AlertOutcome::DumpsPerMinute,
                    Reason::BytesPerHour => AlertOutcome::BytesPerHour,
                    _ => AlertOutcome::MaxDumps,
                };
                (outcome, None, Some(why.to_string()))
            }
        };
        self.report_alert(alert, outcome, dump, why);
    }

    /// The terms of an alert's dump. Without addresses, the window is a short time before and after
    /// the alert.
    fn terms_of_alert(&self, alert: &Arc<Alert>, time_ns: i64, is_window: bool) -> TriggerTerms {
        let config = &self.parts.alerts;
        let mut terms = TriggerTerms::new(&TriggerRequest::default(), self.parts.window);
        let window = &mut terms.window;
        let before_ns = if is_window {
            let past_ns = std::mem::take(&mut window.past_ns).min(WINDOW_MAX_NS);
            window.future_ns = window.future_ns.min(WINDOW_MAX_NS);
            window.bytes_max = window.bytes_max.min(config.window_bytes.max(1));
            let from_ns = time_ns.saturating_sub(past_ns);
            let since_ns = self.since_bytes((from_ns, time_ns), config.window_bytes / 2);
            past_ns.min(time_ns.saturating_sub(since_ns))
        } else {
            alert
                .time_ns
                .saturating_sub(alert.start_ns.unwrap_or(alert.time_ns))
        };
        // The stamp of an alert has whole microseconds. The stamp of its packet may be up to 999 ns
        // later.
        terms.span_ns = (before_ns, 999);
        terms.reason = Some(alert.identity.name().into());
        terms.alert = Some(Arc::clone(alert));
        terms
    }

    /// The time, ns, from which the ring has about `bytes` up to `time_ns`, counted in whole
    /// buckets. `i64::MIN`: the ring has no more buckets than that after `from_ns`.
    fn since_bytes(&self, (from_ns, time_ns): (i64, i64), bytes: u64) -> i64 {
        let ring = &self.common.ring;
        let bucket_bytes = (ring.bytes() / ring.buckets().max(1) as u64).max(1);
        let buckets = usize::try_from(bytes / bucket_bytes).unwrap_or(usize::MAX);
        let mut infos = Vec::new();
        ring.buckets_within(from_ns, time_ns, &mut infos);
        if !self.live {
            // From files, the answer must not depend on how far the inserter has read ahead.
            infos.retain(|info| records_before(self.position, info) > 0);
        }
        let mut ends: Vec<i64> = infos.iter().map(|info| info.max_ns.min(time_ns)).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(buckets.max(1)).copied().unwrap_or(i64::MIN)
    }

    fn is_recorded(&mut self, name: &str) -> bool {
        let is_it = |id| Some(self.names.interface(id)?.name == name);
        (0..=u16::MAX).map_while(is_it).any(|is_it| is_it)
    }

    /// Live: the ring time, ns, at which the system's clock shows a stamp, preferably the latest
    /// such time up to now. If a step of the clock skipped the stamp, the present offset of the
    /// clock counts.
    fn ring_time_of(&self, stamp_ns: i64, now: Moment) -> i64 {
        let times = self.common.clock.ring_times((stamp_ns, stamp_ns));
        let (passed, to_come): (Vec<_>, Vec<_>) = times
            .into_iter()
            .map(|(time_ns, _)| time_ns)
            .partition(|time_ns| *time_ns <= now.ring_ns);
        let time_ns = passed.into_iter().max().or(to_come.into_iter().min());
        time_ns.unwrap_or_else(|| stamp_ns.saturating_sub(now.offset_ns))
    }

    fn report_alert(
        &self,
        alert: &Alert,
        outcome: AlertOutcome,
        dump: Option<u64>,
        reason: Option<String>,
    ) {
        self.common.alerts.add(outcome);
        self.tell(RecorderEvent::Alert(AlertNews {
            identity: Arc::clone(&alert.identity),
            outcome,
            dump,
            reason,
        }));
    }
}
