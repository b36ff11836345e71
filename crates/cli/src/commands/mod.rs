//! One module a command.

pub(crate) mod doctor;
pub(crate) mod filter;
pub(crate) mod generate;
pub(crate) mod record;
pub(crate) mod status;

use retroscope_capture::af_packet::interfaces;

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
