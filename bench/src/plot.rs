//! The figures of `docs/dev/benchmarks.md` ([`rows::FIGURES`]), as SVG with a background, so that
//! they are readable on any page.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    report::Grid,
    rows::{self, words},
    session::{Row, at},
};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 440;
const LEGEND_WIDTH: u32 = 210;
const FONT: &str = "sans-serif";

/// The palette of Okabe and Ito ("Color Universal Design", 2008), chosen for people with any color
/// vision. Its yellow is omitted, because it is too pale on white, and gray
/// replaces its black.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x88, 0x88, 0x88),
];

/// The marks of the values of a line, so that lines can be distinguished without colors: corners
/// of polygons, in pixels.
const MARKS: [&[(i32, i32)]; 7] = [
    &[(-5, -5), (5, -5), (5, 5), (-5, 5)],
    &[(0, -6), (6, 5), (-6, 5)],
    &[(0, -7), (7, 0), (0, 7), (-7, 0)],
    &[(0, 6), (6, -5), (-6, -5)],
    &[(-2, -8), (2, -8), (2, 8), (-2, 8)],
    &[(-6, -6), (6, -6), (-6, 6), (6, 6)],
    &[(-8, -2), (8, -2), (8, 2), (-8, 2)],
];

/// Draws the figures whose names satisfy `is_drawn` into a folder, which is made if needed. If such
/// a figure has no value now, removes its old file. `origin` identifies the run. Returns the
/// written files.
///
/// # Errors
/// The system's error, with the path.
pub(crate) fn write_all(
    rows: &[Row],
    origin: &str,
    folder: &Path,
    is_drawn: &dyn Fn(&str) -> bool,
) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
    let mut written = Vec::new();
    for figure in rows::table(rows::FIGURES).filter(|figure| is_drawn(figure[0])) {
        let path = folder.join(figure[0]).with_extension("svg");
        if let Some((_, svg)) = draw(rows, &figure) {
            // Insert the origin after the first tag, which is the tag of the picture.
            let svg = svg.replacen('>', &format!(">\n<desc>{origin}</desc>"), 1);
            fs::write(&path, svg).map_err(|error| at(&path, &error))?;
            written.push(path);
        } else if path.exists() {
            fs::remove_file(&path).map_err(|error| at(&path, &error))?;
        }
    }
    Ok(written)
}

/// The title and the SVG of a figure, from its fields in the list. `None` if none of its rows has a
/// value above 0, or if drawing fails.
pub(crate) fn draw(rows: &[Row], fields: &[&str]) -> Option<(String, String)> {
    let [_, unit, axis, title, cells] = fields else {
        return None;
    };
    let mut svg = String::new();
    let drawn = lines(&Grid::new(rows, cells), title, axis, unit, &mut svg);
    let has_values = drawn.ok()?;
    has_values.then(|| ((*title).to_owned(), svg))
}

/// Draws one line for each line of the grid, over its columns. Returns whether the figure contains
/// any value above 0.
fn lines(
    grid: &Grid<'_>,
    title: &str,
    axis: &str,
    unit: &str,
    svg: &mut String,
) -> Result<bool, Box<dyn Error>> {
    let rows = || grid.lines.iter().flat_map(|(_, cells)| cells).flatten();
    let values = || rows().flat_map(|row| [row.min, row.value, row.max]);
    let values = || values().flatten().filter(|value| *value > 0.0);
    let (Some(least), Some(greatest)) = (values().reduce(f64::min), values().reduce(f64::max))
    else {
        return Ok(false);
    };
    let texts = [title, axis, unit];
    let (low, high) = (least * 0.8, greatest * 1.1);
    let has_zero = rows().any(|row| row.value == Some(0.0));
    // A logarithmic scale has no place for 0, but shows values of very different sizes.
    if has_zero && greatest < 1000.0 * least {
        lines_on(grid, texts, 0.0, 0.0..high, svg)?;
    } else {
        let scale = (low..high).log_scale().with_key_points(labels(low, high));
        lines_on(grid, texts, least, scale, svg)?;
    }
    Ok(true)
}

