use std::{collections::VecDeque, thread};

use super::*;

fn key(n: u64) -> BiflowKey {
    BiflowKey::opaque(0, &n.to_ne_bytes())
}

fn secret() -> Secret {
    let mut random = fastrand::Rng::with_seed(2014);
    let words: Vec<u64> = std::iter::repeat_with(|| random.u64(..)).take(14).collect();
    Secret::from_words(|n| words[n])
}

/// The fraction of the `keys` that are not found, and the fraction with another value.
fn wrong<const HASH_BITS: u32>(
    table: &LfnTable<HASH_BITS>,
    keys: impl Iterator<Item = u64>,
) -> (f64, f64) {
    let (mut missing, mut other, mut all) = (0, 0, 0);
    for n in keys {
        all += 1;
        match table.get(&key(n)) {
            None => missing += 1,
            Some(value) => other += u32::from(value != n),
        }
    }
    (
        f64::from(missing) / f64::from(all),
        f64::from(other) / f64::from(all),
    )
}

#[test]
fn what_was_put_is_found_until_another_key_takes_its_cell() {
    let table = LfnTable::<64>::new(1, secret());
    assert_eq!(table.get(&key(1)), None);
    table.put(&key(1), 0);
    assert_eq!((table.get(&key(1)), table.get(&key(2))), (Some(0), None));
    table.put(&key(1), u64::MAX);
    assert_eq!(table.get(&key(1)), Some(u64::MAX));
    table.put(&key(2), 7);
    table.remove(&key(1));
    assert_eq!((table.get(&key(1)), table.get(&key(2))), (None, Some(7)));
    table.remove(&key(2));
    assert_eq!(table.get(&key(2)), None);
}

/// The expected fraction, (k - 1) / 2n, is from the R-Scope paper, figure 10. The tolerance is four
/// standard deviations of independent keys, plus the square of this fraction for second-order
/// terms.
#[test]
fn false_negatives_are_as_many_as_the_paper_says() {
    for cells in [1 << 10, 100_003] {
        for part in [100, 30, 10, 3] {
            let count = (cells / part) as u64;
            let mut missing = 0.0;
            let rounds = (300_000 / count).clamp(1, 200);
            for round in 0..rounds {
                let table = LfnTable::<64>::new(cells, secret());
                let keys = round << 32..(round << 32) + count;
                keys.clone().for_each(|n| table.put(&key(n), n));
                let (negative, other) = wrong(&table, keys);
                assert_eq!(other, 0.0);
                missing += negative / rounds as f64;
            }
            let expected = (count - 1) as f64 / (2.0 * cells as f64);
            let deviation = (expected / (count * rounds) as f64).sqrt();
            let bound = 4.0 * deviation + expected * expected;
            println!("{count} keys in {cells} cells: {missing:.6}, expected {expected:.6}");
            assert!(
                (missing - expected).abs() < bound,
                "{missing} {expected} {bound}"
            );
        }
    }
}

/// The expected fraction, (k - 1) / 2l, is from the R-Scope paper, figure 10. `l` is the number of
/// hashes, here at most 2^16 to get enough false positives.
#[test]
fn false_positives_are_as_many_as_the_paper_says() {
    fn check<const HASH_BITS: u32>() {
        let cells = 1 << 10;
        let count = 100;
        let rounds = 2000;
        let mut found = 0;
        for round in 0..rounds {
            let table = LfnTable::<HASH_BITS>::new(cells, secret());
            let keys = round << 32..(round << 32) + count;
            keys.clone().for_each(|n| table.put(&key(n), n));
            found += keys
                .filter(|n| table.get(&key(*n)).is_some_and(|value| value != *n))
                .count();
        }
        let found = found as f64 / (count * rounds) as f64;
        let expected = (count - 1) as f64 / 2_f64.powi(HASH_BITS as i32 + 1);
        let deviation = (expected / (count * rounds) as f64).sqrt();
        println!("hashes of {HASH_BITS} bits: {found:.6}, expected {expected:.6}");
        let bound = 4.0 * deviation + expected * expected;
        assert!(
            (found - expected).abs() < bound,
            "{found} {expected} {bound}"
        );
    }
    check::<10>();
    check::<12>();
    check::<16>();
}

/// Live keys are found as if there had been no other keys.
#[test]
fn keys_that_are_gone_make_room() {
    let (cells, living) = (1 << 12, 200);
    let table = LfnTable::<64>::new(cells, secret());
    let mut alive = VecDeque::new();
    let (mut missing, mut looks) = (0.0, 0.0);
    for n in 0..100 * cells as u64 {
        table.put(&key(n), n);
        alive.push_back(n);
        if alive.len() > living {
            alive.pop_front();
            if n % 50 == 0 {
                let (negative, other) = wrong(&table, alive.iter().copied());
                assert_eq!(other, 0.0);
                missing += negative;
                looks += 1.0;
            }
        }
    }
    let (missing, expected) = (missing / looks, (living - 1) as f64 / (2 * cells) as f64);
    println!(
        "{living} of {} keys live: {missing:.6}, expected {expected:.6}",
        100 * cells
    );
    assert!(
        (missing / expected - 1.0).abs() < 0.05,
        "{missing} {expected}"
    );
}

#[test]
fn threads_find_no_value_of_another_key() {
    let table = LfnTable::<64>::new(64, secret());
    let found: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let table = &table;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    let mut found = 0;
                    for round in 0..200_000 {
                        let n = random.u64(..100);
                        match round % 4 {
                            0 => table.put(&key(n), n << 32 | round),
                            1 if round % 64 == 1 => table.remove(&key(n)),
                            _ => {
                                let value = table.get(&key(n));
                                found += u64::from(value.is_some());
                                assert!(
                                    value.is_none_or(|value| value >> 32 == n),
                                    "{n} {value:?}"
                                );
                            }
                        }
                    }
                    found
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert!(found > 10_000, "{found}");
}
