//! Bars in groups: contestants beside each other, steps of the ablation, limits of the machine.
//!
//! Bars lie, so that names stand beside them in full. Each carries its value; one that did not run carries the reason.

use super::axis::{Axis, Scale, number, tick_number};
use super::lines::Point;
use super::palette;
use super::svg::{Anchor, Font, Stroke, Svg, text_width};

/// One bar.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) colour: &'static str,
    /// Set in bold: what the figure is about.
    pub(super) strong: bool,
    /// What was measured, or why nothing was.
    pub(super) measured: Result<Point, String>,
    /// Said behind the value; may be empty.
    pub(super) remark: String,
}

/// Bars under one heading.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// May be empty.
    pub(super) heading: String,
    pub(super) bars: Vec<Bar>,
}

/// A chart of bars.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    /// What is shown, and which direction is better.
    pub(super) title: String,
    /// A second line: circumstances.
    pub(super) note: String,
    /// What the axis shows, with its unit.
    pub(super) axis_label: String,
    pub(super) groups: Vec<Group>,
    /// Values to compare with: vertical dashed lines with names.
    pub(super) limits: Vec<(String, f64)>,
}

const TOP: f64 = 64.0;
const ROW: f64 = 21.0;
const HEADING: f64 = 26.0;
const WIDTH: f64 = 880.0;
const VALUES: f64 = 110.0;

const WORDS: Font<'_> = Font {
    size: 12.0,
    bold: false,
    colour: palette::INK,
};
const BOLD: Font<'_> = Font {
    size: 12.0,
    bold: true,
    colour: palette::INK,
};
const NOTE: Font<'_> = Font {
    size: 12.0,
    bold: false,
    colour: palette::PALE_INK,
};

impl Bars {
    /// The file; `None` when no bar has a value.
    pub(super) fn draw(&self) -> Option<String> {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let measured = bars().filter_map(|bar| bar.measured.as_ref().ok());
        measured.clone().next()?;
        let values = measured.flat_map(|p| [p.value, p.max]);
        let limits = self.limits.iter().map(|(_, value)| *value);
        let axis = Axis::covering(Scale::Linear, values.chain(limits))?;

        let names = bars().map(|bar| text_width(&bar.label, 12.0));
        let left = names.fold(60.0, f64::max) + 26.0;
        let width = WIDTH - left - VALUES;
        #[expect(clippy::cast_precision_loss, reason = "dozens of bars")]
        let rows = self.groups.iter().fold(0.0, |sum, group| {
            sum + group.bars.len() as f64 * ROW + heading_height(group)
        });
        let top = TOP + if self.limits.is_empty() { 0.0 } else { 20.0 };
        let floor = top + rows + 4.0;
        let title = Font { size: 16.0, ..BOLD };
        let mut svg = Svg::new(WIDTH, floor + 48.0, &self.title);
        svg.text((16.0, 26.0), Anchor::Start, title, &self.title);
        svg.text((16.0, 45.0), Anchor::Start, NOTE, &self.note);

        for tick in axis.ticks() {
            let x = left + width * axis.place(tick);
            svg.line((x, top), (x, floor), Stroke::solid(palette::GRID, 1.0));
            let at = (x, floor + 17.0);
            svg.text(at, Anchor::Middle, WORDS, &tick_number(tick));
        }
        let middle = (left + width / 2.0, floor + 36.0);
        svg.text(middle, Anchor::Middle, NOTE, &self.axis_label);
        let mut y = top;
        for group in &self.groups {
            if !group.heading.is_empty() {
                svg.text((16.0, y + 17.0), Anchor::Start, BOLD, &group.heading);
            }
            y += heading_height(group);
            for bar in &group.bars {
                draw_bar(&mut svg, &axis, (left, y), width, bar);
                y += ROW;
            }
        }
        let base = Stroke::solid(palette::PALE_INK, 1.0);
        svg.line((left, top), (left, floor), base);
        self.draw_limits(&mut svg, &axis, (left, top), (width, floor - top));
        Some(svg.finish())
    }

    fn draw_limits(&self, svg: &mut Svg, axis: &Axis, corner: (f64, f64), size: (f64, f64)) {
        for (name, value) in &self.limits {
            let x = corner.0 + size.0 * axis.place(*value);
            let stroke = Stroke {
                dashes: "6 4",
                ..Stroke::solid(palette::BLACK, 1.3)
            };
            svg.line((x, corner.1 - 4.0), (x, corner.1 + size.1), stroke);
            let text = format!("{name} {}", number(*value));
            svg.text((x, corner.1 - 8.0), Anchor::Middle, NOTE, &text);
        }
    }
}

fn heading_height(group: &Group) -> f64 {
    if group.heading.is_empty() {
        0.0
    } else {
        HEADING
    }
}

/// One bar whose row starts at `corner`, `width` being the length of the axis.
fn draw_bar(svg: &mut Svg, axis: &Axis, (left, top): (f64, f64), width: f64, bar: &Bar) {
    let font = if bar.strong { BOLD } else { WORDS };
    let base = top + 14.0;
    svg.text((left - 8.0, base), Anchor::End, font, &bar.label);
    let point = match &bar.measured {
        Ok(point) => point,
        Err(reason) => {
            let text = format!("did not run: {reason}");
            svg.text((left + 8.0, base), Anchor::Start, NOTE, &text);
            return;
        }
    };
    let x = |value| left + width * axis.place(value);
    let end = x(point.value);
    svg.bar((left, top + 3.0), (end - left, ROW - 7.0), bar.colour);
    let mut words = end;
    if point.max > point.min {
        let (low, high, y) = (x(point.min), x(point.max), top + ROW / 2.0 - 0.5);
        let whisker = Stroke::solid(palette::INK, 1.0);
        svg.line((low, y), (high, y), whisker);
        svg.line((low, y - 3.0), (low, y + 3.0), whisker);
        svg.line((high, y - 3.0), (high, y + 3.0), whisker);
        words = words.max(high);
    }
    let value = number(point.value);
    svg.text((words + 7.0, base), Anchor::Start, font, &value);
    let remark = (words + 15.0 + text_width(&value, 12.0), base);
    svg.text(remark, Anchor::Start, NOTE, &bar.remark);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, measured: Result<f64, &str>) -> Bar {
        Bar {
            label: label.to_owned(),
            colour: palette::BLUE,
            strong: false,
            measured: measured.map_err(str::to_owned).map(|value| Point {
                value,
                min: value,
                max: value,
            }),
            remark: String::new(),
        }
    }

    #[test]
    fn a_bar_that_did_not_run_says_why() {
        let chart = |bars| Bars {
            title: "speed".to_owned(),
            note: String::new(),
            axis_label: "Mpps".to_owned(),
            groups: vec![Group {
                heading: String::new(),
                bars,
            }],
            limits: vec![("limit".to_owned(), 200.0)],
        };
        let file = chart(vec![bar("one", Ok(50.0)), bar("two", Err("one core"))]);
        let file = file.draw().expect("one bar has a value");
        assert!(file.contains("did not run: one core"));
        assert!(file.contains(">50.0</text>") && file.contains(">limit 200</text>"));
        assert_eq!(
            file.matches(&format!(r#"fill="{}""#, palette::BLUE))
                .count(),
            1
        );
        assert!(chart(vec![bar("two", Err("one core"))]).draw().is_none());
    }
}
