//! pcap-filter(7) expressions. The system's libpcap compiles an expression to classic BPF, which
//! runs as machine code or in a safe interpreter. Templates take values from a trigger packet.
//!
//! - [`compile()`] turns text into a [`Program`]; errors point into the text. A [`Compiler`] turns
//!   programs into machine code on its own thread.
//! - [`Template`] is an expression with variables (`host $srcIP`) and Retroscope's own terms
//!   (`$flow`, `payload contains "…"`). With the facts of a trigger packet a template becomes a
//!   [`FilledExpression`].
//! - [`FusedPrograms`] runs up to 64 programs together.
//! - [`Filter`] is a filled expression, compiled for each link type of the sources.
//! - [`RuleSet`] holds thousands of filters and finds, mostly by look-ups, all that match a packet.
//!
//! The crate has no sockets, and no thread except the [`Compiler`]'s. It uses the system's tables
//! and resolver for names, executable memory, a clock for compile times, and random seeds of hash
//! tables.

mod aux;
mod chain;
mod compile;
mod display_filter;
mod error;
mod evaluation;
mod filled;
mod filter;
mod flow_state;
mod frame;
mod fused;
mod header_reads;
mod interpreter;
mod link;
mod locate;
mod names;
mod native;
mod parts;
mod payload;
mod plan;
mod program;
mod ruleset;
mod scan;
mod structure;
mod sys;
mod tagged;
mod template;
mod variable;
mod words;

pub use aux::Aux;
pub use compile::{EXPRESSION_BYTES_MAX, compile};
pub use error::{FilterError, FilterProblem};
pub use filled::FilledExpression;
pub use filter::{Decision, Filter, FilterAnswer, PacketView};
pub use flow_state::FlowState;
pub use frame::FilterFrame;
pub use fused::FusedPrograms;
pub use link::{FilterMode, LinkContext};
pub use native::{Compiler, CompilerCounts, NativeError, NativeInfo};
pub use program::{Program, ProgramError};
pub use retroscope_bpf::Instruction;
pub use ruleset::{
    Certainty, Explanation, InsertedRule, Matches, NeededHosts, RuleId, RulePlacement, RuleReader,
    RuleSet, hosts_of,
};
pub use sys::link_type_name;
pub use tagged::is_tagged;
pub use template::{KnownFlow, Template, TriggerFacts, TriggerValues};
pub use variable::{FillError, Variable};

#[cfg(test)]
mod tests {
    mod differential;
}
