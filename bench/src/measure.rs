//! Measuring in turns: a machine that is slower for a while is slower for all.
//!
//! Entrants run one after the other (A B C, A B C, …). A ratio is taken inside each repetition first; the median of these is
//! reported, with the least and the greatest. The first turn of each is not counted: it finds out how much a run must do to take
//! its time, and warms up what can be warm.

use crate::say;

/// Why there is no figure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The load does not fit the contestant or the machine: the row says so, and the program succeeds.
    #[error("{0}")]
    CannotRun(String),
    /// A denominator is not what it must be, so nothing is compared with it. The program succeeds.
    #[error("{0}")]
    Unsound(String),
    /// Packets were lost, or seen twice.
    #[error("{seen} packets were seen instead of {expected}")]
    Count {
        /// Packets that must be seen.
        expected: u64,
        /// Packets seen.
        seen: u64,
    },
    /// A result is wrong, or a call that should work did not.
    #[error("{0}")]
    Wrong(String),
}

impl Failure {
    /// From an error of a call.
    pub fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Wrong(format!("{what}: {error}"))
    }

    /// A thread panicked.
    pub fn panicked<E>(_: E) -> Self {
        Self::Wrong("a thread panicked".to_owned())
    }

    /// A run did not end within so many seconds.
    #[must_use]
    pub fn deadline(seconds: u64) -> Self {
        Self::Wrong(format!("not finished after {seconds} s"))
    }
}

/// Compares numbers of packets.
///
/// # Errors
/// [`Failure::Count`].
pub fn check_count(expected: u64, seen: u64) -> Result<(), Failure> {
    if seen == expected {
        return Ok(());
    }
    Err(Failure::Count { expected, seen })
}

/// Compares sums of what was sent and seen.
///
/// # Errors
/// [`Failure::Wrong`].
pub fn check_sum(expected: u64, seen: u64) -> Result<(), Failure> {
    if seen == expected {
        return Ok(());
    }
    let why = format!("the checksum is {seen:#x} instead of {expected:#x}");
    Err(Failure::Wrong(why))
}

/// Refuses a run in which a reader of the ring missed packets.
///
/// # Errors
/// [`Failure::Wrong`].
pub fn check_lapped(packets: u64) -> Result<(), Failure> {
    if packets == 0 {
        return Ok(());
    }
    let why = format!("a reader was lapped by {packets} packets");
    Err(Failure::Wrong(why))
}

/// The median of some figures, with the least and the greatest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// # Errors
    /// [`Failure::Unsound`] of no figures.
    pub fn of(figures: &[f64]) -> Result<Self, Failure> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Err(Failure::Unsound("was not run".to_owned()));
        };
        let middle = sorted.len() / 2;
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[middle]);
        Ok(Self { median, min, max })
    }

    /// A figure that was taken once.
    #[must_use]
    pub fn once(figure: f64) -> Self {
        Self {
            median: figure,
            min: figure,
            max: figure,
        }
    }
}

/// How much is measured. Tests measure less.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Bytes of the ring, and of the memory of the others.
    pub ring_bytes: u64,
    /// Seconds that a run should take.
    pub seconds: f64,
    /// Counted repetitions.
    pub repetitions: usize,
}

impl Scale {
    /// So many seconds at full scale, where a run takes a quarter of one; less in tests.
    #[must_use]
    pub fn time(&self, full_seconds: f64) -> std::time::Duration {
        std::time::Duration::from_secs_f64(full_seconds * (self.seconds / 0.25).clamp(0.01, 1.0))
    }
}

/// What is run in turns. The closure makes one run and returns its figure.
pub struct Entrant<'a> {
    /// For progress and comparison; often the name of a row.
    pub name: String,
    run: Box<dyn FnMut() -> Result<f64, Failure> + 'a>,
}

