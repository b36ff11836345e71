//! Hostile input: memory stays bounded, and a stop takes effect.

use crate::support::{PROGRAM, stderr};
use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Output},
    time::{Duration, Instant},
};

use tempfile::NamedTempFile;

/// Memory in KiB that the program may use in addition to its ring: less than half of the size of
/// all interface names in the capture.
const EXTRA_KIB: u64 = 100 << 10;
const RING_KIB: u64 = 32 << 10;
/// Time limit on a busy machine for actions that should be immediate.
const DEADLINE: Duration = Duration::from_secs(60);

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &length].concat()
}

/// A gzip-compressed pcapng section with `count` interfaces that have names of 4,000 bytes, and
/// optionally one packet each.
fn interfaces(count: u32, packets: bool) -> Vec<u8> {
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let file = Vec::new();
    let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::new(1));
    let section = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    gzip.write_all(&section).unwrap();
    for index in 0..count {
        let name = format!("{index:04000}");
        let body = [&words(&[1, 0, 0x0fa0_0002])[..], name.as_bytes(), &[0; 4]].concat();
        gzip.write_all(&block(1, &body)).unwrap();
        if packets {
            let body = words(&[index, 0, index, 4, 4, 0x0707_0707]);
            gzip.write_all(&block(6, &body)).unwrap();
        }
    }
    gzip.finish().unwrap()
}

/// A process that is killed when this value is dropped. The output of the process goes into files,
/// which never block.
pub(crate) struct Running {
    child: Child,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let [stdout, stderr] = [(); 2].map(|()| NamedTempFile::new().unwrap());
        command.stdout(stdout.reopen().unwrap());
        command.stderr(stderr.reopen().unwrap());
        Self {
            child: command.spawn().unwrap(),
            stdout,
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(out: &Path, args: &[&str]) -> Running {
    Running::start(
        Command::new(PROGRAM)
            .args(["record", "--ring", "32MiB", "--trigger", "udp", "-w"])
            .arg(out)
            .args(args),
    )
}

/// Waits for the end of a process. Returns its peak memory in KiB (`VmHWM` of proc_pid_status(5),
/// read every 5 ms), and its output.
pub(crate) fn peak_kib(mut running: Running) -> (u64, Output) {
    let child = &mut running.child;
    let path = format!("/proc/{}/status", child.id());
    let (mut peak, deadline) = (0, Instant::now() + 3 * DEADLINE);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline);
        let told = fs::read_to_string(&path).unwrap_or_default();
        let line = told.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(kib.unwrap_or(0));
        std::thread::park_timeout(Duration::from_millis(5));
    };
    let output = Output {
        status,
        stdout: fs::read(&running.stdout).unwrap(),
        stderr: fs::read(&running.stderr).unwrap(),
    };
    (peak, output)
}

fn assert_bounded(running: Running, what: &str) {
    let (peak, output) = peak_kib(running);
    let words = stderr(&output);
    assert!(output.status.success(), "{what}: {words}");
    assert!(
        (RING_KIB / 4..RING_KIB + EXTRA_KIB).contains(&peak),
        "{what}: {peak} KiB"
    );
    // One message names both limits: 256 bytes for each interface name, and 8 MiB for all names
    // together.
    let limits = |line: &&str| line.contains(" 256 bytes ") && line.contains(" 8 MiB ");
    assert_eq!(words.lines().filter(limits).count(), 1, "{words}");
}

/// A compressed file of a few MB has 260 MB of interface names. Three copies would take 780 MB. The
/// program must use less than [`EXTRA_KIB`] in addition to its ring.
#[test]
fn names_of_interfaces_take_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    for packets in [false, true] {
        let file = interfaces(65_000, packets);
        assert!(file.len() < 4 << 20, "{}", file.len());
        let path = dir.path().join("names.pcapng.gz");
        fs::write(&path, &file).unwrap();
        let out = dir.path().join("out");
        assert_bounded(start(&out, &["-r", path.to_str().unwrap()]), "-r");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("TCP@{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(&file));
        assert_bounded(start(&out, &["-i", &name]), "TCP@");
        server.join().unwrap().unwrap();
    }
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Waits until the program reports that it records.
fn wait_until_it_records(running: &mut Running) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let has_ended = running.child.try_wait().unwrap().is_some();
        let words = fs::read_to_string(&running.stderr).unwrap();
        if words.contains("recording") {
            return;
        }
        assert!(!has_ended && Instant::now() < deadline, "{words}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A stream and a file contain only blocks that are no packets, and are too long to end during the
/// test. SIGINT ends the recording within 5 s.
#[test]
fn a_flood_of_what_is_no_packet_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let head = interfaces(1, false);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    gzip.write_all(&block(0x0bad_cafe, &[]).repeat(4 << 20))
        .unwrap();
    let bomb = gzip.finish().unwrap();

    let path = dir.path().join("bomb.pcapng.gz");
    fs::write(&path, [&head[..], &bomb.repeat(2000)].concat()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("TCP@{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        let _ = socket.write_all(&head);
        // The loop ends when the recorder closes the connection.
        while socket.write_all(&bomb).is_ok() {}
    });
    for args in [["-r", path.to_str().unwrap()], ["-i", &name]] {
        let mut running = start(&out, &args);
        wait_until_it_records(&mut running);
        let before = Instant::now();
        interrupt(&running.child);
        let status = loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                break status;
            }
            assert!(before.elapsed() < DEADLINE, "{args:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        };
        assert!(status.success(), "{args:?}: {status}");
        assert!(before.elapsed() < Duration::from_secs(5), "{args:?}");
    }
    server.join().unwrap();
}
