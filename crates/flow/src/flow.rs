//! What is known of one flow.

use std::array;

use retroscope_packet::{Icmp, proto::TCP};

use crate::time_outs::{TimeOutStage, TimeOuts};
use crate::{BiflowKey, FlowPacket};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// First bytes of payload that a flow keeps.
pub(crate) const PAYLOAD: usize = 12;

/// Marks of a flow: which of the key's ends is the server, …
const SERVER: u8 = 1;
/// … that it is TCP whose SYN was not seen, …
const MIDSTREAM: u8 = 2;
/// … that the slot holds a flow, …
const LIVE: u8 = 4;
/// … and that the type of an ICMP message of the first end is known; twice this, of the second end.
const ICMP: u8 = 8;

/// How far a TCP connection is, from flags alone, as in Suricata where it has not enabled `midstream`: without a SYN there is no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum TcpState {
    /// No TCP, or no handshake was seen.
    #[default]
    None,
    /// A SYN was seen.
    SynSent,
    /// The answer to it was seen.
    SynReceived,
    /// The handshake was seen whole.
    Established,
    /// One side has sent a FIN after that.
    Closing,
    /// Both have, or one an RST; the client's does not end what nobody answered.
    Closed,
}

/// A flow: plain data, two cache lines, which processors fetch as a pair. Arrays of two are by the key's ends: what the first one sent, what the second one sent.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct Flow {
    pub(crate) key: BiflowKey,
    /// Stamp of its entry in the queue. Entries of its slot with other stamps are out of date.
    pub(crate) queued: u64,
    pub(crate) first_ns: i64,
    pub(crate) last_ns: i64,
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
    payload: [u8; PAYLOAD],
    /// ICMP: type and code of the first message of each end. TCP: the sequence number of the SYN.
    begin: [u8; 4],
    interface: u16,
    tcp_flags: [u8; 2],
    tcp: TcpState,
    marks: u8,
    payload_len: u8,
}

const _: () = assert!(size_of::<Flow>() == 128);

impl Flow {
    /// A flow that begins with this packet, which [`Self::add`] has to add.
    pub(crate) fn new(packet: &FlowPacket, queued: u64) -> Self {
        let mut flow = Self {
            key: packet.ends.key,
            queued,
            first_ns: packet.time_ns,
            last_ns: packet.time_ns,
            packets: [0; 2],
            bytes: [0; 2],
            payload: [0; PAYLOAD],
            begin: [0; 4],
            interface: packet.interface,
            tcp_flags: [0; 2],
            tcp: TcpState::None,
            marks: 0,
            payload_len: 0,
        };
        flow.mark(SERVER, !packet.ends.is_reverse);
        flow.mark(MIDSTREAM, packet.ends.key.proto() == TCP);
        flow.mark(LIVE, true);
        flow
    }

    fn mark(&mut self, mark: u8, is_so: bool) {
        self.marks = self.marks & !mark | if is_so { mark } else { 0 };
    }

    /// Whether the slot holds a flow.
    pub(crate) fn is_live(&self) -> bool {
        self.marks & LIVE != 0
    }

    /// The slot holds a flow no more.
    pub(crate) fn free(&mut self) {
        self.mark(LIVE, false);
    }

    /// Counts a packet of the flow. Packets may come in any order of time, as they do by several queues.
    #[inline]
    pub(crate) fn add(&mut self, packet: &FlowPacket) {
        let from = usize::from(packet.ends.is_reverse);
        if packet.time_ns < self.first_ns {
            self.begin_before(packet);
        }
        self.last_ns = self.last_ns.max(packet.time_ns);
        self.packets[from] += 1;
        self.bytes[from] += u64::from(packet.wire_len);
        if self.payload_len == 0 && packet.payload_len != 0 {
            (self.payload, self.payload_len) = (packet.payload, packet.payload_len);
        }
        if let Some(flags) = packet.tcp_flags {
            self.add_flags(from, flags, packet.tcp_seq);
        }
        if let Some(icmp) = packet.icmp
            && self.marks & ICMP << from == 0
        {
            self.begin[2 * from..][..2].copy_from_slice(&[icmp.kind, icmp.code]);
            self.mark(ICMP << from, true);
        }
    }

    /// A packet is older than all that were counted: it is the first one.
    #[cold]
    fn begin_before(&mut self, packet: &FlowPacket) {
        self.first_ns = packet.time_ns;
        self.interface = packet.interface;
        if self.is_midstream() || self.key.proto() != TCP {
            self.mark(SERVER, !packet.ends.is_reverse);
        }
    }

    #[inline]
    fn add_flags(&mut self, from: usize, flags: u8, seq: u32) {
        self.tcp_flags[from] |= flags;
        let is_syn = flags & (SYN | ACK) == SYN;
        if is_syn && self.is_midstream() {
            self.mark(SERVER, from == 0);
            self.mark(MIDSTREAM, false);
        }
        let is_client = from != self.server();
        self.tcp = match self.tcp {
            TcpState::None if is_start(flags) => {
                self.begin = seq.to_ne_bytes();
                TcpState::SynSent
            }
            TcpState::None | TcpState::Closed => return,
            TcpState::SynSent if is_client => return,
            _ if flags & RST != 0 => TcpState::Closed,
            TcpState::SynSent if flags & SYN != 0 => TcpState::SynReceived,
            TcpState::SynSent => return,
            _ if self.tcp_flags[0] & self.tcp_flags[1] & FIN != 0 => TcpState::Closed,
            TcpState::SynReceived | TcpState::Established if flags & FIN != 0 => TcpState::Closing,
            TcpState::SynReceived if flags & (SYN | ACK) == ACK => TcpState::Established,
            state => state,
        };
    }

