//! A recorder's counters as Prometheus and other monitoring systems read them.
//!
//! Pure: a [`RecorderStatus`] becomes text. What is unknown is left out rather than told as 0, counters never go back while the process lives, and
//! the number of series is bounded: each label has 256 values at most, and what is beyond them is summed up. `docs/metrics.md` lists all metrics.

mod alerts;
mod exposition;
mod families;
mod process;
mod requests;
#[cfg(test)]
mod tests;

use retroscope_recorder::RecorderStatus;

pub use self::{process::Process, requests::Requests};

/// The `Content-Type` of the text: Prometheus' text format, version 0.0.4.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of a recorder, its API and its process.
#[must_use]
pub fn render(status: &RecorderStatus, process: &Process, requests: &Requests) -> String {
    let mut exposition = exposition::Exposition::new();
    families::sources(&mut exposition, &status.sources);
    families::ring(&mut exposition, status);
    families::dumps(&mut exposition, status);
    alerts::alerts(&mut exposition, status);
    families::flows(&mut exposition, status);
    requests.write(&mut exposition);
    families::process(&mut exposition, process);
    exposition.finish()
}
