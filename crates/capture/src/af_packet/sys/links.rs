//! What rtnetlink(7) knows about interfaces: packets lost before the kernel saw them (`RTM_GETSTATS`), and the queueing discipline
//! (`RTM_GETLINK`, both of `linux/if_link.h`).

use std::io;

use crate::netlink::{Message, Netlink, Request};

/// Message types.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_STATS: u16 = 92;
const GET_STATS: u16 = 94;
/// `IFLA_STATS_LINK_64`: the attribute with `struct rtnl_link_stats64`, and the bit that asks for it.
const LINK_64: u16 = 1;
const LINK_64_BIT: u32 = 1;
/// `IFLA_QDISC`: the attribute with the name of the queueing discipline.
const QUEUEING: u16 = 6;
/// `IFLA_EXT_MASK` and `RTEXT_FILTER_SKIP_STATS`: an answer without counters.
const MASK: u16 = 29;
const SKIP_STATISTICS: u32 = 1 << 3;

/// Bytes of `struct if_stats_msg` and of `struct ifinfomsg`.
const STATS: usize = 12;
const LINK: usize = 16;

/// Places of `rx_dropped`, `rx_fifo_errors` and `rx_missed_errors` in `struct rtnl_link_stats64`, in words of 64 bits.
const DROPPED: usize = 6;
const FIFO: usize = 14;
const MISSED: usize = 15;

/// What an interface counted since it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkCounters {
    /// Packets that it had no room for. Drivers differ in which of two counters they use, and whether one includes the other: the
    /// greater one.
    pub(crate) missed: u64,
    /// Packets that the kernel dropped, for want of room in an input queue or of somebody who wants them.
    pub(crate) dropped: u64,
}

/// A socket to ask through. Needs no privilege.
#[derive(Debug)]
pub(crate) struct Links(Netlink);

impl Links {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Netlink::new()?))
    }

    /// What the interface counted. Since Linux 4.7.
    pub(crate) fn counters(&mut self, index: i32) -> io::Result<LinkCounters> {
        let mut fixed = [0; STATS];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        fixed[8..12].copy_from_slice(&LINK_64_BIT.to_ne_bytes());
        self.0.ask(&Request::new(GET_STATS, &fixed), counters)
    }

    /// The name of the interface's queueing discipline: `noqueue`, `pfifo_fast`, …
    pub(crate) fn queueing(&mut self, index: i32) -> io::Result<Vec<u8>> {
        let mut fixed = [0; LINK];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        let request = Request::new(GET_LINK, &fixed).with(MASK, &SKIP_STATISTICS.to_ne_bytes());
        self.0.ask(&request, queueing)
    }
}

/// The counters in an answer.
fn counters(answer: Message<'_>) -> Option<LinkCounters> {
    let value = answer.attribute(NEW_STATS, STATS, LINK_64)?;
    Some(LinkCounters {
        missed: long(value, FIFO)?.max(long(value, MISSED)?),
        dropped: long(value, DROPPED)?,
    })
}

/// The name in an answer.
fn queueing(answer: Message<'_>) -> Option<Vec<u8>> {
    let name = answer.attribute(NEW_LINK, LINK, QUEUEING)?;
    Some(name.split(|byte| *byte == 0).next()?.to_vec())
}

/// The 64-bit word at an index.
fn long(bytes: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(8 * index..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing;

    /// What an answer with a foreign attribute in front of the counters says, as far as it is whole.
    fn told(fifo: u64, missed: u64, words: usize) -> Option<LinkCounters> {
        let value: Vec<u8> = (0..words)
            .flat_map(|index| {
                let word: u64 = match index {
                    DROPPED => 77,
                    FIFO => fifo,
                    MISSED => missed,
                    _ => 1000,
                };
                word.to_ne_bytes()
            })
            .collect();
        let body = Request::new(NEW_STATS, &[0; STATS]).with(9, &[1]);
        let bytes = testing::message(NEW_STATS, 7, &testing::with_long(body, LINK_64, &value));
        testing::first(&bytes).and_then(counters)
    }

    #[test]
    fn the_greater_counter_counts() {
        for (fifo, missed, greater) in [(0, 0, 0), (3, 5, 5), (5, 3, 5)] {
            let counters = told(fifo, missed, 24).unwrap();
            assert_eq!((counters.missed, counters.dropped), (greater, 77));
        }
        assert_eq!(told(3, 5, MISSED), None, "an older kernel's");
    }

    #[test]
    fn the_loopback_interface_loses_nothing() {
        let mut counters = Links::new().unwrap();
        assert_eq!(counters.counters(1).unwrap().missed, 0);
        let error = counters.counters(i32::MAX).unwrap_err();
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
