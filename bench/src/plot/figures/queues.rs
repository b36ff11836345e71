//! Queues against each other: by use, packet size and threads.

use std::collections::BTreeSet;

use super::super::axis::Scale;
use super::super::bars::{Bar, Bars, Group};
use super::super::lines::{Lines, Panel, Series};
use super::super::palette::{self, Style, contestant};
use super::point;
use crate::rows::Row;
use crate::tables::names::{self, QueueRow, Topology, Use, most_threads, queues, rank, written};

pub(super) fn contestants_one(rows: &[Row]) -> Option<String> {
    contestants(rows, Topology::ONE)
}

pub(super) fn contestants_most(rows: &[Row]) -> Option<String> {
    contestants(rows, most_threads(rows)?)
}

/// Bars of every contestant and use with the smallest packets, the fastest first.
fn contestants(rows: &[Row], topology: Topology) -> Option<String> {
    let mut found: Vec<QueueRow<'_>> = queues(rows)
        .into_iter()
        .filter(|queue| queue.packet_bytes == 64 && queue.topology == topology)
        .collect();
    let speed = |queue: &QueueRow<'_>| queue.row.value.unwrap_or(-1.0);
    found.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    let bars = |wanted: fn(&QueueRow<'_>) -> bool| -> Vec<Bar> {
        found
            .iter()
            .filter(|queue| wanted(queue))
            .map(bar)
            .collect()
    };
    let groups = [
        (
            "Queues that retain what passes, and queues used well",
            bars(|q| q.usage <= Use::NonTemporal),
        ),
        (
            "One operation or one allocation for each packet",
            bars(|q| q.usage > Use::NonTemporal),
        ),
    ];
    let limit = |what: &str, name: &str| {
        let row = names::find(rows, &format!("limits/{what}/64B"))?;
        Some((name.to_owned(), row.value?))
    };
    let limits = if topology == Topology::ONE {
        limit("raw-insert", "raw insert")
    } else {
        None
    };
    Bars {
        title: format!("64-byte packets through each queue, {topology}: longer is better"),
        note: "Median, least and greatest repetition. Everything goes through as much memory as our ring has.".to_owned(),
        axis_label: "million packets a second".to_owned(),
        groups: groups
            .into_iter()
            .filter(|(_, bars)| !bars.is_empty())
            .map(|(heading, bars)| Group {
                heading: heading.to_owned(),
                bars,
            })
            .collect(),
        limits: limits.into_iter().collect(),
    }
    .draw()
}

fn bar(queue: &QueueRow<'_>) -> Bar {
    let name = written(queue.contestant);
    let (label, colour) = match (queue.contestant, queue.usage) {
        ("ring", _) => (name.to_owned(), palette::BLUE),
        ("qq2016", _) => (name.to_owned(), palette::VERMILION),
        (_, Use::Well) => (format!("{name}, buffers of 64"), palette::GREEN),
        (_, Use::NonTemporal) => (format!("{name}, buffers of 64, our NT copy"), palette::SKY),
        (_, Use::Naive) => (format!("{name}, packet by packet"), palette::ORANGE),
        (_, Use::Malloc) => (format!("{name}, malloc for each packet"), palette::PURPLE),
    };
    Bar {
        label,
        colour,
        strong: queue.contestant == "ring",
        measured: point(queue.row).ok_or_else(|| {
            queue
                .row
                .versus
                .clone()
                .unwrap_or("not measured".to_owned())
        }),
        remark: String::new(),
    }
}

pub(super) fn sizes_one(rows: &[Row]) -> Option<String> {
    sizes(rows, Topology::ONE)
}

pub(super) fn sizes_most(rows: &[Row]) -> Option<String> {
    sizes(rows, most_threads(rows)?)
}

/// Packet sizes that occur, rising.
fn sizes_of<'a>(queues: impl Iterator<Item = &'a QueueRow<'a>>) -> Vec<u32> {
    let sizes: BTreeSet<u32> = queues.map(|queue| queue.packet_bytes).collect();
    sizes.into_iter().collect()
}

/// Gbit/s of a million packets a second of `bytes`.
fn gigabits(bytes: u32) -> f64 {
    f64::from(bytes) * 8.0 / 1e3
}

