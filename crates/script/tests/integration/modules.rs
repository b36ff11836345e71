//! Modules: callbacks, states, keys, and invalid modules.

use std::time::Duration;

use crate::common::{PATIENT, packet, trigger, udp};
use retroscope_flow::TrackerConfig;
use retroscope_script::{LuaModule, ModuleCounts, Runner, Script, ScriptLimits, ScriptPacket};

/// The error for a module with this text.
fn refusal(text: &str) -> String {
    let script = Script::new("test.lua", text, false);
    match LuaModule::new(&script, PATIENT) {
        Ok(module) => panic!("{module:?}"),
        Err(error) => error.to_string(),
    }
}

fn runner_of(script: &Script, config: &TrackerConfig, limits: ScriptLimits) -> Runner {
    let module = LuaModule::new(script, limits).unwrap_or_else(|error| panic!("{error}"));
    Runner::new(module, config)
}

fn runner(text: &str) -> Runner {
    let script = Script::new("test.lua", text, false);
    runner_of(&script, &TrackerConfig::default(), PATIENT)
}

/// Shows frames of second 0 in one call. Returns the indices of the frames for which the module
/// requested a dump.
fn wanted_at_once(runner: &mut Runner, frames: &[Vec<u8>]) -> Vec<usize> {
    let packets: Vec<_> = frames.iter().map(|it| packet(it)).collect();
    let mut dumps = Vec::new();
    runner.handle_packets(&packets, &vec![0; packets.len()], &mut dumps);
    dumps.into_iter().map(|dump| dump.at).collect()
}

/// Shows one frame a second from second 0. Returns the indices of the frames for which the module
/// requested a dump, and the dump expressions.
fn wanted(runner: &mut Runner, frames: &[Vec<u8>]) -> Vec<(usize, Option<String>)> {
    let seconds = (0_i64..).map(|second| second * 1_000_000_000);
    let packets = seconds.zip(frames).map(|(time_ns, frame)| ScriptPacket {
        time_ns,
        ..packet(frame)
    });
    let packets: Vec<_> = packets.collect();
    let mut all = Vec::new();
    for (nth, packets) in packets.chunks(7).enumerate() {
        let times_ns: Vec<i64> = packets.iter().map(|it| it.time_ns).collect();
        let mut dumps = Vec::new();
        runner.handle_packets(packets, &times_ns, &mut dumps);
        all.extend(
            dumps
                .into_iter()
                .map(|dump| (nth * 7 + dump.at, dump.filter)),
        );
    }
    all
}

#[test]
fn a_packets_flow_is_shunted_by_name_and_while_it_is_shown() {
    let frames: Vec<_> = (0..64).map(|port| udp(port % 8, b"x")).collect();
    let packets: Vec<_> = frames.iter().map(|it| packet(it)).collect();
    let every_third = "local n = -1
        local function look(pkt) n = n + 1 if n % 3 == 0 then pkt:shunt() end return n == 5 end ";
    let expected = (0..64).filter(|n| n % 3 == 0);
    let expected = expected.fold(0, |all, n: u32| all | 1_u64 << n);
    let mut script = trigger(&format!("{every_third} return look"));
    assert!(script.shunts());
    assert_eq!(script.match_many(&packets), 1 << 5);
    assert_eq!(
        (script.take_shunted(), script.take_shunted()),
        (expected, 0)
    );
    let text = "local m = { stateType = 'bool any;' }
        function m.handlePacket(key, state, pkt) return look(pkt) end return m";
    let mut module = runner(&format!("{every_third} {text}"));
    assert!(module.settings().shunts);
    assert_eq!(wanted_at_once(&mut module, &frames), [5]);
    assert_eq!(module.shunted(), expected);
    wanted_at_once(&mut module, &frames[..1]);
    assert_eq!(module.shunted(), 0);
    // A script that fails keeps the shunts that it requested before.
    let mut script = trigger("return function(pkt) pkt:shunt() error('stop') end");
    script.match_many(&packets);
    assert_eq!((script.take_shunted(), script.fault.is_some()), (1, true));
    for (text, expected) in [
        (
            "return function(pkt) pkt['sh' .. 'unt']() end",
            "has to name it",
        ),
        (
            "local kept return function(pkt) kept = pkt kept:shunt(1, 2) end",
            "",
        ),
    ] {
        let mut script = trigger(text);
        script.match_many(&packets);
        let fault = script.fault.map_or(String::new(), |it| it.to_string());
        assert!(
            fault.contains(expected) && fault.is_empty() == expected.is_empty(),
            "{fault}"
        );
    }
    // During a check there is no current packet, so `shunt` fails.
    let mut module = runner(
        "local m, kept = { checkInterval = 1 }
        function m.handlePacket(key, state, pkt) kept = pkt end
        function m.checkExpiry() kept:shunt() end
        return m",
    );
    let _ = wanted(&mut module, &frames[..3]);
    let notes = module.take_notes();
    assert!(notes[0].contains("shunt: there is no packet"), "{notes:?}");
}

