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
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    report::{Grid, most_pairs, number},
    rows::{self, words},
    session::{Row, at},
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

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
        if let Some(svg) = draw(rows, &figure) {
            fs::write(&path, svg).map_err(|error| at(&path, &error))?;
            written.push(path);
        } else if path.exists() {
            fs::remove_file(&path).map_err(|error| at(&path, &error))?;
        }
    }
    Ok(written)
}

/// A figure by its fields in the list; `None` when none of its rows has a value.
pub(crate) fn draw(rows: &[Row], fields: &[&str]) -> Option<String> {
    let [_, panels, axis, title, cells, limits] = fields else {
        return None;
    };
    let grid = Grid::new(rows, cells);
    let limit = |limit: &'_ str| -> Option<(String, f64)> {
        let (name, rest) = limit.split_once(" = ")?;
        let (words, factor) = rest.split_once(" * ")?;
        let row = rows.iter().find(|row| row.name == name.trim())?;
        Some((
            words.to_owned(),
            row.value? * factor.trim().parse::<f64>().ok()?,
        ))
    };
    let figure = Drawing {
        title: title.replace("{most}", most_pairs(rows).map_or("", |most| words(most).2)),
        axis,
        limits: limits.split(';').filter_map(limit).collect(),
        grid,
    };
    let mut values = figure
        .grid
        .lines
        .iter()
        .flat_map(|(_, cells)| cells)
        .flatten();
    values.find(|row| row.value.is_some())?;
    let mut svg = String::new();
    let drawn = match panels.strip_prefix("bars ") {
        Some(unit) => figure.bars(unit, &mut svg),
        None => figure.lines(panels, &mut svg),
    };
    drawn.ok().map(|()| svg)
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

    /// A bar for each cell, those of contestants by length.
    fn bars(&self, unit: &str, svg: &mut String) -> Drawn {
        let mut bars: Vec<(String, &Row)> = Vec::new();
        for (line, cells) in &self.grid.lines {
            bars.extend(cells.iter().flatten().map(|row| (line.clone(), *row)));
        }
        if bars.iter().all(|(_, row)| row.name.starts_with("queue/")) {
            bars.sort_by(|(_, one), (_, other)| {
                other
                    .value
                    .partial_cmp(&one.value)
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
        }
        let greatest = bars.iter().filter_map(|(_, row)| row.max.or(row.value));
        let greatest = greatest.chain(self.limits.iter().map(|(_, value)| *value));
        let greatest = greatest.fold(0.0, f64::max);
        let count = u32::try_from(bars.len())?;
        let root = self.begin(svg, TITLE_HEIGHT + 60 + BAR_HEIGHT * count)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(14)
            .x_label_area_size(40)
            .y_label_area_size(LABEL_WIDTH)
            .build_cartesian_2d(0.0..greatest * 1.2, 0.0..f64::from(count))?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_desc(unit)
            .x_label_formatter(&tick)
            .draw()?;
        let left = (FONT, 13)
            .into_font()
            .color(&BLACK)
            .pos(Pos::new(HPos::Left, VPos::Center));
        let right = left.pos(Pos::new(HPos::Right, VPos::Center));
        for (place, (label, row)) in bars.iter().enumerate() {
            let top = f64::from(count) - place as f64;
            let kind =
                usize::from(!row.name.contains("/ring/")) + usize::from(label.contains(", "));
            let colour = COLOURS[kind];
            let value = row.value.unwrap_or_default();
            let (min, max) = (row.min.unwrap_or(value), row.max.unwrap_or(value));
            let middle = top - 0.5;
            let bar = Rectangle::new([(0.0, top - 0.85), (value, top - 0.15)], colour.filled());
            let spread = PathElement::new([(min, middle), (max, middle)], BLACK.stroke_width(2));
            chart.draw_series([bar])?;
            chart.draw_series([spread])?;
            let (x, y) = chart.backend_coord(&(0.0, middle));
            let edge = root.get_base_pixel();
            let label = label.replace(['`', '\\'], "");
            root.draw(&Text::new(
                label,
                (x - 8 - edge.0, y - edge.1),
                right.clone(),
            ))?;
            let (x, y) = chart.backend_coord(&(max, middle));
            let value = row.value.map_or_else(|| "no figure".to_owned(), number);
            root.draw(&Text::new(
                value,
                (x + 8 - edge.0, y - edge.1),
                left.clone(),
            ))?;
        }
        for (name, value) in &self.limits {
            let ends = [(*value, 0.0), (*value, f64::from(count))];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.stroke_width(2)))?;
            let (x, y) = chart.backend_coord(&ends[0]);
            let edge = root.get_base_pixel();
            let text = format!("{name} {}", number(*value));
            root.draw(&Text::new(
                text,
                (x + 6 - edge.0, y - 12 - edge.1),
                left.clone(),
            ))?;
        }
        Ok(root.present()?)
    }

    /// A line for each line of the grid, over its columns, in one panel or two side by side.
    fn lines(&self, panels: &str, svg: &mut String) -> Drawn {
        let root = self.begin(svg, LINES_HEIGHT)?;
        let (charts, legend) = root.split_horizontally(WIDTH - LEGEND_WIDTH);
        let panels: Vec<_> = panels
            .split(" ; ")
            .filter_map(|panel| panel.split_once(' '))
            .collect();
        for (number, area) in charts.split_evenly((1, panels.len())).iter().enumerate() {
            let (kind, unit) = panels[number];
            let limits = if number + 1 == panels.len() {
                &self.limits[..]
            } else {
                &[]
            };
            let points = |row: &Row| {
                [row.min, row.value, row.max]
                    .into_iter()
                    .flatten()
                    .collect()
            };
            let all = self
                .series(kind, points)
                .into_iter()
                .flatten()
                .flat_map(|(_, all)| all);
            let all: Vec<f64> = all.chain(limits.iter().map(|(_, value)| *value)).collect();
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = all.iter().copied().fold(0.0, f64::max) * 1.1;
            if kind == "log" {
                self.panel(
                    area,
                    (least * 0.8..greatest).log_scale(),
                    kind,
                    unit,
                    limits,
                )?;
            } else {
                self.panel(area, 0.0..greatest, kind, unit, limits)?;
            }
        }
        let names = self
            .grid
            .lines
            .iter()
            .map(|(name, _)| name)
            .chain(self.limits.iter().map(|(name, _)| name));
        for (number, name) in names.enumerate() {
            let y = 30 + i32::try_from(number)? * 22;
            let style = if number < self.grid.lines.len() {
                style(number)
            } else {
                BLACK.into()
            };
            legend.draw(&PathElement::new([(4, y), (28, y)], style))?;
            let text = (FONT, 13)
                .into_font()
                .color(&BLACK)
                .pos(Pos::new(HPos::Left, VPos::Center));
            legend.draw(&Text::new(name.as_str(), (34, y), text))?;
        }
        Ok(root.present()?)
    }

    /// For each line and column where there is a figure: the column's number, and what `of` takes of the row in the unit of a panel.
    fn series(&self, kind: &str, of: impl Fn(&Row) -> Vec<f64>) -> Vec<Vec<(i32, Vec<f64>)>> {
        let line = |cells: &Vec<Option<&Row>>| {
            let mut points = Vec::new();
            for ((column, cell), place) in self.grid.columns.iter().zip(cells).zip(0..) {
                let Some(row) = cell.filter(|row| row.value.is_some()) else {
                    continue;
                };
                let bytes: f64 = column.parse().unwrap_or_default();
                let factor = if kind == "bits" { bytes * 8e-3 } else { 1.0 };
                points.push((place, of(row).iter().map(|value| value * factor).collect()));
            }
            points
        };
        self.grid
            .lines
            .iter()
            .map(|(_, cells)| line(cells))
            .collect()
    }

    fn panel<Y>(
        &self,
        area: &Area<'_>,
        y: Y,
        kind: &str,
        unit: &str,
        limits: &[(String, f64)],
    ) -> Drawn
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let count = i32::try_from(self.grid.columns.len())?;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(58)
            .build_cartesian_2d(-1..count, y)?;
        let column = |place: &i32| {
            let column = usize::try_from(*place)
                .ok()
                .and_then(|place| self.grid.columns.get(place));
            column.map_or("", |column| words(column).2).to_owned()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(self.grid.columns.len() + 2)
            .x_label_formatter(&column)
            .y_label_formatter(&tick)
            .x_desc(self.axis)
            .y_desc(unit)
            .draw()?;
        let point = |row: &Row| {
            let value = row.value.unwrap_or_default();
            vec![row.min.unwrap_or(value), value, row.max.unwrap_or(value)]
        };
        // Ours last, so that it lies on top.
        for (number, points) in self.series(kind, point).iter().enumerate().rev() {
            let style = style(number);
            let medians = points.iter().map(|(place, point)| (*place, point[1]));
            chart.draw_series(LineSeries::new(medians, style))?;
            let spreads = points.iter().map(|(place, point)| {
                ErrorBar::new_vertical(*place, point[0], point[1], point[2], style, 6)
            });
            chart.draw_series(spreads)?;
        }
        for (_, value) in limits {
            let ends = [(-1, *value), (count, *value)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.stroke_width(1)))?;
        }
        Ok(())
    }
}

fn tick(value: &f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}
