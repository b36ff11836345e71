//! The API over real sockets: a recorder of made-up traffic, asked by a client that says what it likes.
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
mod support;
mod tls;
