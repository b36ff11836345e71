//! What the translator knows when it stands at an instruction: on every way that leads there.

use cranelift_codegen::ir::Value;

/// Loads that are remembered at most, the latest ones: programs look at few places, and knowledge is compared where ways meet.
const LOADS_MAX: usize = 24;

/// What is known of every packet that a translation is for, wherever it stands.
#[derive(Debug, Clone, Default)]
pub(super) struct ClassFacts {
    /// Captured bytes that there are at least.
    pub(super) captured: u64,
    /// What these loads give.
    pub(super) loads: Vec<(PacketLoad, RegisterContent)>,
}

/// Facts that hold at an instruction, whatever way led there.
#[derive(Debug, Clone)]
pub(super) struct KnownState {
    /// Captured bytes that were checked.
    pub(super) captured: u64,
    /// Captured bytes behind the offset in `X` that were checked.
    pub(super) behind_x: u64,
    pub(super) a: RegisterContent,
    pub(super) x: RegisterContent,
    loads: Vec<(PacketLoad, Value)>,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegisterContent {
    /// Depends on the way; its variable has it.
    Variable,
    /// A value of 32 bits that is not known when the program is compiled.
    Value(Value),
    /// A number.
    Constant(u32),
    /// Bytes read and not yet turned around, and what is left of them.
    Bytes(RawBytes),
    /// Four times the lower half of a byte read: the length of an IPv4 header.
    HeaderLen(Value),
}

/// A load as the processor made it: its value has the first byte lowest. Comparing turns the constant around instead, when
/// the program is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawBytes {
    /// Zero above the bytes that were read.
    pub(super) raw: Value,
    /// 1, 2 or 4.
    pub(super) bytes: u32,
    /// Bits that count, as the program sees them. Never above [`Self::largest`].
    pub(super) mask: u32,
}

/// What a load reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketLoad {
    pub(super) base: LoadBase,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadBase {
    Start,
    /// The offset in `X`.
    X,
}

impl PacketLoad {
    /// Bytes from `offset` on.
    pub(super) fn at(offset: u32, bytes: u32) -> Self {
        Self {
            base: LoadBase::Start,
            offset,
            bytes,
        }
    }
}

impl RawBytes {
    /// All of what a load of `bytes` read.
    pub(super) fn whole(raw: Value, bytes: u32) -> Self {
        let mask = largest(bytes);
        Self { raw, bytes, mask }
    }

    /// The largest number that its bytes hold.
    pub(super) fn largest(self) -> u32 {
        largest(self.bytes)
    }

    /// A number of the program as it would stand in `raw`.
    pub(super) fn turned(self, number: u32) -> u32 {
        number.swap_bytes() >> (32 - 8 * self.bytes)
    }

    pub(super) fn masked(self, mask: u32) -> Self {
        Self {
            mask: self.mask & mask,
            ..self
        }
    }
}

impl ClassFacts {
    pub(super) fn load(&self, load: PacketLoad) -> Option<RegisterContent> {
        found(&self.loads, load)
    }
}

impl KnownState {
    /// Nothing but what both registers hold: 0 at the start of a program; at the head of a loop whatever depends on the way, since
    /// the way back may come from where no way through the head led.
    pub(super) fn registers(content: RegisterContent) -> Self {
        Self {
            captured: 0,
            behind_x: 0,
            a: content,
            x: content,
            loads: Vec::new(),
        }
    }

    /// Keeps what `other` knows too: two ways meet.
    pub(super) fn meet(&mut self, other: &Self) {
        self.captured = self.captured.min(other.captured);
        if self.a != other.a {
            self.a = RegisterContent::Variable;
        }
        self.loads.retain(|load| other.loads.contains(load));
        if self.x == other.x && self.x != RegisterContent::Variable {
            self.behind_x = self.behind_x.min(other.behind_x);
        } else {
            self.forget_x();
        }
    }

    /// `X` gets a value.
    pub(super) fn set_x(&mut self, x: RegisterContent) {
        if x == self.x && x != RegisterContent::Variable {
            return;
        }
        self.forget_x();
        self.x = x;
    }

    fn forget_x(&mut self) {
        self.x = RegisterContent::Variable;
        self.behind_x = 0;
        self.loads.retain(|(load, _)| load.base == LoadBase::Start);
    }

    /// What the same load gave before.
    pub(super) fn load(&self, load: PacketLoad) -> Option<Value> {
        found(&self.loads, load)
    }

    pub(super) fn remember(&mut self, load: PacketLoad, value: Value) {
        if self.loads.len() == LOADS_MAX {
            self.loads.remove(0);
        }
        self.loads.push((load, value));
    }
}

fn found<T: Copy>(loads: &[(PacketLoad, T)], load: PacketLoad) -> Option<T> {
    let mut loads = loads.iter();
    loads
        .find(|(known, _)| *known == load)
        .map(|(_, given)| *given)
}

/// The largest number that `bytes` bytes hold, 1 to 4.
fn largest(bytes: u32) -> u32 {
    u32::MAX >> (32 - 8 * bytes)
}
