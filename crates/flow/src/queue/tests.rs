use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

fn entry(stamp: u64, item: u32) -> TimerEntry {
    TimerEntry { stamp, item }
}

fn queue(resolutions: &[(u32, usize)]) -> MultiresolutionQueue {
    let resolutions: Vec<_> = resolutions
        .iter()
        .map(|&(bits, slots)| TimerResolution { bits, slots })
        .collect();
    MultiresolutionQueue::new(&resolutions)
}

#[test]
fn slots_come_in_order_of_time() {
    let mut queue = queue(&[(4, 8)]);
    for (item, stamp) in [(0, 100), (1, 17), (2, 3), (3, 5000), (4, 127)] {
        queue.insert(entry(stamp, item));
    }
    assert_eq!(queue.len(), 5);
    assert_eq!(queue.peek(), Some(entry(3, 2)));
    let stamps: Vec<_> = std::iter::from_fn(|| queue.extract())
        .map(|entry| entry.stamp)
        .collect();
    assert_eq!(stamps, [3, 17, 100, 127, 5000]);
    assert_eq!(queue.now(), 4992);
    assert_eq!((queue.peek(), queue.is_empty()), (None, true));
}

#[test]
fn what_is_due_is_never_early_and_late_by_less_than_a_slot() {
    let mut queue = queue(&[(4, 8), (8, 4)]);
    queue.insert(entry(33, 1));
    queue.insert(entry(300, 2));
    assert_eq!(queue.extract_due(46), None);
    assert_eq!(queue.extract_due(47), Some(entry(33, 1)));
    assert_eq!(queue.extract_due(510), None);
    assert_eq!(queue.extract_due(511), Some(entry(300, 2)));
    assert_eq!(queue.extract_due(u64::MAX), None);
}

#[test]
fn time_advances_to_the_next_entry_at_most() {
    let mut queue = queue(&[(4, 8)]);
    queue.insert(entry(100, 1));
    queue.advance(50);
    assert_eq!(queue.now(), 50);
    queue.advance(20);
    assert_eq!(queue.now(), 50);
    queue.advance(1000);
    assert_eq!(queue.now(), 96, "the start of the entry's slot");
    queue.insert(entry(7, 2));
    assert_eq!(queue.extract(), Some(entry(7, 2)), "behind now is now");
    assert_eq!(queue.extract(), Some(entry(100, 1)));
    queue.advance(1000);
    assert_eq!(queue.now(), 1000);
}

#[test]
fn what_is_given_up_early_does_not_move_the_time() {
    let mut queue = queue(&[(4, 8), (8, 4)]);
    queue.insert(entry(500, 1));
    assert_eq!(queue.extract_early(), Some(entry(500, 1)));
    assert_eq!(queue.now(), 0);
    queue.insert(entry(20, 2));
    queue.insert(entry(5000, 3));
    assert_eq!(queue.extract_early(), Some(entry(20, 2)));
    assert_eq!(queue.extract_early(), Some(entry(5000, 3)));
    assert_eq!((queue.now(), queue.extract_early()), (4992, None));
}

#[test]
fn the_last_times_there_are_have_slots_too() {
    let mut queue = queue(&[(0, 1), (63, 2)]);
    for stamp in [u64::MAX, 0, u64::MAX - 1, 1 << 63, 5] {
        queue.insert(entry(stamp, 0));
    }
    let mut queues = [queue, self::queue(&[(10, 4)])];
    for stamp in [u64::MAX, u64::MAX - 5000, 0] {
        queues[1].insert(entry(stamp, 0));
    }
    for mut queue in queues {
        while !queue.is_empty() {
            assert!(queue.extract_due(u64::MAX).is_some());
        }
    }
}

#[test]
fn memory_follows_what_is_in_it() {
    let mut queue = queue(&[(10, 1024)]);
    let empty = queue.memory_bytes();
    // Each step puts a hundred thousand entries into another slot.
    for step in 0..64 {
        for item in 0..100_000 {
            queue.insert(entry(step * 1024 * 20, item));
        }
        while queue.extract_due((step + 1) * 1024 * 20).is_some() {}
    }
    assert!(queue.is_empty());
    assert!(queue.memory_bytes() < empty + 1024 * KEPT_BYTES);
}

const KEPT_BYTES: usize = 1024;

fn width(resolutions: &[(u32, usize)], now: u64, stamp: u64) -> u64 {
    let found = resolutions.iter().find(|&&(bits, slots)| {
        stamp.max(now).saturating_sub(now >> bits << bits) >> bits < slots as u64
    });
    1 << found.unwrap_or(&resolutions[resolutions.len() - 1]).0
}

#[test]
fn it_agrees_with_a_heap_but_for_the_resolution() {
    for seed in 0..if cfg!(miri) { 2 } else { 300 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut resolutions = vec![(random.u32(0..8), 1 << random.u32(0..8))];
        while resolutions.len() < 3 && random.bool() {
            let bits = resolutions[resolutions.len() - 1].0 + random.u32(1..6);
            resolutions.push((bits, 1 << random.u32(0..13)));
        }
        let (mut queue, mut now) = (queue(&resolutions), 0);
        // The effective stamps: a stamp before now is due now.
        let mut heap = BinaryHeap::new();
        let (mut kept, mut next) = (std::collections::HashMap::new(), 0);
        let reach = 1_u64 << random.u32(4..24);
        for _ in 0..3000 {
            let before = queue.now();
            match random.u32(0..100) {
                0..55 => {
                    let ahead = random.u64(0..reach);
                    let stamp = (before + ahead).saturating_sub(random.u64(0..reach / 4 + 1));
                    queue.insert(entry(stamp, next));
                    let due = stamp.max(before);
                    heap.push(Reverse((due, next)));
                    kept.insert(next, (stamp, due, width(&resolutions, before, stamp)));
                    next += 1;
                }
                55..60 => {
                    now = now.max(before) + random.u64(0..reach);
                    queue.advance(now);
                }
                choice => {
                    now = now.max(before) + random.u64(0..reach / 8 + 1);
                    let limit = if choice < 80 { now } else { u64::MAX };
                    let peeked = queue.peek();
                    let Some(taken) = queue.extract_due(limit) else {
                        // No remaining entry is in a slot that ended before `limit`.
                        let overdue = kept
                            .values()
                            .any(|&(_, due, width)| due | (width - 1) < limit);
                        assert!(!overdue, "seed {seed}");
                        continue;
                    };
                    let (stamp, due, width) = kept[&taken.item];
                    assert_eq!(taken.stamp, stamp, "seed {seed}");
                    assert!(stamp <= limit, "seed {seed}: early");
                    // Entries that the queue returned before are still in the heap.
                    while let Some(&Reverse((_, item))) = heap.peek()
                        && !kept.contains_key(&item)
                    {
                        heap.pop();
                    }
                    let &Reverse((first, item)) = heap.peek().unwrap();
                    let width = width.max(kept[&item].2);
                    assert!(due - first < width, "seed {seed}: {due} before {first}");
                    kept.remove(&taken.item);
                    assert!(peeked.is_some(), "seed {seed}");
                }
            }
            assert_eq!(queue.len(), kept.len());
            assert_eq!(queue.peek().is_none(), kept.is_empty());
            assert!(queue.now() >= before);
        }
    }
}
