//! The LFN table and the feed of events under loom: `scripts/loom.sh`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test")]

use loom::{sync::Arc, thread};
use retroscope_flow::{BiflowKey, Feed, FeedCursor, FeedItem, LfnTable, Secret};

fn key(n: u8) -> BiflowKey {
    BiflowKey::opaque(n, &[n])
}

fn table() -> Arc<LfnTable> {
    let words = |n: usize| 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * n as u64 + 1);
    Arc::new(LfnTable::new(1, Secret::from_words(words)))
}

/// Two writers of different keys share a cell.
#[test]
fn a_reader_finds_what_was_put_to_its_key() {
    loom::model(|| {
        let table = table();
        let writers = [1, 2].map(|n| {
            let table = Arc::clone(&table);
            thread::spawn(move || table.put(&key(n), u64::from(n) * 10))
        });
        for n in [1, 2] {
            let found = table.get(&key(n));
            assert!(found.is_none_or(|value| value == u64::from(n) * 10));
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        let both = [1, 2].map(|n| table.get(&key(n)).is_some());
        assert_ne!(both, [true, true], "one cell");
    });
}

/// A reader finds either value of a key, or nothing while a writer is storing.
#[test]
fn a_value_is_whole() {
    loom::model(|| {
        let table = table();
        table.put(&key(1), 1);
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.put(&key(1), 2))
        };
        assert!(matches!(table.get(&key(1)), None | Some(1 | 2)));
        writer.join().unwrap();
        assert_eq!(table.get(&key(1)), Some(2));
    });
}

/// One thread removes a key while another thread stores another key in the same cell.
#[test]
fn a_key_that_is_taken_out_is_gone() {
    loom::model(|| {
        let table = table();
        table.put(&key(1), 1);
        let remover = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(&key(1)))
        };
        table.put(&key(2), 2);
        remover.join().unwrap();
        assert_eq!(table.get(&key(1)), None);
        assert!(table.get(&key(2)).is_none_or(|value| value == 2));
    });
}

/// The events that a listener reads, until `count` events were read or missed.
fn heard(feed: &Feed<u64>, cursor: &mut FeedCursor, count: u64) -> Vec<u64> {
    let (mut events, mut told) = (Vec::new(), 0);
    while told < count {
        match feed.next_event(cursor) {
            FeedItem::Event(event) => {
                events.push(event);
                told += 1;
            }
            FeedItem::Missed(missed) => told += missed,
            FeedItem::Nothing => thread::yield_now(),
        }
    }
    assert_eq!(told, count, "more were missed than there were");
    events
}

/// Three threads add one event each, and one of these threads then reads.
#[test]
fn a_listener_hears_or_misses_each_event() {
    for capacity in [1, 2] {
        loom::model(move || {
            let feed = Arc::new(Feed::new(capacity));
            let mut cursor = feed.listen(Some(0));
            let producers = [10, 20].map(|first| {
                let feed = Arc::clone(&feed);
                thread::spawn(move || {
                    for event in first..first + 1 {
                        feed.push(event);
                    }
                })
            });
            feed.push(30);
            let mut events = heard(&feed, &mut cursor, 3);
            producers.into_iter().for_each(|it| it.join().unwrap());
            assert!(!events.is_empty(), "the last one is there");
            events.sort_unstable();
            events.dedup();
            assert!(events.iter().all(|event| [10, 20, 30].contains(event)));
            assert!(matches!(feed.next_event(&mut cursor), FeedItem::Nothing));
        });
    }
}

#[test]
fn producers_wait_for_who_holds_them_up() {
    loom::model(|| {
        let feed = Arc::new(Feed::new(1));
        let mut cursor = feed.listen(Some(0));
        assert!(feed.hold(&mut cursor));
        let producer = {
            let feed = Arc::clone(&feed);
            thread::spawn(move || {
                for event in 0..3 {
                    feed.push_or_wait(event, |_| {
                        thread::yield_now();
                        true
                    });
                }
            })
        };
        assert_eq!(heard(&feed, &mut cursor, 2), [0, 1]);
        feed.release(&mut cursor);
        producer.join().unwrap();
    });
}
