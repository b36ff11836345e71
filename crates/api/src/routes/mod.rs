//! The operations, by subject.

pub(crate) mod alertmanager;
pub(crate) mod control;
pub(crate) mod details;
pub(crate) mod document;
pub(crate) mod dump_files;
pub(crate) mod dumps;
pub(crate) mod events;
pub(crate) mod filters;
pub(crate) mod health;
pub(crate) mod packets;
pub(crate) mod pins;
pub(crate) mod query;
pub(crate) mod rule_test;
pub(crate) mod rules;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod timeline;
pub(crate) mod top;
pub(crate) mod triggers;

use std::sync::Arc;

use axum::{Extension, extract::State};

use crate::{app::App, caller::Caller};

type AppState = State<Arc<App>>;
type CallerExtension = Extension<Caller>;
