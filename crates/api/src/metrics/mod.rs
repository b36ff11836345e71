//! A recorder's counters as Prometheus and other monitoring systems read them.
//!
//! Pure: a [`Status`] becomes text. What is unknown is left out rather than told as 0, counters never go back while the process lives, and the number of
//! series is bounded ([`SOURCES_MAX`]).

mod accept;
mod exposition;
mod families;
mod process;

use retroscope_recorder::Status;

pub use self::{accept::Format, families::SOURCES_MAX, process::Process};

/// All metrics of a recorder, and of the process that it runs in.
#[must_use]
pub fn render(status: &Status, process: &Process, format: Format) -> String {
    let mut exposition = exposition::Exposition::new(format);
    families::sources(&mut exposition, &status.sources);
    families::recorder(&mut exposition, status);
    families::process(&mut exposition, process);
    exposition.finish()
}
