//! What rtnetlink(7) knows about interfaces: packets lost before the kernel saw them (`RTM_GETSTATS`), and the queueing discipline
//! (`RTM_GETLINK`, both of `linux/if_link.h`).
//!
//! Asked through a socket, so that the answer is of the network namespace that the socket was made in. No unsafe code: messages
//! are bytes.

use std::{io, os::fd::OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Message types.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_STATS: u16 = 92;
const GET_STATS: u16 = 94;
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `IFLA_STATS_LINK_64`: the attribute with `struct rtnl_link_stats64`, and the bit that asks for it.
const LINK_64: u16 = 1;
const LINK_64_BIT: u32 = 1;
/// `IFLA_QDISC`: the attribute with the name of the queueing discipline.
const QUEUEING: u16 = 6;
/// `IFLA_EXT_MASK` and `RTEXT_FILTER_SKIP_STATS`: an answer without counters.
const MASK: u16 = 29;
const SKIP_STATISTICS: u32 = 1 << 3;

/// Bytes of `struct nlmsghdr`, of `struct if_stats_msg`, of `struct ifinfomsg`, and of an attribute's head.
const HEADER: usize = 16;
const STATS: usize = 12;
const LINK: usize = 16;
const ATTRIBUTE: usize = 4;

/// Places of `rx_fifo_errors` and `rx_missed_errors` in `struct rtnl_link_stats64`, in words of 64 bits.
const FIFO: usize = 14;
const MISSED: usize = 15;

/// Bytes of an answer: those of interfaces with hundreds of virtual functions are not asked for.
const ANSWER_BYTES: usize = 8192;

/// A socket to ask through. Needs no privilege.
#[derive(Debug)]
pub(crate) struct Links {
    socket: OwnedFd,
    sequence: u32,
}

impl Links {
    pub(crate) fn new() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            // NETLINK_ROUTE.
            None,
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Packets that the interface had no room for since it exists. Drivers differ in which of two counters they use, and whether
    /// one includes the other: the greater one. Since Linux 4.7.
    pub(crate) fn lost(&mut self, index: i32) -> io::Result<u64> {
        self.ask(&counters_request(index), &counters)
    }

    /// The name of the interface's queueing discipline: `noqueue`, `pfifo_fast`, …
    pub(crate) fn queueing(&mut self, index: i32) -> io::Result<Vec<u8>> {
        self.ask(&link_request(index), &queueing)
    }

    /// Sends a request, and has its answer read; `None` from `read`: it is not what was asked for.
    fn ask<T>(&mut self, request: &[u8], read: &impl Fn(&[u8]) -> Option<T>) -> io::Result<T> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = request.to_vec();
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        send(&self.socket, &request, SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES];
        loop {
            // The kernel answers before send returns. What is left of an earlier question is passed over.
            let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
            if let Some(result) = read_answer(&answer[..length], self.sequence, read) {
                return result;
            }
        }
    }
}

fn counters_request(index: i32) -> [u8; HEADER + STATS] {
    let mut message = [0; HEADER + STATS];
    message[0..4].copy_from_slice(&28_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&GET_STATS.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes());
    message[24..28].copy_from_slice(&LINK_64_BIT.to_ne_bytes());
    message
}

const _: () = assert!(HEADER + STATS == 28);

fn link_request(index: i32) -> [u8; HEADER + LINK + ATTRIBUTE + 4] {
    let mut message = [0; HEADER + LINK + ATTRIBUTE + 4];
    message[0..4].copy_from_slice(&40_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&GET_LINK.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes());
    message[32..34].copy_from_slice(&8_u16.to_ne_bytes());
    message[34..36].copy_from_slice(&MASK.to_ne_bytes());
    message[36..40].copy_from_slice(&SKIP_STATISTICS.to_ne_bytes());
    message
}

const _: () = assert!(HEADER + LINK + ATTRIBUTE + 4 == 40);

/// Has an answer read; `None`: it answers another question.
fn read_answer<T>(
    message: &[u8],
    sequence: u32,
    read: &impl Fn(&[u8]) -> Option<T>,
) -> Option<io::Result<T>> {
    if word(message, 8)? != sequence {
        return None;
    }
    if half(message, 4)? == ERROR {
        let code = word(message, HEADER)?.cast_signed();
        return Some(Err(io::Error::from_raw_os_error(code.wrapping_neg())));
    }
    Some(read(message).ok_or_else(|| io::ErrorKind::InvalidData.into()))
}

/// The counter in an answer.
fn counters(answer: &[u8]) -> Option<u64> {
    let value = attribute(answer, NEW_STATS, STATS, LINK_64)?;
    Some(long(value, FIFO)?.max(long(value, MISSED)?))
}

/// The name in an answer.
fn queueing(answer: &[u8]) -> Option<Vec<u8>> {
    let name = attribute(answer, NEW_LINK, LINK, QUEUEING)?;
    Some(name.split(|byte| *byte == 0).next()?.to_vec())
}

/// The value of the attribute `wanted` of a message of type `message_type`, whose own structure has `fixed` bytes.
fn attribute(message: &[u8], message_type: u16, fixed: usize, wanted: u16) -> Option<&[u8]> {
    let mut attributes = message.get(HEADER + fixed..)?;
    if half(message, 4)? != message_type {
        return None;
    }
    loop {
        let (length, kind) = (usize::from(half(attributes, 0)?), half(attributes, 2)?);
        let value = attributes.get(ATTRIBUTE..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 64-bit word at an index.
fn long(bytes: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(8 * index..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with a foreign attribute in front of the counters.
    fn answer(fifo: u64, missed: u64) -> Vec<u8> {
        let mut message = counters_request(1).to_vec();
        message[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        message[4..6].copy_from_slice(&NEW_STATS.to_ne_bytes());
        message.extend(5_u16.to_ne_bytes());
        message.extend([9, 0, 1, 0, 0, 0]);
        let words: Vec<u64> = (0..24)
            .map(|index| match index {
                FIFO => fifo,
                MISSED => missed,
                _ => 1000,
            })
            .collect();
        message.extend(u16::try_from(4 + 8 * words.len()).unwrap().to_ne_bytes());
        message.extend(LINK_64.to_ne_bytes());
        message.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        message
    }

    fn read(message: &[u8], sequence: u32) -> Option<io::Result<u64>> {
        read_answer(message, sequence, &counters)
    }

    #[test]
    fn the_greater_counter_counts() {
        for (fifo, missed, lost) in [(0, 0, 0), (3, 5, 5), (5, 3, 5)] {
            assert_eq!(read(&answer(fifo, missed), 7).unwrap().unwrap(), lost);
        }
        assert!(read(&answer(1, 1), 8).is_none(), "another question");
    }

    #[test]
    fn damaged_answers_are_errors() {
        let whole = answer(1, 2);
        for length in 0..HEADER + STATS + 8 + 4 + 8 * (MISSED + 1) {
            let result = read(&whole[..length], 7);
            assert!(result.is_none_or(|result| result.is_err()), "{length}");
        }
        let mut endless = whole.clone();
        endless[28..30].copy_from_slice(&0_u16.to_ne_bytes());
        assert!(read(&endless, 7).unwrap().is_err());
    }

    #[test]
    fn the_loopback_interface_loses_nothing() {
        let mut counters = Links::new().unwrap();
        assert_eq!(counters.lost(1).unwrap(), 0);
        let error = counters.lost(i32::MAX).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn the_loopback_interface_has_no_queue() {
        let mut links = Links::new().unwrap();
        assert_eq!(links.queueing(1).unwrap(), b"noqueue");
        let error = links.queueing(i32::MAX).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
