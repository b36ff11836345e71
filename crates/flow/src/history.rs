//! Chooses how much of each flow is kept, so that the packets in the ring reach back for a certain
//! time, the goal.
//!
//! The bytes that were stored within the goal must fit into the ring. The controller predicts these
//! bytes: the stored bytes, less the bytes that become older than the goal, plus new bytes at the
//! current rate. If the prediction reaches 96 % of the ring, flows keep less, down to a minimum. If
//! the prediction with twice the rate is below 80 %, flows keep more. The controller decides ahead
//! of the need, because stored bytes cannot be removed.

use std::collections::VecDeque;

/// The smallest limit, bytes for each direction of a flow: the head of the flow.
pub const HEAD_BYTES: u64 = 4 << 10;
/// The first and largest limit, bytes for each direction of a flow. The next increase removes the
/// limit.
const LIMIT_MAX: u64 = 16 << 20;
/// Number of periods in a goal, if the length of a period is within the two bounds below.
const PERIODS: i64 = 200;
const PERIOD_NS_MIN: i64 = 20_000_000;
const PERIOD_NS_MAX: i64 = 1_000_000_000;
/// The controller looks ahead for the goal divided by this number, at least [`RECENT`] periods
/// unless the goal is shorter.
const AHEAD: usize = 10;
/// Maximum number of the newest periods whose mean is the expected rate. Only periods since the
/// last change of the limit count.
const RECENT: usize = 4;
/// Minimum number of periods between two changes of the limit, because the rate follows a change
/// with a delay.
const SETTLED: usize = 2;

/// A change of the limit, or the report that the smallest limit does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryStep {
    /// The new limit, bytes for each direction of a flow.
    Limit(u64),
    /// Flows are kept whole again.
    All,
    /// The smallest limit, [`HEAD_BYTES`], does not suffice.
    Short,
}

/// Chooses the limit: see the module documentation.
#[derive(Debug)]
pub struct HistoryGoal {
    capacity: u64,
    period_ns: i64,
    /// Bytes that were stored in each period of the goal, the latest period last.
    stored: VecDeque<u64>,
    young: u64,
    /// End of the last counted period, ns, and the estimated total of stored bytes at this time.
    counted: Option<(i64, u64)>,
    limit: Option<u64>,
    since_change: usize,
    was_raised: bool,
    /// Minimum number of periods between a change and an increase of the limit, if more than the
    /// look-ahead. Doubled if an increase did not last.
    patience: usize,
    is_short: bool,
}

impl HistoryGoal {
    /// A controller for a ring of `capacity` bytes, and a goal of at least 1 ns.
    #[must_use]
    pub fn new(goal_ns: i64, capacity: u64) -> Self {
        let period_ns = (goal_ns / PERIODS).clamp(PERIOD_NS_MIN, PERIOD_NS_MAX);
        let periods = usize::try_from(goal_ns / period_ns + 1).unwrap_or(1);
        Self {
            capacity,
            period_ns,
            stored: VecDeque::from(vec![0; periods.max(2)]),
            young: 0,
            counted: None,
            limit: None,
            since_change: usize::MAX,
            was_raised: false,
            patience: 0,
            is_short: false,
        }
    }

    /// Interval at which the caller should call [`Self::period`], ns.
    #[must_use]
    pub fn period_ns(&self) -> i64 {
        self.period_ns
    }

    /// The limit, bytes for each direction of a flow. `None`: flows are kept whole.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Reports that `stored` bytes were stored in total until `now_ns` of a monotonic clock.
    ///
    /// Call this once a [period](Self::period_ns) or less often. The bytes since the last call are
    /// spread evenly over the time since.
    pub fn period(&mut self, now_ns: i64, stored: u64) -> Option<HistoryStep> {
        let (from_ns, before) = *self.counted.get_or_insert((now_ns, stored));
        let elapsed_ns = u128::try_from(now_ns.saturating_sub(from_ns)).ok()?;
        let period_ns = u128::from(self.period_ns.unsigned_abs());
        let periods = usize::try_from(elapsed_ns / period_ns)
            .ok()
            .filter(|periods| *periods > 0)?;
        let bytes = u128::from(stored.saturating_sub(before));
        // At most `bytes`, which is a `u64`, because at least one period has elapsed.
        let each = u64::try_from(bytes * period_ns / elapsed_ns).unwrap_or(u64::MAX);
        let left_ns = i64::try_from(elapsed_ns % period_ns).unwrap_or(0);
        self.counted = Some((now_ns - left_ns, before + each * periods as u64));
        for _ in 0..periods.min(self.stored.len()) {
            self.stored.push_back(each);
            self.young += each;
            self.young -= self.stored.pop_front().unwrap_or(0);
        }
        self.since_change = self.since_change.saturating_add(periods);
        self.decide()
    }

