//! Queries of recorded packets while packets arrive: answers are correct, and queries cause no
//! packet loss.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use retroscope_recorder::PacketId;

use crate::{
    blocks::{self, PACKET},
    control::socket,
    namespace::Namespace,
    quiet,
    recorder::{PROGRAM, Recorder},
    soak,
    traffic::{self, Sender, number_of, udp},
};

/// State of a followed query over all connections.
#[derive(Debug, Default)]
struct Followed {
    buffer: Vec<u8>,
    /// Sequence number of the next expected packet.
    next: u64,
    packets: u64,
    /// Number of packets that the stream reports as missing.
    dropped: u64,
    /// Number of missing packets that the stream does not report.
    untold: u64,
    last: Option<PacketId>,
}

impl Followed {
    /// Parses the bytes that were read. Sequence numbers must be consecutive. At a gap, the next
    /// packet reports the number of missing packets, unless the kernel dropped the missing packets.
    fn take(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        let (blocks, rest) = blocks::blocks_and_rest(&self.buffer);
        let whole = self.buffer.len() - rest.len();
        for block in blocks.iter().filter(|block| block.kind == PACKET) {
            let (number, dropped) = (number_of(block.data()), block.dropped());
            let untold = number.checked_sub(self.next + dropped);
            self.untold += untold.expect("a packet comes twice, or is told to be missing");
            self.next = number + 1;
            self.packets += 1;
            self.dropped += dropped;
            self.last = Some(block.id());
        }
        self.buffer.drain(..whole);
    }

    /// Reconnects after the last packet, directly or through the program. Discards the bytes of an
    /// incomplete block.
    fn again(&mut self, socket: &Path, by_program: bool) -> Reader {
        self.buffer.clear();
        if by_program {
            let mut command = Command::new(PROGRAM);
            command.args(["query", "--follow", "-w", "-", "--from", "0", "--socket"]);
            command.arg(socket);
            if let Some(PacketId(id)) = self.last {
                command.args(["--after", &id.to_string()]);
            }
            let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            let stdout = child.stdout.take().unwrap();
            return Reader::Program(child, stdout);
        }
        let after = self
            .last
            .map_or_else(String::new, |PacketId(id)| format!("&after={id}"));
        let target = format!("/v1/query?follow=true&from=0{after}");
        Reader::Connection(answer(socket, &target), Vec::new())
    }
}

/// The reading side of a query.
enum Reader {
    Program(Child, ChildStdout),
    /// A connection, with the received bytes that are not parsed yet.
    Connection(UnixStream, Vec<u8>),
}

impl Reader {
    /// The next bytes of the capture file. Empty at the end of the file.
    fn read(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 16];
        match self {
            Self::Program(_, stdout) => {
                let bytes = stdout.read(&mut buffer).unwrap();
                buffer.truncate(bytes);
                buffer
            }
            Self::Connection(stream, rest) => loop {
                if let Some((chunk, used)) = chunk(rest) {
                    rest.drain(..used);
                    return chunk;
                }
                let bytes = stream.read(&mut buffer).unwrap();
                assert!(bytes > 0, "the connection ends in a chunk");
                rest.extend_from_slice(&buffer[..bytes]);
            },
        }
    }
}

impl Drop for Reader {
    /// Kills the program that the test reads from, whether or not it has ended.
    fn drop(&mut self) {
        if let Self::Program(child, _) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The first chunk (RFC 9112, section 7.1), and its length with framing. `None` if the chunk is
/// incomplete.
fn chunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let length = std::str::from_utf8(&bytes[..end]).unwrap();
    let length = usize::from_str_radix(length, 16).unwrap();
    let chunk = bytes.get(end + 2..end + 2 + length)?;
    bytes.get(..end + 4 + length)?;
    Some((chunk.to_vec(), end + 4 + length))
}

/// Sends a request and reads the head of the answer, whose status must be 200. The body follows in
/// the stream.
fn answer(socket: &Path, target: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream
}

/// A following query is killed and resumed repeatedly, and sometimes the test reads nothing until
/// the ring has overtaken the query. All packets must arrive once and in order, except packets that
/// the stream reports as missing or that the kernel dropped.
#[test]
fn who_follows_and_is_killed_misses_only_what_it_is_told() {
    /// Frames between two messages of the sender. A pause lasts at least six such steps, 300,000
    /// frames, which is more than the ring contains.
    const STEP: u64 = 50_000;
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("follow") else {
        return;
    };
    let (seconds, rate) = if soak() { (600, 200_000) } else { (5, 150_000) };
    let (_folder, path) = socket();
    // The ring has room for about 200,000 frames.
    let recorder = Recorder::start(
        &namespace,
        &format!(
            "-i v1 --ring 16MiB --trigger 'udp dst port 1' --api unix:{}",
            path.display()
        ),
    );
    let count = seconds * rate;
    let (tell, steps) = mpsc::channel();
    let (followed, kills, pauses) = thread::scope(|scope| {
        let (path, seed) = (&path, fastrand::u64(..));
        let reading = scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut followed = Followed::default();
            let (mut kills, mut pauses) = (0_u64, 0_u64);
            // Ends when the last frame has arrived.
            while followed.next < count {
                let mut reader = followed.again(path, random.bool());
                let mut left = random.u64(1..rate * 100);
                while left > 0 && followed.next < count {
                    let read = reader.read();
                    left = left.saturating_sub(read.len() as u64);
                    followed.take(&read);
                    if random.u32(..1000) == 0 {
                        while steps.try_recv().is_ok() {}
                        let some = random.usize(7..12);
                        pauses += u64::from(steps.iter().take(some).count() == some);
                    }
                }
                kills += 1;
            }
            (followed, kills, pauses)
        });
        let mut sender = Sender::new(&namespace, "v0");
        let mut told = 0;
        let took = sender.flood(count, Some(rate), traffic::number, |sent, _| {
            if sent / STEP > told {
                told = sent / STEP;
                let _ = tell.send(());
            }
        });
        drop(tell);
        eprintln!("seed {seed}: {count} frames in {took:.1?}");
        reading.join().unwrap()
    });
    recorder.settle(count);
    let outcome = recorder.stop();
    let Followed {
        packets,
        dropped,
        untold,
        ..
    } = followed;
    eprintln!(
        "{packets} came and {dropped} were told to be missing over {kills} connections with {pauses} pauses; {untold} lost in the kernel"
    );
    assert_eq!(untold, outcome.source().lost);
    assert_eq!(packets + dropped + untold, count);
    assert!(kills > 2);
    assert!(
        pauses == 0 || dropped > 0,
        "a pause is longer than the ring"
    );
}

