//! The XDP program, assembled by hand: the build needs no compiler for it, and the kernel's
//! verifier checks it at load time.
//!
//! In pseudocode, for each packet that an interface receives:
//!
//! ```text
//! line = counters[queue]                     or: PASS, the queue has no line
//! if !line.open: PASS                        the queue is not recorded
//! if line.shunting:
//!     TCP with FIN, SYN or RST: continue
//!         SYN without ACK: first remove both directions of its flow from shunted
//!     flow in shunted:
//!         silent for too long: remove it from shunted, continue
//!         no packet taken for 100 ms: continue
//!         else: line.shunted[its class] += 1; DROP
//! fits = at most a chunk || a packet may have several chunks
//! if fits: put the monotonic time in front of the packet, or: line.unstamped += 1
//!     with nic_stamps: the NIC's stamp in front of the time; 0: the driver gives none
//! verdict = redirect_map(sockets, queue)
//! if verdict is not REDIRECT: line.unseen += 1; PASS     the queue has no socket
//! line.received += 1
//! if !fits: line.oversize += 1; DROP
//! return verdict
//! ```
//!
//! Counting is atomic: generic XDP may run on several CPUs for one queue.

use std::net::IpAddr;

use super::{mode::ReceiveMode, sys::EbpfInstruction};
use crate::{SHUNT_CLASSES, ShuntedFlow};

/// Words of a queue's line in the counters.
pub(super) mod word {
    /// Packets for the socket, including lost packets, except packets dropped by a shunt.
    pub(crate) const RECEIVED: usize = 0;
    /// Packets that do not fit one chunk, in a mode with one chunk per packet. They are lost.
    pub(crate) const OVERSIZE: usize = 1;
    /// Packets without room for a time stamp.
    pub(crate) const UNSTAMPED: usize = 2;
    /// Not 0: the program redirects or counts the packets of this queue.
    pub(crate) const OPEN: usize = 3;
    /// Not 0: the program looks flows up in the shunt map.
    pub(crate) const SHUNTING: usize = 4;
    /// Packets of this open queue that found no socket and went on to the host.
    pub(crate) const UNSEEN: usize = 5;
    /// Dropped packets of shunted flows. The first of `SHUNT_CLASSES` words, one per class.
    pub(crate) const SHUNTED: usize = 8;
    /// Words of a line: two cache lines.
    pub(crate) const COUNT: usize = 16;
}

/// Bytes of a flow's key in the shunt map: addresses of 16 bytes (IPv4 in the first 4), ports,
/// protocol, three zeros.
pub(super) const FLOW_KEY_BYTES: usize = 40;

/// The key of a flow, as the program builds it from a packet.
pub(super) fn flow_key(flow: &ShuntedFlow) -> [u8; FLOW_KEY_BYTES] {
    let mut key = [0; FLOW_KEY_BYTES];
    let mut put = |at: usize, address: IpAddr| match address {
        IpAddr::V4(address) => key[at..at + 4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => key[at..at + 16].copy_from_slice(&address.octets()),
    };
    put(0, flow.source.ip());
    put(16, flow.destination.ip());
    key[32..34].copy_from_slice(&flow.source.port().to_be_bytes());
    key[34..36].copy_from_slice(&flow.destination.port().to_be_bytes());
    key[36] = flow.protocol;
    key
}

/// The shunt map's entry of a flow: when the last packet was looked up, from when the next packet
/// is taken, the silence that ends the shunt, and the class. Times are in ns, the first two on the
/// monotonic clock.
pub(super) type ShuntedState = [i64; 4];
pub(super) const SHUNTED_STATE_BYTES: usize = size_of::<ShuntedState>();

/// Time after which the program takes another packet of a shunted flow, ns, so that the recorder
/// sees that the flow goes on.
pub(super) const TAKEN_EVERY_NS: i32 = 100_000_000;

/// Bytes of the program's time stamp in front of a packet, and of the NIC's stamp.
pub(super) const STAMP_BYTES: usize = 8;

/// The function of the kernel that gives the NIC's stamp of a packet. Since Linux 6.3.
pub(super) const NIC_STAMP_FUNCTION: &str = "bpf_xdp_metadata_rx_timestamp";

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;

/// Numbers of helper functions: `linux/bpf.h`.
const MAP_LOOKUP: i32 = 1;
const MAP_DELETE: i32 = 3;
const KTIME_GET_NS: i32 = 5;
const REDIRECT_MAP: i32 = 51;
const ADJUST_META: i32 = 54;
const XDP_GET_BUFF_LEN: i32 = 188;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const DATA_META: i16 = 8;
const QUEUE: i16 = 16;

/// Offsets on the stack, below the frame pointer.
const STACK_QUEUE: i16 = -8;
const STACK_KEY: i16 = -48;
const STACK_REVERSE_KEY: i16 = -88;
const STACK_NIC_STAMP: i16 = -96;

/// TCP flags.
const FIN_SYN_RST: i32 = 7;
const SYN: i32 = 2;
const SYN_ACK: i32 = 18;

/// Maps of the program, as descriptors, and the options of its assembly.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgramInputs {
    /// Array of counter lines, one for each queue.
    pub(super) counters: i32,
    /// Sockets by queue.
    pub(super) sockets: i32,
    /// The shunt map: a hash table from flow keys to [`ShuntedState`].
    pub(super) shunted: i32,
    pub(super) receive_mode: ReceiveMode,
    /// The program puts the NIC's stamp in front of the time. The number is the identifier of
    /// [`NIC_STAMP_FUNCTION`], or 0: the stamp is always 0. `None`: the program puts only the time.
    pub(super) nic_stamps: Option<i32>,
}

