//! When a silent flow ends.

use retroscope_packet::proto::{ICMP, ICMPV6, TCP, UDP};

const SECOND: i64 = 1_000_000_000;

/// The stage of a flow, which determines its time-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOutStage {
    /// No answer was seen. TCP: the connection is neither established nor closed, or its SYN was
    /// not seen.
    New,
    /// Both ends sent packets. TCP: the connection is established or closing.
    Established,
    /// TCP only: the connection is closed, by a FIN of both sides or by an RST.
    Closed,
}

/// Time without a packet after which a flow has timed out, ns, by stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageTimeOuts {
    /// Time-out in [`TimeOutStage::New`].
    pub new: i64,
    /// Time-out in [`TimeOutStage::Established`].
    pub established: i64,
    /// Time-out in [`TimeOutStage::Closed`].
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
    /// All other protocols.
    pub other: StageTimeOuts,
    /// If true, flows end when their time-outs have passed, or when a SYN begins another
    /// connection. If false, the time-outs only determine which flows the table evicts.
    pub has_end: bool,
    /// If true, a flow is due at the start of the next second after its time-out has passed, as in
    /// Suricata, which compares whole seconds. If false, a flow is due when its time-out has
    /// passed.
    pub has_whole_seconds: bool,
}

/// The built-in time-outs of Suricata 7 (`src/flow-private.h`).
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
    /// One time-out for all protocols and stages, ns. With 0 or less, [`TimeOuts::has_end`] is
    /// false.
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

    /// The due time of a flow whose time-out has passed at `idle_ns`.
    #[inline]
    pub(crate) fn due_ns(&self, idle_ns: i64) -> i64 {
        if !self.has_whole_seconds {
            return idle_ns;
        }
        let second = idle_ns.div_euclid(SECOND).saturating_add(1);
        second.saturating_mul(SECOND)
    }

    /// The time-out of an IP protocol in a stage, ns.
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
