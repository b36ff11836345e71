//! Measures in turns: a machine that is slower for a while is slower for all entrants.
//!
//! Entrants run one after the other (A B C, A B C, …). A ratio is computed for each repetition; the
//! median of these ratios is reported, with the minimum and the maximum. In each round, the first
//! turn of an entrant does not count: it warms up. A paced entrant also learns from this turn how
//! much work fills the time of a run.
//!
//! A figure of a [`Heat`] with a spread above [`SPREAD_MAX`] is unsteady: its entrants take turns
//! again, and the steadiest figure is reported.

use std::cell::{Ref, RefCell};

use crate::say;

/// A figure is steady if the difference between its maximum and its minimum repetition is at most
/// this share of the median.
pub const SPREAD_MAX: f64 = 0.15;
/// An unsteady figure is measured again at most this many times.
pub const AGAIN_MAX: usize = 1;

/// Why a figure is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The row cannot run, for example because the load does not fit the contestant or the machine.
    /// The row reports the reason. This failure does not fail the program.
    #[error("{0}")]
    CannotRun(String),
    /// The conditions of a measurement, or a denominator, are not as required, so there is no
    /// figure. This failure does not fail the program.
    #[error("{0}")]
    Unsound(String),
    /// A number, usually of packets, is wrong. Fails the program if a row reports it.
    #[error("{seen} packets were seen instead of {expected}")]
    Count {
        /// Number that must be seen.
        expected: u64,
        /// Number seen.
        seen: u64,
    },
    /// A result is wrong, or a call failed that should work. Fails the program if a row reports it.
    #[error("{0}")]
    Wrong(String),
}

impl Failure {
    /// A failure from the error of a call.
    pub fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Wrong(format!("{what}: {error}"))
    }

    /// A thread panicked.
    pub fn panicked<E>(_: E) -> Self {
        Self::Wrong("a thread panicked".to_owned())
    }

    /// A run did not end within `seconds` seconds.
    #[must_use]
    pub fn deadline(seconds: u64) -> Self {
        Self::Wrong(format!("not finished after {seconds} s"))
    }
}

/// Compares numbers, usually of packets.
///
/// # Errors
/// [`Failure::Count`].
pub fn check_count(expected: u64, seen: u64) -> Result<(), Failure> {
    if seen == expected {
        return Ok(());
    }
    Err(Failure::Count { expected, seen })
}

/// Compares the checksums of the packets that were sent and seen.
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

/// Rejects a run in which a reader of the ring missed packets.
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

/// The median of some figures, with the minimum and the maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median. For an even number of figures, the mean of the two in the middle.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of `figures`.
    /// # Errors
    /// [`Failure::Unsound`] if there are no figures.
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

    /// A figure that was measured once.
    #[must_use]
    pub fn once(figure: f64) -> Self {
        Self {
            median: figure,
            min: figure,
            max: figure,
        }
    }

    /// The difference between the maximum and the minimum repetition, as a share of the median.
    /// Infinite if the median is 0 and another repetition is not.
    fn share(&self) -> f64 {
        let width = self.max - self.min;
        if width > 0.0 {
            width / self.median.abs()
        } else {
            0.0
        }
    }

    /// Whether the spread exceeds [`SPREAD_MAX`].
    #[must_use]
    pub fn is_unsteady(&self) -> bool {
        self.share() > SPREAD_MAX
    }
}

/// A figure, with a remark that a reader of the figure must know.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The figure itself.
    pub spread: Spread,
    /// For example why the denominator of a ratio is unsound.
    pub remark: Option<String>,
}

impl From<Spread> for Figure {
    fn from(spread: Spread) -> Self {
        let remark = None;
        Self { spread, remark }
    }
}

/// The amount of measurement. Tests measure less.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Bytes of the ring, and of the memory of the other contestants.
    pub ring_bytes: u64,
    /// Seconds that a run should take.
    pub seconds: f64,
    /// Counted repetitions.
    pub repetitions: usize,
}

impl Scale {
    /// `full_seconds` if a run takes a quarter of a second or longer. If runs are shorter,
    /// proportionally less, but at least a hundredth of `full_seconds`.
    #[must_use]
    pub fn time(&self, full_seconds: f64) -> std::time::Duration {
        std::time::Duration::from_secs_f64(full_seconds * (self.seconds / 0.25).clamp(0.01, 1.0))
    }
}

