//! The example `insert_peek_dump` does what it says.

use std::fs;

use retroscope_ring::Backing;

#[path = "../../examples/insert_peek_dump.rs"]
mod insert_peek_dump;

#[test]
fn the_example_dumps_the_window_of_its_trigger() {
    let directory = tempfile::tempdir().unwrap();
    let dump = directory.path().join("dump.pcap");
    let outcome = insert_peek_dump::run(&dump, Backing::Anonymous).unwrap();
    assert_eq!(outcome.peeked, 1_000_000);
    assert!(outcome.overwritten > 100_000, "{outcome:?}");
    // 100 ms before the trigger and 50 ms after, a packet each microsecond.
    assert_eq!(outcome.dumped, 150_001);
    let bytes = fs::read(&dump).unwrap();
    assert_eq!(bytes.len(), 24 + 150_001 * (16 + 60));
    let numbers = bytes[24..].chunks(16 + 60).map(|record| {
        let number = record[16 + 42..16 + 50].try_into().unwrap();
        u64::from_be_bytes(number)
    });
    assert!(numbers.eq(800_000..=950_000));
}
