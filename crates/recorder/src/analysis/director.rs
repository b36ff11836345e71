//! Decides what a hit becomes: a dump, a suppressed hit, or a refusal. The caller gives all times.
//!
//! Unless a comment names another clock, times are ring time (`control/ring_time.rs`). Live the
//! director's clock follows the smallest watermark of the queues that promise watermarks. Offline
//! it is the highest time seen. Offline, without commands, decisions must not depend on threads.
//!
//! - Offline a hit usually waits for the hold time, so that hits act in order of their times. Live
//!   a hit acts at once.
//! - A dump is *open* from its trigger until its window closes. If a hit is inside the window of an
//!   open dump with the same rule, expression and window lengths, the hit usually joins this dump.
//!   For an alert, the alert's whole flow up to its packet must be inside the window.
//! - If configured, the same rule and expression usually start no further dump for a hold-off time
//!   after the window's end. This does not apply to alerts and manual triggers.
//! - Rules share the limits (`budget`): dumps open at once, dumps in a minute, bytes in an hour.
//!   The time of limits is packet time offline, the monotonic clock live. For manual triggers only
//!   the number of open manual dumps is limited.

mod limits;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::Hash,
};

use retroscope_flow::BiflowKey;

use crate::{
    analysis::{
        budget::{Budget, HoldOff, RuleShares},
        open_dumps::{DirectorDump, DirectorDumps},
        terms::TriggerTerms,
    },
    control::{
        hits::{HitCounts, HitRefusal, Reason, Suppressed, Suppressions},
        outcomes::RuleCounters,
    },
};

/// The rule number of IDS alerts. All configured rules have smaller numbers.
pub(crate) const ALERT: usize = usize::MAX - 1;
/// The rule number of triggers by hand.
pub(crate) const MANUAL: usize = usize::MAX;
/// Maximum number of alerts that join an open dump. The next alert needs another dump.
pub(crate) const ALERTS_OF_DUMP: u64 = 65_536;

#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectorConfig {
    /// Offline: how late a packet may be, ns. Live: 0.
    pub(crate) hold_ns: i64,
    /// Number of rules at the start, with scripts and modules. They are numbered from 0.
    pub(crate) rules: usize,
    pub(crate) limits: SharedLimits,
    /// Whether the first dump of any rule disarms all rules.
    pub(crate) single: bool,
    /// Maximum number of dumps of alerts open at once.
    pub(crate) alert_dumps: usize,
    /// Whether alerts may arrive, and so have shares of limits.
    pub(crate) are_alerts_expected: bool,
    /// Live: allowance, ns, that the monotonic clock adds to the future length of a window before
    /// it closes the window. `None`: offline.
    pub(crate) grace_ns: Option<i64>,
}

/// The limits that all rules share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedLimits {
    /// Time after the end of a window, ns, in which normally no dump of the same rule and
    /// expression starts. A rule may have its own value.
    pub(crate) hold_off_ns: i64,
    /// Maximum number of dumps of rules open at once. As many manual dumps may be open in addition.
    pub(crate) max_dumps: usize,
    /// Maximum number of dumps that rules start in any minute; 0: no limit.
    pub(crate) dumps_per_minute: u64,
    /// Whether `dumps_per_minute` includes dumps of alerts.
    pub(crate) alerts_per_minute: bool,
    /// Bytes within an hour, in shares (`budget`), after which a rule starts no further dump; 0: no
    /// limit.
    pub(crate) bytes_per_hour: u64,
}

/// The position of a hit among all hits. When reading files, waiting hits act in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HitOrder {
    pub(crate) time_ns: i64,
    pub(crate) source: usize,
    pub(crate) producer: usize,
    pub(crate) record: u64,
    pub(crate) rule: usize,
}

/// Record number of a hit without a packet; larger numbers distinguish such hits of one time.
const NO_PACKET: u64 = 1 << 63;

impl HitOrder {
    /// The position of a trigger by hand, of an alert, or of a command that triggers a rule.
    pub(crate) fn without_packet(time_ns: i64, rule: usize) -> Self {
        Self {
            time_ns,
            source: 0,
            producer: 0,
            record: NO_PACKET,
            rule,
        }
    }

