//! A tcpdump that captures at the same time as an engine, and the comparison of the two captures.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use retroscope_pcapfile::CaptureReader;
use rustix::process::{Pid, Signal, kill_process};

use super::{DEADLINE, generate, traffic::send_all};

/// A captured packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) time_ns: i64,
    pub(crate) wire_len: u32,
    pub(crate) data: Vec<u8>,
}

/// A running tcpdump, which ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Tcpdump {
    child: Child,
    file: PathBuf,
}

impl Tcpdump {
    /// Starts tcpdump on `interface`, and waits until tcpdump listens. tcpdump keeps at most
    /// `snaplen` bytes of each packet (`None`: all bytes). Prints SKIP and returns `None` if
    /// tcpdump does not start.
    pub(crate) fn start(interface: &str, file: &Path, snaplen: Option<u32>) -> Option<Self> {
        let snaplen = snaplen.unwrap_or(0).to_string();
        let child = Command::new("tcpdump")
            .args(["-n", "-U", "-B", "65536", "-Z", "root", "-i", interface])
            .args(["-s", &snaplen, "--time-stamp-precision", "nano", "-w"])
            .arg(file)
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("SKIP: no tcpdump to compare with");
            return None;
        };
        let words = child.stderr.take().unwrap();
        let tcpdump = Self {
            child,
            file: file.to_owned(),
        };
        let mut words = BufReader::new(words);
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert!(words.read_line(&mut line).unwrap() > 0, "tcpdump ended");
        }
        // Reads tcpdump's further messages, so that the pipe stays open until tcpdump ends.
        std::thread::spawn(move || words.read_to_string(&mut String::new()));
        Some(tcpdump)
    }

    /// Waits until tcpdump has written `count` packets, ends it, and returns all packets.
    pub(crate) fn stop(mut self, count: usize) -> Vec<Record> {
        let deadline = Instant::now() + DEADLINE;
        while self.records().len() < count {
            assert!(Instant::now() < deadline, "tcpdump wrote less");
            std::thread::yield_now();
        }
        let id = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
        self.child.wait().unwrap();
        self.records()
    }

    /// The packets in the file at this moment.
    fn records(&self) -> Vec<Record> {
        let mut reader = CaptureReader::open(&self.file).unwrap();
        let mut records = Vec::new();
        while let Ok(Some(record)) = reader.next() {
            records.push(Record {
                time_ns: record.meta.time_ns,
                wire_len: record.meta.wire_len,
                data: record.data.to_vec(),
            });
        }
        records
    }
}

impl Drop for Tcpdump {
    fn drop(&mut self) {
        // tcpdump has already ended, unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends 5000 packets of 100 flows at 50 kpps. Then sends ten other frames of different lengths,
/// among them frames with one and two tags, jumbo frames, and truncated frames. Returns the number
/// of all frames. Both ends of the veth pair need an MTU of at least 9000.
pub(crate) fn send_mixture(interface: &str) -> usize {
    let sent = generate(interface, "generate:flows=100,count=5000,rate=50kpps");
    let mut frames = Vec::new();
    for (tags, length) in [
        (&[][..], 60),
        (&[0x81, 0, 0, 10], 64),
        (&[0x88, 0xa8, 0, 20, 0x81, 0, 0xe0, 10], 68),
        (&[0x81, 0, 0, 10, 0x81, 0, 0, 11], 72),
        (&[0x81, 0, 0, 10], 1518),
        (&[], 9014),
        (&[0x81, 0, 0, 10], 9018),
    ] {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        frame.extend(tags);
        frame.extend([0x88, 0xb5]);
        let marker = u8::try_from(frames.len()).unwrap();
        frame.resize(length, marker);
        frames.push(frame);
    }
    // Three frames: the start of the IPv4 header of a packet of 1400 bytes, the shortest tagged
    // frame that the kernel accepts, and an Ethernet header without payload.
    let mut cut = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 5, 120];
    frames.push(cut.clone());
    cut.truncate(12);
    cut.extend([0x81, 0, 0, 10, 8, 0, 0x45, 0]);
    frames.push(cut.clone());
    cut.truncate(12);
    cut.extend([0x88, 0xb5]);
    frames.push(cut);
    send_all(interface, &frames);
    usize::try_from(sent).unwrap() + frames.len()
}

/// Asserts that an engine captured the same packets as tcpdump, byte for byte and in the same
/// order, with stamps that differ by less than a second.
pub(crate) fn assert_same(ours: Vec<Record>, theirs: &[Record]) {
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
        assert_eq!(
            (ours.wire_len, &ours.data),
            (theirs.wire_len, &theirs.data),
            "frame {index}"
        );
        // The stamps may differ: each socket used the packet's stamp, or the clock when it placed
        // the packet.
        let difference_ns = ours.time_ns.abs_diff(theirs.time_ns);
        assert!(difference_ns < 1_000_000_000, "frame {index}");
    }
}
