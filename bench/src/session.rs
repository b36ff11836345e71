//! One run of the program: the selection, the state that all measurements share, and the file of
//! figures.
//!
//! `results.json` is an array of objects with the fields of [`Row`]. It is replaced as a whole, by
//! renaming, after each row, so that a reader never sees half a file.

use std::{
    cell::{Cell, RefCell},
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    capture::Programs,
    measure::{Entrant, Failure, Figure, Heat, Scale, Spread},
    memory::Memory,
    rows::{self, Command},
    say,
};

/// The file of rows, in the folder of results.
pub const RESULTS: &str = "results.json";
/// The groups that an interrupted run has finished, one a line, in the folder of results.
const FINISHED: &str = "finished.txt";
/// Maximum number of counted turns of each entrant in a round of [`Session::measure`] and
/// [`Session::measure_parts`]. A round of [`Session::heat`] has [`Scale::repetitions`].
pub(crate) const REPETITIONS: usize = 3;

/// A run that returns the figures of several rows.
pub(crate) type PartsRun<'a, const N: usize> = Box<dyn FnMut() -> Result<[f64; N], Failure> + 'a>;

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the row, for example `ring/64B/1p1c/vs-qq2016`.
    pub name: String,
    /// The figure, in `unit`: the median of the repetitions, or the only measurement. `None`: no
    /// figure, and `versus` contains the reason.
    pub value: Option<f64>,
    /// The unit in the list of rows, for example `Mpps`, `us`, `percent`, `M/s` (10^6 calls) or
    /// `ratio`.
    pub unit: String,
    /// The opponent of the comparison. For a row without a figure, the reason in words.
    pub versus: Option<String>,
    /// The ratio to `versus`: the median of the ratios of each repetition.
    pub ratio: Option<f64>,
    /// The minimum repetition, in the same terms as `value`.
    pub min: Option<f64>,
    /// The maximum repetition.
    pub max: Option<f64>,
    /// A remark that a reader of the figure must know, such as an unsound denominator of the ratio.
    /// Absent without a remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Whether the spread exceeds [`SPREAD_MAX`](crate::measure::SPREAD_MAX). Most such rows were
    /// measured again, and no measurement was steady. Absent if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsteady: bool,
}

impl Row {
    /// A figure, or the reason for its absence, with the unit from the list of rows.
    #[must_use]
    pub fn new(name: &str, versus: Option<&str>, figure: Result<Spread, &Failure>) -> Self {
        let why = figure.err().map(ToString::to_string);
        let figure = figure.ok();
        let value = figure.map(|spread| spread.median);
        Self {
            name: name.to_owned(),
            value,
            unit: rows::find(name).map_or("", |row| row.unit).to_owned(),
            ratio: value.filter(|_| versus.is_some()),
            versus: why.or(versus.map(str::to_owned)),
            min: figure.map(|spread| spread.min),
            max: figure.map(|spread| spread.max),
            remark: None,
            unsteady: figure.is_some_and(|spread| spread.is_unsteady()),
        }
    }
}

/// Reads the rows of an earlier run.
///
/// # Errors
/// The system's error or the fault of the text, with the path.
pub fn read(folder: &Path) -> io::Result<Vec<Row>> {
    read_json(&folder.join(RESULTS))
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    let text = fs::read_to_string(path).map_err(|error| at(path, &error))?;
    serde_json::from_str(&text).map_err(|error| at(path, &error.into()))
}