    fn decide(&mut self) -> Option<HistoryStep> {
        if self.since_change < SETTLED {
            return None;
        }
        let ahead = (self.stored.len() / AHEAD)
            .max(RECENT)
            .min(self.stored.len());
        let older: u64 = self.stored.iter().take(ahead).sum();
        let recent = self.since_change.clamp(1, RECENT);
        let comes: u64 = self.stored.iter().rev().take(recent).sum();
        let comes = comes * ahead as u64 / recent as u64;
        let stays = self.young - older;
        let percent = |bytes: u64| u128::from(bytes) * 100 / u128::from(self.capacity.max(1));
        let needed = percent(stays + comes);
        if needed > 95 {
            return self.lower(needed, ahead);
        }
        self.is_short = false;
        if self.since_change >= self.patience.max(ahead) && percent(stays + 2 * comes) < 80 {
            return self.raise(ahead);
        }
        None
    }

    /// `needed`: the prediction in percent of the ring.
    fn lower(&mut self, needed: u128, ahead: usize) -> Option<HistoryStep> {
        let limit = match self.limit {
            None => LIMIT_MAX,
            Some(HEAD_BYTES) => {
                let is_news = !std::mem::replace(&mut self.is_short, true);
                return is_news.then_some(HistoryStep::Short);
            }
            Some(limit) => {
                let shift = match needed {
                    ..110 => 1,
                    110..130 => 2,
                    130.. => 4,
                };
                (limit >> shift).max(HEAD_BYTES)
            }
        };
        let did_not_last = self.was_raised && self.since_change < self.patience.max(ahead);
        let patience = if did_not_last { self.patience * 2 } else { 0 };
        self.patience = patience.clamp(ahead, 64 * ahead);
        self.was_raised = false;
        self.since_change = 0;
        self.limit = Some(limit);
        Some(HistoryStep::Limit(limit))
    }