/// Registers by their use in this program. `R0` is the result of a call, `R1` to `R5` are its
/// arguments, and all six are temporary values.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const CONTEXT: u8 = 6;
const SAVED: u8 = 7;
const LINE: u8 = 8;
const STATE: u8 = 9;
const FRAME: u8 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Drop,
    Parsed,
    NotShunted,
    Version6,
    LookUp,
    Shunted(u8),
    Silent,
    Flags,
    Fits,
    NicStamp,
    NoStamp,
    Redirect,
    Unseen,
}

pub(super) fn assemble(inputs: ProgramInputs) -> Vec<EbpfInstruction> {
    let mut code = Assembler::default();
    code.move_register(CONTEXT, R1);
    code.load(Width::Word, R2, CONTEXT, QUEUE);
    code.store(Width::Word, FRAME, R2, STACK_QUEUE);
    look_up(&mut code, inputs.counters, STACK_QUEUE);
    code.jump_if(Compare::Equal, R0, 0, Label::Pass);
    code.move_register(LINE, R0);
    code.load(Width::Double, R1, LINE, place(word::OPEN));
    code.jump_if(Compare::Equal, R1, 0, Label::Pass);
    shunt(&mut code, inputs);
    if let Some(max) = inputs.receive_mode.packet_bytes_max {
        let first_too_long = i32::from(max) + 1;
        if inputs.receive_mode.has_fragments {
            // The end of the first buffer is not the end of the packet. The helper exists since
            // Linux 5.18, as programs for several buffers do.
            code.move_register(R1, CONTEXT);
            code.call(XDP_GET_BUFF_LEN);
            code.set(R1, first_too_long);
            code.jump_if_greater(R1, R0, Label::Fits);
        } else {
            code.load(Width::Word, R1, CONTEXT, DATA);
            code.load(Width::Word, R2, CONTEXT, DATA_END);
            code.add(R1, first_too_long);
            code.jump_if_greater(R1, R2, Label::Fits);
        }
        redirect(&mut code, inputs.sockets);
        code.count(LINE, word::OVERSIZE);
        code.jump(Label::Drop);
        code.label(Label::Fits);
    }
    stamp(&mut code, inputs.nic_stamps);
    redirect(&mut code, inputs.sockets);
    code.exit();

    code.label(Label::Unseen);
    code.count(LINE, word::UNSEEN);
    code.jump(Label::Pass);

    code.label(Label::Drop);
    code.set(R0, XDP_DROP);
    code.exit();

    code.label(Label::Pass);
    code.set(R0, XDP_PASS);
    code.exit();
    code.finish()
}

/// Sets `R0` to the verdict for the queue's socket, and counts the packet as received or, without
/// a socket, as unseen.
fn redirect(code: &mut Assembler, sockets: i32) {
    code.load_map(R1, sockets);
    code.load(Width::Word, R2, FRAME, STACK_QUEUE);
    code.set(R3, XDP_PASS);
    code.call(REDIRECT_MAP);
    code.jump_if(Compare::NotEqual, R0, XDP_REDIRECT, Label::Unseen);
    code.count(LINE, word::RECEIVED);
}

/// Sets `R0` to the address of the value whose key is at `place` on the stack, or to 0 if the map
/// has no such key.
fn look_up(code: &mut Assembler, map: i32, place: i16) {
    code.load_map(R1, map);
    code.move_register(R2, FRAME);
    code.add(R2, i32::from(place));
    code.call(MAP_LOOKUP);
}

