//! Translates instructions that decide: conditional jumps, and chains of comparisons with
//! constants.

use cranelift_codegen::ir::{
    InstBuilder, Value,
    condcodes::IntCC,
    types::{I32, I64},
};
use cranelift_frontend::Switch;

use retroscope_bpf::{Instruction, op};

use super::{
    constants::{self, ConstantSet},
    known::{KnownState, RawBytes, RegisterContent},
    operate::load_flags,
    translate::Translator,
};

/// Number of constants with the same target from which a table is faster than single comparisons.
const TABLE_MIN: usize = 6;
/// Number of targets of a chain above which a search replaces the comparisons in order.
const TARGETS_MAX: usize = 8;

enum BranchCondition {
    Always(bool),
    /// 1 or 0, in 8 bits.
    Is(Value),
}

impl Translator<'_, '_> {
    pub(super) fn branch(&mut self, index: usize, mut known: KnownState) {
        let instruction = self.program.instructions[index];
        let Some((if_true, if_false)) = instruction.targets(index) else {
            return self.exit(0); // cannot be: the instruction is a jump
        };
        if instruction.code == op::JEQ_K {
            let (cases, otherwise) = self.chain(index);
            if cases.len() > 1 {
                return self.compare_in_order(cases, otherwise, &mut known);
            }
        }
        let test = self.test(&instruction, &mut known);
        self.decide(test, if_true, if_false, &known);
    }

    /// Ends the block with a jump to one of two targets.
    fn decide(
        &mut self,
        test: BranchCondition,
        if_true: usize,
        if_false: usize,
        known: &KnownState,
    ) {
        let (if_true, if_false) = (self.through_jumps(if_true), self.through_jumps(if_false));
        let condition = match test {
            _ if if_true == if_false => return self.jump_to(if_true, known),
            BranchCondition::Always(true) => return self.jump_to(if_true, known),
            BranchCondition::Always(false) => return self.jump_to(if_false, known),
            BranchCondition::Is(condition) => condition,
        };
        if let (Some(if_true), Some(if_false)) =
            (self.known_result(if_true), self.known_result(if_false))
        {
            return self.exit_either(condition, if_true, if_false);
        }
        let (if_true, if_false) = (
            self.block_for(if_true, known),
            self.block_for(if_false, known),
        );
        self.ins().brif(condition, if_true, &[], if_false, &[]);
    }

    fn test(&mut self, instruction: &Instruction, known: &mut KnownState) -> BranchCondition {
        let code = instruction.code & !op::SOURCE_X;
        let RegisterContent::Constant(number) = self.operand(instruction, known) else {
            let (a, x) = (self.a(known), self.x(known));
            return self.compare(code, a, x);
        };
        match (known.a, code) {
            (RegisterContent::Constant(a), op::JEQ_K) => BranchCondition::Always(a == number),
            (RegisterContent::Constant(a), op::JGT_K) => BranchCondition::Always(a > number),
            (RegisterContent::Constant(a), op::JGE_K) => BranchCondition::Always(a >= number),
            (RegisterContent::Constant(a), _) => BranchCondition::Always(a & number != 0),
            (RegisterContent::Bytes(bytes), op::JEQ_K) => self.equals(bytes, number),
            (RegisterContent::Bytes(bytes), op::JSET_K) => self.has_bits(bytes, number),
            _ => {
                let (a, number) = (self.a(known), self.number(number));
                self.compare(code, a, number)
            }
        }
    }

    /// Compares two values. `code` is the operation's code for a constant operand.
    fn compare(&mut self, code: u16, a: Value, b: Value) -> BranchCondition {
        let condition = match code {
            op::JEQ_K => IntCC::Equal,
            op::JGT_K => IntCC::UnsignedGreaterThan,
            op::JGE_K => IntCC::UnsignedGreaterThanOrEqual,
            _ => {
                let common = self.ins().band(a, b);
                return self.is_not_zero(common);
            }
        };
        BranchCondition::Is(self.ins().icmp(condition, a, b))
    }

    fn is_not_zero(&mut self, value: Value) -> BranchCondition {
        BranchCondition::Is(self.ins().icmp_imm_u(IntCC::NotEqual, value, 0))
    }

    fn is_number(&mut self, value: Value, number: u32) -> Value {
        self.ins()
            .icmp_imm_u(IntCC::Equal, value, i64::from(number))
    }

    /// Whether bytes of the packet equal a number, without swapping the bytes.
    fn equals(&mut self, bytes: RawBytes, number: u32) -> BranchCondition {
        if number & !bytes.mask != 0 {
            return BranchCondition::Always(false);
        }
        let raw = self.masked(bytes, bytes.mask);
        BranchCondition::Is(self.is_number(raw, bytes.swapped(number)))
    }

    fn has_bits(&mut self, bytes: RawBytes, bits: u32) -> BranchCondition {
        if bits & bytes.mask == 0 {
            return BranchCondition::Always(false);
        }
        let raw = self.masked(bytes, bits & bytes.mask);
        self.is_not_zero(raw)
    }

    /// The bytes in packet order, with the bits outside `mask` cleared.
    fn masked(&mut self, bytes: RawBytes, mask: u32) -> Value {
        if mask == bytes.largest() {
            return bytes.raw;
        }
        let mask = i64::from(bytes.swapped(mask));
        self.ins().band_imm_u(bytes.raw, mask)
    }

