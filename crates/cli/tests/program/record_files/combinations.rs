//! Eight combinations of faults, run through the program: a stepped clock, a ring that is full
//! before the first window, a window larger than the ring, a full disk, and packets that imitate
//! the comments of a dump. `recorder/src/tests/generated.rs` tests many more combinations of
//! similar faults.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter, Resolution};
use serde_json::Value;

use super::{S, oracle::read};
use crate::support::{PROGRAM, stderr};

const START: i64 = 1_800_000_000 * S;
const MS: i64 = 1_000_000;
/// Time between two rounds of packets.
const ROUND: i64 = 100 * MS;
const PAST: i64 = 60 * ROUND;
const FUTURE: i64 = 15 * ROUND;
/// Rounds with triggers. The second window crosses the step, and the last window begins long after
/// the step.
const TRIGGERS: [i64; 3] = [120, 155, 300];
const STEP: i64 = 160;
const END: i64 = 340;
const RING_BYTES: usize = 8 << 20;
const LARGE_BYTES: usize = 250_000;
/// Limit on the file size: 50 or 100 KiB, because shells use two units. A dump exceeds both even
/// without large packets.
const FULL: &str = "trap '' XFSZ; ulimit -f 100; ";

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    files: usize,
    step_ns: i64,
    /// The ring is full before the first window.
    is_ring_full: bool,
    /// The past of the last trigger exceeds the ring.
    is_outgrown: bool,
    is_disk_full: bool,
    is_hostile: bool,
}

/// A packet that the test writes into a file. `at_ns` is the time since the start without clock
/// steps.
struct Sent {
    at_ns: i64,
    stamp_ns: i64,
    file: usize,
    data: Vec<u8>,
}

impl Cell {
    /// The ring time of a packet. After a step back, ring time continues without a pause, because
    /// the length of the pause is unknown. A jump forward counts as silence.
    fn ring_ns(self, sent: &Sent) -> i64 {
        let is_behind = self.step_ns < 0 && sent.at_ns >= STEP * ROUND;
        match is_behind {
            true => START + sent.at_ns - ROUND,
            false => sent.stamp_ns,
        }
    }

    fn packets(self) -> Vec<Sent> {
        let mut sent: Vec<Sent> = Vec::new();
        for round in 1..=END {
            let at_ns = round * ROUND;
            let stepped_ns = if round < STEP { 0 } else { self.step_ns };
            let mut send = |file: usize, data: Vec<u8>| {
                sent.push(Sent {
                    at_ns,
                    stamp_ns: START + at_ns + stepped_ns,
                    file,
                    data,
                });
            };
            for number in 0..2 {
                for file in 0..self.files {
                    let trigger = TRIGGERS.iter().position(|trigger| *trigger == round);
                    let is_here = file == 0 && number == 0;
                    let port = trigger.filter(|_| is_here).map_or(7, |index| 9 + index % 2);
                    let label = format!("{round} {number}");
                    send(file, self.udp(u8::try_from(port).unwrap(), &label));
                }
            }
            let bulk_bytes = match round {
                1..=20 if self.is_ring_full => RING_BYTES / 16,
                245..265 if self.is_outgrown => RING_BYTES / 13,
                245..265 => RING_BYTES / 3 / 20,
                _ => 0,
            };
            for number in 0..bulk_bytes / LARGE_BYTES {
                send(number % self.files, vec![0x45; LARGE_BYTES]);
            }
        }
        sent
    }