/// Packets arrive at 150 kpps (long variant 500 kpps). Meanwhile, the recorder writes twenty dumps
/// of everything, and answers six queries at a time, the maximum for one account. No packet is
/// lost. In the long variant, 99 % of the answers begin within 50 ms.
#[test]
fn dumps_and_queries_lose_no_packet_and_begin_at_once() {
    const DUMPS: u16 = 20;
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("busy") else {
        return;
    };
    let (seconds, rate) = if soak() { (20, 500_000) } else { (3, 150_000) };
    let (_folder, path) = socket();
    let triggers: String = (1..=DUMPS)
        .map(|port| format!("--trigger 'udp dst port {port}' "))
        .collect();
    let recorder = Recorder::start(
        &namespace,
        &format!(
            "-i v1 --ring 1GiB {triggers} --dump '' --past 500ms --future 500ms --set max-dumps={DUMPS} --set dumps-per-minute=0 --api unix:{}",
            path.display()
        ),
    );
    let is_over = AtomicBool::new(false);
    let mut firsts = thread::scope(|scope| {
        let (path, is_over) = (&path, &is_over);
        let asking: Vec<_> = (0..6)
            .map(|client| {
                scope.spawn(move || {
                    // Filters that match all packets, one host in 256, and no packet.
                    let filter = ["", "&filter=host%2010.0.0.7", "&filter=tcp"][client % 3];
                    let target = format!("/v1/query?last=1s&limit_packets=100000{filter}");
                    let mut firsts = Vec::new();
                    while !is_over.load(SeqCst) {
                        let start = Instant::now();
                        let mut stream = answer(path, &target);
                        let mut byte = [0];
                        stream.read_exact(&mut byte).unwrap();
                        firsts.push(start.elapsed());
                        // Reads up to the last chunk, which is empty. The server keeps the
                        // connection open.
                        let (mut rest, mut buffer) = (byte.to_vec(), vec![0; 1 << 16]);
                        loop {
                            match chunk(&rest) {
                                Some((bytes, _)) if bytes.is_empty() => break,
                                Some((_, used)) => drop(rest.drain(..used)),
                                None => {
                                    let bytes = stream.read(&mut buffer).unwrap();
                                    assert!(bytes > 0, "it ends before its last chunk");
                                    rest.extend_from_slice(&buffer[..bytes]);
                                }
                            }
                        }
                    }
                    firsts
                })
            })
            .collect();
        let mut sender = Sender::new(&namespace, "v0");
        let (count, mut dumps) = (seconds * rate, 0);
        let took = sender.flood(count, Some(rate), traffic::number, |sent, sender| {
            // Dumps start one after another during the first half of the flood.
            if dumps < DUMPS && sent >= u64::from(dumps + 1) * count / u64::from(2 * DUMPS) {
                dumps += 1;
                sender.send(&udp(7, 1000, dumps, b"trigger!"));
            }
        });
        is_over.store(true, SeqCst);
        eprintln!(
            "{count} frames at {:.0} a second",
            count as f64 / took.as_secs_f64()
        );
        let joined = asking.into_iter().map(|client| client.join().unwrap());
        joined.flatten().collect::<Vec<Duration>>()
    });
    recorder.settle(seconds * rate + u64::from(DUMPS));
    recorder.dumps(DUMPS.into());
    let outcome = recorder.stop();
    firsts.sort();
    let of = |part: usize| firsts[(firsts.len() - 1) * part / 100];
    eprintln!(
        "{} answers, first byte after {:.1?} (median), {:.1?} (p99), {:.1?} at most; {} lost",
        firsts.len(),
        of(50),
        of(99),
        of(100),
        outcome.source().lost
    );
    assert_eq!(outcome.json["triggers"], DUMPS);
    let complete = outcome
        .dumps()
        .iter()
        .filter(|dump| dump["verdict"] == "complete");
    assert_eq!((complete.count(), outcome.source().lost), (DUMPS.into(), 0));
    if soak() {
        assert!(of(99) <= Duration::from_millis(50));
    }
}
