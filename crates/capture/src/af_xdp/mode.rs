//! How packets of an interface arrive: the requested mode, and the mode that the driver and the
//! kernel support.

use std::{fmt, io};

/// The current AF_XDP mode of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpMode {
    /// The driver runs the program; otherwise the kernel's network stack.
    pub is_native: bool,
    /// Why the kernel copies each packet; `None`: the NIC writes to the memory that this process
    /// reads (zero-copy).
    pub copied: Option<CopyReason>,
    /// Packets longer than a chunk arrive in several chunks. Otherwise they are lost and counted
    /// ([`LossCause::Oversize`](crate::LossCause::Oversize)).
    pub is_multi_buffer: bool,
}

/// Why packets are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyReason {
    /// The driver does not run the program, so zero-copy was not requested.
    Generic,
    /// The `errno` of bind(2) for zero-copy: `EOPNOTSUPP` if the driver does not support zero-copy,
    /// or not for packets in several chunks.
    Refused(i32),
}

impl fmt::Display for CopyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generic => f.write_str("the driver runs no XDP program"),
            Self::Refused(code) => {
                let words = io::Error::from_raw_os_error(*code).to_string();
                f.write_str(words.split(" (os error").next().unwrap_or(&words))
            }
        }
    }
}

impl XdpMode {
    /// Combines the modes of two queues of an interface: native, zero-copy or multi-buffer only if
    /// both queues are.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            is_native: self.is_native && other.is_native,
            copied: self.copied.or(other.copied),
            is_multi_buffer: self.is_multi_buffer && other.is_multi_buffer,
        }
    }
}

/// The requested way to receive packets, which determines the program and the socket options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceiveMode {
    /// The driver runs the program; otherwise the kernel's network stack.
    pub(super) is_native: bool,
    /// Bytes of a packet at most; longer packets are lost. `None`: a packet that does not fit one
    /// chunk arrives in several chunks (multi-buffer).
    pub(super) packet_bytes_max: Option<u16>,
    /// The program accepts packets that the driver has in several buffers.
    pub(super) has_fragments: bool,
}

impl ReceiveMode {
    /// The modes to try, best first, and then the mode that every kernel with AF_XDP supports.
    /// `bytes_max`: bytes that fit a chunk; `is_enough`: `bytes_max` is enough for the interface's
    /// MTU; `joins_buffers`: the kernel delivers a packet of several buffers to a socket that takes
    /// one chunk.
    ///
    /// If the driver runs the program, several chunks are requested only if the MTU needs them: the
    /// request makes a driver copy whose zero-copy supports only one buffer per packet. Some
    /// drivers run a program only if it accepts several buffers. Before Linux 6.6
    /// `bpf_redirect_map` to a socket loses packets of several buffers uncounted.
    ///
    /// If the network stack runs the program, several chunks are preferred: the kernel copies in
    /// any case, and packets of virtual interfaces may be longer than the MTU.
    pub(super) fn all(bytes_max: u16, is_enough: bool, joins_buffers: bool) -> (Vec<Self>, Self) {
        let receive_mode = |is_native, has_fragments, in_several: bool| Self {
            is_native,
            packet_bytes_max: (!in_several).then_some(bytes_max),
            has_fragments,
        };
        let whole = receive_mode(true, false, false);
        let by_stack = receive_mode(false, true, true);
        let old = receive_mode(false, false, false);
        let better = match (is_enough, joins_buffers) {
            (true, true) => vec![whole, receive_mode(true, true, false), by_stack],
            (true, false) => vec![whole, by_stack],
            // A kernel without several chunks per packet refuses to bind the socket, and the next
            // mode is tried.
            (false, _) => vec![receive_mode(true, true, true), by_stack, whole],
        };
        (better, old)
    }
}

/// The part of the system that runs the program.
pub(super) fn program_word(is_native: bool) -> &'static str {
    if is_native { "native" } else { "generic" }
}

/// How packets get into the chunks, in words.
pub(super) fn copy_words(copied: Option<CopyReason>, receive_mode: ReceiveMode) -> String {
    let several = match receive_mode.packet_bytes_max {
        Some(_) => "",
        None => " of frames in several chunks",
    };
    match copied {
        None => "zero-copy".to_owned(),
        Some(CopyReason::Generic) => "copy mode".to_owned(),
        Some(why) => format!("copy mode (zero-copy{several} was refused: {why})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_in_copy_mode_is_told_of_the_interface() {
        let mode = |copied| XdpMode {
            is_native: true,
            copied,
            is_multi_buffer: false,
        };
        let why = CopyReason::Refused(libc::EOPNOTSUPP);
        let refused = Some(why);
        for (one, other) in [(None, refused), (refused, None), (refused, refused)] {
            assert_eq!(mode(one).and(mode(other)), mode(refused));
        }
        assert_eq!(mode(None).and(mode(None)).copied, None);
        assert_eq!(why.to_string(), "Operation not supported");
    }

    #[test]
    fn several_chunks_are_asked_of_a_driver_only_where_the_mtu_needs_them() {
        let receive_mode = |is_native, has_fragments, packet_bytes_max| ReceiveMode {
            is_native,
            packet_bytes_max,
            has_fragments,
        };
        // A mode with several chunks has a program for several buffers, as the kernel requires.
        let by_stack = receive_mode(false, true, None);
        for joins_buffers in [false, true] {
            let whole = receive_mode(true, false, Some(1792));
            let (mut enough, oldest) = ReceiveMode::all(1792, true, joins_buffers);
            assert_eq!(oldest, receive_mode(false, false, Some(1792)));
            if joins_buffers {
                assert_eq!(enough.remove(1), receive_mode(true, true, Some(1792)));
            }
            assert_eq!(enough, [whole, by_stack]);
            let (needed, oldest) = ReceiveMode::all(3840, false, joins_buffers);
            assert_eq!(oldest, receive_mode(false, false, Some(3840)));
            let whole = receive_mode(true, false, Some(3840));
            assert_eq!(needed, [receive_mode(true, true, None), by_stack, whole]);
        }
    }
}