    /// Whether a packet of the same key begins another connection.
    #[inline]
    pub(crate) fn is_begun_anew_by(&self, packet: &FlowPacket) -> bool {
        packet.tcp_flags.is_some_and(is_start) && self.gives_way_to(packet)
    }

    /// Whether it is so far that a SYN begins another connection. The client sends that with which this one began again while nobody answers,
    /// also after it was refused: then it is the same.
    #[cold]
    fn gives_way_to(&self, syn: &FlowPacket) -> bool {
        let client = 1 - self.server();
        let is_again =
            usize::from(syn.ends.is_reverse) == client && syn.tcp_seq.to_ne_bytes() == self.begin;
        match self.tcp {
            // By several queues the answer may be counted before the SYN.
            TcpState::None => syn.time_ns >= self.first_ns,
            TcpState::Closing => self.tcp_flags[client] & FIN != 0 && !is_again,
            TcpState::Closed => !is_again,
            TcpState::SynSent | TcpState::SynReceived | TcpState::Established => false,
        }
    }

    /// When its time-out has passed if no packet comes. It is over at [`Self::due_ns`], which is not earlier.
    #[inline]
    pub(crate) fn idle_ns(&self, time_outs: &TimeOuts) -> i64 {
        let time_out = time_outs.of(self.key.proto(), self.stage());
        self.last_ns.saturating_add(time_out)
    }

    /// When it is over if no packet comes.
    #[inline]
    pub(crate) fn due_ns(&self, time_outs: &TimeOuts) -> i64 {
        time_outs.due_ns(self.idle_ns(time_outs))
    }

    /// The same flow with other times of its earliest and its latest packet, ns.
    #[must_use]
    pub fn with_times(&self, [first_ns, last_ns]: [i64; 2]) -> Self {
        Self {
            first_ns,
            last_ns,
            ..*self
        }
    }

    /// The key of all its packets.
    #[must_use]
    pub fn key(&self) -> &BiflowKey {
        &self.key
    }

    /// Time of its earliest packet, in nanoseconds since the UNIX epoch.
    #[must_use]
    pub fn first_ns(&self) -> i64 {
        self.first_ns
    }

    /// Time of its latest packet.
    #[must_use]
    pub fn last_ns(&self) -> i64 {
        self.last_ns
    }

    /// Packets that each of the key's ends sent.
    #[must_use]
    pub fn packets(&self) -> [u64; 2] {
        self.packets
    }

    /// Bytes of whole frames on the wire that each of the key's ends sent.
    #[must_use]
    pub fn bytes(&self) -> [u64; 2] {
        self.bytes
    }

    /// TCP flag bits of all packets that each of the key's ends sent: see [`retroscope_packet::Parsed::tcp_flags`].
    #[must_use]
    pub fn tcp_flags(&self) -> [u8; 2] {
        self.tcp_flags
    }

    /// How far a TCP connection is.
    #[must_use]
    pub fn tcp_state(&self) -> TcpState {
        self.tcp
    }

    /// What its time-out depends on.
    #[inline]
    #[must_use]
    pub fn stage(&self) -> TimeOutStage {
        match self.tcp {
            TcpState::Closed => TimeOutStage::Closed,
            TcpState::Established | TcpState::Closing => TimeOutStage::Established,
            _ if self.key.proto() != TCP && !self.packets.contains(&0) => TimeOutStage::Established,
            _ => TimeOutStage::New,
        }
    }

    /// Which of the key's ends is the server, 0 or 1: the receiver of the first SYN, else of the first packet.
    #[must_use]
    pub fn server(&self) -> usize {
        usize::from(self.marks & SERVER)
    }

    /// Whether it is TCP whose SYN was not seen.
    #[must_use]
    pub fn is_midstream(&self) -> bool {
        self.marks & MIDSTREAM != 0
    }

    /// The number of the interface that its first packet came by.
    #[must_use]
    pub fn interface(&self) -> u16 {
        self.interface
    }

    /// The first ICMP message that each of the key's ends sent; `None`: none, or its type was not captured.
    #[must_use]
    pub fn icmp(&self) -> [Option<Icmp>; 2] {
        array::from_fn(|end| {
            let [kind, code] = [self.begin[2 * end], self.begin[2 * end + 1]];
            Some(Icmp { kind, code }).filter(|_| self.marks & ICMP << end != 0)
        })
    }

    /// The first bytes, 12 at most, of the first payload that either end sent, as far as they were captured.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload[..usize::from(self.payload_len)]
    }
}

/// Whether a TCP packet with these flags can begin a connection.
fn is_start(flags: u8) -> bool {
    flags & (SYN | ACK | RST | FIN) == SYN
}
