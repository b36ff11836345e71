//! Finds the flows of packets, calls a module, and limits the damage that a failing module can do.

use std::{collections::HashSet, ops::Range};

use retroscope_flow::{
    Attribution, BiflowKey, DirectedKey, FlowPacket as Counted, FlowTable, Secret, TimeOuts,
    TrackerConfig,
};
use serde::Serialize;

use crate::{
    LuaModule, PairJoin,
    module_types::{
        CHECKED, CallFault, FlowPlace, MANY, ModuleDumpRequest, ModuleFlowEnd, ModuleSettings,
        ScriptPacket,
    },
};

/// A difference of time stamps, ns. If a packet is older than the latest packet by more than this,
/// the time stamp of the latest packet may be in the future.
const BACK_NS: i64 = 60_000_000_000;
/// Number of packets in a row, each older than the latest packet by more than [`BACK_NS`], after
/// which the runner goes back to their time. If the packets of two sources with different clocks
/// alternate, the number stays below this.
const BACK_PACKETS: u32 = 64;
/// Maximum number of check calls in one [`Runner::pass`]. [`Runner::handle_packets`] makes at most
/// one check call between two packets.
const CHECKS_IDLE: usize = 4;
/// Minimum packet time between two searches for flows that timed out, ns.
const LOOK_NS: i64 = 1_000_000_000;
/// Maximum number of flows with a requested dump that the runner remembers. Beyond this number the
/// runner forgets all these flows, because it does not notice when a flow is evicted. The dumps of
/// forgotten flows end with their windows.
const WANTED_MAX: usize = 65_536;
/// Maximum size of all states, bytes.
const STATES_BYTES_MAX: usize = 1 << 30;

/// The part of a message that says what a fault in a check costs.
const NO_CHECK: &str = "this check of its flows ends";

/// Counters of a module. `begun` is the sum of `live`, `over` and `evicted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ModuleCounts {
    /// Packets that the module handled.
    pub packets: u64,
    /// Packets without a flow, which the module did not handle.
    pub unattributed: u64,
    /// Packets that the module did not handle, because the call with these packets failed, or
    /// because the module is disabled.
    pub lost: u64,
    /// Flows that began.
    #[serde(rename = "started")]
    pub begun: u64,
    /// Flows that have not ended.
    pub live: u64,
    /// Flows that ended, except evicted flows.
    pub over: u64,
    /// Flows evicted because the table, or all places for a hash, were full.
    pub evicted: u64,
    /// Packets for which the module requested a dump.
    pub wanted: u64,
    /// Calls that failed.
    pub faults: u64,
}

/// A module and its flows.
///
/// The first call that fails loses the rest of its batch, or its check; the second failure disables
/// the module.
///
/// The packets, their order, their times and [`Self::pass`] determine the flows, not the division
/// of packets into calls. There are two exceptions: the losses after a fault, and the choice of the
/// evicted flow if all places for a hash are taken. Hashes have a random secret.
#[derive(Debug)]
pub struct Runner {
    module: LuaModule,
    settings: ModuleSettings,
    attribution: Attribution,
    table: FlowTable,
    /// Scratch memory of one call.
    counted: Vec<Counted>,
    places: [FlowPlace; MANY],
    /// The latest packet time, ns. It advances with the monotonic clock while no packet arrives,
    /// and goes back after many old packets in a row. `i64::MIN` before the first packet.
    clock_ns: i64,
    /// Time of the next search for flows that timed out.
    look_ns: i64,
    /// Time of the next check.
    check_ns: i64,
    /// The check in progress.
    check: Option<FlowCheck>,
    /// Number of packets in a row that are much older than the clock.
    behind: u32,
    /// The packet clock and the monotonic clock at the first call of [`Self::pass`] since the last
    /// packet.
    quiet_since: Option<(i64, i64)>,
    counts: ModuleCounts,
    notes: Vec<String>,
    /// Flows for which the module requested a dump, if the module decides when flows end.
    wanted: HashSet<BiflowKey>,
    /// Ends of flows in `wanted`, until the caller takes these ends.
    over: Vec<ModuleFlowEnd>,
    /// Packets of the last [`Self::handle_packets`] whose flows the module shunted.
    shunted: u64,
    /// Flows that one call checks.
    checked: Vec<FlowPlace>,
    found: Vec<(usize, i64)>,
}

/// A check of all flows, which is divided into parts between packets.
#[derive(Debug, Clone, Copy)]
struct FlowCheck {
    /// Time at which the check began, ns.
    now_ns: i64,
    /// The first slot that is not yet checked.
    next: u32,
    end: u32,
    /// Number of flows that ended.
    over: u64,
}

