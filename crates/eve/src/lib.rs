//! Flows and our own events as lines of EVE JSON, the format of Suricata's logs.
//!
//! Pure: it appends text to a buffer of the caller's. No files, no threads, no clock. Keys and their order are those of Suricata 7's flow
//! log; what its schema does not know is under one key, `retroscope`. Where Suricata would know more than we do, the key is left out: `app_proto`,
//! `alerted`, `spi`, and what its stream engine tells.
#![forbid(unsafe_code)]

mod event;
mod flow;
mod protocols;
mod text;

pub use event::event;
pub use flow::{FlowContext, flow};
pub use protocols::{proto_name, proto_number};
