//! The JSON bodies of requests and answers.

pub(crate) mod alertmanager;
pub(crate) mod event;
pub(crate) mod request;
pub(crate) mod status;
