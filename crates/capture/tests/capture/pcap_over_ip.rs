//! Tests of pcap over IP. The streams come from test servers on the loopback interface.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use retroscope_capture::{
    LossCause, Queue, QueueStatus, Source, SourceError, SourceEvent, TimeDomain,
    pcap_over_ip::TcpSource,
};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter, SectionOptions,
};

const WAIT: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_secs(20);

/// A pcap file of 200 frames of 0 to 199 bytes. Each byte of a frame is the frame's length.
fn capture() -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
    for length in 0..200_u8 {
        let data = vec![length; usize::from(length)];
        writer.record(i64::from(length), 500, &data).unwrap();
    }
    writer.finish().unwrap()
}

/// Bytes of the header of a pcap file.
const HEADER: usize = 24;
/// Bytes of the header of a record.
const RECORD: usize = 16;

/// Starts a test server, which runs `serve` on another thread, and connects to this server. Returns
/// the queue.
fn connect(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Box<dyn Queue>, SourceError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("TCP@{}", listener.local_addr().unwrap());
    std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let source = Box::new(TcpSource::parse(&name).unwrap());
    assert_eq!(source.name(), name);
    source.open(3).map(|mut queues| queues.remove(0))
}

/// Reads until at least `count` frames have arrived or the stream has ended. Returns the captured
/// lengths. Also returns whether the stream ended before that.
fn take(queue: &mut dyn Queue, count: usize) -> (Vec<u32>, bool) {
    let (mut lengths, deadline) = (Vec::new(), Instant::now() + DEADLINE);
    while lengths.len() < count {
        assert!(Instant::now() < deadline, "{} came", lengths.len());
        match queue.next(WAIT).unwrap() {
            QueueStatus::End => return (lengths, true),
            QueueStatus::Frames => assert!(!queue.burst().frames.is_empty()),
            QueueStatus::Idle => assert!(queue.burst().frames.is_empty()),
        }
        lengths.extend(queue.burst().iter().map(|frame| {
            assert!(
                frame
                    .data
                    .iter()
                    .all(|byte| frame.data.len() == usize::from(*byte))
            );
            frame.meta.captured_len
        }));
    }
    (lengths, false)
}

#[test]
fn a_stream_comes_whole() {
    let mut queue = connect(|mut socket| {
        for piece in capture().chunks(7) {
            socket.write_all(piece).unwrap();
        }
    })
    .unwrap();
    let interface = queue.interfaces()[0].clone();
    assert!(
        interface.name.starts_with("TCP@127.0.0.1:"),
        "{interface:?}"
    );
    assert_eq!(interface.link_type, LinkType::ETHERNET);
    assert_eq!(interface.time_domain, TimeDomain::Foreign);
    assert_eq!(queue.watermark(), None);
    let (lengths, ended) = take(queue.as_mut(), usize::MAX);
    assert!(ended && lengths.into_iter().eq(0..200));
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
    assert_eq!(queue.watermark(), Some(i64::MAX));
    let statistics = queue.statistics();
    assert_eq!(statistics.received, Some(200));
    assert_eq!(statistics.lost, [(LossCause::Upstream, None)]);
}

/// A silent server blocks no caller: `next` returns after its wait, even if the server stops within
/// a record.
#[test]
fn silence_is_idleness() {
    let (more, wanted) = std::sync::mpsc::channel::<()>();
    let mut queue = connect(move |mut socket| {
        let bytes = capture();
        // The server sends only the file header; then ten records and a part of the eleventh
        // record; then the rest.
        let part = HEADER + 10 * RECORD + (0..10).sum::<usize>() + RECORD + 3;
        for piece in [&bytes[..HEADER], &bytes[HEADER..part], &bytes[part..]] {
            socket.write_all(piece).unwrap();
            wanted.recv().unwrap();
        }
    })
    .unwrap();
    assert_eq!(queue.interfaces()[0].link_type, LinkType::ETHERNET);
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
    more.send(()).unwrap();
    assert_eq!(take(queue.as_mut(), 10).0.len(), 10);
    assert_eq!(
        queue.next(WAIT).unwrap(),
        QueueStatus::Idle,
        "within a record"
    );
    assert_eq!(queue.statistics().received, Some(10));
    more.send(()).unwrap();
    let (lengths, _) = take(queue.as_mut(), 190);
    assert!(lengths.into_iter().eq(10..200));
    queue.stop();
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
}