/// Adds a path to an error.
pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The selected rows: a comma-separated list of names, or of prefixes of names up to a slash.
#[derive(Debug, Clone, Default)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Parses `ring/latency,limits`. Empty: all rows.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let items = text
            .split(',')
            .map(|item| item.trim().trim_end_matches('/'));
        let items = items.filter(|item| !item.is_empty());
        Self(items.map(str::to_owned).collect())
    }

    /// Whether a row is selected, by its full name.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|item| is_below(name, item))
    }

    /// Whether a row may be selected whose name begins with `stem` up to a slash.
    #[must_use]
    pub fn wants_some_of(&self, stem: &str) -> bool {
        self.wants(stem) || self.0.iter().any(|item| is_below(item, stem))
    }

    /// The first item that is not the beginning of the name of a row of this command, up to a slash
    /// or to the first placeholder.
    #[must_use]
    pub fn unknown(&self, command: Command) -> Option<&str> {
        let known = |item: &str| rows::of(command).any(|row| is_below(row.stem(), item));
        self.0.iter().map(String::as_str).find(|item| !known(item))
    }
}

/// `ring/64B` is below `ring` and `ring/64B`, but not below `ring/6`.
fn is_below(name: &str, item: &str) -> bool {
    let rest = name.strip_prefix(item);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The state that measurements share.
#[derive(Debug)]
pub struct Session {
    /// The amount of measurement.
    pub scale: Scale,
    /// The region of the contestants, as large as the ring.
    pub memory: RefCell<Memory>,
    /// The folder of results.
    pub folder: PathBuf,
    /// The programs of `capture` and `shed`.
    pub programs: Programs,
    selection: Selection,
    rows: RefCell<Vec<Row>>,
    /// Names of the finished groups, a line each.
    finished: RefCell<String>,
    /// Whether a check failed: the program must not end with 0.
    pub failed: Cell<bool>,
}

impl Session {
    /// Continues after the finished groups of an earlier run in the folder. Rows of other groups
    /// are measured again.
    ///
    /// # Errors
    /// The system's error, or the fault of the earlier results.
    pub fn resume(folder: &Path, scale: Scale, selection: Selection) -> io::Result<Self> {
        let earlier = fs::read_to_string(folder.join(FINISHED));
        let rows = match &earlier {
            Ok(_) => read(folder)?,
            Err(_) => Vec::new(),
        };
        let session = Self::start(folder, scale, selection)?;
        session.rows.replace(rows);
        session.finished.replace(earlier.unwrap_or_default());
        Ok(session)
    }

    /// Removes earlier results, makes the folder if needed, and allocates the memory that
    /// contestants share.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(folder: &Path, scale: Scale, selection: Selection) -> io::Result<Self> {
        fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
        for name in [RESULTS, FINISHED] {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(at(&path, &error));
                }
                _ => {}
            }
        }
        let bytes = usize::try_from(scale.ring_bytes).unwrap_or(usize::MAX);
        Ok(Self {
            scale,
            memory: RefCell::new(Memory::new(bytes).map_err(io::Error::other)?),
            folder: folder.to_owned(),
            programs: Programs::default(),
            selection,
            rows: RefCell::default(),
            finished: RefCell::default(),
            failed: Cell::new(false),
        })
    }

    /// The run is complete: a later run measures everything again.
    ///
    /// # Errors
    /// The system's error.
    pub fn complete(&self) -> io::Result<()> {
        match fs::remove_file(self.folder.join(FINISHED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs all groups of the commands that may contain a selected row and are not finished. A
    /// failed measurement is written as a row too.
    ///
    /// # Errors
    /// The results cannot be written, or a group cannot begin.
    pub fn run(&self, commands: &[Command]) -> io::Result<()> {
        let mut groups = rows::MEASURES.to_vec();
        groups.retain(|(group, of, _)| {
            let mut listed = rows::LIST.iter().filter(|row| row.group == *group);
            let is_wanted = listed.any(|row| self.selection.wants_some_of(row.stem()));
            let is_finished = self.finished.borrow().lines().any(|done| done == *group);
            commands.contains(of) && is_wanted && !is_finished
        });
        for (at_group, (group, _, run)) in groups.iter().enumerate() {
            let rest: Vec<&str> = groups[at_group + 1..].iter().map(|it| it.0).collect();
            say(&format!(
                "group {group}; then {}: {}",
                rest.len(),
                rest.join(", ")
            ));
            run(self)?;
            let mut finished = self.finished.borrow_mut();
            *finished += &format!("{group}\n");
            let path = self.folder.join(FINISHED);
            // Without rows there is nothing to continue from. After a failed check, a continued run
            // measures the failed group and all later groups again.
            if !self.rows.borrow().is_empty() && !self.failed.get() {
                fs::write(&path, &*finished).map_err(|error| at(&path, &error))?;
            }
        }
        Ok(())
    }

    /// Whether this row is listed and selected.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        rows::find(name).is_some() && self.selection.wants(name)
    }

    /// Runs entrants in turns, with the repetitions of judged rows.
    #[must_use]
    pub fn heat<'a>(&self, what: &str, entrants: Vec<Entrant<'a>>) -> Heat<'a> {
        Heat::run(what, self.scale.repetitions, entrants)
    }

    /// The figure of a single entrant, which has the repetitions of judged rows.
    ///
    /// # Errors
    /// Why the entrant has no figure.
    pub fn alone(
        &self,
        what: &str,
        run: impl FnMut() -> Result<f64, Failure>,
    ) -> Result<Spread, Failure> {
        self.heat(what, vec![Entrant::new(what, run)]).spread(what)
    }

    /// Runs the entrants whose names are selected rows in turns, and writes these rows.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn measure(&self, what: &str, entrants: Vec<Entrant<'_>>) -> io::Result<()> {
        self.measure_remarked(what, entrants, None)
    }

    /// As [`Self::measure`]. Each figure gets the remark, if there is one.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn measure_remarked(
        &self,
        what: &str,
        mut entrants: Vec<Entrant<'_>>,
        remark: Option<&str>,
    ) -> io::Result<()> {
        entrants.retain(|entrant| self.wants(&entrant.name));
        let repetitions = REPETITIONS.min(self.scale.repetitions);
        let heat = Heat::run(what, repetitions, entrants);
        heat.spreads().try_for_each(|(name, spread)| {
            let remark = remark.map(str::to_owned);
            self.put(name, None, spread.map(|spread| Figure { spread, remark }))
        })
    }

    /// Runs cases in turns, and writes the selected rows `CASE` + `PART` of each case. Each run
    /// measures all parts of a case.
    ///
    /// # Errors
    /// The results cannot be written.
    pub(crate) fn measure_parts<const N: usize>(
        &self,
        what: &str,
        parts: [&str; N],
        mut cases: Vec<(String, PartsRun<'_, N>)>,
    ) -> io::Result<()> {
        let name = |case: &str, part: &str| format!("{case}{part}");
        cases.retain(|(case, _)| parts.iter().any(|part| self.wants(&name(case, part))));
        let found = cases.iter().map(|_| RefCell::new(Ok([0.0; N])));
        let found: Vec<RefCell<Result<[f64; N], Failure>>> = found.collect();
        let (mut entrants, mut rows) = (Vec::new(), Vec::new());
        for ((case, run), found) in cases.into_iter().zip(&found) {
            let mut run = Some(run);
            for (index, part) in parts.iter().enumerate() {
                // The entrant of the first part makes the run.
                let mut run = run.take();
                entrants.push(Entrant::new(name(&case, part), move || {
                    if let Some(run) = &mut run {
                        *found.borrow_mut() = run();
                    }
                    Ok(found.borrow().clone()?[index])
                }));
                rows.push((case.clone(), name(&case, part)));
            }
        }
        let heat = Heat::run(what, REPETITIONS.min(self.scale.repetitions), entrants);
        rows.iter().try_for_each(|(case, name)| {
            let is_part = |part: &str| part.starts_with(case);
            self.row(name, None, || {
                heat.figure(&is_part, &|round| round.get(name)?.spread())
            })
        })
    }

    /// Measures a row if it is selected, compared with `versus` or alone.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn row<F: Into<Figure>>(
        &self,
        name: &str,
        versus: Option<&str>,
        measure: impl FnOnce() -> Result<F, Failure>,
    ) -> io::Result<()> {
        if self.wants(name) {
            return self.put(name, versus, measure());
        }
        Ok(())
    }

    /// Measures a row that compares the first entrant with the second entrant, if the row is
    /// selected. Other entrants only take turns with these two.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn versus<'a>(
        &self,
        name: &str,
        versus: &str,
        entrants: impl FnOnce() -> Result<Vec<Entrant<'a>>, Failure>,
    ) -> io::Result<()> {
        self.row(name, Some(versus), || {
            let heat = self.heat(name, entrants()?);
            heat.ratio(&heat.names()[0], &heat.names()[1])
        })
    }

    /// Writes a figure, relative or absolute, or the reason for its absence.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn put<F: Into<Figure>>(
        &self,
        name: &str,
        versus: Option<&str>,
        figure: Result<F, Failure>,
    ) -> io::Result<()> {
        if let Err(Failure::Count { .. } | Failure::Wrong(_)) = figure {
            self.failed.set(true);
        }
        let figure = figure.map(Into::into);
        let spread = figure.as_ref().map(|figure: &Figure| figure.spread);
        let mut row = Row::new(name, versus, spread);
        let against = row.versus.as_deref().unwrap_or_default();
        say(&match spread {
            Ok(Spread { median, min, max }) => {
                let unit = &row.unit;
                let mark = if row.unsteady { " UNSTEADY" } else { "" };
                format!("{name}: {median:.2} {unit} ({min:.2} to {max:.2}) {against}{mark}")
            }
            Err(_) => format!("{name}: NO FIGURE: {against}"),
        });
        row.remark = figure.ok().and_then(|figure| figure.remark);
        if let Some(remark) = &row.remark {
            say(&format!("  remark: {remark}"));
        }
        let mut rows = self.rows.borrow_mut();
        rows.retain(|earlier| earlier.name != row.name);
        rows.push(row);
        let lines: Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
        let text = format!("[\n  {}\n]\n", lines?.join(",\n  "));
        let path = self.folder.join(RESULTS);
        let part = path.with_extension("json.part");
        fs::write(&part, text).map_err(|error| at(&part, &error))?;
        fs::rename(&part, &path).map_err(|error| at(&path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPREAD: Spread = Spread {
        median: 2.0,
        min: 1.9,
        max: 2.1,
    };

    fn session(folder: &Path, selection: &str) -> Session {
        let scale = Scale {
            ring_bytes: 8 << 20,
            seconds: 0.001,
            repetitions: 1,
        };
        Session::start(folder, scale, Selection::parse(selection)).unwrap()
    }

    #[test]
    fn what_is_written_can_be_read_and_an_earlier_run_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RESULTS);
        fs::write(&path, "of an earlier run").unwrap();
        let session = session(folder.path(), "");
        assert!(!path.exists());
        let small = Failure::CannotRun("this machine has one core".to_owned());
        session.put("ring/cold-scan/ns", None, Ok(SPREAD)).unwrap();
        session
            .put("ring/64B/1p1c/vs-qq2016", Some("qq2016"), Ok(SPREAD))
            .unwrap();
        session
            .put::<Spread>("ring/64B/2p2c/vs-qq2016", Some("qq2016"), Err(small))
            .unwrap();
        assert!(
            !session.failed.get(),
            "a machine that is too small is no failed check"
        );
        let rows = read(folder.path()).unwrap();
        assert_eq!(rows, *session.rows.borrow());
        assert_eq!(
            (rows[0].unit.as_str(), rows[0].ratio, rows[0].max),
            ("ns", None, Some(2.1))
        );
        assert_eq!((rows[1].unit.as_str(), rows[1].ratio), ("ratio", Some(2.0)));
        assert_eq!(rows[2].versus.as_deref(), Some("this machine has one core"));
        assert_eq!((rows[2].value, rows[2].ratio), (None, None));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let lost = Failure::Count {
            expected: 2,
            seen: 1,
        };
        session
            .put::<Spread>("ring/cold-scan/ns", None, Err(lost))
            .unwrap();
        assert!(session.failed.get());
    }

    #[test]
    fn an_interrupted_run_continues_after_its_finished_groups() {
        let folder = tempfile::tempdir().unwrap();
        let row = "ring/bytes-per-64B";
        let first = session(folder.path(), row);
        first.run(&[Command::Quick]).unwrap();
        assert_eq!(first.rows.borrow().len(), 1);
        // A row of a group that the first run did not finish.
        first.put("ring/cold-scan/ns", None, Ok(SPREAD)).unwrap();
        let Session { scale, .. } = first;
        let selection = || Selection::parse(row);
        let next = Session::resume(folder.path(), scale, selection()).unwrap();
        let earlier = next.rows.borrow().clone();
        assert_eq!(earlier.len(), 2);
        next.run(&[Command::Quick]).unwrap();
        assert_eq!(*next.rows.borrow(), earlier, "nothing ran");
        next.put("ring/cold-scan/ns", None, Ok(SPREAD)).unwrap();
        assert_eq!(read(folder.path()).unwrap(), earlier, "one row of a name");
        next.complete().unwrap();
        let after = Session::resume(folder.path(), scale, selection()).unwrap();
        assert!(after.rows.borrow().is_empty(), "a complete run is repeated");
        let anew = Session::start(folder.path(), scale, selection()).unwrap();
        assert!(anew.rows.borrow().is_empty() && anew.finished.borrow().is_empty());
    }

    #[test]
    fn the_fields_are_the_agreed_ones() {
        let row = Row::new("ring/64B/1p1c/vs-qq2016", Some("qq2016"), Ok(SPREAD));
        let text = serde_json::to_string(&row).unwrap();
        let expected = r#"{"name":"ring/64B/1p1c/vs-qq2016","value":2.0,"unit":"ratio","versus":"qq2016","ratio":2.0,"min":1.9,"max":2.1}"#;
        assert_eq!(text, expected);
    }

    /// `remark` and `unsteady` follow the other fields of a row.
    #[test]
    fn a_remark_and_an_unsteady_figure_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path(), "");
        let spread = Spread { max: 2.3, ..SPREAD };
        let remark = Some("the denominator is unsound".to_owned());
        let figure = Figure { spread, remark };
        session
            .put("ring/64B/1p1c/vs-qq2016", Some("qq2016"), Ok(figure))
            .unwrap();
        let text = fs::read_to_string(folder.path().join(RESULTS)).unwrap();
        let expected =
            r#""min":1.9,"max":2.3,"remark":"the denominator is unsound","unsteady":true}"#;
        assert!(text.contains(expected), "{text}");
        assert_eq!(read(folder.path()).unwrap(), *session.rows.borrow());
    }

    #[test]
    fn names_are_selected_whole_or_by_their_beginning() {
        let selection = Selection::parse("ring/latency/, limits");
        assert!(selection.wants("ring/latency/idle-cpu") && selection.wants("limits/a/b"));
        assert!(!selection.wants("ring/64B") && !selection.wants("limitsx"));
        assert!(selection.wants_some_of("ring") && !selection.wants_some_of("filter"));
        assert!(Selection::parse("").wants("anything"));
        let unknown = |command, text| Selection::parse(text).unknown(command).map(str::to_owned);
        assert_eq!(unknown(Command::Quick, "ring,limits,filter"), None);
        assert_eq!(
            unknown(Command::Quick, "ring,limit"),
            Some("limit".to_owned())
        );
        assert_eq!(unknown(Command::Capture, "capture/64B"), None);
        assert_eq!(
            unknown(Command::Capture, "capture/65B"),
            Some("capture/65B".to_owned())
        );
    }
}
