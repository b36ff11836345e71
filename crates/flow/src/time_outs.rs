//! When a flow without packets is over.

use retroscope_packet::proto::{ICMP, ICMPV6, TCP, UDP};

const SECOND: i64 = 1_000_000_000;

/// What a flow has come to, as far as its time-out depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOutStage {
    /// No answer yet; TCP: no handshake yet.
    New,
    /// Packets went both ways; TCP: the handshake is complete.
    Established,
    /// TCP that both sides ended, or one reset.
    Closed,
}

/// Nanoseconds from a flow's last packet to its end, by stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageTimeOuts {
    /// Of [`TimeOutStage::New`].
    pub new: i64,
    /// Of [`TimeOutStage::Established`].
    pub established: i64,
    /// Of [`TimeOutStage::Closed`].
    pub closed: i64,
}

impl StageTimeOuts {
    const fn seconds(new: i64, established: i64, closed: i64) -> Self {
        Self {
            new: new * SECOND,
            established: established * SECOND,
            closed: closed * SECOND,
        }
    }

    const fn all(time_out: i64) -> Self {
        Self {
            new: time_out,
            established: time_out,
            closed: time_out,
        }
    }
}

/// Time-outs by protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeOuts {
    /// TCP.
    pub tcp: StageTimeOuts,
    /// UDP.
    pub udp: StageTimeOuts,
    /// ICMP and ICMPv6.
    pub icmp: StageTimeOuts,
    /// All else.
    pub other: StageTimeOuts,
    /// Whether flows end at all while packets come. If not, the times still say which flows a full table gives up.
    pub has_end: bool,
    /// Seconds count, as in Suricata, not what is within them: a flow is over from the first second on that is later than the second of its
    /// last packet by more than the time-out. If not, a flow is over when its time-out has passed.
    pub has_whole_seconds: bool,
}

/// Those that are built into Suricata 7 (`src/flow-private.h`), where its configuration has no `flow-timeouts`.
impl Default for TimeOuts {
    fn default() -> Self {
        Self {
            tcp: StageTimeOuts::seconds(30, 300, 10),
            udp: StageTimeOuts::seconds(30, 300, 0),
            icmp: StageTimeOuts::seconds(30, 300, 0),
            other: StageTimeOuts::seconds(30, 300, 0),
            has_end: true,
            has_whole_seconds: true,
        }
    }
}

impl TimeOuts {
    /// One for all, in nanoseconds. 0 never splits the packets of a key into several flows, also not where TCP begins anew.
    #[must_use]
    pub fn idle(time_out_ns: i64) -> Self {
        if time_out_ns <= 0 {
            return Self {
                has_end: false,
                ..Self::default()
            };
        }
        let all = StageTimeOuts::all(time_out_ns);
        Self {
            tcp: all,
            udp: all,
            icmp: all,
            other: all,
            has_end: true,
            has_whole_seconds: false,
        }
    }

    /// When a flow is over whose time-out has passed at `idle_ns`.
    #[inline]
    pub(crate) fn due_ns(&self, idle_ns: i64) -> i64 {
        if !self.has_whole_seconds {
            return idle_ns;
        }
        let second = idle_ns.div_euclid(SECOND).saturating_add(1);
        second.saturating_mul(SECOND)
    }

    /// The time-out of an IP protocol in a stage.
    #[inline]
    #[must_use]
    pub fn of(&self, proto: u8, stage: TimeOutStage) -> i64 {
        let stages = match proto {
            TCP => &self.tcp,
            UDP => &self.udp,
            ICMP | ICMPV6 => &self.icmp,
            _ => &self.other,
        };
        match stage {
            TimeOutStage::New => stages.new,
            TimeOutStage::Established => stages.established,
            TimeOutStage::Closed => stages.closed,
        }
    }
}
