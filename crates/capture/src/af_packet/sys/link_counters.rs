//! What an interface counts as lost before the kernel saw it: rtnetlink(7), `RTM_GETSTATS` of `linux/if_link.h`.
//!
//! Asked through a socket, so that the answer is of the network namespace that the socket was made in. No unsafe code: messages
//! are bytes.

use std::{io, os::fd::OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Message types.
const GET_STATS: u16 = 94;
const NEW_STATS: u16 = 92;
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `IFLA_STATS_LINK_64`: the attribute with `struct rtnl_link_stats64`, and the bit that asks for it.
const LINK_64: u16 = 1;
const LINK_64_BIT: u32 = 1;

/// Bytes of `struct nlmsghdr`, of `struct if_stats_msg`, and of an attribute's head.
const HEADER: usize = 16;
const STATS: usize = 12;
const ATTRIBUTE: usize = 4;

/// Places of `rx_fifo_errors` and `rx_missed_errors` in `struct rtnl_link_stats64`, in words of 64 bits.
const FIFO: usize = 14;
const MISSED: usize = 15;

/// A socket to ask through. Needs no privilege.
#[derive(Debug)]
pub(crate) struct LinkCounters {
    socket: OwnedFd,
    sequence: u32,
}

impl LinkCounters {
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
        self.sequence = self.sequence.wrapping_add(1);
        send(
            &self.socket,
            &request(index, self.sequence),
            SendFlags::empty(),
        )?;
        let mut answer = [0; 1024];
        loop {
            // The kernel answers before send returns. What is left of an earlier question is passed over.
            let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
            if let Some(result) = read_answer(&answer[..length], self.sequence) {
                return result;
            }
        }
    }
}

fn request(index: i32, sequence: u32) -> [u8; HEADER + STATS] {
    let mut message = [0; HEADER + STATS];
    message[0..4].copy_from_slice(&28_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&GET_STATS.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[8..12].copy_from_slice(&sequence.to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes());
    message[24..28].copy_from_slice(&LINK_64_BIT.to_ne_bytes());
    message
}

const _: () = assert!(HEADER + STATS == 28);

/// The counter in an answer; `None`: it answers another question.
fn read_answer(message: &[u8], sequence: u32) -> Option<io::Result<u64>> {
    if word(message, 8)? != sequence {
        return None;
    }
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let result = match half(message, 4)? {
        NEW_STATS => counters(message.get(HEADER + STATS..)?).ok_or_else(malformed),
        ERROR => {
            let code = word(message, HEADER)?.cast_signed();
            Err(io::Error::from_raw_os_error(code.wrapping_neg()))
        }
        _ => Err(malformed()),
    };
    Some(result)
}

/// Finds the counters among the attributes.
fn counters(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let (length, kind) = (usize::from(half(attributes, 0)?), half(attributes, 2)?);
        let value = attributes.get(ATTRIBUTE..length)?;
        if kind == LINK_64 {
            return Some(long(value, FIFO)?.max(long(value, MISSED)?));
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
        let mut message = request(1, 7).to_vec();
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

    #[test]
    fn the_greater_counter_counts() {
        for (fifo, missed, lost) in [(0, 0, 0), (3, 5, 5), (5, 3, 5)] {
            let read = read_answer(&answer(fifo, missed), 7).unwrap();
            assert_eq!(read.unwrap(), lost);
        }
        assert!(read_answer(&answer(1, 1), 8).is_none(), "another question");
    }

    #[test]
    fn damaged_answers_are_errors() {
        let whole = answer(1, 2);
        for length in 0..HEADER + STATS + 8 + 4 + 8 * (MISSED + 1) {
            let read = read_answer(&whole[..length], 7);
            assert!(read.is_none_or(|result| result.is_err()), "{length}");
        }
        let mut endless = whole.clone();
        endless[28..30].copy_from_slice(&0_u16.to_ne_bytes());
        assert!(read_answer(&endless, 7).unwrap().is_err());
    }

    #[test]
    fn the_loopback_interface_loses_nothing() {
        let mut counters = LinkCounters::new().unwrap();
        assert_eq!(counters.lost(1).unwrap(), 0);
        let error = counters.lost(i32::MAX).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
