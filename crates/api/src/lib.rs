//! The HTTP API of a running recorder: `retroscope record --api`.
//!
//! | module | content |
//! |---|---|
//! | `listen`, `tls` | addresses, and the sockets and keys that are opened with privileges |
//! | `server`, `connection`, `stream` | threads, connections and their limits, streamed bodies |
//! | `guard`, `token`, `role`, `caller`, `sessions` | access control |
//! | `page` | the page for browsers |
//! | `operations`, `openapi` | the table of operations: source of routes and OpenAPI document |
//! | `routes`, `bodies`, `extract` | the operations and their bodies |
//! | `problem`, `queries`, `keys` | refusals, concurrency limits, idempotency |
//! | `dissect`, `flow_packets`, `conversation` | packet details by Wireshark, sandboxed; streams |
//! | `metrics`, `doctor` | metrics for Prometheus, and findings about the machine |
//! | `client` | the client that the commands of `retroscope` use |
//!
//! The API calls functions of [`retroscope_recorder::RecorderHandle`] that any thread may call.
//! HTTP/2 and HTTP/3 are not supported, because each protocol adds attack surface.
#![forbid(unsafe_code)]

mod app;
mod bodies;
mod caller;
pub mod client;
mod connection;
mod conversation;
mod dissect;
pub mod doctor;
mod extract;
mod flow_packets;
mod guard;
mod keys;
mod largest;
mod listen;
pub mod metrics;
mod openapi;
mod operations;
mod page;
mod past_scan;
mod problem;
mod queries;
mod refusals;
mod role;
mod routes;
mod server;
mod sessions;
mod stamp;
mod stream;
mod tls;
mod token;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

pub use retroscope_unix::{Notifier, Owner};

pub use bodies::{event::EventBody, status::StatusBody};
pub use dissect::{Dissector, SandboxError, UNPROTECTED, run_in_sandbox};
pub use listen::{Address, BoundApi};
pub use role::Role;
pub use server::Server;
pub use tls::TlsFiles;
pub use token::TokenLine;

/// The result of a reload: a report, and whether anything changed. Error: the reason of the
/// failure.
pub type Reloaded = Result<(String, bool), String>;

/// Reads the configuration again. Any thread may call this function. A call may take long.
#[derive(Clone)]
pub struct Reload(pub Arc<dyn Fn() -> Reloaded + Send + Sync>);

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

/// Functions of the program that the API offers in addition to recording.
#[derive(Debug, Clone)]
pub struct Services {
    /// `None`: there is no configuration file to read again.
    pub reload: Option<Reload>,
    /// Inspects the machine.
    pub doctor: doctor::Doctor,
    /// Starts Wireshark's dissectors.
    pub dissector: Dissector,
}

/// The configuration of the page.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// Time without use after which a session ends.
    pub idle: Duration,
    /// Time after its start at which a session ends.
    pub lifetime: Duration,
}

/// The configuration of the API.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Addresses for all operations. The API is off if this list and `metrics` are empty.
    pub addresses: Vec<Address>,
    /// Addresses for `/metrics`, `/healthz` and `/readyz` only.
    pub metrics: Vec<Address>,
    /// Host names that requests may use in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The token file. Required for TCP. Exception: loopback addresses in `addresses`, if there is
    /// a page and `addresses` has a unix socket, whose clients can make links that log in.
    pub tokens: Option<PathBuf>,
    /// Settings of the page; `None`: no page and no sessions.
    pub page: Option<Page>,
    /// The files for TLS. If present, all TCP addresses use TLS.
    pub tls: Option<TlsFiles>,
    /// The owner of the unix sockets.
    pub owner: Owner,
}
