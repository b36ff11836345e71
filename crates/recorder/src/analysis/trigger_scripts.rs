//! Trigger scripts: which packets of a chunk they take.
//!
//! A script may remember what it saw, so it is asked about every packet once, in order, before anything else happens to
//! the chunk; what it found is looked up afterwards. What it finds depends on the packets and their order alone, not on where
//! chunks end.

use std::ops::Range;

use retroscope_packet::LinkType;
use retroscope_ring::Packet;
use retroscope_script::{
    Limits, MANY, Machine, Packet as ScriptPacket, Partition, Script, ScriptError,
};

use crate::{
    analysis::shard::Numbered, control::ring_time::Stamps, intake::interfaces::InterfaceCache,
};

const _: () = assert!(MANY == crate::analysis::chunk::MANY);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct TriggerScripts {
    scripts: Vec<TriggerScript>,
}

#[derive(Debug)]
struct TriggerScript {
    trigger: Machine,
    /// The packets of the chunk that it takes.
    found: u64,
    news: News,
}

impl TriggerScripts {
    /// Runs the files once.
    pub(crate) fn new(scripts: &[Script], limits: Limits) -> Result<Self, ScriptError> {
        let new = |script| {
            Ok(TriggerScript {
                trigger: Machine::new(script, limits)?,
                found: 0,
                news: News::of("triggers"),
            })
        };
        let scripts = scripts
            .iter()
            .map(new)
            .collect::<Result<_, ScriptError>>()?;
        Ok(Self { scripts })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.scripts.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.scripts.len()
    }

    /// The least that one of them wants to see in one state.
    pub(crate) fn partition(&self) -> Option<Partition> {
        let partitions = self.scripts.iter().map(|script| script.trigger.partition());
        partitions.min()
    }

    /// What messages call a script.
    pub(crate) fn name(&self, script: usize) -> Option<&str> {
        self.scripts.get(script).map(|script| script.trigger.name())
    }

    /// Asks all scripts about the packets of a chunk, at most [`MANY`], of a producer.
    pub(crate) fn ask<'p>(
        &mut self,
        producer: usize,
        packets: impl Iterator<Item = Numbered<'p>>,
        names: &mut InterfaceCache,
        stamps: &mut Stamps,
    ) {
        let mut chunk = [NO_PACKET; MANY];
        let mut count = 0;
        for (slot, (record, packet)) in chunk.iter_mut().zip(packets) {
            // A packet of an interface that no inserter registered triggers nothing, whatever a script answers.
            let interface = names.interface(packet.interface);
            let link_type = interface.map_or(NO_PACKET.link_type, |interface| interface.link_type);
            let source = interface.map_or(0, |interface| interface.source);
            let offset_ns = stamps.offset_ns(producer, source, record);
            *slot = shown(&packet, packet.time_ns.wrapping_add(offset_ns), link_type);
            count += 1;
        }
        for script in &mut self.scripts {
            script.found = script.trigger.match_many(&chunk[..count]);
        }
    }

    /// Nothing is wanted of the chunk.
    pub(crate) fn pass(&mut self) {
        self.scripts.iter_mut().for_each(|script| script.found = 0);
    }

    /// Which of the packets at `run` of the chunk some script takes: bit `n` is that of the `n`th of them.
    pub(crate) fn found(&self, run: &Range<usize>) -> u64 {
        let found = self
            .scripts
            .iter()
            .fold(0, |found, script| found | script.found);
        let of_run = u64::MAX.checked_shr(u32::try_from(MANY - run.len()).unwrap_or(0));
        found
            .checked_shr(u32::try_from(run.start).unwrap_or(0))
            .unwrap_or(0)
            & of_run.unwrap_or(0)
    }

    /// Whether a script takes the packet at `place` of the chunk.
    pub(crate) fn takes(&self, script: usize, place: usize) -> bool {
        let found = self.scripts.get(script).map_or(0, |script| script.found);
        place < MANY && found >> place & 1 == 1
    }

    /// What scripts printed, and, once each, why they are disabled.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let take = |script: &mut TriggerScript| script.news.take(&mut script.trigger);
        self.scripts.iter_mut().flat_map(take).collect()
    }

    /// Scripts that are disabled.
    pub(crate) fn failed(&self) -> u64 {
        let failed = self
            .scripts
            .iter()
            .filter(|script| script.trigger.fault.is_some());
        failed.count() as u64
    }
}

/// What a script has to say to the user.
#[derive(Debug)]
pub(crate) struct News {
    /// What it does no more when it is disabled.
    does: &'static str,
    /// Whether its failure was told.
    told: bool,
}

impl News {
    pub(crate) fn of(does: &'static str) -> Self {
        Self { does, told: false }
    }

    /// What the script printed, and, once, why it is disabled.
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

/// A packet as scripts see it: with its stamp.
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
