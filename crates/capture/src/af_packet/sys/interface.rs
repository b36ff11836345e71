//! Questions about interfaces: netdevice(7) and the kernel's `ethtool.h`.
//!
//! They are asked through a socket, so the answers are those of the network namespace of the calling thread at the time
//! the [`InterfaceQuery`] was made; `/sys/class/net` would show the namespace of whoever mounted it.
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
        self.ethtool_value(name, ETHTOOL_FLAGS)
    }

    /// Whether generic receive offload is on.
    pub(crate) fn ethtool_gro(&self, name: &str) -> io::Result<bool> {
        Ok(self.ethtool_value(name, ETHTOOL_GRO)? != 0)
    }

    /// The driver's name: `veth`, `virtio_net`, `tun`, …
    pub(crate) fn driver(&self, name: &str) -> io::Result<String> {
        let mut answer = DriverInfo {
            command: ETHTOOL_DRIVER,
            driver: [0; 32],
            rest: [0; 160],
        };
        self.ask_ethtool(name, &mut answer)?;
        let length = answer
            .driver
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(answer.driver.len());
        Ok(String::from_utf8_lossy(&answer.driver[..length]).into_owned())
    }

    /// Which fields of packets of this `flow_type` the NIC hashes: `RXH_` bits.
    pub(crate) fn ethtool_flow_hash(&self, name: &str, flow_type: u32) -> io::Result<u64> {
        let mut answer = FlowHash {
            command: ETHTOOL_FLOW_HASH,
            flow_type,
            data: 0,
        };
        self.ask_ethtool(name, &mut answer)?;
        Ok(answer.data)
    }

    /// How the NIC spreads packets over its receive queues.
    pub(crate) fn ethtool_rss(&self, name: &str) -> io::Result<RssAnswer> {
        // The first call asks for the sizes.
        let mut answer = Rss::new(0, 0);
        self.ask_ethtool(name, &mut answer)?;
        let (table_len, key_bytes) = (answer.table_len, answer.key_bytes);
        let (length, bytes) = (table_len as usize, key_bytes as usize);
        if length.saturating_mul(4).saturating_add(bytes) > 4 * RSS_WORDS {
            return Err(io::Error::other("an indirection table of unknown size"));
        }
        let mut answer = Rss::new(table_len, key_bytes);
        self.ask_ethtool(name, &mut answer)?;
        let key = answer.config[length..]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .take(bytes)
            .collect();
        Ok(RssAnswer {
            function: answer.function,
            transform: answer.transform,
            table: answer.config[..length].to_vec(),
            key,
        })
    }

    /// Entries of the NIC's receive ring, and the most that it can have.
    pub(crate) fn ethtool_receive_ring(&self, name: &str) -> io::Result<(u32, u32)> {
        let mut answer = RingSizes {
            command: ETHTOOL_RING,
            receive_max: 0,
            other_maxima: [0; 3],
            receive: 0,
            others: [0; 3],
        };
        self.ask_ethtool(name, &mut answer)?;
        Ok((answer.receive, answer.receive_max))
    }

    /// How many transmit queues are in use. Since Linux 5.12 for veth.
    pub(crate) fn ethtool_transmit_queues(&self, name: &str) -> io::Result<u32> {
        let mut answer = Channels {
            command: ETHTOOL_CHANNELS,
            maxima: [0; 4],
            receive: 0,
            transmit: 0,
            other: 0,
            combined: 0,
        };
        self.ask_ethtool(name, &mut answer)?;
        Ok(answer.transmit.saturating_add(answer.combined))
    }

    /// Whether the NIC asks the other end to pause when it is full (IEEE 802.3, annex 31B).
    pub(crate) fn ethtool_sends_pauses(&self, name: &str) -> io::Result<bool> {
        let mut answer = Pauses {
            command: ETHTOOL_PAUSE,
            negotiates: 0,
            obeys: 0,
            sends: 0,
        };
        self.ask_ethtool(name, &mut answer)?;
        Ok(answer.sends != 0)
    }

    /// How fast the link is, Mbit/s. `None`: the driver does not know, as where there is no carrier.
    pub(crate) fn ethtool_speed(&self, name: &str) -> io::Result<Option<u32>> {
        let mut answer = Link {
            command: ETHTOOL_LINK,
            modes: [0; 2],
            speed: 0,
            ports: [0; 14],
            speed_high: 0,
            rest: [0; 14],
        };
        self.ask_ethtool(name, &mut answer)?;
        let speed = u32::from(answer.speed) | u32::from(answer.speed_high) << 16;
        Ok(Some(speed).filter(|speed| (1..SPEED_UNKNOWN).contains(speed)))
    }

    fn ethtool_value(&self, name: &str, command: u32) -> io::Result<u32> {
        let mut answer = Value { command, data: 0 };
        self.ask_ethtool(name, &mut answer)?;
        Ok(answer.data)
    }

    /// Asks what `answer` holds the command of.
    fn ask_ethtool<A: Answer>(&self, name: &str, answer: &mut A) -> io::Result<()> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(answer).cast();
        // SAFETY: the pointer leads to a structure as large as its command fills (`Answer`), which lives across the call.
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

