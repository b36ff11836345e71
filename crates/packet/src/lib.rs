//! Header views, flow keys, VLAN stacks, fragments and Community ID.
//!
//! [`parse`] turns the captured bytes of a frame into [`Parsed`], a small copyable set of facts; everything else here
//! is computed from those. Pure: bytes in, facts out. No sockets, threads, clocks or allocation on the parsing path.
//!
//! It does **not** reassemble, verify checksums or read application data. Tunnels are not descended by [`parse`] (GRE, VXLAN, IP in IP: the flow is
//! the outer one); [`find_inner`] looks into them for who knows what it seeks.

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
