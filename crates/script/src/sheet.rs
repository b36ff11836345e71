//! What Lua and Rust share for one call: the packets of a batch, and what of them the script asks about.
//!
//! Headers are read before the script runs, so that its loop has nothing to wait for; what no accessor in it tells is not
//! read. `prelude.lua` knows which accessors the script's text names. One whose name the text does not show
//! (`pkt["src" .. "_port"]`) asks here when it is called.

use std::{cell::Cell, ptr};

use crate::{
    module_types::{MANY, ScriptPacket},
    slot::{PacketFacts, PacketSlot},
};

/// See the module. The declaration in `prelude.lua` has the same fields in the same places; a test compares the two.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PacketSheet {
    /// Where the packets at hand are; good only during a call into Lua.
    pub(crate) packets: Cell<usize>,
    /// How many they are: the slots that are good.
    pub(crate) count: Cell<i32>,
    /// The one that Lua is at.
    pub(crate) number: Cell<i32>,
    /// What slots tell. Lua sets it once, before the script is loaded.
    facts: Cell<PacketFacts>,
    /// 1 where the script's text names `shunt`: no other may call it. Lua sets it as `facts`.
    shunts: Cell<u32>,
    /// 1 for each packet whose flow the script shunts.
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

    /// Describes the packets of a batch, as far as the script asks.
    ///
    /// # Panics
    /// If there are more than [`MANY`].
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
        // Lua reads what was written just now, at the address that it knows.
        let _ = ptr::from_ref(self).expose_provenance();
    }

    /// Describes a packet whose slot will be copied: all of it.
    pub(crate) fn show_all(&mut self, packet: &ScriptPacket<'_>) {
        let asked = self.facts.replace(PacketFacts::ALL);
        self.show(std::slice::from_ref(packet));
        self.facts.set(asked);
    }

    /// No packets any more: none of their bytes is read from here on.
    pub(crate) fn clear(&self) {
        self.packets.set(0);
        self.count.set(0);
    }

    /// Whether the script may shunt.
    pub(crate) fn shunts(&self) -> bool {
        self.shunts.get() != 0
    }

    /// Whose flows the script shunted since the last time, by the packets' numbers in their batch: bit `n` is that of packet `n`.
    pub(crate) fn take_shunted(&self) -> u64 {
        if !self.shunts() {
            return 0;
        }
        let marks = self.shunted.iter().enumerate();
        marks.fold(0, |all, (at, mark)| all | u64::from(mark.take() != 0) << at)
    }

    /// Tells more from now on, also of the packets at hand, which are `packets`.
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
