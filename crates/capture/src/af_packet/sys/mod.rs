//! What the engine needs of the kernel: packet sockets, the shared block ring, interface queries.
//!
//! Each function is one system call or one access to
//! shared memory behind a safe signature; decisions are made by the callers.

mod interface;
mod mapping;
mod prefetch;
mod socket;

pub(crate) use interface::{Flags, InterfaceQuery};
pub(crate) use mapping::Mapping;
pub(crate) use prefetch::prefetch;
pub use socket::PacketSocket;
