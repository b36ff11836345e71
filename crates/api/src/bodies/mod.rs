//! What is sent and received, as JSON.

pub(crate) mod alertmanager;
pub(crate) mod event;
pub(crate) mod request;
pub(crate) mod status;
