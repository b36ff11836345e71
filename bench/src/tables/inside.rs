//! Tables of what is inside the ring: ablation, buckets, outer queue, distance, latency.

use super::blocks::{cell, distinct, table, words};
use super::names::{count, find, parts, rank, rate, written};
use crate::plot::{number, steps};
use crate::rows::Row;

pub(super) fn ablation(rows: &[Row]) -> Option<String> {
    let mut before: Option<f64> = None;
    let mut lines = Vec::new();
    for (number_of_step, change, row) in steps(rows) {
        let factor = match (before, row.value) {
            (Some(before), Some(value)) => format!("× {}", number(value / before)),
            _ => String::new(),
        };
        before = row.value.or(before);
        let change = if number_of_step == 0 {
            written(&change).to_owned()
        } else {
            change
        };
        lines.push(vec![
            number_of_step.to_string(),
            change,
            cell(Some(row)),
            factor,
        ]);
    }
    table(
        &words([
            "",
            "change, kept in all lines below",
            "Mpps",
            "against the line above",
        ]),
        &lines,
    )
}

pub(super) fn buckets(rows: &[Row]) -> Option<String> {
    let found = |prefix: &'static str| {
        let parse = move |row| {
            let [bucket, size]: [&str; 2] = parts(row, prefix)?;
            Some((count(bucket, "MiB")?, count(size, "B")?, row))
        };
        rows.iter()
            .filter_map(parse)
            .collect::<Vec<(u32, u32, &Row)>>()
    };
    let owners = [
        ("our ring", found("bucket/")),
        ("QQ of 2016", found("bucket-qq2016/")),
    ];
    let all = || owners.iter().flat_map(|(_, rows)| rows);
    let buckets = distinct(all().map(|(bucket, ..)| *bucket));
    let mut lines = Vec::new();
    for (owner, rows) in &owners {
        for size in distinct(rows.iter().map(|(_, size, _)| *size)) {
            let at = |bucket: &u32| {
                let row = rows.iter().find(|(b, s, _)| b == bucket && *s == size);
                cell(row.map(|(.., row)| *row))
            };
            let name = format!("{owner}, {size} B");
            lines.push([name].into_iter().chain(buckets.iter().map(at)).collect());
        }
    }
    let heading = buckets.iter().map(|bucket| format!("{bucket} MiB"));
    let heading: Vec<_> = ["Mpps".to_owned()].into_iter().chain(heading).collect();
    table(&heading, &lines)
}

/// Contestants by some number: rows named `PREFIX CONTESTANT / NUMBER`.
pub(super) fn grid(
    rows: &[Row],
    prefix: &str,
    what: &str,
    place: fn(&str) -> Option<u32>,
) -> Option<String> {
    let parse = |row| {
        let [contestant, at]: [&str; 2] = parts(row, prefix)?;
        Some((contestant, place(at)?, row))
    };
    let found: Vec<(&str, u32, &Row)> = rows.iter().filter_map(parse).collect();
    let places = distinct(found.iter().map(|(_, place, _)| *place));
    let contestants = distinct(found.iter().map(|(contestant, ..)| rank(contestant)));
    let line = |(_, contestant): (u32, &str)| {
        let at = |place: &u32| {
            let row = found
                .iter()
                .find(|(c, p, _)| *c == contestant && p == place);
            cell(row.map(|(.., row)| *row))
        };
        [written(contestant).to_owned()]
            .into_iter()
            .chain(places.iter().map(at))
            .collect()
    };
    let lines: Vec<Vec<String>> = contestants.into_iter().map(line).collect();
    let unit = found.first().map_or("", |(.., row)| row.unit.as_str());
    let heading = places.iter().map(u32::to_string);
    let heading: Vec<_> = [format!("{unit} by {what}")]
        .into_iter()
        .chain(heading)
        .collect();
    table(&heading, &lines)
}

/// The rate without pauses, whose bound is another.
const SATURATED: &str = "saturated";
/// What 99 of 100 packets may take at any other rate, µs.
const P99_US_MAX: f64 = 500.0;

pub(super) fn latency(rows: &[Row]) -> Option<String> {
    let mut lines = Vec::new();
    for (prefix, owner) in [("latency/", "our ring"), ("latency-qq2016/", "QQ of 2016")] {
        let rate_of = |row| {
            let [at, _]: [&str; 2] = parts(row, prefix)?;
            rate(at).map(|_| at)
        };
        let mut rates: Vec<&str> = rows.iter().filter_map(rate_of).collect();
        rates.sort_by(|a, b| {
            rate(a)
                .partial_cmp(&rate(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        rates.dedup();
        for at in rates {
            let row = |part: &str| find(rows, &format!("{prefix}{at}/{part}"));
            let p99_us = row("p99").and_then(|row| row.value);
            let verdict = match p99_us.filter(|_| at != SATURATED) {
                Some(us) if us <= P99_US_MAX => "met",
                Some(_) => "**missed**",
                None => "–",
            };
            lines.push(vec![
                owner.to_owned(),
                at.to_owned(),
                cell(row("p50")),
                cell(row("p99")),
                verdict.to_owned(),
                cell(row("max")),
                cell(row("stolen")),
            ]);
        }
    }
    if let Some(bound) = find(rows, "latency/two-buckets") {
        let none = || "–".to_owned();
        lines.push(vec![
            "two buckets (bound)".to_owned(),
            SATURATED.to_owned(),
            none(),
            cell(Some(bound)),
            none(),
            none(),
            none(),
        ]);
    }
    let goal = format!("p99 ≤ {P99_US_MAX}");
    table(
        &words([
            "µs",
            "rate",
            "p50",
            "p99",
            &goal,
            "max",
            "taken by the host, ms",
        ]),
        &lines,
    )
}

#[cfg(test)]
mod tests {
    use super::super::blocks::make_up;
    use super::super::names::made_up;

    #[test]
    fn steps_are_against_the_one_before() {
        let rows = [
            made_up("ablation/1-clock-per-burst", 60.0, "Mpps"),
            made_up("ablation/0-qq2016", 48.0, "Mpps"),
        ];
        let text = make_up("ablation", &rows);
        assert!(
            text.contains("| 0 | QQ of 2016 | 48.0 |  |\n| 1 | clock per burst | 60.0 | × 1.25 |"),
            "{text}"
        );
    }

    #[test]
    fn rates_stand_in_order_with_the_bound_last() {
        let rows = [
            made_up("latency/saturated/p99", 900.0, "us"),
            made_up("latency/idle/p99", 80.0, "us"),
            made_up("latency/idle/stolen", 20.0, "ms"),
            made_up("latency/1mpps/p99", 501.0, "us"),
            made_up("latency/two-buckets", 1_000.0, "us"),
        ];
        let text = make_up("latency", &rows);
        assert!(
            text.contains("| idle | – | 80.0 | met | – | 20.0 |"),
            "{text}"
        );
        assert!(
            text.contains("| 1mpps | – | 501 | **missed** | – | – |"),
            "{text}"
        );
        assert!(text.contains("| saturated | – | 900 | – |"), "{text}");
        let rates: Vec<_> = text
            .lines()
            .skip(2)
            .filter_map(|line| line.split(" | ").nth(1))
            .collect();
        assert_eq!(rates, ["idle", "1mpps", "saturated", "saturated"]);
    }
}