impl<'a> Entrant<'a> {
    /// The closure is called once more than there are repetitions.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Result<f64, Failure> + 'a) -> Self {
        let (name, run) = (name.into(), Box::new(run));
        Self { name, run }
    }

    /// One whose runs take so many seconds. The closure is told how much to do, `least` at first and at the least, and returns its figure
    /// and how much of this it did a second, which the length of the next run is found from.
    pub fn paced(
        name: impl Into<String>,
        seconds: f64,
        least: u64,
        mut run: impl FnMut(u64) -> Result<(f64, f64), Failure> + 'a,
    ) -> Self {
        let mut much = least;
        Self::new(name, move || {
            let (figure, per_second) = run(much)?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates; rates are positive"
            )]
            let wanted = (per_second * seconds) as u64;
            much = wanted.max(least);
            Ok(figure)
        })
    }
}

impl std::fmt::Debug for Entrant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// The figures of one entrant: one for each repetition, or why there are none. One failed run fails the whole series: a queue that
/// loses packets now and then has no speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The entrant's.
    pub name: String,
    /// By repetition.
    pub figures: Result<Vec<f64>, Failure>,
}

impl Series {
    /// Median, least and greatest.
    ///
    /// # Errors
    /// Why there are no figures.
    pub fn spread(&self) -> Result<Spread, Failure> {
        Spread::of(self.figures.as_ref().map_err(Clone::clone)?)
    }

    /// The geometric means of several series, repetition by repetition.
    #[must_use]
    pub fn geometric_mean(series: &[&Self]) -> Self {
        let all: Result<Vec<_>, _> = series.iter().map(|one| one.figures.clone()).collect();
        let means = |all: Vec<Vec<f64>>| {
            let repetitions = all.iter().map(Vec::len).min().unwrap_or(0);
            let logarithm = |at: usize| all.iter().map(|figures| figures[at].ln()).sum::<f64>();
            let mean = |at| (logarithm(at) / all.len() as f64).exp();
            (0..repetitions).map(mean).collect()
        };
        Self {
            name: "mean".to_owned(),
            figures: all.map(means),
        }
    }

    /// How many times the figures of `other` these are, repetition by repetition.
    ///
    /// # Errors
    /// Why one of them has no figures.
    pub fn over(&self, other: &Self) -> Result<Spread, Failure> {
        let mine = self.figures.as_ref().map_err(Clone::clone)?;
        let theirs = other.figures.as_ref().map_err(|failure| match failure {
            Failure::CannotRun(why) => Failure::CannotRun(format!("{}: {why}", other.name)),
            failure => Failure::Unsound(format!("{}: {failure}", other.name)),
        })?;
        let ratios = mine.iter().zip(theirs).map(|(mine, theirs)| mine / theirs);
        Spread::of(&ratios.collect::<Vec<_>>())
    }
}

/// What came out of one interleaving, in the order of the entrants.
#[derive(Debug, Clone)]
pub struct Heat(pub Vec<Series>);

