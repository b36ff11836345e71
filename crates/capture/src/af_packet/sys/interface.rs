//! Queries about interfaces: netdevice(7) and the kernel's `ethtool.h`.
//!
//! The answers belong to the calling thread's network namespace at the time when the
//! [`InterfaceQuery`] was made. `/sys/class/net` would show the namespace of the process that
//! mounted sysfs.
//!
//! Answers of ethtool are read as 32-bit words.
#![expect(unsafe_code, reason = "ioctl takes pointers to structures with unions")]

use std::{
    ffi::{c_char, c_ulong},
    io,
    mem::zeroed,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType,
    netdevice::{index_to_name, name_to_index},
    socket_with,
};

use crate::{netlink::until_nul, rss::RssSettings, sys::check, time_stamps::NicStampSetting};

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

/// `ETHTOOL_GCHANNELS`, and `ETHTOOL_GET_TS_INFO`.
const ETHTOOL_CHANNELS: u32 = 0x3c;
const ETHTOOL_STAMPS: u32 = 0x41;

/// Words of `struct ethtool_rxfh`: command, context, entries of the table, bytes of the key, then
/// function, transform and reserved bytes. The table and the key follow the structure.
const RSS_HEAD: usize = 6;

/// Words of an answer: room for an indirection table of 4096 entries and a key of 256 bytes.
const ANSWER_WORDS: usize = RSS_HEAD + 4096 + 64;

/// `RXH_XFRM_SYM_XOR` and `RXH_XFRM_SYM_OR_XOR`, and the value of an unknown transform.
const SYMMETRIC: u8 = 0b11;
const TRANSFORM_UNKNOWN: u8 = 0xff;

/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = 0xffff_ffff;

/// Interface flags of netdevice(7).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flags(pub(crate) i32);

impl Flags {
    /// Switched on by the administrator.
    pub(crate) fn is_up(self) -> bool {
        self.0 & libc::IFF_UP != 0
    }

    /// `IFF_RUNNING`: operational.
    pub(crate) fn is_running(self) -> bool {
        self.0 & libc::IFF_RUNNING != 0
    }

    pub(crate) fn is_loopback(self) -> bool {
        self.0 & libc::IFF_LOOPBACK != 0
    }
}

