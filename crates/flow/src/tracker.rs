//! The flows of a shard: packets in, ended flows out.

use retroscope_packet::LinkType;

use crate::{
    Advise, Attribution, Flow, FlowEnd, FlowPacket, FlowTable, FlowTableCounters, Secret, TimeOuts,
    TopSlice, table::TOGETHER, top::TopCounter,
};

/// Minimum time between two searches for flows that timed out, ns.
const LOOK_NS: i64 = 1_000_000_000;

/// How packets are assigned to flows, and when flows end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerConfig {
    /// Maximum number of flows at the same time, 1 to 2^32 - 1: see [`FlowTable`].
    pub flows_max: usize,
    /// When silent flows end.
    pub time_outs: TimeOuts,
    /// Packets with different VLAN identifiers belong to different flows.
    pub has_vlans: bool,
    /// Later fragments belong to the flow of their first fragment: see [`Attribution::new`].
    pub joins_fragments: bool,
    /// If set, the maximum number of flows in a slice of [`Tracker::give_slice`], 1 to 2^32 - 1.
    pub top: Option<usize>,
}

/// A million flows with Suricata's time-outs.
impl Default for TrackerConfig {
    fn default() -> Self {
        Self {
            flows_max: 1_000_000,
            time_outs: TimeOuts::default(),
            has_vlans: true,
            joins_fragments: true,
            top: None,
        }
    }
}

/// A flow that ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedFlow {
    /// The flow with its counters.
    pub flow: Flow,
    /// The reason of the end.
    pub end: FlowEnd,
    /// Time of the end, ns: see [`FlowPacket::time_ns`]. After a time-out this is the due time,
    /// otherwise the latest time seen.
    pub time_ns: i64,
}

/// Counters of a [`Tracker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TrackerCounters {
    /// Counters of the flow table.
    pub table: FlowTableCounters,
    /// Packets without a known flow: see [`Attribution`].
    pub unattributed: u64,
    /// Fragmented datagrams that were evicted from the memory of fragments.
    pub forgotten_datagrams: u64,
    /// Flows that have not ended.
    pub live: u64,
}

/// Counts the packets of one shard in flows. One thread at a time.
///
/// The packets and their order determine when flows end, and in which order, with two exceptions.
/// Flows that end as [`FlowEnd::Crowded`] also depend on the secret. [`Self::pass`] counts waiting
/// packets earlier, and also ends flows by a monotonic clock.
#[derive(Debug)]
pub struct Tracker {
    time_outs: TimeOuts,
    attribution: Attribution,
    table: FlowTable,
    top: Option<TopCounter>,
    /// Packets that the table has not counted yet, at most 64.
    batch: Vec<FlowPacket>,
    /// The latest time seen.
    clock_ns: i64,
    look_ns: i64,
    /// The packet clock and the monotonic clock at the first [`Self::pass`] since the last packet.
    quiet_since: Option<(i64, i64)>,
}

impl Tracker {
    /// A tracker without flows. `secret` keys the hashes of its table.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn new(config: &TrackerConfig, secret: Secret) -> Self {
        Self::with_advice(config, secret, |_| {})
    }

    /// As [`Self::new`]. `advise` gets the reserved memory: see [`FlowTable::with_advice`].
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn with_advice(config: &TrackerConfig, secret: Secret, advise: Advise) -> Self {
        let &TrackerConfig {
            flows_max,
            time_outs,
            ..
        } = config;
        Self {
            top: config.top.map(|max| TopCounter::new(max, secret.clone())),
            time_outs,
            attribution: Attribution::new(config.has_vlans, config.joins_fragments),
            table: FlowTable::with_advice(flows_max, time_outs, secret, advise),
            batch: Vec::with_capacity(TOGETHER),
            clock_ns: i64::MIN,
            look_ns: i64::MIN,
            quiet_since: None,
        }
    }

    /// Counts a packet of an interface with the captured bytes `data`. `ended` gets each flow that
    /// ends.
    pub fn packet(
        &mut self,
        (interface, link_type): (u16, LinkType),
        (time_ns, wire_len): (i64, u32),
        data: &[u8],
        ended: &mut impl FnMut(EndedFlow),
    ) {
        if time_ns >= self.look_ns {
            self.look(time_ns, ended);
        }
        self.clock_ns = self.clock_ns.max(time_ns);
        self.quiet_since = None;
        let found = self.attribution.frame(link_type, data, time_ns, wire_len);
        let Some(mut packet) = found else {
            return;
        };
        packet.interface = interface;
        self.batch.push(packet);
        if self.batch.len() == TOGETHER {
            self.count(ended);
        }
    }

    /// Reports that no packet arrived, at `mono_ns` of a monotonic clock. Call this now and then
    /// while no packet arrives, so that flows time out on a silent link.
    pub fn pass(&mut self, mono_ns: i64, ended: &mut impl FnMut(EndedFlow)) {
        self.count(ended);
        if self.clock_ns == i64::MIN {
            return;
        }
        let (clock_ns, since_ns) = *self.quiet_since.get_or_insert((self.clock_ns, mono_ns));
        let now_ns = clock_ns.saturating_add(mono_ns.saturating_sub(since_ns).max(0));
        self.clock_ns = self.clock_ns.max(now_ns);
        if now_ns >= self.look_ns {
            self.look(now_ns, ended);
        }
    }

    /// Passes the traffic since the last slice to `give`, at `mono_ns` of a monotonic clock, if at
    /// least a second has passed. If `give` returns the slice, the slice continues.
    ///
    /// Does nothing without [`TrackerConfig::top`]. Packets that still wait for a full batch belong
    /// to the next slice.
    pub fn give_slice(
        &mut self,
        mono_ns: i64,
        give: impl FnOnce(TopSlice) -> Result<(), TopSlice>,
    ) {
        if let Some(top) = &mut self.top {
            top.give(mono_ns, give);
        }
    }

    /// Ends all flows.
    pub fn finish(&mut self, ended: &mut impl FnMut(EndedFlow)) {
        self.count(ended);
        let (table, mut ended) = (
            &mut self.table,
            with_time(self.time_outs, self.clock_ns, ended),
        );
        table.finish(&mut ended);
    }

    /// The counters. The table's counters lack up to 63 packets that wait for a full batch.
    #[must_use]
    pub fn counters(&self) -> TrackerCounters {
        TrackerCounters {
            table: self.table.counters(),
            unattributed: self.attribution.unattributed(),
            forgotten_datagrams: self.attribution.forgotten_datagrams(),
            live: self.table.len() as u64,
        }
    }

    /// Ends the flows that have timed out at `now_ns`.
    #[cold]
    fn look(&mut self, now_ns: i64, ended: &mut impl FnMut(EndedFlow)) {
        self.count(ended);
        self.table
            .expire(now_ns, with_time(self.time_outs, now_ns, ended));
        self.look_ns = now_ns.saturating_add(LOOK_NS);
    }

    fn count(&mut self, ended: &mut impl FnMut(EndedFlow)) {
        let told = with_time(self.time_outs, self.clock_ns, ended);
        self.table.update(&self.batch, told);
        if let Some(top) = &mut self.top {
            top.count(&self.batch);
        }
        self.batch.clear();
    }
}

fn with_time(
    time_outs: TimeOuts,
    now_ns: i64,
    ended: &mut impl FnMut(EndedFlow),
) -> impl FnMut(&Flow, FlowEnd) {
    move |flow, end| {
        ended(EndedFlow {
            flow: *flow,
            end,
            time_ns: match end {
                FlowEnd::TimeOut => flow.due_ns(&time_outs),
                _ => now_ns,
            },
        });
    }
}