    pub(crate) fn has_packet(&self) -> bool {
        self.record < NO_PACKET
    }
}

/// A hit of a packet, a command, a signal or an alert.
#[derive(Debug, Clone)]
pub(crate) struct TriggerHit<K> {
    pub(crate) order: HitOrder,
    pub(crate) terms: TriggerTerms,
    /// The dump expression of the hit, or why there is none for its packet.
    pub(crate) expression: Result<K, HitRefusal>,
}

/// An order to the analyzer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order<K> {
    Open {
        id: u64,
        hit: HitOrder,
        terms: TriggerTerms,
        expression: K,
        from_ns: i64,
        to_ns: i64,
    },
    Close {
        id: u64,
        clipped: Option<Clip>,
        suppressed: Suppressed,
    },
    /// For the user: a hit was refused.
    Refused { hit: HitOrder, why: HitRefusal },
}

/// The result of a hit: the number of its dump and whether the dump was open before, or why no dump
/// has the hit.
pub(crate) type Acted = Result<(u64, bool), HitRefusal>;

/// The reason why a window ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clip {
    /// The recording was stopped, for example by a signal.
    Stop,
    /// All input ended.
    End,
    /// A module reported the ends of the dump's flows, and wanted packets until this time, ns.
    Flow(i64),
}

/// Maximum number of hits, and of ended flows, that wait at once. If there are more, the earliest
/// acts before its time.
const WAITING_MAX: usize = 65_536;

const MINUTE_NS: i64 = 60_000_000_000;
const HOUR_NS: i64 = 60 * MINUTE_NS;

/// Turns hits into orders.
#[derive(Debug)]
pub(crate) struct Director<K> {
    config: DirectorConfig,
    pub(crate) clock_ns: i64,
    pub(crate) mono_ns: i64,
    /// Hits that act later, and what they would dump.
    waiting: BTreeMap<HitOrder, (TriggerTerms, Result<K, HitRefusal>)>,
    /// Start of the window of each waiting hit, ns.
    wanted_from: BTreeSet<(i64, HitOrder)>,
    open: DirectorDumps<K>,
    /// Nothing is due until the clock has passed this time, ns.
    due_ns: i64,
    next_id: u64,
    pub(crate) armed: bool,
    pub(crate) counts: HitCounts,
    pub(crate) by_rule: RuleCounters,
    /// Open dumps, without those of alerts and manual triggers: live until the file is finished,
    /// offline until the window closes.
    places: RuleShares,
    /// Open dumps of manual triggers, counted as `places` counts dumps.
    by_hand: usize,
    /// Open dumps of alerts, counted as `places` counts dumps.
    by_alert: usize,
    dumps: Budget,
    bytes: Budget,
    held_off: HoldOff<K>,
    /// The latest time that the limits have seen.
    limits_ns: i64,
    /// For each existing rule: the hits that neither started nor joined a dump, counted since the
    /// rule started its last dump.
    since: HashMap<usize, Suppressions>,
    /// Rules whose past is being scanned. Dumps that these rules start are frozen
    /// ([`DirectorDumps::freeze`]).
    pub(crate) scanned: HashSet<usize>,
    /// Removed rules with dumps that `places` still counts.
    gone: HashSet<usize>,
    /// Single rules that have started their dump, and were not enabled again.
    fired: HashSet<usize>,
    /// Rules in `fired` that the analyzer has to disable.
    pub(crate) just_fired: Vec<usize>,
    /// Ended flows that wait for their time. Key: the time of the module's check, ns, and a
    /// sequence number. Value: the module's rule number, the flow, and the last time for which
    /// packets are wanted, ns.
    over: BTreeMap<(i64, u64), ((usize, BiflowKey), i64)>,
    /// Ended flows in all; numbers the entries of `over`.
    overs: u64,
    /// For each module, by rule number: the maximum number of open dumps.
    pub(crate) dumps_max: HashMap<usize, u64>,
    /// Whether any rule has its own limit of bytes per hour.
    pub(crate) limits_bytes_of_rules: bool,
    /// For each producer, whether it promises watermarks. A producer without an entry counts as
    /// `true`.
    pub(crate) promises: Vec<bool>,
}

