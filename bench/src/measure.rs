//! Repetitions and what is made of them.
//!
//! Contestants take turns, A B C A B C …, so that what disturbs the machine for a while disturbs all of them. A ratio is taken
//! inside each repetition first; the median of these is reported, with the least and the greatest. The first turn of each
//! is not counted: it finds out how many packets a run needs, and warms up what can be warm.

use crate::contest::Failure;

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
    /// `None` of no figures.
    #[must_use]
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
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

/// What is run in turns. The closure makes one run and returns its figure; it is called once more at the start, for which
/// the figure is not counted.
pub struct Entrant<'a> {
    name: String,
    run: Box<dyn FnMut() -> Result<f64, Failure> + 'a>,
}

impl<'a> Entrant<'a> {
    /// `name` is for progress and comparison.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Result<f64, Failure> + 'a) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }

    /// As given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Debug for Entrant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entrant")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The figures of one entrant: one for each repetition, or why there are none.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The entrant's.
    pub name: String,
    /// By repetition. One failed run fails the whole series: a queue that loses packets now and then has no speed.
    pub figures: Result<Vec<f64>, Failure>,
}

impl Series {
    /// Median, least and greatest.
    ///
    /// # Errors
    /// Why there are no figures.
    pub fn spread(&self) -> Result<Spread, Failure> {
        let figures = self.figures.as_ref().map_err(Clone::clone)?;
        Spread::of(figures).ok_or_else(|| no_figures(&self.name))
    }

    /// The same figures in another unit.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let figures = self.figures.clone();
        Self {
            name: self.name.clone(),
            figures: figures.map(|figures| figures.iter().map(|figure| figure * factor).collect()),
        }
    }

    /// The geometric means of several series, repetition by repetition.
    ///
    /// # Errors
    /// Why one of them has no figures.
    pub fn geometric_mean(name: &str, series: &[&Self]) -> Result<Self, Failure> {
        let mut logarithms: Vec<f64> = Vec::new();
        for (number, one) in series.iter().enumerate() {
            let figures = one.figures.as_ref().map_err(Clone::clone)?;
            if number == 0 {
                logarithms.resize(figures.len(), 0.0);
            }
            for (sum, figure) in logarithms.iter_mut().zip(figures) {
                *sum += figure.ln();
            }
        }
        let mean = |sum: &f64| (sum / series.len() as f64).exp();
        Ok(Self {
            name: name.to_owned(),
            figures: Ok(logarithms.iter().map(mean).collect()),
        })
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
        let ratios: Vec<f64> = mine
            .iter()
            .zip(theirs)
            .map(|(mine, theirs)| mine / theirs)
            .collect();
        Spread::of(&ratios).ok_or_else(|| no_figures(&self.name))
    }
}

fn no_figures(name: &str) -> Failure {
    Failure::Unsound(format!("{name} was not run"))
}

/// Runs all entrants in turns: once uncounted, then `repetitions` times. Who failed is not run again.
pub fn interleave(repetitions: usize, entrants: Vec<Entrant<'_>>) -> Heat {
    let mut entrants = entrants;
    let mut series: Vec<Series> = entrants
        .iter()
        .map(|entrant| Series {
            name: entrant.name.clone(),
            figures: Ok(Vec::with_capacity(repetitions)),
        })
        .collect();
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
    Heat { series }
}

/// What came out of one interleaving.
#[derive(Debug, Clone)]
pub struct Heat {
    series: Vec<Series>,
}

impl Heat {
    /// All series, in the order of the entrants.
    #[must_use]
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The series of an entrant.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: it was not in this heat.
    pub fn get(&self, name: &str) -> Result<&Series, Failure> {
        self.series
            .iter()
            .find(|series| series.name == name)
            .ok_or_else(|| no_figures(name))
    }

    /// How many times as fast `one` was as `other`.
    ///
    /// # Errors
    /// Why one of them has no figures.
    pub fn ratio(&self, one: &str, other: &str) -> Result<Spread, Failure> {
        self.get(one)?.over(self.get(other)?)
    }

    /// The entrant of these with the greatest median. Those without figures cannot win.
    #[must_use]
    pub fn best<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let median = |name: &&str| Some(self.get(name).ok()?.spread().ok()?.median);
        let with_figures = names.iter().filter_map(|name| Some((*name, median(name)?)));
        with_figures
            .max_by(|one, other| one.1.total_cmp(&other.1))
            .map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(Spread::of(&[]), None);
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
        let heat = interleave(4, entrants);
        assert_eq!(
            order.into_inner(),
            "ababababab",
            "the first turn is not counted"
        );
        assert_eq!(heat.ratio("a", "b"), Ok(Spread::once(3.0)));
        assert_eq!(
            heat.get("a").unwrap().spread().map(|spread| spread.max),
            Ok(6.0)
        );
        assert_eq!(heat.best(&["b", "a"]), Some("a"));
    }

    #[test]
    fn geometric_means_are_taken_inside_a_repetition() {
        let series = |figures: &[f64]| Series {
            name: String::new(),
            figures: Ok(figures.to_vec()),
        };
        let (one, other) = (series(&[1.0, 4.0]), series(&[4.0, 9.0]));
        let mean = Series::geometric_mean("mean", &[&one, &other]).unwrap();
        let figures = mean.figures.unwrap();
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
            if calls == 3 {
                return Err(Failure::Count {
                    expected: 10,
                    seen: 9,
                });
            }
            Ok(1.0)
        };
        let entrants = vec![
            Entrant::new("losing", losing),
            Entrant::new("good", || Ok(2.0)),
        ];
        let heat = interleave(5, entrants);
        assert_eq!(
            heat.get("losing").unwrap().spread(),
            Err(Failure::Count {
                expected: 10,
                seen: 9
            })
        );
        assert!(matches!(
            heat.ratio("good", "losing"),
            Err(Failure::Unsound(_))
        ));
        assert!(heat.ratio("losing", "good").is_err());
        assert!(heat.ratio("good", "nobody").is_err());
        assert_eq!(heat.best(&["losing", "good"]), Some("good"));
    }
}
