//! Kernel interfaces of the engine (packet sockets, the shared block ring, interface queries), and
//! prefetch hints.

mod interface;
mod mapping;
mod prefetch;
mod socket;

pub(crate) use interface::{Flags, InterfaceQuery};
pub(crate) use mapping::Mapping;
pub(crate) use prefetch::prefetch;
pub use socket::PacketSocket;
