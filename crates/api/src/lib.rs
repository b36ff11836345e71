//! What a running recorder tells over HTTP.
#![forbid(unsafe_code)]

pub mod metrics;
