//! The modules of the commands, and modules that several commands use.

mod capture_file;
mod columns;
pub(crate) mod completions;
pub(crate) mod control;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod dumps;
pub(crate) mod extcap;
pub(crate) mod filter;
pub(crate) mod flows;
pub(crate) mod generate;
pub(crate) mod open;
pub(crate) mod pin;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod remote;
pub(crate) mod removed;
pub(crate) mod rules;
pub(crate) mod sandbox;
pub(crate) mod status;
mod stretch;
mod target;
pub(crate) mod token;
pub(crate) mod trigger;
pub(crate) mod window;

use std::path::PathBuf;

use retroscope_capture::{SourceError, af_packet::interfaces};

use crate::failure::Failure;

/// Names of all interfaces, for a message.
pub(crate) fn interface_names() -> String {
    let all = interfaces().unwrap_or_default();
    let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
    if names.is_empty() {
        return "none found".to_owned();
    }
    names.join(", ")
}

/// Path of the running executable, or only the program's name if the path is unknown.
pub(crate) fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("retroscope"))
}

/// Maps the error of a source. [`SourceError::Usage`] is a usage error.
pub(crate) fn source_failure(error: &SourceError) -> Failure {
    match error {
        SourceError::Usage(_) => Failure::usage(error),
        SourceError::NoInterface { .. } => {
            Failure::failed(format!("{error}; interfaces: {}", interface_names()))
        }
        _ => Failure::failed(error),
    }
}
