//! One run of the program: what is wanted, where it goes, and what all measurements share.

use std::{cell::RefCell, io, path::Path};

use crate::{
    contest::Failure,
    measure::Spread,
    memory::Memory,
    pace::Scale,
    rows::{Results, Row, Selection},
};

/// Why the program cannot go on. A measurement that fails is not among them: it is a row.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The results cannot be written.
    #[error("cannot write results: {0}")]
    Results(#[from] io::Error),
    /// The memory for the contestants is not there.
    #[error("no memory for the benchmarks: {0}")]
    Memory(Failure),
    /// A selection that selects nothing.
    #[error("ROWS={item}: there is no such row")]
    Selection {
        /// What was asked for.
        item: String,
    },
}

/// What measurements share.
#[derive(Debug)]
pub struct Session {
    scale: Scale,
    selection: Selection,
    results: Results,
    memory: RefCell<Memory>,
}

impl Session {
    /// Removes earlier results, and takes the memory that contestants share, as large as the ring.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn start(folder: &Path, scale: Scale, selection: Selection) -> Result<Self, SessionError> {
        let results = Results::start(folder)?;
        let bytes = usize::try_from(scale.ring_bytes).unwrap_or(usize::MAX);
        let memory = Memory::new(bytes).map_err(SessionError::Memory)?;
        Ok(Self {
            scale,
            selection,
            results,
            memory: RefCell::new(memory),
        })
    }

    /// How much is measured.
    #[must_use]
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// The region of the contestants.
    #[must_use]
    pub fn memory(&self) -> &RefCell<Memory> {
        &self.memory
    }

    /// Whether one of these rows is wanted.
    #[must_use]
    pub fn wants_any(&self, rows: &[&str]) -> bool {
        self.selection.wants_any(rows)
    }

    /// Whether a row is wanted that begins with `group` and a slash.
    #[must_use]
    pub fn wants_below(&self, group: &str) -> bool {
        self.selection.wants_below(group)
    }

    /// Whether this row is wanted.
    #[must_use]
    pub fn wants(&self, row: &str) -> bool {
        self.selection.wants(row)
    }

    /// The results so far.
    #[must_use]
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Writes an absolute figure, or why there is none.
    ///
    /// # Errors
    /// [`SessionError::Results`].
    pub fn absolute(
        &mut self,
        name: &str,
        unit: &str,
        figure: Result<Spread, Failure>,
    ) -> Result<(), SessionError> {
        let row = figure.map(|spread| Row::absolute(name, unit, spread));
        self.put(row.map_err(|failure| (name, unit, failure)))
    }

    /// Writes a comparison, or why there is none.
    ///
    /// # Errors
    /// [`SessionError::Results`].
    pub fn ratio(
        &mut self,
        name: &str,
        versus: &str,
        ratio: Result<Spread, Failure>,
    ) -> Result<(), SessionError> {
        let row = ratio.map(|spread| Row::ratio(name, versus, spread));
        self.put(row.map_err(|failure| (name, "ratio", failure)))
    }

    fn put(&mut self, row: Result<Row, (&str, &str, Failure)>) -> Result<(), SessionError> {
        let row = match row {
            Ok(row) => row,
            Err((name, unit, failure)) => {
                let excused = matches!(failure, Failure::CannotRun(_) | Failure::Unsound(_));
                if !excused {
                    self.results.fail();
                }
                Row::missing(name, unit, &failure)
            }
        };
        say(&describe(&row));
        Ok(self.results.add([row])?)
    }
}

/// Tells whoever watches.
#[expect(clippy::print_stderr, reason = "progress of a program for people")]
pub fn say(text: &str) {
    eprintln!("{text}");
}

fn describe(row: &Row) -> String {
    let versus = row.versus.as_deref();
    match (row.value, row.min, row.max) {
        (Some(value), Some(min), Some(max)) => {
            let versus = versus
                .map(|versus| format!(", against {versus}"))
                .unwrap_or_default();
            format!(
                "{}: {value:.2} {} ({min:.2} to {max:.2}){versus}",
                row.name, row.unit
            )
        }
        _ => format!("{}: NO FIGURE: {}", row.name, versus.unwrap_or("not run")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(folder: &Path) -> Session {
        let scale = Scale {
            ring_bytes: 2 << 20,
            seconds: 0.001,
            repetitions: 1,
        };
        Session::start(folder, scale, Selection::parse("")).unwrap()
    }

    #[test]
    fn a_failed_check_fails_the_program_and_a_machine_that_is_too_small_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut session = session(folder.path());
        session
            .absolute("a", "Mpps", Ok(Spread::once(1.0)))
            .unwrap();
        let small = Failure::CannotRun("this machine has one core".to_owned());
        session.ratio("b", "peer", Err(small)).unwrap();
        assert!(!session.results().failed());
        session
            .ratio("c", "peer", Err(Failure::Lapped { packets: 1 }))
            .unwrap();
        assert!(session.results().failed());
        let rows = session.results().rows();
        assert_eq!(
            (rows[0].value, rows[1].value, rows[2].ratio),
            (Some(1.0), None, None)
        );
        assert_eq!(
            rows[2].versus.as_deref(),
            Some("the reader was lapped by 1 packets")
        );
    }
}
