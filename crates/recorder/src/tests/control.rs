//! What a running recorder is asked to change.

use std::{
    thread::{scope, yield_now},
    time::Duration,
};

use crate::{
    CommandError,
    tests::{
        live::{START, config},
        rig::{MS, Rig},
    },
};

/// A change waits for an analyzer that stands still; who asks for the rules meanwhile, or for a status, does not.
#[test]
fn the_rules_are_listed_while_a_change_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    let handle = rig.handle.clone();
    let added = scope(|scope| {
        let adding = scope.spawn(|| handle.add_rule("late", "udp port 7"));
        while !handle.rules().iter().any(|rule| rule.name == "late") {
            yield_now();
        }
        assert_eq!(handle.status().unwrap().rules, 2);
        rig.look();
        adding.join().unwrap()
    });
    assert!(!added.unwrap(), "it was not there before");
}

/// Who asks again for what the analyzer has not come to is not told that it is done.
#[test]
fn a_retry_waits_for_the_analyzer_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    rig.handle.answer_wait = Duration::ZERO;
    let is_late = |result| matches!(result, Err(CommandError::Late));
    for _ in 0..2 {
        assert!(is_late(rig.handle.add_rule("late", "udp port 7")));
    }
    for _ in 0..2 {
        assert!(is_late(rig.handle.enable_rule("late", false)));
    }
    for _ in 0..2 {
        assert!(is_late(rig.handle.remove_rule("late")));
    }
    assert_eq!(rig.handle.rules().len(), 1);
}
