//! Whole recorders on live traffic.

use super::super::{
    axis::Scale,
    lines::{Lines, Panel, Point, Series},
    palette::{self, Style},
    svg::Marker,
};
use super::point;
use crate::{
    rows::Row,
    tables::{
        blocks::distinct,
        names::{count, parts},
    },
};

/// Names of programs in rows, how they are written, and how they are drawn.
const PROGRAMS: [(&str, &str, Style); 5] = [
    ("sender", "the sender alone", Style::limit(palette::BLACK)),
    (
        "retroscope",
        "Retroscope, AF_PACKET",
        Style::strong(palette::BLUE, Marker::Circle),
    ),
    (
        "retroscope-af-xdp",
        "Retroscope, AF_XDP",
        Style::strong(palette::SKY, Marker::Diamond),
    ),
    (
        "tcpdump",
        "tcpdump",
        Style::thin(palette::VERMILION, Marker::Square),
    ),
    (
        "dumpcap",
        "dumpcap",
        Style::thin(palette::ORANGE, Marker::Triangle),
    ),
];

pub(super) fn lossless(rows: &[Row]) -> Option<String> {
    let found: Vec<(u32, &str, Point)> = rows
        .iter()
        .filter_map(|row| {
            let [size, program] = parts(row, "capture/lossless/")?;
            Some((count(size, "B")?, program, point(row)?))
        })
        .collect();
    let sizes = distinct(found.iter().map(|(size, ..)| *size));
    let series = PROGRAMS.iter().map(|(program, name, style)| {
        let at = |size: &u32| {
            let mut found = found.iter();
            let (.., point) = found.find(|(of, by, _)| of == size && by == program)?;
            Some(*point)
        };
        Series {
            name: (*name).to_owned(),
            style: *style,
            points: sizes.iter().map(at).collect(),
        }
    });
    Lines {
        title: "Highest rate without loss over a veth pair: higher is better".to_owned(),
        note: "Searched by halving: from the highest rate that lost nothing to the least that did. Kernel buffers for as many packets as 8 MiB of AF_PACKET hold."
            .to_owned(),
        x_label: "bytes of a packet, without its check sequence".to_owned(),
        categories: sizes.iter().map(u32::to_string).collect(),
        series: series.collect(),
        panels: vec![
            Panel {
                label: "million packets a second".to_owned(),
                scale: Scale::Linear,
                factors: vec![1.0; sizes.len()],
            },
            Panel {
                label: "Gbit/s".to_owned(),
                scale: Scale::Linear,
                factors: sizes.iter().map(|size| f64::from(*size) * 8e-3).collect(),
            },
        ],
    }
    .draw()
}
