//! Facts that the translator knows at an instruction, on every path to the instruction.

use cranelift_codegen::ir::Value;

/// Maximum number of remembered loads; the latest stay. Bounds the comparison of lists where paths
/// meet.
const LOADS_MAX: usize = 24;

/// Facts about every packet of a class.
#[derive(Debug, Clone, Default)]
pub(super) struct ClassFacts {
    /// Minimum number of captured bytes.
    pub(super) captured: u64,
    /// Known results of loads.
    pub(super) loads: Vec<(PacketLoad, RegisterContent)>,
}

/// Facts that hold at an instruction on every path.
#[derive(Debug, Clone)]
pub(super) struct KnownState {
    /// Number of captured bytes that the code has checked.
    pub(super) captured: u64,
    /// Number of captured bytes after the offset in `X` that the code has checked.
    pub(super) after_x: u64,
    pub(super) a: RegisterContent,
    pub(super) x: RegisterContent,
    loads: Vec<(PacketLoad, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegisterContent {
    /// The content depends on the path; the register's variable holds the value.
    Variable,
    /// A 32-bit value that is unknown when the program is compiled.
    Value(Value),
    Constant(u32),
    /// Bytes of the packet, in packet order, restricted to a mask.
    Bytes(RawBytes),
    /// A byte whose lower half, times four, is the content: the length of an IPv4 header.
    HeaderLen(Value),
}

/// The result of a load on a little-endian processor: the first byte is the lowest. A test for
/// equality or of bits swaps the constant at compile time, instead of the bytes at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawBytes {
    /// The bytes; zero above these bytes.
    pub(super) raw: Value,
    /// Number of bytes: 1, 2 or 4.
    pub(super) bytes: u32,
    /// Significant bits in the program's byte order. Never above [`Self::largest`].
    pub(super) mask: u32,
}

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
    pub(super) fn at(offset: u32, bytes: u32) -> Self {
        Self {
            base: LoadBase::Start,
            offset,
            bytes,
        }
    }
}

impl RawBytes {
    pub(super) fn whole(raw: Value, bytes: u32) -> Self {
        let mask = largest(bytes);
        Self { raw, bytes, mask }
    }

    pub(super) fn largest(self) -> u32 {
        largest(self.bytes)
    }

    /// Converts a number of the program to the byte order of `raw`.
    pub(super) fn swapped(self, number: u32) -> u32 {
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
    /// Initial facts: both registers have the same content. At a loop head the backward jump may
    /// bring other facts, so the content depends on the path.
    pub(super) fn registers(content: RegisterContent) -> Self {
        Self {
            captured: 0,
            after_x: 0,
            a: content,
            x: content,
            loads: Vec::new(),
        }
    }

    /// Keeps the facts that `other` has too, where two paths meet.
    pub(super) fn merge(&mut self, other: &Self) {
        self.captured = self.captured.min(other.captured);
        if self.a != other.a {
            self.a = RegisterContent::Variable;
        }
        self.loads.retain(|load| other.loads.contains(load));
        if self.x == other.x && self.x != RegisterContent::Variable {
            self.after_x = self.after_x.min(other.after_x);
        } else {
            self.forget_x();
        }
    }

    pub(super) fn set_x(&mut self, x: RegisterContent) {
        if x == self.x && x != RegisterContent::Variable {
            return;
        }
        self.forget_x();
        self.x = x;
    }

    fn forget_x(&mut self) {
        self.x = RegisterContent::Variable;
        self.after_x = 0;
        self.loads.retain(|(load, _)| load.base == LoadBase::Start);
    }

    /// The result of an earlier load of the same bytes, if remembered.
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

/// The largest number that `bytes` bytes can hold, for 1 to 4 bytes.
fn largest(bytes: u32) -> u32 {
    u32::MAX >> (32 - 8 * bytes)
}
