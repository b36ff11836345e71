//! Compares a dump with the packets that the generator sent: `demo_check RECORD.json SENT.json
//! FLOW.pcap [schedule]`.
//!
//! - `RECORD.json` ends with the line that `record --json` printed, for a run with one trigger.
//! - `SENT.json` is the output of `generate --json`.
//! - `FLOW.pcap` contains the sent packets that match the dump filter.
//!
//! The trigger packet gives the place of the dump in the flow. The dump must contain, byte for
//! byte, one contiguous part of the flow. No packet of the window may be missing from the dump.
//!
//! A packet is captured a little after it was sent, so a packet that was sent just before either
//! end of the window may be captured after that end. For dumped packets, the timestamps in the dump
//! are the times of capture. For the first packet after the dump, the program assumes the longest
//! observed delay, but at least 200 µs. This packet counts as missing if it was sent at least this
//! delay before the window's end.
//!
//! With `schedule`, the generator ran inside the recorder. Then the timestamps of the two files
//! differ only by the start of the run, which the trigger packet shows, and there are no delays.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "that is what it is for"
)]

use std::{error::Error, fs, path::Path, process::ExitCode};

use retroscope_pcapfile::CaptureReader;
use serde_json::Value;

/// UDP destination port of the trigger packet and of no other packet.
const TRIGGER_PORT: [u8; 2] = 60_000_u16.to_be_bytes();
/// Minimum of the delay in ns that the check at the end of the window assumes, unless all observed
/// delays are 0, as with `schedule`.
const DELAY_MIN_NS: i64 = 200_000;