/// Draws the lines on a scale, whose least value is `least`.
fn lines_on<Scale>(
    grid: &Grid<'_>,
    [title, axis, unit]: [&str; 3],
    least: f64,
    scale: Scale,
    svg: &mut String,
) -> Result<(), Box<dyn Error>>
where
    Scale: AsRangedCoord<Value = f64>,
    Scale::CoordDescType: ValueFormatter<f64>,
{
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, (FONT, 18))?;
    let (area, legend) = root.split_horizontally(WIDTH - LEGEND_WIDTH);
    let count = i32::try_from(grid.columns.len())?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(58)
        .build_cartesian_2d(-1..count, scale)?;
    let column = |place: &i32| {
        let place = usize::try_from(*place).ok();
        let column = place.and_then(|at| grid.columns.get(at));
        column.map_or("", |column| words(column).2).to_owned()
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(grid.columns.len() + 2);
    mesh.light_line_style(TRANSPARENT);
    mesh.x_label_formatter(&column).x_desc(axis);
    mesh.y_label_formatter(&|value| format!("{}", (value * 1e4).round() / 1e4));
    mesh.y_desc(unit).draw()?;
    let anchor = Pos::new(HPos::Left, VPos::Center);
    let text = (FONT, 13).into_font().color(&BLACK).pos(anchor);
    // The first line, which is ours in most figures, is drawn last, so that it is on top.
    for (number, (name, cells)) in grid.lines.iter().enumerate().rev() {
        // From the eighth line on, the colors repeat, as thin lines.
        let style = COLOURS[number % COLOURS.len()].stroke_width(if number < 7 { 3 } else { 1 });
        let cells = (0..).zip(cells.iter().copied());
        let points = cells.filter_map(|(at, row)| Some((at, row?, row?.value?)));
        let points = points.filter(|(.., value)| *value >= least);
        let points: Vec<(i32, &Row, f64)> = points.collect();
        let medians = points.iter().map(|(at, _, value)| (*at, *value));
        chart.draw_series(LineSeries::new(medians, style))?;
        chart.draw_series(points.iter().map(|(at, row, value)| {
            let (min, max) = (
                row.min.unwrap_or(*value).max(least),
                row.max.unwrap_or(*value),
            );
            ErrorBar::new_vertical(*at, min, *value, max, style, 6)
        }))?;
        let mark = || Polygon::new(MARKS[number % MARKS.len()].to_vec(), style.filled());
        let marks = points
            .iter()
            .map(|(at, _, value)| EmptyElement::at((*at, *value)) + mark());
        chart.draw_series(marks)?;
        let y = 30 + i32::try_from(number)? * 22;
        legend.draw(&PathElement::new([(4, y), (28, y)], style))?;
        legend.draw(&(EmptyElement::at((16, y)) + mark()))?;
        legend.draw(&Text::new(name.as_str(), (34, y), text.clone()))?;
    }
    root.present()?;
    Ok(())
}

/// The labels of a logarithmic axis: 1, 2 and 5 times powers of ten. An axis shorter than a factor
/// of 5 has labels at all digits.
fn labels(low: f64, high: f64) -> Vec<f64> {
    let decades = (-9..12).map(|exponent| 10_f64.powi(exponent));
    let digits: &[f64] = if high / low < 5.0 {
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let labels = decades.flat_map(|decade| digits.iter().map(move |digit| digit * decade));
    labels.filter(|label| (low..high).contains(label)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    /// A logarithmic axis would leave the 0 out.
    #[test]
    fn a_loss_of_zero_is_drawn() {
        let losses = [(8, 57.0), (32, 2.0), (64, 0.0)];
        let rows = losses.map(|(size, value)| {
            let name = format!("shed/queue/thread/{size}MiB");
            Row::new(&name, None, Ok(Spread::once(value)))
        });
        let mut figures = rows::table(rows::FIGURES);
        let figure = figures.find(|figure| figure[0] == "shed-queue").unwrap();
        let marks = |rows: &[Row]| draw(rows, &figure).unwrap().1.matches("<polygon").count();
        assert_eq!(marks(&rows), marks(&rows[..2]) + 1);
    }

    #[test]
    fn both_axes_have_labels() {
        let rates = [(50, 100.0), (100, 61.0), (200, 33.0), (400, 18.0)];
        let rows = rates.map(|(rate, value)| {
            let name = format!("shed/all/{rate}pc/events");
            Row::new(&name, None, Ok(Spread::once(value)))
        });
        let mut figures = rows::table(rows::FIGURES);
        let figure = figures.find(|figure| figure[0] == "shed-events").unwrap();
        let (_, svg) = draw(&rows, &figure).unwrap();
        let of = |label: &str| svg.lines().filter(|line| *line == label).count();
        assert_eq!(
            ["20", "50", "100", "200", "400"].map(of),
            [1, 2, 2, 1, 1],
            "{svg}"
        );
        assert_eq!(labels(14.4, 110.0), [20.0, 50.0, 100.0]);
        assert_eq!(labels(14.4, 41.0), [20.0, 30.0, 40.0]);
    }
}
