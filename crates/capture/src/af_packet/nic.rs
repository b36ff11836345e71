//! Losses before the capture: counters of the interface and of the kernel's input queues. Only
//! their growth since the opening counts.
//!
//! # Input queues
//! A packet may wait in the input queue of a CPU before the taps, for example on the loopback
//! interface or with RPS (`enqueue_to_backlog` of `net/core/dev.c`). If the queue drops the packet,
//! the kernel counts the drop twice: in the second column of `/proc/net/softnet_stat`, for all
//! interfaces together, and in the interface's `rx_dropped`, which has other drops too. So each
//! counter's growth bounds the drops of the interface.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
};

use crate::{
    InputDrops,
    netlink::{LinkCounters, Netlink},
};

/// Age from which the counters are read again, ns. A reading costs as much as copying hundreds of
/// small packets.
const COUNTERS_AGE_NS_MAX: i64 = 20_000_000;

/// Losses of an interface, and of interfaces that replace it under the same name.
#[derive(Debug)]
pub(crate) struct InterfaceCounters {
    /// `None`: the kernel does not report losses, or there is no interface.
    source: Option<CounterSource>,
    /// False from [`Self::pause`] to [`Self::follow`]: losses do not count then.
    is_ours: bool,
    /// Time of the last reading that was due, on the system's clock.
    read_ns: i64,
    /// Losses of the interface and of the kernel's input queues at the last reading.
    lost: InterfaceLosses,
}

/// The origin of the counters, and their sum.
#[derive(Debug)]
struct CounterSource {
    netlink: Netlink,
    input: Option<InputQueues>,
    index: i32,
    tracker: CounterTracker,
}

/// Packets lost so far. `None`: the kernel does not report the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct InterfaceLosses {
    /// Packets for which the NIC had no room.
    nic: Option<u64>,
    /// Upper bound on the packets for which the kernel's input queues had no room.
    input_at_most: Option<u64>,
}

impl InterfaceCounters {
    /// Starts to count losses of the interface with this index; `None`: there is no interface to
    /// query.
    pub(crate) fn new(index: Option<i32>) -> Self {
        let source = index.and_then(|index| {
            let mut netlink = Netlink::new().ok()?;
            let last = netlink.counters(index).ok()?;
            Some(CounterSource {
                netlink,
                input: InputQueues::open(),
                index,
                tracker: CounterTracker::new(last),
            })
        });
        Self {
            source,
            is_ours: true,
            read_ns: i64::MIN,
            lost: InterfaceLosses::default(),
        }
    }

    /// Reads the counters, unless the last reading is recent. `is_last`: also if the last reading
    /// is recent.
    pub(crate) fn refresh(&mut self, now_ns: i64, is_last: bool) {
        let age_ns = now_ns.checked_sub(self.read_ns);
        let is_fresh = age_ns.is_some_and(|age_ns| (0..COUNTERS_AGE_NS_MAX).contains(&age_ns));
        if is_fresh && !is_last {
            return;
        }
        self.read_ns = now_ns;
        if let Some(source) = self.source.as_mut().filter(|_| self.is_ours) {
            let link = source.netlink.counters(source.index);
            let dropped = source.input.as_mut().and_then(InputQueues::grown);
            self.lost = source.tracker.account(link, dropped);
        }
    }

    /// Reads the counters a last time, then stops counting until [`Self::follow`].
    pub(crate) fn pause(&mut self, now_ns: i64) {
        self.refresh(now_ns, true);
        self.is_ours = false;
    }

    /// Counts for another interface, or for the same interface again.
    pub(crate) fn follow(&mut self, index: i32) {
        self.is_ours = true;
        if let Some(source) = &mut self.source {
            source.index = index;
            source.tracker.follow(source.netlink.counters(index).ok());
        }
    }

    /// Packets for which the NIC had no room; `None`: unknown.
    pub(crate) fn nic(&self) -> Option<u64> {
        self.lost.nic
    }

    /// Until when the counters are complete, on the system's clock, which shows `now_ns`.
    pub(crate) fn as_of_ns(&self, now_ns: i64) -> i64 {
        now_ns.min(self.lost.nic.map_or(now_ns, |_| self.read_ns))
    }

    /// Packets that the kernel's input queues may have dropped.
    pub(crate) fn input_drops(&self) -> InputDrops {
        let at_most = self.lost.input_at_most;
        at_most.map_or(InputDrops::Unknown, InputDrops::AtMost)
    }
}

/// Sums the growth of the counters over the readings.
#[derive(Debug)]
struct CounterTracker {
    /// The interface's counters at the last reading; `None`: they could not be read when the
    /// interface was new.
    last: Option<LinkCounters>,
    nic: u64,
    bound: DropBound,
    /// The last known losses.
    known: InterfaceLosses,
    /// The interface was found removed, and the bound includes the drops until then.
    is_gone: bool,
}

impl CounterTracker {
    fn new(last: LinkCounters) -> Self {
        Self {
            last: Some(last),
            nic: 0,
            bound: DropBound::default(),
            // `nic` of the result if the interface is removed before the first reading.
            known: InterfaceLosses {
                nic: Some(0),
                input_at_most: None,
            },
            is_gone: false,
        }
    }

