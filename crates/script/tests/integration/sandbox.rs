//! The limits of user code, and the results of attempts to exceed these limits.

use std::io::ErrorKind;

use crate::common::{PATIENT, packet, trigger, udp};
use retroscope_script::{Machine, PairJoin, Partition, Script, ScriptError};

/// Whether an expression is true in a script for a packet of 60 bytes.
fn holds(expression: &str) -> bool {
    let mut trigger = trigger(&format!("return function(pkt) return ({expression}) end"));
    let found = trigger.match_many(&[packet(&[7; 60])]);
    assert!(
        trigger.fault.is_none(),
        "{expression}: {:?}",
        trigger.fault.as_ref()
    );
    found == 1
}

#[test]
fn what_reaches_other_environments_or_the_system_is_not_there() {
    for name in [
        "ffi",
        "debug",
        "io",
        "os",
        "package",
        "jit",
        "load",
        "loadstring",
        "loadfile",
        "dofile",
        "require",
        "module",
        "getfenv",
        "setfenv",
        "newproxy",
        "collectgarbage",
        "coroutine",
        "gcinfo",
        "string.dump",
        "string.gsub",
        "string.gmatch",
        "string.match",
        "table.sort",
        "_G.ffi",
        "_G._G.debug",
        "xpcall",
        "math.randomseed",
    ] {
        assert!(holds(&format!("{name} == nil")), "{name}");
    }
}

#[test]
fn the_environment_is_what_is_listed() {
    let text = "return function() local names = {} for name in pairs(_G) do names[#names + 1] = name end print(table.concat(names, ' ')) end";
    let mut trigger = trigger(text);
    trigger.match_many(&[packet(&[])]);
    let notes = trigger.take_notes();
    let mut names: Vec<&str> = notes[0].split(' ').collect();
    names.sort_unstable();
    let expected = "_G assert bit error getmetatable ipairs math net next pairs pcall print rawequal rawget rawset select \
                    setmetatable string table tonumber tostring type unpack";
    assert_eq!(names.join(" "), expected);
}

#[test]
fn strings_lead_nowhere_else() {
    for expression in [
        "getmetatable('') == nil",
        "('').dump == nil and ('').gsub == nil and ('').match == nil",
        "('').format == string.format",
        "('a.b'):find('.', 1, true) == 2",
        "not pcall(string.find, 'aaa', 'a*')",
        "not pcall(string.find, ('a'):rep(1e5), ('a'):rep(1e4), 1, true)",
        "select('#', pcall(setmetatable, '', {})) == 2 and not pcall(setmetatable, '', {})",
    ] {
        assert!(holds(expression), "{expression}");
    }
}

#[test]
fn what_a_script_does_to_its_own_strings_reaches_no_accessor() {
    // The accessors have their own references to the library functions that they need, so the
    // functions that a script replaces do not affect the accessors.
    let text = "string.byte = function() return 7 end type = function() return 'number' end bit.band = nil
        tonumber = nil error = nil
        return function(pkt) return not pcall(pkt.u8, pkt, -1LL) and not pcall(pkt.u8, pkt, '1') and pkt:u8(0) == 7
            and pkt:startswith('xyz') == false end";
    let mut trigger = trigger(text);
    assert_eq!(
        trigger.match_many(&[packet(&[7; 60])]),
        1,
        "{:?}",
        trigger.fault.as_ref()
    );
}

#[test]
fn cdata_of_literals_are_numbers_and_nothing_more() {
    for expression in [
        "not pcall(function() return (1LL)[0] end)",
        "not pcall(function() return (1LL).x end)",
        "not pcall(function() return (1LL)() end)",
        "getmetatable(1LL) == nil",
        "not pcall(setmetatable, 1LL, {})",
        "type(pkt:time_ns()) == 'cdata' and not pcall(function() return pkt:time_ns()[0] end)",
    ] {
        assert!(holds(expression), "{expression}");
    }
}

