//! Parsed headers, flow keys, VLAN stacks, fragments and Community ID.
//!
//! [`parse()`] turns the captured bytes of a frame into [`Parsed`], a small `Copy` set of facts.
//! Flow keys and Community IDs come from [`Parsed`]. [`CommonHeaders`] and [`may_be_fragment`] read
//! bytes, for speed. The crate is pure: bytes in, facts out. The parsing path uses no sockets,
//! threads, clocks or allocation.
//!
//! The crate does **not** reassemble packets or read application data. It verifies no checksums,
//! with one exception: after MPLS labels, [`parse()`] recognises an IPv4 header also by its
//! checksum. [`parse()`] does not enter tunnels (GRE, VXLAN, IP in IP): the flow is the outer flow.
//! [`find_inner`] enters tunnels. Its caller must be able to recognise the right packet.

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