/// A socket for queries. Making the socket needs no privilege.
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

    /// The interface's index. Fails with `ENODEV` if no interface has the name.
    pub(crate) fn index(&self, name: &str) -> io::Result<i32> {
        Ok(name_to_index(&self.descriptor, name)?.cast_signed())
    }

    /// The current name of the interface with this index. Fails with `ENODEV` if there is no such
    /// interface.
    pub(crate) fn name(&self, index: u32) -> io::Result<String> {
        Ok(index_to_name(&self.descriptor, index)?)
    }

    pub(crate) fn flags(&self, name: &str) -> io::Result<Flags> {
        // SAFETY: SIOCGIFFLAGS fills the ifreq and follows no pointer in it.
        let answer = unsafe { self.ask(libc::SIOCGIFFLAGS, request(name)?) }?;
        // SAFETY: SIOCGIFFLAGS filled this member of the union.
        Ok(Flags(i32::from(unsafe { answer.ifr_ifru.ifru_flags })))
    }

    /// Bytes of the largest packet above the link layer.
    pub(crate) fn mtu(&self, name: &str) -> io::Result<i32> {
        // SAFETY: SIOCGIFMTU fills the ifreq and follows no pointer in it.
        let answer = unsafe { self.ask(libc::SIOCGIFMTU, request(name)?) }?;
        // SAFETY: SIOCGIFMTU filled this member of the union.
        Ok(unsafe { answer.ifr_ifru.ifru_mtu })
    }

    /// The hardware type: an `ARPHRD_` value.
    pub(crate) fn hardware_type(&self, name: &str) -> io::Result<u16> {
        // SAFETY: SIOCGIFHWADDR fills the ifreq and follows no pointer in it.
        let answer = unsafe { self.ask(libc::SIOCGIFHWADDR, request(name)?) }?;
        // SAFETY: SIOCGIFHWADDR filled this member of the union.
        Ok(unsafe { answer.ifr_ifru.ifru_hwaddr.sa_family })
    }

    /// The legacy ethtool flags: bit 8 is VLAN extraction, bit 15 LRO.
    pub(crate) fn ethtool_flags(&self, name: &str) -> io::Result<u32> {
        // `struct ethtool_value`: the command, then the value.
        Ok(self.ethtool(name, &[ETHTOOL_FLAGS])?[1])
    }

    /// Whether generic receive offload is on.
    pub(crate) fn ethtool_gro(&self, name: &str) -> io::Result<bool> {
        Ok(self.ethtool(name, &[ETHTOOL_GRO])?[1] != 0)
    }

    /// The driver's name, such as `veth`, `virtio_net` or `tun`.
    pub(crate) fn driver(&self, name: &str) -> io::Result<String> {
        // `struct ethtool_drvinfo`: the command, then 32 bytes of name.
        let bytes: Vec<u8> = bytes_of(&self.ethtool(name, &[ETHTOOL_DRIVER])?[1..9]);
        Ok(until_nul(&bytes).into_owned())
    }

    /// The packet fields that the NIC hashes for this `flow_type`: `RXH_` bits.
    pub(crate) fn ethtool_flow_hash(&self, name: &str, flow_type: u32) -> io::Result<u64> {
        // The first 16 bytes of `struct ethtool_rxnfc`: command, type, data.
        let answer = self.ethtool(name, &[ETHTOOL_FLOW_HASH, flow_type])?;
        let ([a, b, c, d], [e, f, g, h]) = (answer[2].to_ne_bytes(), answer[3].to_ne_bytes());
        Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }

    /// How the NIC spreads packets over its receive queues, without the hashed fields.
    pub(crate) fn ethtool_rss(&self, name: &str) -> io::Result<RssSettings> {
        // The first call returns the sizes.
        let sizes = self.ethtool(name, &[ETHTOOL_RSS])?;
        let (length, bytes) = (sizes[2] as usize, sizes[3] as usize);
        if length.saturating_add(bytes.div_ceil(4)) > ANSWER_WORDS - RSS_HEAD {
            return Err(io::Error::other("an indirection table of unknown size"));
        }
        let answer = self.ethtool(name, &[ETHTOOL_RSS, sizes[1], sizes[2], sizes[3]])?;
        let [function, transform, ..] = answer[4].to_ne_bytes();
        let (table, key) = answer[RSS_HEAD..].split_at(length);
        let mut key = bytes_of(key);
        key.truncate(bytes);
        Ok(RssSettings {
            function,
            key,
            symmetric_input: transform != TRANSFORM_UNKNOWN && transform & SYMMETRIC != 0,
            table: table.to_vec(),
            fields: Vec::new(),
        })
    }

    /// Entries of the NIC's receive ring, and the largest possible number of entries.
    pub(crate) fn ethtool_receive_ring(&self, name: &str) -> io::Result<(u32, u32)> {
        // `struct ethtool_ringparam`: four maxima and four sizes, each starting with the receive
        // ring.
        let answer = self.ethtool(name, &[ETHTOOL_RING])?;
        Ok((answer[5], answer[1]))
    }

    /// Number of transmit queues in use.
    pub(crate) fn ethtool_transmit_queues(&self, name: &str) -> io::Result<u32> {
        // `struct ethtool_channels`: four maxima, then the numbers of receive, transmit, other and
        // combined queues.
        let answer = self.ethtool(name, &[ETHTOOL_CHANNELS])?;
        Ok(answer[6].saturating_add(answer[8]))
    }

    /// Whether the NIC may send pauses (IEEE 802.3, annex 31B).
    pub(crate) fn ethtool_sends_pauses(&self, name: &str) -> io::Result<bool> {
        // `struct ethtool_pauseparam`: command, autonegotiation, receive, transmit.
        Ok(self.ethtool(name, &[ETHTOOL_PAUSE])?[3] != 0)
    }

    /// Which received packets the NIC can stamp: a bit for each `HWTSTAMP_FILTER_` value.
    pub(crate) fn ethtool_received_stamps(&self, name: &str) -> io::Result<u32> {
        // `struct ethtool_ts_info`: command, flags, index of the clock, kinds of sent packets,
        // three reserved words, then the filters.
        Ok(self.ethtool(name, &[ETHTOOL_STAMPS])?[7])
    }

    /// Which packets the NIC stamps now.
    pub(crate) fn nic_stamp_setting(&self, name: &str) -> io::Result<NicStampSetting> {
        self.hwtstamp(libc::SIOCGHWTSTAMP, name, NicStampSetting::default())
    }

    /// Sets which packets the NIC stamps. Needs CAP_NET_ADMIN.
    pub(crate) fn set_nic_stamp_setting(
        &self,
        name: &str,
        setting: NicStampSetting,
    ) -> io::Result<()> {
        self.hwtstamp(libc::SIOCSHWTSTAMP, name, setting).map(drop)
    }

    /// Calls `SIOCGHWTSTAMP` or `SIOCSHWTSTAMP`.
    fn hwtstamp(
        &self,
        call: c_ulong,
        name: &str,
        mut setting: NicStampSetting,
    ) -> io::Result<NicStampSetting> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = (&raw mut setting).cast();
        // SAFETY: both calls follow this pointer only, to a `struct hwtstamp_config`, which is
        // three integers as `NicStampSetting` is, and lives across the call. Any bytes are valid
        // integers.
        unsafe { self.ask(call, request) }?;
        Ok(setting)
    }

    /// The speed of the link, Mbit/s. `None`: unknown to the driver, for example without a carrier.
    pub(crate) fn ethtool_speed(&self, name: &str) -> io::Result<Option<u32>> {
        // `struct ethtool_cmd`: the two halves of the speed are at bytes 12 and 28.
        let answer = self.ethtool(name, &[ETHTOOL_LINK])?;
        let half = |word: usize| {
            let [a, b, ..] = answer[word].to_ne_bytes();
            u32::from(u16::from_ne_bytes([a, b]))
        };
        let speed = half(3) | half(7) << 16;
        Ok(Some(speed).filter(|speed| (1..SPEED_UNKNOWN).contains(speed)))
    }

    /// Sends an ethtool request, whose first word is an `ETHTOOL_` command, and returns the answer.
    fn ethtool(&self, name: &str, question: &[u32]) -> io::Result<Vec<u32>> {
        if let [ETHTOOL_RSS, _, entries, key_bytes] = *question {
            let words = entries as usize + key_bytes.div_ceil(4) as usize;
            assert!(words <= ANSWER_WORDS - RSS_HEAD, "the answer has room");
        }
        let mut answer = vec![0; ANSWER_WORDS];
        answer[..question.len()].copy_from_slice(question);
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
        // SAFETY: the pointer leads to `ANSWER_WORDS` words that live across the call; every bit
        // pattern is a value. The structures of the commands have 49 words at most, except that of
        // ETHTOOL_RSS. Its table and key have the sizes in the request, and the assertion checked
        // that these sizes fit. If the request has the command alone, the kernel writes only the
        // head.
        unsafe { self.ask(libc::SIOCETHTOOL, request) }?;
        Ok(answer)
    }

    /// An ioctl(2) with an `ifreq`.
    ///
    /// # Safety
    /// Every pointer in `request` that `call` follows must lead to memory that the call may read
    /// and write.
    unsafe fn ask(&self, call: c_ulong, mut request: libc::ifreq) -> io::Result<libc::ifreq> {
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: the ifreq lives across the call, and the caller answers for its pointers.
        check(unsafe { libc::ioctl(descriptor, call as _, &raw mut request) })?;
        Ok(request)
    }
}

/// The bytes of words, in memory order.
fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A request for the interface `name`; `ENODEV` if the name is empty, too long or contains NUL.
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