/// A contestant that runs in turns. The closure returns the figure of one run.
pub struct Entrant<'a> {
    /// For progress and comparison; often the name of a row.
    pub name: String,
    run: Box<dyn FnMut() -> Result<f64, Failure> + 'a>,
}

impl<'a> Entrant<'a> {
    /// In each round of this entrant, the closure is called once more than there are repetitions,
    /// or until it fails.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Result<f64, Failure> + 'a) -> Self {
        let (name, run) = (name.into(), Box::new(run));
        Self { name, run }
    }

    /// An entrant whose counted runs should take `seconds` seconds. The argument of the closure is
    /// the amount of work, at first `least` and never less. The closure returns its figure and its
    /// work per second. The work per second determines the amount for the next run.
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

/// The figures of one entrant, one for each repetition, or why there are no figures. One failed run
/// fails the whole series: a queue that sometimes loses packets has no speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of the entrant.
    pub name: String,
    /// Figures by repetition.
    pub figures: Result<Vec<f64>, Failure>,
}

impl Series {
    /// Median, minimum and maximum.
    ///
    /// # Errors
    /// Why there are no figures.
    pub fn spread(&self) -> Result<Spread, Failure> {
        Spread::of(self.figures.as_ref().map_err(Clone::clone)?)
    }

    /// The geometric means of several series, for each repetition.
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

    /// Median, minimum and maximum of the ratios of these figures to the figures of `other`. Each
    /// ratio is of one repetition.
    ///
    /// # Errors
    /// Why this series has no figures, or [`Failure::CannotRun`] of `other`. [`Failure::Unsound`]:
    /// `other` failed in another way, or one of its figures is not a finite number above 0.
    pub fn over(&self, other: &Self) -> Result<Spread, Failure> {
        let mine = self.figures.as_ref().map_err(Clone::clone)?;
        let unsound = |why: &dyn std::fmt::Display| {
            Failure::Unsound(format!("the denominator {} is unsound: {why}", other.name))
        };
        let theirs = other.figures.as_ref().map_err(|failure| match failure {
            Failure::CannotRun(why) => Failure::CannotRun(format!("{}: {why}", other.name)),
            failure => unsound(failure),
        })?;
        if let Some(figure) = theirs.iter().find(|it| !it.is_finite() || **it <= 0.0) {
            return Err(unsound(figure));
        }
        let ratios = mine.iter().zip(theirs).map(|(mine, theirs)| mine / theirs);
        Spread::of(&ratios.collect::<Vec<_>>())
    }
}

/// The series of entrants that took turns with each other, in the order of the entrants.
#[derive(Debug, Clone)]
pub struct Round(Vec<Series>);

impl Round {
    /// The series of an entrant.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: the entrant was not in this round.
    pub fn get(&self, name: &str) -> Result<&Series, Failure> {
        let series = self.0.iter().find(|series| series.name == name);
        series.ok_or_else(|| Failure::Unsound(format!("{name} was not run")))
    }

    /// All series.
    pub fn iter(&self) -> impl Iterator<Item = &Series> {
        self.0.iter()
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_ok()
    }
}

/// Entrants and their rounds: one round of all entrants, then rounds with the entrants of unsteady
/// figures.
#[derive(Debug)]
pub struct Heat<'a> {
    what: String,
    /// Counted turns of each entrant in a round.
    repetitions: usize,
    names: Vec<String>,
    entrants: RefCell<Vec<Entrant<'a>>>,
    rounds: RefCell<Vec<Round>>,
}

impl<'a> Heat<'a> {
    /// Runs all entrants in turns: once uncounted, then `repetitions` times. An entrant that fails
    /// is not run again in this round. Prints the series to stderr.
    pub fn run(what: &str, repetitions: usize, entrants: Vec<Entrant<'a>>) -> Self {
        let heat = Self {
            what: what.to_owned(),
            repetitions,
            names: entrants.iter().map(|one| one.name.clone()).collect(),
            entrants: RefCell::new(entrants),
            rounds: RefCell::default(),
        };
        heat.again(&|_| true);
        heat
    }

