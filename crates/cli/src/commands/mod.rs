//! One module a command.

pub(crate) mod record;
