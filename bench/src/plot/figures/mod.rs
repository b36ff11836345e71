//! Which figures there are, and which rows each shows. The numbers behind the names are those of the QQ thesis (2016).

mod capture;
mod inside;
mod queues;

pub(crate) use inside::steps;

use super::lines::Point;
use crate::rows::Row;

/// One figure of `docs/benchmarks.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// All contestants with 64-byte packets, one producer and one consumer (4.1).
    ContestantsOne,
    /// The same with as many threads as ran (4.1).
    ContestantsMost,
    /// Packets and bits a second by packet size, one producer and one consumer (7.1).
    SizesOne,
    /// The same with as many threads as ran (7.1).
    SizesMost,
    /// Our ring and QQ of 2016 by packet size and threads, against the memory's own limit (7.2).
    Threads,
    /// Size of the inner queues (7.4).
    Buckets,
    /// Operations on the outer queue by threads (7.5).
    Outer,
    /// Distance between writer and reader (7.6).
    Guard,
    /// From store to peek, by rate (section 7.5).
    Latency,
    /// From QQ of 2016 to our ring, one change at a time.
    Ablation,
    /// What the memory itself gives.
    Limits,
    /// Highest rate without loss by packet size (figure 4 of the paper).
    Lossless,
}

impl Figure {
    /// All of them, in the order of the document.
    pub const ALL: [Figure; 12] = [
        Figure::Limits,
        Figure::ContestantsOne,
        Figure::ContestantsMost,
        Figure::SizesOne,
        Figure::SizesMost,
        Figure::Threads,
        Figure::Ablation,
        Figure::Buckets,
        Figure::Outer,
        Figure::Guard,
        Figure::Latency,
        Figure::Lossless,
    ];

    /// Whether it shows what `make bench-capture` measures, and not `make bench`.
    #[must_use]
    pub fn is_of_capture(self) -> bool {
        self == Figure::Lossless
    }

    /// The name of its file without the ending.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Figure::ContestantsOne => "contestants-1p1c",
            Figure::ContestantsMost => "contestants-most-threads",
            Figure::SizesOne => "sizes-1p1c",
            Figure::SizesMost => "sizes-most-threads",
            Figure::Threads => "threads",
            Figure::Buckets => "bucket-sizes",
            Figure::Outer => "outer-queue",
            Figure::Guard => "guard-distance",
            Figure::Latency => "latency",
            Figure::Ablation => "ablation",
            Figure::Limits => "machine-limits",
            Figure::Lossless => "capture-lossless",
        }
    }

    /// What a reader who cannot see the figure is told it shows.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Figure::ContestantsOne => {
                "Bars: 64-byte packets a second, one producer and one consumer"
            }
            Figure::ContestantsMost => "Bars: 64-byte packets a second, most threads",
            Figure::SizesOne => "Lines: packets and bits a second by packet size, one to one",
            Figure::SizesMost => "Lines: packets and bits a second by packet size, most threads",
            Figure::Threads => "Lines: bits a second by packet size and threads",
            Figure::Buckets => "Lines: packets a second by size of a bucket",
            Figure::Outer => "Lines: operations a second on the outer queue by threads",
            Figure::Guard => "Lines: packets a second by distance between writer and reader",
            Figure::Latency => "Lines: microseconds from store to peek by rate",
            Figure::Ablation => "Bars: packets a second after each change",
            Figure::Limits => "Bars: bytes a second of the memory itself",
            Figure::Lossless => "Lines: highest rate without loss by packet size",
        }
    }

    /// Whether the figure can be drawn from `rows`.
    pub(crate) fn has_rows(self, rows: &[Row]) -> bool {
        self.draw(rows).is_some()
    }

    /// The file; `None` when none of its rows has a value.
    pub(super) fn draw(self, rows: &[Row]) -> Option<String> {
        match self {
            Figure::ContestantsOne => queues::contestants_one(rows),
            Figure::ContestantsMost => queues::contestants_most(rows),
            Figure::SizesOne => queues::sizes_one(rows),
            Figure::SizesMost => queues::sizes_most(rows),
            Figure::Threads => queues::threads(rows),
            Figure::Buckets => inside::buckets(rows),
            Figure::Outer => inside::outer(rows),
            Figure::Guard => inside::guard(rows),
            Figure::Latency => inside::latency(rows),
            Figure::Ablation => inside::ablation(rows),
            Figure::Limits => inside::limits(rows),
            Figure::Lossless => capture::lossless(rows),
        }
    }
}

/// A row as a point; `None` where it did not run.
fn point(row: &Row) -> Option<Point> {
    let value = row.value?;
    Some(Point {
        value,
        min: row.min.unwrap_or(value),
        max: row.max.unwrap_or(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Part, names::made_up};

    /// Rows of every kind with plain values.
    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        let mut add = |name: String, value: f64, unit: &str| {
            rows.push(Row {
                min: Some(value * 0.95),
                max: Some(value * 1.03),
                ..made_up(&name, value, unit)
            });
        };
        for (contestant, speed) in [("ring", 180.0), ("qq2016", 48.0), ("rtrb", 100.0)] {
            for (threads, size) in [(1, 64), (1, 1514), (2, 64), (2, 1514)] {
                let value = speed * f64::from(threads) * 64.0 / f64::from(size);
                let name = format!("queue/{contestant}/{size}B/{threads}p{threads}c/well");
                add(name, value, "Mpps");
            }
        }
        add("limits/raw-insert/64B".into(), 221.0, "Mpps");
        add("capture/lossless/64B/retroscope".into(), 1.1, "Mpps");
        add("capture/lossless/1514B/sender".into(), 0.6, "Mpps");
        add("limits/nt-fill/1t".into(), 22.6, "GB/s");
        add("limits/nt-fill/2t".into(), 45.0, "GB/s");
        for bucket in [2, 4] {
            add(format!("bucket/{bucket}MiB/64B"), 180.0, "Mpps");
        }
        add("outer/ring/1t".into(), 4.0, "Mops/s");
        add("guard/qq2016/1".into(), 20.0, "Mpps");
        add("latency/idle/p99".into(), 90.0, "us");
        add("ablation/0-qq2016".into(), 48.0, "Mpps");
        rows
    }

    #[test]
    fn every_figure_is_drawn_from_its_rows_and_left_out_without() {
        let rows = rows();
        for figure in Figure::ALL {
            let file = figure.draw(&rows).unwrap_or_else(|| panic!("{figure:?}"));
            assert!(file.starts_with("<svg ") && file.ends_with("</svg>\n"));
            assert!(!file.contains("NaN") && !file.contains("inf"), "{figure:?}");
            assert_eq!(figure.draw(&[]), None, "{figure:?}");
        }
    }

    #[test]
    fn a_figure_without_rows_does_not_keep_an_old_picture() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |rows: &[Row], part| {
            crate::plot::write_all(rows, part, folder.path()).expect("a folder to write to")
        };
        let of_capture = write(&rows(), Part::Capture);
        let written = write(&rows(), Part::InProcess);
        assert_eq!(written.len() + of_capture.len(), Figure::ALL.len());
        assert!(written.iter().chain(&of_capture).all(|path| path.is_file()));
        assert!(write(&[], Part::InProcess).is_empty());
        assert!(
            of_capture.iter().all(|path| path.is_file()),
            "of another part"
        );
        assert!(write(&[], Part::Capture).is_empty());
        assert_eq!(folder.path().read_dir().expect("it is there").count(), 0);
    }
}
