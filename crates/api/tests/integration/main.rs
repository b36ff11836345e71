//! The API over real sockets: a recorder of generated traffic, and a client that can send any
//! bytes.
#![allow(clippy::unwrap_used, reason = "a test")]

mod access;
mod alertmanager;
mod audit;
mod dumps;
mod follow;
mod history;
mod hostile;
mod limited;
mod operations;
mod page;
mod support;
mod tls;
