//! Rows of results, and the file they go to.
//!
//! `results.json` is an array of objects with the fields of [`Row`]. It is replaced as a whole, by renaming, after each group of
//! measurements, so that a reader never sees half a file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{contest::Failure, measure::Spread};

/// A file of rows, in the folder of results.
pub const RESULTS: &str = "results.json";

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `ring/64B/1p1c/vs-qq2016`.
    pub name: String,
    /// The figure, in `unit`: the median of the repetitions. `None`: there is none, `versus` says why.
    pub value: Option<f64>,
    /// `Mpps`, `GB/s` (10^9 bytes), `ms`, `us`, `ns`, `percent`, `bytes`, `ratio` or `Mops/s`.
    pub unit: String,
    /// What it was compared with; of a row without a figure, the reason in words.
    pub versus: Option<String>,
    /// How many times as good as `versus`: the median of the ratios of each repetition.
    pub ratio: Option<f64>,
    /// The least repetition, of what `value` is.
    pub min: Option<f64>,
    /// The greatest repetition.
    pub max: Option<f64>,
}

impl Row {
    /// An absolute figure.
    #[must_use]
    pub fn absolute(name: impl Into<String>, unit: &str, spread: Spread) -> Self {
        Self {
            name: name.into(),
            value: Some(spread.median),
            unit: unit.to_owned(),
            versus: None,
            ratio: None,
            min: Some(spread.min),
            max: Some(spread.max),
        }
    }

    /// A comparison: `value` is the ratio too.
    #[must_use]
    pub fn ratio(name: impl Into<String>, versus: &str, spread: Spread) -> Self {
        Self {
            versus: Some(versus.to_owned()),
            ratio: Some(spread.median),
            ..Self::absolute(name, "ratio", spread)
        }
    }

    /// No figure, and why.
    #[must_use]
    pub fn missing(name: impl Into<String>, unit: &str, why: &Failure) -> Self {
        Self {
            name: name.into(),
            value: None,
            unit: unit.to_owned(),
            versus: Some(why.to_string()),
            ratio: None,
            min: None,
            max: None,
        }
    }
}

/// Which rows are wanted: a comma list of names, or of beginnings of names up to a slash.
#[derive(Debug, Clone, Default)]
pub struct Selection(Vec<String>);

impl Selection {
    /// `ring/latency,limits`; empty: all.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let items = text
            .split(',')
            .map(|item| item.trim().trim_end_matches('/'));
        Self(
            items
                .filter(|item| !item.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Whether a row is.
    #[must_use]
    pub fn wants(&self, row: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|item| below(row, item))
    }

    /// Whether one of these is.
    #[must_use]
    pub fn wants_any(&self, rows: &[&str]) -> bool {
        rows.iter().any(|row| self.wants(row))
    }

    /// Whether a row may be that begins with `group` and a slash.
    #[must_use]
    pub fn wants_below(&self, group: &str) -> bool {
        self.wants(group) || self.0.iter().any(|item| below(item, group))
    }

    /// What of the selection names none of `rows`.
    pub fn unknown<'a>(&'a self, rows: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
        let unknown = |item: &&str| !rows.iter().any(|row| below(row, item));
        self.0.iter().map(String::as_str).filter(unknown)
    }
}

/// `ring/64B` is below `ring`, `ring/64B` and not below `ring/6`.
fn below(row: &str, item: &str) -> bool {
    row.strip_prefix(item)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The rows of this run, and where they go.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    rows: Vec<Row>,
    failed: bool,
}

impl Results {
    /// Removes the results of an earlier run, makes the folder where needed.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let path = folder.join(RESULTS);
        fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path, &error)),
            _ => {}
        }
        Ok(Self {
            path,
            rows: Vec::new(),
            failed: false,
        })
    }

    /// Adds rows and writes the file.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn add(&mut self, rows: impl IntoIterator<Item = Row>) -> io::Result<()> {
        self.rows.extend(rows);
        let mut text = String::from("[\n");
        for (number, row) in self.rows.iter().enumerate() {
            text.push_str("  ");
            text.push_str(&serde_json::to_string(row)?);
            text.push_str(if number + 1 < self.rows.len() {
                ",\n"
            } else {
                "\n"
            });
        }
        text.push_str("]\n");
        let part = self.path.with_extension("json.part");
        fs::write(&part, text).map_err(|error| at(&part, &error))?;
        fs::rename(&part, &self.path).map_err(|error| at(&self.path, &error))
    }

    /// Remembers that a check failed: the program will not end with 0.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether one did.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// All of them, in the order in which they were added.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads a file that [`Results`] wrote.
///
/// # Errors
/// The system's, or what is wrong with the text, with the path.
pub fn read(path: &Path) -> io::Result<Vec<Row>> {
    let text = fs::read_to_string(path).map_err(|error| at(path, &error))?;
    serde_json::from_str(&text).map_err(|error| at(path, &error.into()))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPREAD: Spread = Spread {
        median: 2.0,
        min: 1.5,
        max: 2.5,
    };

    #[test]
    fn what_is_written_can_be_read_and_an_earlier_run_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RESULTS);
        fs::write(&path, "of an earlier run").unwrap();
        let mut results = Results::start(folder.path()).unwrap();
        assert!(!path.exists());
        results.add([Row::absolute("a/b", "Mpps", SPREAD)]).unwrap();
        let why = Failure::CannotRun("this machine has one core".to_owned());
        results
            .add([
                Row::ratio("a/c", "peer", SPREAD),
                Row::missing("a/d", "us", &why),
            ])
            .unwrap();
        let rows = read(&path).unwrap();
        assert_eq!(rows, results.rows());
        assert_eq!(rows[1].ratio, Some(2.0));
        assert_eq!(rows[2].versus.as_deref(), Some("this machine has one core"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_fields_are_the_agreed_ones() {
        let text = serde_json::to_string(&Row::ratio("n", "peer", SPREAD)).unwrap();
        assert_eq!(
            text,
            r#"{"name":"n","value":2.0,"unit":"ratio","versus":"peer","ratio":2.0,"min":1.5,"max":2.5}"#
        );
    }

    #[test]
    fn a_selection_names_rows_or_folders() {
        let all = Selection::parse("");
        assert!(all.wants("anything"));
        let some = Selection::parse("ring/latency, limits/,recorder/64B/vs-ring");
        assert!(some.wants("ring/latency/idle-cpu"));
        assert!(some.wants("limits/raw-insert/vs-nt-fill"));
        assert!(!some.wants("ring/64B/1p1c/vs-qq2016"));
        assert!(!Selection::parse("ring/6").wants("ring/64B/1p1c/vs-qq2016"));
        let rows = ["ring/latency/idle-cpu", "limits/x"];
        assert!(some.wants_any(&rows));
        assert!(some.wants_below("recorder") && some.wants_below("limits"));
        assert!(!some.wants_below("queue"));
        assert_eq!(
            some.unknown(&rows).collect::<Vec<_>>(),
            ["recorder/64B/vs-ring"]
        );
    }
}