#[test]
fn no_accessor_gives_a_pointer() {
    let names = "len wire_len interface link_type inbound outbound time time_ns u8 u16 u32 bytes ip proto is_tcp is_udp \
        is_later_fragment src_port dst_port has_port tcp_flags vlan ether_type src dst from to host payload_offset \
        payload_len payload startswith contains";
    let names: Vec<String> = names.split(' ').map(|name| format!("'{name}'")).collect();
    let text = format!(
        "local names = {{ {} }}
        return function(pkt)
            for _, name in ipairs(names) do
                local ok, value = pcall(pkt[name], pkt, 1, 2)
                local kind = type(value)
                if kind == 'userdata' or kind == 'function' or (kind == 'cdata' and name ~= 'time_ns') then
                    error(name .. ' gives ' .. kind)
                end
            end
            return not pcall(function() return pkt.pointer end)
        end",
        names.join(", ")
    );
    let mut trigger = trigger(&text);
    let frame = udp(9, b"payload");
    assert_eq!(
        trigger.match_many(&[packet(&frame)]),
        1,
        "{:?}",
        trigger.fault.as_ref()
    );
}

/// A packet is cdata of an empty struct. Every operation that is not an accessor must fail, or
/// return nothing of the packet.
#[test]
fn a_packet_is_its_accessors_and_nothing_more() {
    for expression in [
        "not pcall(function() return pkt[0] end)",
        "not pcall(function() return pkt.slot end)",
        "not pcall(function() pkt.len = 1 end)",
        "not pcall(function() pkt[0] = 1 end)",
        "not pcall(function() return pkt + 1 end)",
        "not pcall(function() return pkt - pkt end)",
        "not pcall(function() return pkt < pkt end)",
        "not pcall(function() return #pkt end)",
        "not pcall(function() return pkt() end)",
        "not pcall(function() return pkt .. '' end)",
        "not pcall(bit.bor, pkt, 0)",
        "not pcall(next, pkt)",
        "not pcall(rawget, pkt, 'len')",
        "not pcall(setmetatable, pkt, {})",
        "getmetatable(pkt) == nil and tonumber(pkt) == nil and tostring(pkt) == 'packet'",
        "pkt == pkt and pkt ~= 0 and pkt ~= nil",
    ] {
        assert!(holds(expression), "{expression}");
    }
}

#[test]
fn a_packet_kept_for_later_shows_the_packet_of_its_call() {
    let text =
        "local kept return function(pkt) kept = kept or pkt return kept:u8(0) == pkt:u8(0) end";
    let mut trigger = trigger(text);
    let (one, two) = ([1; 60], [2; 20]);
    assert_eq!(trigger.match_many(&[packet(&one), packet(&two)]), 0b11);
    assert_eq!(trigger.match_many(&[packet(&two)]), 0b1);
}

#[test]
fn byte_code_is_refused() {
    let byte_code = "\u{1b}LJ\u{2}\u{2}";
    let error = Machine::new(&Script::new("b.lua", byte_code, false), PATIENT).unwrap_err();
    assert!(
        matches!(
            error,
            ScriptError::Syntax { .. } | ScriptError::Failed { .. }
        ),
        "{error}"
    );
}

