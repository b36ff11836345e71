//! The figures: rows in, SVG files out.
//!
//! Each figure looks for the rows it shows (`tables/names.rs` says how rows are named) and is left out when
//! none of them ran, so that a partial run gives the figures that it has. There are two kinds of chart, lines over categories and
//! bars; both are drawn by hand as SVG on white, with fonts by family name only: nothing is rasterised,
//! and no font is needed where the files are made. Values are medians, whiskers reach from the least to the greatest
//! repetition.
//!
//! Not here: a plotting library. The figures need two chart kinds with direct labels that keep apart, which is less code
//! than bending a general library to it.

mod axis;
mod bars;
mod figures;
mod lines;
mod palette;
mod svg;

use std::path::{Path, PathBuf};

use crate::rows::Row;
use crate::tables::{Part, ReportError};

pub(crate) use axis::number;
pub use figures::Figure;
pub(crate) use figures::steps;

/// Draws every figure of a part that has rows into `folder` as `NAME.svg` and returns what was written, in the order of
/// [`Figure::ALL`]. A figure without rows is removed from `folder`, so that no picture of an older run stays beside new numbers.
///
/// # Errors
/// [`ReportError::File`] when a file cannot be written or removed.
pub fn write_all(rows: &[Row], part: Part, folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let fails = |call: &'static str, path: &Path, source| ReportError::File {
        call,
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(|error| fails("create", folder, error))?;
    let mut written = Vec::new();
    let figures = Figure::ALL.into_iter();
    for figure in figures.filter(|figure| part.has_figure(*figure)) {
        let path = folder.join(format!("{}.svg", figure.name()));
        match figure.draw(rows) {
            Some(text) => {
                std::fs::write(&path, text).map_err(|error| fails("write", &path, error))?;
                written.push(path);
            }
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(fails("remove", &path, error));
                }
                _ => {}
            },
        }
    }
    Ok(written)
}
