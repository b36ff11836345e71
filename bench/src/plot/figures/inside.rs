//! What is inside the ring, and inside the machine: buckets, outer queue, distance, latency, ablation, limits.

use std::collections::{BTreeMap, BTreeSet};

use super::super::axis::{Scale, number};
use super::super::bars::{Bar, Bars, Group};
use super::super::lines::{Lines, Panel, Point, Series};
use super::super::palette::{self, Style, contestant};
use super::super::svg::Marker;
use super::point;
use crate::rows::Row;
use crate::tables::names::{count, find, parts, rate, written};

/// Points by series and place, as they are found among the rows.
#[derive(Default)]
struct Grid {
    places: BTreeSet<u32>,
    series: BTreeMap<String, BTreeMap<u32, Point>>,
}

impl Grid {
    fn add(&mut self, series: &str, place: u32, row: &Row) {
        if let Some(point) = point(row) {
            self.places.insert(place);
            let line = self.series.entry(series.to_owned()).or_default();
            line.insert(place, point);
        }
    }

    /// The lines with their names and styles; `look` gets the name under which a series was added.
    fn lines(&self, look: impl Fn(&str) -> (String, Style)) -> Vec<Series> {
        let line = |(name, points): (&String, &BTreeMap<u32, Point>)| {
            let (name, style) = look(name);
            Series {
                name,
                style,
                points: self
                    .places
                    .iter()
                    .map(|place| points.get(place).copied())
                    .collect(),
            }
        };
        self.series.iter().map(line).collect()
    }

    fn categories(&self) -> Vec<String> {
        self.places.iter().map(u32::to_string).collect()
    }

    fn panel(&self, label: &str, scale: Scale) -> Vec<Panel> {
        vec![Panel {
            label: label.to_owned(),
            scale,
            factors: vec![1.0; self.places.len()],
        }]
    }
}

pub(super) fn buckets(rows: &[Row]) -> Option<String> {
    let mut grid = Grid::default();
    for row in rows {
        for (prefix, owner) in [("bucket/", "ring"), ("bucket-qq2016/", "qq2016")] {
            if let Some([bucket, size]) = parts(row, prefix)
                && let (Some(bucket), Some(size)) = (count(bucket, "MiB"), count(size, "B"))
            {
                grid.add(&format!("{owner} {size}"), bucket, row);
            }
        }
    }
    let look = |name: &str| {
        let (owner, size) = name.split_once(' ').unwrap_or((name, ""));
        let style = contestant(owner);
        let small = size == "64";
        let style = match owner {
            "ring" if !small => Style::strong(palette::SKY, Marker::Diamond),
            _ if !small => Style::strong(palette::ORANGE, Marker::Triangle),
            _ => style,
        };
        (format!("{}, {size} B", short(owner)), style)
    };
    Lines {
        title: "Throughput by size of a bucket, 1P1C: higher is better".to_owned(),
        note: "One bucket is one inner queue. Median, least and greatest repetition.".to_owned(),
        x_label: "MiB in a bucket".to_owned(),
        categories: grid.categories(),
        series: grid.lines(look),
        panels: grid.panel("million packets a second", Scale::Linear),
    }
    .draw()
}

fn short(contestant: &str) -> &str {
    if contestant == "ring" {
        "our ring"
    } else {
        written(contestant)
    }
}

pub(super) fn outer(rows: &[Row]) -> Option<String> {
    let mut grid = Grid::default();
    for row in rows {
        if let Some([contestant, threads]) = parts(row, "outer/")
            && let Some(threads) = count(threads, "t")
        {
            grid.add(contestant, threads, row);
        }
    }
    Lines {
        title: "Operations on the outer queue by threads: higher is better".to_owned(),
        note: "Nothing is stored: threads only take and give back inner queues. One operation pays for a whole bucket.".to_owned(),
        x_label: "threads".to_owned(),
        categories: grid.categories(),
        series: grid.lines(|name| (short(name).to_owned(), contestant(name))),
        panels: grid.panel("million operations a second", Scale::Log),
    }
    .draw()
}

pub(super) fn guard(rows: &[Row]) -> Option<String> {
    let mut grid = Grid::default();
    for row in rows {
        if let Some([contestant, distance]) = parts(row, "guard/")
            && let Ok(distance) = distance.parse()
        {
            grid.add(contestant, distance, row);
        }
    }
    Lines {
        title: "Throughput by distance between writer and reader, 64 B: higher is better".to_owned(),
        note: "QQ of 2016 needs a guard interval. Our readers hold what they read; at 0 they follow the open bucket.".to_owned(),
        x_label: "inner queues between writer and reader".to_owned(),
        categories: grid.categories(),
        series: grid.lines(|name| (short(name).to_owned(), contestant(name))),
        panels: grid.panel("million packets a second", Scale::Linear),
    }
    .draw()
}

