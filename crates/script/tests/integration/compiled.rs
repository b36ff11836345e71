//! LuaJIT compiles the loop over a batch together with the user's function.

use crate::common::{PATIENT, packet, udp};
use retroscope_script::{Machine, Script, ScriptPacket, compiles};

/// Counts LuaJIT's events while the script runs, and prints the counts for a packet of one byte.
///
/// The function around the loop becomes hot, too. LuaJIT tries to compile this function, finds that
/// the loop is already compiled (`LJ_TRERR_LINNER` of lj_traceerr.h), and stops trying after some
/// attempts. The test does not count that as an abandoned trace.
const COUNTERS: &str = "
    local stops, aborts = 0, 0
    local inner_loop = 9
    local function event(what, _, _, _, reason)
        if what == 'stop' then stops = stops + 1 end
        if what == 'abort' and reason ~= inner_loop then aborts = aborts + 1 end
    end
    require('jit').attach(event, 'trace')
    local function count(pkt)
        if pkt:len() == 1 then print(stops, aborts) end
    end
";

/// Compiled and abandoned traces, in the first batches and in later batches.
fn traces(text: &str) -> [(u32, u32); 2] {
    let text = format!(
        "{COUNTERS} local keep = (function() {text} end)() return function(pkt) count(pkt) return keep(pkt) end"
    );
    let mut trigger = Machine::new(&Script::new("t.lua", &text, true), PATIENT).unwrap();
    let frames: Vec<Vec<u8>> = (0..64_u16)
        .map(|n| {
            udp(
                if n % 16 == 3 { 60_000 } else { n },
                if n % 8 == 0 { b"EXAMPLE" } else { b"another" },
            )
        })
        .collect();
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    let mut counts = [200, 2000].map(|batches| {
        let mut found = 0;
        for _ in 0..batches {
            found += trigger.match_many(&packets).count_ones();
        }
        assert!(found > 0, "{text}: {:?}", trigger.fault.as_ref());
        trigger.match_many(&[packet(&[0])]);
        let note = trigger.take_notes().pop().unwrap();
        let (stops, aborts) = note.split_once('\t').unwrap();
        (stops.parse().unwrap(), aborts.parse().unwrap())
    });
    counts[1].0 -= counts[0].0;
    counts[1].1 -= counts[0].1;
    counts
}

#[test]
fn filters_are_compiled_and_stay_so() {
    if !compiles() {
        eprintln!(
            "SKIPPED: LuaJIT was built without LUAJIT_ENABLE_CHECKHOOK (build from the workspace's folder)"
        );
        return;
    }
    for text in [
        "return function(pkt) return pkt:is_udp() and pkt:has_port(60000) end",
        "return function(pkt) return pkt:src_port() == 60000 or pkt:dst_port() == 60000 end",
        "return function(pkt) return pkt:u16(36) == 60000 end",
        "local n = net('10.0.0.0/16') return function(pkt) return pkt:host(n) end",
        "return function(pkt) return pkt:startswith('EXAMPLE') end",
        "return function(pkt) return pkt:contains('AMP') end",
        "return function(pkt) for at = 0, 20 do if pkt:u8(at) == 6 then return false end end return true end",
        "local n = 0 return function(pkt) n = n + pkt:len() return pkt:time_ns() >= 0 and n % 3 ~= 0 end",
    ] {
        // LuaJIT chooses at random where it abandons a trace and where its code is placed, so one
        // state may be unlucky.
        let attempts: Vec<_> = std::iter::repeat_with(|| traces(text)).take(3).collect();
        println!("{attempts:?} {text}");
        let is_settled = |counts: &&[(u32, u32); 2]| {
            let [(stops, aborts), (later_stops, later_aborts)] = **counts;
            // LuaJIT may compile rare exits of the loop late, at most two, or try once in vain, but
            // no more.
            stops >= 1 && aborts <= stops && later_stops <= 2 && later_aborts <= 1
        };
        let settled = attempts.iter().filter(is_settled).count();
        assert!(
            settled >= 2,
            "compiled in {settled} of 3 states: {attempts:?} {text}"
        );
    }
}