    fn raise(&mut self, ahead: usize) -> Option<HistoryStep> {
        let limit = self.limit?;
        if self.was_raised {
            // The limit was not lowered since the last increase.
            self.patience = ahead;
        }
        self.was_raised = true;
        self.since_change = 0;
        self.limit = (limit < LIMIT_MAX).then_some(limit * 2);
        Some(self.limit.map_or(HistoryStep::All, HistoryStep::Limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    /// Bytes of a packet in this test. It represents many packets.
    const PACKET: u64 = 15_000;

    /// An active flow: bytes left to send, and bytes sent.
    #[derive(Debug, Clone, Copy)]
    struct Flow {
        left: u64,
        sent: u64,
    }

    /// Simulates a recording with four times the load in the middle third. Returns the number of
    /// seconds in which the ring reached back for less than the goal, the number of evaluated
    /// seconds, and the steps.
    fn run(seed: u64, goal_s: i64, load: f64) -> (usize, usize, Vec<HistoryStep>) {
        let mut random = fastrand::Rng::with_seed(seed);
        let capacity = 300_000_000;
        let mut goal = HistoryGoal::new(goal_s * S, capacity);
        // Packets in a normal second, such that `load` of the ring is stored within the goal.
        let usual = load * capacity as f64 / (PACKET as f64 * goal_s as f64);
        let (mut ring, mut held) = (VecDeque::new(), 0);
        let (mut gone_ns, mut total, mut due) = (0, 0, 0.0);
        let mut flows = Vec::<Flow>::new();
        let (mut short, mut seconds, mut steps) = (0, 0, Vec::new());
        let duration_s = 12 * goal_s;
        let tick = goal.period_ns();
        for now_ns in (0..duration_s * S).step_by(usize::try_from(tick).unwrap()) {
            let is_loaded = (duration_s / 3..duration_s * 2 / 3).contains(&(now_ns / S));
            due += usual * if is_loaded { 4.0 } else { 1.0 } * tick as f64 / S as f64;
            while due >= 1.0 {
                due -= 1.0;
                if flows.len() < 100 {
                    // Pareto with an exponent of 1.1, from 20 KB to 10 GB.
                    let left = 20_000.0 * (1.0 - random.f64()).powf(-1.0 / 1.1);
                    #[expect(clippy::cast_possible_truncation, reason = "at most 10^10")]
                    let left = left.min(1e10) as u64;
                    flows.push(Flow { left, sent: 0 });
                }
                let at = random.usize(..flows.len());
                let flow = &mut flows[at];
                let bytes = PACKET.min(flow.left);
                if goal.limit().is_none_or(|limit| flow.sent < limit) {
                    ring.push_back((now_ns, bytes));
                    (held, total) = (held + bytes, total + bytes);
                }
                due += 1.0 - bytes as f64 / PACKET as f64;
                (flow.left, flow.sent) = (flow.left - bytes, flow.sent + bytes);
                if flow.left == 0 {
                    flows.swap_remove(at);
                }
            }
            while held > capacity {
                let (time_ns, bytes) = ring.pop_front().unwrap();
                (gone_ns, held) = (time_ns, held - bytes);
            }
            steps.extend(goal.period(now_ns, total));
            if now_ns / S > goal_s && now_ns % S < tick {
                seconds += 1;
                short += usize::from(now_ns - gone_ns < goal_s * S);
            }
        }
        (short, seconds, steps)
    }

    #[test]
    fn a_load_times_four_is_followed_and_back() {
        for (seed, goal_s, load) in [(1, 10, 0.6), (2, 30, 0.6), (3, 90, 0.4), (4, 90, 0.8)] {
            let (short, seconds, steps) = run(seed, goal_s, load);
            println!("{goal_s} s: {short} of {seconds} s short, {steps:?}");
            assert!(short * 100 <= seconds, "{seed}: {short} of {seconds}");
            assert!(matches!(steps[0], HistoryStep::Limit(_)), "{steps:?}");
            assert_eq!(steps.last(), Some(&HistoryStep::All), "{seed}");
            assert!(steps.len() < 60, "{seed}: {steps:?}");
        }
    }

    #[test]
    fn a_load_that_fits_is_left_alone() {
        let (short, _, steps) = run(5, 30, 0.2);
        assert_eq!((short, steps), (0, vec![]));
    }

    /// A busy thread calls [`HistoryGoal::period`] late, by up to 2.5 periods.
    #[test]
    fn a_load_that_fits_is_left_alone_whenever_it_is_told() {
        for (least, most) in [(1.0, 1.0), (1.9, 1.9), (1.7, 1.99), (1.0, 3.5), (2.9, 2.9)] {
            let mut random = fastrand::Rng::with_seed(6);
            let mut goal = HistoryGoal::new(10 * S, 300_000_000);
            // 60 % of the ring within the goal.
            let stored = |now_ns: i64| now_ns.unsigned_abs() * 18 / 1000;
            let mut steps = Vec::new();
            let mut now_ns = 0;
            while now_ns < 100 * S {
                steps.extend(goal.period(now_ns, stored(now_ns)));
                let periods = least + random.f64() * (most - least);
                #[expect(clippy::cast_possible_truncation, reason = "a few periods")]
                let pause_ns = (periods * goal.period_ns() as f64) as i64;
                now_ns += pause_ns;
            }
            assert_eq!((steps, goal.limit()), (vec![], None), "{least} to {most}");
        }
    }

    #[test]
    fn heads_are_kept_whatever_comes() {
        let mut goal = HistoryGoal::new(10 * S, 1 << 20);
        let mut total = 0;
        let mut steps = Vec::new();
        for period in 0..1000 {
            total += 1 << 20;
            steps.extend(goal.period(period * goal.period_ns(), total));
        }
        assert_eq!(goal.limit(), Some(HEAD_BYTES));
        assert_eq!(steps.last(), Some(&HistoryStep::Short), "{steps:?}");
        let short = steps.iter().filter(|step| **step == HistoryStep::Short);
        assert_eq!(short.count(), 1, "it is told once");
    }
}
