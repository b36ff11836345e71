//! Scripts that take too much time or memory are stopped with a message.

use std::time::{Duration, Instant};

use crate::common::{PATIENT, packet, run_until_fault, trigger};
use retroscope_script::{Machine, Script, ScriptError, ScriptLimits};

/// Limits for scripts that must or may exceed their time. The short time keeps the tests short.
const BRIEF: ScriptLimits = ScriptLimits {
    time: Duration::from_millis(200),
    memory_bytes: 8 << 20,
};

/// Limits for scripts that must not exceed their time: they must fail in another way, or not at
/// all.
const LITTLE: ScriptLimits = ScriptLimits {
    memory_bytes: BRIEF.memory_bytes,
    ..PATIENT
};

fn fault(text: &str, limits: ScriptLimits) -> ScriptError {
    match Machine::new(&Script::new("t.lua", text, false), limits) {
        Ok(trigger) => run_until_fault(trigger),
        Err(error) => error,
    }
}

#[test]
fn endless_loops_are_stopped_compiled_or_not() {
    for text in [
        // The first 5,000 packets take little time, so LuaJIT compiles the loop before the script
        // hangs.
        "local n = 0 return function() n = n + 1 if n > 5000 then while true do end end return false end",
        "local n = 0 return function(pkt) n = n + 1 while n > 5000 do n = n + pkt:len() end return false end",
        "return function() for i = 1, 1e18 do end return true end",
        "local t = {1, 2} return function() repeat for k in pairs(t) do t[k] = k end until false end",
        "local function f(n) return f(n + 1) end return function() return f(1) end",
        "while true do end return function() end",
    ] {
        let fault = fault(text, BRIEF);
        assert!(
            matches!(fault, ScriptError::Time { budget, .. } if budget == BRIEF.time),
            "{text}: {fault}"
        );
    }
}

#[test]
fn catching_the_error_does_not_help() {
    for text in [
        "return function() while true do pcall(function() while true do end end) end end",
        "local function f() pcall(f) return f() end return function() return f() end",
        "return function() while true do pcall(pcall, pcall, error) end end",
        "local t = setmetatable({}, {__index = function(t, k) while true do end end})
         return function() while true do pcall(function() return t.x end) end end",
        "local t = setmetatable({}, {__tostring = function() while true do end end})
         return function() for i = 1, 1e9 do pcall(tostring, t) end end",
    ] {
        let fault = fault(text, BRIEF);
        assert!(matches!(fault, ScriptError::Time { .. }), "{text}: {fault}");
    }
}

#[test]
fn memory_is_bounded() {
    for text in [
        "local s = 'x' return function() s = s .. s return false end",
        "return function() local t = {} for i = 1, 1e9 do t[i] = {} end end",
        "return function() return ('x'):rep(1e9) == '' end",
        "local all = {} return function(pkt) all[#all + 1] = pkt:bytes(0, 20) .. #all end",
        "local t = {} return function() for i = 1, 1e9 do t[i] = i end end",
        "local s = ('x'):rep(1e6) return function() local t = {} for i = 1, 1000 do t[i] = s end return table.concat(t) end",
        "local t = ('x'):rep(1e9) return function() end",
    ] {
        let fault = fault(text, LITTLE);
        assert!(
            matches!(fault, ScriptError::Memory { budget_bytes, .. } if budget_bytes == LITTLE.memory_bytes),
            "{text}: {fault}"
        );
    }
}

#[test]
fn a_script_that_catches_its_lack_of_memory_stays_within_it() {
    let text = "local s = 'x' return function() pcall(function() while true do s = s .. s end end) return true end";
    let mut trigger = Machine::new(&Script::new("t.lua", text, false), LITTLE).unwrap();
    for _ in 0..10 {
        assert_eq!(trigger.match_many(&[packet(&[0; 60])]), 1);
        assert!(trigger.memory_bytes() <= LITTLE.memory_bytes);
    }
}

/// Recursion ends at the limit of Lua's stack, never at the limit of the native stack.
#[test]
fn recursion_is_an_error() {
    for text in [
        "local function f() return pcall(f) and f() end return function() return f() end",
        "local function f() return 1 + f() end return function() return f() end",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k + 1] + 1 end return function() return t[1] end",
        "local t = setmetatable({}, {}) getmetatable(t).__tostring = function(t) return tostring(t) .. 'x' end return function() return tostring(t) end",
        "local t = setmetatable({}, {}) getmetatable(t).__tostring = function(t) return ('%s'):format(t) end return function() return ('%s'):format(t) end",
        "local t = setmetatable({}, {}) getmetatable(t).__concat = function(t) return t .. 'x' .. 1 end return function() return t .. 'x' end",
        "local t = setmetatable({}, {}) getmetatable(t).__lt = function(t, u) return not (t < u) end return function() return t < t end",
        "local t = setmetatable({}, {}) getmetatable(t).__call = function(t) return 1 + t() end return function() return t() end",
    ] {
        // The call must return. The second script overflows the stack, the first script catches
        // each error and continues until its time has passed.
        if let Ok(mut trigger) = Machine::new(&Script::new("t.lua", text, false), BRIEF) {
            trigger.match_many(&[packet(&[0; 60])]);
            let fault = trigger.fault;
            assert!(
                matches!(
                    fault,
                    None | Some(ScriptError::Failed { .. } | ScriptError::Time { .. })
                ),
                "{text}: {fault:?}"
            );
        }
    }
}

