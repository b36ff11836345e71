//! What programs compute, as values that are equal where they are computed alike: the same load in two programs is one value.

use std::collections::HashMap;

use crate::{instruction::op, interpreter::arithmetic};

/// A value of [`Values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ValueId(u32);

/// A number of 32 bits that depends on nothing but the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Constant(u32),
    /// Length on the wire.
    WireLen,
    /// Bytes of the packet, most significant first. Whoever asks for it has checked that they were captured.
    Load(Load),
    /// Four times the lower half of a byte: the length of an IPv4 header.
    HeaderLen(ValueId),
    Negative(ValueId),
    /// Two values under an arithmetic operation; `code` is that of the instruction with a constant. Divisors are not 0.
    Combined {
        code: u16,
        left: ValueId,
        right: ValueId,
    },
}

/// A place in the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Load {
    /// The offset that `X` held, if any.
    pub(super) behind: Option<ValueId>,
    /// Bytes behind it, or behind the start of the packet.
    pub(super) offset: u32,
    /// 1, 2 or 4.
    pub(super) bytes: u32,
}

impl Load {
    /// The largest number that it gives.
    pub(super) fn largest(self) -> u32 {
        u32::MAX >> (32 - 8 * self.bytes)
    }

    /// A number as it stands in memory, read with the first byte lowest.
    pub(super) fn turned(self, number: u32) -> u32 {
        number.swap_bytes() >> (32 - 8 * self.bytes)
    }
}

/// All values of a set of programs.
#[derive(Debug, Default)]
pub(super) struct Values {
    all: Vec<Value>,
    /// What [`Self::operations`] says of each.
    operations: Vec<u32>,
    known: HashMap<Value, ValueId>,
}

impl Values {
    pub(super) fn get(&self, id: ValueId) -> Value {
        self.all[id.0 as usize]
    }

    /// The constant that a value is.
    pub(super) fn constant_of(&self, id: ValueId) -> Option<u32> {
        match self.get(id) {
            Value::Constant(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, value: Value) -> ValueId {
        // Far fewer than 2^32: the run that makes them has a budget.
        let next = ValueId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        let of = |id: ValueId| self.operations[id.0 as usize];
        let operations = match value {
            Value::Constant(_) | Value::WireLen => 0,
            Value::Load(load) => load.behind.map_or(0, of).saturating_add(1),
            Value::HeaderLen(inner) | Value::Negative(inner) => of(inner).saturating_add(1),
            Value::Combined { left, right, .. } => {
                of(left).saturating_add(of(right)).saturating_add(1)
            }
        };
        self.all.push(value);
        self.operations.push(operations);
        self.known.insert(value, next);
        next
    }

    /// Loads and operations that it takes, those counted twice that are needed twice: a walk through its operands goes through
    /// as many.
    pub(super) fn operations(&self, id: ValueId) -> u32 {
        self.operations[id.0 as usize]
    }

    pub(super) fn constant(&mut self, number: u32) -> ValueId {
        self.add(Value::Constant(number))
    }

    /// `left` under an operation whose code is that with a constant; `None` where a constant divides by 0.
    pub(super) fn combine(&mut self, code: u16, left: ValueId, right: ValueId) -> Option<ValueId> {
        match (self.constant_of(left), self.constant_of(right)) {
            (Some(left), Some(right)) => {
                let number = arithmetic(code, left, right)?;
                return Some(self.constant(number));
            }
            (None, Some(mask)) if code == op::AND_K => return Some(self.masked(left, mask)),
            _ => {}
        }
        Some(self.add(Value::Combined { code, left, right }))
    }

    /// Some bits of a value.
    fn masked(&mut self, of: ValueId, mask: u32) -> ValueId {
        let (of, mask) = self.unmasked(of, mask);
        if mask == 0 {
            return self.constant(0);
        }
        if let Value::Load(load) = self.get(of)
            && mask == load.largest()
        {
            return of;
        }
        let right = self.constant(mask);
        self.add(Value::Combined {
            code: op::AND_K,
            left: of,
            right,
        })
    }

    /// What some bits of a value are bits of, and which: those of `mask` that may be set.
    pub(super) fn unmasked(&self, of: ValueId, mask: u32) -> (ValueId, u32) {
        match self.get(of) {
            Value::Combined {
                code: op::AND_K,
                left,
                right,
            } if let Some(inner) = self.constant_of(right) => (left, mask & inner),
            Value::Load(load) => (of, mask & load.largest()),
            _ => (of, mask),
        }
    }

    /// No packet gives more.
    pub(super) fn largest(&self, id: ValueId) -> u32 {
        match self.get(id) {
            Value::Constant(number) => number,
            Value::Load(load) => load.largest(),
            Value::HeaderLen(_) => 60,
            Value::Combined {
                code: op::AND_K,
                right,
                ..
            } => self.constant_of(right).unwrap_or(u32::MAX),
            Value::Combined { .. } | Value::Negative(_) | Value::WireLen => u32::MAX,
        }
    }

    /// What a value is where `known` is `number`, if that settles it. Walks through all its operands.
    pub(super) fn given(&self, id: ValueId, known: ValueId, number: u32) -> Option<u32> {
        if id == known {
            return Some(number);
        }
        match self.get(id) {
            Value::Constant(number) => Some(number),
            Value::HeaderLen(byte) => Some((self.given(byte, known, number)? & 0x0f) << 2),
            Value::Negative(value) => Some(self.given(value, known, number)?.wrapping_neg()),
            Value::Combined { code, left, right } => arithmetic(
                code,
                self.given(left, known, number)?,
                self.given(right, known, number)?,
            ),
            Value::Load(_) | Value::WireLen => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(values: &mut Values) -> ValueId {
        values.add(Value::Load(Load {
            behind: None,
            offset: 12,
            bytes: 2,
        }))
    }

    #[test]
    fn what_is_computed_alike_is_one_value() {
        let mut values = Values::default();
        let load = half(&mut values);
        assert_eq!(half(&mut values), load);
        let [all, low, lower] = [0xffff_ffff, 0xff, 0xf0].map(|mask| values.constant(mask));
        assert_eq!(values.combine(op::AND_K, load, all), Some(load));
        let once = values.combine(op::AND_K, load, low).expect("no division");
        let twice = values.combine(op::AND_K, once, lower).expect("no division");
        let direct = values.combine(op::AND_K, load, lower);
        assert_eq!(Some(twice), direct);
        assert_eq!(
            (values.largest(load), values.largest(twice)),
            (0xffff, 0xf0)
        );
    }

    #[test]
    fn a_known_value_settles_what_depends_on_it_alone() {
        let mut values = Values::default();
        let load = half(&mut values);
        let (mask, zero) = (values.constant(0x1fff), values.constant(0));
        let masked = values.combine(op::AND_K, load, mask).expect("no division");
        assert_eq!(values.given(masked, load, 0x4001), Some(1));
        let len = values.add(Value::WireLen);
        let sum = values.combine(op::ADD_K, len, load).expect("no division");
        assert_eq!(values.given(sum, load, 1), None);
        assert_eq!(values.combine(op::DIV_K, mask, zero), None);
    }
}