impl<K: Eq + Hash + Clone> Director<K> {
    pub(crate) fn new(config: DirectorConfig) -> Self {
        let mut director = Self {
            config,
            clock_ns: i64::MIN,
            mono_ns: 0,
            waiting: BTreeMap::new(),
            wanted_from: BTreeSet::new(),
            open: DirectorDumps::new(),
            due_ns: i64::MAX,
            next_id: 1,
            armed: true,
            counts: HitCounts::default(),
            by_rule: RuleCounters::default(),
            places: RuleShares::new(config.limits.max_dumps as u64, config.rules),
            by_hand: 0,
            by_alert: 0,
            dumps: Budget::new(config.limits.dumps_per_minute, MINUTE_NS, config.rules),
            bytes: Budget::new(config.limits.bytes_per_hour, HOUR_NS, config.rules),
            held_off: HoldOff::new(),
            limits_ns: i64::MIN,
            since: HashMap::new(),
            scanned: HashSet::new(),
            gone: HashSet::new(),
            fired: HashSet::new(),
            just_fired: Vec::new(),
            over: BTreeMap::new(),
            overs: 0,
            dumps_max: HashMap::new(),
            limits_bytes_of_rules: false,
            promises: Vec::new(),
        };
        let numbers = 0..config.rules;
        director.since = numbers
            .map(|rule| (rule, Suppressions::default()))
            .collect();
        director.share_with_alerts();
        director
    }

    /// Number of dumps whose window is open.
    pub(crate) fn open_dumps(&self) -> usize {
        self.open.len()
    }

    /// Whether a limit of packets or bytes may end an open dump.
    pub(crate) fn has_limited(&self) -> bool {
        self.open.has_limited()
    }

    /// Recomputes what is due next, after a change of hits or dumps.
    fn plan(&mut self) {
        let close_ns = self.open.next_close_ns().unwrap_or(i64::MAX);
        self.due_ns = self.next_act_ns().min(self.next_over_ns()).min(close_ns);
    }

    /// When the next waiting hit acts, ns. `i64::MAX`: no hit waits.
    fn next_act_ns(&self) -> i64 {
        let first = self.waiting.first_key_value();
        first.map_or(i64::MAX, |(hit, _)| {
            hit.time_ns.saturating_add(self.config.hold_ns)
        })
    }

    /// The earliest packet time that waiting hits need; `None`: no hit waits.
    pub(crate) fn waiting_from_ns(&self) -> Option<i64> {
        self.wanted_from.first().map(|(from_ns, _)| *from_ns)
    }

    /// Processes a hit of a rule. `None`: the hit waits, usually until the clock has passed the hit
    /// by the hold time.
    pub(crate) fn hit(&mut self, hit: TriggerHit<K>, orders: &mut Vec<Order<K>>) -> Option<Acted> {
        if !self.armed {
            self.suppress(hit.order.rule, Reason::Single, 1);
            let open = self.dump_of(&hit).map(|dump| (dump.id, true));
            return Some(open.ok_or(HitRefusal::Disarmed));
        }
        if self.config.hold_ns == 0 {
            return Some(self.act(hit, orders));
        }
        // A hit inside an open window need not wait: the window normally closes after the hit would
        // act.
        let open = self.belongs_to_open(&hit);
        if open.is_none() {
            let mut order = hit.order;
            // No two hits of packets have the same order, but commands may.
            if !order.has_packet() {
                let end = HitOrder {
                    record: u64::MAX,
                    ..order
                };
                let last = self.waiting.range(order..end).next_back();
                order.record = last.map_or(NO_PACKET, |(last, _)| last.record + 1);
            }
            let from_ns = hit.terms.window.start_ns(order.time_ns);
            self.wanted_from.insert((from_ns, order));
            self.waiting.insert(order, (hit.terms, hit.expression));
            if self.waiting.len() > WAITING_MAX {
                self.act_next(orders);
            }
            self.plan();
        }
        open.map(|id| Ok((id, true)))
    }

