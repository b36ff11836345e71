//! Packet sockets: packet(7), and `Documentation/networking/packet_mmap.rst` of the kernel.
#![expect(
    unsafe_code,
    reason = "system calls without a safe wrapper in rustix's feature set"
)]

use std::{
    io,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use libc::c_int;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::{
    Instruction,
    sys::{Plain, check, length_of, option, set_option},
};

/// `AF_PACKET` and `PACKET_MR_PROMISC` in the width of the structures' fields.
const FAMILY: u16 = 17;
const MEMBERSHIP_PROMISCUOUS: u16 = 1;
const _: () = assert!(FAMILY as c_int == libc::AF_PACKET);
const _: () = assert!(MEMBERSHIP_PROMISCUOUS as c_int == libc::PACKET_MR_PROMISC as c_int);

// The kernel gets a program in this layout.
const _: () = assert!(
    size_of::<Instruction>() == size_of::<libc::sock_filter>()
        && std::mem::offset_of!(Instruction, code) == std::mem::offset_of!(libc::sock_filter, code)
        && std::mem::offset_of!(Instruction, jump_true)
            == std::mem::offset_of!(libc::sock_filter, jt)
        && std::mem::offset_of!(Instruction, jump_false)
            == std::mem::offset_of!(libc::sock_filter, jf)
        && std::mem::offset_of!(Instruction, k) == std::mem::offset_of!(libc::sock_filter, k)
);

/// A packet socket.
#[derive(Debug)]
pub struct PacketSocket {
    pub(in crate::af_packet) descriptor: OwnedFd,
}

impl PacketSocket {
    /// Calls `socket(AF_PACKET, SOCK_RAW)`, nonblocking. The socket receives no packets until it is
    /// bound with a protocol. Fails with `EPERM` without CAP_NET_RAW.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let descriptor = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        Ok(Self { descriptor })
    }

    /// Duplicates the descriptor of an existing packet socket; `None`: the descriptor is no packet
    /// socket, or cannot be duplicated.
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> Option<Self> {
        let domain = sockopt::socket_domain(descriptor).ok()?;
        if domain != AddressFamily::PACKET {
            return None;
        }
        let descriptor = descriptor.try_clone_to_owned().ok()?;
        Some(Self { descriptor })
    }

    /// Binds to an interface. `protocol` is an EtherType in host order, `ETH_P_ALL` for all
    /// packets, or 0 for no packets. With 0 the kernel takes the socket out of the receive path,
    /// and waits until no other CPU uses the socket in this path.
    pub(crate) fn bind(&self, interface_index: i32, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: FAMILY,
            sll_protocol: protocol.to_be(),
            sll_ifindex: interface_index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let size = length_of::<libc::sockaddr_ll>();
        // SAFETY: `address` is a sockaddr_ll of `size` bytes that lives across the call; bind only
        // reads it.
        check(unsafe { libc::bind(self.raw(), (&raw const address).cast(), size) })?;
        Ok(())
    }

    /// The index of the interface to which the socket is bound. Negative after the removal of that
    /// interface.
    pub(crate) fn bound_index(&self) -> io::Result<i32> {
        // SAFETY: sockaddr_ll is plain integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        let mut size = length_of::<libc::sockaddr_ll>();
        // SAFETY: `address` has room for `size` bytes, both live across the call, and any bytes are
        // a valid sockaddr_ll.
        check(unsafe { libc::getsockname(self.raw(), (&raw mut address).cast(), &raw mut size) })?;
        Ok(address.sll_ifindex)
    }

    /// Switches to TPACKET_V3 and requests a receive ring of `blocks` blocks. `block_bytes` is a
    /// multiple of the page size. `retire_ms`: the kernel's time-out for a block that is not full.
    pub(crate) fn set_up_ring(
        &self,
        block_bytes: u32,
        blocks: u32,
        retire_ms: u32,
    ) -> io::Result<()> {
        // The kernel checks the frame size, but version 3 does not use it.
        let frame_bytes = 2048;
        let version = libc::tpacket_versions::TPACKET_V3 as c_int;
        self.set_packet(libc::PACKET_VERSION, &version)?;
        let ring = libc::tpacket_req3 {
            tp_block_size: block_bytes,
            tp_block_nr: blocks,
            tp_frame_size: frame_bytes,
            tp_frame_nr: (block_bytes / frame_bytes).saturating_mul(blocks),
            tp_retire_blk_tov: retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        self.set_packet(libc::PACKET_RX_RING, &ring)
    }

    /// Requests promiscuous mode of the interface; closing the socket ends the request.
    pub fn set_promiscuous(&self, interface_index: i32) -> io::Result<()> {
        self.set_packet(libc::PACKET_ADD_MEMBERSHIP, &promiscuity(interface_index))
    }

    /// Turns promiscuous mode off. Not needed after the removal of the interface.
    pub(crate) fn unset_promiscuous(&self, interface_index: i32) -> io::Result<()> {
        self.set_packet(libc::PACKET_DROP_MEMBERSHIP, &promiscuity(interface_index))
    }

    /// Makes the kernel stamp packets once for all sockets, where they enter
    /// (`net_enable_timestamp`, socket(7) `SO_TIMESTAMPNS`). Otherwise packet sockets usually stamp
    /// packets separately.
    pub(crate) fn stamp_on_arrival(&self) -> io::Result<()> {
        set_option(self, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32)
    }

    /// Sets whether packets keep a stamp of the NIC (packet(7) `PACKET_TIMESTAMP`). Other packets
    /// get a stamp of the kernel.
    pub(crate) fn take_nic_stamps(&self, takes: bool) -> io::Result<()> {
        let flags = if takes {
            libc::SOF_TIMESTAMPING_RAW_HARDWARE
        } else {
            0
        };
        self.set_packet(libc::PACKET_TIMESTAMP, &flags)
    }

    /// Excludes frames that this host sends. Since Linux 4.20.
    pub(crate) fn ignore_outgoing(&self) -> io::Result<()> {
        self.set_packet(libc::PACKET_IGNORE_OUTGOING, &1_i32)
    }

    /// Passes frames to the driver without a queueing discipline. Since Linux 3.14.
    pub(crate) fn bypass_queueing(&self) -> io::Result<()> {
        self.set_packet(libc::PACKET_QDISC_BYPASS, &1_i32)
    }

    /// Joins a fanout group. `mode` contains the mode in its lower byte, and flags.
    pub(crate) fn join_fanout(&self, group: u16, mode: u16) -> io::Result<()> {
        self.set_packet(
            libc::PACKET_FANOUT,
            &(u32::from(mode) << 16 | u32::from(group)),
        )
    }

    /// The identifier of the socket's fanout group.
    pub(crate) fn fanout_group(&self) -> io::Result<u16> {
        let value: u32 = option(self, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
        let [_, _, high, low] = value.to_be_bytes();
        Ok(u16::from_be_bytes([high, low]))
    }

    /// Installs a classic BPF filter. Packets that the filter rejects do not count as received. At
    /// most 4096 instructions.
    pub(crate) fn attach_filter(&self, program: &[Instruction]) -> io::Result<()> {
        let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The kernel copies the program and does not write to it, although the pointer's type is
        // mutable.
        let program = libc::sock_fprog {
            len: length,
            filter: program.as_ptr().cast_mut().cast(),
        };
        set_option(self, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    pub(crate) fn detach_filter(&self) -> io::Result<()> {
        set_option(self, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)
    }

    /// `PACKET_STATISTICS`: counters since the previous call. Each call resets the counters.
    pub(crate) fn take_statistics(&self) -> io::Result<libc::tpacket_stats_v3> {
        option(self, libc::SOL_PACKET, libc::PACKET_STATISTICS)
    }

    fn set_packet<T: Plain>(&self, name: c_int, value: &T) -> io::Result<()> {
        set_option(self, libc::SOL_PACKET, name, value)
    }

    fn raw(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

// SAFETY: integers.
unsafe impl Plain for libc::tpacket_req3 {}
// SAFETY: integers.
unsafe impl Plain for libc::tpacket_stats_v3 {}
// SAFETY: integers.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: an integer and a raw pointer.
unsafe impl Plain for libc::sock_fprog {}

fn promiscuity(interface_index: i32) -> libc::packet_mreq {
    libc::packet_mreq {
        mr_ifindex: interface_index,
        mr_type: MEMBERSHIP_PROMISCUOUS,
        mr_alen: 0,
        mr_address: [0; 8],
    }
}
