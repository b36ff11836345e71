//! Header views, flow keys, VLAN stacks, fragments and Community ID.
//!
//! Pure: bytes in, facts out. No sockets, threads, clocks or allocation on the parsing path.

mod link_type;

pub use link_type::LinkType;