/// The packet that answers `udp(port, …)`: addresses and ports are swapped.
fn answer(port: u16) -> Vec<u8> {
    let mut frame = udp(port, b"answer");
    for at in 0..4 {
        frame.swap(26 + at, 30 + at);
    }
    frame.swap(34, 36);
    frame.swap(35, 37);
    frame
}

#[test]
fn a_flow_has_a_state_of_its_own_that_begins_with_the_default() {
    let text = "
        local m = {}
        m.stateType = [[struct {
            uint64_t packets; int8_t small; bool seen; double mean; float part;
            uint16_t sizes[3]; char name[8];
        }]]
        m.defaultState = { packets = 10, small = -3, seen = true, mean = 0.5, part = 0.25, sizes = { 7, 8 }, name = 'abc' }
        function m.handlePacket(key, state, pkt, isFirst)
            print(tonumber(state.packets), state.small, state.seen, state.mean, state.part, state.sizes[0], state.sizes[1],
                state.sizes[2], #state.sizes, state.name, isFirst)
            state.packets = state.packets + 1
            state.small = state.small - 1
            state.seen = not state.seen
            state.mean, state.part = state.mean * 2, state.part * 2
            state.sizes[2] = pkt:len()
            state.name = state.name .. 'd'
            return tonumber(state.packets) == 12
        end
        return m";
    let mut runner = runner(text);
    let frames = [
        udp(1, b""),
        udp(2, b""),
        answer(1),
        udp(2, b"x"),
        udp(3, b""),
    ];
    let wanted = wanted(&mut runner, &frames);
    assert_eq!(wanted, [(2, None), (3, None)]);
    let first = "10\t-3\ttrue\t0.5\t0.25\t7\t8\t0\t3\tabc\ttrue";
    let second = "11\t-4\tfalse\t1\t0.5\t7\t8\t42\t3\tabcd\tfalse";
    assert_eq!(runner.take_notes(), [first, first, second, second, first]);
    let expected = ModuleCounts {
        packets: 5,
        begun: 3,
        live: 3,
        wanted: 2,
        ..ModuleCounts::default()
    };
    assert_eq!(runner.counts(), expected);
}

#[test]
fn keys_say_what_flows_are() {
    let text = "
        local m = {}
        function m.handlePacket(key, state, pkt, isFirst)
            print(key:ip(), key:proto(), key:addr_a(), key:port_a(), key:addr_b(), key:port_b(), key:vlan(), tostring(key), key:from_a())
            return true
        end
        function m.buildPacketFilter(key, state)
            return 'host ' .. key:addr_b() .. ' and udp port ' .. key:port_b()
        end
        return m";
    let mut runner = runner(text);
    let mut tagged = udp(53, b"");
    tagged.splice(12..12, [0x81, 0, 0x20, 5]);
    let filter = Some("host 10.0.0.2 and udp port 53".to_owned());
    let wanted = wanted(&mut runner, &[answer(53), tagged]);
    assert_eq!(wanted, [(0, filter.clone()), (1, filter)]);
    let line =
        |vlan| format!("4\t17\t10.0.0.1\t1234\t10.0.0.2\t53\t{vlan}\t17 10.0.0.1 1234 10.0.0.2 53");
    let expected = [line("nil") + "\tfalse", line("5") + "\ttrue"];
    assert_eq!(runner.take_notes(), expected);
}

#[test]
fn a_module_makes_keys_of_its_own() {
    let text = "
        local m = {}
        m.flowKeys = { 'struct { uint8_t first; }', 'struct { char all[30]; uint16_t length; }' }
        m.stateType = 'uint32_t packets;'
        function m.extractFlowKey(pkt, byByte, byText)
            local payload = pkt:payload()
            if #payload == 0 then return false end
            if #payload == 1 then
                byByte.first = payload:byte()
                return true
            end
            byText.all, byText.length = payload, #payload
            return true, 2
        end
        function m.handlePacket(key, state, pkt, isFirst)
            state.packets = state.packets + 1
            print(#pkt:payload() == 1 and key.first or key.all .. key.length, state.packets, isFirst)
            return false
        end
        return m";
    let mut runner = runner(text);
    let frames = [
        udp(1, b"a"),
        udp(2, b"a"),
        udp(3, b""),
        udp(4, b"ab"),
        udp(5, b"a"),
        udp(6, b"ab"),
        udp(7, b"ab\0"),
    ];
    assert_eq!(wanted(&mut runner, &frames), []);
    let lines = [
        "97\t1\ttrue",
        "97\t2\tfalse",
        "ab2\t1\ttrue",
        "97\t3\tfalse",
        "ab2\t2\tfalse",
        "ab3\t1\ttrue",
    ];
    assert_eq!(runner.take_notes(), lines);
    let counts = runner.counts();
    assert_eq!(
        (counts.packets, counts.unattributed, counts.begun),
        (6, 1, 3)
    );
}

#[test]
fn checks_end_flows_and_keep_their_own_state() {
    let text = "
        local m = {}
        m.stateType = 'double last;'
        m.checkInterval = 5
        m.checkState = { checks = 0 }
        function m.handlePacket(key, state, pkt) state.last = pkt:time() end
        function m.checkInitializer(check, now) check.checks, check.begun = check.checks + 1, now end
        function m.checkExpiry(key, state, check, now)
            assert(now == check.begun)
            return now - state.last >= 3, state.last
        end
        function m.checkFinalizer(check, kept, purged) print(check.checks, check.begun, kept, purged) end
        return m";
    let mut runner = runner(text);
    // Port 1 at 0 and 1 s, port 2 at 2 s and from 9 s on, port 3 in between.
    let ports = [1, 1, 2, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2];
    let frames: Vec<_> = ports.iter().map(|port| udp(*port, b"")).collect();
    assert_eq!(wanted(&mut runner, &frames), []);
    // The check at 5 s precedes the packet of that second, and ends ports 1 and 2. The packet at 9
    // s begins port 2 again, and the check at 10 s ends no flow.
    assert_eq!(runner.take_notes(), ["1\t5\t1\t2", "2\t10\t2\t0"]);
    let counts = runner.counts();
    assert_eq!((counts.begun, counts.over, counts.live), (4, 2, 2));
}

/// The packets and their times determine when checks run. It must not matter into how many calls
/// the packets are divided.
#[test]
fn checks_do_not_depend_on_batches() {
    let text = "
        local m = { checkInterval = 0.5 }
        m.stateType = 'uint32_t packets;'
        function m.handlePacket(key, state) state.packets = state.packets + 1; print('packet', state.packets) end
        function m.checkExpiry(key, state) print('check', key:port_b(), state.packets) return state.packets > 2 end
        function m.checkFinalizer(_, kept, purged) print(kept, purged) end
        return m";
    let mut random = fastrand::Rng::with_seed(1);
    let frames: Vec<_> = (0..200).map(|_| udp(random.u16(1..5), b"")).collect();
    let mut time_ns = 0;
    let times_ns: Vec<i64> = std::iter::repeat_with(|| {
        time_ns += random.i64(0..300_000_000);
        time_ns
    })
    .take(frames.len())
    .collect();
    let mut lines = Vec::new();
    for most in [1, 2, 5, 13] {
        let mut runner = runner(text);
        let mut said = Vec::new();
        let mut at = 0;
        while at < frames.len() {
            let end = (at + random.usize(1..=most)).min(frames.len());
            let packets: Vec<_> = frames[at..end].iter().map(|it| packet(it)).collect();
            runner.handle_packets(&packets, &times_ns[at..end], &mut Vec::new());
            said.extend(runner.take_notes());
            at = end;
        }
        lines.push(said);
    }
    assert!(lines[0].iter().filter(|it| it.starts_with("check")).count() > 20);
    assert!(lines.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_silent_link_is_checked_too() {
    let text = "
        local m = { checkInterval = 2 }
        function m.handlePacket() end
        function m.checkExpiry() return true end
        function m.checkFinalizer(_, kept, purged) print(kept, purged) end
        return m";
    let mut runner = runner(text);
    wanted(&mut runner, &[udp(1, b"")]);
    let second = 1_000_000_000;
    runner.pass(100 * second);
    runner.pass(101 * second);
    assert_eq!(runner.take_notes(), [""; 0]);
    runner.pass(102 * second);
    assert_eq!(runner.take_notes(), ["0\t1"]);
}

#[test]
fn a_wrong_module_is_told_with_its_line() {
    let module =
        |rest: &str| format!("local m = {{}}\nfunction m.handlePacket() end\n{rest}\nreturn m");
    for (text, expected) in [
        (
            "return 5",
            "test.lua: returns number, and should return a table, the module",
        ),
        (
            "return {}",
            "test.lua: a module has function handlePacket(key, state, pkt, isFirst)",
        ),
        ("x = = 1", "test.lua:1: unexpected symbol near '='"),
        (
            "local m = {}\n\nm.handlePacket = 5\nreturn m",
            "test.lua:3: handlePacket should be a function, not number",
        ),
        (
            &module("m.stateType = [[struct {\n  uint8_t a;\n  void *b;\n}]]"),
            "test.lua:5: stateType: 'void' is no type of a field",
        ),
        (
            &module("m.stateType = 5"),
            "test.lua:3: stateType should be a string, not number",
        ),
        (
            &module(
                "m.stateType = 'char a[1024]; char b[1024]; char c[1024]; char d[1024]; char e;'",
            ),
            "test.lua:3: stateType: 4097 bytes, and 4096 at most are kept",
        ),
        (
            &module("m.stateType = 'uint8_t a;'\nm.defaultState = {\n  b = 1\n}"),
            "test.lua:5: stateType has no field 'b'",
        ),
        (
            &module("m.stateType = 'uint8_t a;'\nm.defaultState = { a = 'x' }"),
            "test.lua:4: 'a' takes a number, got string",
        ),
        (
            &module("m.stateType = 'char a[2];'\nm.defaultState = { a = 'xyz' }"),
            "test.lua:4: 'a' takes 2 bytes, got 3",
        ),
        (
            &module("m.stateType = 'bool a[2];'\nm.defaultState = { a = { true, 1 } }"),
            "test.lua:4: 'a' takes a boolean, got number",
        ),
        (
            &module("m.defaultState = 1"),
            "test.lua:3: defaultState should be a table, not number",
        ),
        (
            &module("m.mode = 'fast'"),
            "test.lua:3: mode should be 'qq' or 'direct'",
        ),
        (
            &module("m.partition = 'all'"),
            "test.lua:3: partition should be 'flow', 'host' or 'none', not 'all'",
        ),
        (
            &module("m.maxDumperRules = 0"),
            "test.lua:3: maxDumperRules should be 1 to 65536",
        ),
        (
            &module("m.checkInterval = 3"),
            "test.lua:3: checkInterval should be left out where there is no checkExpiry",
        ),
        (
            &module("m.flowKeys = {}"),
            "test.lua:3: flowKeys should be left out where there is no extractFlowKey",
        ),
        (
            &module(
                "m.stateType = 'bool a;'\n-- m.flowKeys = {}\nm.flowKeys = { 'uint64_t a; uint8_t b[29];' }\nfunction m.extractFlowKey() end",
            ),
            "test.lua:5: flowKeys[1]: 40 bytes, and 36 at most are kept",
        ),
        (
            &module("function m.checkExpiry() end\nm.checkInterval = 1e-12"),
            "test.lua:4: checkInterval should be at least 0.001 seconds",
        ),
    ] {
        let said = refusal(text);
        assert!(said.starts_with(expected), "{text}\n{said}");
    }
}

/// Changes that a module's file makes to the Lua libraries must not affect the program's own Lua
/// code.
#[test]
fn functions_of_the_file_are_not_called_by_ours() {
    let text = "
        local function hostile(...) error('called') end
        for name in pairs(string) do string[name] = hostile end
        for name in pairs(table) do table[name] = hostile end
        for name in pairs(math) do math[name] = hostile end
        type, tostring, pairs, ipairs, select, unpack, error, assert = hostile, hostile, hostile, hostile, hostile, hostile, hostile, hostile
        local m = { checkInterval = 1, stateType = 'uint8_t some[4]; uint64_t number; char text[4]; bool is;' }
        m.defaultState = { some = { 1, 2 }, number = 5, text = 'ab', is = true }
        function m.handlePacket(key, state, pkt)
            state.some[1], state.number, state.text = 7, 9, state.text
            return key:addr_a() ~= nil and key:port_a() ~= nil
        end
        function m.buildPacketFilter() return 'udp' end
        function m.checkExpiry() return true, 3.5 end
        return m";
    let mut runner = runner(text);
    let filter = Some("udp".to_owned());
    assert_eq!(
        wanted(&mut runner, &[udp(1, b""), udp(2, b"")]),
        [(0, filter.clone()), (1, filter)]
    );
    assert_eq!(runner.take_notes(), [""; 0]);
    let refused = "string.format = function() return 'error(1)' end
        return { stateType = 'void *p;', handlePacket = print }";
    assert!(refusal(refused).starts_with("test.lua:2: stateType: 'void'"));
}

/// Invalid accesses to the objects that user code gets must fail. Objects that the module kept from
/// another call must show the current packet and state, or nothing.
#[test]
fn objects_lead_to_no_memory() {
    let text = "
        local m = { checkInterval = 1, stateType = 'uint8_t some[4]; uint64_t number; char text[4];' }
        local kept = {}
        local function fails(f, ...) assert(not pcall(f, ...), 'it works') end
        function m.handlePacket(key, state, pkt, isFirst)
            kept.key, kept.state, kept.pkt, kept.some = key, state, pkt, state.some
            for _, at in pairs({ -1, 4, 4.5, 1e300, 0/0, '0', 1ULL, true }) do
                fails(function() return state.some[at] end)
                fails(function() state.some[at] = 1 end)
            end
            fails(function() state.some = 5 end)
            fails(function() state.number = {} end)
            fails(function() state.number = pkt end)
            fails(function() state.number = state end)
            fails(function() state.number = nil end)
            fails(function() state.text = 'abcde' end)
            fails(function() return state.at end)
            fails(function() return state[0] end)
            fails(function() state[0] = 1 end)
            fails(function() key.at = 1 end)
            fails(function() return key.at end)
            fails(function() return getmetatable(state).__index end)
            fails(function() return state + 1 end)
            assert(tostring(state) == 'stateType' and tostring(state.some) == 'some')
            state.some[3], state.number, state.text = 255, 2^53, 'abcd'
            assert(state.some[3.5] == 255 and state.number == 2^53 and state.text == 'abcd' and #state.some == 4)
            state.text = 'x'
            assert(state.text == 'x')
        end
        local function is_nothing()
            assert(kept.pkt:len() == 0 and kept.pkt:u8(0) == nil and kept.pkt:payload() == nil and kept.pkt:src() == nil)
            assert(kept.pkt:ttl() == nil and kept.pkt:tcp_seq() == nil and kept.pkt:arp() == nil and kept.pkt:icmp_type() == nil)
        end
        function m.checkInitializer()
            is_nothing()
            assert(kept.state.text == '' and kept.some[3] == 0 and kept.key:addr_a() == nil)
        end
        function m.checkExpiry(key, state)
            is_nothing()
            assert(state.text == 'x' and kept.some[3] == 255)
            print('checked')
            return true
        end
        m.checkFinalizer = m.checkInitializer
        return m";
    let mut runner = runner(text);
    wanted(&mut runner, &[udp(1, b""), udp(1, b""), udp(1, b"")]);
    let notes = runner.take_notes();
    assert_eq!(notes, ["checked", "checked"]);
    assert_eq!(runner.counts().faults, 0);
}

#[test]
fn a_module_that_fails_loses_its_batch_and_is_disabled_when_it_fails_again() {
    let text = "
        local m = { stateType = 'uint32_t packets;' }
        function m.handlePacket(key, state, pkt, isFirst)
            assert(isFirst == (state.packets == 0))
            state.packets = state.packets + 1
            if pkt:has_port(6) then local nothing = nil; return nothing.at end
            return true
        end
        return m";
    let mut runner = runner(text);
    let port = |port: u16| udp(port, b"");
    let first = [port(1), port(2), port(6), port(3)];
    assert_eq!(wanted_at_once(&mut runner, &first), [0, 1]);
    let counts = runner.counts();
    assert_eq!((counts.packets, counts.lost, counts.faults), (2, 2, 1));
    let notes = runner.take_notes();
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("test.lua:6: attempt to index local 'nothing'"),
        "{notes:?}"
    );
    assert!(notes[0].ends_with("it is disabled"), "{notes:?}");
    // Earlier counts are kept, and a flow whose first packet was lost begins with the next packet.
    assert_eq!(
        wanted_at_once(&mut runner, &[port(1), port(3), port(3)]),
        [0, 1, 2]
    );
    assert!(!runner.is_disabled());
    wanted_at_once(&mut runner, &[port(6)]);
    assert!(runner.is_disabled());
    assert!(runner.take_notes()[0].ends_with("is disabled"));
    assert_eq!(wanted_at_once(&mut runner, &[port(1), port(2)]), [0; 0]);
    let counts = runner.counts();
    assert_eq!(
        (counts.packets, counts.lost, counts.faults, counts.wanted),
        (5, 5, 2, 5)
    );
}

#[test]
fn a_module_that_hangs_is_stopped_and_goes_on() {
    let text = "
        local m = {}
        function m.handlePacket(key, state, pkt)
            while pkt:has_port(6) do end
            return true
        end
        return m";
    let script = Script::new("test.lua", text, false);
    let limits = ScriptLimits {
        time: Duration::from_millis(100),
        ..PATIENT
    };
    let mut runner = runner_of(&script, &TrackerConfig::default(), limits);
    assert_eq!(
        wanted(&mut runner, &[udp(1, b""), udp(6, b"")]),
        [(0, None)]
    );
    assert_eq!(wanted(&mut runner, &[udp(1, b"")]), [(0, None)]);
    assert_eq!(runner.counts().faults, 1);
    assert!(runner.take_notes()[0].starts_with("test.lua: stopped, one call took more than 100ms"));
}

/// The time limit applies to a call of up to 4096 flows, however little time each takes.
#[test]
fn a_check_that_takes_long_is_stopped() {
    let text = "
        local m = { checkInterval = 1 }
        function m.handlePacket() end
        function m.checkExpiry()
            for n = 1, 1000000 do if n % 7 == 8 then return true end end
        end
        return m";
    let script = Script::new("test.lua", text, false);
    let limits = ScriptLimits {
        time: Duration::from_millis(100),
        ..PATIENT
    };
    let mut runner = runner_of(&script, &TrackerConfig::default(), limits);
    let frames: Vec<_> = (0..2000).map(|port| udp(port, b"")).collect();
    frames.chunks(64).for_each(|frames| {
        wanted_at_once(&mut runner, frames);
    });
    runner.pass(0);
    runner.pass(2_000_000_000);
    let counts = runner.counts();
    assert_eq!((counts.faults, counts.lost, counts.live), (1, 0, 2000));
    let notes = runner.take_notes();
    assert!(
        notes[0].ends_with("this check of its flows ends; when it fails again, it is disabled"),
        "{notes:?}"
    );
    runner.finish();
    assert!(runner.is_disabled());
}

#[test]
fn memory_is_bounded_by_the_number_of_flows() {
    let text = "
        local m = { stateType = 'uint64_t packets;' }
        function m.handlePacket(key, state, pkt, isFirst)
            state.packets = state.packets + 1
            assert(isFirst == (state.packets == 1))
        end
        return m";
    let script = Script::new("test.lua", text, false);
    let config = TrackerConfig {
        flows_max: 100,
        ..TrackerConfig::default()
    };
    let mut runner = runner_of(&script, &config, PATIENT);
    let mut random = fastrand::Rng::with_seed(3);
    let frames: Vec<_> = (0..5000).map(|_| udp(random.u16(..1000), b"")).collect();
    for frames in frames.chunks(64) {
        wanted_at_once(&mut runner, frames);
    }
    let counts = runner.counts();
    assert_eq!((counts.packets, counts.faults, counts.live), (5000, 0, 100));
    assert_eq!(counts.begun, counts.evicted + 100);
    assert_eq!(runner.take_notes(), [""; 0]);
}

#[test]
fn direct_modules_dump_nothing() {
    let text = "return { mode = 'direct', handlePacket = function() return true end }";
    let mut runner = runner(text);
    assert_eq!(wanted(&mut runner, &[udp(1, b"")]), []);
}
