//! A recorder's counters as Prometheus and other monitoring systems read them.
//!
//! Pure: a [`RecorderStatus`] becomes text. What is unknown is left out rather than told as 0, counters never go back while the process lives, and
//! the number of series is bounded: each label has 256 values at most, and what is beyond them is summed up. `docs/metrics.md` lists all metrics.

mod accept;
mod alerts;
mod exposition;
mod families;
mod process;
#[cfg(test)]
mod tests;

use retroscope_recorder::RecorderStatus;

pub use self::{accept::Format, process::Process};

/// All metrics of a recorder, and of the process that it runs in.
#[must_use]
pub fn render(status: &RecorderStatus, process: &Process, format: Format) -> String {
    let mut exposition = exposition::Exposition::new(format);
    families::sources(&mut exposition, &status.sources);
    families::ring(&mut exposition, status);
    families::dumps(&mut exposition, status);
    alerts::alerts(&mut exposition, status);
    families::flows(&mut exposition, status);
    families::process(&mut exposition, process);
    exposition.finish()
}
