//! What becomes of packets that the program took and the receive ring has not shown.

/// The ledger of a queue that takes no more packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest {
    /// Packets that the program took.
    pub(super) received: u64,
    /// Of these, lent or known to be lost.
    pub(super) seen: u64,
    /// The time for the rest to come is over.
    pub(super) is_over: bool,
    /// The socket is unbound, or will be closed: what is missing then never comes.
    pub(super) is_unbound: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing is missing.
    Closed,
    /// Packets may still come.
    Wait,
    /// So many were lost with the interface.
    Lost(u64),
    /// So many more, or fewer, came than were counted, and nobody knows why.
    Unexplained(u64),
}

impl Rest {
    pub(super) fn verdict(self) -> Verdict {
        if self.seen == self.received {
            return Verdict::Closed;
        }
        if !self.is_over {
            return Verdict::Wait;
        }
        match self.received.checked_sub(self.seen) {
            Some(missing) if self.is_unbound => Verdict::Lost(missing),
            _ => Verdict::Unexplained(self.received.abs_diff(self.seen)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interface_took_with_it_is_lost() {
        let rest = |received, seen, is_over, is_unbound| {
            let rest = Rest {
                received,
                seen,
                is_over,
                is_unbound,
            };
            rest.verdict()
        };
        for is_unbound in [false, true] {
            assert_eq!(rest(9, 9, false, is_unbound), Verdict::Closed);
            assert_eq!(rest(9, 9, true, is_unbound), Verdict::Closed);
            assert_eq!(rest(9, 7, false, is_unbound), Verdict::Wait);
            assert_eq!(rest(7, 9, true, is_unbound), Verdict::Unexplained(2));
        }
        assert_eq!(rest(9, 7, true, true), Verdict::Lost(2));
        assert_eq!(rest(9, 7, true, false), Verdict::Unexplained(2));
    }
}
