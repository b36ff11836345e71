//! Compares two commits, measured in turns: which rows differ by more than their rounds do.
//!
//! `make bench-ab` runs each commit's own benchmarks and writes `base/N/results.json` and
//! `new/N/results.json` for round N. This module reads both and prints a table. A row gets *worse*
//! if every round of the new commit is worse than every round of the base. With five rounds each,
//! that happens to equal commits in 4 of 1,000 rows. A row also gets worse if the new commit has no
//! figure where the base has a figure.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::{
    measure::Spread,
    rows,
    session::{at, read},
};

/// The folder of the rounds of the base commit.
const BASE: &str = "base";
/// The folder of the rounds of the checkout that is compared with the base.
const NEW: &str = "new";

/// Figures of one row, by round.
type Rounds = BTreeMap<u32, f64>;

/// How a row changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The ranges of both commits overlap.
    WithinSpread,
    Better,
    Worse,
    /// The base has no figure.
    NotCompared,
    /// The base has figures, and the new commit has none: a check failed, for example.
    Lost,
}

/// Prints a table of all rows in `folder`, and returns whether no row got worse.
///
/// # Errors
/// An error, usually with the path, if a round cannot be read or a commit has no row.
pub fn compare(folder: &Path, print: impl Fn(&str)) -> io::Result<bool> {
    let base = rounds(&folder.join(BASE))?;
    let new = rounds(&folder.join(NEW))?;
    print("| row | base: median (min to max) | new | new / base, median of rounds | |");
    print("|---|---|---|---|---|");
    let mut is_fine = true;
    let names: Vec<_> = base.keys().chain(new.keys()).collect();
    let names: std::collections::BTreeSet<_> = names.into_iter().collect();
    for name in names {
        let none = Rounds::new();
        let base = base.get(name).unwrap_or(&none);
        let new = new.get(name).unwrap_or(&none);
        let change = change(is_less_better(name), base, new);
        is_fine &= !matches!(change, Change::Worse | Change::Lost);
        let ratios = new
            .iter()
            .filter_map(|(round, new)| Some(new / base.get(round)?));
        let ratio = Spread::of(&ratios.collect::<Vec<_>>());
        let ratio = ratio.map_or_else(|_| "–".to_owned(), |ratio| format!("{:.3}", ratio.median));
        let words = match change {
            Change::WithinSpread => "",
            Change::Better => "better",
            Change::Worse => "**WORSE**",
            Change::NotCompared => "not compared",
            Change::Lost => "**NO FIGURE**",
        };
        print(&format!(
            "| {name} | {} | {} | {ratio} | {words} |",
            cell(base),
            cell(new)
        ));
    }
    Ok(is_fine)
}

/// Reads all rounds of a commit: figures by row.
fn rounds(folder: &Path) -> io::Result<BTreeMap<String, Rounds>> {
    let mut figures: BTreeMap<String, Rounds> = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(round) = name.and_then(|name| name.parse().ok()) else {
            continue;
        };
        for row in read(&path)? {
            let rounds = figures.entry(row.name).or_default();
            if let Some(value) = row.value {
                rounds.insert(round, value);
            }
        }
    }
    if figures.is_empty() {
        let none = io::Error::other("there is no round here");
        return Err(at(folder, &none));
    }
    Ok(figures)
}

/// Whether a smaller figure of this row counts as better: determined by its goal, or without a goal
/// by its name and unit.
fn is_less_better(name: &str) -> bool {
    let Some(row) = rows::find(name) else {
        return false;
    };
    match row.goal.split_once(' ') {
        Some((sign, _)) => sign == "≤",
        None if row.unit == "ratio" => name.contains("/cpu-vs-"),
        None if row.unit == "percent" => {
            let parts = ["overload", "events", "connections"];
            !name.split('/').any(|part| parts.contains(&part))
        }
        None => !matches!(row.unit, "Mpps" | "pps" | "MB/s" | "Gbit/s" | "M/s"),
    }
}

fn change(is_less_better: bool, base: &Rounds, new: &Rounds) -> Change {
    let Ok(base) = spread(base) else {
        return Change::NotCompared;
    };
    let Ok(new) = spread(new) else {
        return Change::Lost;
    };
    let (is_lower, is_higher) = (new.max < base.min, new.min > base.max);
    match (is_lower, is_higher, is_less_better) {
        (false, false, _) => Change::WithinSpread,
        (true, _, true) | (_, true, false) => Change::Better,
        _ => Change::Worse,
    }
}