/// A packet of the generator: Ethernet, IPv4 without options, UDP, a sequence number.
struct Packet {
    time_ns: i64,
    sequence: u64,
    is_trigger: bool,
    data: Vec<u8>,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match check(&arguments) {
        Ok(verdict) => {
            println!("{verdict}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check(arguments: &[String]) -> Result<String> {
    let (record, sent, flow, schedule) = match arguments {
        [record, sent, flow] => (record, sent, flow, false),
        [record, sent, flow, word] if word == "schedule" => (record, sent, flow, true),
        _ => return Err("demo_check RECORD.json SENT.json FLOW.pcap [schedule]".into()),
    };
    let record = last_line(Path::new(record))?;
    let sent = last_line(Path::new(sent))?;
    check_ledger(&record, &sent)?;
    let [dump] = record["dumps"].as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(format!("expected one dump: {}", record["dumps"]).into());
    };
    if dump["verdict"] != "complete" {
        return Err(format!("the verdict is {}: {}", dump["verdict"], dump["missing"]).into());
    }
    let window = Window {
        from_ns: time(&dump["from"])?,
        trigger_ns: time(&dump["trigger_time"])?,
        to_ns: time(&dump["to"])?,
    };
    let file = dump["file"].as_str().ok_or("the dump has no file")?;
    let dumped = packets(Path::new(file))?;
    let flow = packets(Path::new(flow))?;
    let (first, delays) = matched(&dumped, &flow, &window, schedule)?;
    let expected = check_edges(&flow, first, &delays, &window)?;
    describe(&dumped, &delays, &window, schedule);
    Ok(format!(
        "{} packets in the window, {expected} expected",
        dumped.len()
    ))
}

/// The time range of the dump, on the clock of the dump's timestamps.
struct Window {
    from_ns: i64,
    trigger_ns: i64,
    to_ns: i64,
}

/// Offset from sent timestamps to the clock of the dump, and the capture delays of dumped packets.
struct Delays {
    /// Value to add to a sent timestamp.
    shift_ns: i64,
    /// Sorted delays.
    delays_ns: Vec<i64>,
}

/// Checks that the recorder received all sent packets without loss, and that its counters add up.
fn check_ledger(record: &Value, sent: &Value) -> Result<()> {
    let [source] = record["sources"].as_array().map_or(&[][..], Vec::as_slice) else {
        return Err("expected one source".into());
    };
    let lost: u64 = source["lost"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, count)| count.as_u64().unwrap_or(0))
        .sum();
    let number = |name: &str| source[name].as_u64().unwrap_or(0);
    let accounted = number("stored") + number("filtered") + lost;
    let ledger = format!(
        "sent {}, received {}, stored {}, filtered {}, lost {lost}",
        sent["packets"], source["received"], source["stored"], source["filtered"]
    );
    eprintln!("{ledger}");
    if source["received"].as_u64() != Some(accounted) {
        return Err(format!("the recorder's counters do not add up: {ledger}").into());
    }
    if source["received"] != sent["packets"] || lost > 0 {
        return Err(format!("not everything arrived: {ledger}").into());
    }
    Ok(())
}

/// Finds the dump in the flow. Returns the index of the dump's first packet in the flow, and the
/// delays.
fn matched(
    dumped: &[Packet],
    flow: &[Packet],
    window: &Window,
    schedule: bool,
) -> Result<(usize, Delays)> {
    let trigger = |packets: &[Packet]| packets.iter().position(|packet| packet.is_trigger);
    let in_dump = trigger(dumped).ok_or("the trigger packet is not in the dump")?;
    let in_flow = trigger(flow).ok_or("the trigger packet was not sent")?;
    if dumped[in_dump].time_ns != window.trigger_ns {
        return Err("the trigger packet's stamp is not the trigger time".into());
    }
    let first = in_flow
        .checked_sub(in_dump)
        .filter(|first| first + dumped.len() <= flow.len())
        .ok_or("the dump holds more packets than were sent")?;
    let shift_ns = if schedule {
        dumped[in_dump].time_ns - flow[in_flow].time_ns
    } else {
        0
    };
    let mut delays_ns = Vec::with_capacity(dumped.len());
    for (packet, sent) in dumped.iter().zip(&flow[first..]) {
        if packet.sequence != sent.sequence {
            let (found, expected) = (packet.sequence, sent.sequence);
            return Err(format!("a gap: packet {found} where {expected} was sent").into());
        }
        if packet.data != sent.data {
            return Err(format!("packet {} has other bytes than were sent", sent.sequence).into());
        }
        if !(window.from_ns..=window.to_ns).contains(&packet.time_ns) {
            return Err(format!("packet {} is outside the window", sent.sequence).into());
        }
        delays_ns.push(packet.time_ns - sent.time_ns - shift_ns);
    }
    delays_ns.sort_unstable();
    if delays_ns[0] < 0 || schedule && delays_ns.iter().any(|delay| *delay != 0) {
        return Err(format!("captured {} ns before it was sent", -delays_ns[0]).into());
    }
    Ok((
        first,
        Delays {
            shift_ns,
            delays_ns,
        },
    ))
}

/// Checks that no packet of the window is missing before or after the dumped packets. Returns the
/// number of packets in the window.
fn check_edges(flow: &[Packet], first: usize, delays: &Delays, window: &Window) -> Result<usize> {
    let sent_ns = |packet: &Packet| packet.time_ns + delays.shift_ns;
    let after = first + delays.delays_ns.len();
    if let Some(before) = flow[..first].last()
        && sent_ns(before) >= window.from_ns
    {
        return Err(format!("packet {} of the window is missing", before.sequence).into());
    }
    let delay_ns = match delays.delays_ns.last() {
        // With `schedule` all delays are 0.
        Some(0) => 0,
        Some(longest) => (*longest).max(DELAY_MIN_NS),
        None => 0,
    };
    if let Some(next) = flow.get(after)
        && sent_ns(next) + delay_ns <= window.to_ns
    {
        return Err(format!("packet {} of the window is missing", next.sequence).into());
    }
    // Counts packets by the time of sending. Then adds dumped packets that were sent outside of the
    // window, and subtracts packets that were sent inside and captured after the window's end.
    let inside = |packet: &&Packet| (window.from_ns..=window.to_ns).contains(&sent_ns(packet));
    let sent_inside = flow.iter().filter(inside).count();
    let came_in = flow[first..after]
        .iter()
        .filter(|packet| !inside(packet))
        .count();
    let went_out = flow[after..].iter().filter(inside).count();
    Ok(sent_inside + came_in - went_out)
}

fn describe(dumped: &[Packet], delays: &Delays, window: &Window, schedule: bool) {
    let before = dumped
        .iter()
        .filter(|packet| packet.time_ns < window.trigger_ns)
        .count();
    let seconds = |ns: i64| ns as f64 / 1e9;
    eprintln!(
        "the dump: {before} packets in the {:.3} s before the trigger, {} in the {:.3} s after it",
        seconds(window.trigger_ns - window.from_ns),
        dumped.len() - before - 1,
        seconds(window.to_ns - window.trigger_ns),
    );
    eprintln!("byte for byte what was sent, sequence numbers without a gap");
    if !schedule {
        let at = |share: usize| delays.delays_ns[(delays.delays_ns.len() - 1) * share / 100];
        eprintln!(
            "captured after sending: median {} us, longest {} us",
            at(50) / 1000,
            at(100) / 1000
        );
    }
}

/// Parses the last line of a file as JSON.
fn last_line(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().last().ok_or("no JSON was printed")?;
    Ok(serde_json::from_str(line)?)
}

/// Parses an RFC 3339 time to ns since the epoch.
fn time(text: &Value) -> Result<i64> {
    let text = text.as_str().ok_or("a time is missing")?;
    let time: jiff::Timestamp = text.parse()?;
    Ok(i64::try_from(time.as_nanosecond())?)
}

fn packets(path: &Path) -> Result<Vec<Packet>> {
    let mut reader = CaptureReader::open(path)?;
    let mut packets = Vec::new();
    while let Some(record) = reader.next()? {
        let data = record.data.to_vec();
        let is_trigger = data.get(36..38) == Some(&TRIGGER_PORT[..]);
        let at = if is_trigger { 50 } else { 42 };
        let sequence = data
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_be_bytes)
            .ok_or("a packet that the generator did not make")?;
        packets.push(Packet {
            time_ns: record.meta.time_ns,
            sequence,
            is_trigger,
            data,
        });
    }
    Ok(packets)
}