    /// A trigger by hand, or an alert: it acts at once, armed or not.
    pub(crate) fn manual(&mut self, hit: TriggerHit<K>, orders: &mut Vec<Order<K>>) -> Acted {
        let armed = std::mem::replace(&mut self.armed, true);
        let single = std::mem::replace(&mut self.config.single, false);
        let acted = self.act(hit, orders);
        self.armed = armed;
        self.config.single = single;
        acted
    }

    /// Adds (`true`) or removes rules by number. Dumps of removed rules go on. Numbers are not
    /// reused.
    pub(crate) fn set_rules(&mut self, rules: &[(usize, bool)]) {
        for (rule, is_there) in rules {
            match is_there {
                true => _ = self.since.insert(*rule, Suppressions::default()),
                false => _ = self.since.remove(rule),
            }
        }
        let rules = || rules.iter().copied();
        self.places.set_rules(rules());
        self.dumps.set_rules(rules());
        self.bytes.set_rules(rules());
    }

    /// A client or a reload enabled this rule: a single rule may start a dump again.
    pub(crate) fn rearm(&mut self, rule: usize) {
        self.fired.remove(&rule);
    }

    /// The scan of a rule's past has passed all packets before `until_ns`: windows of the rule that
    /// end before may close.
    pub(crate) fn scan_passed(&mut self, rule: usize, until_ns: i64) {
        self.open.thaw(rule, until_ns);
        self.plan();
    }

    pub(crate) fn scan_ended(&mut self, rule: usize) {
        self.scanned.remove(&rule);
        self.scan_passed(rule, i64::MAX);
    }

    /// Live: the file of a dump of this rule is finished.
    pub(crate) fn finished(&mut self, rule: usize) {
        if self.is_live() {
            self.release(rule);
        }
    }

    /// A dump has reached its limit: its window ends, if the window is still open.
    pub(crate) fn is_full(&mut self, id: u64, orders: &mut Vec<Order<K>>) {
        let Some(dump) = self.open.take(id) else {
            return;
        };
        let hold_off_ns = dump.hold_off_ns;
        let hold_off_ns = hold_off_ns.unwrap_or(self.config.limits.hold_off_ns);
        if hold_off_ns > 0 && dump.rule < ALERT {
            let until_ns = self.limits_ns(self.clock_ns).saturating_add(hold_off_ns);
            let key = dump.expression.clone();
            self.held_off.hold(dump.rule, key, until_ns);
        }
        self.close(vec![dump], None, orders);
    }

