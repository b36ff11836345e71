//! `flows --top`: shows the largest flows of the last seconds. On a terminal, a table is redrawn
//! until the recording ends, and the last table stays visible. Elsewhere, tables are printed one
//! after another. The main thread draws; no other thread waits for the drawing.

mod table;

use std::{
    io::{self, Write as _, stdout},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use retroscope_flow::{TopOrder, TopSlice, TopWindow};
use retroscope_recorder::Recorder;

use crate::{
    failure,
    terminal::{self, LineStyle, ScreenLine, Terminal},
};
use table::About;

/// Time between two tables. On a terminal, the keys b, p, f and a new size show a table earlier.
const DRAW_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of flows whose traffic is counted separately in a second, divided among the
/// shards. With 72 bytes a flow, the counts of a second need up to 2.4 MB.
pub(crate) const FLOWS_MAX: usize = 32_768;
/// Default of --window, in seconds.
const WINDOW_S: u32 = 10;

/// Options of the table.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct TopArgs {
    /// Show the N largest flows of the last seconds: on a terminal until `q` or ^C, elsewhere as
    /// text once a second. Live only. Flow records are written only with --eve
    #[arg(long = "top", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rows: Option<u32>,

    /// Show flows with the most bits or packets, or hosts with the most flows. The keys b, p and f
    /// change the order [default: bits]
    #[arg(long, value_name = "WHAT", requires = "rows", value_parser = by())]
    by: Option<TopOrder>,

    /// Seconds that --top looks back, 1 to 60 [default: 10]
    #[arg(long, value_name = "SECONDS", requires = "rows", value_parser = clap::value_parser!(u32).range(1..=60))]
    window: Option<u32>,
}

fn by() -> impl clap::builder::TypedValueParser<Value = TopOrder> {
    PossibleValuesParser::new(["bits", "packets", "flows"]).map(|by| match by.as_str() {
        "packets" => TopOrder::Packets,
        "flows" => TopOrder::Flows,
        _ => TopOrder::Bits,
    })
}

/// Draws the tables.
#[derive(Debug)]
pub(super) struct Top {
    rows: usize,
    about: About,
    slices: Receiver<TopSlice>,
    window: TopWindow,
    /// `None`: stdout is no terminal.
    terminal: Option<Terminal>,
    due: Instant,
    /// Whether slices of traffic arrived since the last table.
    has_news: bool,
}

impl Top {
    /// Takes over the terminal if stdout is a terminal. Messages for a terminal are then deferred
    /// until the drop of the returned value releases the terminal.
    ///
    /// # Errors
    /// The system's error about signals.
    pub(super) fn start(
        args: TopArgs,
        slices: Receiver<TopSlice>,
        title: String,
    ) -> io::Result<Self> {
        let terminal = Terminal::take()?;
        if terminal.is_some() {
            failure::hold();
        }
        Ok(Self {
            rows: args.rows.map_or(0, |rows| rows as usize),
            about: About {
                title,
                by: args.by.unwrap_or_default(),
                lost: 0,
            },
            slices,
            window: TopWindow::new(args.window.unwrap_or(WINDOW_S)),
            terminal,
            due: Instant::now(),
            has_news: false,
        })
    }

    /// Handles keys. On a terminal, draws the table each [`DRAW_EVERY`], after the keys b, p and f,
    /// and at a new size. Elsewhere, prints the table if [`DRAW_EVERY`] has passed and slices
    /// arrived since. Returns `false` if the user quits or if a table cannot be printed.
    pub(super) fn tick(&mut self, recorder: &Recorder) -> bool {
        for slice in self.slices.try_iter() {
            self.window.add(slice);
            self.has_news = true;
        }
        let is_due = Instant::now() >= self.due;
        let mut is_changed = false;
        if let Some(terminal) = &mut self.terminal {
            is_changed = terminal.is_changed();
            for key in terminal.keys() {
                self.about.by = match key {
                    b'q' | b'Q' => return false,
                    b'b' => TopOrder::Bits,
                    b'p' => TopOrder::Packets,
                    b'f' => TopOrder::Flows,
                    _ => continue,
                };
                is_changed = true;
            }
        }
        if !is_due && !is_changed {
            return true;
        }
        self.due = Instant::now() + DRAW_EVERY;
        let has_news = std::mem::take(&mut self.has_news);
        let status = recorder.status();
        self.about.lost = status.sources.iter().map(|one| one.lost_known()).sum();
        match &self.terminal {
            Some(terminal) => {
                let size = terminal.size();
                let lines = self.table(size).into_iter().enumerate();
                let line = |(at, text): (usize, String)| {
                    let is_heading = at == table::HEADING;
                    let look = if is_heading {
                        LineStyle::Heading
                    } else {
                        LineStyle::Plain
                    };
                    ScreenLine::new(&text, look, size.0)
                };
                terminal.draw(&lines.map(line).collect::<Vec<_>>());
                true
            }
            None => !has_news || self.print().is_ok(),
        }
    }

    fn table(&self, size: (usize, usize)) -> Vec<String> {
        let report = self.window.report(self.rows, self.about.by);
        table::table(&report, &self.about, size)
    }

    /// Prints the table as text, followed by an empty line.
    fn print(&self) -> io::Result<()> {
        let size = self.terminal.as_ref().map(Terminal::size);
        let text = self
            .table(size.unwrap_or((usize::MAX, usize::MAX)))
            .join("\n")
            + "\n\n";
        let mut out = stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Releases the terminal. Prints the last table again, so that it stays visible.
impl Drop for Top {
    fn drop(&mut self) {
        if self.terminal.is_some() {
            terminal::leave();
            let _ = self.print();
            failure::release();
        }
    }
}