/// What an ethtool command fills.
///
/// # Safety
/// Starts with the command, a constant of the type, and is as large as that command's structure; any bytes are a value.
unsafe trait Answer {}

// SAFETY: `ethtool_drvinfo`, asserted to be as large, is only made with its command.
unsafe impl Answer for DriverInfo {}
// SAFETY: `ethtool_cmd`, asserted to be as large, is only made with its command.
unsafe impl Answer for Link {}
// SAFETY: `ethtool_value`; only made with commands that fill one.
unsafe impl Answer for Value {}

// SAFETY: the first 16 bytes of `ethtool_rxnfc`, which are all that its command reads and fills.
unsafe impl Answer for FlowHash {}
// SAFETY: `ethtool_rxfh`, made with sizes of 0, or with those that the first call gave and `RSS_WORDS` has room for; the
// kernel refuses a call whose sizes are neither.
unsafe impl Answer for Rss {}

// SAFETY: `ethtool_ringparam`, asserted to be as large, is only made with its command.
unsafe impl Answer for RingSizes {}
// SAFETY: `ethtool_channels`, likewise.
unsafe impl Answer for Channels {}
// SAFETY: `ethtool_pauseparam`, likewise.
unsafe impl Answer for Pauses {}

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

/// The start of `struct ethtool_rxnfc`.
#[repr(C)]
struct FlowHash {
    command: u32,
    flow_type: u32,
    data: u64,
}

/// `struct ethtool_rxfh` with room for table and key behind it.
#[repr(C)]
struct Rss {
    command: u32,
    context: u32,
    /// Entries of the table, which come first in `config`.
    table_len: u32,
    /// Bytes of the key, which come behind them.
    key_bytes: u32,
    function: u8,
    transform: u8,
    reserved: [u8; 6],
    config: [u32; RSS_WORDS],
}

const _: () = assert!(size_of::<FlowHash>() == 16);
const _: () = assert!(std::mem::offset_of!(Rss, config) == 24);

impl Rss {
    fn new(table_len: u32, key_bytes: u32) -> Self {
        Self {
            command: ETHTOOL_RSS,
            context: 0,
            table_len,
            key_bytes,
            function: 0,
            transform: 0,
            reserved: [0; 6],
            config: [0; RSS_WORDS],
        }
    }
}

/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = 0xffff_ffff;

/// `struct ethtool_cmd`, of which only the speed is read.
#[repr(C)]
struct Link {
    command: u32,
    modes: [u32; 2],
    speed: u16,
    ports: [u8; 14],
    speed_high: u16,
    rest: [u8; 14],
}

const _: () = assert!(size_of::<Link>() == 44);
const _: () = assert!(std::mem::offset_of!(Link, speed_high) == 28);

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_ringparam`: sizes in entries.
#[repr(C)]
struct RingSizes {
    command: u32,
    receive_max: u32,
    other_maxima: [u32; 3],
    receive: u32,
    others: [u32; 3],
}

/// `struct ethtool_channels`: numbers of queues; combined ones receive and transmit.
#[repr(C)]
struct Channels {
    command: u32,
    maxima: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

const _: () = assert!(size_of::<Channels>() == 36);

/// `struct ethtool_pauseparam`: switches.
#[repr(C)]
struct Pauses {
    command: u32,
    negotiates: u32,
    obeys: u32,
    sends: u32,
}

const _: () = assert!(size_of::<RingSizes>() == 36);
const _: () = assert!(size_of::<Pauses>() == 16);

/// `struct ethtool_drvinfo`, of which only the name is read.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const _: () = assert!(size_of::<DriverInfo>() == 196);

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
