//! One module a command.

pub(crate) mod doctor;
pub(crate) mod filter;
pub(crate) mod generate;
pub(crate) mod record;
pub(crate) mod status;
