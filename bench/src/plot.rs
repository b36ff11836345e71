//! The figures of `docs/benchmarks.md` ([`rows::FIGURES`]), as SVG with a background of its own, so that they can be read on any page.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use plotters::{
    coord::{
        Shift,
        ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    },
    prelude::*,
    style::{
        TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::{
    report::{Grid, most_pairs, number},
    rows::{self, words},
    session::{Row, at},
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;
/// The least, median and greatest figure of a row, in the unit of a panel.
type Point = [f64; 3];

const WIDTH: u32 = 960;
const TITLE_HEIGHT: u32 = 40;
const LINES_HEIGHT: u32 = 440;
const LEGEND_WIDTH: u32 = 210;
const BAR_HEIGHT: u32 = 22;
/// Left of bars.
const LABEL_WIDTH: u32 = 300;
const FONT: &str = "sans-serif";

/// The palette of Okabe and Ito ("Color Universal Design", 2008), which people with any colour vision tell apart, without its yellow
/// (too pale on white).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x88, 0x88, 0x88),
];

/// The first series is ours. Where colours run out, lines are thinner.
fn style(series: usize) -> ShapeStyle {
    let width = match series {
        0 => 3,
        1..7 => 2,
        _ => 1,
    };
    COLOURS[series % COLOURS.len()].stroke_width(width)
}

/// Draws the figures of a command into a folder, which is made where needed; those without rows are removed. Returns the files.
///
/// # Errors
/// The system's, with the path.
pub(crate) fn write_all(rows: &[Row], is_capture: bool, folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
    let mut written = Vec::new();
    for figure in rows::table(rows::FIGURES) {
        let path = folder.join(figure[0]).with_extension("svg");
        if figure[0].starts_with("capture") != is_capture {
            continue;
        }
        if let Some((_, svg)) = draw(rows, &figure) {
            fs::write(&path, svg).map_err(|error| at(&path, &error))?;
            written.push(path);
        } else if path.exists() {
            fs::remove_file(&path).map_err(|error| at(&path, &error))?;
        }
    }
    Ok(written)
}

/// A figure by its fields in the list, with its title; `None` when none of its rows has a value.
pub(crate) fn draw(rows: &[Row], fields: &[&str]) -> Option<(String, String)> {
    let [_, panels, axis, title, cells, limits] = fields else {
        return None;
    };
    let limit = |limit: &str| {
        let (name, rest) = limit.split_once(" = ")?;
        let (words, factor) = rest.split_once(" * ")?;
        let row = rows.iter().find(|row| row.name == name.trim())?;
        let factor: f64 = factor.trim().parse().ok()?;
        Some((words.to_owned(), row.value? * factor))
    };
    let drawing = Drawing {
        title: title.replace("{most}", most_pairs(rows).map_or("", |most| words(most).2)),
        axis,
        limits: limits.split(';').filter_map(limit).collect(),
        grid: Grid::new(rows, cells),
    };
    drawing.series("").iter().flatten().next()?;
    let mut svg = String::new();
    let drawn = match panels.strip_prefix("bars ") {
        Some(unit) => drawing.bars(unit, &mut svg),
        None => drawing.lines(panels, &mut svg),
    };
    drawn.ok().map(|()| (drawing.title, svg))
}

/// Text that begins, or ends, at a place.
fn text(side: HPos) -> TextStyle<'static> {
    let font = (FONT, 13).into_font().color(&BLACK);
    font.pos(Pos::new(side, VPos::Center))
}

fn tick(value: &f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

struct Drawing<'r> {
    title: String,
    axis: &'r str,
    limits: Vec<(String, f64)>,
    grid: Grid<'r>,
}

