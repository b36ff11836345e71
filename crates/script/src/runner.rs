//! Who finds the flows of packets, calls a module, and keeps it from doing harm.

use std::{collections::HashSet, ops::Range};

use retroscope_flow::{
    Attribution, Ends, FlowTable, Key, Packet as Counted, Secret, TimeOuts, TrackerConfig,
};
use serde::Serialize;

use crate::{
    LuaModule,
    plan::{CHECKED, Dump, Fault, MANY, Over, Packet, Place, Plan},
};

/// A packet that is farther behind the latest one shows that this is from the future, ns.
const BACK_NS: i64 = 60_000_000_000;
/// So many in a row show it: two clocks by turns do not.
const BACK_PACKETS: u32 = 64;
/// Calls of a check together where no packets come; between two packets there is one.
const CHECKS_IDLE: usize = 4;
/// Between two looks for flows that are over, ns of packet time.
const LOOK_NS: i64 = 1_000_000_000;
/// Flows that are known to be wanted at most: beyond, all are forgotten, as those that were given up for others have to be. Their dumps end by
/// their windows.
const WANTED_MAX: usize = 65_536;
/// Bytes of all states at most.
const STATES_BYTES_MAX: usize = 1 << 30;

/// What a fault in a check costs.
const NO_CHECK: &str = "this check of its flows ends";

/// What a module did, and what was done to it. `begun` is the sum of `live`, `over` and `evicted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ModuleCounts {
    /// Packets that it handled.
    pub packets: u64,
    /// Packets without a flow: it was not asked about them.
    pub unattributed: u64,
    /// Packets that it did not handle, because it failed with their batch, or is disabled.
    pub lost: u64,
    /// Flows that began.
    #[serde(rename = "started")]
    pub begun: u64,
    /// Flows that go on.
    pub live: u64,
    /// Flows that ended.
    pub over: u64,
    /// Flows given up for others: there were as many as there may be.
    pub evicted: u64,
    /// Packets for which it asked for a dump.
    pub wanted: u64,
    /// Calls that failed.
    pub faults: u64,
}

/// The flows of a module, and the module.
///
/// The first call that fails loses its batch, or its check; the second one disables the module. Which flows there are follows from the packets,
/// their order and their times, not from how they are divided among calls; but for what is lost with a fault, and, where all places of a flow's
/// hash are taken, which flow is given up: hashes have a random secret.
#[derive(Debug)]
pub struct Runner {
    module: LuaModule,
    plan: Plan,
    attribution: Attribution,
    table: FlowTable,
    /// For one call.
    counted: Vec<Counted>,
    places: [Place; MANY],
    /// The latest time seen; `i64::MIN`: none yet.
    clock_ns: i64,
    /// When flows that are over are looked for next.
    look_ns: i64,
    /// When they are checked next.
    check_ns: i64,
    /// The check under way.
    check: Option<Check>,
    /// Packets in a row that are far behind the clock.
    behind: u32,
    /// The clock and the monotonic clock at the first call of [`Self::pass`] since the last packet.
    quiet_since: Option<(i64, i64)>,
    counts: ModuleCounts,
    notes: Vec<String>,
    /// Flows that it wanted dumped, where it says when they are over.
    wanted: HashSet<Key>,
    /// Those that are over.
    over: Vec<Over>,
    /// The packets of the last look whose flows it shunted.
    shunted: u64,
    /// Flows that are checked together, and which of them are over.
    checked: Vec<Place>,
    found: Vec<(usize, i64)>,
}

/// A check of all flows, some between two packets.
#[derive(Debug, Clone, Copy)]
struct Check {
    /// When it began, ns.
    now_ns: i64,
    /// Slots that are still to be checked.
    next: u32,
    end: u32,
    /// Flows that were over.
    over: u64,
}

impl Runner {
    /// Without flows. They are told apart, and end, as `config` says where the module does not; there are fewer than that allows where their states
    /// would take more than 1 GiB.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn new(module: LuaModule, config: &TrackerConfig) -> Self {
        let plan = module.plan();
        let flows_max = STATES_BYTES_MAX / plan.state_bytes.max(1);
        let time_outs = if plan.decides_expiry {
            TimeOuts::idle(0)
        } else {
            config.time_outs
        };
        let flows_max = config.flows_max.min(flows_max).max(1);
        Self {
            plan,
            attribution: Attribution::new(config.has_vlans, config.joins_fragments),
            table: FlowTable::new(flows_max, time_outs, Secret::random()),
            counted: Vec::with_capacity(MANY),
            places: [Place::default(); MANY],
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

    /// What messages call the module.
    #[must_use]
    pub fn name(&self) -> &str {
        self.module.name()
    }

    /// What the module asks for.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether it failed too often.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.counts.faults > 1
    }

    /// What it did so far.
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