/// Puts the time in front of the packet and, with `nic_stamps`, the NIC's stamp in front of the
/// time. Counts the packet as unstamped if the driver has no room for this.
fn stamp(code: &mut Assembler, nic_stamps: Option<i32>) {
    let (bytes, time) = nic_stamps.map_or((8, 0), |_| (16, 8));
    if let Some(function) = nic_stamps {
        code.set(R1, 0);
        code.store(Width::Double, FRAME, R1, STACK_NIC_STAMP);
        if function > 0 {
            code.move_register(R1, CONTEXT);
            code.move_register(R2, FRAME);
            code.add(R2, i32::from(STACK_NIC_STAMP));
            code.call_kernel(function);
            code.jump_if(Compare::Equal, R0, 0, Label::NicStamp);
            // A driver that failed may have written something.
            code.set(R1, 0);
            code.store(Width::Double, FRAME, R1, STACK_NIC_STAMP);
            code.label(Label::NicStamp);
        }
    }
    code.call(KTIME_GET_NS);
    code.move_register(SAVED, R0);
    code.move_register(R1, CONTEXT);
    code.set(R2, -bytes);
    code.call(ADJUST_META);
    code.jump_if(Compare::NotEqual, R0, 0, Label::NoStamp);
    code.load(Width::Word, R1, CONTEXT, DATA_META);
    code.load(Width::Word, R2, CONTEXT, DATA);
    code.move_register(R3, R1);
    code.add(R3, bytes);
    code.jump_if_greater(R3, R2, Label::NoStamp);
    code.store(Width::Double, R1, SAVED, time);
    if nic_stamps.is_some() {
        code.load(Width::Double, R4, FRAME, STACK_NIC_STAMP);
        code.store(Width::Double, R1, R4, 0);
    }
    code.jump(Label::Redirect);
    code.label(Label::NoStamp);
    code.count(LINE, word::UNSTAMPED);
    code.label(Label::Redirect);
}

/// Removes the key at `place` on the stack from a map.
fn remove(code: &mut Assembler, map: i32, place: i16) {
    code.load_map(R1, map);
    code.move_register(R2, FRAME);
    code.add(R2, i32::from(place));
    code.call(MAP_DELETE);
}

/// Sets `R0` to the TCP flags; the TCP header begins at `offset` of the packet. If the protocol in
/// `R3` is not TCP, `R0` keeps its value.
fn tcp_flags(code: &mut Assembler, offset: i16) {
    code.jump_if(Compare::NotEqual, R3, 6, Label::Parsed);
    code.move_register(R2, SAVED);
    code.add(R2, i32::from(offset) + 14);
    code.jump_if_greater(R2, R5, Label::NotShunted);
    code.load(Width::Byte, R0, SAVED, offset + 13);
}

