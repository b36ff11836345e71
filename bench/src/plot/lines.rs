//! Lines over categories: how a figure changes with packet size, bucket size, threads, distance or rate.
//!
//! Categories stand at equal distances (they are powers of two nearly everywhere). Each series is named at its right end;
//! names that would cover each other are pushed apart.

use super::axis::{Axis, Scale, tick_number};
use super::palette::{self, Style};
use super::svg::{Anchor, Font, Stroke, Svg};

/// A median and the least and greatest repetition, in the unit of the panel before its factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) value: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Point {
    fn times(self, factor: f64) -> Point {
        Point {
            value: self.value * factor,
            min: self.min * factor,
            max: self.max * factor,
        }
    }
}

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) style: Style,
    /// One for each category, in its order; `None` where nothing ran.
    pub(super) points: Vec<Option<Point>>,
}

/// One of the plots side by side; all show the same series.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    /// What the axis shows, with its unit.
    pub(super) label: String,
    pub(super) scale: Scale,
    /// What the points of each category are multiplied with for this panel.
    pub(super) factors: Vec<f64>,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// What is shown, and which direction is better.
    pub(super) title: String,
    /// A second line: circumstances.
    pub(super) note: String,
    pub(super) x_label: String,
    pub(super) categories: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) panels: Vec<Panel>,
}

const TOP: f64 = 84.0;
const BOTTOM: f64 = 56.0;
const LEFT: f64 = 62.0;
const PLOT_HEIGHT: f64 = 300.0;
const GUTTER: f64 = 206.0;
const LABEL_STEP: f64 = 15.0;

const TITLE: Font<'_> = Font {
    size: 16.0,
    bold: true,
    colour: palette::INK,
};
const WORDS: Font<'_> = Font {
    size: 12.0,
    bold: false,
    colour: palette::INK,
};
const NOTE: Font<'_> = Font {
    size: 12.0,
    bold: false,
    colour: palette::PALE_INK,
};

impl Lines {
    /// The file; `None` when no series has a point.
    pub(super) fn draw(&self) -> Option<String> {
        let plot_width = if self.panels.len() > 1 { 310.0 } else { 560.0 };
        let panel_width = LEFT + plot_width;
        let panels: Vec<(f64, &Panel)> = self
            .panels
            .iter()
            .scan(LEFT, |left, panel| {
                let here = *left;
                *left += panel_width;
                Some((here, panel))
            })
            .collect();
        let right = panels.last()?.0 + plot_width;
        let mut svg = Svg::new(right + GUTTER, TOP + PLOT_HEIGHT + BOTTOM, &self.title);
        svg.text((16.0, 26.0), Anchor::Start, TITLE, &self.title);
        svg.text((16.0, 45.0), Anchor::Start, NOTE, &self.note);
        for (left, panel) in &panels {
            let axis = self.axis(panel)?;
            self.frame(&mut svg, *left, plot_width, panel, &axis);
            for series in &self.series {
                self.series(&mut svg, *left, plot_width, panel, &axis, series);
            }
        }
        let (left, panel) = *panels.last()?;
        self.labels(&mut svg, left, plot_width, panel, &self.axis(panel)?);
        Some(svg.finish())
    }

    /// The axis of a panel: everything of every series, whiskers included.
    fn axis(&self, panel: &Panel) -> Option<Axis> {
        let values = self.series.iter().flat_map(|series| {
            let scaled = series.points.iter().zip(&panel.factors);
            scaled.filter_map(|(point, factor)| point.map(|point| point.times(*factor)))
        });
        Axis::covering(panel.scale, values.flat_map(|p| [p.value, p.min, p.max]))
    }

    /// Where category `index` stands in a plot that starts at `left`.
    fn x(&self, left: f64, width: f64, index: usize) -> f64 {
        let slots = self.categories.len().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a handful of categories")]
        let place = (index as f64 + 0.5) / slots as f64;
        left + place * width
    }

    /// Grid, numbers and labels of the axes.
    fn frame(&self, svg: &mut Svg, left: f64, width: f64, panel: &Panel, axis: &Axis) {
        for tick in axis.ticks() {
            let y = height(axis, tick);
            let grid = Stroke::solid(palette::GRID, 1.0);
            svg.line((left, y), (left + width, y), grid);
            let at = (left - 7.0, y + 4.0);
            svg.text(at, Anchor::End, WORDS, &tick_number(tick));
        }
        let floor = TOP + PLOT_HEIGHT;
        let line = Stroke::solid(palette::PALE_INK, 1.0);
        svg.line((left, floor), (left + width, floor), line);
        for (index, category) in self.categories.iter().enumerate() {
            let x = self.x(left, width, index);
            svg.line((x, floor), (x, floor + 4.0), line);
            svg.text((x, floor + 18.0), Anchor::Middle, WORDS, category);
        }
        let middle = left + width / 2.0;
        svg.text((middle, floor + 40.0), Anchor::Middle, NOTE, &self.x_label);
        svg.text((left - 46.0, TOP - 16.0), Anchor::Start, NOTE, &panel.label);
    }

