//! The state of one flow.

use std::array;

use retroscope_packet::{Icmp, proto::TCP};

use crate::time_outs::{TimeOutStage, TimeOuts};
use crate::{BiflowKey, FlowPacket};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Maximum number of first payload bytes that a flow keeps.
pub(crate) const PAYLOAD: usize = 12;

/// Bit in [`Flow::marks`]: index of the server among the key's ends.
const SERVER: u8 = 1;
/// Bit in [`Flow::marks`]: a TCP flow without a SYN of the client.
const MIDSTREAM: u8 = 2;
/// Bit in [`Flow::marks`]: the slot holds a flow.
const LIVE: u8 = 4;
/// Bit in [`Flow::marks`]: the ICMP type of the first end's message is known. The next higher bit
/// is for the second end.
const ICMP: u8 = 8;

/// The state of a TCP connection, from the flags of its packets. As in Suricata without
/// `midstream`, a connection whose SYN was not seen stays in [`TcpState::None`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum TcpState {
    /// Not TCP, or no packet with SYN and without ACK, RST and FIN was seen.
    #[default]
    None,
    /// A SYN was seen.
    SynSent,
    /// The server sent a packet with SYN.
    SynReceived,
    /// After the server's SYN, a packet with ACK and without SYN was seen.
    Established,
    /// One side sent a FIN after the server's SYN.
    Closing,
    /// Both sides sent a FIN, or one side an RST. An RST of the client does not end a connection
    /// without an answer.
    Closed,
}

/// A flow: plain data in two cache lines, which many processors fetch as a pair. Arrays of two are
/// indexed by the key's ends.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct Flow {
    pub(crate) key: BiflowKey,
    /// Stamp of the flow's valid entry in the queue of time-outs.
    pub(crate) queued: u64,
    pub(crate) first_ns: i64,
    pub(crate) last_ns: i64,
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
    payload: [u8; PAYLOAD],
    /// ICMP: type and code of the first counted message of each end. TCP: the sequence number of
    /// the SYN.
    begin: [u8; 4],
    interface: u16,
    tcp_flags: [u8; 2],
    tcp: TcpState,
    marks: u8,
    payload_len: u8,
}

const _: () = assert!(size_of::<Flow>() == 128);

impl Flow {
    /// The caller must still count the packet by [`Self::add`].
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

    pub(crate) fn is_live(&self) -> bool {
        self.marks & LIVE != 0
    }

    pub(crate) fn free(&mut self) {
        self.mark(LIVE, false);
    }

    /// Packets may arrive in any order of time, for example through several queues.
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

    /// Whether a packet of the same key begins a new connection.
    #[inline]
    pub(crate) fn is_begun_anew_by(&self, packet: &FlowPacket) -> bool {
        packet.tcp_flags.is_some_and(is_start) && self.gives_way_to(packet)
    }

    /// A client without an answer repeats its first SYN, even after a refusal. The repeated SYN
    /// belongs to the same connection.
    #[cold]
    fn gives_way_to(&self, syn: &FlowPacket) -> bool {
        let client = 1 - self.server();
        let is_again =
            usize::from(syn.ends.is_reverse) == client && syn.tcp_seq.to_ne_bytes() == self.begin;
        match self.tcp {
            // With several queues, the answer may be counted before its SYN.
            TcpState::None => syn.time_ns >= self.first_ns,
            TcpState::Closing => self.tcp_flags[client] & FIN != 0 && !is_again,
            TcpState::Closed => !is_again,
            TcpState::SynSent | TcpState::SynReceived | TcpState::Established => false,
        }
    }

    /// Time of the latest packet plus the time-out. [`Self::due_ns`] is never earlier.
    #[inline]
    pub(crate) fn idle_ns(&self, time_outs: &TimeOuts) -> i64 {
        let time_out = time_outs.of(self.key.proto(), self.stage());
        self.last_ns.saturating_add(time_out)
    }

    /// The due time of the flow's end if no packet arrives.
    #[inline]
    pub(crate) fn due_ns(&self, time_outs: &TimeOuts) -> i64 {
        time_outs.due_ns(self.idle_ns(time_outs))
    }

    /// A copy of the flow with other times of its earliest and latest packet, ns.
    #[must_use]
    pub fn with_times(&self, [first_ns, last_ns]: [i64; 2]) -> Self {
        Self {
            first_ns,
            last_ns,
            ..*self
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &BiflowKey {
        &self.key
    }

    /// Time of the earliest packet, ns: see [`FlowPacket::time_ns`].
    #[must_use]
    pub fn first_ns(&self) -> i64 {
        self.first_ns
    }

    /// Time of the latest packet, ns: see [`FlowPacket::time_ns`].
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

    /// TCP flag bits that each of the key's ends sent: see
    /// [`retroscope_packet::Parsed::tcp_flags`].
    #[must_use]
    pub fn tcp_flags(&self) -> [u8; 2] {
        self.tcp_flags
    }

    /// The state of the TCP connection.
    #[must_use]
    pub fn tcp_state(&self) -> TcpState {
        self.tcp
    }

    /// The stage that determines the time-out.
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

    /// Which of the key's ends is the server, 0 or 1: the receiver of the first counted SYN without
    /// ACK. Without such a SYN: the receiver of the earliest packet.
    #[must_use]
    pub fn server(&self) -> usize {
        usize::from(self.marks & SERVER)
    }

    /// Whether this is a TCP flow in which no SYN without ACK was seen.
    #[must_use]
    pub fn is_midstream(&self) -> bool {
        self.marks & MIDSTREAM != 0
    }

    /// Number of the interface at which the earliest packet was captured.
    #[must_use]
    pub fn interface(&self) -> u16 {
        self.interface
    }

    /// Type and code of the first counted ICMP message of each of the key's ends. `None` if an end
    /// has no message with captured type and code.
    #[must_use]
    pub fn icmp(&self) -> [Option<Icmp>; 2] {
        array::from_fn(|end| {
            let [kind, code] = [self.begin[2 * end], self.begin[2 * end + 1]];
            Some(Icmp { kind, code }).filter(|_| self.marks & ICMP << end != 0)
        })
    }

    /// The first bytes, at most 12, of the first captured payload, from either end. Later fragments
    /// do not count.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload[..usize::from(self.payload_len)]
    }
}

fn is_start(flags: u8) -> bool {
    flags & (SYN | ACK | RST | FIN) == SYN
}
