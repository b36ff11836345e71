//! Questions about interfaces: netdevice(7) and the kernel's `ethtool.h`.
//!
//! They are asked through a socket, so the answers are those of the network namespace of the calling thread at the time
//! the [`InterfaceQuery`] was made; `/sys/class/net` would show the namespace of whoever mounted it.
//!
//! Answers of ethtool are structures of 32-bit words, with bytes and halves in some; they are read as words.
#![expect(unsafe_code, reason = "ioctl takes pointers to structures with unions")]

use std::{
    ffi::{CStr, c_char, c_ulong},
    io,
    mem::zeroed,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType,
    netdevice::{index_to_name, name_to_index},
    socket_with,
};

use crate::sys::check;

/// `ETHTOOL_GSET`, `ETHTOOL_GDRVINFO`, `ETHTOOL_GFLAGS`, `ETHTOOL_GGRO` of `linux/ethtool.h`.
const ETHTOOL_LINK: u32 = 0x01;
const ETHTOOL_DRIVER: u32 = 0x03;
const ETHTOOL_FLAGS: u32 = 0x25;
const ETHTOOL_GRO: u32 = 0x2b;

/// `ETHTOOL_GRXFH` and `ETHTOOL_GRSSH`.
const ETHTOOL_FLOW_HASH: u32 = 0x29;
const ETHTOOL_RSS: u32 = 0x46;

/// `ETHTOOL_GRINGPARAM` and `ETHTOOL_GPAUSEPARAM`.
const ETHTOOL_RING: u32 = 0x10;
const ETHTOOL_PAUSE: u32 = 0x12;

/// `ETHTOOL_GCHANNELS`.
const ETHTOOL_CHANNELS: u32 = 0x3c;

/// Room for an indirection table of 4096 entries and a key of 256 bytes: larger ones are not known to exist.
const RSS_WORDS: usize = 4096 + 64;

/// Interface flags of netdevice(7).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flags(i32);

impl Flags {
    /// Switched on by the administrator.
    pub(crate) fn is_up(self) -> bool {
        self.0 & libc::IFF_UP != 0
    }

    /// Up and with a carrier.
    pub(crate) fn is_running(self) -> bool {
        self.0 & libc::IFF_RUNNING != 0
    }

    pub(crate) fn is_loopback(self) -> bool {
        self.0 & libc::IFF_LOOPBACK != 0
    }
}

/// A socket to ask through. Needs no privilege.
#[derive(Debug)]
pub(crate) struct InterfaceQuery {
    descriptor: OwnedFd,
}