    /// Starts with an interface that has these counters.
    fn follow(&mut self, last: Option<LinkCounters>) {
        self.last = last;
        self.is_gone = false;
    }

    /// Adds a reading of the interface's counters. `dropped` is the growth of the input queues'
    /// drops since their last successful reading.
    fn account(&mut self, link: io::Result<LinkCounters>, dropped: Option<u64>) -> InterfaceLosses {
        let now = match link {
            Ok(now) => now,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                // The drops since the last reading enter the bound once: an interface that is gone
                // drops no more packets.
                if !self.is_gone {
                    // The final growth of the interface's counter is unknown.
                    self.known.input_at_most = self.bound.add(u64::MAX, dropped);
                    self.is_gone = dropped.is_some();
                    if self.is_gone {
                        self.bound.interface_spare = 0;
                    }
                }
                return self.known;
            }
            Err(_) => return InterfaceLosses::default(),
        };
        self.is_gone = false;
        let Some(last) = &mut self.last else {
            return InterfaceLosses::default();
        };
        // Some drivers reset the counters when the interface goes down and up.
        let grown = |now: u64, last: u64| now.checked_sub(last).unwrap_or(now);
        self.nic += grown(now.missed, last.missed);
        let input_at_most = self.bound.add(grown(now.dropped, last.dropped), dropped);
        *last = now;
        self.known = InterfaceLosses {
            nic: Some(self.nic),
            input_at_most,
        };
        self.known
    }
}

/// Upper bound on drops: the smaller growth of two counters, summed over the readings.
#[derive(Debug, Default)]
struct DropBound {
    at_most: u64,
    /// Growth of the interface's counter that the other counter has not matched yet: the two are
    /// read one after the other.
    interface_spare: u64,
    input_spare: u64,
}

impl DropBound {
    /// Adds the growth of each counter. Returns the bound so far; `None`: the input queues' counter
    /// is unknown.
    fn add(&mut self, interface: u64, input: Option<u64>) -> Option<u64> {
        let interface_all = interface.saturating_add(self.interface_spare);
        let Some(input) = input else {
            self.interface_spare = interface_all;
            return None;
        };
        let input_all = input.saturating_add(self.input_spare);
        let both = interface_all.min(input_all);
        self.at_most = self.at_most.saturating_add(both);
        self.interface_spare = (interface_all - both).min(interface);
        self.input_spare = (input_all - both).min(input);
        Some(self.at_most)
    }
}

/// The input queues of all CPUs.
#[derive(Debug)]
struct InputQueues {
    /// Opened once, because the process may be confined later.
    file: File,
    text: String,
    last: u64,
}

impl InputQueues {
    fn open() -> Option<Self> {
        let mut queues = Self {
            file: File::open("/proc/thread-self/net/softnet_stat").ok()?,
            text: String::with_capacity(4096),
            last: 0,
        };
        queues.last = queues.dropped()?;
        Some(queues)
    }

    /// The drops since the last reading; `u64::MAX`: no bound; `None`: unreadable.
    fn grown(&mut self) -> Option<u64> {
        let now = self.dropped()?;
        let last = std::mem::replace(&mut self.last, now);
        // A smaller sum, for example without the counter of a CPU that went offline: only the
        // interface's counter bounds the drops.
        Some(now.checked_sub(last).unwrap_or(u64::MAX))
    }

    fn dropped(&mut self) -> Option<u64> {
        self.text.clear();
        self.file.rewind().ok()?;
        self.file.read_to_string(&mut self.text).ok()?;
        sum_of_dropped(&self.text)
    }
}