#[test]
fn interfaces_appear_on_the_way() {
    let mut queue = connect(|socket| {
        let mut writer = PcapNgWriter::new(socket, &SectionOptions::default()).unwrap();
        for (index, link_type) in [LinkType::ETHERNET, LinkType::RAW].into_iter().enumerate() {
            let interface = writer
                .add_interface(&FileInterface::new(link_type))
                .unwrap();
            assert_eq!(usize::try_from(interface).unwrap(), index);
            writer
                .packet(interface, 7, 1, &[1], &PacketOptions::default())
                .unwrap();
        }
        writer.finish().unwrap();
    })
    .unwrap();
    let known = queue.interfaces().len();
    assert_eq!(take(queue.as_mut(), 2).0, [1, 1]);
    let added = std::iter::from_fn(|| queue.event())
        .filter(|event| matches!(event, SourceEvent::InterfaceAdded(_)))
        .count();
    assert_eq!(known + added, 2);
    assert_eq!(queue.interfaces()[1].link_type, LinkType::RAW);
}

#[test]
fn what_is_wrong_is_told() {
    let error = connect(|mut socket| socket.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap())
        .unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, SourceError::Damaged { .. }), "{words}");
    assert!(words.starts_with("TCP@127.0.0.1:"), "{words}");

    let mut queue = connect(|mut socket| {
        let bytes = capture();
        socket.write_all(&bytes[..bytes.len() - 1]).unwrap();
    })
    .unwrap();
    assert_eq!(take(queue.as_mut(), 199).0.len(), 199);
    let deadline = Instant::now() + DEADLINE;
    let error = loop {
        match queue.next(WAIT) {
            Ok(QueueStatus::Idle) => assert!(Instant::now() < deadline),
            Ok(status) => panic!("{status:?} of a broken stream"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SourceError::Damaged { .. }), "{error}");
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);

    // Nobody listens on this port, which was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let source = TcpSource::parse(&format!("TCP@{free}")).unwrap();
    let error = Box::new(source).open(1).unwrap_err();
    assert!(error.to_string().contains(": connect: "), "{error}");
}

/// A block of pcapng.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &length].concat()
}

/// A section header and an Ethernet interface.
fn start_of_pcapng() -> Vec<u8> {
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let section = words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
    [block(0x0a0d_0d0a, &section), block(1, &words(&[1, 0]))].concat()
}

/// A packet of 4 bytes.
fn packet_of_pcapng() -> Vec<u8> {
    let body = [&[0; 12][..], &[4, 0, 0, 0, 4, 0, 0, 0], &[7; 4]].concat();
    block(6, &body)
}

/// Calls `next` for half a second, and returns the duration of the longest call. Asserts that no
/// call returns a frame.
fn longest_next(queue: &mut dyn Queue, wait: Duration) -> Duration {
    let mut longest = Duration::ZERO;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let before = Instant::now();
        assert_eq!(queue.next(wait).unwrap(), QueueStatus::Idle);
        longest = longest.max(before.elapsed());
    }
    longest
}

/// How much longer than its wait a call of `next` may take: the time for one step of the reader, on
/// a machine that is busy with other tests.
const STEP: Duration = Duration::from_millis(150);

/// `next` returns after its wait, however much data without packets a server sends. Later calls
/// resume at the same position of the stream.
#[test]
fn a_flood_of_what_is_no_packet_holds_nobody_up() {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };
    let gzip = |bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    };
    let unknown = |bytes: usize| block(0x0bad_cafe, &vec![0; bytes]);
    let zstd = |bytes: &[u8]| zstd::stream::encode_all(bytes, 1).unwrap();
    let (start, packet) = (start_of_pcapng(), packet_of_pcapng());
    let floods = [
        (
            "empty blocks",
            start.clone(),
            unknown(0).repeat(10_000),
            packet.clone(),
        ),
        (
            "large blocks",
            start.clone(),
            unknown(16_000_000),
            packet.clone(),
        ),
        (
            "sections",
            start.clone(),
            start[..28].to_vec(),
            [&start[28..], &packet].concat(),
        ),
        ("empty members", gzip(&start), gzip(&[]), gzip(&packet)),
        ("empty frames", zstd(&start), zstd(&[]), zstd(&packet)),
        (
            "bombs of gzip",
            gzip(&start),
            gzip(&unknown(0).repeat(2 << 20)),
            gzip(&packet),
        ),
        (
            "bombs of zstd",
            zstd(&start),
            zstd(&unknown(0).repeat(8 << 20)),
            zstd(&packet),
        ),
    ];
    for (what, start, flood, end) in floods {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let mut queue = connect(move |mut socket| {
            socket.write_all(&start).unwrap();
            // Sends the flood until the test ends the flood or closes the connection.
            while !is_over.load(Ordering::Relaxed) && socket.write_all(&flood).is_ok() {}
            let _ = socket.write_all(&end);
        })
        .unwrap();
        for wait in [Duration::ZERO, WAIT] {
            let longest = longest_next(queue.as_mut(), wait);
            assert!(longest < wait + STEP, "{what}: {longest:?}");
        }
        over.store(true, Ordering::Relaxed);
        if what.starts_with("bombs") {
            // The data in transit may decompress to gigabytes, so the test does not wait for the
            // packet after the flood.
            continue;
        }
        let deadline = Instant::now() + DEADLINE;
        while queue.next(WAIT).unwrap() != QueueStatus::Frames {
            assert!(Instant::now() < deadline, "{what}: its packet did not come");
        }
        assert_eq!(queue.burst().frames.len(), 1, "{what}");
    }
}

