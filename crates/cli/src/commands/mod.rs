//! One module a command.

mod capture_file;
pub(crate) mod doctor;
pub(crate) mod filter;
pub(crate) mod generate;
pub(crate) mod record;
pub(crate) mod status;
mod target;

use retroscope_capture::{SourceError, af_packet::interfaces};

use crate::failure::Failure;

/// The interfaces that there are, for a message.
pub(crate) fn interface_names() -> String {
    let names: Vec<String> = interfaces()
        .unwrap_or_default()
        .into_iter()
        .map(|interface| interface.name)
        .collect();
    if names.is_empty() {
        "none found".to_owned()
    } else {
        names.join(", ")
    }
}

/// A source that cannot be opened: an argument that says nothing useful is a usage error.
pub(crate) fn source_failure(error: &SourceError) -> Failure {
    match error {
        SourceError::Usage { .. } => Failure::usage(error),
        SourceError::NoInterface { .. } => {
            Failure::failed(format!("{error}; interfaces: {}", interface_names()))
        }
        _ => Failure::failed(error),
    }
}