/// The sum of the second column, in hexadecimal. A line is one CPU (`softnet_seq_show` of
/// `net/core/net-procfs.c`).
fn sum_of_dropped(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let dropped = |line: &str| {
        let word = line.split_ascii_whitespace().nth(1)?;
        u64::from_str_radix(word, 16).ok()
    };
    text.lines().map(dropped).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(missed: u64, dropped: u64) -> LinkCounters {
        LinkCounters { missed, dropped }
    }

    fn error(code: i32) -> io::Result<LinkCounters> {
        Err(io::Error::from_raw_os_error(code))
    }

    fn losses(nic: u64, input_at_most: u64) -> InterfaceLosses {
        InterfaceLosses {
            nic: Some(nic),
            input_at_most: Some(input_at_most),
        }
    }

    #[test]
    fn growth_since_the_opening_counts() {
        let mut tracker = CounterTracker::new(link(100, 50));
        assert_eq!(tracker.account(Ok(link(100, 50)), Some(0)), losses(0, 0));
        assert_eq!(tracker.account(Ok(link(107, 50)), Some(9)), losses(7, 0));
        // The driver has reset its counters: the value after the reset is growth.
        assert_eq!(tracker.account(Ok(link(2, 50)), Some(0)), losses(9, 0));
        // The drops until the removal was found may be packets of this interface.
        assert_eq!(tracker.account(error(libc::ENODEV), Some(5)), losses(9, 5));
        assert_eq!(tracker.account(error(libc::ENODEV), Some(7)), losses(9, 5));
        tracker.follow(Some(link(1000, 1000)));
        assert_eq!(
            tracker.account(Ok(link(1001, 1000)), Some(3)),
            losses(10, 5)
        );
        // The 3 drops of the previous reading count too: the interface's counter may show them only
        // now.
        assert_eq!(tracker.account(error(libc::ENODEV), Some(1)), losses(10, 9));
        tracker.follow(Some(link(0, 0)));
        assert_eq!(
            tracker.account(error(libc::ENODEV), Some(2)),
            losses(10, 11)
        );
    }

    #[test]
    fn drops_that_cannot_be_read_when_the_interface_goes_count_later() {
        let mut tracker = CounterTracker::new(link(0, 0));
        assert_eq!(tracker.account(Ok(link(1, 0)), Some(0)), losses(1, 0));
        let gone = tracker.account(error(libc::ENODEV), None);
        assert_eq!((gone.nic, gone.input_at_most), (Some(1), None));
        tracker.follow(Some(link(0, 0)));
        assert_eq!(tracker.account(Ok(link(0, 0)), Some(4)), losses(1, 4));
        assert_eq!(tracker.account(Ok(link(0, 0)), Some(4)), losses(1, 4));
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let unknown = InterfaceLosses::default();
        let mut tracker = CounterTracker::new(link(0, 0));
        assert_eq!(tracker.account(error(libc::EPERM), Some(0)), unknown);
        assert_eq!(tracker.account(Ok(link(3, 0)), Some(0)), losses(3, 0));
        // Only the input queues cannot be read: the growth of the interface's counter counts later.
        let without = tracker.account(Ok(link(4, 6)), None);
        assert_eq!((without.nic, without.input_at_most), (Some(4), None));
        assert_eq!(tracker.account(Ok(link(4, 6)), Some(4)), losses(4, 4));
        tracker.follow(None);
        assert_eq!(tracker.account(Ok(link(8, 9)), Some(9)), unknown);
        assert_eq!(tracker.account(Ok(link(9, 9)), Some(0)), unknown);
    }

    #[test]
    fn the_bound_is_the_lesser_growth() {
        let bound = |readings: &[(u64, u64)]| {
            let mut bound = DropBound::default();
            let mut last = None;
            for (interface, input) in readings {
                last = bound.add(*interface, Some(*input));
            }
            last
        };
        assert_eq!(bound(&[(7, 0), (0, 0), (0, 9)]), Some(0), "other things");
        assert_eq!(bound(&[(7, 5), (1, 3)]), Some(8));
        assert_eq!(bound(&[(5, 7), (0, 0), (1, 0)]), Some(5));
        // Drops between the readings of the two counters.
        assert_eq!(bound(&[(0, 3), (3, 0)]), Some(3));
        assert_eq!(bound(&[(3, 0), (0, 3)]), Some(3));
        assert_eq!(bound(&[(4, u64::MAX), (2, 0), (1, 0)]), Some(6));
    }

    #[test]
    fn the_drops_of_all_cpus_are_added() {
        let text = "000000ff 00000003 00000000 0\n00000001 0000000a 00000000 1\n";
        assert_eq!(sum_of_dropped(text), Some(13));
        for damaged in ["", "00000001\n", "1 2\nx y\n"] {
            assert_eq!(sum_of_dropped(damaged), None, "{damaged:?}");
        }
        let Some(mut queues) = InputQueues::open() else {
            eprintln!("SKIP: the kernel does not show its input queues");
            return;
        };
        queues.last = 0;
        let all = queues.dropped().unwrap();
        assert!(queues.grown().unwrap() >= all, "read again from the start");
    }

    #[test]
    fn it_is_asked_now_and_then_and_at_the_end() {
        // Interface 1 is the loopback interface.
        let mut counters = InterfaceCounters::new(Some(1));
        if counters.source.is_none() {
            eprintln!("SKIP: the kernel does not tell what interface 1 lost");
            return;
        }
        let start_ns = 1_000_000_000;
        let asked = [
            (start_ns, false, start_ns),
            (start_ns + COUNTERS_AGE_NS_MAX - 1, false, start_ns),
            (
                start_ns + COUNTERS_AGE_NS_MAX,
                false,
                start_ns + COUNTERS_AGE_NS_MAX,
            ),
            (
                start_ns + COUNTERS_AGE_NS_MAX + 1,
                true,
                start_ns + COUNTERS_AGE_NS_MAX + 1,
            ),
            // The clock was set back.
            (start_ns, false, start_ns),
        ];
        for (now_ns, is_last, read_ns) in asked {
            counters.refresh(now_ns, is_last);
            assert_eq!((counters.read_ns, counters.lost.nic), (read_ns, Some(0)));
        }
        counters.lost.nic = Some(7);
        counters.is_ours = false;
        counters.refresh(start_ns, true);
        assert_eq!(counters.lost.nic, Some(7), "the host's");
        counters.follow(1);
        counters.refresh(start_ns, true);
        assert_eq!(counters.lost.nic, Some(0));
    }
}
