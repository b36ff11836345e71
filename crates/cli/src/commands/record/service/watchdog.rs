//! Decides whether to feed the service manager's watchdog (sd_watchdog_enabled(3)): only while
//! every listed thread makes progress. A live recorder lists the running threads of the data path.
//! A recorder that reads files lists no thread.

use std::{
    collections::BTreeMap,
    env, process,
    time::{Duration, Instant},
};

/// Minimum time without progress after which a thread counts as hanging, also if the watchdog
/// period is shorter. The reason is that an idle dumper makes only one turn a second.
const TURN_MIN: Duration = Duration::from_secs(2);

/// The decision about the watchdog. Callers pass the time.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Half of the manager's watchdog time.
    period: Duration,
    told: Option<Instant>,
    /// Number of turns of each thread, and the time since which this number is unchanged.
    threads: BTreeMap<String, (u64, Instant)>,
}

/// The decision of [`Watchdog::judge`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Feed the watchdog.
    Tell,
    /// All threads make progress, and the watchdog was fed recently.
    Wait,
    /// Don't feed the watchdog, because these threads hang.
    Hanging(Vec<String>),
}

impl Watchdog {
    /// The watchdog that the manager demands of this program. `None`: no watchdog.
    pub(super) fn from_environment() -> Option<Self> {
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        // Without WATCHDOG_PID the variables apply to this program.
        let is_meant = env::var_os("WATCHDOG_PID").is_none()
            || number("WATCHDOG_PID") == Some(u64::from(process::id()));
        let time_us = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_meant)?;
        Some(Self::new(Duration::from_micros(time_us)))
    }

    /// A watchdog of a manager that acts after `time` without a message.
    fn new(time: Duration) -> Self {
        Self {
            period: time / 2,
            told: None,
            threads: BTreeMap::new(),
        }
    }

    /// Decides at `now`. `turns`: the name and the number of turns of each thread that
    /// `Recorder::turns` lists.
    pub(super) fn judge(&mut self, now: Instant, turns: Vec<(String, u64)>) -> Judgement {
        let before = std::mem::take(&mut self.threads);
        for (thread, turns) in turns {
            let same = before.get(&thread).filter(|before| before.0 == turns);
            let since = same.map_or(now, |before| before.1);
            self.threads.insert(thread, (turns, since));
        }
        let turn_max = self.period.max(TURN_MIN);
        let hangs = |since: Instant| now.duration_since(since) >= turn_max;
        let hanging = self.threads.iter().filter(|(_, (_, since))| hangs(*since));
        let hanging: Vec<_> = hanging.map(|(thread, _)| thread.clone()).collect();
        if !hanging.is_empty() {
            return Judgement::Hanging(hanging);
        }
        if (self.told).is_some_and(|told| now.duration_since(told) < self.period) {
            return Judgement::Wait;
        }
        self.told = Some(now);
        Judgement::Tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_while_every_thread_goes_round() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(10));
        let mut judge = |second: u64, inserter, dumper| {
            let turns = [("inserter", inserter), ("dumper", dumper)];
            let turns = turns.map(|(name, turns)| (name.to_owned(), turns));
            watchdog.judge(start + Duration::from_secs(second), turns.to_vec())
        };
        let hanging = |name: &str| Judgement::Hanging(vec![name.to_owned()]);
        assert_eq!(judge(0, 1, 1), Judgement::Tell);
        assert_eq!(judge(4, 2, 1), Judgement::Wait);
        // The dumper has made no progress for 5 s, half of the watchdog time.
        assert_eq!(judge(5, 3, 1), hanging("dumper"));
        assert_eq!(judge(6, 3, 2), Judgement::Tell);
        assert_eq!(judge(9, 3, 3), Judgement::Wait);
        assert_eq!(judge(10, 3, 4), hanging("inserter"));
        assert_eq!(judge(11, 3, 4), hanging("inserter"));
        // A thread that has ended does not hang.
        let dumper = vec![("dumper".to_owned(), 5)];
        let second_12 = start + Duration::from_secs(12);
        assert_eq!(watchdog.judge(second_12, dumper), Judgement::Tell);
    }

    #[test]
    fn a_short_time_leaves_threads_two_seconds() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_millis(500));
        let mut judge = |ms| {
            let turns = vec![("dumper".to_owned(), 7)];
            watchdog.judge(start + Duration::from_millis(ms), turns)
        };
        assert_eq!(judge(0), Judgement::Tell);
        assert_eq!(judge(200), Judgement::Wait);
        assert_eq!(judge(1999), Judgement::Tell);
        assert_eq!(judge(2000), Judgement::Hanging(vec!["dumper".to_owned()]));
    }
}