/// One server sends blocks byte by byte, and one server stops within a block. `next` must return
/// after its wait.
#[test]
fn a_block_that_trickles_or_stops_holds_nobody_up() {
    let mut queue = connect(|mut socket| {
        socket.set_nodelay(true).unwrap();
        let block = block(0x0bad_cafe, &vec![0; 1 << 20]);
        socket.write_all(&start_of_pcapng()).unwrap();
        // Sends single bytes until the other end closes the connection, however fast the bytes are
        // sent.
        let _ = (block.iter().cycle()).try_for_each(|byte| socket.write_all(&[*byte]));
    })
    .unwrap();
    for wait in [Duration::ZERO, WAIT] {
        let longest = longest_next(queue.as_mut(), wait);
        assert!(longest < wait + STEP, "{longest:?}");
    }
    queue.stop();
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);

    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let mut queue = connect(move |mut socket| {
        let bytes = [start_of_pcapng(), block(0x0bad_cafe, &[0; 4000])].concat();
        socket.write_all(&bytes[..2000]).unwrap();
        let _ = stopped.recv();
    })
    .unwrap();
    let longest = longest_next(queue.as_mut(), WAIT);
    assert!(longest < WAIT + STEP, "{longest:?}");
    queue.stop();
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
    drop(stop);
}

/// A server floods the connection with blocks right after the start of the file. The opening must
/// end within five seconds.
#[test]
fn a_flood_does_not_hold_up_the_opening() {
    let (_over, is_over) = std::sync::mpsc::channel::<()>();
    let before = Instant::now();
    let queue = connect(move |mut socket| {
        socket.write_all(&start_of_pcapng()).unwrap();
        let flood = block(0x0bad_cafe, &[]).repeat(1000);
        while is_over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let _ = socket.write_all(&flood);
        }
    })
    .unwrap();
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_eq!(queue.interfaces().len(), 1);
}

/// TCP keepalive detects a host that is gone silently. The test checks in `/proc/net/tcp` that the
/// kernel runs the keepalive timer of the connection.
#[test]
fn a_silent_connection_is_asked_whether_it_is_there() {
    let (_more, wanted) = std::sync::mpsc::channel::<()>();
    let (port, its_port) = std::sync::mpsc::channel();
    let queue = connect(move |mut socket| {
        port.send(socket.peer_addr().unwrap().port()).unwrap();
        socket.write_all(&capture()[..HEADER]).unwrap();
        let _ = wanted.recv();
    })
    .unwrap();
    let local = format!("0100007F:{:04X}", its_port.recv().unwrap());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let socket = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        // 01: established. An earlier connection from the same port may still be in TIME-WAIT.
        .find(|words| words.get(1) == Some(&local.as_str()) && words[3] == "01")
        .unwrap();
    // `tr:tm->when`: the timer (2: keepalive), and its remaining ticks of 10 ms.
    let (timer, ticks) = socket[5].split_once(':').unwrap();
    assert_eq!(timer, "02", "{socket:?}");
    let ticks = u64::from_str_radix(ticks, 16).unwrap();
    let idle = retroscope_capture::pcap_over_ip::KEEPALIVE_IDLE;
    assert!((1..=idle.as_secs() * 100).contains(&ticks), "{ticks}");
    drop(queue);
}