impl Runner {
    /// A runner without flows. `config` applies where the module has no own rule for the flow of a
    /// packet or the end of a flow. The maximum number of flows is lower than in `config` if their
    /// states would take more than 1 GiB.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn new(module: LuaModule, config: &TrackerConfig) -> Self {
        let settings = module.settings();
        let flows_max = STATES_BYTES_MAX / settings.state_bytes.max(1);
        let time_outs = if settings.decides_expiry {
            TimeOuts::idle(0)
        } else {
            config.time_outs
        };
        let flows_max = config.flows_max.min(flows_max).max(1);
        Self {
            settings,
            attribution: Attribution::new(config.has_vlans, config.joins_fragments),
            table: FlowTable::new(flows_max, time_outs, Secret::random()),
            counted: Vec::with_capacity(MANY),
            places: [FlowPlace::default(); MANY],
            clock_ns: i64::MIN,
            look_ns: i64::MIN,
            check_ns: i64::MIN,
            check: None,
            behind: 0,
            quiet_since: None,
            counts: ModuleCounts::default(),
            notes: Vec::new(),
            wanted: HashSet::new(),
            over: Vec::new(),
            shunted: 0,
            checked: Vec::new(),
            found: Vec::new(),
            module,
        }
    }

    /// The name of the module in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        self.module.name()
    }

    /// The settings of the module.
    #[must_use]
    pub fn settings(&self) -> &ModuleSettings {
        &self.settings
    }

    /// Whether the module is disabled, because it failed twice.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.counts.faults > 1
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> ModuleCounts {
        let table = self.table.counters();
        ModuleCounts {
            unattributed: self.counts.unattributed + self.attribution.unattributed(),
            begun: table.begun,
            live: self.table.len() as u64,
            over: table.timed_out + table.reused + table.removed,
            evicted: table.full + table.crowded,
            ..self.counts
        }
    }

    /// Takes the lines that the module printed, and the reasons of its failures.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = self.module.take_notes();
        notes.append(&mut self.notes);
        notes
    }

    /// Takes the ends of flows with a requested dump that the module's checks found since the last
    /// call, in the order of packets. Empty if the module has no checks. Call this after
    /// each [`Self::handle_packets`], [`Self::pass`] and [`Self::finish`]. If the module requests
    /// dumps of more than 65,536 flows, the ends of some flows can be missing.
    pub fn take_ended_flows(&mut self) -> Vec<ModuleFlowEnd> {
        std::mem::take(&mut self.over)
    }

    /// The packets of the last [`Self::handle_packets`] whose flows the module shunted: bit `n` is
    /// packet `n`.
    #[must_use]
    pub fn shunted(&self) -> u64 {
        self.shunted
    }

    /// Takes the calls of `partition.join` since the last call of this function, in order.
    pub fn take_joins(&mut self) -> Vec<PairJoin> {
        self.module.take_joins()
    }

    /// Handles at most [`MANY`] packets. `times_ns` has for each packet the time that flows use,
    /// ns. `dumps` gets the requested dumps.
    ///
    /// # Panics
    /// If there are more than [`MANY`] packets, or more times than packets.
    pub fn handle_packets(
        &mut self,
        packets: &[ScriptPacket<'_>],
        times_ns: &[i64],
        dumps: &mut Vec<ModuleDumpRequest>,
    ) {
        assert!(packets.len() <= MANY && times_ns.len() <= packets.len());
        self.quiet_since = None;
        self.shunted = 0;
        let mut start = 0;
        for (at, &time_ns) in times_ns.iter().enumerate() {
            if time_ns < self.clock_ns.saturating_sub(BACK_NS) {
                self.go_back_to(time_ns);
            } else {
                self.behind = 0;
            }
            // Time-outs and checks that are due at this time happen before this packet is handled,
            // so that the division into calls does not matter.
            if self.check.is_some() || time_ns >= self.look_ns.min(self.check_ns) {
                self.handle(start..at, packets, times_ns, dumps);
                start = at;
                self.look_through(time_ns, at);
            }
            self.clock_ns = self.clock_ns.max(time_ns);
        }
        self.handle(start..times_ns.len(), packets, times_ns, dumps);
    }

    /// After [`BACK_PACKETS`] old packets in a row, the runner assumes that the latest time came
    /// from a packet of the future. From then on searches and checks use the time of the old
    /// packets.
    #[cold]
    fn go_back_to(&mut self, time_ns: i64) {
        self.behind += 1;
        if self.behind < BACK_PACKETS {
            return;
        }
        self.clock_ns = time_ns;
        self.look_ns = self.look_ns.min(time_ns.saturating_add(LOOK_NS));
        let interval_ns = self.check_interval_ns();
        self.check_ns = self.check_ns.min(time_ns.saturating_add(interval_ns));
    }

    fn check_interval_ns(&self) -> i64 {
        let interval = self.settings.check_interval;
        let ns = interval.map_or(i64::MAX, |it| {
            i64::try_from(it.as_nanos()).unwrap_or(i64::MAX)
        });
        ns.max(1)
    }

    /// Reports that no packet arrived, at `mono_ns` of a monotonic clock, so that time advances on
    /// a silent link. Call this now and then while no packet arrives.
    pub fn pass(&mut self, mono_ns: i64) {
        if self.clock_ns == i64::MIN {
            return;
        }
        let (clock_ns, since_ns) = *self.quiet_since.get_or_insert((self.clock_ns, mono_ns));
        let now_ns = clock_ns.saturating_add(mono_ns.saturating_sub(since_ns).max(0));
        self.clock_ns = self.clock_ns.max(now_ns);
        if now_ns >= self.look_ns.min(self.check_ns) {
            self.look_through(now_ns, 0);
        }
        for _ in 1..CHECKS_IDLE {
            self.check_some(0);
        }
    }

    /// Checks the flows once more at the end of the recording, if the module has checks.
    pub fn finish(&mut self) {
        while self.check.is_some() {
            self.check_some(0);
        }
        if self.clock_ns != i64::MIN {
            self.begin_check(self.clock_ns);
        }
        while self.check.is_some() {
            self.check_some(0);
        }
    }

    /// Passes a range of packets to the module.
    fn handle(
        &mut self,
        range: Range<usize>,
        packets: &[ScriptPacket<'_>],
        times_ns: &[i64],
        dumps: &mut Vec<ModuleDumpRequest>,
    ) {
        let (packets, times_ns) = (&packets[range.clone()], &times_ns[range.clone()]);
        if packets.is_empty() {
            return;
        }
        if self.is_disabled() {
            self.counts.lost += packets.len() as u64;
            return;
        }
        let found = self.find(packets, times_ns);
        let wanted = dumps.len();
        let with_flow = found.and_then(|()| {
            let places = &self.places[..packets.len()];
            self.module.handle(packets, places, dumps)?;
            Ok(places.len())
        });
        self.shunted |= self.module.take_shunted() << range.start;
        let (done, fault) = match with_flow {
            Ok(done) => (done, None),
            Err(fault) => (fault.done.min(packets.len()), Some(fault)),
        };
        let (done, lost) = self.places[..packets.len()].split_at(done);
        let with_flow = |places: &[FlowPlace]| {
            let of_flows = places.iter().filter(|it| it.slot != FlowPlace::NO_SLOT);
            of_flows.count() as u64
        };
        self.counts.packets += with_flow(done);
        if let Some(fault) = fault {
            self.counts.lost += with_flow(lost);
            // These flows have no state yet: the next packet must begin them again.
            for place in lost.iter().filter(|place| place.is_first != 0) {
                self.table.remove(place.slot);
            }
            self.note(fault, "the rest of this batch is lost to it");
        }
        self.counts.wanted += (dumps.len() - wanted) as u64;
        if !self.settings.dumps {
            dumps.truncate(wanted);
        }
        for dump in &mut dumps[wanted..] {
            if self.settings.decides_expiry {
                if self.wanted.len() >= WANTED_MAX {
                    self.wanted.clear();
                }
                self.wanted.insert(dump.key);
            }
            dump.at += range.start;
        }
    }

    /// Finds the flows of packets.
    fn find(&mut self, packets: &[ScriptPacket<'_>], times_ns: &[i64]) -> Result<(), CallFault> {
        let places = &mut self.places[..packets.len()];
        places.fill(FlowPlace::default());
        self.counted.clear();
        let mut keys = [None; MANY];
        let keys = &mut keys[..packets.len()];
        let has_keys = self.settings.has_keys;
        if has_keys && let Err(fault) = self.module.keys(packets, keys) {
            // The flows of these packets are unknown, so each packet counts as lost, as if each had
            // a flow.
            places.iter_mut().for_each(|place| place.slot = 0);
            return Err(CallFault { done: 0, ..fault });
        }
        // Indices of the packets that have a flow.
        let mut of_flows = [0_u8; MANY];
        for (at, (packet, &time_ns)) in packets.iter().zip(times_ns).enumerate() {
            let counted = if has_keys {
                let ends = |key: BiflowKey| DirectedKey {
                    key,
                    is_reverse: false,
                };
                let counted =
                    keys[at].map(|key| Counted::new(ends(key), time_ns, packet.wire_len, None));
                self.counts.unattributed += u64::from(counted.is_none());
                counted
            } else {
                let (data, link_type) = (packet.data, packet.link_type);
                self.attribution
                    .frame(link_type, data, time_ns, packet.wire_len)
            };
            let Some(counted) = counted else {
                continue;
            };
            of_flows[self.counted.len()] = u8::try_from(at).unwrap_or(0);
            self.counted.push(counted);
            places[at].key = counted.ends.key;
            places[at].is_reverse = u16::from(counted.ends.is_reverse);
        }
        let mut next = of_flows.iter();
        let counted = |slot, is_first| {
            if let Some(&at) = next.next() {
                let place = &mut places[usize::from(at)];
                (place.slot, place.is_first) = (slot, u16::from(is_first));
            }
        };
        self.table.update_each(&self.counted, counted, |_, _| {});
        Ok(())
    }

    /// Before the packet with index `at`: ends flows that have timed out by `now_ns`
    /// ([`FlowTable::expire`]), and lets the module check flows.
    #[cold]
    fn look_through(&mut self, now_ns: i64, at: usize) {
        if now_ns >= self.look_ns {
            self.table.expire(now_ns, |_, _| {});
            self.look_ns = now_ns.saturating_add(LOOK_NS);
        }
        if now_ns >= self.check_ns && self.check.is_none() {
            // The first check is due one interval after the first packet.
            let is_first = self.check_ns == i64::MIN;
            self.check_ns = now_ns.saturating_add(self.check_interval_ns());
            if !is_first {
                self.begin_check(now_ns);
            }
        }
        self.check_some(at);
    }

    /// Begins a check of all current flows, if the module has checks and is not disabled.
    fn begin_check(&mut self, now_ns: i64) {
        if self.settings.check_interval.is_none() || self.is_disabled() {
            return;
        }
        match self.module.check_begins(now_ns) {
            Ok(()) => {
                self.check = Some(FlowCheck {
                    now_ns,
                    next: 0,
                    end: self.table.slots(),
                    over: 0,
                });
            }
            Err(fault) => self.note(fault, NO_CHECK),
        }
    }

    /// Continues the check in progress, if there is one, before the packet with index `at`.
    fn check_some(&mut self, at: usize) {
        let Some(check) = self.check.take().filter(|_| !self.is_disabled()) else {
            return;
        };
        match self.check_from(check, at) {
            Ok(check) => self.check = check,
            Err(fault) => self.note(fault, NO_CHECK),
        }
    }

    /// Lets the module check the next flows. `None` after the last flows.
    fn check_from(
        &mut self,
        mut check: FlowCheck,
        at: usize,
    ) -> Result<Option<FlowCheck>, CallFault> {
        self.checked.clear();
        while check.next < check.end && self.checked.len() < CHECKED {
            if let Some(flow) = self.table.flow(check.next) {
                self.checked.push(FlowPlace {
                    key: *flow.key(),
                    slot: check.next,
                    ..FlowPlace::default()
                });
            }
            check.next += 1;
        }
        self.found.clear();
        self.module.check(&self.checked, &mut self.found)?;
        check.over += self.found.len() as u64;
        for &(flow, until_ns) in &self.found {
            let FlowPlace { key, slot, .. } = self.checked[flow];
            self.table.remove(slot);
            if self.wanted.remove(&key) {
                self.over.push(ModuleFlowEnd {
                    at,
                    key,
                    now_ns: check.now_ns,
                    until_ns: until_ns.max(check.now_ns),
                });
            }
        }
        if check.next < check.end {
            return Ok(Some(check));
        }
        let kept = self.table.len() as u64;
        self.module.check_ends(kept, check.over)?;
        Ok(None)
    }

    /// Records a failed call and its consequences.
    #[cold]
    fn note(&mut self, fault: CallFault, lost: &str) {
        self.counts.faults += 1;
        let so = if self.is_disabled() {
            "; it failed before, and is disabled"
        } else {
            "; when it fails again, it is disabled"
        };
        self.notes.push(format!("{}; {lost}{so}", fault.message));
    }
}

#[cfg(test)]
mod tests;
