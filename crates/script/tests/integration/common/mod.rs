//! Helpers of several tests.

use std::time::Duration;

use retroscope_packet::LinkType;
use retroscope_script::{Machine, Script, ScriptError, ScriptLimits, ScriptPacket};

/// Limits for tests in which time does not matter. The time limit of a call also counts time in
/// which the call's thread waits for a processor, so a short limit would fail on a busy machine.
pub(crate) const PATIENT: ScriptLimits = ScriptLimits {
    time: Duration::from_secs(60),
    memory_bytes: 64 << 20,
};

/// An Ethernet packet of which all bytes were captured.
pub(crate) fn packet(data: &[u8]) -> ScriptPacket<'_> {
    ScriptPacket {
        data,
        wire_len: u32::try_from(data.len()).unwrap(),
        time_ns: 0,
        interface: 0,
        link_type: LinkType::ETHERNET,
        direction: 0,
    }
}

/// A sandboxed script called `test.lua`.
pub(crate) fn trigger(text: &str) -> Machine {
    Machine::new(&Script::new("test.lua", text, false), PATIENT).unwrap()
}

/// Gives packets to a script until the script fails. Panics if it does not fail in 100,000 batches.
pub(crate) fn run_until_fault(mut trigger: Machine) -> ScriptError {
    let data = [0; 60];
    for _ in 0..100_000 {
        trigger.match_many(&[packet(&data); 64]);
        if trigger.fault.is_some() {
            break;
        }
    }
    trigger.fault.expect("it ran through")
}

/// UDP over IPv4 over Ethernet from 10.0.0.1:1234 to 10.0.0.2:`port`, with lengths and without
/// checksums.
pub(crate) fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let [p0, p1] = port.to_be_bytes();
    let length = |more: usize| u16::try_from(payload.len() + more).unwrap().to_be_bytes();
    let ([t0, t1], [u0, u1]) = (length(28), length(8));
    let headers = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
        0x45, 0, t0, t1, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
        4, 210, p0, p1, u0, u1, 0, 0, // UDP
    ];
    [&headers, payload].concat()
}
