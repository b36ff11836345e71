//! `retroscope filter` as a user runs it: arguments, exit codes, stdout and stderr.

mod copies;
mod corpus;
mod errors;
mod explain;
mod output;
mod payload;
mod refused;
mod support;