/// Every contestant used well, over packet sizes, as packets and as bits.
fn sizes(rows: &[Row], topology: Topology) -> Option<String> {
    let found: Vec<QueueRow<'_>> = queues(rows)
        .into_iter()
        .filter(|queue| queue.topology == topology && queue.usage == Use::Well)
        .collect();
    let sizes = sizes_of(found.iter());
    let mut contestants: Vec<&str> = found.iter().map(|queue| queue.contestant).collect();
    contestants.sort_by_key(|name| rank(name));
    contestants.dedup();
    let mut series = Vec::new();
    if topology == Topology::ONE {
        let limits = [
            ("raw-insert", "raw NT insert (limit)", palette::BLACK),
            ("memcpy-insert", "plain memcpy insert", palette::GREY),
        ];
        for (what, name, colour) in limits {
            let limit =
                |size: &u32| names::find(rows, &format!("limits/{what}/{size}B")).and_then(point);
            series.push(Series {
                name: name.to_owned(),
                style: Style::limit(colour),
                points: sizes.iter().map(limit).collect(),
            });
        }
    }
    // Ours last, so that it lies on top.
    for name in contestants.into_iter().rev() {
        let at = |size: &u32| {
            let row = found
                .iter()
                .find(|q| q.contestant == name && q.packet_bytes == *size)?;
            point(row.row)
        };
        series.push(Series {
            name: written(name).to_owned(),
            style: contestant(name),
            points: sizes.iter().map(at).collect(),
        });
    }
    Lines {
        title: format!("Throughput by packet size, {topology}: higher is better"),
        note: "Other queues carry buffers of 64 packets through as much memory as our ring has. Median, least, greatest.".to_owned(),
        x_label: "bytes of a packet".to_owned(),
        categories: sizes.iter().map(u32::to_string).collect(),
        series,
        panels: vec![
            Panel {
                label: "million packets a second".to_owned(),
                scale: Scale::Log,
                factors: vec![1.0; sizes.len()],
            },
            Panel {
                label: "Gbit/s".to_owned(),
                scale: Scale::Linear,
                factors: sizes.iter().copied().map(gigabits).collect(),
            },
        ],
    }
    .draw()
}

/// Our ring and QQ of 2016 with every number of threads, and the memory's own limit for as many.
pub(super) fn threads(rows: &[Row]) -> Option<String> {
    let found: Vec<QueueRow<'_>> = queues(rows)
        .into_iter()
        .filter(|queue| queue.usage == Use::Well && rank(queue.contestant).0 < 2)
        .collect();
    let sizes = sizes_of(found.iter());
    let topologies: BTreeSet<Topology> = found.iter().map(|queue| queue.topology).collect();
    let topologies = ends_and_middle(topologies.into_iter().collect());
    let styles = [
        (palette::BLUE, palette::VERMILION, palette::BLACK),
        (palette::SKY, palette::ORANGE, palette::PALE_INK),
        (palette::GREEN, palette::PURPLE, palette::GREY),
    ];
    let mut series = Vec::new();
    for (topology, (ours, theirs, limit)) in topologies.iter().zip(&styles) {
        let name = format!("limits/nt-fill/{}t", topology.producers);
        if let Some(fill) = names::find(rows, &name).and_then(point) {
            // GB/s times eight, for every size.
            let bits = |size: &u32| {
                let factor = 8.0 / gigabits(*size);
                Some(super::Point {
                    value: fill.value * factor,
                    min: fill.min * factor,
                    max: fill.max * factor,
                })
            };
            series.push(Series {
                name: match topology.producers {
                    1 => "NT fill, 1 thread".to_owned(),
                    threads => format!("NT fill, {threads} threads"),
                },
                style: Style::limit(limit),
                points: sizes.iter().map(bits).collect(),
            });
        }
        for (name, colour) in [("qq2016", *theirs), ("ring", *ours)] {
            let at = |size: &u32| {
                let wanted = |q: &&QueueRow<'_>| {
                    q.contestant == name && q.packet_bytes == *size && q.topology == *topology
                };
                point(found.iter().find(wanted)?.row)
            };
            series.push(Series {
                name: format!(
                    "{} {topology}",
                    if name == "ring" {
                        "our ring"
                    } else {
                        "QQ of 2016"
                    }
                ),
                style: Style {
                    colour,
                    ..contestant(name)
                },
                points: sizes.iter().map(at).collect(),
            });
        }
    }
    Lines {
        title: "Our ring and QQ of 2016 by packet size and threads: higher is better".to_owned(),
        note: "The dashed lines are what as many threads fill of the same memory with non-temporal stores.".to_owned(),
        x_label: "bytes of a packet".to_owned(),
        categories: sizes.iter().map(u32::to_string).collect(),
        series,
        panels: vec![Panel {
            label: "Gbit/s".to_owned(),
            scale: Scale::Linear,
            factors: sizes.iter().copied().map(gigabits).collect(),
        }],
    }
    .draw()
}

/// At most three of `all`, which is in order: more lines than that cannot be told apart.
fn ends_and_middle(all: Vec<Topology>) -> Vec<Topology> {
    match all.len() {
        0..=3 => all,
        count => vec![all[0], all[count / 2], all[count - 1]],
    }
}