    /// Whether the director needs to know the bytes that dumps write.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.config.limits.bytes_per_hour > 0 || self.limits_bytes_of_rules
    }

    /// A module found at `now_ns` that a flow of its rule has ended. A dump all of whose flows have
    /// ended ends at `until_ns`, unless its window ends earlier. Offline the end usually waits for
    /// the hold time.
    pub(crate) fn on_flow_ended(&mut self, flow: (usize, BiflowKey), now_ns: i64, until_ns: i64) {
        let number = self.overs;
        self.overs += 1;
        self.over.insert((now_ns, number), (flow, until_ns));
        if self.config.hold_ns == 0 || self.over.len() > WAITING_MAX {
            self.end_flow();
        }
        self.plan();
    }

    /// When the director acts on the next ended flow, ns. `i64::MAX`: no ended flow waits.
    fn next_over_ns(&self) -> i64 {
        let first = self.over.first_key_value();
        first.map_or(i64::MAX, |((now_ns, _), _)| {
            now_ns.saturating_add(self.config.hold_ns)
        })
    }

    /// Acts on the first ended flow: ends the dumps all of whose flows have ended.
    fn end_flow(&mut self) {
        let Some(((now_ns, _), (flow, until_ns))) = self.over.pop_first() else {
            return;
        };
        let close_ns = until_ns.saturating_add(self.config.hold_ns);
        let left_ns = until_ns.saturating_sub(now_ns);
        let grace_ns = self.config.grace_ns.unwrap_or(0);
        let deadline_ns = self.mono_ns.saturating_add(left_ns);
        let deadline_ns = deadline_ns.saturating_add(grace_ns);
        for id in self.open.leave(flow, now_ns) {
            self.open.shorten(id, until_ns, close_ns, deadline_ns);
        }
    }

    /// Dumps of this rule wrote `bytes` more bytes, which count against the limits per hour.
    pub(crate) fn wrote(&mut self, rule: usize, bytes: u64) {
        let now_ns = self.limits_ns(self.clock_ns);
        self.bytes.advance(now_ns);
        self.bytes.spend(rule, bytes);
    }

    /// Moves the clock forward to `clock_ns` and performs what is due, in order of time.
    pub(crate) fn advance(&mut self, clock_ns: i64, orders: &mut Vec<Order<K>>) {
        self.clock_ns = self.clock_ns.max(clock_ns);
        while self.clock_ns > self.due_ns {
            // At equal times hits act before windows close: a hit at the very end of a window still
            // belongs to the window.
            let (act_ns, over_ns) = (self.next_act_ns(), self.next_over_ns());
            match self.open.next_close_ns() {
                Some(close_ns) if close_ns < act_ns.min(over_ns) => {
                    let closed = self.open.take_closed(close_ns);
                    self.close(closed, None, orders);
                }
                _ if over_ns < act_ns => {
                    self.end_flow();
                    self.plan();
                }
                _ => self.act_next(orders),
            }
        }
    }

    /// Live: moves the monotonic clock and closes overdue windows.
    pub(crate) fn advance_mono(&mut self, mono_ns: i64, orders: &mut Vec<Order<K>>) {
        self.mono_ns = mono_ns;
        if self.config.grace_ns.is_some() {
            let overdue = self.open.take_overdue(mono_ns);
            self.close(overdue, None, orders);
        }
    }

    /// All waiting hits act now, whatever the clock.
    pub(crate) fn act_all(&mut self, orders: &mut Vec<Order<K>>) {
        while !self.waiting.is_empty() {
            self.act_next(orders);
        }
    }

    /// The end of the recording: waiting hits act and open windows close.
    pub(crate) fn end(&mut self, clip: Clip, orders: &mut Vec<Order<K>>) {
        self.act_all(orders);
        while !self.over.is_empty() {
            self.end_flow();
        }
        let over = self.clock_ns.saturating_add(self.config.hold_ns);
        let over = self.open.take_closed(over);
        self.close(over, None, orders);
        let rest = self.open.take_all();
        self.close(rest, Some(clip), orders);
    }

    fn act_next(&mut self, orders: &mut Vec<Order<K>>) {
        if let Some((order, (terms, expression))) = self.waiting.pop_first() {
            let from_ns = terms.window.start_ns(order.time_ns);
            self.wanted_from.remove(&(from_ns, order));
            let hit = TriggerHit {
                order,
                terms,
                expression,
            };
            // An order reports a refusal, except by hold-off or because a single rule has fired.
            let _ = self.act(hit, orders);
        }
        self.plan();
    }

    fn act(&mut self, hit: TriggerHit<K>, orders: &mut Vec<Order<K>>) -> Acted {
        self.by_rule.note_hit(hit.order.rule, hit.order.time_ns);
        if let Some(id) = self.belongs_to_open(&hit) {
            return Ok((id, true));
        }
        let (order, rule) = (hit.order, hit.order.rule);
        let why = match hit.expression {
            Err(why) => why,
            Ok(expression) => match self.reason_against(order, hit.terms.limits, &expression) {
                None => {
                    let id = self.start(order, hit.terms, expression, orders);
                    return Ok((id, false));
                }
                Some(Reason::HoldOff) => HitRefusal::HeldOff,
                Some(Reason::Single) => HitRefusal::Fired,
                Some(reason) => HitRefusal::Limit(reason),
            },
        };
        self.suppress(rule, why.reason(), 1);
        if !matches!(why, HitRefusal::HeldOff | HitRefusal::Fired) {
            orders.push(Order::Refused {
                hit: order,
                why: why.clone(),
            });
        }
        Err(why)
    }

    /// The open dump with the rule, expression and window settings of a hit, if the hit is inside
    /// the window.
    fn dump_of(&mut self, hit: &TriggerHit<K>) -> Option<&mut DirectorDump<K>> {
        let key = (hit.order.rule, hit.expression.as_ref().ok()?);
        let span_ns = hit.terms.span_at(hit.order.time_ns);
        self.open.same(key, hit.terms.window, span_ns)
    }

    /// If a hit belongs to an open dump: counts the hit there, and returns the dump's number.
    fn belongs_to_open(&mut self, hit: &TriggerHit<K>) -> Option<u64> {
        let HitOrder { rule, time_ns, .. } = hit.order;
        let dump = self.dump_of(hit)?;
        dump.suppressed.add(time_ns);
        let id = dump.id;
        self.open.join(id, hit.terms.flow, time_ns);
        self.counts.suppressed.add(Reason::Open, 1);
        self.by_rule.add(rule, Some(Reason::Open), 1);
        Some(id)
    }

    fn is_live(&self) -> bool {
        self.config.grace_ns.is_some()
    }

    /// Counts hits that start no dump, by reason.
    pub(crate) fn suppress(&mut self, rule: usize, reason: Reason, hits: u64) {
        self.counts.suppressed.add(reason, hits);
        self.by_rule.add(rule, Some(reason), hits);
        if let Some(since) = self.since.get_mut(&rule) {
            since.add(reason, hits);
        }
    }

    /// Returns the number of the dump.
    fn start(
        &mut self,
        hit: HitOrder,
        terms: TriggerTerms,
        expression: K,
        orders: &mut Vec<Order<K>>,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.counts.triggers += 1;
        self.by_rule.add(hit.rule, None, 1);
        self.take_place(hit, &terms, &expression);
        if terms.limits.is_single && self.fired.insert(hit.rule) {
            self.just_fired.push(hit.rule);
        }
        let since = self.since.get_mut(&hit.rule);
        let before = since.map(std::mem::take).unwrap_or_default();
        if self.config.single {
            self.armed = false;
            self.wanted_from.clear();
            for hit in std::mem::take(&mut self.waiting).into_keys() {
                self.suppress(hit.rule, Reason::Single, 1);
            }
        }
        let window = terms.window;
        let (first_ns, last_ns) = terms.span_at(hit.time_ns);
        let (from_ns, to_ns) = (window.start_ns(first_ns), window.end_ns(last_ns));
        let grace_ns = self.config.grace_ns.unwrap_or(0);
        // If a source promises no watermarks, the clock may show any time for its packets, and must
        // not close the window.
        let promises = self.promises.get(hit.producer).copied();
        let is_promised = promises.unwrap_or(true) || !hit.has_packet();
        self.open.add(DirectorDump {
            id,
            rule: hit.rule,
            expression: expression.clone(),
            window,
            from_ns,
            to_ns,
            close_ns: if is_promised {
                to_ns.saturating_add(self.config.hold_ns)
            } else {
                i64::MAX
            },
            deadline_ns: window.end_ns(self.mono_ns).saturating_add(grace_ns),
            clip: None,
            flows: terms.flow.map(|flow| HashMap::from([(flow, hit.time_ns)])),
            hold_off_ns: terms.limits.hold_off_ns,
            suppressed: Suppressed {
                before,
                ..Suppressed::default()
            },
        });
        if self.scanned.contains(&hit.rule) {
            self.open.freeze(id);
        }
        orders.push(Order::Open {
            id,
            hit,
            terms,
            expression,
            from_ns,
            to_ns,
        });
        self.plan();
        id
    }

    fn close(
        &mut self,
        closed: Vec<DirectorDump<K>>,
        clipped: Option<Clip>,
        orders: &mut Vec<Order<K>>,
    ) {
        if closed.is_empty() {
            return;
        }
        for mut dump in closed {
            if !self.is_live() {
                self.release(dump.rule);
            }
            dump.suppressed.times_ns.sort_unstable();
            orders.push(Order::Close {
                id: dump.id,
                clipped: clipped.or(dump.clip),
                suppressed: dump.suppressed,
            });
        }
        self.plan();
    }
}

#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod window_tests;

#[cfg(test)]
mod tests;
