//! Metrics of a recorder for Prometheus and other monitoring systems.
//!
//! [`render`] is a pure function of its arguments. An unknown value is left out, and not written as
//! `0`. At most 256 sources, modules and rules each have separate series, and the rest is summed up
//! as `other`. `docs/metrics-reference.md` lists all metrics.

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
    families::threads(&mut exposition, &status.threads);
    families::dumps(&mut exposition, status);
    alerts::alerts(&mut exposition, status);
    families::flows(&mut exposition, status);
    requests.write(&mut exposition);
    families::process(&mut exposition, process);
    exposition.finish()
}
