//! Trigger scripts and modules over flows, and the packets of a chunk that they match.
//!
//! A script may keep state, so each is asked about the packets in order, and about a packet at most
//! once. The answers for a chunk are bits, one for each packet.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use retroscope_flow::BiflowKey;
use retroscope_packet::LinkType;
use retroscope_ring::Packet;
use retroscope_script::{
    LuaModule, MANY, Machine, ModuleCounts, ModuleDumpRequest, ModuleFlowEnd as FlowOver,
    Partition, Runner, Script, ScriptError, ScriptLimits, ScriptPacket,
};
use serde::Serialize;

use crate::{
    analysis::shard::{FlowEnded, NumberedPacket},
    control::{AtomicCounters, common::RecorderShared, lock, ring_time::StampRestorer},
    intake::{inserter::shards::ShardHash, interfaces::InterfaceCache},
    start::config::Scripts,
};

const _: () = assert!(MANY == crate::analysis::chunk::MANY);

/// The trigger scripts and modules of one shard.
#[derive(Debug, Default)]
pub(crate) struct TriggerScripts {
    scripts: Vec<TriggerScript>,
    /// Modules; their rule numbers follow those of the scripts.
    modules: Vec<Module>,
    shunted: u64,
    /// Assigns pairs of addresses to shards. `None`: the packets are not divided by pairs.
    pub(crate) shard_hash: Option<ShardHash>,
    /// Whether a script or module may join pairs.
    joins: bool,
    /// Messages about joined pairs.
    join_notices: Vec<String>,
}

#[derive(Debug)]
struct TriggerScript {
    trigger: Machine,
    /// Packets of the chunk that the script matches: bit `n` is for packet `n`.
    found: u64,
    news: FailureNotice,
}

