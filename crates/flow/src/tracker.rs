//! Packets in, ended flows out: what a shard has to do with flows.

use retroscope_packet::LinkType;

use crate::{
    Advise, Attribution, Flow, FlowEnd, FlowPacket, FlowTable, FlowTableCounters, Secret, TimeOuts,
    TopSlice, table::TOGETHER, top::TopCounter,
};

/// Between two looks for flows that are over, ns of packet time.
const LOOK_NS: i64 = 1_000_000_000;

/// How flows are told apart, and when they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerConfig {
    /// Flows at once at most, 1 to 2^32 - 1: see [`FlowTable`].
    pub flows_max: usize,
    /// When flows are over.
    pub time_outs: TimeOuts,
    /// Packets with different VLAN identifiers are of different flows.
    pub has_vlans: bool,
    /// Later fragments are of the flow that their first fragment told; if not, of none.
    pub joins_fragments: bool,
    /// Also counts what flows send second by second, for [`Tracker::give_slice`]: so many flows in each, 1 to 2^32 - 1.
    pub top: Option<usize>,
}

/// A million flows by Suricata's rules.
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
    /// All that was counted of it.
    pub flow: Flow,
    /// Why it ended.
    pub end: FlowEnd,
    /// When, ns since the UNIX epoch: at a time-out when it was due, else the latest time seen.
    pub time_ns: i64,
}

/// What a [`Tracker`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TrackerCounters {
    /// Of its table.
    pub table: FlowTableCounters,
    /// Packets whose flow could not be told: see [`Attribution`].
    pub unattributed: u64,
    /// Fragmented datagrams that were forgotten for others.
    pub forgotten_datagrams: u64,
    /// Flows that go on.
    pub live: u64,
}

/// The flows of the packets that it is given, by one thread at a time.
///
/// Which flows end, when, and in which order follows from the packets and their order alone, not from how they are divided among calls; but
/// for [`Self::pass`].
#[derive(Debug)]
pub struct Tracker {
    time_outs: TimeOuts,
    attribution: Attribution,
    table: FlowTable,
    top: Option<TopCounter>,
    /// Packets that the table has not counted yet.
    batch: Vec<FlowPacket>,
    /// The latest time seen; `i64::MIN`: none yet.
    clock_ns: i64,
    /// When flows that are over are looked for next.
    look_ns: i64,
    /// The clock and the monotonic clock at the first call of [`Self::pass`] since the last packet.
    quiet_since: Option<(i64, i64)>,
}

impl Tracker {
    /// Without flows. `secret` keys the hashes of its table.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn new(config: &TrackerConfig, secret: Secret) -> Self {
        Self::with_advice(config, secret, |_| {})
    }

    /// The same, where `advise` gets what its table reserves: see [`FlowTable::with_advice`].
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

    /// Counts a packet of an interface, whose captured bytes are `data`. `ended` gets each flow that is over then.
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

    /// No packet has come for now, at `mono_ns` of a monotonic clock: flows are over by it too. To be called now and then while none comes.
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

    /// Gives away what flows sent since the last slice, at `mono_ns` of a monotonic clock, once a second is over. What `give` returns goes on.
    /// Nothing without [`TrackerConfig::top`]. Packets of the last batch are of the next slice, unless [`Self::pass`] was called.
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

    /// What it has done so far. Packets of the last batch are not counted yet.
    #[must_use]
    pub fn counters(&self) -> TrackerCounters {
        TrackerCounters {
            table: self.table.counters(),
            unattributed: self.attribution.unattributed(),
            forgotten_datagrams: self.attribution.forgotten_datagrams(),
            live: self.table.len() as u64,
        }
    }

    /// Ends what is over at a time.
    #[cold]
    fn look(&mut self, now_ns: i64, ended: &mut impl FnMut(EndedFlow)) {
        self.count(ended);
        self.table
            .expire(now_ns, with_time(self.time_outs, now_ns, ended));
        self.look_ns = now_ns.saturating_add(LOOK_NS);
    }

    /// Counts the batch in the table.
    fn count(&mut self, ended: &mut impl FnMut(EndedFlow)) {
        let told = with_time(self.time_outs, self.clock_ns, ended);
        self.table.update(&self.batch, told);
        if let Some(top) = &mut self.top {
            top.count(&self.batch);
        }
        self.batch.clear();
    }
}

/// Tells of a flow that ended, at `now_ns` unless it was over before.
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
