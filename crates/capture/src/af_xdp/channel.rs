//! An AF_XDP socket, and how to bind it to a receive queue.

use std::io;

use rustix::net::xdp::SocketAddrXdpFlags;

use super::{
    mode::{CopyReason, ReceiveMode},
    sys::{ConsumerRing, ProducerRing, XdpSocket},
};
use crate::clock::SECOND_NS;

/// How long a queue tries to bind its socket while another socket has the receive queue (`EBUSY`).
/// The kernel frees a receive queue only some time after its socket was closed.
pub(super) const RECEIVE_QUEUE_WAIT_NS: i64 = 2 * SECOND_NS;

/// A socket with its rings.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: XdpSocket,
    pub(super) fill: ProducerRing,
    pub(super) rx: ConsumerRing,
}

impl Channel {
    /// Binds the socket to a queue of an interface, with zero-copy if the driver runs the program
    /// and supports zero-copy. Returns why packets are copied; `None`: zero-copy.
    ///
    /// `EBUSY` is an error, and no reason for copy mode: a change to copy mode would be permanent
    /// for this socket.
    pub(super) fn bind(
        &self,
        interface_index: i32,
        queue: u32,
        is_native: bool,
        receive_mode: ReceiveMode,
    ) -> io::Result<Option<CopyReason>> {
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(
            SocketAddrXdpFlags::XDP_USE_SG,
            receive_mode.packet_bytes_max.is_none(),
        );
        let bind = |mode| self.socket.bind(interface_index, queue, flags | mode);
        let why = match is_native {
            true => match bind(SocketAddrXdpFlags::XDP_ZEROCOPY) {
                Ok(()) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
                Err(error) => CopyReason::Refused(error.raw_os_error().unwrap_or(0)),
            },
            false => CopyReason::Generic,
        };
        bind(SocketAddrXdpFlags::XDP_COPY)?;
        Ok(Some(why))
    }
}
