//! Generates test frames and sends them at a rate.

use std::{
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use retroscope_capture::{Burst, Direction, FrameMeta, send::LiveSender};

use crate::namespace::Namespace;

/// Bytes before the payload of [`udp`]: Ethernet, IPv4, UDP.
pub(crate) const HEADERS: usize = 14 + 20 + 8;

/// Bytes of a frame that is 64 bytes on the wire: without the frame check sequence.
pub(crate) const SMALL: usize = 60;

/// Maximum number of frames of one burst.
const BURST: usize = 64;

/// An untagged UDP frame from `10.0.0.host:from_port` to `10.1.0.1:to_port`, padded to at least 60
/// bytes. No host has the address 10.1.0.1, so no host answers.
pub(crate) fn udp(host: u8, from_port: u16, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(8 + payload.len()).unwrap();
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 1, 0, 1]);
    let checksum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![2, 0, 0, 0, 0, 99, 2, 0, 0, 0, 0, host, 8, 0];
    frame.extend(ip);
    frame.extend(from_port.to_be_bytes());
    frame.extend(to_port.to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame.resize(frame.len().max(SMALL), 0);
    frame
}

/// The frame with VLAN tags `(TPID, TCI)` after its MAC addresses, outermost tag first.
pub(crate) fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for (tpid, tci) in tags {
        out.extend(tpid.to_be_bytes());
        out.extend(tci.to_be_bytes());
    }
    out.extend(&frame[12..]);
    out
}

fn internet_checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | u32::from(c[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Sends frames out of an interface of a namespace.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: LiveSender,
}

impl Sender {
    /// Opens an interface of the namespace for sending.
    pub(crate) fn new(namespace: &Namespace, interface: &str) -> Self {
        let open = || LiveSender::open(interface, Path::new("retroscope")).unwrap();
        Self {
            socket: namespace.enter(open),
        }
    }

    /// Sends one frame. When `send` returns, the interface has accepted the frame.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let frames = [meta(0, frame.len())];
        let burst = Burst {
            memory: frame,
            frames: &frames,
        };
        self.socket.send(burst).unwrap();
    }

    /// Sends `count` small frames at `rate` a second (`None`: as fast as possible). `fill` gets a
    /// frame's number and a buffer with an earlier frame or a blank frame, and overwrites the bytes
    /// that differ. After each burst, `on_progress` gets the number of small frames that this call
    /// has sent. Returns the duration.
    pub(crate) fn flood(
        &mut self,
        count: u64,
        rate: Option<u64>,
        fill: impl Fn(u64, &mut [u8]),
        mut on_progress: impl FnMut(u64, &mut Self),
    ) -> Duration {
        let mut memory = udp(0, 1000, 2000, &[0; SMALL - HEADERS]).repeat(BURST);
        let frames: Vec<FrameMeta> = (0..BURST).map(|index| meta(index * SMALL, SMALL)).collect();
        self.paced(count, rate, |numbers, sender| {
            for (number, frame) in numbers.clone().zip(memory.chunks_exact_mut(SMALL)) {
                fill(number, frame);
            }
            let burst = Burst {
                memory: &memory,
                frames: &frames[..usize::try_from(numbers.end - numbers.start).unwrap()],
            };
            sender.socket.send(burst).unwrap();
            on_progress(numbers.end, sender);
        })
    }

    /// Calls `send` for the frame numbers below `count`, in bursts, at `rate` frames a second.
    fn paced(
        &mut self,
        count: u64,
        rate: Option<u64>,
        mut send: impl FnMut(Range<u64>, &mut Self),
    ) -> Duration {
        let start = Instant::now();
        let mut sent = 0;
        while sent < count {
            let due = rate.map_or(count, |rate| {
                let elapsed_us = u64::try_from(start.elapsed().as_micros()).unwrap();
                (elapsed_us * rate / 1_000_000).min(count)
            });
            let now = (due - sent).min(BURST as u64);
            if now == 0 {
                std::thread::yield_now();
                continue;
            }
            send(sent..sent + now, self);
            sent += now;
        }
        start.elapsed()
    }

    /// Frames that the interface accepted since the socket was opened.
    pub(crate) fn sent(&self) -> u64 {
        self.socket.sent
    }
}

/// Writes a sequence number into the payload of a small frame of [`udp`], and the number's low byte
/// as the sending host.
pub(crate) fn number(number: u64, frame: &mut [u8]) {
    // The checksum of the IPv4 header is not updated, because no receiver checks it.
    frame[29] = number.to_be_bytes()[7];
    frame[HEADERS..HEADERS + 8].copy_from_slice(&number.to_be_bytes());
}

/// The sequence number at the start of a frame's UDP payload.
pub(crate) fn number_of(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[HEADERS..HEADERS + 8].try_into().unwrap())
}

fn meta(offset: usize, len: usize) -> FrameMeta {
    let len = u32::try_from(len).unwrap();
    FrameMeta {
        time_ns: 0,
        offset,
        captured_len: len,
        wire_len: len,
        interface: 0,
        direction: Direction::Unknown,
        vlan: None,
    }
}