    /// The chain of comparisons from `index` on, each of which follows if the previous one does not
    /// hold. A loop head ends the chain. Returns the target of each constant, and the target if no
    /// comparison holds.
    fn chain(&self, index: usize) -> (Vec<(u32, usize)>, usize) {
        let mut cases: Vec<(u32, usize)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut at = index;
        loop {
            let instruction = &self.program.instructions[at];
            let is_link = at == index || !self.program.outline.roles[at].is_loop_head;
            let targets = (instruction.code == op::JEQ_K && is_link)
                .then(|| instruction.targets(at))
                .flatten();
            let Some((if_true, if_false)) = targets else {
                break;
            };
            // Of several comparisons with the same constant, only the first can hold.
            if seen.insert(instruction.k) {
                cases.push((instruction.k, self.through_jumps(if_true)));
            }
            at = self.through_jumps(if_false);
        }
        (cases, at)
    }

    /// Ends the block with a chain of comparisons. The constants differ, so the order does not
    /// matter.
    fn compare_in_order(
        &mut self,
        mut cases: Vec<(u32, usize)>,
        otherwise: usize,
        known: &mut KnownState,
    ) {
        let value = match known.a {
            RegisterContent::Constant(a) => {
                let case = cases.iter().find(|(number, _)| *number == a);
                return self.jump_to(case.map_or(otherwise, |(_, target)| *target), known);
            }
            RegisterContent::Bytes(bytes) => {
                cases.retain(|(number, _)| number & !bytes.mask == 0);
                for (number, _) in &mut cases {
                    *number = bytes.swapped(*number);
                }
                self.masked(bytes, bytes.mask)
            }
            _ => self.a(known),
        };
        let groups = by_target(cases);
        if groups.len() > TARGETS_MAX {
            return self.search(value, &groups, otherwise, known);
        }
        let mut tests: Vec<(ConstantGroup, usize)> = Vec::new();
        for (target, numbers) in groups {
            if numbers.len() < TABLE_MIN {
                tests.extend(
                    numbers
                        .into_iter()
                        .map(|number| (ConstantGroup::One(number), target)),
                );
                continue;
            }
            for numbers in numbers.chunks(constants::CONSTANTS_MAX) {
                match self.table(numbers) {
                    Some(table) => tests.push((ConstantGroup::Table(table), target)),
                    None => {
                        let one = |number: &u32| (ConstantGroup::One(*number), target);
                        tests.extend(numbers.iter().map(one));
                    }
                }
            }
        }
        let last = tests.len().saturating_sub(1);
        if tests.is_empty() {
            return self.jump_to(otherwise, known);
        }
        for (index, (group, target)) in tests.into_iter().enumerate() {
            let is_in = match group {
                ConstantGroup::One(number) => self.is_number(value, number),
                ConstantGroup::Table(table) => self.look_up(value, table),
            };
            if index == last {
                return self.decide(BranchCondition::Is(is_in), target, otherwise, known);
            }
            let target = self.block_for(target, known);
            self.jump_if(is_in, target);
        }
    }

    /// Index of the table for some numbers, if a table is possible. Tables are shared, because
    /// programs often compare source and destination with the same numbers.
    fn table(&mut self, numbers: &[u32]) -> Option<usize> {
        let is_known = |table: &ConstantSet| *table.constants == *numbers;
        if let Some(known) = self.tables.iter().position(is_known) {
            return Some(known);
        }
        self.tables.push(ConstantSet::new(numbers)?);
        Some(self.tables.len() - 1)
    }

    fn look_up(&mut self, value: Value, table: usize) -> Value {
        let ConstantSet {
            slots,
            multiplier,
            shift,
            ..
        } = &self.tables[table];
        let (multiplier, shift) = (*multiplier, *shift);
        // The table moves to the code's own list later, but its slots keep their address.
        let address = slots.as_ptr().expose_provenance() as u64;
        let product = self.ins().imul_imm_u(value, i64::from(multiplier));
        let slot = self.ins().ushr_imm_u(product, i64::from(shift));
        let slot = self.ins().uextend(I64, slot);
        let offset = self.ins().ishl_imm_u(slot, 2);
        let base = self.ins().iconst(I64, address.cast_signed());
        let slot = self.ins().iadd(base, offset);
        let constant = self.ins().load(I32, load_flags(), slot, 0);
        self.ins().icmp(IntCC::Equal, value, constant)
    }

    /// Ends the block with a search among the constants.
    fn search(
        &mut self,
        value: Value,
        groups: &[(usize, Vec<u32>)],
        otherwise: usize,
        known: &KnownState,
    ) {
        let mut switch = Switch::new();
        for (target, numbers) in groups {
            let block = self.block_for(*target, known);
            for number in numbers {
                switch.set_entry(u128::from(*number), block);
            }
        }
        let otherwise = self.block_for(otherwise, known);
        switch.emit(self.builder, value, otherwise);
    }
}

enum ConstantGroup {
    One(u32),
    Table(usize),
}

/// The constants of each target, in program order.
fn by_target(cases: Vec<(u32, usize)>) -> Vec<(usize, Vec<u32>)> {
    let mut groups: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (number, target) in cases {
        let place = *places.entry(target).or_insert_with(|| {
            groups.push((target, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(number);
    }
    groups
}
