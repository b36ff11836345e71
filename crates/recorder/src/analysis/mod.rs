//! Analysis: every packet is looked at once, by a [`shard`]; the [`analyzer`] hands it packets and makes orders to the dumper of its hits.
//!
//! What filters are to the recorder is here too, for dumps as well as for triggers: compiled for the link types that there are
//! (`prepared`), made machine code (`native`), looked up together (`rules`), and tried on up to 64 records in a row (`chunk`).

pub(crate) mod alerts;
pub(crate) mod analyzer;
pub(crate) mod budget;
pub(crate) mod chunk;
pub(crate) mod derivation;
pub(crate) mod director;
pub(crate) mod dump_script;
pub(crate) mod flows;
pub(crate) mod fragments;
pub(crate) mod functions;
pub(crate) mod hit_queue;
pub(crate) mod late;
pub(crate) mod native;
pub(crate) mod open_dumps;
pub(crate) mod predicate;
pub(crate) mod prepared;
pub(crate) mod rules;
pub(crate) mod seats;
pub(crate) mod shard;
pub(crate) mod shard_reader;
pub(crate) mod terms;
pub(crate) mod trigger_scripts;
pub(crate) mod triggers;
