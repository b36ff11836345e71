//! One module a command.

pub(crate) mod filter;
pub(crate) mod record;
