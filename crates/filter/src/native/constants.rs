//! Long lists of constants. To find a number takes one multiplication and one memory access for
//! each table of up to 256 constants.
//!
//! `src host a or src host b or …` becomes a chain of comparisons in classic BPF. The table gives
//! each constant its own slot, so a number can only equal the constant in its slot.

/// A hash set of numbers without collisions.
#[derive(Debug)]
pub(super) struct ConstantSet {
    /// The constants, in their original order.
    pub(super) constants: Box<[u32]>,
    /// Slots; their number is a power of two. A free slot holds a constant that belongs to another
    /// slot, so no number matches in a free slot.
    pub(super) slots: Box<[u32]>,
    pub(super) multiplier: u32,
    /// Number of product bits below the slot's index.
    pub(super) shift: u32,
}

/// Maximum number of constants in one table. More constants would need a table out of proportion.
pub(super) const CONSTANTS_MAX: usize = 256;
/// Minimum and maximum size of a table, as powers of two.
const SLOT_BITS: std::ops::RangeInclusive<u32> = 3..=16;
/// Number of multipliers to try for each size.
const TRIES: u32 = 400;

impl ConstantSet {
    /// A table of `constants`, which must differ. `None` without constants, or if no multiplier
    /// works.
    pub(super) fn new(constants: &[u32]) -> Option<Self> {
        let first = *constants.first()?;
        // The constants are often in the byte order of loads, first byte lowest. Addresses of one
        // network may then differ in their upper bits only, so the multiplier must mix well. The
        // sequence is fixed (Knuth's 2^32 over the golden ratio), so the same constants give the
        // same table.
        let multipliers = || (1..=TRIES).map(|n| 0x9e37_79b9_u32.wrapping_mul(2 * n - 1));
        let roomy = constants.len().next_power_of_two().trailing_zeros() + 1;
        for bits in roomy.max(*SLOT_BITS.start())..=*SLOT_BITS.end() {
            for multiplier in multipliers() {
                let shift = 32 - bits;
                if let Some(slots) = place(constants, first, multiplier, shift) {
                    return Some(Self {
                        constants: constants.into(),
                        slots,
                        multiplier,
                        shift,
                    });
                }
            }
        }
        None
    }
}

fn slot(number: u32, multiplier: u32, shift: u32) -> usize {
    (number.wrapping_mul(multiplier) >> shift) as usize
}

/// The slots, if no two constants need the same slot.
fn place(constants: &[u32], first: u32, multiplier: u32, shift: u32) -> Option<Box<[u32]>> {
    let mut taken = vec![false; 1 << (32 - shift)];
    let mut slots = vec![first; taken.len()];
    for constant in constants {
        let slot = slot(*constant, multiplier, shift);
        if taken[slot] {
            return None;
        }
        taken[slot] = true;
        slots[slot] = *constant;
    }
    let home = slot(first, multiplier, shift);
    debug_assert_eq!(slots[home], first);
    Some(slots.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(table: &ConstantSet, number: u32) -> bool {
        table.slots[slot(number, table.multiplier, table.shift)] == number
    }

    #[test]
    fn a_table_holds_its_constants_and_no_other_number() {
        let mut random = fastrand::Rng::with_seed(7);
        const _: () = assert!(CONSTANTS_MAX == 256);
        for len in [1_u32, 2, 5, 10, 100, 256] {
            let kinds: [Vec<u32>; 3] = [
                (0..len).map(|_| random.u32(..)).collect(),
                (0..len).map(|n| n.swap_bytes()).collect(),
                (0..len).map(|n| 0x0a00_0001 + n).collect(),
            ];
            for mut constants in kinds {
                constants.sort_unstable();
                constants.dedup();
                let table = ConstantSet::new(&constants).expect("a multiplier is found");
                for constant in &constants {
                    assert!(contains(&table, *constant));
                    for bit in 0..32 {
                        let other = constant ^ (1 << bit);
                        let is_in = constants.binary_search(&other).is_ok();
                        assert_eq!(contains(&table, other), is_in, "{other:#x}");
                    }
                }
                for _ in 0..1000 {
                    let number = random.u32(..);
                    let is_in = constants.binary_search(&number).is_ok();
                    assert_eq!(contains(&table, number), is_in, "{number:#x}");
                }
            }
        }
    }
}