impl Drawing<'_> {
    fn begin<'s>(&self, svg: &'s mut String, height: u32) -> Result<Area<'s>, Box<dyn Error>> {
        let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        Ok(root.titled(&self.title, (FONT, 18))?)
    }

    /// By line of the grid: the columns where there is a figure.
    fn series(&self, panel: &str) -> Vec<Vec<(i32, Point)>> {
        let factor = |column: &str| match column.parse::<f64>() {
            Ok(bytes) if panel == "bits" => bytes * 8e-3,
            _ => 1.0,
        };
        let point = |column: &str, row: &Row| {
            let value = row.value?;
            let point = [row.min.unwrap_or(value), value, row.max.unwrap_or(value)];
            Some(point.map(|value| value * factor(column)))
        };
        let line = |cells: &[Option<&Row>]| {
            let columns = self.grid.columns.iter().zip(cells).zip(0..);
            let points = columns.map(|((column, row), at)| Some((at, point(column, (*row)?)?)));
            points.flatten().collect()
        };
        let lines = self.grid.lines.iter();
        lines.map(|(_, cells)| line(cells)).collect()
    }

    /// A bar for each line, those of queues by length.
    fn bars(&self, unit: &str, svg: &mut String) -> Drawn {
        let series = self.series("");
        let mut bars = Vec::new();
        for ((label, cells), points) in self.grid.lines.iter().zip(series) {
            let point = points.first().map_or([0.0; 3], |(_, point)| *point);
            let is_ours = cells
                .iter()
                .flatten()
                .any(|row| row.name.contains("/ring/"));
            let colour = COLOURS[usize::from(!is_ours) + usize::from(label.contains(", "))];
            bars.push((label.replace(['`', '\\'], ""), point, colour));
        }
        if self.title.contains("queue,") {
            bars.sort_by(|(_, one, _), (_, other, _)| other[1].total_cmp(&one[1]));
        }
        let ends = bars.iter().map(|(_, point, _)| point[2]);
        let greatest = ends.chain(self.limits.iter().map(|(_, value)| *value));
        let greatest = greatest.fold(0.0, f64::max) * 1.2;
        let count = u32::try_from(bars.len())?;
        let root = self.begin(svg, 2 * TITLE_HEIGHT + BAR_HEIGHT * (count + 1))?;
        let mut chart = ChartBuilder::on(&root)
            .margin(14)
            .x_label_area_size(40)
            .y_label_area_size(LABEL_WIDTH)
            .build_cartesian_2d(0.0..greatest, 0.0..f64::from(count))?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().y_labels(0).x_desc(unit);
        mesh.light_line_style(TRANSPARENT);
        mesh.x_label_formatter(&tick).draw()?;
        let at = |x: f64, y: f64, shift: i32, side, words: String| {
            let text = Text::new(words, (shift, 0), text(side));
            EmptyElement::at((x, y)) + text
        };
        for (place, (label, [min, value, max], colour)) in bars.into_iter().enumerate() {
            let y = f64::from(count) - place as f64 - 0.5;
            let corners = [(0.0, y - 0.35), (value, y + 0.35)];
            let spread = [(min, y), (max, y)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            chart.draw_series([PathElement::new(spread, BLACK.stroke_width(2))])?;
            chart.draw_series([at(max, y, 8, HPos::Left, number(value))])?;
            chart
                .plotting_area()
                .draw(&at(0.0, y, -8, HPos::Right, label))?;
        }
        for (name, value) in &self.limits {
            let ends = [(*value, 0.0), (*value, f64::from(count))];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.stroke_width(2)))?;
            let words = format!("{name} {}", number(*value));
            chart.draw_series([at(*value, 0.3, 6, HPos::Left, words)])?;
        }
        Ok(root.present()?)
    }

    /// A line for each line of the grid, over its columns, in one panel or two side by side.
    fn lines(&self, panels: &str, svg: &mut String) -> Drawn {
        let root = self.begin(svg, LINES_HEIGHT)?;
        let (charts, legend) = root.split_horizontally(WIDTH - LEGEND_WIDTH);
        let panels: Vec<&str> = panels.split(" ; ").collect();
        for (area, panel) in charts.split_evenly((1, panels.len())).iter().zip(&panels) {
            let (kind, unit) = panel.split_once(' ').unwrap_or_default();
            let limits = self.limits.iter().map(|(_, value)| *value);
            let limits = limits.filter(|_| panels.last() == Some(panel));
            let series = self.series(kind);
            let values = series.iter().flatten().flat_map(|(_, point)| *point);
            let values: Vec<f64> = values.chain(limits.clone()).collect();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min) * 0.8;
            let greatest = values.iter().copied().fold(0.0, f64::max) * 1.1;
            let limits: Vec<f64> = limits.collect();
            if kind == "log" {
                let range = (least..greatest).log_scale();
                self.panel(area, range, &series, unit, &limits)?;
            } else {
                self.panel(area, 0.0..greatest, &series, unit, &limits)?;
            }
        }
        let limits = self.limits.iter().map(|(name, _)| (name, BLACK.into()));
        let lines = self.grid.lines.iter().enumerate();
        let lines = lines.map(|(number, (name, _))| (name, style(number)));
        for ((name, style), place) in lines.chain(limits).zip(0..) {
            let y = 30 + place * 22;
            legend.draw(&PathElement::new([(4, y), (28, y)], style))?;
            legend.draw(&Text::new(name.as_str(), (34, y), text(HPos::Left)))?;
        }
        Ok(root.present()?)
    }

    fn panel<Y>(
        &self,
        area: &Area<'_>,
        y: Y,
        series: &[Vec<(i32, Point)>],
        unit: &str,
        limits: &[f64],
    ) -> Drawn
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let columns = &self.grid.columns;
        let count = i32::try_from(columns.len())?;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(58)
            .build_cartesian_2d(-1..count, y)?;
        let column = |place: &i32| {
            let column = usize::try_from(*place).ok().and_then(|at| columns.get(at));
            column.map_or("", |column| words(column).2).to_owned()
        };
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().x_labels(columns.len() + 2);
        mesh.light_line_style(TRANSPARENT);
        mesh.x_label_formatter(&column).y_label_formatter(&tick);
        mesh.x_desc(self.axis).y_desc(unit).draw()?;
        // Ours last, so that it lies on top.
        for (number, points) in series.iter().enumerate().rev() {
            let style = style(number);
            let medians = points.iter().map(|(at, point)| (*at, point[1]));
            chart.draw_series(LineSeries::new(medians, style))?;
            let spread = |(at, [min, value, max]): &(i32, Point)| {
                ErrorBar::new_vertical(*at, *min, *value, *max, style, 6)
            };
            chart.draw_series(points.iter().map(spread))?;
        }
        for value in limits {
            let ends = [(-1, *value), (count, *value)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.into()))?;
        }
        Ok(())
    }
}
