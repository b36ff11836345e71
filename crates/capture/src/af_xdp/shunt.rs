//! Flows that are dropped in the kernel.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock, Weak},
};

use super::{
    attachment::{Attachment, QUEUES_MAX},
    program::{FLOW_KEY_BYTES, word},
};

/// A flow in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShuntedFlow {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port, of the same family.
    pub destination: SocketAddr,
    /// 6 (TCP), 17 (UDP) or 132 (SCTP).
    pub protocol: u8,
}

impl ShuntedFlow {
    /// The key as the program makes it from a packet.
    fn key(&self) -> [u8; FLOW_KEY_BYTES] {
        let mut key = [0; FLOW_KEY_BYTES];
        let mut put = |at: usize, address: IpAddr| match address {
            IpAddr::V4(address) => key[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => key[at..at + 16].copy_from_slice(&address.octets()),
        };
        put(0, self.source.ip());
        put(16, self.destination.ip());
        key[32..34].copy_from_slice(&self.source.port().to_be_bytes());
        key[34..36].copy_from_slice(&self.destination.port().to_be_bytes());
        key[36] = self.protocol;
        key
    }
}

/// Drops flows in the kernel, before their packets are copied. From any thread.
///
/// Packets with VLAN tags, IPv4 options, IPv6 extension headers, and fragments are never dropped. Up to 65,536 flows: of more,
/// the least recently seen come back. What is dropped is counted as received and lost by the cause
/// [`LossCause::Shed`](crate::LossCause::Shed).
#[derive(Debug, Clone, Default)]
pub struct Shunt {
    pub(super) attachment: Arc<OnceLock<Weak<Attachment>>>,
}

impl Shunt {
    /// Drops packets of this direction of a flow from now on.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] while the source is not open; else what the kernel said.
    pub fn insert(&self, flow: &ShuntedFlow) -> io::Result<()> {
        let attachment = self.attachment()?;
        attachment.shunted.insert(&flow.key(), &[0; 8])?;
        // Looking flows up costs something for each packet: it begins with the first flow.
        for queue_index in 0..QUEUES_MAX {
            attachment.counters.set(queue_index, word::SHUNTING, 1);
        }
        Ok(())
    }

    /// Lets packets of it through again.
    ///
    /// # Errors
    /// As [`Shunt::insert`]; [`io::ErrorKind::NotFound`] if it was not shunted.
    pub fn remove(&self, flow: &ShuntedFlow) -> io::Result<()> {
        self.attachment()?.shunted.remove(&flow.key())
    }

    fn attachment(&self) -> io::Result<Arc<Attachment>> {
        let attachment = self.attachment.get().and_then(Weak::upgrade);
        attachment.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_a_key() {
        let flow = ShuntedFlow {
            source: "10.1.2.3:258".parse().unwrap(),
            destination: "[2001:db8::7]:772".parse().unwrap(),
            protocol: 17,
        };
        let key = flow.key();
        assert_eq!(key[..16], [10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key[16..20], [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(key[31..], [7, 1, 2, 3, 4, 17, 0, 0, 0]);
    }
}
