//! `filter`, `dev filter-explain` and `dev filter-bench` as a user runs them: arguments, exit
//! codes, stdout and stderr.

mod copies;
mod corpus;
mod errors;
mod explain;
mod output;
mod payload;
mod refused;
mod support;
