//! Many expressions at once: for each packet the numbers of all that match it, at about the price of one.
//!
//! A rule that fixes a flow, a host, a net, a port, a protocol, a VLAN or a hardware address is looked up by that, on headers
//! that are read once for all rules. What else it says is compared with those headers, or its program is run on the few
//! packets that are found. Only rules with nothing to look up (`not port 22`, `ip[8] < 5`) run on every packet, and these as
//! one function ([`FusedPrograms`](crate::FusedPrograms)).
//!
//! ```text
//! text ─ parse ─▶ atom::Expr ─ look_ups ─▶ parts: what is look_up, what remains
//!                                            │
//!                       RuleSet ── index::RuleIndex ── published ──▶ RuleReader ── Matches
//!                    (control side)  tables, groups, programs   (data path)
//! ```
//!
//! The meaning stays libpcap's, to the bit: `parse` takes only what we are certain of, `key` reads the places that libpcap's
//! programs read, and tests compare with each rule's own program. Where only libpcap's optimizer makes a difference (which
//! loads beyond the captured bytes it leaves out of `or` and `not`), the answer is that of a program of the rule if there is
//! one, else the one without the optimizer.
//!
//! # Updates
//! The control side changes a version of its own and publishes it by replacing a pointer; the data path looks for a new
//! version when it likes ([`RuleReader::refresh`]) and never waits for one. Versions share what did not change: an update
//! copies some thousand pointers and the few KiB that it touches, with 10 rules or 100,000. An old version is freed by the
//! control side, at an update after the last reader has left it.
//!
//! # Memory
//! Tables take 0.6 MiB and some 60 bytes for each look-up: 1.1 MiB with 10,000 flows ([`RuleSet::table_bytes`]). The control
//! side keeps each rule's text and what became of it beside that. There is at most one old version for each reader, of which
//! only what changed since counts. Rules with the same key share a group.

mod atom;
mod chunked;
mod collect;
mod explain;
mod finder;
mod hosts;
mod index;
mod key;
mod look_up_key;
mod look_ups;
mod masks;
mod matches;
mod parse;
mod reader;
mod search;
mod search_memory;
mod set;
mod table;
mod understand;
mod unindexed;

pub use explain::{Explanation, InsertedRule, RulePlacement};
pub use hosts::{NeededHosts, hosts_of};
pub use matches::{Certainty, Matches, RuleId};
pub use reader::RuleReader;
pub use set::RuleSet;