impl Heat {
    /// Runs all entrants in turns: once uncounted, then `repetitions` times. Who failed is not run again. Says what comes out.
    pub fn run(what: &str, repetitions: usize, mut entrants: Vec<Entrant<'_>>) -> Self {
        if !entrants.is_empty() {
            say(&format!(
                "{what}: {} turns of {entrants:?}",
                repetitions + 1
            ));
        }
        let empty = |entrant: &Entrant<'_>| Series {
            name: entrant.name.clone(),
            figures: Ok(Vec::with_capacity(repetitions)),
        };
        let mut series: Vec<Series> = entrants.iter().map(empty).collect();
        for repetition in 0..=repetitions {
            for (entrant, series) in entrants.iter_mut().zip(&mut series) {
                let Ok(figures) = &mut series.figures else {
                    continue;
                };
                match (entrant.run)() {
                    Ok(figure) if repetition > 0 => figures.push(figure),
                    Ok(_) => {}
                    Err(failure) => series.figures = Err(failure),
                }
            }
        }
        for series in &series {
            say(&match series.spread() {
                Ok(Spread { median, min, max }) => {
                    format!("  {}: {median:.2} ({min:.2} to {max:.2})", series.name)
                }
                Err(failure) => format!("  {}: {failure}", series.name),
            });
        }
        Self(series)
    }

    /// The series of an entrant.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: it was not in this heat.
    pub fn get(&self, name: &str) -> Result<&Series, Failure> {
        let mut series = self.0.iter();
        let series = series.find(|series| series.name == name);
        series.ok_or_else(|| Failure::Unsound(format!("{name} was not run")))
    }

    /// How many times the figure of `other` the one of `one` was.
    ///
    /// # Errors
    /// Why one of them has no figures.
    pub fn ratio(&self, one: &str, other: &str) -> Result<Spread, Failure> {
        self.get(one)?.over(self.get(other)?)
    }

    /// The entrant of these with the greatest median. Those without figures cannot win.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: none has a figure.
    pub fn best<'n>(&self, names: &[&'n str]) -> Result<&'n str, Failure> {
        let median = |name| self.get(name).and_then(Series::spread).ok();
        let medians = names
            .iter()
            .filter_map(|name| Some((median(name)?.median, *name)));
        let best = medians.max_by(|(one, _), (other, _)| one.total_cmp(other));
        let none = || Failure::Unsound(format!("none of {names:?} has a figure"));
        best.map(|(_, name)| name).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        let spread = |median, min, max| Ok(Spread { median, min, max });
        assert!(Spread::of(&[]).is_err());
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), spread(2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), spread(2.5, 1.0, 4.0));
    }

    /// The machine halves its speed after two rounds: ratios do not notice.
    #[test]
    fn ratios_are_taken_inside_a_repetition() {
        let order = std::cell::RefCell::new(String::new());
        let speeds = |name: char, speed: f64| {
            let order = &order;
            let mut calls = 0;
            move || {
                calls += 1;
                order.borrow_mut().push(name);
                Ok(if calls <= 3 { speed } else { speed / 2.0 })
            }
        };
        let entrants = vec![
            Entrant::new("a", speeds('a', 6.0)),
            Entrant::new("b", speeds('b', 2.0)),
        ];
        let heat = Heat::run("test", 4, entrants);
        assert_eq!(
            order.into_inner(),
            "ababababab",
            "the first turn is not counted"
        );
        assert_eq!(heat.ratio("a", "b"), Ok(Spread::once(3.0)));
        assert_eq!(heat.best(&["b", "a"]), Ok("a"));
    }

    #[test]
    fn geometric_means_are_taken_inside_a_repetition() {
        let series = |figures: &[f64]| Series {
            name: String::new(),
            figures: Ok(figures.to_vec()),
        };
        let (one, other) = (series(&[1.0, 4.0]), series(&[4.0, 9.0]));
        let figures = Series::geometric_mean(&[&one, &other]).figures.unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(
            near(figures[0], 2.0) && near(figures[1], 6.0),
            "{figures:?}"
        );
    }

    #[test]
    fn one_failed_run_fails_the_series_and_what_is_compared_with_it() {
        let mut calls = 0;
        let losing = || {
            calls += 1;
            check_count(10, if calls == 3 { 9 } else { 10 }).map(|()| 1.0)
        };
        let entrants = vec![
            Entrant::new("losing", losing),
            Entrant::new("good", || Ok(2.0)),
        ];
        let heat = Heat::run("test", 5, entrants);
        let lost = Failure::Count {
            expected: 10,
            seen: 9,
        };
        assert_eq!(heat.get("losing").unwrap().spread(), Err(lost));
        assert!(matches!(
            heat.ratio("good", "losing"),
            Err(Failure::Unsound(_))
        ));
        assert!(heat.ratio("losing", "good").is_err());
        assert!(heat.ratio("good", "nobody").is_err());
        assert_eq!(heat.best(&["losing", "good"]), Ok("good"));
        assert_eq!(calls, 3, "not run again");
    }

    #[test]
    fn a_run_is_as_long_as_it_should_be_but_no_less_than_a_lap() {
        let speeds = [10_000.0, 10.0, 1.0];
        let mut runs = Vec::new();
        let mut entrant = Entrant::paced("it", 0.5, 1000, |much| {
            runs.push(much);
            Ok((1.0, speeds[runs.len() - 1]))
        });
        for _ in speeds {
            (entrant.run)().unwrap();
        }
        drop(entrant);
        assert_eq!(runs, [1000, 5000, 1000]);
    }
}