fn spread(rounds: &Rounds) -> Result<Spread, crate::measure::Failure> {
    Spread::of(&rounds.values().copied().collect::<Vec<_>>())
}

fn cell(rounds: &Rounds) -> String {
    spread(rounds).map_or_else(
        |_| "no figure".to_owned(),
        |Spread { median, min, max }| format!("{median:.3} ({min:.3} to {max:.3})"),
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Writes a round with a figure, or `null`, for each row.
    fn round(folder: &Path, rows: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        let row = |(name, value): &(&str, &str)| {
            format!(
                r#"{{"name":"{name}","value":{value},"unit":"","versus":null,"ratio":null,"min":null,"max":null}}"#
            )
        };
        let text: Vec<_> = rows.iter().map(row).collect();
        fs::write(
            folder.join(crate::session::RESULTS),
            format!("[{}]", text.join(",")),
        )
        .unwrap();
    }

    fn compared(rows: &[(&str, [&str; 3], [&str; 3])]) -> (bool, String) {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..3 {
            let base: Vec<_> = rows
                .iter()
                .map(|(name, base, _)| (*name, base[number]))
                .collect();
            let new: Vec<_> = rows
                .iter()
                .map(|(name, _, new)| (*name, new[number]))
                .collect();
            let number = (number + 1).to_string();
            round(&folder.path().join(BASE).join(&number), &base);
            round(&folder.path().join(NEW).join(&number), &new);
        }
        let text = RefCell::new(String::new());
        let is_fine = compare(folder.path(), |line| {
            text.borrow_mut().push_str(line);
            text.borrow_mut().push('\n');
        });
        (is_fine.unwrap(), text.into_inner())
    }

    #[test]
    fn a_row_is_worse_only_if_no_rounds_overlap() {
        let overlap = ["1.0", "9.0", "8.0"];
        let rows = [
            ("ring/cold-scan/ns", ["9.0", "10.0", "11.0"], overlap),
            (
                "ring/64B/1p1c/vs-qq2016",
                ["3.0", "3.1", "3.2"],
                ["4.0", "4.1", "4.2"],
            ),
        ];
        let (is_fine, text) = compared(&rows);
        assert!(is_fine, "{text}");
        assert!(
            text.contains("| ring/64B/1p1c/vs-qq2016 | 3.100 (3.000 to 3.200) | 4.100 (4.000 to 4.200) | 1.323 | better |"),
            "{text}"
        );
        for (name, new) in [
            ("ring/cold-scan/ns", ["12.0", "12.5", "13.0"]),
            ("capture/64B/cpu-vs-tcpdump", ["12.0", "12.5", "13.0"]),
            ("capture/64B/retroscope-ns", ["12.0", "12.5", "13.0"]),
            ("queue/ring/64B/1p1c/well", ["7.0", "7.5", "8.0"]),
            ("ring/60B/1p1c/vs-qq2016", ["7.0", "7.5", "8.0"]),
            ("overload/af-packet/1q", ["7.0", "7.5", "8.0"]),
            ("shed/all/400pc/events", ["7.0", "7.5", "8.0"]),
            ("shed/all/400pc/kernel", ["12.0", "12.5", "13.0"]),
            ("dump/plain/64B", ["7.0", "7.5", "8.0"]),
        ] {
            let (is_fine, text) = compared(&[(name, ["9.0", "10.0", "11.0"], new)]);
            assert!(!is_fine && text.contains("**WORSE**"), "{name}: {text}");
        }
    }

    #[test]
    fn a_row_without_figures_is_named_and_a_commit_without_rounds_is_an_error() {
        let (is_fine, text) = compared(&[(
            "ring/cold-scan/ns",
            ["9.0", "9.0", "9.0"],
            ["null", "null", "null"],
        )]);
        assert!(
            !is_fine && text.contains("no figure | – | **NO FIGURE**"),
            "{text}"
        );
        let none = ["null", "null", "null"];
        let (is_fine, text) = compared(&[("ring/cold-scan/ns", none, ["9.0", "9.0", "9.0"])]);
        assert!(is_fine && text.contains("not compared"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        assert!(compare(folder.path(), |_| ()).is_err());
    }
}