    /// The points of one series, with their place in a panel.
    fn places<'a>(
        &'a self,
        left: f64,
        width: f64,
        panel: &'a Panel,
        series: &'a Series,
    ) -> impl Iterator<Item = (f64, Point)> + 'a {
        let scaled = series.points.iter().zip(&panel.factors).enumerate();
        scaled.filter_map(move |(index, (point, factor))| {
            point.map(|point| (self.x(left, width, index), point.times(*factor)))
        })
    }

    fn series(
        &self,
        svg: &mut Svg,
        left: f64,
        width: f64,
        panel: &Panel,
        axis: &Axis,
        series: &Series,
    ) {
        let style = series.style;
        let places: Vec<_> = self.places(left, width, panel, series).collect();
        let path: Vec<_> = places
            .iter()
            .map(|(x, p)| (*x, height(axis, p.value)))
            .collect();
        let stroke = Stroke {
            colour: style.colour,
            width: style.width,
            dashes: style.dashes,
        };
        svg.path(&path, stroke);
        for ((x, point), at) in places.iter().zip(&path) {
            if style.dashes.is_empty() && point.max > point.min {
                let whisker = Stroke::solid(style.colour, 1.0);
                let (low, high) = (height(axis, point.min), height(axis, point.max));
                svg.line((*x, low), (*x, high), whisker);
                svg.line((x - 3.0, low), (x + 3.0, low), whisker);
                svg.line((x - 3.0, high), (x + 3.0, high), whisker);
            }
            svg.marker(*at, style.marker, style.colour);
        }
    }

    /// The names at the right ends, kept apart.
    fn labels(&self, svg: &mut Svg, left: f64, width: f64, panel: &Panel, axis: &Axis) {
        let mut ends: Vec<(&Series, (f64, f64))> = self
            .series
            .iter()
            .filter_map(|series| {
                let (x, point) = self.places(left, width, panel, series).last()?;
                Some((series, (x, height(axis, point.value))))
            })
            .collect();
        ends.sort_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
        let wanted: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
        let ceiling = TOP - LABEL_STEP;
        for ((series, end), y) in ends.iter().zip(apart(&wanted, ceiling)) {
            let at = left + width + 12.0;
            svg.line(
                (end.0 + 6.0, end.1),
                (at, y),
                Stroke::solid(palette::GRID, 1.0),
            );
            let sample = Stroke {
                colour: series.style.colour,
                width: series.style.width,
                dashes: if series.style.dashes.is_empty() {
                    ""
                } else {
                    "4 3"
                },
            };
            svg.line((at, y), (at + 18.0, y), sample);
            svg.marker((at + 9.0, y), series.style.marker, series.style.colour);
            let bold = series.style.width > 2.0;
            svg.text(
                (at + 24.0, y + 4.0),
                Anchor::Start,
                Font { bold, ..WORDS },
                &series.name,
            );
        }
    }
}

/// Where a value stands in the picture.
fn height(axis: &Axis, value: f64) -> f64 {
    TOP + PLOT_HEIGHT * (1.0 - axis.place(value))
}

/// Rising heights near `wanted` (rising), at least one label step apart and not above `ceiling`: each run of labels that
/// touch is centred on the mean of what they wanted.
fn apart(wanted: &[f64], ceiling: f64) -> Vec<f64> {
    let mut runs: Vec<(f64, usize, f64)> = Vec::new(); // first height, labels, sum of wanted
    #[expect(clippy::cast_precision_loss, reason = "a dozen labels")]
    for &want in wanted {
        runs.push((want.max(ceiling), 1, want));
        while let [.., (above, count, sum), (start, more, wants)] = runs.as_mut_slice() {
            if *above + *count as f64 * LABEL_STEP <= *start {
                break;
            }
            (*count, *sum) = (*count + *more, *sum + *wants);
            let span = (*count - 1) as f64 * LABEL_STEP;
            *above = (*sum / *count as f64 - span / 2.0).max(ceiling);
            let _ = (more, wants);
            runs.pop();
        }
    }
    let mut heights = Vec::with_capacity(wanted.len());
    for (start, count, _) in runs {
        heights.extend(std::iter::successors(Some(start), |y| Some(y + LABEL_STEP)).take(count));
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::svg::Marker;

    fn chart(points: &[Option<f64>]) -> Lines {
        let points = points.iter().map(|value| {
            value.map(|value| Point {
                value,
                min: value * 0.9,
                max: value * 1.1,
            })
        });
        Lines {
            title: "speed: more is better".to_owned(),
            note: String::new(),
            x_label: "bytes".to_owned(),
            categories: ["64", "128", "256"].map(str::to_owned).to_vec(),
            series: vec![Series {
                name: "ours".to_owned(),
                style: Style::strong(palette::BLUE, Marker::Circle),
                points: points.collect(),
            }],
            panels: vec![Panel {
                label: "Mpps".to_owned(),
                scale: Scale::Log,
                factors: vec![1.0; 3],
            }],
        }
    }

    #[test]
    fn points_have_whiskers_and_what_did_not_run_has_none() {
        let file = chart(&[Some(100.0), None, Some(30.0)])
            .draw()
            .expect("two points");
        assert_eq!(
            file.matches("<circle").count(),
            3,
            "two points and the sample"
        );
        let whiskers = format!(r#"stroke="{}" stroke-width="1""#, palette::BLUE);
        assert_eq!(file.matches(&whiskers).count(), 6);
        assert!(chart(&[None, None, None]).draw().is_none());
    }

    #[test]
    fn names_keep_apart_and_in_order() {
        let heights = apart(&[100.0, 101.0, 102.0, 200.0, 300.0, 301.0], 0.0);
        assert_eq!(heights.len(), 6);
        for pair in heights.windows(2) {
            assert!(pair[1] - pair[0] >= LABEL_STEP - 1e-9, "{heights:?}");
        }
        assert_eq!(heights[3], 200.0, "who is alone stays");
        assert!((heights[1] - 101.0).abs() < 1e-9, "a run is centred");
        assert_eq!(apart(&[3.0, 4.0], 50.0), [50.0, 65.0]);
    }
}
