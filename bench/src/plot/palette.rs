//! Colours and markers: the palette of Okabe and Ito ("Color Universal Design", 2008), which people with any colour vision
//! tell apart, without its yellow (too pale on white). Where colours run out, markers go on.

use super::svg::Marker;

/// Text.
pub(super) const INK: &str = "#222222";
/// Notes, axes.
pub(super) const PALE_INK: &str = "#555555";
/// Lines of the grid.
pub(super) const GRID: &str = "#e4e4e4";

pub(super) const BLUE: &str = "#0072b2";
pub(super) const VERMILION: &str = "#d55e00";
pub(super) const GREEN: &str = "#009e73";
pub(super) const ORANGE: &str = "#e69f00";
pub(super) const SKY: &str = "#56b4e9";
pub(super) const PURPLE: &str = "#cc79a7";
pub(super) const GREY: &str = "#888888";
pub(super) const BLACK: &str = "#000000";

/// How a series is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) colour: &'static str,
    pub(super) marker: Marker,
    pub(super) width: f64,
    pub(super) dashes: &'static str,
}

impl Style {
    /// The series that the figure is about.
    pub(super) const fn strong(colour: &'static str, marker: Marker) -> Style {
        Style {
            colour,
            marker,
            width: 3.0,
            dashes: "",
        }
    }

    /// A series to compare with.
    pub(super) const fn thin(colour: &'static str, marker: Marker) -> Style {
        Style {
            colour,
            marker,
            width: 1.4,
            dashes: "",
        }
    }

    /// A limit of the machine: dashed, without points.
    pub(super) const fn limit(colour: &'static str) -> Style {
        Style {
            colour,
            marker: Marker::None,
            width: 1.6,
            dashes: "6 4",
        }
    }
}

/// The style of a contestant, by the name it has in row names; one that nobody foresaw is grey.
pub(super) fn contestant(name: &str) -> Style {
    match name {
        "ring" => Style::strong(BLUE, Marker::Circle),
        "qq2016" => Style::strong(VERMILION, Marker::Square),
        "rtrb" => Style::thin(GREEN, Marker::Circle),
        "array-queue" => Style::thin(ORANGE, Marker::Square),
        "crossbeam-channel" => Style::thin(PURPLE, Marker::Triangle),
        "kanal" => Style::thin(SKY, Marker::Diamond),
        "flume" => Style::thin(GREY, Marker::Circle),
        "reader-writer-queue" => Style::thin(GREEN, Marker::Triangle),
        "concurrent-queue" => Style::thin(ORANGE, Marker::Diamond),
        "rte-ring-sp" => Style::thin(PURPLE, Marker::Square),
        "rte-ring-mp" => Style::thin(SKY, Marker::Circle),
        _ => Style::thin(GREY, Marker::Diamond),
    }
}
