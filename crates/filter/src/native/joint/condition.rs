//! What programs ask about a packet, and what one answer says about other questions.

use std::collections::HashMap;

use super::value::{ValueId, Values};
use crate::instruction::op;

/// A condition of [`Conditions`]; they are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConditionId(pub(super) u32);

/// A question about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Condition {
    /// Whether so many bytes were captured behind an offset, or from the start.
    Captured { behind: Option<ValueId>, end: u64 },
    /// A comparison; `code` is that of the jump with a constant.
    Compared {
        code: u16,
        left: ValueId,
        right: ValueId,
    },
}

/// A condition, or its opposite, or what holds for all packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Always(bool),
    If(ConditionId),
    Unless(ConditionId),
}

/// All conditions of a set of programs.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    all: Vec<Condition>,
    known: HashMap<Condition, ConditionId>,
}

impl Conditions {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, id: ConditionId) -> Condition {
        self.all[id.0 as usize]
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ConditionId> + use<> {
        (0..u32::try_from(self.all.len()).unwrap_or(u32::MAX)).map(ConditionId)
    }

    /// Whether it is about captured bytes.
    pub(super) fn is_length(&self, id: ConditionId) -> bool {
        matches!(self.get(id), Condition::Captured { .. })
    }

    pub(super) fn add(&mut self, condition: Condition) -> ConditionId {
        // Far fewer than 2^32: the run that makes them has a budget.
        let next = ConditionId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        *self.known.entry(condition).or_insert_with(|| {
            self.all.push(condition);
            next
        })
    }

    /// Takes all behind the first `count` out.
    pub(super) fn shrink(&mut self, count: usize) {
        for condition in self.all.drain(count..) {
            self.known.remove(&condition);
        }
    }

    /// A comparison, in the one form that all its spellings have.
    pub(super) fn compared(
        &mut self,
        values: &mut Values,
        code: u16,
        left: ValueId,
        right: ValueId,
    ) -> Question {
        let numbers = (values.constant_of(left), values.constant_of(right));
        let (left, right) = match (code, numbers) {
            (_, (Some(left), Some(right))) => return Question::Always(holds(code, left, right)),
            // `A & X` is `X & A`, and so with `=`.
            (op::JEQ_K | op::JSET_K, (Some(_), None)) => (right, left),
            _ => (left, right),
        };
        let Some(number) = values.constant_of(right) else {
            return Question::If(self.add(Condition::Compared { code, left, right }));
        };
        let (inner, bits) = values.unmasked(left, u32::MAX);
        match code {
            op::JSET_K => {
                let (inner, bits) = values.unmasked(left, number);
                self.any_bit(values, inner, bits)
            }
            op::JEQ_K if number & !bits != 0 => Question::Always(false),
            op::JEQ_K if number == 0 => match self.any_bit(values, inner, bits) {
                Question::Always(any) => Question::Always(!any),
                Question::If(any) | Question::Unless(any) => Question::Unless(any),
            },
            op::JEQ_K if number == bits && bits.is_power_of_two() => {
                self.any_bit(values, inner, bits)
            }
            op::JGT_K if values.largest(left) <= number => Question::Always(false),
            op::JGE_K if number == 0 => Question::Always(true),
            op::JGE_K if values.largest(left) < number => Question::Always(false),
            op::JGE_K => {
                // `>= n` is `> n - 1`.
                let right = values.constant(number - 1);
                let code = op::JGT_K;
                Question::If(self.add(Condition::Compared { code, left, right }))
            }
            _ => Question::If(self.add(Condition::Compared { code, left, right })),
        }
    }

    /// Whether any of some bits of a value is set.
    fn any_bit(&mut self, values: &mut Values, left: ValueId, bits: u32) -> Question {
        if bits == 0 {
            return Question::Always(false);
        }
        let code = op::JSET_K;
        let right = values.constant(bits);
        Question::If(self.add(Condition::Compared { code, left, right }))
    }

    /// What an answer to one condition says about another.
    pub(super) fn implied(
        &self,
        values: &Values,
        (known, answer): (ConditionId, bool),
        asked: ConditionId,
    ) -> Option<bool> {
        if known == asked {
            return Some(answer);
        }
        match (self.get(known), self.get(asked)) {
            (
                Condition::Captured { behind, end },
                Condition::Captured {
                    behind: asked_behind,
                    end: asked_end,
                },
            ) => {
                let reach = |behind: Option<ValueId>| {
                    behind.map_or(0, |behind| u64::from(values.largest(behind)))
                };
                // The offset that both count from, or bounds of both.
                let (least, most) = if behind == asked_behind {
                    ((0, 0), (0, 0))
                } else {
                    ((0, 0), (reach(behind), reach(asked_behind)))
                };
                match answer {
                    true => (least.0 + end >= most.1 + asked_end).then_some(true),
                    false => (most.0 + end <= least.1 + asked_end).then_some(false),
                }
            }
            (
                Condition::Compared { code, left, right },
                Condition::Compared {
                    code: asked_code,
                    left: asked_left,
                    right: asked_right,
                },
            ) => {
                let number = values.constant_of(right)?;
                if code == op::JEQ_K && answer {
                    let left_is = values.given(asked_left, left, number)?;
                    let right_is = values.given(asked_right, left, number)?;
                    return Some(holds(asked_code, left_is, right_is));
                }
                if left != asked_left {
                    return None;
                }
                let asked_number = values.constant_of(asked_right)?;
                compare(code, number, answer, asked_code, asked_number)
            }
            _ => None,
        }
    }
}

