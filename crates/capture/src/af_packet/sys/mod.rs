//! Kernel interfaces of the engine: packet sockets, the shared block ring, interface queries.
//!
//! The functions make system calls or access shared memory, with safe signatures. The callers make
//! the decisions.

mod interface;
mod mapping;
mod prefetch;
mod socket;

pub(crate) use interface::{Flags, InterfaceQuery};
pub(crate) use mapping::Mapping;
pub(crate) use prefetch::prefetch;
pub use socket::PacketSocket;
