//! Dump scripts: the values that they may return, and their failures.

use crate::common::{PATIENT, packet};
use retroscope_script::{DerivedDump, Machine, Script, ScriptError, ScriptPacket};

fn script(text: &str) -> Machine {
    Machine::new(&Script::new("dump.lua", text, false), PATIENT).unwrap()
}

fn predicate(script: &mut Machine, trigger: &ScriptPacket<'_>) -> retroscope_script::LuaPredicate {
    match script.derive(trigger) {
        Some(DerivedDump::Predicate { predicate, .. }) => predicate,
        other => panic!("{other:?} {:?}", script.fault.as_ref()),
    }
}

#[test]
fn a_predicate_keeps_its_trigger_packet() {
    let text = "return function(trigger) return function(pkt) return pkt:u8(0) == trigger:u8(0) and trigger:len() == 60 end end";
    let mut script = script(text);
    let predicates: Vec<_> = (0..5_u8)
        .map(|n| predicate(&mut script, &packet(&[n; 60])))
        .collect();
    // The memory of the trigger packets is freed, and another Lua state allocates much memory. The
    // predicates must still read their own copies.
    let mut garbage = self::script(
        "return function() local t = {} for n = 1, 1e5 do t[n] = {n} end return nil end",
    );
    assert_eq!(garbage.derive(&packet(&[])), Some(DerivedDump::Nothing));
    let frames: Vec<Vec<u8>> = (0..5_u8).map(|n| vec![n; 30]).collect();
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    for round in 0..2000 {
        let n = round % 5;
        assert_eq!(
            script.match_derived(&predicates[n], &packets),
            1 << n,
            "{:?}",
            script.fault.as_ref()
        );
    }
}

#[test]
fn copies_live_as_long_as_their_predicates() {
    let text =
        "return function(trigger) return function(pkt) return trigger:u8(59) == pkt:u8(0) end end";
    let mut script = script(text);
    let kept = predicate(&mut script, &packet(&[9; 60]));
    let data = vec![7; 100_000];
    // 200 MB of copies in total, in a state that may have 64 MiB.
    for _ in 0..2000 {
        let keep = predicate(&mut script, &packet(&data));
        assert_eq!(script.match_derived(&keep, &[packet(&[7])]), 1);
    }
    assert_eq!(
        script.match_derived(&kept, &[packet(&[9]), packet(&[7])]),
        0b01
    );
}

#[test]
fn what_it_may_return() {
    let returns = |what: &str| {
        let mut script = script(&format!("return function(trigger) return {what} end"));
        let derived = script.derive(&packet(&[0; 60]));
        let is_refused = matches!(script.fault.as_ref(), Some(ScriptError::NoPredicate { .. }));
        (derived, is_refused)
    };
    assert_eq!(returns("nil").0, Some(DerivedDump::Nothing));
    assert_eq!(returns("false").0, Some(DerivedDump::Nothing));
    assert_eq!(
        returns("'host ' .. 1").0,
        Some(DerivedDump::Expression("host 1".to_owned()))
    );
    let named = |what: &str| match returns(what).0 {
        Some(DerivedDump::Predicate { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(named("function() end"), None);
    assert_eq!(named("function() end, 'a\\nb'").as_deref(), Some("a b"));
    assert_eq!(
        named("function() end, ('ä'):rep(200)").map(|name| name.len()),
        Some(256)
    );
    for wrong in ["5", "true", "{}"] {
        assert_eq!(returns(wrong), (None, true), "{wrong}");
    }
}

#[test]
fn a_predicate_that_fails_disables_the_script() {
    let text = "return function(trigger) return function(pkt) return pkt:u8(0) + 1 == 2 end end";
    let mut script = script(text);
    let keep = predicate(&mut script, &packet(&[1; 60]));
    let packets = [
        packet(&[1]),
        packet(&[2]),
        packet(&[1]),
        packet(&[]),
        packet(&[1]),
    ];
    assert_eq!(script.match_derived(&keep, &packets), 0b101);
    let fault = script.fault.as_ref().unwrap();
    assert!(
        matches!(fault, ScriptError::Failed { message } if message.starts_with("dump.lua:1: ")),
        "{fault}"
    );
    assert_eq!(script.match_derived(&keep, &packets), 0);
    assert_eq!(script.derive(&packet(&[1])), None);
}
