//! The program as a user runs it: arguments, exit codes, stdout and stderr, and the files that it
//! writes. Most tests that need network interfaces are in `tests/live`.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod alerts_live;
#[path = "../live/client.rs"]
#[allow(dead_code, reason = "no test needs all of it")]
mod client;
mod config;
mod control;
mod cookbook;
mod details;
mod doctor;
mod dumps;
mod extcap;
mod filter;
mod flows;
mod generate;
mod hostile;
mod lua;
#[path = "../live/marked.rs"]
mod marked;
mod modules;
#[path = "../../../capture/tests/capture/support/namespace.rs"]
#[allow(dead_code, reason = "no test needs all of it")]
mod namespace;
mod pages;
mod query;
mod record_files;
mod recording;
mod remote;
mod sandbox;
mod screen;
mod service;
mod socket_group;
mod status;
mod support;
#[path = "../live/terminal.rs"]
#[allow(dead_code, reason = "no test needs all of it")]
mod terminal;
mod users;
