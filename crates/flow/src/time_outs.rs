//! When a flow without packets is over.

use retroscope_packet::proto::{ICMP, ICMPV6, TCP, UDP};

const SECOND: i64 = 1_000_000_000;

/// What a flow has come to, as far as its time-out depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
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
    /// Of [`Stage::New`].
    pub new: i64,
    /// Of [`Stage::Established`].
    pub established: i64,
    /// Of [`Stage::Closed`].
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
}

/// Those of `suricata.yaml` as Suricata installs it (`flow-timeouts`).
impl Default for TimeOuts {
    fn default() -> Self {
        Self {
            tcp: StageTimeOuts::seconds(60, 600, 60),
            udp: StageTimeOuts::seconds(30, 300, 0),
            icmp: StageTimeOuts::seconds(30, 300, 0),
            other: StageTimeOuts::seconds(30, 300, 0),
            has_end: true,
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
        }
    }

    /// The time-out of an IP protocol in a stage.
    #[inline]
    #[must_use]
    pub fn of(&self, proto: u8, stage: Stage) -> i64 {
        let stages = match proto {
            TCP => &self.tcp,
            UDP => &self.udp,
            ICMP | ICMPV6 => &self.icmp,
            _ => &self.other,
        };
        match stage {
            Stage::New => stages.new,
            Stage::Established => stages.established,
            Stage::Closed => stages.closed,
        }
    }
}