/// An error may be any value, for example a table that hangs, fails or exhausts memory when it is
/// converted to text.
#[test]
fn errors_that_misbehave_are_errors() {
    type IsRight = fn(&ScriptError) -> bool;
    let is_failed: IsRight = |fault| matches!(fault, ScriptError::Failed { .. });
    let is_time: IsRight = |fault| matches!(fault, ScriptError::Time { .. });
    let is_memory: IsRight = |fault| matches!(fault, ScriptError::Memory { .. });
    for (shown, limits, is_right) in [
        ("while true do end", BRIEF, vec![is_time]),
        ("error('again')", LITTLE, vec![is_failed]),
        ("return 5", LITTLE, vec![is_failed]),
        // The script overflows the stack, which may take long.
        ("return tostring(e)", BRIEF, vec![is_failed, is_time]),
        ("return ('x'):rep(1e9)", LITTLE, vec![is_failed, is_memory]),
    ] {
        let text = format!(
            "local e e = setmetatable({{}}, {{__tostring = function() {shown} end}}) return function() error(e) end"
        );
        let fault = fault(&text, limits);
        assert!(is_right.iter().any(|is| is(&fault)), "{shown}: {fault}");
    }
}

#[test]
fn no_library_function_runs_for_long_over_little_memory() {
    for call in [
        "table.insert({}, -2147483648, 1)",
        "table.insert({}, 1e300, 1)",
        "table.insert({}, '-2147483648', 1)",
    ] {
        let text = format!("return function()\n {call} return true end");
        let start = cpu_time();
        let fault = fault(&text, LITTLE);
        let took = cpu_time() - start;
        assert!(took < BRIEF.time, "{call}: {took:?}");
        assert!(
            matches!(fault, ScriptError::Failed { .. }) && fault.to_string().contains("t.lua:2:"),
            "{call}: {fault}"
        );
    }
    let text = "return function()
          local t = {} table.insert(t, 'b') table.insert(t, 1, 'a') table.insert(t, 3, 'c')
          local quick = string.rep('', 2 ^ 31 - 1, '') == ''
          return quick and table.concat(t) == 'abc' and not pcall(table.insert, t, 1, 2, 3)
        end";
    let mut trigger = trigger(text);
    let start = cpu_time();
    let found = trigger.match_many(&[packet(&[0; 60])]);
    let took = cpu_time() - start;
    assert_eq!(found, 1, "{:?}", trigger.fault.as_ref());
    assert!(took < ScriptLimits::default().time, "{took:?}");
}

#[test]
fn what_was_found_before_an_error_counts() {
    let text = "local n = 0 return function(pkt) n = n + 1 if n == 6 then error('enough') end return n % 2 == 1 end";
    let mut trigger = trigger(text);
    let packets = [packet(&[0; 60]); 10];
    assert_eq!(trigger.match_many(&packets), 0b10101);
    let fault = trigger.fault.as_ref().unwrap();
    assert!(
        matches!(fault, ScriptError::Failed { message } if message == "test.lua:1: enough"),
        "{fault}"
    );
    assert_eq!(trigger.match_many(&packets), 0, "it is disabled");
}

#[test]
fn a_stopped_script_leaves_others_alone() {
    let mut other = trigger("return function(pkt) return pkt:len() == 60 end");
    assert!(matches!(
        fault("while true do end", BRIEF),
        ScriptError::Time { .. }
    ));
    assert_eq!(other.match_many(&[packet(&[0; 60]); 64]), u64::MAX);
    assert!(other.fault.is_none());
}

#[test]
fn idle_time_is_not_counted() {
    let script = Script::new("t.lua", "return function() return true end", false);
    let limits = ScriptLimits {
        time: Duration::from_millis(400),
        ..LITTLE
    };
    // All calls together take longer than one call may take, but each call is short.
    let run = |trigger: &mut Machine| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            let call = Instant::now();
            if trigger.match_many(&[packet(&[0; 60])]) != 1 {
                return Err(call.elapsed());
            }
        }
        Ok(())
    };
    for _ in 0..20 {
        // The script may also be stopped while it is loaded.
        let Ok(mut trigger) = Machine::new(&script, limits) else {
            continue;
        };
        match run(&mut trigger) {
            Ok(()) => return,
            // The thread was suspended during a call, and that time counts.
            Err(took) => assert!(
                took >= limits.time,
                "{took:?}: {:?}",
                trigger.fault.as_ref()
            ),
        }
    }
    panic!("20 runs, and none without a call that took {limits:?}");
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().expect("it is not negative")
}
