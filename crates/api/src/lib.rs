//! A running recorder over HTTP: what `retroscope record --api` listens for.
//!
//! | module | what is in it |
//! |---|---|
//! | `listen`, `tls` | addresses, and the sockets and keys that are had before privileges are given up |
//! | `server`, `connection`, `stream` | threads, connections and their bounds, bodies that are written while they are read |
//! | `guard`, `token`, `role`, `caller` | who is let in, and what for |
//! | `operations`, `openapi` | the table of what can be asked for, which makes the routes and the document |
//! | `routes`, `bodies`, `extract`, `problem`, `queries`, `keys` | the operations; what is sent and received; refusals |
//! | `metrics`, `doctor` | what Prometheus reads; what is found on the machine |
//! | `client` | who asks, as the commands of `retroscope` do |
//!
//! It calls what any thread may ask of a recorder ([`retroscope_recorder::RecorderHandle`]), and the recorder knows nothing of it. HTTP/1.1 only: what is
//! asked here gains nothing from several streams in one connection, and a protocol less is a protocol less to attack.
#![forbid(unsafe_code)]

mod app;
mod bodies;
mod caller;
pub mod client;
mod connection;
pub mod doctor;
mod extract;
mod guard;
mod keys;
mod largest;
mod listen;
pub mod metrics;
mod openapi;
mod operations;
mod past_scan;
mod problem;
mod queries;
mod refusals;
mod role;
mod routes;
mod server;
mod stamp;
mod stream;
mod tls;
mod token;

use std::{fmt, path::PathBuf, sync::Arc};

pub use retroscope_unix::{Notifier, Owner};

pub use bodies::{event::EventBody, status::StatusBody};
pub use listen::{Address, BoundApi};
pub use role::Role;
pub use server::Server;
pub use tls::TlsFiles;
pub use token::TokenLine;

/// What came of a reload, in words, and whether it changed anything; or why all is as it was.
pub type Reloaded = Result<(String, bool), String>;

/// Reads the configuration again. Any thread may call it; it may take long.
#[derive(Clone)]
pub struct Reload(pub Arc<dyn Fn() -> Reloaded + Send + Sync>);

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

/// What the program does for who asks, beside recording.
#[derive(Debug, Clone)]
pub struct Services {
    /// `None`: there is nothing to read again.
    pub reload: Option<Reload>,
    /// Looks at the machine.
    pub doctor: doctor::Doctor,
}

/// Where to listen, and for whom.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Addresses of everything; neither these nor others: nothing is served.
    pub addresses: Vec<Address>,
    /// Addresses at which only metrics are served, and whether the recorder lives.
    pub metrics: Vec<Address>,
    /// Names by which clients may ask, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The file of tokens, which TCP needs.
    pub tokens: Option<PathBuf>,
    /// What TLS needs, which all of TCP then speaks.
    pub tls: Option<TlsFiles>,
    /// Whose unix sockets are.
    pub owner: Owner,
}