impl InterfaceQuery {
    pub(crate) fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
        let descriptor = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { descriptor })
    }

    /// The interface's index. Fails with `ENODEV` where there is none of this name.
    pub(crate) fn index(&self, name: &str) -> io::Result<i32> {
        Ok(name_to_index(&self.descriptor, name)?.cast_signed())
    }

    /// The name that the interface of this index has now. Fails with `ENODEV` where there is none.
    pub(crate) fn name(&self, index: u32) -> io::Result<String> {
        Ok(index_to_name(&self.descriptor, index)?)
    }

    pub(crate) fn flags(&self, name: &str) -> io::Result<Flags> {
        let mut request = request(name)?;
        // SAFETY: SIOCGIFFLAGS fills the ifreq and follows no pointer in it.
        unsafe { self.ask(libc::SIOCGIFFLAGS, &mut request) }?;
        // SAFETY: SIOCGIFFLAGS filled this member of the union.
        Ok(Flags(i32::from(unsafe { request.ifr_ifru.ifru_flags })))
    }

    /// Bytes of the largest packet above the link layer.
    pub(crate) fn mtu(&self, name: &str) -> io::Result<i32> {
        let mut request = request(name)?;
        // SAFETY: SIOCGIFMTU fills the ifreq and follows no pointer in it.
        unsafe { self.ask(libc::SIOCGIFMTU, &mut request) }?;
        // SAFETY: SIOCGIFMTU filled this member of the union.
        Ok(unsafe { request.ifr_ifru.ifru_mtu })
    }

    /// The hardware type: an `ARPHRD_` value.
    pub(crate) fn hardware_type(&self, name: &str) -> io::Result<u16> {
        let mut request = request(name)?;
        // SAFETY: SIOCGIFHWADDR fills the ifreq and follows no pointer in it.
        unsafe { self.ask(libc::SIOCGIFHWADDR, &mut request) }?;
        // SAFETY: SIOCGIFHWADDR filled this member of the union.
        Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
    }

    /// The legacy ethtool flags: bit 7 VLAN insertion, 8 VLAN extraction, 15 LRO.
    pub(crate) fn ethtool_flags(&self, name: &str) -> io::Result<u32> {
        // `struct ethtool_value`: the value behind the command.
        let answer: [u32; 2] = self.ethtool(name, ETHTOOL_FLAGS)?;
        Ok(answer[1])
    }

    /// Whether generic receive offload is on.
    pub(crate) fn ethtool_gro(&self, name: &str) -> io::Result<bool> {
        let answer: [u32; 2] = self.ethtool(name, ETHTOOL_GRO)?;
        Ok(answer[1] != 0)
    }

    /// The driver's name: `veth`, `virtio_net`, `tun`, …
    pub(crate) fn driver(&self, name: &str) -> io::Result<String> {
        // `struct ethtool_drvinfo`: 32 bytes of name behind the command.
        let answer: [u32; 49] = self.ethtool(name, ETHTOOL_DRIVER)?;
        let bytes = answer[1..9].iter().flat_map(|word| word.to_ne_bytes());
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Which fields of packets of this `flow_type` the NIC hashes: `RXH_` bits.
    pub(crate) fn ethtool_flow_hash(&self, name: &str, flow_type: u32) -> io::Result<u64> {
        // The first 16 bytes of `struct ethtool_rxnfc`, which are all that the command reads and fills: command, type, data.
        let mut answer = [ETHTOOL_FLOW_HASH, flow_type, 0, 0];
        self.ask_ethtool(name, &mut answer)?;
        let ([a, b, c, d], [e, f, g, h]) = (answer[2].to_ne_bytes(), answer[3].to_ne_bytes());
        Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }

    /// How the NIC spreads packets over its receive queues.
    pub(crate) fn ethtool_rss(&self, name: &str) -> io::Result<RssAnswer> {
        // `struct ethtool_rxfh`: command, context, entries of the table, bytes of the key, then in bytes function, transform and reserved
        // ones; table and key behind them. The first call asks for the sizes.
        const CONFIG: usize = 6;
        let mut answer: [u32; CONFIG] = self.ethtool(name, ETHTOOL_RSS)?;
        let (length, bytes) = (answer[2] as usize, answer[3] as usize);
        if length.saturating_mul(4).saturating_add(bytes) > 4 * RSS_WORDS {
            return Err(io::Error::other("an indirection table of unknown size"));
        }
        answer[4] = 0;
        let mut whole = [0; CONFIG + RSS_WORDS];
        whole[..CONFIG].copy_from_slice(&answer);
        self.ask_ethtool(name, &mut whole)?;
        let (table, key) = whole[CONFIG..].split_at(length);
        let [function, transform, ..] = whole[4].to_ne_bytes();
        Ok(RssAnswer {
            function,
            transform,
            table: table.to_vec(),
            key: key
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .take(bytes)
                .collect(),
        })
    }

    /// Entries of the NIC's receive ring, and the most that it can have.
    pub(crate) fn ethtool_receive_ring(&self, name: &str) -> io::Result<(u32, u32)> {
        // `struct ethtool_ringparam`: four maxima and four sizes, each with that of received packets first.
        let answer: [u32; 9] = self.ethtool(name, ETHTOOL_RING)?;
        Ok((answer[5], answer[1]))
    }

    /// How many transmit queues are in use. Since Linux 5.12 for veth.
    pub(crate) fn ethtool_transmit_queues(&self, name: &str) -> io::Result<u32> {
        // `struct ethtool_channels`: four maxima, then queues that receive, send, do other things, and receive and send.
        let answer: [u32; 9] = self.ethtool(name, ETHTOOL_CHANNELS)?;
        Ok(answer[6].saturating_add(answer[8]))
    }

    /// Whether the NIC asks the other end to pause when it is full (IEEE 802.3, annex 31B).
    pub(crate) fn ethtool_sends_pauses(&self, name: &str) -> io::Result<bool> {
        // `struct ethtool_pauseparam`: negotiates, obeys, sends.
        let answer: [u32; 4] = self.ethtool(name, ETHTOOL_PAUSE)?;
        Ok(answer[3] != 0)
    }

    /// How fast the link is, Mbit/s. `None`: the driver does not know, as where there is no carrier.
    pub(crate) fn ethtool_speed(&self, name: &str) -> io::Result<Option<u32>> {
        // `struct ethtool_cmd`: halves of the speed in bytes 12 and 28.
        let answer: [u32; 11] = self.ethtool(name, ETHTOOL_LINK)?;
        let half = |word: usize| {
            let [a, b, ..] = answer[word].to_ne_bytes();
            u32::from(u16::from_ne_bytes([a, b]))
        };
        let speed = half(3) | half(7) << 16;
        Ok(Some(speed).filter(|speed| (1..SPEED_UNKNOWN).contains(speed)))
    }

    /// Asks with a command alone.
    fn ethtool<const WORDS: usize>(&self, name: &str, command: u32) -> io::Result<[u32; WORDS]> {
        let mut answer = [0; WORDS];
        answer[0] = command;
        self.ask_ethtool(name, &mut answer)?;
        Ok(answer)
    }

    /// Asks what the first word of `answer` commands.
    fn ask_ethtool<const WORDS: usize>(
        &self,
        name: &str,
        answer: &mut [u32; WORDS],
    ) -> io::Result<()> {
        let expected = match answer[0] {
            ETHTOOL_FLAGS | ETHTOOL_GRO => 2,
            ETHTOOL_PAUSE | ETHTOOL_FLOW_HASH => 4,
            // The kernel refuses sizes that are neither 0 nor those that it gave, which were compared with the room.
            ETHTOOL_RSS => {
                6 + (answer[2] as usize).saturating_add((answer[3] as usize).div_ceil(4))
            }
            ETHTOOL_RING | ETHTOOL_CHANNELS => 9,
            ETHTOOL_LINK => 11,
            _ => 49,
        };
        assert!(expected <= WORDS, "no room for the answer");
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
        // SAFETY: the pointer leads to as many words as the structure of the command has, as asserted, which live across the call; any
        // bytes are a value.
        unsafe { self.ask(libc::SIOCETHTOOL, &mut request) }
    }

    /// One of the calls of netdevice(7).
    ///
    /// # Safety
    /// Pointers in `request` that `call` follows must lead to what it reads and fills there.
    unsafe fn ask(&self, call: c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: the ifreq lives across the call, and the caller answers for its pointers.
        check(unsafe { libc::ioctl(descriptor, call as _, std::ptr::from_mut(request)) })?;
        Ok(())
    }
}

