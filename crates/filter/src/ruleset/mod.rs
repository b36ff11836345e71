//! Matches packets against many expressions at once.
//!
//! Packets find most rules by look-ups: by a flow, a host, a net, a port, a protocol, a VLAN, an
//! interface or a hardware address that the rule requires. The rest of a rule is compared with the
//! headers, or the rule's program or the caller tests the packets that were found. The programs of
//! rules with nothing to look up (`not port 22`, `ip[8] < 5`) run on every packet, up to 64
//! programs as one function ([`FusedPrograms`](crate::FusedPrograms)).
//!
//! ```text
//! text ─ parse ─▶ atom::Expr ─ look_ups ─▶ parts: look-up key, remainder
//!                                            │
//!                       RuleSet ── index::RuleIndex ─ published ─▶ RuleReader ── Matches
//!                    (control side)  tables, groups, programs   (data path)
//! ```
//!
//! The results are those of libpcap: `parse` accepts only primitives whose meaning is certain,
//! `key` reads the bytes that libpcap's programs read, and tests compare the results. Only
//! libpcap's optimizer can make a difference: it may omit loads beyond the captured bytes in `or`
//! and `not`. Then the result is that of the rule's program if the program exists, else that of a
//! program without the optimizer.
//!
//! # Updates
//! The control side publishes a new version by replacing a pointer. The data path switches to the
//! new version in [`RuleReader::refresh`], which never waits, or in
//! [`RuleReader::refresh_blocking`]. An update copies about a thousand pointers and the parts that
//! it changes: some KiB with 1,000 flows, and about 150 KiB with 100,000 flows. The next update
//! frees old versions without readers.
//!
//! # Memory
//! Tables take 0.6 MiB and some 60 bytes for each look-up: 1.1 MiB with 10,000 flows
//! ([`RuleSet::table_bytes`]). In addition, the control side keeps the text and the placement of
//! each rule. Each reader keeps at most one old version alive, of which only the changed parts take
//! memory.

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