pub(super) fn latency(rows: &[Row]) -> Option<String> {
    let found = |prefix: &str| -> Vec<(f64, String, String, Point)> {
        let of = |row| {
            let [at, part]: [&str; 2] = parts(row, prefix)?;
            Some((rate(at)?, at.to_owned(), part.to_owned(), point(row)?))
        };
        rows.iter().filter_map(of).collect()
    };
    let (ours, theirs) = (found("latency/"), found("latency-qq2016/"));
    let mut rates: Vec<(f64, String)> = ours
        .iter()
        .chain(&theirs)
        .map(|(n, name, ..)| (*n, name.clone()))
        .collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    rates.dedup();
    let line = |from: &[(f64, String, String, Point)], part: &str| -> Vec<Option<Point>> {
        let at = |(_, name): &(f64, String)| {
            from.iter()
                .find(|(_, at, of, _)| at == name && of == part)
                .map(|(.., point)| *point)
        };
        rates.iter().map(at).collect()
    };
    let mut series = Vec::new();
    if let Some(bound) = find(rows, "latency/two-buckets").and_then(point)
        && !rates.is_empty()
    {
        series.push(Series {
            name: "two buckets (bound)".to_owned(),
            style: Style::limit(palette::BLACK),
            points: vec![Some(bound); rates.len()],
        });
    }
    let looks = [
        ("max", palette::VERMILION, palette::PURPLE, Marker::Triangle),
        ("p99", palette::BLUE, palette::ORANGE, Marker::Circle),
        ("p50", palette::GREEN, palette::GREY, Marker::Square),
    ];
    for (part, colour, other, marker) in looks {
        for (from, name, style) in [
            (&theirs, "QQ of 2016", Style::thin(other, marker)),
            (&ours, "our ring", Style::strong(colour, marker)),
        ] {
            series.push(Series {
                name: format!("{name}, {part}"),
                style,
                points: line(from, part),
            });
        }
    }
    Lines {
        title: "Latency from store to peek by rate: lower is better".to_owned(),
        note: "One packet each at 64 B, 1P1C; at idle rates the reader sleeps between packets."
            .to_owned(),
        x_label: "packets a second".to_owned(),
        categories: rates.iter().map(|(_, name)| rate_label(name)).collect(),
        series,
        panels: vec![Panel {
            label: "microseconds".to_owned(),
            scale: Scale::Log,
            factors: vec![1.0; rates.len()],
        }],
    }
    .draw()
}

/// `1mpps` as people write it: 1 M.
fn rate_label(rate: &str) -> String {
    match (rate.strip_suffix("kpps"), rate.strip_suffix("mpps")) {
        (Some(number), _) => format!("{number} k"),
        (_, Some(number)) => format!("{number} M"),
        _ => rate.to_owned(),
    }
}

/// The steps of the ablation in order: their number, what was changed, and the row.
pub(crate) fn steps(rows: &[Row]) -> Vec<(u32, String, &Row)> {
    let step = |row| {
        let [step]: [&str; 1] = parts(row, "ablation/")?;
        let (number, change) = step.split_once('-')?;
        Some((number.parse().ok()?, change.replace('-', " "), row))
    };
    let mut steps: Vec<_> = rows.iter().filter_map(step).collect();
    steps.sort_by_key(|(number, ..)| *number);
    steps
}

pub(super) fn ablation(rows: &[Row]) -> Option<String> {
    let steps = steps(rows);
    let mut before: Option<f64> = None;
    let mut bars = Vec::new();
    for (number_of_step, change, row) in &steps {
        let remark = match (before, row.value) {
            (Some(before), Some(value)) => format!("× {}", number(value / before)),
            _ => String::new(),
        };
        before = row.value.or(before);
        let first = bars.is_empty();
        bars.push(Bar {
            label: if first {
                written(change).to_owned()
            } else {
                format!("{number_of_step}  {change}")
            },
            colour: if first {
                palette::VERMILION
            } else {
                palette::BLUE
            },
            strong: false,
            measured: point(row)
                .ok_or_else(|| row.versus.clone().unwrap_or("not measured".to_owned())),
            remark,
        });
    }
    let limit = find(rows, "limits/raw-insert/64B").and_then(|row| row.value);
    Bars {
        title: "From QQ of 2016 to our ring, one change at a time: longer is better".to_owned(),
        note:
            "64 B, 1P1C. Each bar keeps the changes above it; the factor is against the bar above."
                .to_owned(),
        axis_label: "million packets a second".to_owned(),
        groups: vec![Group {
            heading: String::new(),
            bars,
        }],
        limits: limit
            .map(|value| ("raw insert".to_owned(), value))
            .into_iter()
            .collect(),
    }
    .draw()
}

pub(super) fn limits(rows: &[Row]) -> Option<String> {
    let mut by_threads: BTreeMap<u32, Vec<Bar>> = BTreeMap::new();
    for row in rows {
        if let Some([what, threads]) = parts(row, "limits/")
            && let Some(threads) = count(threads, "t")
        {
            let (label, colour) = match what {
                "nt-fill" => ("fill, non-temporal stores", palette::BLUE),
                "fill" => ("fill, regular stores", palette::SKY),
                "nt-copy" => ("copy, non-temporal stores", palette::VERMILION),
                "copy" => ("copy, regular stores", palette::ORANGE),
                "read" => ("read", palette::GREEN),
                other => (other, palette::GREY),
            };
            by_threads.entry(threads).or_default().push(Bar {
                label: label.to_owned(),
                colour,
                strong: false,
                measured: point(row)
                    .ok_or_else(|| row.versus.clone().unwrap_or("not measured".to_owned())),
                remark: String::new(),
            });
        }
    }
    let heading = |threads: u32| {
        if threads == 1 {
            "1 thread".to_owned()
        } else {
            format!("{threads} threads")
        }
    };
    Bars {
        title: "What the memory itself gives: longer is better".to_owned(),
        note: "The same memory as the ring's, measured in the same run. Median, least and greatest repetition.".to_owned(),
        axis_label: "GB/s (10⁹ bytes; a copy counts what it copies once)".to_owned(),
        groups: by_threads
            .into_iter()
            .map(|(threads, bars)| Group {
                heading: heading(threads),
                bars,
            })
            .collect(),
        limits: Vec::new(),
    }
    .draw()
}