impl TriggerScripts {
    /// Runs each file once.
    pub(crate) fn new(
        scripts: &Scripts,
        limits: ScriptLimits,
        common: &RecorderShared,
    ) -> Result<Self, ScriptError> {
        let script = |script| {
            Ok(TriggerScript {
                trigger: Machine::new(script, limits)?,
                found: 0,
                news: FailureNotice::of("triggers"),
            })
        };
        let triggers = scripts.triggers.iter().map(script);
        let triggers = triggers.collect::<Result<_, ScriptError>>()?;
        let module = |(number, script): (usize, &Script)| {
            let runner = Runner::new(LuaModule::new(script, limits)?, &scripts.module_flows);
            Ok(Module::new(runner, number, common))
        };
        let modules = scripts.modules.iter().enumerate().map(module);
        Ok(Self {
            scripts: triggers,
            modules: modules.collect::<Result<_, ScriptError>>()?,
            shunted: 0,
            shard_hash: None,
            joins: scripts.joins(),
            join_notices: Vec::new(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.scripts.len() + self.modules.len()
    }

    /// Whether there are modules, which see packets even if no hits are wanted.
    pub(crate) fn has_modules(&self) -> bool {
        !self.modules.is_empty()
    }

    /// Whether a script or module may shunt flows.
    pub(crate) fn shunts(&self) -> bool {
        let mut modules = self.modules.iter();
        self.scripts.iter().any(|script| script.trigger.shunts())
            || modules.any(|module| module.runner.settings().shunts)
    }

    /// Packets of the chunk whose flows a script or module shunts: bit `n` is for packet `n`.
    pub(crate) fn shunted(&self) -> u64 {
        self.shunted
    }

    /// The coarsest partition of packets that any script or module needs to see in one state.
    /// `None`: no scripts or modules.
    pub(crate) fn partition(&self) -> Option<Partition> {
        let partitions = self.scripts.iter().map(|script| script.trigger.partition());
        let modules = self.modules.iter();
        let modules = modules.map(|module| module.runner.settings().partition);
        partitions.chain(modules).min()
    }

    /// The name of each script and module for messages, in the order of rule numbers; for a module
    /// also the maximum number of its open dumps.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, Option<u64>)> {
        let scripts = self.scripts.iter();
        let scripts = scripts.map(|script| (script.trigger.name(), None));
        scripts.chain(self.modules.iter().map(|module| {
            let most = module.runner.settings().dumps_max as u64;
            (module.runner.name(), Some(most))
        }))
    }

    /// Live: lets time pass in the modules without packets. `mono_ns`: the monotonic clock.
    pub(crate) fn pass_time(&mut self, mono_ns: i64) {
        for module in &mut self.modules {
            module.runner.pass(mono_ns);
            module.counters.set(&module.runner);
        }
    }

    /// No more packets will arrive.
    pub(crate) fn finish(&mut self) {
        for module in &mut self.modules {
            module.runner.finish();
            module.counters.set(&module.runner);
        }
    }

    /// Asks scripts and modules about at most [`MANY`] packets of one producer; if no hits are
    /// wanted, only modules.
    pub(crate) fn ask<'p>(
        &mut self,
        producer: usize,
        packets: impl Iterator<Item = NumberedPacket<'p>>,
        names: &mut InterfaceCache,
        stamps: &mut StampRestorer,
        are_wanted: bool,
    ) {
        let mut chunk = [NO_PACKET; MANY];
        let mut times_ns = [0; MANY];
        let mut count = 0;
        let slots = chunk.iter_mut().zip(&mut times_ns);
        for ((slot, time_ns), (record, packet)) in slots.zip(packets) {
            let interface = names.interface(packet.interface);
            let link_type = interface.map_or(NO_PACKET.link_type, |interface| interface.link_type);
            let source = interface.map_or(0, |interface| interface.source);
            let offset_ns = stamps.offset_ns(producer, source, record);
            *slot = shown(&packet, packet.time_ns.wrapping_add(offset_ns), link_type);
            *time_ns = packet.time_ns;
            count += 1;
        }
        self.shunted = 0;
        for script in &mut self.scripts {
            script.found = if are_wanted {
                script.trigger.match_many(&chunk[..count])
            } else {
                0
            };
            self.shunted |= script.trigger.take_shunted();
        }
        // Modules store times, so they get ring time, not stamps.
        for (slot, time_ns) in chunk.iter_mut().zip(times_ns) {
            slot.time_ns = time_ns;
        }
        for module in &mut self.modules {
            module.look(&chunk[..count], &times_ns[..count]);
            self.shunted |= module.runner.shunted();
        }
        if self.joins {
            self.join_pairs();
        }
    }

    /// Joins the pairs of addresses that scripts and modules asked for.
    fn join_pairs(&mut self) {
        let scripts = self.scripts.iter_mut();
        let scripts = scripts.flat_map(|script| script.trigger.take_joins());
        let modules = self.modules.iter_mut();
        let modules = modules.flat_map(|module| module.runner.take_joins());
        for join in scripts.chain(modules) {
            let forgotten = self.shard_hash.as_ref().and_then(|it| it.join(&join));
            // Few messages, however many joins.
            if let Some(forgotten) = forgotten.filter(|count| count.is_power_of_two()) {
                self.join_notices.push(format!(
                    "partition.join: no room for so many pairs of addresses; forgotten until now: {forgotten}, the oldest"
                ));
            }
        }
    }

    /// Takes the ended flows for which modules requested dumps, if they ended before the packet at
    /// index `until` of the chunk. `first`: the rule number of the first script.
    pub(crate) fn take_ended_flows(&mut self, until: usize, first: usize) -> Vec<FlowEnded> {
        let first = first + self.scripts.len();
        let modules = self.modules.iter_mut().enumerate();
        let over =
            modules.flat_map(|(number, module)| module.take_ended_flows(until, first + number));
        over.collect()
    }

    /// For a module's hit on the packet at `place` of the chunk: its dump expression, if any, and
    /// the flow, if the module reports its end.
    pub(crate) fn wanted(
        &self,
        script: usize,
        place: usize,
    ) -> (Option<String>, Option<BiflowKey>) {
        let module = script.checked_sub(self.scripts.len());
        let Some(module) = module.and_then(|module| self.modules.get(module)) else {
            return (None, None);
        };
        let dump = module.dumps.iter().find(|dump| dump.at == place);
        let flow = dump.filter(|_| module.runner.settings().decides_expiry);
        let filter = dump.and_then(|dump| dump.filter.clone());
        (filter, flow.map(|dump| dump.key))
    }

    /// The packets at `run` of the chunk that a script or module matches, or before which a flow
    /// ended: bit `n` is for packet `n` of the run.
    pub(crate) fn found(&self, run: &Range<usize>) -> u64 {
        let scripts = self.scripts.iter().map(|script| script.found);
        let modules = self
            .modules
            .iter()
            .map(|module| module.found | module.over_at());
        let found = scripts.chain(modules).fold(0, |found, its| found | its);
        let of_run = u64::MAX.checked_shr(u32::try_from(MANY - run.len()).unwrap_or(0));
        found
            .checked_shr(u32::try_from(run.start).unwrap_or(0))
            .unwrap_or(0)
            & of_run.unwrap_or(0)
    }

    /// Whether a script or module matches the packet at `place` of the chunk.
    pub(crate) fn takes(&self, script: usize, place: usize) -> bool {
        let found = match self.scripts.get(script) {
            Some(script) => script.found,
            None => {
                let module = self.modules.get(script - self.scripts.len());
                module.map_or(0, |module| module.found)
            }
        };
        place < MANY && found >> place & 1 == 1
    }

    /// Takes the output of scripts and modules, and messages about joined pairs and failures.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let take = |script: &mut TriggerScript| script.news.take(&mut script.trigger);
        let scripts = self.scripts.iter_mut().flat_map(take);
        let modules = self.modules.iter_mut().flat_map(Module::take_notices);
        let joins = self.join_notices.drain(..);
        scripts.chain(modules).chain(joins).collect()
    }

    /// Number of disabled scripts and modules.
    pub(crate) fn failed(&self) -> u64 {
        let failed = self
            .scripts
            .iter()
            .filter(|script| script.trigger.fault.is_some());
        let modules = self.modules.iter();
        let disabled = modules.filter(|module| module.runner.is_disabled());
        (failed.count() + disabled.count()) as u64
    }
}