/// What [`InterfaceQuery::ethtool_rss`] found.
#[derive(Debug)]
pub(crate) struct RssAnswer {
    /// `ETH_RSS_HASH_` bits.
    pub(crate) function: u8,
    /// `RXH_XFRM_` bits; 0xff: unknown.
    pub(crate) transform: u8,
    /// The indirection table.
    pub(crate) table: Vec<u32>,
    pub(crate) key: Vec<u8>,
}

/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = 0xffff_ffff;

/// A request for the interface `name`; `ENODEV` if no interface can have this name.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq is integers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

/// The names of all interfaces with their indices, in the calling thread's network namespace.
pub(crate) fn names() -> io::Result<Vec<(u32, String)>> {
    // SAFETY: takes nothing.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    for position in 0.. {
        // SAFETY: the list ends with an entry of index 0, which is where this loop stops, so the result lies in it.
        let entry = unsafe { list.add(position) };
        // SAFETY: `entry` is an initialised member of the list, which lives until it is freed below.
        let entry = unsafe { &*entry };
        if entry.if_index == 0 || entry.if_name.is_null() {
            break;
        }
        // SAFETY: the entry is not the last, so its name is a C string that lives until the list is freed.
        let name = unsafe { CStr::from_ptr(entry.if_name) };
        names.push((entry.if_index, name.to_string_lossy().into_owned()));
    }
    // SAFETY: the list came from if_nameindex and nothing borrows it any more.
    unsafe { libc::if_freenameindex(list) };
    Ok(names)
}