/// Drops packets of shunted flows: TCP, UDP and SCTP over unfragmented IPv4 without options, or
/// over IPv6 without extension headers, directly in Ethernet.
fn shunt(code: &mut Assembler, inputs: ProgramInputs) {
    code.load(Width::Double, R1, LINE, place(word::SHUNTING));
    code.jump_if(Compare::Equal, R1, 0, Label::NotShunted);
    code.load(Width::Word, SAVED, CONTEXT, DATA);
    code.load(Width::Word, R5, CONTEXT, DATA_END);
    code.set(R0, 0);
    // Clears the key, because an IPv4 address is shorter than its field.
    code.set(R1, 0);
    for offset in (0..5).map(|index| STACK_KEY + 8 * index) {
        code.store(Width::Double, FRAME, R1, offset);
    }
    // The packet must contain the headers of Ethernet and IPv4, and the ports.
    code.move_register(R2, SAVED);
    code.add(R2, 14 + 20 + 4);
    code.jump_if_greater(R2, R5, Label::NotShunted);
    code.load(Width::Half, R1, SAVED, 12);
    code.jump_if(Compare::Equal, R1, network_order(0x86dd), Label::Version6);
    code.jump_if(
        Compare::NotEqual,
        R1,
        network_order(0x0800),
        Label::NotShunted,
    );
    code.load(Width::Byte, R1, SAVED, 14);
    code.jump_if(Compare::NotEqual, R1, 0x45, Label::NotShunted);
    code.load(Width::Half, R1, SAVED, 14 + 6);
    // A fragment has the more-fragments flag, or an offset.
    code.and(R1, network_order(0x3fff));
    code.jump_if(Compare::NotEqual, R1, 0, Label::NotShunted);
    code.load(Width::Byte, R3, SAVED, 14 + 9);
    copy_words(code, 14 + 12, STACK_KEY, 1);
    copy_words(code, 14 + 16, STACK_KEY + 16, 1);
    code.load(Width::Word, R4, SAVED, 14 + 20);
    tcp_flags(code, 14 + 20);
    code.jump(Label::Parsed);
    code.label(Label::Version6);
    code.move_register(R2, SAVED);
    code.add(R2, 14 + 40 + 4);
    code.jump_if_greater(R2, R5, Label::NotShunted);
    code.load(Width::Byte, R3, SAVED, 14 + 6);
    copy_words(code, 14 + 8, STACK_KEY, 4);
    copy_words(code, 14 + 24, STACK_KEY + 16, 4);
    code.load(Width::Word, R4, SAVED, 14 + 40);
    tcp_flags(code, 14 + 40);
    code.label(Label::Parsed);
    for protocol in [6, 17, 132] {
        code.jump_if(Compare::Equal, R3, protocol, Label::LookUp);
    }
    code.jump(Label::NotShunted);
    code.label(Label::LookUp);
    code.store(Width::Word, FRAME, R4, STACK_KEY + 32);
    code.store(Width::Byte, FRAME, R3, STACK_KEY + 36);
    code.move_register(R1, R0);
    code.and(R1, FIN_SYN_RST);
    code.jump_if(Compare::NotEqual, R1, 0, Label::Flags);
    look_up(code, inputs.shunted, STACK_KEY);
    code.jump_if(Compare::Equal, R0, 0, Label::NotShunted);
    code.move_register(STATE, R0);
    code.call(KTIME_GET_NS);
    code.load(Width::Double, R1, STATE, 0);
    code.load(Width::Double, R2, STATE, 16);
    code.add_register(R1, R2);
    code.jump_if_greater(R0, R1, Label::Silent);
    code.store(Width::Double, STATE, R0, 0);
    code.load(Width::Double, R1, STATE, 8);
    code.jump_if_greater(R1, R0, Label::Shunted(SHUNT_CLASSES));
    code.add(R0, TAKEN_EVERY_NS);
    code.store(Width::Double, STATE, R0, 8);
    code.jump(Label::NotShunted);
    code.label(Label::Shunted(SHUNT_CLASSES));
    code.load(Width::Double, R2, STATE, 24);
    for class in 1..SHUNT_CLASSES {
        code.jump_if(Compare::Equal, R2, class.into(), Label::Shunted(class));
    }
    for class in 0..SHUNT_CLASSES {
        code.label(Label::Shunted(class));
        code.count(LINE, word::SHUNTED + usize::from(class));
        code.jump(Label::Drop);
    }
    code.label(Label::Silent);
    remove(code, inputs.shunted, STACK_KEY);
    code.jump(Label::NotShunted);
    code.label(Label::Flags);
    code.and(R0, SYN_ACK);
    code.jump_if(Compare::NotEqual, R0, SYN, Label::NotShunted);
    for (from, to) in [(0, 16), (8, 24), (16, 0), (24, 8)] {
        code.load(Width::Double, R1, FRAME, STACK_KEY + from);
        code.store(Width::Double, FRAME, R1, STACK_REVERSE_KEY + to);
    }
    for (from, to) in [(32, 34), (34, 32)] {
        code.load(Width::Half, R1, FRAME, STACK_KEY + from);
        code.store(Width::Half, FRAME, R1, STACK_REVERSE_KEY + to);
    }
    code.load(Width::Word, R1, FRAME, STACK_KEY + 36);
    code.store(Width::Word, FRAME, R1, STACK_REVERSE_KEY + 36);
    remove(code, inputs.shunted, STACK_KEY);
    remove(code, inputs.shunted, STACK_REVERSE_KEY);
    code.label(Label::NotShunted);
}

/// Copies words of the packet, to which `SAVED` points, into the key.
fn copy_words(code: &mut Assembler, from: i16, to: i16, count: i16) {
    for offset in (0..count).map(|index| 4 * index) {
        code.load(Width::Word, R1, SAVED, from + offset);
        code.store(Width::Word, FRAME, R1, to + offset);
    }
}