    /// What the module has to say, and why it failed, lines.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = self.module.take_notes();
        notes.append(&mut self.notes);
        notes
    }

    /// Flows that the module wanted dumped and that were found to be over by the last call of [`Self::look`] or [`Self::pass`], in the order of
    /// packets. They are told once. Of more than 65,536 that are dumped some are not.
    pub fn take_over(&mut self) -> Vec<Over> {
        std::mem::take(&mut self.over)
    }

    /// The packets of the last call of [`Self::look`] whose flows the module shunted: bit `n` is that of packet `n`.
    #[must_use]
    pub fn shunted(&self) -> u64 {
        self.shunted
    }

    /// Looks at packets, at most [`MANY`], with the times that flows go by, ns. `dumps` gets what is wanted.
    ///
    /// # Panics
    /// If there are more packets.
    pub fn look(&mut self, packets: &[Packet<'_>], times_ns: &[i64], dumps: &mut Vec<Dump>) {
        assert!(packets.len() <= MANY, "{} packets", packets.len());
        self.quiet_since = None;
        self.shunted = 0;
        let mut start = 0;
        for (at, &time_ns) in times_ns.iter().enumerate() {
            if time_ns < self.clock_ns.saturating_sub(BACK_NS) {
                self.go_back_to(time_ns);
            } else {
                self.behind = 0;
            }
            // Flows are looked through between the packets before that time and those behind it, wherever calls begin and end.
            if self.check.is_some() || time_ns >= self.look_ns.min(self.check_ns) {
                self.handle(start..at, packets, times_ns, dumps);
                start = at;
                self.look_through(time_ns, at);
            }
            self.clock_ns = self.clock_ns.max(time_ns);
        }
        self.handle(start..times_ns.len(), packets, times_ns, dumps);
    }

    /// Of many such packets: the latest times were those of packets from the future, and looks and checks go by these again.
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
        let interval = self.plan.check_interval;
        let ns = interval.map_or(i64::MAX, |it| {
            i64::try_from(it.as_nanos()).unwrap_or(i64::MAX)
        });
        ns.max(1)
    }

    /// No packet has come for now, at `mono_ns` of a monotonic clock: time goes on by it too. To be called now and then while none comes.
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

    /// The end: flows are checked once more.
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

    /// Hands packets at a range to the module.
    fn handle(
        &mut self,
        range: Range<usize>,
        packets: &[Packet<'_>],
        times_ns: &[i64],
        dumps: &mut Vec<Dump>,
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
        let with_flow = |places: &[Place]| {
            let of_flows = places.iter().filter(|it| it.slot != Place::NO_SLOT);
            of_flows.count() as u64
        };
        self.counts.packets += with_flow(done);
        if let Some(fault) = fault {
            self.counts.lost += with_flow(lost);
            // Nothing has begun their states: the next packet begins the flow.
            for place in lost.iter().filter(|place| place.is_first != 0) {
                self.table.remove(place.slot);
            }
            self.note(fault, "the rest of this batch is lost to it");
        }
        self.counts.wanted += (dumps.len() - wanted) as u64;
        if !self.plan.dumps {
            dumps.truncate(wanted);
        }
        for dump in &mut dumps[wanted..] {
            if self.plan.decides_expiry {
                if self.wanted.len() >= WANTED_MAX {
                    self.wanted.clear();
                }
                self.wanted.insert(dump.key);
            }
            dump.at += range.start;
        }
    }

    /// Finds the flows of packets.
    fn find(&mut self, packets: &[Packet<'_>], times_ns: &[i64]) -> Result<(), Fault> {
        let places = &mut self.places[..packets.len()];
        places.fill(Place::default());
        self.counted.clear();
        let mut keys = [None; MANY];
        let keys = &mut keys[..packets.len()];
        let has_keys = self.plan.has_keys;
        if has_keys && let Err(fault) = self.module.keys(packets, keys) {
            // Whose flows these are nobody knows: as lost as if each had one.
            places.iter_mut().for_each(|place| place.slot = 0);
            return Err(Fault { done: 0, ..fault });
        }
        // Packets of flows, by their places.
        let mut of_flows = [0_u8; MANY];
        for (at, (packet, &time_ns)) in packets.iter().zip(times_ns).enumerate() {
            let counted = if has_keys {
                let ends = |key: Key| Ends {
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

    /// Ends flows that are over at a time, before the packet of a number, and has the module check them.
    #[cold]
    fn look_through(&mut self, now_ns: i64, at: usize) {
        if now_ns >= self.look_ns {
            self.table.expire(now_ns, |_, _| {});
            self.look_ns = now_ns.saturating_add(LOOK_NS);
        }
        if now_ns >= self.check_ns && self.check.is_none() {
            // The first one comes when there may be flows.
            let is_first = self.check_ns == i64::MIN;
            self.check_ns = now_ns.saturating_add(self.check_interval_ns());
            if !is_first {
                self.begin_check(now_ns);
            }
        }
        self.check_some(at);
    }

    /// Begins to have the module check all flows there are now, if it does so.
    fn begin_check(&mut self, now_ns: i64) {
        if self.plan.check_interval.is_none() || self.is_disabled() {
            return;
        }
        match self.module.check_begins(now_ns) {
            Ok(()) => {
                self.check = Some(Check {
                    now_ns,
                    next: 0,
                    end: self.table.slots(),
                    over: 0,
                });
            }
            Err(fault) => self.note(fault, NO_CHECK),
        }
    }

    /// Goes on with the check, if there is one, before the packet of a number.
    fn check_some(&mut self, at: usize) {
        let Some(check) = self.check.take().filter(|_| !self.is_disabled()) else {
            return;
        };
        match self.check_from(check, at) {
            Ok(check) => self.check = check,
            Err(fault) => self.note(fault, NO_CHECK),
        }
    }

    /// Has the module check the next flows. `None`: these were the last.
    fn check_from(&mut self, mut check: Check, at: usize) -> Result<Option<Check>, Fault> {
        self.checked.clear();
        while check.next < check.end && self.checked.len() < CHECKED {
            if let Some(flow) = self.table.flow(check.next) {
                self.checked.push(Place {
                    key: *flow.key(),
                    slot: check.next,
                    ..Place::default()
                });
            }
            check.next += 1;
        }
        self.found.clear();
        self.module.check(&self.checked, &mut self.found)?;
        check.over += self.found.len() as u64;
        for &(flow, until_ns) in &self.found {
            let Place { key, slot, .. } = self.checked[flow];
            self.table.remove(slot);
            if self.wanted.remove(&key) {
                self.over.push(Over {
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

    /// Notes that a call failed, and what comes of it.
    #[cold]
    fn note(&mut self, fault: Fault, lost: &str) {
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