/// A module, and its results for a chunk.
#[derive(Debug)]
struct Module {
    runner: Runner,
    dumps: Vec<ModuleDumpRequest>,
    /// Packets of the chunk for which the module requests a dump: bit `n` is for packet `n`.
    found: u64,
    /// Flows that ended and are not reported yet.
    over: VecDeque<FlowOver>,
    counters: Arc<ModuleCounters>,
}

impl Module {
    fn new(runner: Runner, number: usize, common: &RecorderShared) -> Self {
        let counters = Arc::<ModuleCounters>::default();
        let name = runner.name().to_owned();
        lock(&common.modules).push((number, name, Arc::clone(&counters)));
        Self {
            runner,
            dumps: Vec::new(),
            found: 0,
            over: VecDeque::new(),
            counters,
        }
    }

    fn take_ended_flows(&mut self, until: usize, rule: usize) -> Vec<FlowEnded> {
        self.over.extend(self.runner.take_ended_flows());
        let mut over = Vec::new();
        while let Some(flow) = self.over.pop_front_if(|flow| flow.at <= until) {
            over.push(FlowEnded {
                rule,
                flow: flow.key,
                now_ns: flow.now_ns,
                until_ns: flow.until_ns,
            });
        }
        over
    }

    /// Packets of the chunk before which a flow ended: bit `n` is for packet `n`.
    fn over_at(&self) -> u64 {
        let places = self.over.iter().map(|over| over.at);
        let bits = places.filter(|at| *at < MANY).map(|at| 1 << at);
        bits.fold(0, |all, bit: u64| all | bit)
    }

    fn look(&mut self, packets: &[ScriptPacket<'_>], times_ns: &[i64]) {
        self.dumps.clear();
        self.runner
            .handle_packets(packets, times_ns, &mut self.dumps);
        self.over.extend(self.runner.take_ended_flows());
        let bits = self.dumps.iter().map(|dump| 1 << dump.at);
        self.found = bits.fold(0, |found, bit: u64| found | bit);
        self.counters.set(&self.runner);
    }

    fn take_notices(&mut self) -> Vec<String> {
        let notes = self.runner.take_notes().into_iter();
        let name = self.runner.name();
        // A fault message already begins with the name.
        let named = |note: String| match note.starts_with(name) {
            true => note,
            false => format!("{name}: {note}"),
        };
        notes.map(named).collect()
    }
}

/// Counters of a module in one shard.
#[derive(Debug, Default)]
pub(crate) struct ModuleCounters(AtomicCounters<10>);

impl ModuleCounters {
    fn set(&self, runner: &Runner) {
        let counts = runner.counts();
        self.0.store([
            counts.packets,
            counts.unattributed,
            counts.lost,
            counts.begun,
            counts.live,
            counts.over,
            counts.evicted,
            counts.wanted,
            counts.faults,
            u64::from(runner.is_disabled()),
        ]);
    }

    /// Adds the counters to the sum over the shards.
    pub(crate) fn add_to(&self, sum: &mut ModuleStatus) {
        let counts = &mut sum.counts;
        self.0.add_to([
            &mut counts.packets,
            &mut counts.unattributed,
            &mut counts.lost,
            &mut counts.begun,
            &mut counts.live,
            &mut counts.over,
            &mut counts.evicted,
            &mut counts.wanted,
            &mut counts.faults,
            &mut sum.disabled,
        ]);
    }
}

/// A module, and its counts over all shards.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModuleStatus {
    /// Name of the module in messages.
    pub name: String,
    /// Counts of the module.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub counts: ModuleCounts,
    /// Shards in which the module failed too often and is disabled.
    pub disabled: u64,
}

/// Collects a script's output and reports its failure once.
#[derive(Debug)]
pub(crate) struct FailureNotice {
    /// The verb for the message when the script is disabled, for example "triggers".
    does: &'static str,
    /// Whether the failure has been reported.
    told: bool,
}

impl FailureNotice {
    pub(crate) fn of(does: &'static str) -> Self {
        Self { does, told: false }
    }

    /// Takes the script's output, and once the reason why it is disabled.
    pub(crate) fn take(&mut self, script: &mut Machine) -> Vec<String> {
        let notes = script.take_notes().into_iter();
        let mut news: Vec<_> = notes
            .map(|note| format!("{}: {note}", script.name()))
            .collect();
        if let Some(fault) = script.fault.as_ref().filter(|_| !self.told) {
            news.push(format!("{fault}; this script {} no more", self.does));
            self.told = true;
        }
        news
    }
}

const NO_PACKET: ScriptPacket<'static> = ScriptPacket {
    data: &[],
    wire_len: 0,
    time_ns: 0,
    interface: 0,
    link_type: LinkType(u16::MAX),
    direction: 0,
};

/// A packet as scripts see it, with its stamp.
pub(crate) fn shown<'p>(
    packet: &Packet<'p>,
    stamp_ns: i64,
    link_type: LinkType,
) -> ScriptPacket<'p> {
    ScriptPacket {
        data: packet.data,
        wire_len: packet.wire_len,
        time_ns: stamp_ns,
        interface: packet.interface,
        link_type,
        direction: packet.direction,
    }
}