    /// A UDP packet over raw IPv4, 1 KiB long, with contents that no other packet of its file has.
    fn udp(self, port: u8, label: &str) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 4, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend([0, 7, 0, port, 3, 236, 0, 0]);
        packet.extend(format!("{label:16}").bytes());
        if self.is_hostile {
            for text in ["verdict: complete", "verdict: unfinished"] {
                packet.extend(format!("{text:240}").bytes());
            }
        }
        packet.resize(1024, 0);
        packet
    }

    /// Runs the program on the packets. Returns the dumps of the summary.
    fn record(self, sent: &[Sent], dir: &Path) -> Vec<Value> {
        let mut command = Command::new("sh");
        let limit = if self.is_disk_full { FULL } else { "" };
        command.args(["-c", &format!(r#"{limit}exec "$0" "$@""#)]);
        command.args([PROGRAM, "record", "--json", "-q"]);
        for file in 0..self.files {
            let path = dir.join(format!("{file}.pcap"));
            let mut options = PcapOptions::new(LinkType::RAW);
            options.resolution = Resolution::Nano;
            let mut writer = PcapWriter::new(File::create(&path).unwrap(), options).unwrap();
            for one in sent.iter().filter(|one| one.file == file) {
                let wire_len = u32::try_from(one.data.len()).unwrap();
                writer.record(one.stamp_ns, wire_len, &one.data).unwrap();
            }
            writer.finish().unwrap();
            command.arg("-r").arg(path);
        }
        let ring = format!("{}MiB", RING_BYTES >> 20);
        command.args(["--ring", &ring, "--past", "6s", "--future", "1500ms"]);
        command.args(["--trigger", "udp port 9", "--trigger", "udp port 10"]);
        command.args(["--dump", "", "-w"]).arg(dir.join("out"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let json = text.lines().last();
        let json = json.unwrap_or_else(|| panic!("{self:?}: {}", stderr(&output)));
        let json: Value = serde_json::from_str(json).unwrap();
        let dumps = json["dumps"].as_array().unwrap().clone();
        assert_eq!(dumps.len(), TRIGGERS.len(), "{self:?}: {json}");
        let is_complete = dumps.iter().all(|dump| dump["verdict"] == "complete");
        let code = if is_complete { 0 } else { 3 };
        assert_eq!(
            output.status.code(),
            Some(code),
            "{self:?}: {}",
            stderr(&output)
        );
        dumps
    }

    fn try_it(self) {
        let dir = tempfile::tempdir().unwrap();
        let sent = self.packets();
        let dumps = self.record(&sent, dir.path());
        for trigger in TRIGGERS {
            let is_trigger = |one: &&Sent| one.at_ns == trigger * ROUND && one.file == 0;
            let trigger_ns = sent.iter().find(is_trigger).unwrap();
            let time = retroscope_recorder::rfc3339(trigger_ns.stamp_ns);
            let dump = dumps.iter().find(|dump| dump["trigger_time"] == time);
            let dump = dump.unwrap_or_else(|| panic!("{self:?}: no dump of {time}"));
            self.judge(trigger, dump, &sent);
        }
    }

    fn judge(self, trigger: i64, dump: &Value, sent: &[Sent]) {
        let case = format!("{self:?}, trigger {trigger}: {dump:#}");
        let is_last = trigger == TRIGGERS[2];
        let trigger_at = |one: &&Sent| one.at_ns == trigger * ROUND;
        let trigger_ns = self.ring_ns(sent.iter().find(trigger_at).unwrap());
        let window = trigger_ns - PAST..=trigger_ns + FUTURE;
        let is_in = |one: &&Sent| window.contains(&self.ring_ns(one));
        let mut expected: Vec<&Sent> = sent.iter().filter(is_in).collect();
        expected.sort_by_key(|one| (self.ring_ns(one), one.file));
        let path = PathBuf::from(dump["file"].as_str().unwrap());
        let held = read(&path).0;
        assert_eq!(dump["packets"], held.len(), "{case}");
        let mut rest = expected.iter();
        for packet in &held {
            let is_it = |one: &&Sent| one.stamp_ns == packet.time_ns && one.data == packet.data;
            assert!(rest.any(is_it), "{case}: a packet that it must not hold");
        }
        let verdict = match (self.is_disk_full, self.is_outgrown && is_last) {
            (true, _) => "failed",
            (false, true) => "incomplete",
            (false, false) => "complete",
        };
        assert_eq!(dump["verdict"], verdict, "{case}");
        let known = |entry: &Value| entry["packets"].as_u64().unwrap();
        let missing = dump["missing"].as_array().unwrap();
        let named: u64 = missing.iter().map(known).sum();
        assert_eq!(named, (expected.len() - held.len()) as u64, "{case}");
        assert_eq!(named > 0, verdict != "complete", "{case}");
    }
}

#[test]
fn eight_combinations() {
    let (back, forward) = (-3600 * S, 3600 * S);
    let one = Cell {
        files: 1,
        is_ring_full: true,
        ..Cell::default()
    };
    let cells = [
        Cell {
            is_hostile: true,
            ..one
        },
        Cell {
            step_ns: back,
            ..one
        },
        Cell {
            step_ns: forward,
            is_hostile: true,
            ..one
        },
        Cell {
            files: 3,
            step_ns: back,
            is_hostile: true,
            ..one
        },
        Cell {
            files: 3,
            step_ns: forward,
            is_ring_full: false,
            ..one
        },
        Cell {
            is_outgrown: true,
            ..one
        },
        Cell {
            files: 3,
            step_ns: back,
            is_disk_full: true,
            is_hostile: true,
            ..one
        },
        Cell {
            step_ns: back,
            is_outgrown: true,
            ..one
        },
    ];
    for cell in cells {
        cell.try_it();
    }
}