#[test]
fn what_is_no_text_is_not_read() {
    for (name, kind) in [
        ("/dev/zero", ErrorKind::Other),
        ("/nowhere.lua", ErrorKind::NotFound),
        ("/dev", ErrorKind::IsADirectory),
    ] {
        match Script::read(name.as_ref(), false).unwrap_err() {
            ScriptError::Read { path, error } => {
                assert_eq!((path.as_path(), error.kind()), (name.as_ref(), kind));
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn trusted_scripts_have_it_all() {
    let text = "local ffi = require('ffi') return function(pkt)
        return ffi.cast('const uint8_t *', pkt:pointer())[1] == 7 and debug ~= nil and os ~= nil end";
    let script = Script::new("t.lua", text, true);
    let mut trigger = Machine::new(&script, PATIENT).unwrap();
    assert_eq!(
        trigger.match_many(&[packet(&[7; 60])]),
        1,
        "{:?}",
        trigger.fault.as_ref()
    );
}

#[test]
fn mistakes_name_their_place() {
    let error = |text| match Machine::new(&Script::new("dir/my.lua", text, false), PATIENT) {
        Ok(mut trigger) => {
            trigger.match_many(&[packet(&[7; 60])]);
            trigger.fault.expect("it fails")
        }
        Err(error) => error,
    };
    for (text, place, value) in [
        (
            "return function(pkt)\n  return pkt:len( end",
            ":2: ",
            "'end'",
        ),
        ("return 5", ": ", "number"),
        ("", ": ", "nil"),
        (
            "return function(pkt)\n  return pkt:length() == 1\nend",
            ":2: ",
            "'length'",
        ),
        ("error('no', 0)", ": ", "no"),
        ("return function() error({}) end", ": ", "table: "),
    ] {
        let error = error(text).to_string();
        let at = error
            .strip_prefix("dir/my.lua")
            .and_then(|rest| rest.strip_prefix(place));
        assert!(
            at.is_some_and(|said| said.contains(value)),
            "{error}\nat {place} of {value}"
        );
        assert!(!error.contains("traceback"), "{error}");
    }
}

#[test]
fn what_is_printed_is_kept_within_bounds() {
    let mut trigger = trigger("return function(pkt) print('n', pkt:len(), nil, true) end");
    trigger.match_many(&[packet(&[0; 9]); 64]);
    trigger.match_many(&[packet(&[0; 9]); 64]);
    let notes = trigger.take_notes();
    assert_eq!((notes.len(), notes[0].as_str()), (100, "n\t9\tnil\ttrue"));
    assert!(trigger.take_notes().is_empty());
}

#[test]
fn pairs_are_joined_by_text_of_addresses() {
    let text = "partition = 'host'
        return function(pkt)
          assert(partition.join({ pkt:src(), pkt:dst() }, { '2001:db8::2', '2001:db8::1' }))
          for _, pair in ipairs({ { '10.0.0.1', '::1' }, { 'example.com', '' }, { '10.0.0.1:5', '10.0.0.2' } }) do
            print(partition.join(pair, pair))
          end
        end";
    let mut script = trigger(text);
    assert_eq!(script.partition(), Partition::Host);
    script.match_many(&[packet(&udp(1, b"")), packet(&udp(2, b""))]);
    assert!(script.fault.is_none(), "{:?}", script.fault);
    let join = PairJoin {
        to: ["10.0.0.1", "10.0.0.2"].map(|it| it.parse().unwrap()),
        pair: ["2001:db8::2", "2001:db8::1"].map(|it| it.parse().unwrap()),
    };
    assert_eq!(
        (script.take_joins(), script.take_joins()),
        (vec![join; 2], vec![])
    );
    let reasons = [
        "false\t10.0.0.1 and ::1 are of different IP versions",
        "false\t'example.com' is not an IP address",
        "false\t'10.0.0.1:5' is not an IP address",
    ];
    assert_eq!(script.take_notes()[..3], reasons);
    // 1,024 calls are kept until they are taken, the call before the first packet included. The
    // next call returns false.
    let many = "local function join() return partition.join({ '::', '::' }, { '::', '::' }) end
        join()
        return function(pkt) return not join() end";
    let mut script = trigger(many);
    assert_eq!(script.partition(), Partition::Undeclared);
    for round in 0..16 {
        let refused = if round == 15 { 1 << 63 } else { 0 };
        assert_eq!(script.match_many(&[packet(&[]); 64]), refused);
    }
    assert_eq!(script.take_joins().len(), 1024);
}

#[test]
fn what_joins_wrongly_fails_with_the_reason() {
    for (arguments, found) in [
        ("", "nil"),
        ("'10.0.0.1', '10.0.0.2'", "string"),
        ("{ '::', '::' }", "nil"),
        (
            "{ pkt:src(), pkt:dst() }, { '::', '::' }",
            "a table with nil",
        ),
        ("{ '::', '::' }, { '::', 7 }", "a table with number"),
        ("{ '::', '::', '::' }", "a table of more values"),
    ] {
        let text = format!("return function(pkt)\n local is = partition.join({arguments}) end");
        let mut script = trigger(&text);
        script.match_many(&[packet(&[])]);
        let fault = script.fault.unwrap().to_string();
        let expected = format!(
            "test.lua:2: partition.join: a pair is a table of two addresses as strings, such as {{ pkt:src(), pkt:dst() }}, not {found}"
        );
        assert_eq!(fault, expected);
    }
    // A script without `partition.join` in its text has no global `partition`. A script that
    // declares an invalid partition gets an error, also if its text contains `partition.join`.
    assert!(holds("partition == nil"));
    let script = Script::new(
        "test.lua",
        "partition = 7 --partition.join\nreturn function() end",
        false,
    );
    let wrong = Machine::new(&script, PATIENT).unwrap_err().to_string();
    assert!(wrong.contains("partition is number"), "{wrong}");
}