/// What an answer to a comparison with `number` says about the same value's comparison with `asked`.
fn compare(code: u16, number: u32, answer: bool, asked_code: u16, asked: u32) -> Option<bool> {
    if code == op::JSET_K {
        return match (asked_code, answer) {
            (op::JSET_K, true) => (number & !asked == 0).then_some(true),
            (op::JSET_K, false) => (asked & !number == 0).then_some(false),
            (op::JEQ_K, true) => (asked & number == 0).then_some(false),
            (op::JEQ_K, false) => (asked & number != 0).then_some(false),
            _ => None,
        };
    }
    let (low, high) = match (code, answer) {
        (op::JGT_K, true) => (number.checked_add(1)?, u32::MAX),
        (op::JGT_K, false) => (0, number),
        _ => return None,
    };
    match asked_code {
        op::JEQ_K => (!(low..=high).contains(&asked)).then_some(false),
        op::JGT_K if low > asked => Some(true),
        op::JGT_K if high <= asked => Some(false),
        _ => None,
    }
}

/// Whether a comparison of two numbers holds.
fn holds(code: u16, left: u32, right: u32) -> bool {
    match code {
        op::JEQ_K => left == right,
        op::JGT_K => left > right,
        op::JGE_K => left >= right,
        _ => left & right != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::joint::value::{Load, Value};

    fn load(values: &mut Values, offset: u32, bytes: u32) -> ValueId {
        values.add(Value::Load(Load {
            behind: None,
            offset,
            bytes,
        }))
    }

    fn ask(
        conditions: &mut Conditions,
        values: &mut Values,
        code: u16,
        left: ValueId,
        number: u32,
    ) -> Question {
        let right = values.constant(number);
        conditions.compared(values, code, left, right)
    }

    /// Whatever is said to follow does, for every value of a byte, and the other spellings mean the same.
    #[test]
    fn answers_imply_only_what_is_so() {
        let (mut values, mut conditions) = (Values::default(), Conditions::default());
        let byte = load(&mut values, 9, 1);
        let mask = values.constant(0x1c);
        let masked = values.combine(op::AND_K, byte, mask).expect("no division");
        let numbers = [
            0,
            1,
            4,
            6,
            7,
            8,
            0x10,
            0x1c,
            0x1f,
            0x80,
            254,
            255,
            256,
            u32::MAX,
        ];
        let mut asked = Vec::new();
        for code in [op::JEQ_K, op::JGT_K, op::JGE_K, op::JSET_K] {
            for number in numbers {
                for (left, mask) in [(byte, 0xff), (masked, 0x1c)] {
                    let one = ask(&mut conditions, &mut values, code, left, number);
                    let truth = |byte: u32| holds(code, byte & mask, number);
                    let all: Vec<bool> = (0..256).map(truth).collect();
                    match one {
                        Question::Always(answer) => assert!(all.iter().all(|one| *one == answer)),
                        Question::If(id) => asked.push((id, all)),
                        Question::Unless(id) => {
                            asked.push((id, all.iter().map(|one| !one).collect()));
                        }
                    }
                }
            }
        }
        let mut implied = 0;
        for (known, its) in &asked {
            for (other, others) in &asked {
                for answer in [true, false] {
                    let says = conditions.implied(&values, (*known, answer), *other);
                    let Some(says) = says else { continue };
                    implied += 1;
                    let mut alike = its.iter().zip(others).filter(|(its, _)| **its == answer);
                    assert!(alike.all(|(_, other)| *other == says));
                }
            }
        }
        assert!(implied > 1000, "{implied}");
    }

    #[test]
    fn lengths_imply_lengths() {
        let (mut values, mut conditions) = (Values::default(), Conditions::default());
        let byte = load(&mut values, 14, 1);
        let header = values.add(Value::HeaderLen(byte));
        let mut captured = |behind, end| conditions.add(Condition::Captured { behind, end });
        let [short, long] = [34, 94].map(|end| captured(None, end));
        let [near, far] = [18, 34].map(|end| captured(Some(header), end));
        let implied = |known, answer, asked| conditions.implied(&values, (known, answer), asked);
        assert_eq!(implied(long, true, short), Some(true));
        assert_eq!(implied(short, true, long), None);
        assert_eq!(implied(short, false, long), Some(false));
        assert_eq!(
            implied(long, true, far),
            Some(true),
            "no header is longer than 60"
        );
        assert_eq!(implied(short, true, near), None);
        assert_eq!(implied(short, false, far), Some(false));
        assert_eq!(implied(far, true, short), Some(true));
        assert_eq!(implied(far, false, long), Some(false));
        assert_eq!(implied(near, false, far), Some(false));
    }
}
