//! Parsed headers, flow keys, VLAN stacks, fragments and Community ID.
//!
//! [`parse()`] turns the captured bytes of a frame into [`Parsed`], a small `Copy` set of facts.
//! The parsing path uses no sockets, threads, clocks or allocation.
//!
//! The crate does **not** reassemble packets or read application data. [`parse()`] verifies no
//! checksums, with one exception: after MPLS labels, an IPv4 header is also recognised by its
//! checksum. [`parse()`] does not enter tunnels (GRE, VXLAN, IP in IP): the flow is the outer flow.
//! [`find_inner`] enters tunnels.

mod common;
mod community_id;
mod direction;
mod flow;
mod fragment;
mod link_type;
mod parse;
mod parsed;
pub mod proto;
mod summary;
mod tunnel;
mod vlan;

pub use common::CommonHeaders;
pub use community_id::{
    community_id, community_id_between, community_id_of, icmp_ports, is_community_id,
};
pub use direction::Direction;
pub use flow::{FlowEndpoint, FlowKey, FragmentKey, flow_of, fragment_of};
pub use fragment::{Datagrams, may_be_fragment};
pub use link_type::LinkType;
pub use parse::parse;
pub use parsed::{
    Fragment, Icmp, Ip, LinkProtocol, Llc, Mac, MacAddr, ParseOutcome, Parsed, Ports, Snap,
};
pub use summary::{PacketSummary, summary};
pub use tunnel::{InnerPacket, find_inner};
pub use vlan::{VlanStack, VlanTag};
