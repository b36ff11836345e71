//! Writes flows and the recorder's own events as lines of EVE JSON, the format of Suricata's logs.
//!
//! Pure: [`flow()`] and [`event()`] append text to the caller's buffer. No files, no threads, no
//! clock. Keys and their order are those of Suricata 7's flow log. Facts without a key in
//! Suricata's schema are under one key, `retroscope`. If Suricata knows more than the recorder, the
//! key is omitted, for example `app_proto`, `alerted`, `spi`, and the keys of its stream engine.
#![forbid(unsafe_code)]

mod event;
mod flow;
mod protocols;
mod text;

pub use event::event;
pub use flow::{FlowContext, flow};
pub use protocols::{proto_name, proto_number};
