//! The memory that Lua and Rust share during one call: the packets of a batch, and which of their
//! facts the script uses.
//!
//! Rust parses headers before the script runs, so that the script's loop need not call a parser for
//! each packet. Rust fills in only the groups of facts ([`PacketFacts`]) that the script's
//! accessors need. `prelude.lua` finds the names of accessors in the script's text. An accessor
//! whose name the text does not contain (`pkt["src" .. "_port"]`) requests its facts when it is
//! called.

use std::{cell::Cell, ptr};

use crate::{
    module_types::{MANY, ScriptPacket},
    slot::{PacketFacts, PacketSlot},
};

/// Memory that Lua and Rust share: see the module documentation. `prelude.lua` declares the same
/// fields at the same offsets; a test compares the size and some offsets.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PacketSheet {
    /// Address of the current packets. Valid only during a call into Lua.
    pub(crate) packets: Cell<usize>,
    /// Number of current packets, and of valid slots.
    pub(crate) count: Cell<i32>,
    /// Index of the packet that Lua is handling.
    pub(crate) number: Cell<i32>,
    /// The facts that Rust fills into slots. `prelude.lua` sets this field before the script is
    /// loaded, and [`Self::want`] adds facts.
    facts: Cell<PacketFacts>,
    /// 1 if the script's text contains the word `shunt`; only then `pkt:shunt()` works.
    /// `prelude.lua` sets this field before the script is loaded.
    shunts: Cell<u32>,
    /// 1 for each packet whose flow the script shunted.
    shunted: [Cell<u8>; MANY],
    pub(crate) slots: [Cell<PacketSlot>; MANY],
}

impl PacketSheet {
    #[cfg(test)]
    pub(crate) const SHUNTED_AT: usize = std::mem::offset_of!(Self, shunted);

    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            packets: Cell::new(0),
            count: Cell::new(0),
            number: Cell::new(0),
            facts: Cell::new(PacketFacts(0)),
            shunts: Cell::new(0),
            shunted: [const { Cell::new(0) }; MANY],
            slots: [const { Cell::new(PacketSlot::EMPTY) }; MANY],
        })
    }

    /// Describes the packets of a batch, with the facts that the script uses.
    ///
    /// # Panics
    /// If there are more than [`MANY`] packets.
    pub(crate) fn show(&mut self, packets: &[ScriptPacket<'_>]) {
        assert!(
            packets.len() <= MANY,
            "{} packets for one call",
            packets.len()
        );
        self.packets.set(packets.as_ptr().expose_provenance());
        self.count
            .set(i32::try_from(packets.len()).unwrap_or(i32::MAX));
        self.number.set(0);
        let facts = self.facts.get();
        for (slot, packet) in self.slots.iter_mut().zip(packets) {
            slot.get_mut().fill(packet, facts);
        }
        // Lua has the address of the sheet, and reads the fields that were just written.
        let _ = ptr::from_ref(self).expose_provenance();
    }

    /// Describes a packet with all facts, because its slot will be copied.
    pub(crate) fn show_all(&mut self, packet: &ScriptPacket<'_>) {
        let asked = self.facts.replace(PacketFacts::ALL);
        self.show(std::slice::from_ref(packet));
        self.facts.set(asked);
    }

    /// Removes the packets. From here on our own code does not read their bytes.
    pub(crate) fn clear(&self) {
        self.packets.set(0);
        self.count.set(0);
    }

    /// Whether the script may shunt flows.
    pub(crate) fn shunts(&self) -> bool {
        self.shunts.get() != 0
    }

    /// The packets whose flows the script shunted since the last call, by their index in the batch:
    /// bit `n` is packet `n`.
    pub(crate) fn take_shunted(&self) -> u64 {
        if !self.shunts() {
            return 0;
        }
        let marks = self.shunted.iter().enumerate();
        marks.fold(0, |all, (at, mark)| all | u64::from(mark.take() != 0) << at)
    }

    /// Adds facts from now on, also for the current packets, which are `packets`.
    pub(crate) fn want(&self, facts: PacketFacts, packets: &[ScriptPacket<'_>]) {
        let facts = PacketFacts(self.facts.get().0 | facts.0);
        self.facts.set(facts);
        for (cell, packet) in self.slots.iter().zip(packets) {
            let mut slot = cell.get();
            slot.fill(packet, facts);
            cell.set(slot);
        }
    }
}
