//! pcap-filter(7) expressions: the system's libpcap compiles them to classic BPF, machine code or a safe interpreter runs
//! that, templates fill them in from a trigger packet.
//!
//! - [`compile()`] turns text into a [`Program`]; errors point at the offending word. [`Program::make_native`] turns that into
//!   machine code; a [`Compiler`] does it beside the data path.
//! - [`Template`] is an expression with variables (`host $srcIP`) and terms of our own (`$flow`, `payload contains "…"`);
//!   with the facts of a trigger packet it becomes a [`FilledExpression`] expression.
//! - [`FusedPrograms`] runs many programs as one function.
//! - [`Filter`] is either, compiled for each link type of the sources, and says what to do with a packet.
//! - [`RuleSet`] holds thousands of them and finds, by look-ups, all that match a packet.
//!
//! Pure: bytes in, verdicts out. No sockets, and no threads but the [`Compiler`]'s; the only ways out are libpcap's look at
//! the system's tables of names, and memory for machine code.

mod aux;
mod chain;
mod compile;
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