    /// The names of the entrants, in their order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The first round, in which every entrant took part.
    pub fn first(&self) -> Ref<'_, Round> {
        Ref::map(self.rounds.borrow(), |rounds| &rounds[0])
    }

    /// Runs a round of some of the entrants.
    fn again(&self, is_part: &dyn Fn(&str) -> bool) {
        let mut entrants = self.entrants.borrow_mut();
        let entrants = entrants.iter_mut().filter(|one| is_part(&one.name));
        let mut entrants: Vec<_> = entrants.collect();
        if !entrants.is_empty() {
            let (what, turns) = (&self.what, self.repetitions + 1);
            say(&format!("{what}: {turns} turns of {entrants:?}"));
        }
        let empty = |entrant: &&mut Entrant<'_>| Series {
            name: entrant.name.clone(),
            figures: Ok(Vec::with_capacity(self.repetitions)),
        };
        let mut series: Vec<Series> = entrants.iter().map(empty).collect();
        for repetition in 0..=self.repetitions {
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
        self.rounds.borrow_mut().push(Round(series));
    }

    /// The steadiest figure of all rounds that have every entrant of the figure. While no round has
    /// a steady figure, these entrants run again, up to [`AGAIN_MAX`] times.
    ///
    /// # Errors
    /// Why a round has no figure.
    pub fn figure(
        &self,
        is_part: &dyn Fn(&str) -> bool,
        figure: &dyn Fn(&Round) -> Result<Spread, Failure>,
    ) -> Result<Spread, Failure> {
        loop {
            let rounds = self.rounds.borrow();
            let has_all = |round: &&Round| {
                let mut parts = self.names.iter().filter(|name| is_part(name));
                parts.all(|name| round.has(name))
            };
            let figures = rounds.iter().filter(has_all).map(figure);
            let figures: Vec<Spread> = figures.collect::<Result<_, _>>()?;
            drop(rounds);
            let steadiest = figures
                .iter()
                .min_by(|one, other| one.share().total_cmp(&other.share()));
            match steadiest {
                Some(spread) if !spread.is_unsteady() || figures.len() > AGAIN_MAX => {
                    return Ok(*spread);
                }
                _ => self.again(is_part),
            }
        }
    }

    /// The figure of an entrant.
    ///
    /// # Errors
    /// Why the entrant has no figure.
    pub fn spread(&self, name: &str) -> Result<Spread, Failure> {
        self.first().get(name)?;
        self.figure(&|part| part == name, &|round| round.get(name)?.spread())
    }

    /// The ratio of the figure of `one` to the figure of `other`.
    ///
    /// # Errors
    /// As of [`Series::over`], or [`Failure::Unsound`]: one of the two is not an entrant.
    pub fn ratio(&self, one: &str, other: &str) -> Result<Spread, Failure> {
        self.ratio_among(&[], one, other)
    }

    /// The ratio of `one` to `other`. If the ratio is unsteady, `others` take turns with the two
    /// entrants, because a second ratio qualifies this ratio and must come from the same turns.
    ///
    /// # Errors
    /// As of [`Self::ratio`].
    pub fn ratio_among(&self, others: &[&str], one: &str, other: &str) -> Result<Spread, Failure> {
        for name in [one, other] {
            self.first().get(name)?;
        }
        let is_part = |name: &str| name == one || name == other || others.contains(&name);
        self.figure(&is_part, &|round| round.get(one)?.over(round.get(other)?))
    }

    /// The figures of all entrants by name. Unsteady entrants run again together, so that they take
    /// turns.
    pub fn spreads(&self) -> impl Iterator<Item = (&str, Result<Spread, Failure>)> {
        let is_unsteady = |name: &str| {
            let mut rounds = Vec::new();
            for round in self.rounds.borrow().iter() {
                rounds.extend(round.get(name).map(Series::spread));
            }
            let mut spreads = rounds.iter();
            rounds.len() <= AGAIN_MAX
                && spreads.all(|it| it.as_ref().is_ok_and(Spread::is_unsteady))
        };
        for _ in 0..AGAIN_MAX {
            let unsteady = self.names.iter().filter(|name| is_unsteady(name));
            let unsteady: Vec<_> = unsteady.collect();
            if !unsteady.is_empty() {
                self.again(&|name| unsteady.iter().any(|one| *one == name));
            }
        }
        let names = self.names.iter().map(String::as_str);
        names.map(|name| (name, self.spread(name)))
    }

    /// The name with the greatest median in the first round, among `names`. Entrants without
    /// figures cannot win.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: none of `names` has a figure.
    pub fn best<'n>(&self, names: &[&'n str]) -> Result<&'n str, Failure> {
        let first = self.first();
        let median = |name| first.get(name).and_then(Series::spread).ok();
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

    /// The machine halves its speed after two counted repetitions, which must not change the
    /// ratios.
    #[test]
    fn ratios_are_taken_inside_a_repetition() {
        let order = RefCell::new(String::new());
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
            *order.borrow(),
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
        assert_eq!(heat.spread("losing"), Err(lost));
        assert!(matches!(
            heat.ratio("good", "losing"),
            Err(Failure::Unsound(_))
        ));
        assert!(heat.ratio("losing", "good").is_err());
        for figure in [0.0, f64::INFINITY] {
            let of = |figure| Series {
                name: "none".to_owned(),
                figures: Ok(vec![2.0, figure]),
            };
            let ratio = of(1.0).over(&of(figure));
            let why = format!("the denominator none is unsound: {figure}");
            assert_eq!(ratio, Err(Failure::Unsound(why)));
        }
        assert!(heat.ratio("good", "nobody").is_err());
        assert_eq!(heat.best(&["losing", "good"]), Ok("good"));
        drop(heat);
        assert_eq!(calls, 3, "not run again");
    }

    /// An entrant whose runs return the figures of a list.
    fn listed<'a>(name: &'a str, figures: &'a [f64], order: &'a RefCell<String>) -> Entrant<'a> {
        let mut figures = figures.iter();
        Entrant::new(name, move || {
            order.borrow_mut().push_str(name);
            let none = || Failure::Wrong("it runs too often".to_owned());
            figures.next().copied().ok_or_else(none)
        })
    }

    /// In the lists of figures, the first figure of each round belongs to the uncounted turn.
    #[test]
    fn an_unsteady_ratio_is_measured_again_and_the_steadiest_is_reported() {
        let order = RefCell::new(String::new());
        let a = [9.0, 4.0, 6.0, 9.0, 4.0, 4.4];
        let entrants = vec![
            listed("a", &a, &order),
            listed("b", &[1.0; 6], &order),
            listed("c", &[1.0; 3], &order),
        ];
        let heat = Heat::run("test", 2, entrants);
        let spread = |median, min, max| Ok(Spread { median, min, max });
        assert_eq!(heat.ratio("a", "b"), spread(4.2, 4.0, 4.4));
        assert_eq!(*order.borrow(), "abcabcabcababab", "c takes no part again");
        assert_eq!(heat.spread("a"), spread(4.2, 4.0, 4.4));
        assert_eq!(
            order.borrow().len(),
            15,
            "the second round has figures of a"
        );
        assert_eq!(heat.spreads().count(), 3);
        assert_eq!(order.borrow().len(), 15, "a ran twice already");
    }

    #[test]
    fn a_ratio_and_the_one_that_qualifies_it_share_their_turns() {
        let order = RefCell::new(String::new());
        let entrants = vec![
            listed("a", &[9.0, 4.0, 6.0, 9.0, 4.0, 4.4], &order),
            listed("b", &[1.0; 6], &order),
            listed("c", &[9.0, 1.0, 2.0, 9.0, 2.0, 2.0], &order),
        ];
        let heat = Heat::run("test", 2, entrants);
        let ratio = heat.ratio_among(&["c"], "a", "b").unwrap();
        let qualifying = heat.ratio_among(&["a"], "b", "c").unwrap();
        assert!(!ratio.is_unsteady() && qualifying == Spread::once(0.5));
        assert_eq!(*order.borrow(), "abcabcabcabcabcabc");
    }

    #[test]
    fn measuring_again_ends_and_the_figure_stays_unsteady() {
        let order = RefCell::new(String::new());
        let a = [0.0, 1.0, 2.0, 0.0, 1.0, 1.5];
        let entrants = vec![listed("a", &a, &order), listed("b", &[1.0; 3], &order)];
        let heat = Heat::run("test", 2, entrants);
        let figures: Vec<_> = heat.spreads().collect();
        let least = Spread {
            median: 1.25,
            min: 1.0,
            max: 1.5,
        };
        assert_eq!(figures, [("a", Ok(least)), ("b", Ok(Spread::once(1.0)))]);
        assert!(least.is_unsteady() && !Spread::once(0.0).is_unsteady());
        assert_eq!(*order.borrow(), "abababaaa");
    }

    #[test]
    fn a_failure_while_measuring_again_is_the_failure_of_the_row() {
        let order = RefCell::new(String::new());
        let heat = Heat::run("test", 2, vec![listed("a", &[0.0, 1.0, 2.0], &order)]);
        let failure = Failure::Wrong("it runs too often".to_owned());
        assert_eq!(heat.spread("a"), Err(failure));
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