/// A 16-bit word in the byte order of a packet.
fn network_order(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Offset of a word in a line.
fn place(word: usize) -> i16 {
    const { assert!(word::SHUNTED + SHUNT_CLASSES as usize <= word::COUNT) };
    i16::try_from(word * 8).unwrap_or(0)
}

#[derive(Debug, Clone, Copy)]
enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

#[derive(Debug, Clone, Copy)]
enum Compare {
    Equal = 0x10,
    NotEqual = 0x50,
}

/// Assembles instructions, which the kernel's
/// `Documentation/bpf/standardization/instruction-set.rst` describes. Jumps refer to labels.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<EbpfInstruction>,
    labels: Vec<(Label, usize)>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.code.push(EbpfInstruction {
            code,
            registers: source << 4 | destination,
            offset,
            immediate,
        });
    }

    fn move_register(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }

    fn add_register(&mut self, to: u8, from: u8) {
        self.push(0x0f, to, from, 0, 0);
    }

    fn and(&mut self, to: u8, value: i32) {
        self.push(0x57, to, 0, 0, value);
    }

    fn load(&mut self, width: Width, to: u8, base: u8, offset: i16) {
        self.push(0x61 | width as u8, to, base, offset, 0);
    }

    fn store(&mut self, width: Width, base: u8, from: u8, offset: i16) {
        self.push(0x63 | width as u8, base, from, offset, 0);
    }

    /// Adds 1 to a word of the line to which `line` points, atomically. Uses `R1`.
    fn count(&mut self, line: u8, word: usize) {
        self.set(R1, 1);
        self.push(0xdb, line, R1, place(word), 0);
    }

    /// Loads the address of a map (`BPF_PSEUDO_MAP_FD`: the verifier replaces the descriptor).
    fn load_map(&mut self, to: u8, descriptor: i32) {
        self.push(0x18, to, 1, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.push(0x85, 0, 0, 0, helper);
    }

    /// Calls a function of the kernel by its identifier (`BPF_PSEUDO_KFUNC_CALL`).
    fn call_kernel(&mut self, function: i32) {
        self.push(0x85, 0, 2, 0, function);
    }

    fn exit(&mut self) {
        self.push(0x95, 0, 0, 0, 0);
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, 0, 0, 0, 0);
    }

    fn jump_if(&mut self, compare: Compare, register: u8, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05 | compare as u8, register, 0, 0, value);
    }

    fn jump_if_greater(&mut self, register: u8, other: u8, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x2d, register, other, 0, 0);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Fills in the jump distances. For a missing label, the jump leaves the program, which the
    /// verifier refuses.
    fn finish(mut self) -> Vec<EbpfInstruction> {
        for (at, label) in self.jumps {
            let target = self.labels.iter().find(|(one, _)| *one == label);
            let distance = target.map(|(_, index)| *index as isize - at as isize - 1);
            self.code[at].offset = distance
                .and_then(|distance| i16::try_from(distance).ok())
                .unwrap_or(i16::MAX);
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(packet_bytes_max: Option<u16>, has_fragments: bool) -> ProgramInputs {
        let receive_mode = ReceiveMode {
            is_native: true,
            packet_bytes_max,
            has_fragments,
        };
        ProgramInputs {
            counters: 3,
            sockets: 5,
            shunted: 6,
            receive_mode,
            nic_stamps: has_fragments.then_some(7),
        }
    }

    #[test]
    fn jumps_lead_forward_into_the_program() {
        for (packet_bytes_max, has_fragments) in
            [(None, true), (Some(1792), false), (Some(1792), true)]
        {
            let code = assemble(inputs(packet_bytes_max, has_fragments));
            for (index, instruction) in code.iter().enumerate() {
                let is_jump = matches!(instruction.code, 0x05 | 0x15 | 0x55 | 0x2d);
                let target = index as isize + 1 + instruction.offset as isize;
                assert!(
                    !is_jump || (index as isize + 1..code.len() as isize).contains(&target),
                    "{index}: {instruction:?}"
                );
            }
            assert_eq!(code.last().unwrap().code, 0x95);
            assert!(code.len() < 220, "{}", code.len());
        }
    }

    #[test]
    fn a_flow_has_a_key() {
        let flow = ShuntedFlow {
            source: "10.1.2.3:258".parse().unwrap(),
            destination: "[2001:db8::7]:772".parse().unwrap(),
            protocol: 17,
        };
        let key = flow_key(&flow);
        assert_eq!(key[..16], [10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key[16..20], [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(key[31..], [7, 1, 2, 3, 4, 17, 0, 0, 0]);
    }

    #[test]
    fn the_encoding_is_that_of_the_instruction_set() {
        let mut code = Assembler::default();
        code.load(Width::Double, 2, 7, -8);
        code.store(Width::Half, 10, 1, -2);
        code.count(8, word::OVERSIZE);
        let bytes = |one: &EbpfInstruction| (one.code, one.registers, one.offset, one.immediate);
        let code: Vec<_> = code.finish().iter().map(bytes).collect();
        assert_eq!(
            code,
            [
                (0x79, 0x72, -8, 0),
                (0x6b, 0x1a, -2, 0),
                (0xb7, 0x01, 0, 1),
                (0xdb, 0x18, 8, 0)
            ]
        );
    }
}
